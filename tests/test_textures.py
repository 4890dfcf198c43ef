"""Texture channels: what counts as an edge, and that an image's textures are its own."""

import numpy as np
import pytest
import torch

from arr_coc.families.relevance_maps import TEXTURES
from arr_coc.modeling.vision_tower import TEXTURE_SETS, clear_of_padding, textures


def test_textures_are_averages_over_patches_in_row_major_order() -> None:
    pixels = torch.full((1, 3, 16, 16), -1.0)
    pixels[..., 4:8, 12:16] = 1.0  # patch (1, 3) of a 4 x 4 grid
    found = textures(pixels, 4)
    assert found.shape == (1, len(TEXTURE_SETS["light"]), 4, 4) and found.dtype == torch.float32
    light = found[0, TEXTURES.index("luminance")]
    assert light[1, 3] == pytest.approx(1.0) and int(light.argmax()) == 7
    assert int(found[0, TEXTURES.index("edge_magnitude")].argmax()) == 7


# ---- channels by name
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
