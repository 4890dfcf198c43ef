"""`--strict-skips` and `--bare`: what may be skipped, and what a bare machine does not have."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

import arr_coc.pages.domains.chromium  # noqa: F401  a run within this one would import torch again, which crashes

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]

TESTS = """
import pytest
from arr_coc.pages.splits import SPLITS
from arr_coc.pages.fonts import find_fonts
from arr_coc.pages.domains.chromium import find_browser

def test_listed():
    pytest.skip("could not import 'trl': No module named 'trl'")

def test_unlisted():
    pytest.skip("too slow today")

def test_browser():
    try:
        find_browser()
    except FileNotFoundError as error:
        pytest.skip(str(error))

def test_fonts():
    assert all(map(find_fonts, SPLITS))
"""


@pytest.mark.parametrize(
    ("bare", "installed", "browser"), [(False, True, "passed"), (False, False, "failed"), (True, True, "skipped")]
)
def test_unlisted_skips_fail_and_a_bare_machine_has_no_browser(
    bare: bool, installed: bool, browser: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run of its own, on whose PATH a program of the browser's name is, or is not, installed."""
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile(TESTS)
    programs = pytester.mkdir("programs")
    if installed:
        (programs / "chromium").write_text("#!/bin/sh\n")
        (programs / "chromium").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    with patch.dict(os.environ):  # `--bare` changes it
        said = pytester.inline_run("-p", "no:cacheprovider", "--strict-skips", *(["--bare"] if bare else []))
    outcomes = {
        report.nodeid.partition("::test_")[2]: report.outcome
        for report in said.getreports("pytest_runtest_logreport")
        if report.when == "call"
    }
    assert outcomes == {"listed": "skipped", "unlisted": "failed", "browser": browser, "fonts": "passed"}
