"""Pages that are upside down or on their side are turned before they are read, which would be nonsense."""

import os
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import LARGE_TEXT, READS_WORDS, reads, refuses, tiny_model
from PIL import Image, ImageOps
from torch import Tensor

from arr_coc.families.public_sources import GuardedSources
from arr_coc.modeling import rereading
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.image_loading import turn_box
from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor, fit_square
from arr_coc.modeling.rereading import SURE, Crop, Original, extent, packed, reread, sheet_of, unsure_lines
from arr_coc.modeling.wordpieces import GivenWords, Word
from arr_coc.pages.fonts import FONT_PATH, pip_font_directories
from arr_coc.pages.generator import draw_page
from arr_coc.serving.encodings import ModelEncoder
from arr_coc.serving.image_workers import ImageLimits, prepare
from arr_coc.viewing import MARGIN, draw_answer, draw_sheet

QUESTION = "What is it?"
ANGLES = (90, 180, 270)


def shaded(width: int, height: int) -> Image.Image:
    """A page that is dark above and a little darker on the left, so that its pixels tell how it lies."""
    grey = 2 * np.linspace(0, 1, height)[:, None] + np.linspace(0, 1, width)
    return Image.fromarray(np.rint(80 * grey).astype(np.uint8)).convert("RGB")


PAGE = shaded(120, 100)


class Reading:
    """Replaces `encode_grid`: text that is upright has confidence 0.98, upside down or mirrored 0.7, else 0.35."""

    def __init__(self, model: Any) -> None:
        self.tower, self.squares, self.sure = model.model.vision_tower, 0, (0.98, 0.7, 0.35)
        self.encode_grid, self.tower.encode_grid = self.tower.encode_grid, self

    def __call__(self, pixel_values: Tensor, words: Sequence[Any] | None = None) -> dict[str, Tensor]:
        grid, half = self.encode_grid(pixel_values, words), pixel_values.shape[-1] // 2
        self.squares += len(pixel_values)
        for page, characters in zip(pixel_values.mean(1), grid["characters"], strict=True):
            down = float(page[half:].mean() - page[:half].mean())
            right = float(page[:, half:].mean() - page[:, :half].mean())
            upright, flipped, sideways = self.sure
            sure = sideways if abs(down) < abs(right) else upright if down > 0 and right > 0 else flipped
            characters[:, 1] = sure * characters[:, 0]
        return grid


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return reads(tiny_model(text=LARGE_TEXT, **READS_WORDS), 1, 2)


@pytest.fixture
def reading(model: Any) -> Reading:
    return Reading(model)


def boxes_of(answer: Any) -> list[tuple[float, ...]]:
    return [origin.box for origin in answer.sources]


@pytest.mark.parametrize("image", [PAGE, shaded(1000, 700), Image.new("RGB", (90, 90), "white")])
def test_pages_that_are_read_well_or_hold_no_text_are_read_once(model: Any, image: Image.Image) -> None:
    if image.getpixel((0, 0)) == (255, 255, 255):
        reads(model, 0, 0)
    plain = model.encode_image(image, tiles="never")
    reading = Reading(model)
    seen = model.encode_image(image, tiles="never")
    assert reading.squares == 1 and seen.turned == [0] and seen.words is None
    assert torch.equal(seen.tokens, plain.tokens)


@pytest.mark.parametrize("tiles", ["never", "all"])
@pytest.mark.parametrize("angle", ANGLES)
def test_places_are_on_the_page_as_it_was_given(model: Any, reading: Reading, angle: int, tiles: str) -> None:
    page = PAGE if tiles == "never" else shaded(1000, 700)
    expected = model.generate(page, QUESTION, tiles=tiles, return_fetch=True)
    turned = page.rotate(angle, expand=True)
    answer = model.generate(turned, QUESTION, tiles=tiles, return_fetch=True)
    assert (answer.text, answer.turned, expected.turned) == (expected.text, (360 - angle,), (0,))
    assert answer.legibility == pytest.approx(0.98) and answer.warning == expected.warning
    assert boxes_of(answer) == [turn_box(box, angle, page.height, page.width) for box in boxes_of(expected)] != []
    assert model.encode_image(turned, tiles=tiles).source_sizes == [turned.size[::-1]]


