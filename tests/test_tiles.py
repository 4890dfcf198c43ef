"""Pages as the model sees them: a tile says where the texts of its A4 page lie in it, an overview shows all of them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from PIL import Image

from arr_coc.data import FIELDS, Box, Document
from arr_coc.data.domains import invoice
from arr_coc.data.domains.photo import photograph_document
from arr_coc.data.mixture import KINDS
from arr_coc.training.from_scratch.targets import word_targets

SIDE = 160
KEPT = ("tile", "overview")


@cache
def shown(kind: str, seed: int) -> Document:
    return KINDS[kind](np.random.default_rng(seed), size=SIDE, split="validation")


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("seed", range(3))
def test_all_that_is_said_lies_on_ink_in_the_view(kind: str, seed: int) -> None:
    document = shown(kind, seed)
    assert document.image.size == (SIDE, SIDE) and document.entries
    pixels = np.asarray(document.image.convert("L"), np.float32)
    boxes = [box for entry in document.entries for box in (entry.label_box, entry.value_box)]
    for x0, y0, x1, y1 in [*boxes, *(box for _, box in document.labels), *(glyph.box for glyph in document.glyphs)]:
        assert 0 <= x0 < x1 <= SIDE and 0 <= y0 < y1 <= SIDE
        spot = pixels[int(y0) : int(np.ceil(y1)) + 1, int(x0) : int(np.ceil(x1)) + 1]
        assert np.ptp(spot) > 15


@pytest.mark.parametrize("seed", range(6))
def test_a_tiles_entries_are_spelt_by_its_characters_and_its_other_fields_are_not(seed: int) -> None:
    document = shown("tile", seed)
    for entry in document.entries:
        assert _within(document, entry.value_box) == entry.value.replace(" ", "")
    fields = [entry.field for entry in document.entries] + [field for field, _ in document.labels]
    assert not set(fields) & set(document.elsewhere) and set(document.elsewhere) <= set(FIELDS)


def _within(document: Document, box: Box) -> str:
    x0, y0, x1, y1 = box
    own = [
        glyph
        for glyph in document.glyphs
        if x0 - 1 <= (glyph.box[0] + glyph.box[2]) / 2 <= x1 + 1 and y0 <= (glyph.box[1] + glyph.box[3]) / 2 <= y1
    ]
    return "".join(glyph.char for glyph in sorted(own, key=lambda glyph: glyph.box[0]))


def test_print_that_cannot_be_read_is_no_target_and_its_fields_are_known_all_the_same() -> None:
    document = shown("overview", 1)
    assert all(glyph.box[3] - glyph.box[1] >= invoice.READABLE * SIDE for glyph in document.glyphs)
    assert all(_within(document, entry.value_box) == "" for entry in document.entries)
    assert document.glyphs and not document.labels and not document.elsewhere  # the heading is larger
    left = np.asarray(document.image)[:, 0]
    assert (left == 127).all()  # beside the page, as the image processor pads


def test_a_window_shows_what_the_whole_page_shows_there() -> None:
    fields = ["date", "order", "code", "total"]
    whole = invoice.draw_sheet(np.random.default_rng(5), 620, "validation", fields)
    places: list[dict[str, tuple[Box, Box]]] = []

    def choose(planned: dict[str, tuple[Box, Box]]) -> tuple[int, int, int]:
        places.append(planned)
        x, y, *_ = planned["date"][0]
        return int(x) - 30, int(y) - 30, 200

    part = invoice.draw_sheet(np.random.default_rng(5), 620, "validation", fields, choose=choose)
    label, value = (span.box for span in whole.fields["date"])
    x, y, *_ = places[0]["date"][0]
    assert part.image.size == (200, 200) and part.glyphs == whole.glyphs
    assert part.fields["date"][0].box == label
    assert part.fields["total"][1].box != whole.fields["total"][1].box  # not drawn: where it would be written
    crop = whole.image.crop((int(x) - 30, int(y) - 30, int(x) + 170, int(y) + 170))
    difference = np.abs(np.asarray(crop, np.float32) - np.asarray(part.image, np.float32))
    assert difference.mean() < 12  # noise and shading, which are drawn anew
    inked = int(label[0] - x) + 30, int(label[1] - y) + 30
    assert np.ptp(np.asarray(part.image)[inked[1] : inked[1] + 12, inked[0] : inked[0] + 12].astype(int)) > 40


def test_the_words_of_labels_without_values_are_targets() -> None:
    box = (8.0, 8.0, 24.0, 16.0)
    named = word_targets((), [("total", box)], size=64, grid=8)
    assert (named[1, 1:3] == 1 + FIELDS.index("total")).all() and (named > 0).sum() == 2
    assert (word_targets((), size=64, grid=8) == -100).all()


def test_a_photograph_takes_the_labels_along() -> None:
    document = replace(shown("tile", 0), labels=(("total", (10.0, 10.0, 40.0, 20.0)),))
    taken = photograph_document(np.random.default_rng(0), document)
    ((field, box),) = taken.labels
    assert field == "total" and box != document.labels[0][1] and taken.elsewhere == document.elsewhere


def test_half_of_the_pages_were_stored_in_a_lossy_way() -> None:
    page = Image.effect_noise((32, 32), 60).convert("RGB")
    stored = [invoice._stored(np.random.default_rng(seed), page).tobytes() == page.tobytes() for seed in range(20)]
    assert 5 <= sum(stored) <= 15
