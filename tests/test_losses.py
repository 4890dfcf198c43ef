"""Losses beside the answer's: known values, the signs of their gradients, what they leave out."""

import math
from typing import Any

import pytest
import torch
from fetching import N, context, fetcher
from helpers import refuses, tiny_model
from PIL import Image

from arr_coc.modeling.modeling_arr_coc import relevance_loss
from arr_coc.modeling.scorers import FetchContext
from arr_coc.training.losses import distribution_loss, diversity_loss, efficiency_loss


def labels(*rows: float) -> torch.Tensor:
    """One constant row of relevance per number."""
    return torch.tensor(rows)[:, None].expand(-1, N).contiguous()


def loss_of(module: Any, given: Any, target: torch.Tensor, weight: float = 4.0) -> torch.Tensor:
    scores = torch.stack(list(module.all_scores(given).values()))
    return relevance_loss(scores, target, given.patch_mask, weight)


# ---- relevance
def test_rows_that_nobody_knows_are_left_out_and_every_image_counts_the_same() -> None:
    module, both = fetcher(), context()
    tensors = ("features", "textures", "patch_mask", "query", "query_mask", "seeds")
    first = FetchContext(**{name: getattr(both, name)[:1] for name in tensors})
    known = torch.rand(1, N, generator=torch.Generator().manual_seed(0)).round()
    expected = loss_of(module, first, known)
    assert loss_of(module, both, torch.cat((known, labels(-1.0)))).item() == pytest.approx(expected.item(), rel=1e-5)
    # Over all patches of the batch, a thin image counted a tenth of a square one.
    module, given = fetcher(scorers=["clip_query"], strategy="clip_query"), context()
    given.patch_mask[0, 4:] = False
    target = labels(1.0, 0.0)
    scores = module.scorers["clip_query"](given)
    thin = torch.nn.functional.softplus(-scores[0, :4]).mean()
    square = torch.nn.functional.softplus(scores[1]).mean()
    assert loss_of(module, given, target, weight=1.0).item() == pytest.approx(((thin + square) / 2).item(), rel=1e-5)


@torch.no_grad()
def test_relevance_counts_by_its_batchs_share_of_the_accumulated_tokens() -> None:
    """Trainer sums the losses of accumulated batches: whole in each, relevance would weigh more, the more batches."""
    model = tiny_model()
    content = [{"type": "image", "image": Image.new("RGB", (90, 60))}, {"type": "text", "text": "What is it?"}]
    chat = [{"role": "user", "content": content}]
    inputs = dict(model.processor.apply_chat_template(chat, tokenize=True, return_dict=True, return_tensors="pt"))
    relevant = torch.zeros(1, model.config.vision_config.num_patches)
    relevant[0, 40:44] = 1.0
    for answered in (3, inputs["input_ids"].shape[1]):
        counted = min(answered, inputs["input_ids"].shape[1] - 1)  # nothing predicts the first token
        inputs["labels"] = torch.full_like(inputs["input_ids"], -100)
        inputs["labels"][:, -answered:] = inputs["input_ids"][:, -answered:]
        inputs["num_items_in_batch"] = 4 * counted
        both, answer = model(**inputs, relevance_targets=relevant), model(**inputs)
        weighted = model.config.relevance_loss_weight * both.relevance_loss.item()
        assert (both.loss - answer.loss).item() == pytest.approx(weighted / 4, rel=1e-4)


# ---- diversity, distribution, efficiency
def test_diversity_and_distribution_by_hand() -> None:
    tokens = torch.tensor([[1.0, 3.0], [0.0, 4.0]])
    assert distribution_loss(tokens[:1], 2.0, 1.0).item() == 0
    assert distribution_loss(tokens, 2.0, 1.0).item() == pytest.approx(0.5)
    assert distribution_loss(tokens, 5.0, 1.0).item() == pytest.approx((9 + 9 + 1) / 2)
    assert distribution_loss(10 * tokens, 20.0, 10.0).item() == pytest.approx(0.5), "in units of the text's"
    even = 50 * torch.eye(5)  # every item certain, every tier taken
    assert diversity_loss(even).item() == pytest.approx(0, abs=1e-6)
    assert diversity_loss(even[:1].repeat(3, 1)).item() == pytest.approx(1, abs=1e-6)
    assert diversity_loss(torch.tensor([[math.log(3), 0.0]])).item() == pytest.approx(1 - 0.8112781, abs=1e-6)


def test_efficiency_pushes_down_above_the_target_only() -> None:
    for tokens, sign in ((150.0, 1), (50.0, 0)):
        expected = torch.tensor([tokens, tokens], requires_grad=True)
        efficiency_loss(expected, 100).backward()
        assert expected.grad.sign().tolist() == [sign, sign]
    refuses("^target: expected a positive number of tokens; got 0$", efficiency_loss, torch.ones(1), 0)
