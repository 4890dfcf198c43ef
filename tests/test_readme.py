"""README and docs: the Python blocks of a page run, in order, and so does every `arr-coc` command, at a small size."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from arr_coc.assembling.trained import is_complete
from arr_coc.cli import main
from arr_coc.data import Split, find_fonts
from arr_coc.files import SHIPPED, cache_folder

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (README, *sorted((ROOT / "docs").glob("*.md")))}
TEXT = README.read_text(encoding="utf-8")
TINY = "TINY"
"""Stands for the folder of a model of random weights, many times quicker than the shipped one."""
SMALL = {
    "ablate": ["--model", TINY, "--limit", "2", "--timed", "1", "--rounds", "1", "--seeds", "0"],
    "analyse": ["--limit", "4"],
    "measure": ["--split", "train", "--sets", "documents", "--limit", "4"],
    "evaluate": ["--limit", "4"],
    "experiment": [
        "--model", TINY, "--limit", "4", "--arms", "none,random,saliency,realizer,baselines,patches_only",
        "--timed", "1", "--rounds", "1",
    ],
    "render": ["--pages", "1", "--split", "train", "--size", "256"],
    "examples/adapter.yaml": ["steps=1", "warmup=0", "batch_size=2", "data.pages=1"],
    "examples/scorers.yaml": [
        "steps=1", "warmup=0", "batch_size=2", "data.pages=1", "held_out.pages=1", "cache=HERE/cache",
    ],
    "examples/phases.yaml": ["steps=1", "warmup=0", "batch_size=2", "data.pages=1", "held_out.pages=1"],
}  # fmt: skip
"""Options that make a documented command quick, and settings that make a recipe so; the documented ones come first."""

SLOW = ("train", "ablate", "experiment")
"""Commands that take seconds even so."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGES[page].read_text(encoding="utf-8"), re.DOTALL)


def commands() -> list[Any]:
    lines = "\n".join(block for page in PAGES for block in blocks(page, "bash")).splitlines()
    found = dict.fromkeys(line.split(" #")[0].strip() for line in lines if line.startswith("arr-coc "))
    return [pytest.param(line, marks=[pytest.mark.slow] * (line.split()[1] in SLOW)) for line in found]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the repository's root, for commands that write beside what they read."""
    for name in ("examples", "hub_configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def needs_the_shipped_model(code: str) -> None:
    """Skips code that loads it where it is not complete: `make test` completes it if it can be downloaded."""
    default = "load_model()" in code or "--model" not in code and re.match(r"(arr-coc )?(ask|demo) ", code)
    if default and not is_complete(ROOT / SHIPPED, cache_folder() / SHIPPED.name):
        pytest.skip("the language model of arr-coc-135m is not here")


def test_the_first_screen_names_the_two_commands() -> None:
    assert "make demo" in TEXT and "make test" in TEXT
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo:" in makefile and "\ntest:" in makefile


@pytest.mark.versions
def test_make_demo_answers(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = re.findall(r"\$\(BIN\)/arr-coc (ask .*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    needs_the_shipped_model(line)
    assert main(shlex.split(line)) == 0
    assert capsys.readouterr().out == "3.6.12\n"
    with Image.open(checkout / "demo.png") as picture:
        assert max(picture.size) >= 512


def pages_with_python() -> list[Any]:
    """README's blocks run with other releases, too; those of `docs/` may meet TRL's use of older names."""
    others = pytest.mark.filterwarnings("ignore::FutureWarning")
    marks = {page: pytest.mark.versions if page == README.name else others for page in PAGES}
    return [pytest.param(page, marks=marks[page]) for page in PAGES if blocks(page, "python")]


@pytest.mark.parametrize("page", pages_with_python())
def test_python_blocks_run_in_order(page: str, checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = blocks(page, "python")
    needs_the_shipped_model("\n".join(found))
    space: dict[str, object] = {}
    for block in found:
        optional = [name for name in ("trl", "torchao") if f"from {name}" in block]
        if not all(importlib.util.find_spec(name) for name in optional):
            continue
        exec(compile(block, page, "exec"), space)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("command", commands())
def test_commands_run(command: str, checkout: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_the_shipped_model(command)
    words = shlex.split(command)[1:]
    words = [*words[:2], *SMALL[words[1]], *words[2:]] if words[0] == "train" else [*words, *SMALL.get(words[0], [])]
    words = [str(checkpoint) if word == TINY else word.replace("HERE", str(checkout)) for word in words]
    assert main(words) == 0, capsys.readouterr().err
    for word in words:
        if word.endswith(".png") and not word.startswith("examples"):
            with Image.open(checkout / word) as picture:
                assert max(picture.size) >= 512


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_packages_of_the_fonts_are_named(split: Split, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as refusal:
        find_fonts(split, directories=[tmp_path])
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    assert str(refusal.value).partition("apt-get install ")[2] in " ".join(text.split())


@pytest.mark.parametrize("page", PAGES)
def test_every_linked_file_exists(page: str) -> None:
    path = PAGES[page]
    links = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_page_is_linked_from_the_readme() -> None:
    linked = re.findall(r"\]\((docs/[^)#]+)\)", TEXT)
    assert set(PAGES) == {"README.md", *linked}
