"""Scorers of three maps: what each map is, and that relevance is their weighted sum and nothing else."""

from dataclasses import replace

import pytest
import torch
from helpers import tiny_model
from test_scorers import SIDE, build, context

from arr_coc.families.map_scorers import MapScorer, standardised
from arr_coc.families.relevance_maps import RELEVANCE_MAPS
from arr_coc.model_summary import generated_image
from arr_coc.modeling.scorers import SCORERS
from arr_coc.modeling.vision_tower import TEXTURE_SETS, TEXTURES

MAP_CASES = {
    "compositional": RELEVANCE_MAPS,
    "contextual": RELEVANCE_MAPS,
    "shannon_jung_vervaeke": ("entropy", "symbol_density", "coupling"),
    "hierarchical": ("low", "mid", "high"),
}


def test_every_scorer_of_maps_is_tested() -> None:
    assert set(MAP_CASES) == {name for name, kind in SCORERS.items() if issubclass(kind, MapScorer)}


@pytest.mark.parametrize("name", MAP_CASES)
@torch.no_grad()
def test_relevance_is_the_weighted_sum_of_maps_in_0_to_1(name: str) -> None:
    """A figure shows the maps and their weights: they must be what decided."""
    scorer, whole = build(name), context()
    maps = scorer.maps(whole)
    weights = scorer.weights(maps, whole)
    assert scorer.map_names == MAP_CASES[name] and maps.shape == (3, 3, SIDE * SIDE) and weights.shape == (3, 3)
    assert maps.min() >= 0 and maps.max() <= 1 and weights.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert torch.allclose(scorer(whole), 20 * torch.einsum("brn,br->bn", maps, weights) - 10, atol=1e-4)


def test_the_fixed_maps_do_not_depend_on_the_question() -> None:
    scorer, whole = build("compositional"), context()
    other = replace(whole, query=whole.query.flip(0), query_mask=torch.ones_like(whole.query_mask))
    first, second = scorer.maps(whole), scorer.maps(other)
    assert torch.equal(first[:, :2], second[:, :2]) and not torch.allclose(first[:, 2], second[:, 2])


def test_symbols_are_where_strokes_are_and_the_shares_are_configured() -> None:
    whole = context()
    whole.textures[:, TEXTURES.index("stroke_density")] = 0
    whole.textures[:, TEXTURES.index("stroke_density"), 5, 2] = 0.7
    assert build("shannon_jung_vervaeke").maps(whole)[:, 1].argmax(-1).tolist() == [5 * SIDE + 2] * 3
    maps = build("shannon_jung_vervaeke").maps(whole)
    assert build("shannon_jung_vervaeke").weights(maps, whole)[0].tolist() == pytest.approx([0.3, 0.2, 0.5])
    other = build("shannon_jung_vervaeke", sjv_weights=[2, 0, 2])
    assert other.weights(maps, whole)[0].tolist() == pytest.approx([0.5, 0.0, 0.5])


@torch.no_grad()
def test_contextual_reads_all_forty_textures() -> None:
    scorer, whole = build("contextual"), context()
    assert scorer.all_textures(whole).shape == (3, len(TEXTURES), SIDE, SIDE)
    for channel in range(whole.textures.shape[1]):
        changed = whole.textures.clone()
        changed[:, channel] = changed[:, channel].flip(-1)
        assert not torch.allclose(scorer(whole), scorer(replace(whole, textures=changed)), atol=1e-6), TEXTURES[channel]


