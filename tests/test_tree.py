"""What the repository holds and what its distributions hold: no stray copies, no weights where none belong.

python -m pytest -s -m "slow or not slow" tests/test_tree.py    # prints sizes
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from helpers import Cli, refuses, tiny_model
from PIL import Image

import arr_coc.pages.domains.chromium  # noqa: F401  a run within this one would import torch again, which crashes
from arr_coc.data.records import Record
from arr_coc.evaluation import evaluate
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.scorers import SCORERS

ROOT = Path(__file__).parents[1]

FOLDERS = {".ci", "arr_coc", "benchmarks", "docs", "examples", "hub_configs", "modeling", "tests"}
FILES = {*".gitignore CHANGELOG.md CONTRIBUTING.md LICENSE MANIFEST.in Makefile README.md".split()}
FILES |= {"constraints.txt", "pyproject.toml", "setup.py"}

LARGEST = 16_000_000
"""Bytes of a tracked file."""

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
MAY_HOLD_WEIGHTS = ("hub_configs/", "tests/fixtures/")

LARGEST_SDIST = 3_000_000
"""Bytes of a source distribution, compressed."""


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Paths of all files that git tracks, from the repository's root."""
    try:
        root = subprocess.run(["git", "rev-parse", "--show-toplevel"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        pytest.skip("git is not installed")
    if root.returncode or not ROOT.samefile(root.stdout.strip()):
        pytest.skip("this is no git repository")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).is_file()]


def test_files_and_weights_lie_under_known_names_and_none_is_large(tracked: list[str]) -> None:
    """`work/` held 22 MB of weights a second time, for three weeks."""
    assert [path for path in tracked if path.partition("/")[0] not in (FOLDERS if "/" in path else FILES)] == []
    sizes = {path: (ROOT / path).stat().st_size for path in tracked}
    print(f"{len(sizes):,} files, {sum(sizes.values()):,} bytes")
    assert {path: size for path, size in sizes.items() if size > LARGEST} == {}
    weights = [path for path in tracked if path.endswith(WEIGHTS)]
    assert [path for path in weights if not path.startswith(MAY_HOLD_WEIGHTS)] == []
    assert [path for path in weights if path.endswith("learner.safetensors")] == []


@pytest.mark.slow
def test_distributions_hold_code_configs_and_cards_alone(tmp_path: Path) -> None:
    """In a copy: a build leaves folders beside setup.py."""
    copy = tmp_path / "copy"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES - {".gitignore"}:
        shutil.copyfile(ROOT / name, copy / name)
    command = [sys.executable, "-m", "build", "--outdir", str(tmp_path / "dist"), str(copy)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if "No matching distribution found for setuptools" in built.stdout + built.stderr:
        pytest.skip("setuptools, which builds distributions, is not to be had")
    assert built.returncode == 0, built.stdout + built.stderr
    (sdist,), (wheel,) = (tmp_path / "dist").glob("*.tar.gz"), (tmp_path / "dist").glob("*.whl")
    print(f"sdist {sdist.stat().st_size:,} bytes, wheel {wheel.stat().st_size:,} bytes")
    assert sdist.stat().st_size < LARGEST_SDIST and wheel.stat().st_size < LARGEST_SDIST
    with tarfile.open(sdist) as archive:
        held = {member.name.partition("/")[2] for member in archive if member.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        installed = set(archive.namelist())
    assert held >= {"README.md", "modeling/generation.py", "arr_coc/cli/ask.py", "arr_coc/pages/font_families.csv"}
    assert held >= {f"hub_configs/arr-coc-tiny-2/{name}" for name in ("README.md", "config.json")}
    assert installed >= {"arr_coc/modeling/generation.py", "arr_coc/cli/ask.py"}
    tables = [path for path in (copy / "arr_coc").rglob("*") if path.suffix in (".csv", ".txt")]
    assert len(tables) > 5 and {path.relative_to(copy).as_posix() for path in tables} <= held & installed
    for name in held | installed:
        assert not name.endswith((*WEIGHTS, ".jpg", ".png", ".pdf")) and not name.startswith("examples/held_out"), name


# ---- `--strict-skips` and `--bare`: what may be skipped, and what a bare machine does not have
pytest_plugins = ["pytester"]


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


# ---- CONTRIBUTING.md's scorer of ten lines, registered as it is there, works by name wherever the package's own do
@pytest.fixture
def darkness() -> Any:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.S)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 10
    try:
        exec(compile(code, "CONTRIBUTING.md", "exec"), {})
        yield
    finally:
        SCORERS.pop("darkness", None)


def page() -> Image.Image:
    """White, with one dark square in the second row of patches (of 8 px)."""
    image = Image.new("RGB", (128, 128), "white")
    image.paste("black", (24, 8, 32, 16))
    return image


def test_ten_lines_are_a_scorer_that_commands_know(darkness: None, tmp_path: Path, cli: Cli, checkpoint: Path) -> None:
    model = tiny_model()
    answer = model.generate(page(), "What?", strategy="darkness", budget=1, return_fetch=True, max_new_tokens=1)
    assert answer.fetch.positions.tolist() == [[[1, 3]]]
    page().save(tmp_path / "page.png")
    records = [Record(image=tmp_path / "page.png", question="What?", answers=("x",), line=1)]
    result = evaluate(model, records, ["darkness", "none"], progress=False)
    assert result["strategies"]["darkness"]["n"] == 1
    line = {"image": "page.png", "question": "What?", "answers": ["x"]}
    (tmp_path / "data.jsonl").write_text(json.dumps(line) + "\n")
    model = ("--model", checkpoint)
    rule = {"decision": "GO", "if": {"arm": "darkness", "above": "none", "by": 2}}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({"rules": [rule], "otherwise": {"decision": "INCONCLUSIVE"}}))
    code, out, err = cli("ask", tmp_path / "page.png", "What?", "--strategy", "darkness", "--json", *model)
    assert code == 0 and json.loads(out)["strategy"] == "darkness", err
    code, out, err = cli("evaluate", tmp_path / "data.jsonl", "--strategies", "darkness", "--allocators", "all", *model)
    assert code == 0 and all(f"darkness+{name}" in out for name in ALLOCATORS), err
    arms = ("--arms", "none,darkness", "--rules", tmp_path / "r.yaml")
    code, out, err = cli("evaluate", tmp_path / "data.jsonl", *arms, *model)
    assert code == 0 and " darkness " in out, err


def test_without_registration_the_name_is_unknown() -> None:
    refuses("strategy: expected one of", tiny_model().generate, page(), "What?", strategy="darkness")


def test_the_map_names_every_file_of_modeling() -> None:
    """A reader of the map finds every file, and every file that it names is there."""
    named = set(re.findall(r"`(\w+\.py)`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    files = {path.name for path in (ROOT / "modeling").glob("*.py")} - {"__init__.py"}
    assert files <= named and {name for name in named if not (ROOT / "modeling" / name).is_file()} == set()
