"""Pages that are upside down or on their side are turned before they are read, which would be nonsense."""

import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import LARGE_TEXT, READS_WORDS, reads, tiny_model
from PIL import Image, ImageOps
from torch import Tensor

from arr_coc.families.public_sources import GuardedSources
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.image_loading import turn_box
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
