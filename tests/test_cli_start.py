"""How the command line starts: help and version, what they name, and what they wait for."""

import json
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli
from PIL import Image

from arr_coc.attached.scoring import STRATEGIES
from arr_coc.cli import COMMANDS
from arr_coc.cli.common import TILING, TRAINED
from arr_coc.data.formats import DEFAULT_FORMAT, FORMATS
from arr_coc.data.records import MAX_ERRORS
from arr_coc.evaluation.arms import GROUPS
from arr_coc.files import SHIPPED
from arr_coc.loading import DTYPES
from arr_coc.metrics import METRICS
from arr_coc.modeling import budgets
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.bridges import BRIDGES
from arr_coc.modeling.scorers import SCORERS
from arr_coc.pages.domains import DOMAINS
from arr_coc.publishing.pushing import MAIN
from arr_coc.version import __version__

ROOT = Path(__file__).parents[1]
QUESTION = "What is the total?"
RECEIPT = "examples/images/receipt.png"

FRESH = """
import contextlib, io, json, os, sys, time
from arr_coc.cli import main

begun = time.process_time()
for arguments in json.load(sys.stdin):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    loaded = [name for name in ("arr_coc.modeling", "numpy", "torch", "transformers") if name in sys.modules]
    seconds = begun + time.process_time()
    print(json.dumps([code, out.getvalue(), err.getvalue(), seconds, loaded]), flush=True)
    os._exit(0)
"""
"""Runs command lines, each as in a fresh interpreter; says code, output, errors, CPU seconds and what was imported."""


def fresh(*lines: tuple[str, ...], **environment: str) -> list[list[Any]]:
    given = {"cwd": ROOT, "env": {**os.environ, **environment}, "input": json.dumps(lines), "timeout": 300}
    result = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True, **given)
    return [json.loads(line) for line in result.stdout.splitlines()]


