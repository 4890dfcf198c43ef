"""Base and patches: whose base tokens the language model reads, and what each half of an image's tokens contributes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny_config, tiny_model
from PIL import Image
from torch.testing import assert_close

from arr_coc.data.records import Record
from arr_coc.evaluation.answers import encode, load_images
from arr_coc.evaluation.arms import make_arms
from arr_coc.evaluation.prediction_loop import OtherPages, as_read
from arr_coc.evaluation.predictions import Prediction, compared_halves, read_run, swapped_pairs
from arr_coc.evaluation.scores import Items, Scored
from arr_coc.experiments.experiment import predict
from arr_coc.experiments.scoring import score_experiment
from arr_coc.modeling.fetcher import FetchChoices

SIZES = [(60, 90), (80, 40), (50, 50)]  # height, width


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three images; read only."""
    folder = tmp_path_factory.mktemp("pages")
    paths = [folder / f"{number}.png" for number in range(3)]
    for number, (path, size) in enumerate(zip(paths, SIZES, strict=True)):
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    return paths


def scored(name: str, scores: list[float]) -> Scored:
    """Every question about an image of its own, answered by its score."""
    (arm,) = make_arms(tiny_config(), [name])
    said = [Prediction(1, f"{score}", 0.5, 33, 4, (9, 9), "") for score in scores]
    count = len(scores)
    return Scored(
        arm,
        "exact_match",
        [said],
        np.array([scores]),
        np.ones((1, count)),
        np.arange(count),
        absent=np.zeros(count, bool),
    )


def test_the_other_page_is_the_next_that_shows_something_else(model: Any, pages: list[Path], tmp_path: Path) -> None:
    """By pixels: a copy under another name, and in another format, is no other page."""
    copy = tmp_path / "copy.bmp"
    with Image.open(pages[0]) as image:
        image.save(copy)
    others = OtherPages(model, [pages[0], pages[0], copy, pages[1], pages[2]])
    assert [others.after(image) for image in (pages[0], copy, pages[1], pages[2])] == [
        pages[1], pages[1], pages[2], pages[0],
    ]  # fmt: skip
    assert OtherPages(model, [pages[0], copy]).after(copy) is None


def embedded(model: Any, encoding: Any, arm: Any, image: int, other: int) -> tuple[torch.Tensor, list[int]]:
    """The image's tokens [positions, D] as the language model reads them, and what was fetched."""
    read = as_read(arm, encoding, torch.tensor([image]), torch.tensor([other]))
    inputs = model.processor.prompts(["Why?"], images=[1], placeholders=read.base_positions + arm.budget)
    choices = FetchChoices(strategy=arm.strategy, allocator=arm.allocator, budget=arm.budget)
    prompt = model.model.embed_images(inputs["input_ids"], read, query_mask=inputs["query_mask"], choices=choices)
    return prompt.image_tokens[0], prompt.fetch.indices[0].tolist()


@pytest.mark.parametrize("layout", ["plain", "rows"])
def test_only_the_base_is_exchanged(layout: str, pages: list[Path]) -> None:
    """Patches are chosen and encoded as ever; before them stands the other page's base, or nothing."""
    model = tiny_model(bridge={"layout": layout})
    encoding = encode(model, load_images(model, pages[:2]), 128)
    own, swapped, bare, alone = make_arms(model.config, ["realizer", "other_base", "patches_only", "other_base@0"])
    with torch.no_grad():
        tokens, fetched = embedded(model, encoding, own, 0, 1)
        theirs, _ = embedded(model, encoding, own, 1, 0)
        mixed, fetched_mixed = embedded(model, encoding, swapped, 0, 1)
        patches, fetched_bare = embedded(model, encoding, bare, 0, 1)
        base, nothing = embedded(model, encoding, alone, 0, 1)
    positions = encoding.base_positions
    assert fetched == fetched_mixed == fetched_bare and len(fetched) == 17 and not nothing
    assert_close(mixed[positions:], tokens[positions:])
    assert_close(mixed[:positions], theirs[:positions])
    assert not torch.allclose(mixed[:positions], tokens[:positions])
    assert_close(patches, tokens[positions:])
    assert_close(base, theirs[:positions])
    assert (swapped.tokens, bare.tokens, alone.tokens) == (positions + 17, 17, positions)


def test_predictions_are_made_with_the_other_base_whatever_the_batch(
    model: Any, pages: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the one that the other page's prefix gives; of the last page in a batch too."""
    monkeypatch.setattr(model.generation_config, "max_new_tokens", 3)
    records = [
        Record(page, question, ("?",), line=number)
        for number, (page, question) in enumerate((page, question) for page in pages for question in ("What?", "Why?"))
    ]
    arms = make_arms(model.config, ["none", "other_base", "other_base@0", "patches_only"])
    for batch_size in (2, 32):
        predict(model, arms, records, tmp_path / str(batch_size), batch_size=batch_size, progress=False)
    runs = {name: read_run(tmp_path / "2", name) for name in ("none", "other_base", "other_base@0", "patches_only")}
    for name, predictions in runs.items():
        whole = read_run(tmp_path / "32", name)
        assert {line: said.answer for line, said in predictions.items()} == {
            line: said.answer for line, said in whole.items()
        }
    # With no patches the language model reads the next page only, so it answers as if it were asked about that.
    by_question = {(record.image, record.question): record.line for record in records}
    for record in records:
        following = pages[(pages.index(record.image) + 1) % 3]
        line = by_question[following, record.question]
        assert runs["other_base@0"][record.line].answer == runs["none"][line].answer
        assert runs["other_base@0"][record.line].image == runs["none"][record.line].image, "whose question it is"
    assert {said.tokens for said in runs["patches_only"].values()} == {17}


def test_what_each_half_contributes() -> None:
    """Twenty pages: the base decides when there are no patches, and half of the answers beside them."""
    right, half = [1.0] * 20, [1.0, 0.0] * 10
    names = {"none": right, "realizer": right, "other_base": half, "other_base@0": [0.0] * 20}
    arms = [scored(name, scores) for name, scores in names.items()]
    assert [(own.name, other.name) for own, other in swapped_pairs([arm.arm for arm in arms])] == [
        ("realizer", "other_base"), ("none", "other_base@0"),
    ]  # fmt: skip
    assert compared_halves([arm.arm for arm in arms]) == [
        ("realizer", "other_base"), ("none", "other_base@0"), ("realizer", "none"), ("other_base", "other_base@0"),
    ]  # fmt: skip
    records = [Record(Path(f"{number}.png"), "Why?", ("?",), line=number) for number in range(20)]
    items = Items(records, np.arange(20), np.arange(20), 0)
    rule = {"decision": "GO", "if": {"arm": "realizer", "above": "none", "by": 2}}
    result = score_experiment(arms, items, {"rules": [rule], "otherwise": {"decision": "NO"}}, 4)
    beside, without = result["halves"]
    assert (beside["patches"], beside["changed"]["value"]) == (17, 0.5)
    assert (without["patches"], without["changed"]["value"]) == (0, 1.0)
    assert {("realizer", "other_base"), ("none", "other_base@0")} <= {
        (comparison["first"], comparison["second"]) for comparison in result["comparisons"]
    }
