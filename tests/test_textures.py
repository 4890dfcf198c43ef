"""Texture channels: what counts as an edge, and that an image's textures are its own."""

import pytest
import torch

from arr_coc.modeling.textures import TEXTURES, luminance, sobel_magnitude, textures


def test_luminance_is_rec_601() -> None:
    """With equal weights a red label on a green field of the same mean would have no edge."""
    pixels = torch.eye(3).view(3, 3, 1, 1).expand(3, 3, 4, 4)  # a red, a green and a blue image
    assert luminance(pixels)[:, 0, 0, 0].tolist() == pytest.approx([0.299, 0.587, 0.114])


def test_a_constant_image_has_no_edge_not_even_at_its_border() -> None:
    """Zero padding made a frame of the strongest edges of all around every page."""
    assert sobel_magnitude(torch.full((2, 1, 16, 16), 0.7)).max() < 1e-6


@pytest.mark.parametrize("dim", [2, 3])
def test_an_edge_counts_the_same_in_both_directions(dim: int) -> None:
    ramp = torch.arange(16.0).view(1, 1, *(16 if d == dim else 1 for d in (2, 3))).expand(1, 1, 16, 16)
    inside = sobel_magnitude(ramp)[0, 0, 1:-1, 1:-1]
    assert torch.allclose(inside, torch.ones_like(inside))  # a slope of 1 per px is a gradient of length 1


def test_textures_are_averages_over_patches_in_row_major_order() -> None:
    pixels = torch.full((1, 3, 16, 16), -1.0)
    pixels[..., 4:8, 12:16] = 1.0  # patch (1, 3) of a 4 x 4 grid
    found = textures(pixels, 4)
    assert found.shape == (1, len(TEXTURES), 4, 4) and found.dtype == torch.float32
    light = found[0, TEXTURES.index("luminance")]
    assert light[1, 3] == pytest.approx(1.0) and int(light.argmax()) == 7
    assert int(found[0, TEXTURES.index("edges")].argmax()) == 7


def test_textures_of_an_image_do_not_depend_on_the_batch() -> None:
    pixels = torch.randn(3, 3, 32, 32)
    together = textures(pixels, 8)
    assert all(torch.equal(together[i : i + 1], textures(pixels[i : i + 1], 8)) for i in range(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_pixels_give_float32_textures(dtype: torch.dtype) -> None:
    assert textures(torch.rand(1, 3, 16, 16).to(dtype), 4).dtype == torch.float32
