"""The swap test: it tells a model that reads its base tokens from one that does not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import tiny_model
from PIL import Image
from torch import nn

from arr_coc.data.collator import QuestionCollator
from arr_coc.data.records import Record
from arr_coc.evaluating.swap import Swap, swap_base, swap_test
from arr_coc.modeling.bridges import Bridged
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

RECORDS = 7


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Seven questions about three pages, not page by page."""
    folder: Path = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(rng.integers(0, 256, (128, 128, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return [
        Record(
            folder / f"{n % 3}.png", f"What is number {n}?", (f"{n}" * (1 + n % 2),), boxes=((8, 8, 40, 24),), line=n
        )
        for n in range(RECORDS)
    ]


def deaf() -> ArrCocForConditionalGeneration:
    """A model whose base tokens say nothing: none of the page reaches the language model but by saccades."""
    model = tiny_model()
    base = model.config.vision_tokens()[0]

    def silence(module: nn.Module, inputs: tuple, bridged: Bridged) -> Bridged:
        is_base = bridged.tokens.shape[1] == base
        return replace(bridged, tokens=torch.zeros_like(bridged.tokens)) if is_base else bridged

    model.model.bridge.register_forward_hook(silence)
    return model


def test_a_model_that_reads_its_base_is_harmed_by_another(records: list[Record]) -> None:
    alone, fetching = swap_test(tiny_model(), records)
    assert (alone.budget, fetching.budget) == (0, None)
    assert alone.changed > 0 and alone.harm.abs().min() > 1e-4
    assert fetching.harm.abs().min() > 1e-4 and len(fetching.own.answers) == RECORDS
    assert alone.images.tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_a_model_that_ignores_its_base_is_told_so(records: list[Record]) -> None:
    for swap in swap_test(deaf(), records):
        assert swap.changed == 0 and swap.harm.abs().max() == 0


@pytest.mark.parametrize("strategy", ["realizer", "oracle"])
def test_the_numbers_are_those_of_asking_by_hand(strategy: str, records: list[Record]) -> None:
    """Whatever the batch: own answers are `generate`'s, and the donor is the next image of the data."""
    model = tiny_model()

    def answers(swap: Swap) -> tuple[list[str], list[str]]:
        return swap.own.answers, swap.other.answers

    swap = swap_test(model, records, budgets=[5], strategy=strategy)[0]
    for size in (1, 2):
        again = swap_test(model, records, budgets=[5], strategy=strategy, batch_size=size)[0]
        assert answers(again) == answers(swap) and torch.equal(again.images, swap.images)
        assert torch.allclose(again.other.losses, swap.other.losses, atol=1e-4)
    for place in (1, 2):
        record, donor = records[place], records[(place + 1) % 3]
        encoding = model.encode_image([record.image, donor.image])
        boxes = {"boxes": [list(record.boxes)]} if strategy == "oracle" else {}
        for seen, answer in ((encoding, swap.own), (swap_base(encoding, torch.tensor([1, 0])), swap.other)):
            by_hand = model.generate(
                seen.select(torch.tensor([0])), [record.question], strategy=strategy, budget=5, **boxes
            )
            assert by_hand == [answer.answers[place]]


def test_the_loss_is_the_models_own(records: list[Record]) -> None:
    model = tiny_model()
    swap = swap_test(model, records, budgets=[0])[0]
    for place in (0, 1):
        batch = QuestionCollator(model.processor, model.config, budget=0)([records[place]])
        batch.pop("relevance_targets")
        with torch.no_grad():
            loss = model(**batch, choices={"strategy": "none"}).loss.item()
        assert swap.own.losses[place].item() == pytest.approx(loss, abs=1e-4)


def test_the_model_is_left_in_the_mode_it_was_in(records: list[Record]) -> None:
    model = tiny_model().train()
    swap_test(model, records[:2], budgets=[0])
    assert model.training


def test_one_image_has_no_other(records: list[Record]) -> None:
    with pytest.raises(ValueError, match="records: expected questions about at least 2 images; got 1"):
        swap_test(tiny_model(), records[:1])
