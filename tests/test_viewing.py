"""The picture of what was fetched: geometry, colours, caption."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fetching import fetch_of
from helpers import LARGE_TEXT, Cli, refuses, tiny_model
from PIL import Image
from tiny_pdf import paged

from arr_coc.modeling.fetcher import FetchResult
from arr_coc.viewing import MARGIN, NARROWEST, OUTLINE_COLOUR, SHORTEST, describe, draw_fetch, draw_sheet


def fetch(indices: list[int], side: int = 8, **changes: Any) -> FetchResult:
    """One item in which the fetched patches are relevant and no others."""
    index = torch.tensor([indices], dtype=torch.long)
    relevance = torch.zeros(1, side * side).scatter(1, index, 1.0)
    return fetch_of(index, relevance, **{"strategy": "realizer", "allocator": "topk", **changes})


def outlined(picture: Image.Image) -> np.ndarray:
    """bool [H, W]: pixels in the outline's colour."""
    return (np.asarray(picture) == OUTLINE_COLOUR[:3]).all(-1)


def test_a_fetched_patch_is_outlined_where_it_lies_and_nothing_else_is() -> None:
    picture = draw_fetch(Image.new("RGB", (64, 64), "white"), fetch([8 + 2]), question="?", text="a")
    cell = SHORTEST // 8
    rows, columns = np.nonzero(outlined(picture))
    assert picture.width == SHORTEST + 2 * MARGIN
    assert (rows.min() // cell, columns.min() // cell) == (1, 2)
    top, left = MARGIN + cell, MARGIN + 2 * cell
    assert top <= rows.min() and rows.max() < top + cell
    assert left <= columns.min() and columns.max() < left + cell
    said = describe(fetch([1, 2], is_padding=torch.tensor([[False, True]])))
    assert said == (
        "strategy realizer, allocator topk: 2 of 64 patches fetched (outlined, 1 of them padding), beside 4 base "
        "tokens (grid)"
    )
    alone = fetch([1, 2], base=0)
    assert describe(alone).endswith("2 of 64 patches fetched (outlined)")


@pytest.mark.parametrize(("width", "height"), [(64, 16), (16, 64)])
def test_padding_is_cut_off_and_patches_stay_over_their_part_of_the_image(width: int, height: int) -> None:
    """A 64 x 16 image fills rows 3 and 4 of an 8 x 8 grid; its upper left patch is (3, 0)."""
    image = Image.new("RGB", (width, height), "white")
    first = 3 * 8 if width > height else 3
    padding = torch.tensor([[False, True]])
    picture = draw_fetch(image, fetch([first, 63], is_padding=padding), question="?", text="a")
    rows, columns = np.nonzero(outlined(picture))
    cell = SHORTEST // 8
    left = MARGIN + (0 if width > height else (NARROWEST - 2 * cell) // 2)
    assert rows.min() >= MARGIN and rows.max() < MARGIN + cell
    assert left <= columns.min() and columns.max() < left + cell


def test_patches_of_tiles_are_outlined_where_they_lie_in_the_image() -> None:
    model = tiny_model(text=LARGE_TEXT)
    page = Image.new("RGB", (500, 700), "white")
    page.paste("black", (300, 520, 380, 540))
    answer = model.generate(page, "?", strategy="oracle", boxes=[(300, 520, 380, 540)], budget=4, return_fetch=True)
    places = [origin.box for origin in answer.sources]
    assert all(x1 - x0 < 500 / 16 for x0, _, x1, _ in places), "of tiles, finer than the overview"
    picture = draw_fetch(page, answer.fetch)
    rows, columns = np.nonzero(outlined(picture))
    scale = 16 * math.ceil(SHORTEST / 16) / 700
    left = (picture.width - 500 * scale) / 2
    expected = (min(y0 for _, y0, *_ in places), max(y1 for *_, y1 in places))
    assert rows.min() == pytest.approx(MARGIN + expected[0] * scale, abs=4)
    assert rows.max() == pytest.approx(MARGIN + expected[1] * scale, abs=4)
    assert columns.min() == pytest.approx(left + min(x0 for x0, *_ in places) * scale, abs=4)


@pytest.mark.parametrize("question", ["word " * 80, "w" * 400, "short", ""])
def test_the_caption_never_leaves_the_page(question: str) -> None:
    picture = draw_fetch(
        Image.new("RGB", (20, 30), "black"), fetch([5]), question=question, text="yes " * 40, probability=1
    )
    pixels = np.asarray(picture)
    assert (pixels[:, -MARGIN + 2 :] == 255).all() and (pixels[:, : MARGIN - 2] == 255).all()
    assert (pixels[-3:] == 255).all()


def test_pages_that_were_fetched_from_are_outlined() -> None:
    model = tiny_model(text=LARGE_TEXT)
    encoding = model.encode_image(paged("TIFF"))
    answer = model.generate(encoding, "What is the total?", budget=12, return_fetch=True)
    sheet = draw_sheet(encoding.sources, answer, question="What is the total?")
    base_only = model.generate(encoding, "What is the total?", strategy="none", return_fetch=True)
    plain = draw_sheet(encoding.sources, base_only, question="?")
    assert outlined(sheet).sum() > 100 and not outlined(plain).any()
    colour, none = (np.ptp(np.asarray(each), -1).mean() for each in (sheet, plain))
    assert colour > none + 2  # relevance was drawn for single images only
    refuses("answer: expected one about 1 sources; got source", draw_sheet, encoding.sources[:1], answer, question="?")


def test_the_command_line_asks_documents(checkpoint: Path, tmp_path: Path, cli: Cli) -> None:
    file, picture = tmp_path / "pages.tiff", tmp_path / "sheet.png"
    file.write_bytes(paged("TIFF"))
    options = ["--model", str(checkpoint), "--json", "--picture", str(picture), "--budget", "9"]
    code, out, _ = cli("ask", str(file), "What?", *options)
    assert code == 0
    said: dict[str, Any] = json.loads(out)
    assert said["tokens"]["fetched"] == len(said["positions"]) == 9
    assert {origin["page"] for origin in said["sources"]} <= {1, 2, 3} and said["sources"][0]["box"]
    with Image.open(picture) as sheet:
        assert sheet.width > 300
