"""README and docs: the Python blocks of a page run, in order, and so does every `arr-coc` command, at a small size."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import ROOT, needs_the_shipped_model
from PIL import Image

from arr_coc.cli import COMMANDS, SETTING, main, parser
from arr_coc.cli.common import _check_choices
from arr_coc.files import SHIPPED
from arr_coc.loading import load_config
from arr_coc.modeling.scorers import SCORERS
from arr_coc.pages.fonts import find_fonts
from arr_coc.pages.splits import Split
from arr_coc.training.recipe import load_recipe

README = ROOT / "README.md"
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (README, *sorted((ROOT / "docs").glob("*.md")))}
TEXT = README.read_text(encoding="utf-8")
TINY = "TINY"
"""Stands for the folder of a model of random weights, many times quicker than the shipped one."""
SMALL = {
    "evaluate": ["--limit", "4"],
    "render": ["--pages", "1", "--split", "train", "--size", "256"],
    "examples/adapter.yaml": ["steps=1", "warmup=0", "batch_size=2", "data.pages=1"],
    "examples/scorers.yaml": "steps=1 warmup=0 batch_size=2 data.pages=1 held_out.pages=1 cache=HERE/cache".split(),
    "examples/phases.yaml": ["steps=1", "warmup=0", "batch_size=2", "data.pages=1", "held_out.pages=1"],
}
"""Options that make a documented command quick, and settings that make a recipe so; the documented ones come first."""

SLOW = ("train",)
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


def test_the_first_screen_names_the_two_commands_and_every_page_is_linked() -> None:
    assert "make demo" in TEXT and "make test" in TEXT
    makefile = (ROOT / "Makefile").read_text()
    assert "\ndemo:" in makefile and "\ntest:" in makefile
    linked = re.findall(r"\]\((docs/[^)#]+)\)", TEXT)
    assert set(PAGES) == {"README.md", *linked}


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
    words += ["--split", "train", "--sets", "documents"] if "examples/measured.yaml" in words else []
    words = [str(checkpoint) if word == TINY else word.replace("HERE", str(checkout)) for word in words]
    assert main(words) == 0, capsys.readouterr().err
    for word in words:
        if word.endswith(".png") and not word.startswith("examples"):
            with Image.open(checkout / word) as picture:
                assert max(picture.size) >= 512


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_packages_of_the_fonts_are_named(split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARR_COC_FONT_PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError) as refusal:
        find_fonts(split)
    text = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    assert str(refusal.value).partition("apt-get install ")[2] in " ".join(text.split())


@pytest.mark.parametrize("page", PAGES)
def test_every_linked_file_exists(page: str) -> None:
    path = PAGES[page]
    links = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


# ---- commands that are not run
def documented() -> list[str]:
    """Every `arr-coc` command of a page, a card, a recipe's first lines or a help text."""
    pages = [*PAGES.values(), *ROOT.glob("hub_configs/*/README.md"), *ROOT.glob("examples/experiments/*/README.md")]
    shown = "\n".join(re.findall(r"```(?:ba)?sh\n(.*?)```", "\n".join(map(Path.read_text, pages)), re.DOTALL))
    found = shown.replace("\\\n", " ").splitlines()
    for recipe in ROOT.glob("examples/*.yaml"):
        found += [line.lstrip("# ") for line in recipe.read_text().splitlines() if line.startswith("#")]
    found += [example for command in COMMANDS for example in command.examples]
    return [*dict.fromkeys(line.split("   ")[0] for line in found if re.match(r"arr-coc [a-z-]+ [^$]+$", line))]


def strategies_of(file: str | None) -> tuple[str, ...]:
    """The strategies of the arms in a suite; none for other data."""
    suite = file and file.endswith("yaml") and (ROOT / file).is_file()
    content = yaml.safe_load((ROOT / file).read_text()) if file and suite else {}
    arms = [arm for each in content.get("sets", {}).values() for arm in each["arms"]]
    return tuple(re.split("[@+]", arm)[0] for arm in arms)


@pytest.mark.parametrize("command", documented())
def test_documented_commands_are_accepted(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples named strategies that the default model does not hold, and settings that no recipe has."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(command, comments=True)[1:]
    args, rest = parser().parse_known_args(words)
    assert all(SETTING.fullmatch(word) for word in rest)
    if words[0] == "train" and (ROOT / args.recipe).is_file():
        load_recipe(ROOT / args.recipe, [*args.settings, *rest])
    if not hasattr(args, "model"):
        return
    arms = strategies_of(getattr(args, "data", None))
    config = ROOT / (args.model or SHIPPED) / "config.json"
    given = {name: value for name, value in vars(args).items() if isinstance(value, str)}
    _check_choices(given, config)
    if config.is_file():
        held = load_config(config.parent).fetcher_config.scorers
        assert [arm for arm in arms if arm in SCORERS and SCORERS[arm].trained and arm not in held] == []
