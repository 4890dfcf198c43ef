"""What the repository holds and what its distributions hold: no stray copies, no weights where none belong.

python -m pytest -s -m "slow or not slow" tests/test_tree.py    # prints sizes
"""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

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
