"""Words read with little confidence are read again from the original pixels; the readings vote."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers import READS_WORDS, refuses, tiny_model
from PIL import Image

from arr_coc.modeling import rereading
from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor, fit_square
from arr_coc.modeling.rereading import SURE, Crop, Original, extent, packed, reread, sheet_of, unsure_lines
from arr_coc.modeling.wordpieces import GivenWords, Word

SIDE = 256


def word(text: str, x: float, row: float, confidence: float, step: float = 8.0) -> Word:
    """A word whose first character has its middle at x, px, in a half row."""
    columns = tuple(x + step * number for number in range(len(text)))
    return Word(text, columns, row + 0.5, confidence, (), (row, row + 1))


def again(*texts: tuple[str, float], at: float = 40.0) -> Callable[[list[Crop]], list[Word]]:
    """Of each crop at one of `SCALES` in turn what is read: a text and its confidence, from the x `at` on the page."""

    def words(crops: Sequence[Crop]) -> list[Word]:
        read = []
        for crop in crops:
            text, confidence = texts[rereading.SCALES.index(crop.scale)]
            across = crop.width / (crop.box[2] - crop.box[0])
            row = (crop.y + (84 - crop.box[1]) * crop.height / (crop.box[3] - crop.box[1])) / 8
            columns = tuple(crop.x + (at + 8 * number - crop.box[0]) * across for number in range(len(text)))
            read.append(Word(text, columns, row, confidence, (), (row - 0.5, row + 0.5)))
        return read

    return words


def run(words: list[Word], read: Callable[[list[Crop]], list[Word]] | None, size: tuple[int, int] = (512, 512)) -> Any:
    placement = fit_square(size[1], size[0], SIDE)
    crops = packed(unsure_lines(words), placement, SIDE)

    def reads(sheet: np.ndarray) -> list[Word]:
        assert read is not None, "nothing is to be read again"
        return read(crops)

    return run_on(words, size, reads)


def run_on(words: list[Word], size: tuple[int, int], read: Callable[[np.ndarray], list[Word]]) -> Any:
    """The words of a white page of a size, where `read` reads sheets."""
    original = Original(Image.new("RGB", size, "white"), fit_square(size[1], size[0], SIDE), SIDE, lambda sheet: sheet)
    view = GivenWords([], partial=True, original=original)
    sheets: list[np.ndarray] = []

    def stem(sheet: torch.Tensor) -> torch.Tensor:
        sheets.append(sheet[0].numpy().astype(np.uint8))
        return sheet

    return reread([view], stem, lambda _: [read(sheets[-1])], torch.zeros(1), [words])[0]


OTHERS = [word("Date", 40, 4, 0.99), word("sum", 140, 10, 0.98)]
UNSURE = word("Tota1", 40, 10, 0.5)


def test_sure_words_stay_the_same_and_nothing_is_read() -> None:
    assert run(OTHERS, None) is OTHERS
    assert run([], None) == []
    start = extent(UNSURE)[0] - rereading.BESIDE
    assert run([UNSURE], again(("xTotal", 0.9), ("xTotal", 0.9), at=start)) == [UNSURE]


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([("Total", 0.4), ("Total", 0.3)], "Total"),  # two that are not sure outvote one
        ([("Tota1", 0.5), ("Total", 0.9)], "Tota1"),
        ([("Total", 0.4), ("Totai", 0.3)], "Tota1"),
        ([("Total", 0.4), ("Totai", 0.6)], "Totai"),
    ],
)
def test_readings_vote_by_confidence(readings: list[tuple[str, float]], expected: str) -> None:
    assert [each.text for each in run([UNSURE], again(*readings))] == [expected]


def test_crops_hold_the_pixels_of_the_image_and_not_of_the_square(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rereading, "SCALES", (2.0,))
    pixels = np.random.default_rng(0).integers(0, 255, (512, 512, 3), dtype=np.uint8)
    placement = fit_square(512, 512, SIDE)
    (crop,) = packed(unsure_lines([UNSURE]), placement, SIDE)
    sheet = sheet_of([crop], Image.fromarray(pixels), placement, SIDE)
    x0, y0, x1, y1 = (2 * each for each in crop.box)
    shown = sheet[crop.y : crop.y + crop.height, crop.x : crop.x + crop.width]
    assert np.array_equal(shown, pixels[y0:y1, x0:x1])


def test_crops_are_apart_and_bounded_and_the_least_sure_come_first() -> None:
    rng = np.random.default_rng(1)
    words = [word("word", x, row, rng.uniform(0.3, SURE - 0.01)) for row in range(1, 30, 2) for x in (20, 90, 160)]
    placement = fit_square(400, 400, SIDE)
    lines = unsure_lines(words)
    crops = packed(lines, placement, SIDE)
    covered = np.zeros((2 * SIDE, SIDE), int)
    for crop in crops:
        covered[crop.y : crop.y + crop.height + rereading.GAP, crop.x : crop.x + crop.width + rereading.GAP] += 1
    assert covered.max() == 1 and covered.sum() <= rereading.MOST * SIDE**2
    assert {crop.line for crop in crops} == set(range(len({crop.line for crop in crops}))) < set(range(len(lines)))


@pytest.mark.parametrize("size", [(8, 8), (8, 900), (900, 8), (31, 30), (3000, 2000), (255, 257)])
def test_any_shape_of_image_is_cropped(size: tuple[int, int]) -> None:
    words = [word("words", x, row, 0.5) for row in (0, 15, 31) for x in (1, 100, 220)]
    seen: list[np.ndarray] = []
    assert run_on(words, size, lambda sheet: seen.append(sheet) or []) == words
    for sheet in seen:
        assert sheet.shape[1:] == (SIDE, 3) and not sheet.shape[0] % 16


# ---- through the model
def page(seed: int, size: tuple[int, int] = (300, 200)) -> Image.Image:
    """Bars as of print, at random."""
    pixels = np.full((size[1], size[0], 3), 255, np.uint8)
    rng = np.random.default_rng(seed)
    for y in range(10, size[1] - 20, 24):
        for x in range(10, size[0] - 10, 5):
            pixels[y : y + 10, x : x + 2] = rng.integers(0, 255)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def model() -> Any:
    vision = {"stem": "conv", "stem_channels": [8, 16, 16], "patch_size": 16, "image_size": SIDE}
    model = tiny_model(bridge=READS_WORDS["bridge"], vision=vision)
    model.processor.image_processor = ArrCocImageProcessor(size={"height": SIDE, "width": SIDE}, patch_size=16)
    return model


def test_a_page_is_read_again_alone_together_or_in_tiles(model: Any) -> None:
    plain, once, twice = (model.encode_image(page(0), reread=reread) for reread in (False, True, True))
    assert not torch.equal(plain.pieces, once.pieces)
    assert torch.equal(once.pieces, twice.pieces) and torch.equal(once.tokens, twice.tokens)
    assert torch.equal(plain.features, once.features)
    pages = [page(0), page(1, (200, 300))]
    together = model.encode_image(pages)
    for number, own in enumerate(pages):
        alone = model.encode_image(own)
        assert torch.equal(together.pieces[number], alone.pieces[0])
        torch.testing.assert_close(together.characters[number], alone.characters[0])  # a batch rounds otherwise
    image = page(2, (700, 700))
    tiles = model.encode_image(image, tiles=4).tiles
    for number, window in enumerate(tiles.windows.tolist()):
        alone = model.encode_image(image.crop(window), tiles="never")
        assert torch.equal(tiles.pieces[number], alone.pieces[0])
    refuses("reread: expected True or False; got 'yes'", model.encode_image, page(0), reread="yes")
