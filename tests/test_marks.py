"""Marks: what is drawn beside words becomes words; drawn pages of marks have known answers and labels in place."""

from __future__ import annotations

import colorsys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import READS_WORDS, noise, tiny_model, tiny_tokenizer

from arr_coc.modeling.marks import BAR, COLOURS, MARKS, found_marks, mark_words, with_marks
from arr_coc.modeling.wordpieces import CELL_COLUMNS, TextReader, Word
from arr_coc.pages import fonts, marked, marked_sheet
from arr_coc.pages.generator import draw_page, layout_page
from arr_coc.pages.page import TextPage
from arr_coc.pages.splits import SPLITS, share
from arr_coc.pages.wear import wear
from arr_coc.training.reader.marking import EVEN, IGNORED, MarksStage, mark_targets
from arr_coc.training.reader.targets import Wordpieces, page_tokens, read_without_pixels, spelled
from arr_coc.training.stages import Run

WITH_MARKS: dict[str, Any] = {**READS_WORDS, "vision": {**READS_WORDS["vision"], "marks": True}}
PAGE = "marked page"


@pytest.fixture(scope="module", autouse=True)
def _fonts() -> None:
    """Skips where no font of the training split is installed."""
    try:
        fonts.find_fonts("train")
    except FileNotFoundError:
        pytest.skip("no font of the training split is installed")


@pytest.fixture(scope="module")
def pages() -> list[TextPage]:
    return [layout_page(np.random.default_rng(seed), "train", PAGE) for seed in range(1000, 1240)]


def reader() -> TextReader:
    tokenizer = tiny_tokenizer()
    text = TextReader(4, len(tokenizer))
    text.spellings.copy_(spelled(tokenizer, len(tokenizer)))
    return text


# ---- words from marks
def test_a_model_without_the_head_encodes_as_before() -> None:
    """The head of a model with one is all that differs, and it leaves words and features as they are."""
    plain, marking = tiny_model(**READS_WORDS), tiny_model(**WITH_MARKS)
    weights = {name: weight for name, weight in marking.state_dict().items() if "mark_head" not in name}
    assert weights.keys() == plain.state_dict().keys()
    marking.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        head = marking.model.vision_tower.text_reader.mark_head.head
        head.weight.zero_()
        head.bias.zero_()
        head.bias[0] = 9.0  # none
    seen, also = (model.encode_image(noise(64, 64)) for model in (plain, marking))
    for name in ("features", "pieces", "characters"):
        assert torch.equal(getattr(seen, name), getattr(also, name))
    with torch.no_grad():
        head.bias[1] = 18.0  # one ticked box over the whole image
    ticked = marking.encode_image(noise(64, 64))
    assert (ticked.pieces >= 0).sum() > 0 and not torch.equal(ticked.pieces, seen.pieces)


def test_marks_become_wordpieces_in_free_slots() -> None:
    text = reader()
    words = [Word("to", (33.0, 41.0), 2.5), Word("q", (6.0,), 2.4)]  # the box of the mark was taken for a letter
    both = with_marks(words, [("[x]", (0.0, 1.0, 2.0, 3.0))])
    assert [word.text for word in both] == ["to", "[x]"] and both[1].mark and both[1].row == 2.5  # in its line
    pieces, characters, left = text.spread([both], 8)
    tokens = page_tokens(pieces[0])
    ids = [piece for word in ("[x]", "to") for piece, _ in text.cut(word)]
    assert tokens.pieces.tolist() == ids and left == [0] and set(tokens.half_rows.tolist()) == {2}
    assert characters.sum(1).tolist() == [[2.0, 2.0]]  # a mark is no character that was read


def test_a_highlighters_name_is_before_the_first_word_under_it() -> None:
    text = np.array([(40.0, 64.0, 4.0), (80.0, 120.0, 4.0), (10.0, 200.0, 9.0)])
    for x0, before in ((50, 40.0), (100, 80.0), (140, 140.0)):  # in columns
        (word,) = mark_words([("[highlight]", (x0 / CELL_COLUMNS, 3.0, 20.0, 5.0))], text)
        assert word.columns[0] == before - CELL_COLUMNS / 2


def test_bars_and_struck_words_are_not_named() -> None:
    found = [(BAR, (2.0, 8.0, 5.0, 20.0)), ("[struck]", (7.0, 2.0, 12.0, 4.0)), ("[on]", (7.0, 6.0, 9.0, 8.0))]
    assert [word.text for word in mark_words(found, np.zeros((0, 3)))] == ["[on]"]


def test_connected_half_patches_are_the_mark_that_most_of_them_show() -> None:
    logits = torch.zeros(1, len(MARKS) + 1, 16, 16)
    logits[:, 0] = 9
    for number, rows, columns in (
        (1, slice(2, 4), slice(3, 6)),
        (2, slice(4, 5), slice(3, 6)),
        (2, slice(8, 10), slice(0, 2)),
        (3, slice(8, 9), slice(8, 10)),
        (3, slice(8, 9), slice(14, 15)),  # too small
    ):
        logits[0, :, rows, columns] = 0
        logits[0, number, rows, columns] = 9
    logits[0, 1:, 12, 12] = 9  # there is a mark, but which?
    small = ("(o)", (8.0, 8.0, 10.0, 9.0))
    assert found_marks(logits) == [[("[x]", (3.0, 2.0, 6.0, 5.0)), ("[]", (0.0, 8.0, 2.0, 10.0)), small]]
    logits[0, 2, 8, 8:10] = 8  # a small one has to be surer
    assert small not in found_marks(logits)[0]
    assert found_marks(torch.zeros(1, 3, 4, 4)[:, :1]) == [[]]


