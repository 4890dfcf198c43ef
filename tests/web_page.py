"""A visitor's browser: opens a page, uploads, types, reads, and notes every request that the page makes."""

import json
import time
from pathlib import Path
from typing import Any

from arr_coc.pages.domains.chromium import Browser, find_browser

PATIENCE = 120.0
"""Seconds that something on the page may take, on a machine with much else to do."""

KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "ArrowDown": (40, ""), "Escape": (27, "")}
"""Code and text of keys."""


class WebPage(Browser):
    """A browser with one page, opened at an address.

    Args:
        url: the address.
        width, height: of the window, px.
        shows: selector of what is there once the page has opened.

    Attributes:
        requests: every address that the page asked for, data: and blob: left out.
        chooser: the file input whose dialog was asked for last, if any.
    """

    def __init__(
        self, url: str, width: int = 1280, height: int = 900, shows: str = "#question textarea, #question input"
    ) -> None:
        self.requests: list[str] = []
        self.chooser: int | None = None
        super().__init__(find_browser())
        for domain in ("Network", "Page", "DOM"):
            self.call(f"{domain}.enable")
        self.call("Page.setInterceptFileChooserDialog", enabled=True)
        self.resize(width, height)
        self.shows = shows
        self.open(url)

    def on_event(self, event: dict[str, Any]) -> None:
        """Notes requests and file dialogs."""
        if event.get("method") == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if not url.startswith(("data:", "blob:")):
                self.requests.append(url)
        elif event.get("method") == "Page.fileChooserOpened":
            self.chooser = event["params"]["backendNodeId"]

    def open(self, url: str) -> None:
        """Goes to an address and waits for the page's parts."""
        self.call("Page.navigate", url=url)
        self.wait(f"document.querySelector({json.dumps(self.shows)})")

    def wait(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON, once it is true."""
        end = time.monotonic() + PATIENCE
        while not (
            value := self.evaluate(f"(() => {{ const v = {expression}; return v instanceof Node ? true : v }})()")
        ):
            assert time.monotonic() < end, f"{expression} did not come true; the page says {self.text('body')!r}"
            time.sleep(0.1)
        return value

    def text(self, selector: str) -> str:
        """What a visitor reads in an element: of a text field its content; "" where there is none."""
        script = "(s => { const e = document.querySelector(s); return e ? e.value ?? e.innerText : '' })"
        return str(self.evaluate(f"{script}({json.dumps(selector)})")).strip()

    def click(self, selector: str) -> None:
        """Clicks an element once it is there."""
        self.wait(f"document.querySelector({json.dumps(selector)})")
        self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")

    def click_button(self, text: str) -> None:
        """Clicks the button that says so, once it is there."""
        button = f"[...document.querySelectorAll('button')].find(b => b.innerText.includes({json.dumps(text)}))"
        self.wait(button)
        self.evaluate(f"{button}.click()")

    def focus(self, selector: str) -> None:
        """Puts the keyboard's focus on an element."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")

    def focused(self) -> str:
        """The id of the part of the page that has the focus, "" for none with an id."""
        return str(self.evaluate("document.activeElement?.closest('[id]')?.id ?? ''"))

    def press(self, key: str) -> None:
        """Presses a key, one of `KEYS`."""
        code, text = KEYS[key]
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def write(self, selector: str, text: str) -> None:
        """Types a text in place of what a field holds."""
        self.focus(selector)
        self.evaluate(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def choose_file(self, path: Path) -> None:
        """Answers the file dialog that was asked for."""
        self.wait("true")  # lets events in
        assert self.chooser is not None, "no file dialog was asked for"
        self.call("DOM.setFileInputFiles", files=[str(path)], backendNodeId=self.chooser)
        self.chooser = None

    def upload(self, selector: str, path: Path) -> None:
        """Puts a file into a file input."""
        self.wait(f"document.querySelector({json.dumps(selector)})")
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)
