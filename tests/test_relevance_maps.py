"""The three relevance maps: each against its formula written out in NumPy, and within the range that it promises."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from fetching import SIDE, build
from fetching import unequal_context as context
from helpers import refuses, tiny_model

from arr_coc.families.map_scorers import (
    BALANCE_RATE,
    CHOSEN,
    EXPERTS,
    MapScorer,
    expert_evidence,
    shares,
)
from arr_coc.families.relevance_maps import (
    CENTRE_WIDTH,
    RELEVANCE_MAPS,
    TEXTURES,
    information_score,
    local_contrast,
    query_similarity,
    salience_score,
)
from arr_coc.model_summary import generated_image
from arr_coc.modeling.scorers import SCORERS
from arr_coc.modeling.vision_tower import TEXTURE_SETS, clear_of_padding, textures

B, WIDTH = 3, 5
N = WIDTH * WIDTH


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def mask() -> torch.Tensor:
    """[B, N]: all real; the first two rows padding; all padding."""
    real = torch.ones(B, WIDTH, WIDTH, dtype=torch.bool)
    real[1, :2] = real[2] = False
    return real.flatten(1)


# ---- information
def test_information_is_shannons_entropy_over_its_maximum() -> None:
    counts = (draw(4, 7, 16) * 20).floor()
    expected = np.zeros((4, 7))
    for index in np.ndindex(4, 7):
        share = counts[index].double().numpy() / counts[index].sum().item()
        expected[index] = -sum(p * math.log(p) for p in share if p > 0) / math.log(16)
    assert information_score(counts).numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("bins", [2, 3, 16, 256])
def test_information_is_0_for_a_flat_patch_and_1_for_noise(bins: int) -> None:
    """Rounding once made it -0.0 and 1.0000001: a root or a logarithm behind it would be NaN."""
    flat = torch.zeros(1, bins)
    flat[0, 1] = 64
    assert information_score(flat).tolist() == [0.0] and not information_score(flat).signbit().any()
    assert information_score(torch.zeros(1, bins)).tolist() == [0.0], "nothing anywhere"
    noise = information_score(torch.full((1, bins), 3.0))
    assert noise.item() == pytest.approx(1) and noise.item() <= 1


# ---- salience
def test_local_contrast_is_the_distance_from_the_real_neighbours() -> None:
    shades, real = draw(B, WIDTH, WIDTH), mask().view(B, WIDTH, WIDTH)
    expected = np.zeros((B, WIDTH, WIDTH))
    for item, y, x in np.ndindex(B, WIDTH, WIDTH):
        around = [
            shades[item, i, j].item()
            for i in range(max(0, y - 1), min(WIDTH, y + 2))
            for j in range(max(0, x - 1), min(WIDTH, x + 2))
            if (i, j) != (y, x) and real[item, i, j]
        ]
        if around and real[item, y, x]:
            expected[item, y, x] = abs(shades[item, y, x].item() - np.mean(around))
    assert local_contrast(shades, mask()).numpy() == pytest.approx(expected, abs=1e-6)
    alone = torch.zeros(1, N, dtype=torch.bool)
    alone[0, 7] = True
    assert not local_contrast(shades[:1], alone).any(), "without neighbours there is no contrast"


def test_salience_is_the_weighted_sum_of_its_parts() -> None:
    edges, contrast, eccentricity = draw(3, B, N).unbind(0)
    real = mask().numpy()
    expected = np.zeros((B, N))
    for item in range(2):
        parts = []
        for part in (edges, contrast):
            own = part[item].double().numpy()
            low, high = own[real[item]].min(), own[real[item]].max()
            parts.append((own - low) / (high - low))
        parts.append(np.exp(-(eccentricity[item].double().numpy() ** 2) / (2 * CENTRE_WIDTH**2)))
        expected[item] = (0.4 * parts[0] + 0.4 * parts[1] + 0.2 * parts[2]) * real[item]
    score = salience_score(edges, contrast, eccentricity, mask())
    assert score.numpy() == pytest.approx(expected, abs=1e-5)
    default = salience_score(edges * 1e4, contrast, eccentricity, mask())
    assert default.min() >= 0 and default.max() <= 1 and not default[2].any()


# ---- query similarity
def test_coupling_is_the_best_cosine_with_a_word_of_the_question() -> None:
    patches, words = draw(B, N, 6) - 0.5, draw(B, 4, 6, seed=1) - 0.5
    asked = torch.tensor([[True, True, False, False], [False, True, True, True], [False] * 4])
    expected = np.zeros((B, N))
    for item, patch in np.ndindex(2, N):
        vector = patches[item, patch].double().numpy()
        cosines = [
            float(vector @ word / np.linalg.norm(vector) / np.linalg.norm(word))
            for word, counts in zip(words[item].double().numpy(), asked[item], strict=True)
            if counts
        ]
        expected[item, patch] = (1 + max(cosines)) / 2
    score = query_similarity(patches, words, asked)
    assert score.numpy() == pytest.approx(expected, abs=1e-6)
    assert score.min() >= 0 and score.max() <= 1 and not score[2].any()
    assert not query_similarity(patches, words[:, :0], asked[:, :0]).any()


# ---- Scorers of three maps: what each map is, and that relevance is their weighted sum and nothing else
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


@torch.no_grad()
def test_fixed_maps_do_not_read_the_question_and_contextual_ones_read_all_textures() -> None:
    scorer, whole = build("compositional"), context()
    other = replace(whole, query=whole.query.flip(0), query_mask=torch.ones_like(whole.query_mask))
    first, second = scorer.maps(whole), scorer.maps(other)
    assert torch.equal(first[:, :2], second[:, :2]) and not torch.allclose(first[:, 2], second[:, 2])
    scorer, whole = build("contextual"), context()
    assert scorer.all_textures(whole).shape == (3, len(TEXTURES), SIDE, SIDE)
    for channel in range(whole.textures.shape[1]):
        changed = whole.textures.clone()
        changed[:, channel] = changed[:, channel].flip(-1)
        assert not torch.allclose(scorer(whole), scorer(replace(whole, textures=changed)), atol=1e-6), TEXTURES[channel]


@torch.no_grad()
@pytest.mark.parametrize(("level", "depth"), [("low", 0), ("mid", 1)])
def test_each_level_reads_its_own_depth(level: str, depth: int) -> None:
    scorer, whole = build("hierarchical"), context()
    changed = whole.depths.clone()
    changed[:, depth] = changed[:, depth].flip(-1)
    before, after = scorer.maps(whole), scorer.maps(replace(whole, depths=changed))
    moved = [not torch.allclose(before[:, number], after[:, number]) for number in range(3)]
    assert moved == [name == level for name in ("low", "mid", "high")]


# ---- what the model makes for them
@torch.no_grad()
def test_textures_and_depths_are_made_where_a_held_scorer_reads_them() -> None:
    expected = {"realizer": (2, None), "compositional": (13, None), "contextual": (24, None), "hierarchical": (2, 2)}
    pixels = torch.randn(1, 3, 128, 128)
    for name, (channels, depths) in expected.items():
        model = tiny_model(fetcher={"scorers": [name], "strategy": name}).model
        encoding = model.encode_image(pixels)
        assert encoding.textures.shape[1] == channels
        assert (None if encoding.depths is None else encoding.depths.shape[1]) == depths
    widest = tiny_model(fetcher={"textures": "full"}).model.encode_image(pixels)
    assert widest.textures.shape[1] == len(TEXTURE_SETS["full"])
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
    refuses(r'^fetcher_config.textures: expected "basic" \(or larger\) for "red"; got 2', light.texture, "red")
    refuses(r"expected a texture among luminance, .*; got 24 channels without 'colour'", whole.texture, "colour")
    with pytest.raises(ValueError, match=r"^depths: expected an encoding .*; got features alone$"):
        build("hierarchical")(replace(whole, depths=None))


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


# ---- A mixture of experts: two of four judge a patch, named for what they look at, none of them idle
@pytest.mark.parametrize(
    ("expert", "texture", "value"),
    [("text", "stroke_density", 1.0), ("graphics", "saturation", 1.0), ("sparse", "local_entropy", 0.0)],
)
def test_an_expert_is_for_what_its_name_says(expert: str, texture: str, value: float) -> None:
    whole = context()
    for name in ("stroke_density", "saturation", "local_entropy"):
        whole.textures[:, TEXTURES.index(name)] = float(name == "local_entropy")
    whole.textures[:, TEXTURES.index(texture), 5, 4] = value
    evidence = expert_evidence(whole)
    assert evidence.min() >= 0 and evidence.max() <= 1
    assert evidence[:, 5 * SIDE + 4].argmax(-1).tolist() == [EXPERTS.index(expert)] * 3
    assert evidence[:, 5 * SIDE + 7].argmax(-1).tolist() == [EXPERTS.index("mixed")] * 3


def test_training_balances_the_load_and_evaluation_leaves_it() -> None:
    """Without a balance the same two experts judge everything, and the others never learn."""
    scorer, whole = build("experts"), context()
    scorer.router.projection.bias.data[:] = torch.tensor([3.0, 2.0, 0.0, 0.0])  # text and graphics take all

    def load() -> torch.Tensor:
        with torch.no_grad():
            gates = scorer.gates(whole)
        assert ((gates > 0).sum(-1) == CHOSEN).all() and torch.allclose(gates.sum(-1), torch.ones(3, SIDE * SIDE))
        return (gates > 0).float().mean((0, 1))

    assert load()[:2].min() > 0.7 and load()[2:].max() < 0.4
    scorer(whole)
    assert not scorer.router.load_bias.any(), "in evaluation mode nothing changes"
    scorer.train()
    with torch.no_grad():
        scorer(whole)
    assert not scorer.router.load_bias.any(), "nor where nothing is learned"
    scorer(whole)
    assert scorer.router.load_bias.abs().max() == pytest.approx(BALANCE_RATE)
    for _ in range(4000):
        normed = scorer.patch_norm(whole.features.flatten(2).transpose(1, 2))
        scorer.router(normed, expert_evidence(whole), whole.patch_mask)
    scorer.eval()
    assert (load() - CHOSEN / len(EXPERTS)).abs().max() < 0.1


# ---- Balancing
def test_shares_sum_to_one_in_each_item_however_extreme() -> None:
    """After a sigmoid the sketch took a softmax: shares of 0 and 1 became 0.27 and 0.73 (DESIGN 5)."""
    logits = torch.tensor([[0.0, 0.0, 0.0], [9.0, -9.0, -9.0], [-200.0, -200.0, -200.0]])
    weights = shares(logits)
    assert weights.isfinite().all() and (weights >= 0).all()
    assert weights[:2].sum(1).tolist() == pytest.approx([1, 1]) and weights[0].tolist() == pytest.approx([1 / 3] * 3)
    assert weights[1, 0] > 0.99
    assert torch.equal(weights[1:2], shares(logits[1:2])), "no item changes another's"


# ---- Texture channels by name: what counts as an edge, and that an image's textures are its own
PAGE = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(0)) * 2 - 1
"""Two images, -1..1; on a grid of 6 patches a patch is 8 px."""


def channel(name: str, pixels: torch.Tensor = PAGE, mask: torch.Tensor | None = None) -> np.ndarray:
    """The channel [G, G] of the first image, G = 6."""
    return textures(pixels, 6, "full", mask)[0, TEXTURES.index(name)].numpy()


def patches(pixels: np.ndarray) -> np.ndarray:
    """[48, 48] -> [6, 6, 64]."""
    return pixels.reshape(6, 8, 6, 8).transpose(0, 2, 1, 3).reshape(6, 6, 64)


def luma_patches() -> np.ndarray:
    return patches(np.tensordot([0.299, 0.587, 0.114], PAGE[0].numpy(), 1))


def test_sets_hold_the_first_of_all_names() -> None:
    """A scorer finds a channel by name at the same place in every set."""
    light, basic, full = TEXTURE_SETS.values()
    assert (len(light), len(basic), len(full), len(TEXTURES)) == (2, 13, 24, 40)
    assert TEXTURES[:24] == full and full[:13] == basic and basic[:2] == light and len(set(TEXTURES)) == 40
    asked = "red green blue luminance saturation saliency sobel_x sobel_y edge_magnitude local_entropy y x eccentricity"
    assert set(basic) == set(asked.split())
    light_channels, full_channels = textures(PAGE, 6, "light"), textures(PAGE, 6, "full")
    assert torch.equal(full_channels[:, :2], light_channels)
    assert torch.equal(full_channels[:, :13], textures(PAGE, 6, "basic"))


def test_colours_are_means_saturation_is_chroma_and_saliency_distance_from_the_mean_colour() -> None:
    image = PAGE[0].numpy()
    for place, name in enumerate(("red", "green", "blue")):
        assert channel(name) == pytest.approx(patches(image[place]).mean(-1), abs=1e-6)
    assert channel("saturation") == pytest.approx(patches(image.max(0) - image.min(0)).mean(-1), abs=1e-6)
    mask = torch.ones(2, 36, dtype=torch.bool)
    mask[:, 18:] = False  # the lower half is padding, and no part of the image's mean colour
    colours = np.stack([patches(plane).mean(-1) for plane in image])
    mean = colours[:, :3].mean((1, 2), keepdims=True)
    assert channel("saliency", mask=mask) == pytest.approx(np.linalg.norm(colours - mean, axis=0), abs=1e-5)


def test_entropy_is_that_of_sixteen_shades() -> None:
    shades = np.floor((luma_patches() + 1) * 8).clip(0, 15).astype(int)
    expected = np.zeros((6, 6))
    for y, x in np.ndindex(6, 6):
        share = np.bincount(shades[y, x], minlength=16) / 64
        expected[y, x] = -sum(p * np.log(p) for p in share if p) / np.log(16)
    assert channel("local_entropy") == pytest.approx(expected, abs=1e-5)
    assert channel("local_entropy", torch.full((1, 3, 48, 48), 0.3)).max() == 0


@pytest.mark.parametrize("size", [1, 3, 9])
def test_variance_is_that_of_all_pixels_around(size: int) -> None:
    shades, reach = luma_patches(), size // 2
    expected = np.zeros((6, 6))
    for y, x in np.ndindex(6, 6):
        expected[y, x] = shades[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1].var()
    assert channel(f"variance_{size}") == pytest.approx(expected, abs=1e-5)


def test_strokes_are_counted_where_they_are() -> None:
    """Print has many edges in a patch, a picture of one soft slope none, whatever its range."""
    pixels = torch.ones(1, 3, 48, 48)
    pixels[..., 8:16, 8:16:2] = -1.0  # four vertical strokes in patch (1, 1)
    strokes = channel("stroke_density", pixels)
    assert strokes.argmax() == 7 and strokes[1, 1] > 0.4 and strokes[4, 4] == 0
    slope = torch.linspace(-1, 1, 48).expand(1, 3, 48, 48)
    assert channel("stroke_density", slope).max() == 0


@pytest.mark.parametrize(("degrees", "step"), [(0, (0, 1)), (45, (1, 1)), (90, (1, 0)), (135, (1, -1))])
def test_energy_lies_in_the_direction_of_the_gradient(degrees: int, step: tuple[int, int]) -> None:
    y, x = torch.meshgrid(torch.arange(48.0), torch.arange(48.0), indexing="ij")
    wave = torch.sin((step[0] * y + step[1] * x) / 2).expand(1, 3, 48, 48)
    energies = {angle: channel(f"orientation_{angle}", wave)[2, 2] for angle in (0, 45, 90, 135)}
    assert max(energies, key=lambda angle: energies[angle]) == degrees
    both = [channel(name, wave)[2, 2] for name in ("sobel_x", "sobel_y")]
    assert [value > 0.01 for value in both] == [step[1] != 0, step[0] != 0]


def test_what_touches_padding_is_cleared_but_where_nothing_else_is() -> None:
    """The border of a page against its padding is the strongest edge that there is."""
    mask = torch.ones(2, 36, dtype=torch.bool)
    mask[0, :6] = False
    mask[1] = False
    mask[1, 6:12] = True
    cleared = clear_of_padding(torch.ones(2, 6, 6), mask)
    assert cleared[0].sum() == 24 and not cleared[0, :2].any()
    assert cleared[1].all(), "every patch of a single row touches padding"
