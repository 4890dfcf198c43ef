"""`--strict-skips` and `--bare`: what may be skipped, and what a bare machine does not have."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TESTS = """
import pytest
from arr_coc.data import SPLITS, find_fonts
from arr_coc.data.browser import find_browser

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
    ("bare", "installed", "browser"), [(False, True, "PASSED"), (False, False, "FAILED"), (True, True, "SKIPPED")]
)
def test_unlisted_skips_fail_and_a_bare_machine_has_no_browser(
    bare: bool, installed: bool, browser: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, on whose PATH a program of the browser's name is, or is not, installed."""
    shutil.copyfile(ROOT / "tests" / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_one.py").write_text(TESTS)
    programs = tmp_path / "programs"
    programs.mkdir()
    if installed:
        (programs / "chromium").write_text("#!/bin/sh\n")
        (programs / "chromium").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    options = ["-v", "-p", "no:cacheprovider", "--strict-skips", *(["--bare"] if bare else [])]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path).stdout
    outcomes = dict(re.findall(r"::test_(\w+) (PASSED|FAILED|SKIPPED)", said))
    assert outcomes == {"listed": "SKIPPED", "unlisted": "FAILED", "browser": browser, "fonts": "PASSED"}, said