@pytest.mark.parametrize("angle", ANGLES)
def test_options_know_how_the_page_lies(model: Any, reading: Reading, angle: int) -> None:
    """Given boxes, further readings, several passes, and questions about several images."""
    turned, box = PAGE.rotate(angle, expand=True), (30, 20, 60, 40)
    on_turned = turn_box(box, angle, PAGE.height, PAGE.width)
    for image, given in ((PAGE, box), (turned, on_turned)):
        asked = model.generate(image, QUESTION, strategy="oracle", boxes=[given], budget=6, return_fetch=True)
        (x0, y0, x1, y1), first = given, boxes_of(asked)[0]
        assert asked.fetch.relevance.sum() > 0
        assert any(
            x0 - 8 < left and right < x1 + 8 and y0 - 8 < top and low < y1 + 8 for left, top, right, low in [first]
        )
    for options in ({"readings": 2}, {"num_passes": 2}):
        expected, answer = (model.generate(each, QUESTION, **options, return_fetch=True) for each in (PAGE, turned))
        places = [turn_box(each, angle, PAGE.height, PAGE.width) for each in boxes_of(expected)]
        assert answer.turned == (360 - angle,)
        assert np.allclose(boxes_of(answer), places)
    both = model.encode_image(PAGE).join(model.encode_image(turned))
    assert both.turned == [0, 360 - angle]
    assert len({answer.text for answer in model.generate(both, [QUESTION] * 2, return_fetch=True)}) == 1


@pytest.mark.parametrize("image", [PAGE.rotate(90, expand=True), shaded(1000, 700).rotate(180)])
def test_saved_encodings_keep_the_turn(model: Any, reading: Reading, image: Image.Image, tmp_path: Path) -> None:
    seen, path = model.encode_image(image), tmp_path / "page.safetensors"
    seen.save(path, model)
    loaded = ImageEncoding.load(path, model)
    assert loaded.turned == seen.turned != [0] and loaded.source_sizes == seen.source_sizes
    answers = [model.generate(each, QUESTION, return_fetch=True) for each in (seen, loaded)]
    assert boxes_of(answers[0]) == boxes_of(answers[1]) and answers[0] == answers[1]


def test_pages_of_a_pdf_are_turned_one_by_one(model: Any, reading: Reading, tmp_path: Path) -> None:
    path, sheet = tmp_path / "scan.pdf", shaded(300, 400)
    pages = [sheet, sheet.rotate(180), sheet.rotate(90, expand=True), ImageOps.mirror(sheet)]
    pages[0].save(path, save_all=True, append_images=pages[1:], resolution=72)
    seen = model.encode_image(path, dpi=72)
    assert seen.turned == [0, 180, 270, 0]
    assert seen.source_sizes == [(400, 300), (400, 300), (300, 400), (400, 300)]
    (answer,) = model.generate(seen, [QUESTION], return_fetch=True, spread="each")
    assert answer.warning.startswith("page 4 looks mirrored: any answer may be wrong")
    for origin in answer.sources:
        height, width = seen.source_sizes[origin.source]
        assert 0 <= origin.box[0] < origin.box[2] <= width and 0 <= origin.box[1] < origin.box[3] <= height
    drawn = draw_sheet(seen.sources, answer, question=QUESTION)
    assert drawn.width > 900


def test_pages_that_no_turn_makes_legible_have_a_warning(model: Any, reading: Reading) -> None:
    mirrored, noise = ImageOps.mirror(PAGE), Image.new("RGB", (60, 60), "white")
    for image, said in ((mirrored, "looks mirrored"), (mirrored.rotate(90, expand=True), "looks mirrored")):
        answer = model.generate(image, QUESTION, return_fetch=True)
        assert f"image 1 {said}: any answer may be wrong" in answer.warning and answer.legibility == pytest.approx(0.7)
    noise.putpixel((3, 3), (0, 0, 0))
    reading.sure = (0.3, 0.3, 0.3)
    answer = model.generate(noise, QUESTION, return_fetch=True)
    assert "hard to read" in answer.warning and "mirrored" not in answer.warning and answer.turned == (0,)