def test_channels_are_standardised_over_real_patches() -> None:
    whole = context()
    channels = torch.rand(3, SIDE * SIDE, 4) * 30
    own = standardised(channels, whole.patch_mask)[0]
    assert not own[~whole.patch_mask[0]].any()
    real = own[whole.patch_mask[0]]
    assert torch.allclose(real.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(real.std(0, correction=0), torch.ones(4), atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("level", "depth"), [("low", 0), ("mid", 1)])
def test_each_level_reads_its_own_depth(level: str, depth: int) -> None:
    scorer, whole = build("hierarchical"), context()
    changed = whole.depths.clone()
    changed[:, depth] = changed[:, depth].flip(-1)
    before, after = scorer.maps(whole), scorer.maps(replace(whole, depths=changed))
    moved = [not torch.allclose(before[:, number], after[:, number]) for number in range(3)]
    assert moved == [name == level for name in ("low", "mid", "high")]


# ---- what the model makes for them --------------------------------------------------------------------------------


def test_textures_and_depths_are_made_where_a_held_scorer_reads_them_and_nowhere_else() -> None:
    expected = {"realizer": (2, None), "compositional": (13, None), "contextual": (24, None), "hierarchical": (2, 2)}
    pixels = torch.randn(1, 3, 128, 128)
    for name, (channels, depths) in expected.items():
        model = tiny_model(fetcher={"scorers": [name], "strategy": name}).model
        encoding = model.encode_image(pixels)
        assert encoding.textures.shape[1] == channels
        assert (None if encoding.depths is None else encoding.depths.shape[1]) == depths
    widest = tiny_model(fetcher={"textures": "full"}).model.encode_image(pixels)
    assert widest.textures.shape[1] == len(TEXTURE_SETS["full"])


@torch.no_grad()
def test_depths_are_the_states_after_a_third_and_two_thirds_of_the_layers() -> None:
    scorers = {"scorers": ["hierarchical"], "strategy": "hierarchical"}
    model = tiny_model(vision={"num_hidden_layers": 6, "global_attn_indexes": [2]}, fetcher=scorers).model
    encoder, states = model.vision_tower.grid_encoder, []
    for layer in encoder.layers:
        layer.register_forward_hook(lambda module, args, output: states.append(output))
    encoding = model.encode_image(torch.randn(2, 3, 128, 128))
    assert torch.equal(encoding.depths[:, 0], states[1].permute(0, 3, 1, 2))
    assert torch.equal(encoding.depths[:, 1], states[3].permute(0, 3, 1, 2))
    assert encoding.select(torch.tensor([1])).depths.shape[0] == 1


def test_a_texture_that_is_not_made_is_asked_for_by_name() -> None:
    whole = context()
    light = replace(whole, textures=whole.textures[:, :2])
    with pytest.raises(ValueError, match=r'^fetcher_config.textures: expected "basic" \(or larger\) for "red"; got 2'):
        light.texture("red")
    with pytest.raises(ValueError, match=r"expected a texture among luminance, .*; got 24 channels without 'colour'"):
        whole.texture("colour")
    with pytest.raises(ValueError, match=r"^depths: expected an encoding .*; got features alone$"):
        build("hierarchical")(replace(whole, depths=None))


def test_a_sharp_patch_is_fetched_by_what_it_looks_like() -> None:
    """From the pixels on: print in one corner of a blank page is information, and stands out."""
    model = tiny_model(fetcher={"scorers": ["compositional"], "strategy": "compositional"})
    pixels = torch.ones(1, 3, 128, 128)
    pixels[..., 96:120, 32:48] = torch.rand(24, 16, generator=torch.Generator().manual_seed(0)).round() * 2 - 1
    encoding = model.model.encode_image(pixels)
    looked = replace(
        context(),
        textures=encoding.textures,
        features=encoding.features,
        patch_mask=encoding.patch_mask,
        query=torch.randn(1, 4, 24),
        query_mask=torch.ones(1, 4, dtype=torch.bool),
    )
    maps = model.model.fetcher.scorers["compositional"].maps(looked)
    inside = torch.zeros(16, 16, dtype=torch.bool)
    inside[12:15, 4:6] = True
    assert maps[0, 0].view(16, 16)[inside].min() > maps[0, 0].view(16, 16)[~inside].max()
    assert inside.flatten()[maps[0, 1].argmax()]


def test_all_of_them_answer_by_name() -> None:
    names = [*MAP_CASES, "experts"]
    model = tiny_model(fetcher={"scorers": names, "strategy": names[0]})
    encoding = model.encode_image(generated_image(128))
    chosen = set()
    for name in names:
        answer = model.generate(encoding, "What is it?", strategy=name, return_fetch=True, max_new_tokens=1)
        assert answer.fetch.strategy == name and answer.fetch.indices.unique().numel() == 17
        chosen.add(tuple(answer.fetch.indices[0].tolist()))
    assert len(chosen) == len(names)


def test_what_reads_the_overview_alone_says_so_where_there_are_several_views() -> None:
    """A tile's features silently got the overview's depths: tiles keep their own."""
    model = tiny_model(fetcher={"scorers": ["hierarchical", "compositional"], "strategy": "hierarchical"})
    page = generated_image(512)
    with pytest.raises(ValueError, match='^strategy "attention": expected'):
        model.generate(page, "What is it?", strategy="attention", tiles=4, max_new_tokens=1)
    encoding = model.encode_image(page, tiles=4)
    tower, tiles = model.model.vision_tower, encoding.tiles
    square = model.processor.image_processor(page.crop(tuple(tiles.windows[1].tolist())), return_tensors="pt")
    depths = tower.encode_grid(square["pixel_values"])["depths"]
    assert torch.equal(tiles.depths[1], depths[0].bfloat16())
    answer = model.generate(encoding, "What is it?", return_fetch=True, max_new_tokens=1)
    assert answer.fetch.strategy == "hierarchical" and int(answer.fetch.view.max()) > 0
    tiles.depths = None  # as of an earlier version
    with pytest.raises(ValueError, match=r"^depths: expected an encoding .*; got features alone$"):
        model.generate(encoding, "What is it?", max_new_tokens=1)
    assert model.generate(page, "What is it?", strategy="compositional", tiles=4, max_new_tokens=1) is not None
