"""What stands in for a part that fails, and that the result says so."""

from typing import Any

import pytest
import torch
from helpers import tiny_model
from torch import Tensor
from transformers.utils import logging

from arr_coc.families.quality_bridges import distorted
from arr_coc.model_summary import generated_image
from arr_coc.modeling.scorers import SCORERS, FetchContext, Scorer, is_uninformative

PAGE, QUESTION = generated_image(128), "What is the total?"


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A registered strategy that scores every patch with the value put into it."""

    class Failing(Scorer):
        value = 0.0

        def forward(self, context: FetchContext) -> Tensor:
            return torch.full(context.patch_mask.shape, self.value)

    monkeypatch.setitem(SCORERS, "failing", Failing)
    return Failing


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    logger = type(logging.get_logger("arr_coc"))
    monkeypatch.setattr(logger, "warning_once", lambda self, message, *args: said.append(message), raising=False)
    return said


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("tiles", ["never", "all"])
def test_saliency_stands_in_for_a_map_that_is_uninformative(
    model: Any, failing: Any, warnings: list[str], value: float, tiles: str
) -> None:
    failing.value = value
    image = PAGE.resize((400, 400)) if tiles == "all" else PAGE
    answer = model.generate(image, QUESTION, strategy="failing", return_fetch=True, tiles=tiles, max_new_tokens=1)
    salient = model.generate(image, QUESTION, strategy="saliency", return_fetch=True, tiles=tiles, max_new_tokens=1)
    assert answer.fetch.fallbacks == {"scorer": 1, "bridge": 0} and salient.fetch.fallbacks["scorer"] == 0
    assert torch.equal(answer.fetch.indices, salient.fetch.indices)
    assert torch.equal(answer.fetch.relevance, salient.fetch.relevance)
    assert warnings and "Failing: NaN or a flat map" in warnings[0]


def test_training_is_not_spared_a_scorer_that_fails(model: Any, failing: Any) -> None:
    failing.value = float("nan")
    model.train()
    try:
        answer = model.generate(PAGE, QUESTION, strategy="failing", return_fetch=True, max_new_tokens=1)
    finally:
        model.eval()
    assert answer.fetch.fallbacks["scorer"] == 0 and answer.fetch.scores.isnan().all()


def test_only_the_item_that_fails_falls_back() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0], [1.0, float("nan"), 3.0], [5.0, 5.0, 9.0], [5.0, 7.0, float("nan")]])
    mask = torch.tensor([[True] * 3, [True] * 3, [True, True, False], [True, True, False]])
    assert is_uninformative(scores, mask).tolist() == [False, True, True, False]
    assert not is_uninformative(torch.zeros(1, 3), torch.tensor([[True, False, False]])).any(), "one patch has no rival"


@pytest.mark.parametrize("kind", ["quality", "transformer"])
@pytest.mark.parametrize("value", [float("nan"), 1e9])
def test_the_projection_stands_in_for_an_adapter_that_fails(kind: str, value: float, warnings: list[str]) -> None:
    model = tiny_model(bridge={"kind": kind})
    with torch.no_grad():
        model.model.bridge.adapter.correction.bias.fill_(value)
        model.model.bridge.adapter.correction.bias[::2] = 0.0
    answer = model.generate(PAGE, QUESTION, return_fetch=True)
    plain = model.generate(PAGE, QUESTION, return_fetch=True, bypass=True)
    assert answer.fetch.fallbacks == {"scorer": 0, "bridge": 1} and plain.fetch.fallbacks["bridge"] == 0
    assert (answer.text, answer.probability) == (plain.text, plain.probability)
    assert any(said.startswith("bridge: ") for said in warnings)


def test_a_sound_adapter_is_left_alone() -> None:
    answer = tiny_model(bridge={"kind": "quality"}).generate(PAGE, QUESTION, return_fetch=True)
    assert answer.fetch.fallbacks == {"scorer": 0, "bridge": 0}
    tokens = torch.randn(2, 5, 8)
    assert distorted(tokens, torch.stack((tokens[0], tokens[1] * 1e3))).tolist() == [False, True]