EXAMPLES: dict[str, Any] = {command.name: command.examples for command in COMMANDS}
HELP = {("--version",): [__version__], ("--help",): EXAMPLES} | {(name, "--help"): EXAMPLES[name] for name in EXAMPLES}
"""What is said to each line, among others."""
BROKEN = {
    "broken.pdf": "expected a PDF that can be opened; got a broken or empty one",
    "broken.mp4": "expected a whole video; got a broken one",
    "narrow.png": "image: expected sides of at least 8 px, the height of the smallest print; got 90x3",
}
ASK = ("ask", RECEIPT, QUESTION)
REFUSED: list[tuple[tuple[str, ...], str]] = [
    *((("ask", name, QUESTION), message) for name, message in BROKEN.items()),
    (("ask", "missing.png", QUESTION), "missing.png: expected an image file; got a missing path"),
    (("ask", "README.md", QUESTION), "a PDF or a video; got text"),
    ((*ASK, "--model", "typo"), "got 'typo', which does not exist"),
    ((*ASK, "--picture", "out.txt"), "--picture: expected a name ending in .png"),
    (("look", "missing.png", QUESTION, "--out", "out"), "missing.png: expected an image file"),
    (("ask", RECEIPT, " "), "question: expected a non-empty string; got ' '"),
    ((*ASK, "--budget", "some"), "budget: expected 0 to "),
    ((*ASK, "--budget", "5000"), "budget: expected 0 to 4096 patches"),
    ((*ASK, "--budget", "0.25"), "budget: expected 0 to "),
    (("build", "nowhere", "out"), "SOURCE: expected a folder; got 'nowhere', which is none"),
    (("replay", "nowhere"), "LOG: expected a folder; got 'nowhere', which is none"),
    (("serve", "nowhere"), "got 'nowhere', which does not exist"),
    ((*ASK, "--model", "docs"), "model: expected a folder with config.json or scorer.safetensors; got none in docs"),
    (("info", "docs"), "model: expected a folder with config.json or scorer.safetensors; got none in docs"),
    ((*ASK, "--strategy", "realizer"), "oracle, random, saliency, variance, words (held here)"),  # which it lacks
    (("evaluate", "examples/held_out/data.jsonl", "--strategies", "none,word"), "(held here); got 'word'"),
    ((*ASK, "--allocator", "best"), "allocator: expected one of adaptive, foveated, knapsack"),
    ((*ASK, "--tiles", "some"), "--tiles: expected auto, asked, all, never or a positive number"),
    ((*ASK, "--passes", "0"), "--passes: expected a number from 1, or "),
    ((*ASK, "--strategy", "oracle"), "--box: expected the place of the answer beside --strategy"),
    ((*ASK, "--box", "1,2,3,4"), "--box: expected --strategy oracle, which fetches what is in it"),
    ((*ASK, "--strategy", "oracle", "--box", "5000,0,5100,50"), "boxes: expected boxes that reach into the image of "),
    ((*ASK, "--readings", "3", "--passes", "2"), "--readings: expected 1 beside --passes; got 3"),
    ((*ASK, "--readings", "2", "--strategy", "oracle", "--box", "1,2,3,4"), "--readings: expected 1 beside --box"),
    *(
        ((*command, "--device", "foo"), "--device: expected e.g. cpu, cuda, cuda:1, mps; got 'foo'")
        for command in (
            ASK,
            ("look", RECEIPT, QUESTION, "--out", "out"),
            ("serve",),
            ("demo",),
            ("measure", "examples/measured.yaml"),
            ("evaluate", "examples/held_out/data.jsonl"),
            ("train", "examples/phases.yaml", "--out", "out"),
            ("info",),
            ("learn", "--versions", "out"),
        )
    ),
    (("serve", "--port", "99999"), "--port: expected a number from 0 to 65535; got '99999'"),
    (("measure", "--bench", "nowhere"), "--bench: expected a folder; got 'nowhere', which is none"),
    (("measure", "nowhere.yaml"), "DATA: expected a file; got 'nowhere.yaml', which does not exist"),
    (("evaluate", "nowhere.jsonl"), "DATA: expected a file; got 'nowhere.jsonl', which does not exist"),
    (("train", "nowhere.yaml", "--out", "out"), "RECIPE.yaml: expected a file; got 'nowhere.yaml'"),
    (("serve", "--api-keys", "nowhere.txt"), "--api-keys: expected a file; got 'nowhere.txt'"),
    (("measure", "examples/measured.yaml", "--json", "no/such/file"), "--json: expected a file in a folder"),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[Any]]:
    """What is said to the command lines of `HELP` and `REFUSED`; those of `BROKEN` name files that are there."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken.pdf").write_bytes((ROOT / "examples/images/invoices.pdf").read_bytes()[:200])
    (folder / "broken.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(200))
    Image.new("RGB", (3, 90)).save(folder / "narrow.png")
    lines = [*HELP, *(line for line, _ in REFUSED)]
    placed = [tuple(str(folder / part) if part in BROKEN else part for part in line) for line in lines]
    return dict(zip(lines, fresh(*placed), strict=True))


@pytest.mark.parametrize("line", HELP, ids=" ".join)
def test_help_and_version_do_not_wait_for_the_library(line: tuple[str, ...], told: Any) -> None:
    """`arr-coc --help` took 5 s: it imported transformers and torch, and registered classes with them."""
    code, out, _, seconds, loaded = told[line]
    assert out.startswith(("usage: arr-coc", "arr-coc ")) and (code, loaded) == (0, [])
    assert seconds < 1.0  # 0.15 s on an idle machine
    assert all(part in out for part in HELP[line])


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_cannot_work_is_refused_without_the_library(line: tuple[str, ...], message: str, told: Any) -> None:
    """`arr-coc ask missing.png` took 5 s, those of the imports; a broken document, 20 s, those of the model."""
    code, _, err, _, loaded = told[line]
    (refusal,) = err.splitlines()
    assert message in refusal and code == 2 and not {"torch", "transformers"} & {*loaded}


def test_a_name_on_the_hub_is_refused_if_the_hub_does_not_answer() -> None:
    """It took 143 s: three loaders tried six times each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        hub = f"http://127.0.0.1:{free.getsockname()[1]}"
    line = ("ask", RECEIPT, QUESTION, "--model", "org/name")
    ((code, _, err, seconds, _),) = fresh(line, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="0")
    refusal = f".*: org/name: expected a folder or a model on the Hub; got no answer from {hub} .*"
    assert code == 2 and re.fullmatch(refusal, err.splitlines()[-1]) and seconds < 60


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("evaluate", (*FORMATS, *METRICS, *GROUPS)),
        ("assemble", (*BRIDGES, *SCORERS, *DTYPES)),
        ("render", tuple(DOMAINS)),
        ("ask", (*ALLOCATORS, *SCORERS, *STRATEGIES)),
        ("look", tuple(ALLOCATORS)),
    ],
)
def test_help_names_what_is_registered(cli: Cli, command: str, names: tuple[str, ...]) -> None:
    """It does not ask the registries, so that it is quick."""
    words = set(re.findall(r"\w+", cli(command, "--help")[1]))
    assert names and set(names) <= words


def test_help_says_the_defaults_of_the_library(cli: Cli) -> None:
    text = " ".join(cli("evaluate", "--help")[1].split())
    assert f"(default: {DEFAULT_FORMAT})" in text and f"skipped at most (default: {MAX_ERRORS})" in text
    assert f"(default: {SHIPPED.as_posix()} of a checkout)" in text
    assert f"(default: {MAIN})" in " ".join(cli("push", "--help")[1].split())
    assert {*TRAINED.split(", ")} == {name for name, kind in SCORERS.items() if kind.trained}
    assert TILING == budgets.TILING


def test_version_and_module(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["arr-coc", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("arr_coc.cli", run_name="__main__")
    assert (stop.value.code, capsys.readouterr().out) == (0, f"arr-coc {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("examples/phases.yaml", "stips=1", "--out", "OUT"),
        ("examples/phases.yaml", "--out", "OUT", "stips=1"),
        ("--out", "OUT", "examples/phases.yaml", "stips=1"),
    ],
)
def test_settings_stand_before_and_behind_options(cli: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Behind an option they were "unrecognized arguments"."""
    given = [str(tmp_path) if part == "OUT" else part.replace("examples", str(ROOT / "examples")) for part in arguments]
    code, out, err = cli("train", *given)
    assert (code, out) == (2, "") and "stips" in err and "unrecognized" not in err


@pytest.mark.parametrize("arguments", [("train", "r.yaml", "--out", "o", "stray"), ("info", "m", "steps=1")])
def test_arguments_that_mean_nothing(cli: Cli, arguments: tuple[str, ...]) -> None:
    code, _, err = cli(*arguments)
    assert code == 2 and err.startswith(f"arr-coc: error: unrecognized arguments: {arguments[-1]}")
