"""The three relevance maps: each against its formula written out in NumPy, and within the range that it promises."""

import math

import numpy as np
import pytest
import torch

from arr_coc.families.relevance_maps import (
    CENTRE_WIDTH,
    RELEVANCE_MAPS,
    information_score,
    local_contrast,
    query_similarity,
    salience_score,
    unit_range,
)

B, SIDE = 3, 5
N = SIDE * SIDE


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def mask() -> torch.Tensor:
    """[B, N]: all real; the first two rows padding; all padding."""
    real = torch.ones(B, SIDE, SIDE, dtype=torch.bool)
    real[1, :2] = real[2] = False
    return real.flatten(1)


def test_there_are_three() -> None:
    assert RELEVANCE_MAPS == ("information", "salience", "query_similarity")


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


def test_information_is_about_shares_not_counts() -> None:
    counts = draw(10, 8)
    assert torch.allclose(information_score(counts), information_score(counts * 1000), atol=1e-5)
    with pytest.raises(ValueError, match=r"^counts: expected at least 2 bins; got 1$"):
        information_score(torch.ones(3, 1))


# ---- salience


def test_the_unit_range_is_each_items_own_over_its_real_patches() -> None:
    values = draw(B, N) * torch.tensor([[1.0], [100.0], [1.0]]) - 5
    values[1, : 2 * SIDE] = 1e6  # in padding
    scaled = unit_range(values, mask())
    real = values[1, 2 * SIDE :].double().numpy()
    assert scaled[1, 2 * SIDE :].numpy() == pytest.approx((real - real.min()) / np.ptp(real), abs=1e-5)
    assert (scaled.amin(1), scaled.amax(1))[1].tolist() == [1.0, 1.0, 0.0] and not scaled[1, : 2 * SIDE].any()
    assert not unit_range(torch.full((B, N), 0.3), mask()).any(), "all equal: nothing stands out"


def test_local_contrast_is_the_distance_from_the_real_neighbours() -> None:
    shades, real = draw(B, SIDE, SIDE), mask().view(B, SIDE, SIDE)
    expected = np.zeros((B, SIDE, SIDE))
    for item, y, x in np.ndindex(B, SIDE, SIDE):
        around = [
            shades[item, i, j].item()
            for i in range(max(0, y - 1), min(SIDE, y + 2))
            for j in range(max(0, x - 1), min(SIDE, x + 2))
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
        expected[item] = (0.5 * parts[0] + 0.3 * parts[1] + 0.2 * parts[2]) * real[item]
    score = salience_score(edges, contrast, eccentricity, mask(), (0.5, 0.3, 0.2))
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


def test_coupling_goes_from_0_to_1() -> None:
    patches = torch.tensor([[[2.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    score = query_similarity(patches, torch.tensor([[[5.0, 0.0]]]), torch.ones(1, 1, dtype=torch.bool))
    assert score[0].tolist() == pytest.approx([1.0, 0.0, 0.5, 0.5])
