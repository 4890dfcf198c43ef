"""Synthetic documents: what they show is what they say, and nothing of the test split leaks into training."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.random import Generator

from arr_coc.modeling.image_processing_arr_coc import Box
from arr_coc.pages import fonts
from arr_coc.pages.domains import DOMAINS, values
from arr_coc.pages.domains import wordings as questions  # fmt: skip
from arr_coc.pages.domains.document import Document, render_document
from arr_coc.pages.domains.glyphs import CHARSET
from arr_coc.pages.splits import SPLITS, Split

KIND_PATTERNS: dict[str, str] = {
    "amount": r"\$?\d{1,3}(,\d{3})?\.\d{2}",
    "date": r"\d{2}/\d{2}/\d{2}",
    "time": r"\d{2}:\d{2}",
    "number": r"\d{1,8}",
    "code": r"(?=.{2,6}$)[A-Z0-9]+(-[A-Z0-9]+)?",
    "seat": r"[A-Z]\d{1,2}|\d{1,2}[A-Z]",
    "name": r"[A-Z][a-z]+",
    "city": r"[A-Z][a-z]+( [A-Z][a-z]+)*",
    "company": r"[A-Z][a-z]+( (& )?[A-Z][a-z]+)*",
    "phone": r"\d{3,4}-\d{4}",
}
"""Full-match regular expressions of the values of each kind."""


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@cache
def drawn(split: Split, size: int) -> tuple[Generator, list[Document]]:
    return generator(), []


def documents(split: Split, count: int, *, size: int = 256) -> list[Document]:
    """The first documents of a split; each is drawn once. Read only."""
    rng, found = drawn(split, size)
    found += [render_document(rng, size=size, split=split) for _ in range(count - len(found))]
    return found[:count]


def crop(document: Document, box: Box) -> np.ndarray:
    pixels = np.asarray(document.image.convert("L"), np.float32)
    x0, y0, x1, y1 = map(round, box)
    return pixels[y0:y1, x0:x1]


@pytest.mark.parametrize("split", SPLITS)
def test_same_seed_gives_the_same_document(split):
    first, second = (render_document(generator(5), split=split) for _ in range(2))
    assert first.image.tobytes() == second.image.tobytes()
    assert (first.entries, first.glyphs, first.layout, first.font) == (
        second.entries,
        second.glyphs,
        second.layout,
        second.font,
    )
    assert render_document(generator(6), split=split).image.tobytes() != first.image.tobytes()


@pytest.mark.parametrize("size", [128, 256, 320])
@pytest.mark.parametrize("split", SPLITS)
def test_boxes_lie_in_the_image_and_are_not_empty(split, size):
    for document in documents(split, 10, size=size):
        assert document.image.size == (size, size) and document.image.mode == "RGB"
        for entry in document.entries:
            for x0, y0, x1, y1 in (entry.label_box, entry.value_box):
                assert 0 <= x0 < x1 <= size and 0 <= y0 < y1 <= size
            assert entry.label_box[2] <= entry.value_box[0] + 6, "a value begins where its label ends"
        for glyph in document.glyphs:
            assert glyph.box[0] >= -1 and glyph.box[2] <= size + 1 and 0 <= glyph.box[1] < glyph.box[3] <= size


@pytest.mark.parametrize("split", SPLITS)
def test_value_boxes_hold_ink_that_contrasts_with_the_paper(split):
    for document in documents(split, 40):
        paper = float(np.median(np.asarray(document.image.convert("L"))))
        for entry in document.entries:
            for box in (entry.label_box, entry.value_box):
                assert np.abs(crop(document, box) - paper).max() > 40


@pytest.mark.parametrize("split", SPLITS)
def test_rows_do_not_overlap(split):
    for document in documents(split, 40):
        middles = [(e.value_box[1] + e.value_box[3]) / 2 for e in document.entries]
        assert (np.diff(middles) > 7).all(), "at least 11 px text below one another, top to bottom"


@pytest.mark.parametrize("split", SPLITS)
def test_glyphs_spell_labels_and_values(split):
    for document in documents(split, 20):
        for entry in document.entries:
            for text, (x0, y0, x1, y1) in ((entry.label, entry.label_box), (entry.value, entry.value_box)):
                inside = [
                    glyph
                    for glyph in document.glyphs
                    if x0 - 1 <= (glyph.box[0] + glyph.box[2]) / 2 <= x1 + 1
                    and y0 - 1 <= (glyph.box[1] + glyph.box[3]) / 2 <= y1 + 1
                ]
                inside.sort(key=lambda glyph: glyph.box[0])
                assert "".join(glyph.char for glyph in inside).rstrip(":") == text.replace(" ", "")


@pytest.mark.parametrize("split", SPLITS)
def test_pages_say_distinct_fields_and_values_of_documented_kinds(split):
    fields = set()
    for document in documents(split, 60):
        assert 4 <= len(document.entries) <= 14
        assert len({entry.field for entry in document.entries}) == len(document.entries)
        assert len({entry.value for entry in document.entries}) == len(document.entries)
        for entry in document.entries:
            assert entry.field in values.FIELDS and entry.label.lower() == entry.field
            assert any(re.fullmatch(pattern, entry.value) for pattern in KIND_PATTERNS.values()), entry.value
            fields.add(entry.field)
        assert {glyph.char for glyph in document.glyphs} <= set(CHARSET)
    assert fields == set(values.FIELDS)


@pytest.mark.parametrize("kind", values.KIND_NAMES)
@pytest.mark.parametrize("split", SPLITS)
def test_each_kind_matches_its_pattern_and_the_charset(kind, split):
    rng = generator()
    for _ in range(200):
        value = values.KINDS[kind](rng, split)
        assert re.fullmatch(KIND_PATTERNS[kind], value), value
        assert set(value) - {" "} <= set(CHARSET)


def test_layouts_of_each_split_cover_all_placements():
    layouts = DOMAINS["document"].layouts
    for chosen in (layouts.train, layouts.test):
        assert {layout.placement for layout in chosen.values()} == {"left", "spaced", "right"}


@pytest.mark.parametrize("split", SPLITS)
def test_documents_use_the_layouts_of_their_split(split):
    allowed = DOMAINS["document"].layouts.of(split)
    seen = {document.layout for document in documents(split, 40)}
    assert seen <= set(allowed) and len(seen) > 2


@pytest.mark.parametrize("split", SPLITS)
def test_missing_fonts_name_the_packages_to_install(split, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("ARR_COC_FONT_PATH", f"{tmp_path}{os.pathsep}{tmp_path / 'absent'}")
    with pytest.raises(FileNotFoundError, match=rf"fonts: expected one of the {split} split .*apt-get install fonts-"):
        render_document(generator(), split=split)


def test_a_broken_font_file_is_passed_over(tmp_path: Path):
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    with pytest.raises(FileNotFoundError):
        fonts.find_fonts("train", directories=[tmp_path])


def test_bad_arguments_say_what_was_expected():
    with pytest.raises(ValueError, match=r"split: expected one of train, validation, test; got \'dev\'"):
        render_document(generator(), split="dev")
    with pytest.raises(ValueError, match=r"expected a size of at least 64 px.*got 32"):
        render_document(generator(), size=32)


def test_question_templates_share_one_wording_and_test_words_occur_in_training():
    train, test = questions.QUESTION_TEMPLATES_TRAIN, questions.QUESTION_TEMPLATES_TEST
    assert set(train) & set(test) == {"What is the {field}?"} and len(set(train)) == len(train) >= 15

    def words(templates):
        return set(re.findall(r"[a-z']+", " ".join(templates).lower()))

    assert words(test) <= words(train)


def test_ask_draws_from_its_split():
    rng = generator()
    asked = [questions.ask(rng, "gate", split="test") for _ in range(400)]
    assert 0.4 < np.mean([text == "What is the gate?" for text in asked]) < 0.6
    assert set(asked) == {text.format(field="gate") for text in questions.QUESTION_TEMPLATES_TEST}
    trained = {questions.ask(rng, "gate", split="train") for _ in range(600)}
    assert {"gate", "Gate?", "What's the gate?"} <= trained
    with pytest.raises(ValueError, match="split: expected one of train, validation, test; got 'dev'"):
        questions.ask(rng, "gate", split="dev")  # type: ignore[arg-type]
