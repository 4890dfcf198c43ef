"""Levels of detail through the whole model: what the language model reads, what is said of it, what is drawn."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fetching import fetch_of
from helpers import CARD, prompt, tiny_checkpoint, tiny_model
from helpers import SCAN as TALL
from PIL import Image

from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.fetcher import FetchResult
from arr_coc.modeling.grid_encoder import pool_regions
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.viewing import OUTLINE_COLOUR, describe, draw_fetch

DETAIL = [name for name, allocator in ALLOCATORS.items() if allocator.detail]
QUESTION = "What is it?"


@pytest.fixture(scope="module")
def encoding(model: Any) -> Any:
    return model.encode_image(CARD)


# ---- tokens
@torch.no_grad()
def test_a_regions_token_is_made_of_the_mean_of_its_patches_at_its_centre(model: Any, encoding: Any) -> None:
    tower = model.model.vision_tower
    indices, levels = torch.tensor([[0, 6, 72]]), torch.tensor([[2, 0, 1]])
    _, projected = tower.fetched_states(encoding, indices, levels=levels)
    mean = encoding.features[0, :, 4:6, 8:10].mean((1, 2))
    assert torch.allclose(projected[0, 2], tower.saccade_projection(mean), atol=1e-5)
    semantic = tower.semantic_encoder
    places = semantic._positions_at(torch.tensor([[0, 4, 64]]), 16, torch.full((1, 3), 2))
    assert torch.allclose(places[0], semantic.position_embedding[1:][[0, 1, 4]], atol=1e-6), "those of base cells"
    singly = tower.fetched_states(encoding, indices, levels=torch.zeros_like(levels))
    assert all(map(torch.equal, singly, tower.fetched_states(encoding, indices)))


@pytest.mark.parametrize("allocator", DETAIL)
def test_a_loss_trains_scorer_and_level_embedding(allocator: str) -> None:
    model = tiny_model(semantic={"level_embedding": True}, fetcher={"allocator": allocator}).train()
    inputs = prompt(model, (CARD, QUESTION))
    labels = inputs.input_ids.masked_fill(inputs.input_ids == model.config.image_token_id, -100)
    inputs["query_mask"] = torch.ones_like(labels)
    output = model(**inputs, labels=labels)
    output.loss.backward()
    used = output.fetch.levels.unique().tolist()
    gradient = model.model.vision_tower.semantic_encoder.level_embedding.weight.grad
    assert [row for row in range(3) if gradient[row].any()] == used
    assert any(weight.grad.any() for weight in model.model.fetcher.scorers["realizer"].parameters())


# ---- weights
def test_a_checkpoint_without_the_embedding_loads_and_one_with_it_starts_the_same(tmp_path: Path) -> None:
    """Old weights fit their config; a config that asks for levels begins with rows of zeros: the same answers."""
    folder = tiny_checkpoint(tmp_path / "old")
    old = ArrCocForConditionalGeneration.from_pretrained(folder).eval()
    assert not [name for name, _ in old.named_parameters() if "level_embedding" in name]
    config = ArrCocConfig.from_pretrained(folder)
    config.semantic_config.level_embedding = True
    with pytest.raises(ValueError, match="got 1 missing, e.g. model.vision_tower.semantic_encoder.level_embedding"):
        ArrCocForConditionalGeneration.from_pretrained(folder, config=config)
    new = ArrCocForConditionalGeneration.from_pretrained(folder, config=config, strict=False).eval()
    inputs = prompt(tiny_model(), (CARD, QUESTION))
    with torch.no_grad():
        for allocator in ("topk", "knapsack"):
            first, second = (held(**inputs, choices={"allocator": allocator}).logits for held in (old, new))
            assert torch.equal(first, second)
        new.model.vision_tower.semantic_encoder.level_embedding.weight[1:] = 1.0
        again = [new(**inputs, choices={"allocator": name}).logits for name in ("topk", "knapsack")]
    assert torch.equal(again[0], old(**inputs, choices={"allocator": "topk"}).logits)
    assert not torch.equal(again[1], second)
    new.save_pretrained(tmp_path / "new")
    loaded = ArrCocForConditionalGeneration.from_pretrained(tmp_path / "new").eval()
    with torch.no_grad():
        assert torch.equal(loaded(**inputs, choices={"allocator": "knapsack"}).logits, again[1])


# ---- several views
@pytest.mark.parametrize("allocator", DETAIL)
def test_one_budget_of_regions_over_several_views(model: Any, allocator: str) -> None:
    answer = model.generate(TALL, QUESTION, allocator=allocator, budget=24, return_fetch=True)
    fetch = answer.fetch
    assert len(fetch.seen.views.slots) > 1 and int(fetch.counts.sum()) == 24 and fetch.levels.shape == fetch.view.shape
    used = fetch.used[0]
    x0, y0, x1, y1 = fetch.boxes()[0][used].unbind(-1)
    sides = (fetch.seen.views.windows[:, 2] - fetch.seen.views.windows[:, 0])[fetch.view[0][used]] / 16
    assert torch.allclose(x1 - x0, sides * 2.0 ** fetch.levels[0][used])
    tall = [origin.box for origin in answer.sources]
    assert max(y for *_, y in tall) <= TALL.height and len(tall) == 24
    hidden = fetch.seen.hidden
    for view, index, level in zip(*(rows[0][used] for rows in (fetch.view, fetch.indices, fetch.levels)), strict=True):
        region = pool_regions(hidden[view].view(1, 1, 16, 16).float(), index.view(1, 1), level.view(1, 1))
        assert region.item() == 0, "no patch that another view shows better"


# ---- what is said and drawn
def regions(levels: list[int], indices: list[int]) -> FetchResult:
    """A fetch of regions on a grid of 8."""
    said = {"strategy": "oracle", "allocator": "knapsack", "levels": torch.tensor([levels])}
    return fetch_of(torch.tensor([indices]), torch.zeros(1, 64), **said)


def test_a_fetch_says_its_levels_and_a_picture_draws_regions_of_their_size() -> None:
    fetch = regions([2, 1, 0], [0, 6, 31])
    assert fetch.regions().tolist() == [[[0, 0, 4, 4], [0, 6, 2, 8], [3, 7, 4, 8]]]
    assert fetch.covered().sum() == 16 + 4 + 1
    assert "3 tokens (1 of 1, 1 of 4, 1 of 16 patches) of 64 patches fetched (outlined)" in describe(fetch)
    drawn = draw_fetch(Image.new("RGB", (768, 768), "white"), fetch)
    outline = OUTLINE_COLOUR[:3]
    assert drawn.getpixel((16 + 200, 16 + 383)) == outline, "the lower edge of the cell, 4 patches of 96 px down"
    assert drawn.getpixel((16 + 200, 16 + 95)) != outline, "and not of its first patch"
    assert drawn.getpixel((16 + 700, 16 + 191)) == outline and drawn.getpixel((16 + 600, 16 + 191)) == outline
