"""`arr-coc demo` as a visitor has it: Chromium uploads, asks and reads, and nothing leaves the machine.

Screenshots at 1280 and 390 px are written to the test's folder (`--basetemp` says where), to be looked at.
"""

import importlib.util
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from web_page import WebPage

from arr_coc import load_model
from arr_coc.pages.domains.chromium import find_browser

if importlib.util.find_spec("gradio") is None:  # importing it takes seconds, and here only the server needs it
    pytest.skip("could not import 'gradio'", allow_module_level=True)
try:
    find_browser()
except FileNotFoundError as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
MODEL = str(ROOT / "hub_configs" / "arr-coc-tiny-2")
RECEIPT, PAGE = ROOT / "examples/images/receipt.png", ROOT / "examples/held_out/images/00000.jpg"
TOTAL, DATE, PHONE = "What is the total?", "What is the date?", "What is the phone?"

WATCHED = """
import sys

def watch(event, args):
    if event == "socket.getaddrinfo":
        host = args[0]
    elif event == "socket.connect" and isinstance(args[1], tuple):
        host = args[1][0]
    else:
        return
    if host not in (None, "", "127.0.0.1", "localhost", "::1", "0.0.0.0"):
        print("LEFT THE MACHINE", event, host, file=sys.stderr, flush=True)

sys.addaudithook(watch)
from arr_coc.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs a command line; says on standard error which other machines it looks for."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The demo's URL, and a file with all that it says on standard error."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    errors = tmp_path_factory.mktemp("server") / "errors.txt"
    with errors.open("w") as stream:
        command = [sys.executable, "-c", WATCHED, "demo", MODEL, "--port", str(port)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=stream, text=True)
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            assert said == f"Open http://127.0.0.1:{port}/ (Ctrl-C ends it)\n", errors.read_text()
            yield said.split()[1], errors
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(timeout=60)
            process.stdout.close()
    assert code == 130 and errors.read_text() == ""


@pytest.fixture(scope="module")
def answers() -> dict[tuple[Path, str, str], str]:
    """What the model answers without any page."""
    model: Any = load_model(MODEL)
    asked = [
        (RECEIPT, TOTAL, "realizer"),
        (RECEIPT, DATE, "realizer"),
        (RECEIPT, DATE, "saliency"),
        (PAGE, PHONE, "realizer"),
    ]
    return {(path, text, strategy): model.generate(path, text, strategy=strategy) for path, text, strategy in asked}


@pytest.fixture
def visit(server: tuple[str, Path]) -> Iterator[Callable[..., WebPage]]:
    """Opens the demo in a browser of its own."""
    pages: list[WebPage] = []

    def open_page(**size: int) -> WebPage:
        pages.append(WebPage(server[0], **size))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()
        assert page.requests and {request for request in page.requests if not request.startswith(server[0])} == set()
    assert server[1].read_text() == ""  # no traceback, and no other machine


def ask(page: WebPage, question: str) -> None:
    page.write("#question textarea", question)
    page.click("#ask")


def choose(page: WebPage, selector: str, option: str) -> None:
    """Opens a list and goes down to an option, with the keyboard."""
    page.focus(selector)
    for _ in range(10):
        active = page.wait("document.querySelector('[role=option].active')?.innerText")
        if option in active:
            break
        page.press("ArrowDown")
        page.wait(f"document.querySelector('[role=option].active')?.innerText != {json.dumps(active)}")
    page.press("Enter")
    page.wait(f"document.querySelector({selector!r}).value == {option!r}")


def wait_for_answer(page: WebPage, side: str = "first") -> str:
    page.wait(f"document.querySelector('#{side}-note')?.innerText.includes('confidence')")
    return page.text(f"#{side}-answer textarea")


def test_upload_ask_twice_side_by_side(visit: Callable[..., WebPage], answers: dict[Any, str], tmp_path: Path) -> None:
    page = visit()
    page.upload("#file input[type=file]", RECEIPT)
    page.wait("document.querySelector('#first-picture img')")
    plain = page.evaluate("document.querySelector('#first-picture img').src")
    ask(page, TOTAL)
    page.wait(f"document.querySelector('#first-picture img').src != {plain!r}")
    assert wait_for_answer(page) == answers[RECEIPT, TOTAL, "realizer"]
    assert page.text("#first-note").startswith("107 of 1600 patches fetched, confidence ")
    page.wait("document.querySelector('#asked img')")

    choose(page, "#other input", "saliency")
    page.write("#question textarea", DATE)
    page.press("Enter")
    assert wait_for_answer(page, "second") == answers[RECEIPT, DATE, "saliency"]
    assert page.text("#first-answer textarea") == answers[RECEIPT, DATE, "realizer"]
    page.wait("document.querySelectorAll('#asked img').length >= 3")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot().save(tmp_path / "side_by_side_1280.png")
    page.resize(390, 844)
    page.wait("innerWidth == 390")
    page.screenshot().save(tmp_path / "questions_390.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_telephones_scroll_to_answers(visit: Callable[..., WebPage], answers: dict[Any, str], tmp_path: Path) -> None:
    page = visit(width=390, height=844)
    page.click_button(PHONE)
    assert wait_for_answer(page) == answers[PAGE, PHONE, "realizer"]
    page.wait("document.querySelector('#asked img')")
    assert in_sight(page, "#first-answer") and in_sight(page, "#first-picture")
    page.screenshot().save(tmp_path / "answer_390.png")
    ask(page, "")
    page.wait("document.querySelector('#message [role=alert]')")
    time.sleep(0.5)  # scrolling
    assert page.text("#message [role=alert]") == "Write a question first." and in_sight(page, "#message")
    page.screenshot().save(tmp_path / "problem_390.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def in_sight(page: WebPage, selector: str) -> bool:
    box = page.evaluate(f"document.querySelector({selector!r}).getBoundingClientRect().toJSON()")
    return bool(box["top"] > -1 and box["bottom"] < page.evaluate("innerHeight") + 1)  # px


def test_the_keyboard_alone_uploads_chooses_and_asks(visit: Callable[..., WebPage], answers: dict[Any, str]) -> None:
    page = visit()
    page.wait("document.querySelector('#budget input')")
    reached: list[str] = []
    while "file" not in reached:
        page.press("Tab")
        reached.append(page.focused())
        assert len(reached) < 30, reached
    page.press("Enter")
    page.choose_file(RECEIPT)
    page.wait("document.querySelector('#first-picture img')")
    page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")
    reached = []
    for _ in range(30):
        page.press("Tab")
        reached.append(page.focused())
        if reached[-1] == "question":
            break
    page.call("Input.insertText", text=TOTAL)
    for part in ("ask", "strategy", "other", "budget"):
        page.press("Tab")
        assert page.focused() == part
    page.call("Input.insertText", text="400")
    page.press("Enter")
    page.focus("#question textarea")
    page.press("Enter")
    wait_for_answer(page)
    assert page.text("#first-note").startswith("400 of 1600 patches")


def test_bad_input_is_one_line_and_sessions_share_nothing(
    visit: Callable[..., WebPage], tmp_path: Path, server: tuple[str, Path]
) -> None:
    page = visit()
    page.upload("#file input[type=file]", RECEIPT)
    page.wait("document.querySelector('#first-picture img')")
    page.open(server[0])  # loaded again: another session
    ask(page, TOTAL)
    page.wait("document.querySelector('#message [role=alert]')")
    assert page.text("#message [role=alert]") == "Drop an image first, or choose an example."
    broken = tmp_path / "broken.png"
    broken.write_bytes(RECEIPT.read_bytes()[:2000])
    page.upload("#file input[type=file]", broken)
    page.wait("document.querySelector('#message [role=alert]')?.innerText.includes('corrupt')")
    line = page.text("#message [role=alert]")
    assert re.fullmatch(r"image: expected a whole image; got a corrupt one \(\w+\)", line)
    page.screenshot().save(tmp_path / "problem_1280.png")


def test_the_browser_is_told_to_load_nothing_from_elsewhere(server: tuple[str, Path]) -> None:
    with urlopen(server[0], timeout=60) as response:
        assert response.headers["Content-Security-Policy"].startswith("default-src 'self' data: blob:")
        assert response.headers["Referrer-Policy"] == "no-referrer"