def test_pictures_show_the_page_as_it_was_given(model: Any, reading: Reading) -> None:
    pictures = []
    for image in (PAGE, PAGE.rotate(180)):
        drawn = draw_answer(image, model.generate(image, QUESTION, return_fetch=True), question=QUESTION)
        pictures.append(drawn.crop((MARGIN, MARGIN, drawn.width - MARGIN, MARGIN + drawn.width * 2 // 3)))
    upright, turned = (np.asarray(each.convert("L"), dtype=float) for each in pictures)
    middle = len(upright) // 2
    assert upright[:middle].mean() < upright[middle:].mean() and turned[:middle].mean() > turned[middle:].mean()


def test_the_server_tells_the_turn(model: Any, reading: Reading) -> None:
    for image, degrees in ((PAGE.rotate(180), 180), (shaded(1000, 700).rotate(90, expand=True), 270)):
        file = BytesIO()
        image.save(file, "PNG")
        encoder = ModelEncoder(model)
        prepared = prepare(file.getvalue(), encoder.processor, ImageLimits(2**24, GuardedSources()))
        encoding, (page,) = encoder.encode([prepared])
        assert page["turned"] == degrees and (page["height"], page["width"]) == image.size[::-1]
        assert encoding.turned == [degrees]


@pytest.mark.slow
@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize(("kind", "seed"), [("receipt", 4), ("form", 4), ("table", 8), ("label", 4)])
def test_the_shipped_model_reads_turned_pages_as_upright_ones(
    shipped: Any, kind: str, seed: int, angle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FONT_PATH, os.pathsep.join(map(str, pip_font_directories())))
    page = draw_page(np.random.default_rng(seed), "test", kind).image
    assert page is not None
    upright, turned = (shipped.encode_image(each) for each in (page, page.rotate(angle, expand=True)))
    assert (upright.turned, turned.turned) == ([0], [360 - angle])
    assert torch.equal(upright.pieces, turned.pieces) and turned.legibility() == upright.legibility()


# ---- Words read with little confidence are read again from the original pixels; the readings vote
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
def small_reader() -> Any:
    vision = {"stem": "conv", "stem_channels": [8, 16, 16], "patch_size": 16, "image_size": SIDE}
    small_reader = tiny_model(bridge=READS_WORDS["bridge"], vision=vision)
    small_reader.processor.image_processor = ArrCocImageProcessor(size={"height": SIDE, "width": SIDE}, patch_size=16)
    return small_reader


def test_a_page_is_read_again_alone_together_or_in_tiles(small_reader: Any) -> None:
    plain, once, twice = (small_reader.encode_image(page(0), reread=reread) for reread in (False, True, True))
    assert not torch.equal(plain.pieces, once.pieces)
    assert torch.equal(once.pieces, twice.pieces) and torch.equal(once.tokens, twice.tokens)
    assert torch.equal(plain.features, once.features)
    pages = [page(0), page(1, (200, 300))]
    together = small_reader.encode_image(pages)
    for number, own in enumerate(pages):
        alone = small_reader.encode_image(own)
        assert torch.equal(together.pieces[number], alone.pieces[0])
        torch.testing.assert_close(together.characters[number], alone.characters[0])  # a batch rounds otherwise
    image = page(2, (700, 700))
    tiles = small_reader.encode_image(image, tiles=4).tiles
    for number, window in enumerate(tiles.windows.tolist()):
        alone = small_reader.encode_image(image.crop(window), tiles="never")
        assert torch.equal(tiles.pieces[number], alone.pieces[0])
    refuses("reread: expected True or False; got 'yes'", small_reader.encode_image, page(0), reread="yes")
