"""The stage that teaches scorers one relevance over all views of a prompt."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TINY_PATCH, TINY_SIDE, tiny_config

from arr_coc import ArrCocImageProcessor
from arr_coc.data.questions import build_tokenizer
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor
from arr_coc.training.from_scratch.finding import Finding, FindingStage, listwise_loss
from arr_coc.training.stages import Run

STAGE = FindingStage(
    steps=3, warmup=1, evaluate_every=3, workers=0, bf16=False, sources=2, views=5, questions=2, seen=3, kept=2,
    reused=2, domains={"pages": 1.0}, evaluate_documents=1, evaluate_split="train",
)  # fmt: skip


def begun(**changes: Any) -> Run:
    tokenizer = build_tokenizer()
    given = tiny_config(**changes).to_dict()
    text = {**given["text_config"], "vocab_size": len(tokenizer)}
    parts = {name: given[name] for name in ("vision_config", "semantic_config", "fetcher_config", "bridge_config")}
    config = ArrCocConfig(
        **parts, text_config=text, image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>")
    )  # fmt: skip
    images = ArrCocImageProcessor(size={"height": TINY_SIDE, "width": TINY_SIDE}, patch_size=TINY_PATCH)
    return Run(ArrCocForConditionalGeneration(config), ArrCocProcessor(images, tokenizer))


@pytest.fixture(scope="module")
def task() -> Finding:
    torch.manual_seed(0)
    return Finding(STAGE, begun())


def test_each_view_says_whether_it_shows_what_is_asked_for(task: Finding) -> None:
    document = task.pages(0).document(0)
    views, patches = document.patch_mask.shape
    assert views == STAGE.views and document.sources.tolist()[:2] == [0, 1]  # overviews first
    assert document.relevance.shape == (len(document.query), views, patches)
    for relevant in document.relevance:
        shown = document.sources[relevant.any(1)].unique()
        assert len(shown) == 1  # the page that the question is about, and no view of the other
        assert relevant[int(shown)].any() and relevant[2:].any()  # in its overview, and on a tile
    assert not document.relevance[:, ~document.patch_mask].any()


def test_what_is_kept_is_a_function_of_the_step(task: Finding) -> None:
    went, resumed = task.pages(0), task.pages(3)
    numbers = [len(went.batch(step)) for step in range(5)]
    assert numbers == [1, 0, 1, 0, 1]
    again = resumed.batch(3)
    assert len(again) == STAGE.kept
    for new, old in zip(again, (went.document(0), went.document(1)), strict=True):
        assert torch.equal(new.pixel_values, old.pixel_values) and torch.equal(new.relevance, old.relevance)
    held_out = task._unseen[0].document
    assert not torch.equal(held_out.relevance, went.document(0).relevance)


def test_the_loss_over_all_views_is_that_of_one_distribution() -> None:
    scores = torch.tensor([[[2.0, 0.0, 9.0], [0.0, 1.0, 0.0]]])  # one scorer, two views of three patches
    mask = torch.tensor([[True, True, False], [True, True, True]])
    targets = torch.tensor([[1, 0, 0], [0, 1, 0]])
    total = math.exp(2) + 1 + 1 + math.exp(1) + 1
    expected = -math.log((math.exp(2) + math.exp(1)) / total)
    assert listwise_loss(scores, targets, mask).item() == pytest.approx(expected, rel=1e-5)


def test_a_view_that_shows_no_answer_loses_what_it_scored_too_high() -> None:
    scores = torch.zeros(1, 2, 2, requires_grad=True)
    listwise_loss(scores, torch.tensor([[1, 0], [0, 0]]), torch.ones(2, 2, dtype=torch.bool)).backward()
    assert scores.grad is not None and scores.grad[0, 0, 0] < 0 and (scores.grad[0, 1] > 0).all()


def test_the_stage_trains_the_scorers_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = begun()
    before = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    STAGE.run(run, tmp_path)
    changed = {name for name, weight in run.model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed and all(".fetcher.scorers." in name for name in changed)
    assert (tmp_path / "finding.pt").exists() and "found" in (tmp_path / "finding.jsonl").read_text()


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"domains": {"poem": 1.0}}, "domains: expected weights of .*pages.*; got {'poem': 1.0}"),
        ({"domains": {"pages": 0.0}}, "domains: expected weights"),
        ({"seen": 0}, "seen: expected at least 1; got 0"),
        ({"sources": 1}, "sources: expected at least 2; got 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        replace(STAGE, **changes)
