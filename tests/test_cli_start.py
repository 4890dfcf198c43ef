"""How the command line starts: help and version, what they name, and what they wait for."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli
from transformers.utils import logging

from arr_coc.data.domains import DOMAINS
from arr_coc.data.formats import FORMATS
from arr_coc.data.records import MAX_ERRORS
from arr_coc.data.sources import DEFAULT_FORMAT
from arr_coc.evaluating.arms import GROUPS
from arr_coc.loading import DTYPES, SHIPPED
from arr_coc.metrics import METRICS
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.bridges import BRIDGES
from arr_coc.modeling.scorers import SCORERS
from arr_coc.publishing.pushing import MAIN
from arr_coc.version import __version__
from arr_coc_cli import COMMANDS

ROOT = Path(__file__).parents[1]
QUESTION = "What is the total?"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_describes_and_shows_examples(cli: Cli, command: Any) -> None:
    code, out, _ = cli(command.name, "--help")
    assert code == 0 and all(example in out for example in command.examples)
    assert command.name in cli("--help")[1]


TIMED = """
import sys, time
from arr_coc_cli import main
code = main(sys.argv[1:])
loaded = [name for name in ("arr_coc", "numpy", "torch", "transformers") if name in sys.modules]
print(code, time.process_time(), *loaded, file=sys.stderr)
"""
"""Runs a command line in a fresh interpreter; then says its exit code, its seconds of CPU and what it imported."""


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), *((command.name, "--help") for command in COMMANDS)]
)
def test_help_and_version_do_not_wait_for_the_library(arguments: tuple[str, ...]) -> None:
    """`arr-coc --help` took 5 s: it imported transformers and torch, and registered classes with them."""
    command = [sys.executable, "-c", TIMED, *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    code, seconds, *loaded = result.stderr.split()
    assert result.stdout.startswith(("usage: arr-coc", "arr-coc ")) and (code, loaded) == ("0", [])
    assert float(seconds) < 1.0  # 0.15 s on an idle machine


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("evaluate", (*FORMATS, *METRICS)),
        ("experiment", (*FORMATS, *METRICS, *GROUPS)),
        ("ablate", (*FORMATS, *METRICS)),
        ("assemble", (*BRIDGES, *SCORERS, *DTYPES)),
        ("render", tuple(DOMAINS)),
        ("ask", tuple(ALLOCATORS)),
        ("look", tuple(ALLOCATORS)),
        ("analyse", (*FORMATS, *METRICS, *ALLOCATORS)),
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


def test_version_and_module(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["arr-coc", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("arr_coc_cli", run_name="__main__")
    assert (stop.value.code, capsys.readouterr().out) == (0, f"arr-coc {__version__}\n")


def test_libraries_are_as_loud_afterwards_as_before(cli: Cli, picture: Path) -> None:
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    cli("ask", picture, QUESTION, "--model", "typo")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
