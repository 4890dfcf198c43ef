"""Image processing: placement, masks, boxes, options."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from helpers import noise, refuses
from image_processors import GRID, PATCH, SIDE, processor
from PIL import Image, ImageOps
from transformers.utils import logging as transformers_logging

from arr_coc.modeling.image_processing_arr_coc import boxes_to_patches, fit_square, map_boxes


# Geometry
@pytest.mark.parametrize(
    ("height", "width", "offset", "size"),
    [
        (64, 64, (0, 0), (64, 64)),
        (32, 64, (16, 0), (32, 64)),
        (300, 100, (0, 22), (64, 21)),
        (1, 4000, (32, 0), (1, 64)),
    ],
)
def test_fit_square(height: int, width: int, offset: tuple[int, int], size: tuple[int, int]) -> None:
    placed = fit_square(height, width, SIDE)
    assert (placed.offset, placed.size) == (offset, size)
    assert placed.scale == SIDE / max(height, width)


@pytest.mark.parametrize(
    ("height", "width"), [(20, 30), (30, 20), (64, 64), (64, 33), (101, 57), (640, 480), (10, 640)]
)
def test_pixels_equal_deepseek_ocrs_own_padding(height: int, width: int) -> None:
    image = noise(height, width)
    expected = ImageOps.pad(image, (SIDE, SIDE), color=(127, 127, 127))
    (pixels,) = processor()(image, return_tensors="pt")["pixel_values"]
    reference = torch.from_numpy(np.array(expected)).permute(2, 0, 1).float().div(255).sub(0.5).div(0.5)
    assert torch.allclose(pixels, reference, atol=1e-6)


def test_patch_mask_is_true_where_a_pixel_of_the_image_lies() -> None:
    out = processor(image_mean=[0.25] * 3, image_std=[1.0] * 3)(
        Image.new("RGB", (SIDE, 30), "white"), return_tensors="pt"
    )
    whiteness = out["pixel_values"][0, 0].unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).amax((2, 3))
    mask = out["patch_mask"][0].view(GRID, GRID)
    assert torch.equal(mask, whiteness > 0.5)
    assert mask.sum() == 8 * GRID  # 30 px at 17: a partial patch at either end counts


# Boxes
def test_boxes_follow_the_image() -> None:
    """A white rectangle drawn in the source lies where the mapped box says, whatever the shape."""
    for height, width in [(200, 100), (100, 200), (77, 77), (640, 128)]:
        source = np.zeros((height, width, 3), dtype=np.uint8)
        box = (width // 4, height // 4, width // 2, height // 2)  # x first
        source[box[1] : box[3], box[0] : box[2]] = 255
        ready = processor()
        pixels = ready(Image.fromarray(source), return_tensors="np")["pixel_values"][0, 0]
        ys, xs = np.nonzero(pixels > 0.2)
        (mapped,) = ready.map_boxes([box], height, width)
        drawn = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
        assert np.allclose(mapped, drawn, atol=1.0)
        assert ready.map_boxes([box], height, width) == map_boxes([box], height, width, SIDE) == [mapped]


@pytest.mark.parametrize(
    ("box", "patches"),
    [
        ((0, 0, 16, 16), {(0, 0)}),
        ((0, 0, 16, 17), {(0, 0)}),  # 1 px of the next patch: below the margin
        ((0, 0, 16, 20), {(0, 0), (1, 0)}),  # 4 px: above it
        ((0, 15, 48, 17), {(1, 0), (1, 1), (1, 2)}),  # a thin line between two rows: the row under its centre
        ((20, 20, 20, 20), {(1, 1)}),  # a point
        ((0, 64, 16, 64), {(3, 0)}),  # on the far edge
        ((-50, -50, 8, 8), {(0, 0)}),  # clipped
        ((70, 70, 90, 90), set()),  # outside
        ((-9, -9, -1, -1), set()),
    ],
)
def test_boxes_to_patches(box: tuple[float, ...], patches: set[tuple[int, int]]) -> None:
    mask = boxes_to_patches([box], 4, 16)  # type: ignore[list-item]
    assert mask.shape == (4, 4) and mask.dtype == bool
    assert {(int(y), int(x)) for y, x in np.argwhere(mask)} == patches


# What is refused
def test_other_refused_options() -> None:
    refuses("data_format: expected channels_first", processor(), noise(20, 30), data_format="channels_last")
    refuses("an image of at most 64 px a side; got 100x30", processor(), noise(100, 30), do_resize=False)
    refuses(r"expected \(x0, y0, x1, y1\) with x0 <= x1 .* got \(9, 0, 3, 4\)", boxes_to_patches, [(9, 0, 3, 4)], 4)


# Letters that shrink away
@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What transformers' loggers say, which do not pass it on by default."""
    transformers_logging.enable_propagation()
    yield caplog
    transformers_logging.disable_propagation()


def test_a_page_whose_letters_shrink_away_is_warned_of_once(said: pytest.LogCaptureFixture) -> None:
    ready = processor()
    ready([noise(640, 400), noise(900, 100)])  # factor 0.1: 11 px are 110 px in the page
    ready(noise(640, 400))
    (message,) = said.messages
    assert message.startswith(
        "An image of 640 x 400 px (height x width) shrinks into a square of 64 px (factor 0.1): letters lower than "
        "110 px in it become lower than 11 px, which the model does not read."
    )
    processor(readable_px=5.5)(noise(640, 400))
    assert "letters lower than 55 px in it become lower than 5.5 px" in said.messages[1]
    assert processor(readable_px=5.5).to_dict().keys() == ready.to_dict().keys()


def test_a_blank_page_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr("arr_coc.modeling.image_processing_arr_coc.logger.warning_once", warned.append)
    paper = np.random.default_rng(0).integers(240, 250, (64, 64, 3), dtype=np.uint8)
    processor()([noise(64, 64), Image.fromarray(paper)])
    assert len(warned) == 1 and "got a blank image" in warned[0]
    paper[10:12, 10:12] = 0
    processor()(Image.fromarray(paper))
    assert len(warned) == 1
