"""A server in a separate process, and its clients: common code of the serving benchmarks."""

import argparse
import base64
import http.client
import json
import mimetypes
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from arr_coc.data.records import Record
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from .timing import argument_parser

NAME = "benchmark"
"""The served model's name."""


def serving_parser(doc: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """The arguments of a serving benchmark: the model, and the data set with the questions."""
    parser = argument_parser(doc, "hub_configs/arr-coc-tiny-2", rounds=rounds)
    parser.add_argument(
        "--data", default="examples/held_out/data.jsonl", help="questions, JSONL as for `arr-coc evaluate`"
    )
    return parser


def serve_command(model: str, *options: str) -> list[str]:
    """The arguments of Python to serve `model` as `NAME` on the CPU; the port is 8000 by default."""
    return ["-m", "arr_coc.cli", "serve", model, "--name", NAME, "--device", "cpu", *options]


@dataclass(frozen=True)
class Case:
    """A question, its image as a data: URL, and the answer that `generate` gives."""

    question: str
    url: str
    expected: str

    def body(self, **options: Any) -> bytes:
        """The request body."""
        parts = [{"type": "image_url", "image_url": {"url": self.url}}, {"type": "text", "text": self.question}]
        return json.dumps({"model": NAME, "messages": [{"role": "user", "content": parts}], **options}).encode()


@torch.no_grad()
def cases(model: ArrCocForConditionalGeneration, records: Sequence[Record]) -> list[Case]:
    """The questions of the records, with the model's answers, asked one at a time."""
    return [
        Case(record.question, data_url(record.image), model.generate(record.image, record.question))
        for record in records
        if isinstance(record.image, Path)
    ]


def data_url(image: Path) -> str:
    kind = mimetypes.guess_type(image.name)[0] or "image/png"
    return f"data:{kind};base64," + base64.b64encode(image.read_bytes()).decode()


class ServedProcess:
    """Runs `arr-coc serve`, or another command that prints its URL, until the block ends.

    Args:
        command: arguments of Python.

    Raises:
        RuntimeError: the server ended before it was ready.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if " at http" not in line:
            raise RuntimeError(f"{' '.join(command)}: expected its URL on standard output; got {line!r}")
        self.url = line.split(" at ")[1].strip()

    def __enter__(self) -> "ServedProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self, seconds: float = 180.0) -> int:
        """Sends SIGTERM; returns the exit code after the server has answered its open requests."""
        self.process.send_signal(signal.SIGTERM)
        with self.process:  # closes its output
            return self.process.wait(seconds)

    def descendants(self) -> list[int]:
        """Ids of its child processes and their descendants (Linux)."""
        return list(_children(self.process.pid))

    def memory(self) -> int:
        """Resident bytes of the server process (Linux)."""
        with suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return 0


def _children(process: int) -> Iterator[int]:
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from _children(int(child))


@dataclass(frozen=True)
class Reply:
    """A server's reply: status (0: none), text, seconds to the first and to the last token."""

    status: int
    text: str = ""
    first: float = 0.0
    total: float = 0.0


def ask(url: str, body: bytes, *, stream: bool = False, pause: float = 0.0, seconds: float = 120.0) -> Reply:
    """Sends one request on a new connection.

    Args:
        url: URL of the API.
        body: the request.
        stream: whether the request is for a stream, which is read event by event.
        pause: seconds between the quarters of the body.
        seconds: timeout of each read.

    Raises:
        OSError, http.client.HTTPException: there is no server, or it disconnected.
    """
    began, parts = time.perf_counter(), urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)
    try:
        connection.request(
            "POST",
            f"{parts.path}/chat/completions",
            _paused(body, pause) if pause else body,
            {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"},
        )
        response = connection.getresponse()
        if stream and response.status == 200:
            return _streamed(response, began)
        content = json.loads(response.read())
        total = time.perf_counter() - began
        if response.status != 200:
            return Reply(response.status, content["error"]["message"], total, total)
        return Reply(200, content["choices"][0]["message"]["content"], total, total)
    finally:
        connection.close()


def _streamed(response: http.client.HTTPResponse, began: float) -> Reply:
    text, first, whole = "", 0.0, False
    for line in response:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            whole = True
            break
        event = json.loads(line[6:])
        if "error" in event:
            raise http.client.HTTPException(event["error"]["message"])
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
        first = first or time.perf_counter() - began
    if not whole:
        raise http.client.IncompleteRead(b"")
    return Reply(200, text, first, time.perf_counter() - began)


def _paused(body: bytes, pause: float) -> Iterator[bytes]:
    quarter = -(-len(body) // 4)
    for start in range(0, len(body), quarter):
        yield body[start : start + quarter]
        time.sleep(pause)


def leave(url: str, body: bytes, *, part: float, after: float) -> None:
    """Sends a part of a request (1: all of it), and disconnects `after` seconds later without reading the reply."""
    parts = urlsplit(url)
    head = f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    with suppress(OSError), socket.create_connection((parts.hostname or "", parts.port), timeout=30) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[: int(len(body) * part)])
        time.sleep(after)


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that `part` of all values do not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
