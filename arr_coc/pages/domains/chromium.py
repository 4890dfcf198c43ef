"""Headless Chromium, one process for many pages.

Commands go through a pair of pipes (the DevTools protocol with `--remote-debugging-pipe`). This needs no port and no
further library, and the browser ends when the process that started it ends.
"""

from __future__ import annotations

import base64
import io
import json
import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Possible names of the installed browser."""

_FLAGS = shlex.split(
    """--headless --remote-debugging-pipe --disable-gpu --hide-scrollbars --mute-audio --no-first-run
    --allow-file-access-from-files --disable-background-networking --disable-component-update --disable-sync
    --disable-quic '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1' --font-render-hinting=none
    --disable-lcd-text --force-color-profile=srgb"""
)
"""Fonts are read from files, and no name is looked up in the network."""
_PIPES = 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null'  # the browser reads commands from 3 and answers on 4
_PATIENCE = 60.0  # timeout of an answer, seconds


class Browser:
    """A running browser with one page; `program` is its path. RuntimeError if it does not start, or stops answering."""

    def __init__(self, program: str) -> None:
        folder = Path(tempfile.mkdtemp(prefix="arr_coc_browser_"))
        page = folder / "page.html"
        page.write_text("<!DOCTYPE html><title>page</title>", encoding="utf-8")
        root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # the sandbox refuses root; the pages are our own
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _PIPES, program, *_FLAGS, *root, f"--user-data-dir={folder}/profile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._end = weakref.finalize(self, _end, self._process, folder, os.getpid())
        self._number, self._unread, self._session = 0, b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.navigate", url=page.as_uri())
        self.evaluate(
            "new Promise(done => document.readyState == 'complete' ? done() : addEventListener('load', done))"
        )

    def resize(self, width: int, height: int) -> None:
        """Makes the window so large, px."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self) -> Image.Image:
        """The window, RGB."""
        data = self.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)["data"]
        return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")

    def close(self) -> None:
        """Ends the browser and removes its files; otherwise this happens when the process ends."""
        self._end()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, after its promises; RuntimeError if it throws."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"browser: expected a script that runs through; got {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol; events in between are passed to `on_event`. Raises
        RuntimeError: the browser refuses the command, or stops answering."""
        self._number += 1
        command: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\0")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise RuntimeError("browser: expected it to take a command; it has ended") from error
        while True:
            message = json.loads(self._message())
            if message.get("id") == self._number:
                break
            self.on_event(message)
        if "error" in message:
            raise RuntimeError(f"browser: expected an answer to {method}; got {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def on_event(self, event: dict[str, Any]) -> None:
        """Handles an event of the browser; none is needed to render pages."""

    def _message(self) -> bytes:
        assert self._process.stdout is not None
        stream, end = self._process.stdout.fileno(), time.monotonic() + _PATIENCE
        while b"\0" not in self._unread:
            ready, _, _ = select.select([stream], [], [], max(0.0, end - time.monotonic()))
            received = os.read(stream, 1 << 20) if ready else b""
            if not received:
                reason = "it has ended" if ready else f"nothing came for {_PATIENCE:g} seconds"
                raise RuntimeError(f"browser: expected an answer; {reason}")
            self._unread += received
        message, _, self._unread = self._unread.partition(b"\0")
        return message


def _end(process: subprocess.Popen[bytes], folder: Path, owner: int) -> None:
    if os.getpid() != owner:  # a fork of the process that owns the browser
        return
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError):  # the browser may have ended before reading the last command
        process.stdin.close()  # the browser ends when its input is closed
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)


def find_browser() -> str:
    """The path of an installed browser; FileNotFoundError, with a Debian package, if there is none."""
    for name in PROGRAMS:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(
        f"browser: expected one of {', '.join(PROGRAMS)} on the path; got none. "
        "On Debian or Ubuntu: apt-get install chromium"
    )


def shared_browser() -> Browser:
    """The browser of this process, started on first use; a forked process starts another one.

    Raises:
        FileNotFoundError: none is installed.
        RuntimeError: it does not start.
    """
    return _browser_of(os.getpid())


@cache  # a fork inherits its parent's browser, which it must not end
def _browser_of(process: int) -> Browser:
    return Browser(find_browser())