# ---- drawn pages
def test_drawn_answers_are_balanced(pages: list[TextPage]) -> None:
    answers = defaultdict(Counter)
    for page in pages:
        for question in page.questions:
            if question.kind in marked.KINDS:
                assert question.choices > 1 and question.boxes
                answers[question.kind][question.answers[0]] += 1
    assert set(answers) == set(marked.KINDS)
    for kind in ("is ticked", "switch", "starred", "locked", "signed", "stamped"):
        first, second = answers[kind].values()
        assert 0.55 < first / second < 1.8, kind
    assert set(answers["colour"]) == set(COLOURS) and max(answers["colour"].values()) < 0.3 * answers["colour"].total()


def test_splits_share_no_look() -> None:
    pools = (
        "TICKS",
        "BOXES",
        "DOTS",
        "RADIOS",
        "SWITCHES",
        "STRIKES",
        "PENS",
        "STARS",
        "LOCKS",
        "SIGNATURES",
        "STAMPS",
    )
    for name in (*pools, "BARS", "PALETTES", "SIDES", "STROKES"):
        items = [set(map(str, share(tuple(getattr(marked_sheet, name)), split, name))) for split in SPLITS]
        assert all(items) and not (items[0] & items[1] or items[0] & items[2] or items[1] & items[2])


def test_labels_are_where_marks_are_drawn() -> None:
    seen = Counter[str]()
    for seed in range(30):
        page = draw_page(np.random.default_rng(seed), "train", PAGE)
        picture = np.asarray(page.image).astype(int)
        for name, box in page.marks:
            x0, y0, x1, y1 = (round(at) for at in box)
            inside = picture[y0 : y1 + 1, x0 : x1 + 1].reshape(-1, 3)
            about = picture[max(0, y0 - 4) : y1 + 5, max(0, x0 - 4) : x1 + 5].reshape(-1, 3)
            assert np.ptp(about, 0).max() > 20, name
            if name.strip("[]") in COLOURS:
                red, green, blue = max(inside.tolist(), key=np.ptp)
                hue = colorsys.rgb_to_hls(red / 255, green / 255, blue / 255)[0] * 360
                hues = {colour: abs((hue - own + 180) % 360 - 180) for colour, (own, _) in marked_sheet._HUES.items()}
                assert min(hues, key=hues.__getitem__) == name.strip("[]")
            seen[name] += 1
    assert set(seen) == set(MARKS)


def test_wear_moves_marks_as_it_moves_words() -> None:
    page = draw_page(np.random.default_rng(0), "train", PAGE)
    worn = wear(np.random.default_rng(0), page, kinds=["skewed"])
    assert [name for name, _ in worn.marks] == [name for name, _ in page.marks]
    assert worn.marks != page.marks


# ---- training
def test_undrawn_pages_hold_the_names_of_marks_beside_words(pages: list[TextPage]) -> None:
    cut = Wordpieces(tiny_tokenizer())
    plain, marking = (page_tokens(read_without_pixels(pages[0], 64, cut, marks=marks)) for marks in (False, True))
    assert len(marking.pieces) > len(plain.pieces)
    kept = set(zip(marking.pieces.tolist(), marking.patches.tolist(), strict=True))
    assert set(zip(plain.pieces.tolist(), plain.patches.tolist(), strict=True)) <= kept


def test_targets_cover_marks_and_small_ones_have_the_weight_of_large_ones() -> None:
    marks = [("[x]", (2.1, 2.2, 2.4, 2.3)), (BAR, (5.0, 0.0, 7.0, 8.0)), ("", (0.0, 6.0, 2.0, 8.0))]
    classes, weights = mark_targets(marks, 8)
    assert classes[2, 2] == 1 and (classes[:, 5:7] == MARKS.index(BAR) + 1).all() and (classes[6:, :2] == IGNORED).all()
    assert (classes == 0).sum() == 64 - 1 - 16 - 4 and weights[2, 2] == EVEN and weights[0, 5] == 1


def test_the_head_learns_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arr_coc.training.reader.marking.EVALUATED", 1)
    model = tiny_model(**WITH_MARKS)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    settings: dict[str, Any] = {"steps": 8, "batch_size": 2, "evaluate_every": 8, "warmup": 1, "workers": 0}
    stage = MarksStage(pages={f"generated: {PAGE}": 1.0}, bf16=False, **settings)
    stage.run(Run(model, model.processor), tmp_path)
    changed = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert changed and all("mark_head" in name for name in changed)
    with pytest.raises(ValueError, match="vision_config.marks: expected true"):
        plain = tiny_model(**READS_WORDS)
        stage.task(Run(plain, plain.processor))
