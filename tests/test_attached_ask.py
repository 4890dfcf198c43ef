"""`arr-coc ask` with a published model in a folder, and what the pages about published models show."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from attached_models import published
from helpers import Cli
from PIL import Image

import arr_coc
from arr_coc.attached.reader import load_reader

ROOT = Path(__file__).parents[1]
PDF = ROOT / "examples/images/invoices.pdf"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a family whose processor needs no torchvision."""
    for part in published("idefics3"):
        part.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_the_answer_is_the_readers(cli: Cli, folder: Path, picture: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "out.png"
    options = ("--budget", "0.5", "--strategy", "saliency", "--picture", drawn)
    code, out, err = cli("ask", picture, "What?", "--model", folder, *options)
    reader = arr_coc.attach(*published("idefics3"))
    expected = reader.generate(picture, "What?", budget=0.5, strategy="saliency", return_fetch=True)
    assert (code, out) == (0, expected.text + "\n")
    fetched = len(expected.fetch.indices[0])
    amount = (
        f"{fetched} of {expected.fetch.scores.shape[1]} patches fetched (outlined), beside {expected.fetch.base} base"
    )
    assert f"strategy saliency, allocator topk: {amount} tokens (grid); picture in" in err
    with Image.open(drawn) as image:
        assert max(image.size) >= 512


def test_pages_of_a_document_are_asked_about_together(cli: Cli, folder: Path) -> None:
    code, out, _ = cli("ask", PDF, "What?", "--model", folder, "--budget", "100", "--strategy", "random", "--json")
    found = json.loads(out)
    assert code == 0 and found["tokens"]["fetched"] == 100 and found["strategy"] == "random"
    assert {source["page"] for source in found["sources"]} == {1, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tiles", "3"], "--tiles: expected none with a idefics3 model; got 3"),
        (["--allocator", "window"], "--allocator: expected none with a idefics3 model; got window"),
        (["--passes", "2"], "--passes: expected none with a idefics3 model; got 2"),
        (["--budget", "auto"], "budget: expected a share, a number of tokens or one of"),
        (["--budget", "1.5"], "budget: expected a share in 0..1; got 1.5"),
        (["--strategy", "clip_query"], "strategy: expected one of attention"),
    ],
)
def test_other_options_are_refused(cli: Cli, folder: Path, picture: Path, options: list[str], message: str) -> None:
    code, out, err = cli("ask", picture, "What?", "--model", folder, *options)
    assert (code, out) == (2, "") and message in err


def test_a_folder_that_does_not_load_is_refused(folder: Path, checkpoint: Path) -> None:
    assert load_reader(None) is None and load_reader(str(checkpoint)) is None
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="expected what AutoModelForImageTextToText loads; got"):
        load_reader(str(folder))


@pytest.mark.parametrize("page", ["README.md", "docs/published-models.md"])
def test_what_the_pages_show_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tiny model in the place of the Hub's, and few steps of training."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for kind, part in zip(("AutoModelForImageTextToText", "AutoProcessor"), published("qwen3_vl"), strict=True):
        monkeypatch.setattr(getattr(transformers, kind), "from_pretrained", lambda *args, part=part, **kwargs: part)
    space: dict[str, Any] = {
        name: getattr(transformers, name) for name in ("AutoModelForImageTextToText", "AutoProcessor")
    }
    space["arr_coc"] = arr_coc
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block.replace("steps=200", "steps=1"), page, "exec"), space)
    assert space["answer"].fetch.strategy == "attention" and space["answer"].sources
