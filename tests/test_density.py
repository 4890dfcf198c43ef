"""Pages of a wanted density: as many characters as are wanted, in print that fills the page."""

import json
from pathlib import Path

import numpy as np
import pytest

from arr_coc.cli import main
from arr_coc.data import SPLITS, box_targets
from arr_coc.data.domains import DOMAINS, Page, draw_page
from arr_coc.data.domains.density import LARGEST, SMALLEST, densities, print_size, render_density, room, shown
from arr_coc.data.formats.own import Rendered
from arr_coc.data.glyphs import flow
from arr_coc.data.mixture import Mixture, sketch_document

SIZE = 192


# ---- runs in lines ------------------------------------------------------------------------------------------------


def test_runs_stand_in_reading_order_on_lines_that_they_do_not_leave() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        widths = rng.uniform(10, 60, int(rng.integers(1, 20))).tolist()
        places = flow(rng, widths, width=120.0, rows=14, gap=8.0)
        assert places is not None and [row for row, _ in places] == sorted(row for row, _ in places)
        assert places[-1][0] < 14
        for ((row, x), run), ((next_row, next_x), _) in zip(
            zip(places, widths, strict=True), [*zip(places, widths, strict=True)][1:], strict=False
        ):
            assert next_row > row or next_x >= x + run + 8 - 1e-9
        assert all(x >= 0 and x + run <= 120 + 1e-9 for (_, x), run in zip(places, widths, strict=True))


def test_runs_that_do_not_fit_are_told() -> None:
    rng = np.random.default_rng(0)
    assert flow(rng, [50.0] * 5, width=100.0, rows=2, gap=0.0) is None  # five runs, room for four
    assert flow(rng, [50.0] * 4, width=100.0, rows=2, gap=0.0) is not None
    assert flow(rng, [101.0], width=100.0, rows=9, gap=0.0) is None


# ---- pages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_a_page_has_as_many_characters_as_are_wanted_in_print_that_fills_it(split: str) -> None:
    for number, characters in enumerate(densities(SIZE)):
        document = render_density(np.random.default_rng(number), size=SIZE, split=split, characters=characters)  # type: ignore[arg-type]
        assert abs(len(document.glyphs) - characters) <= 12  # half of the longest entry
        heights = {round(glyph.box[3] - glyph.box[1], 3) for glyph in document.glyphs}
        font = print_size(SIZE, characters)
        assert len(heights) <= 2 and 0.5 * font < max(heights) < font  # of capitals, in labels and values
        assert all(0 <= x0 < x1 <= SIZE and 0 <= y0 < y1 <= SIZE for x0, y0, x1, y1 in _boxes(document.entries))


def _boxes(entries: tuple) -> list:
    return [box for entry in entries for box in (entry.label_box, entry.value_box)]


def test_density_changes_how_much_is_shown_and_not_what() -> None:
    """The same random numbers show the same fields and values in the same font, fewer or more of them."""
    few, many = (render_density(np.random.default_rng(3), size=SIZE, characters=count) for count in (50, 350))
    said = [[(entry.field, entry.value) for entry in document.entries] for document in (few, many)]
    assert 1 < len(said[0]) < len(said[1]) and said[1][: len(said[0])] == said[0]
    assert few.font == many.font


def test_larger_pages_hold_more_and_the_fields_set_the_limit() -> None:
    assert densities(SIZE) == (50, 100, 150, 200, 250, 300, 350)
    assert densities(96)[-1] < densities(128)[-1] < 350 < densities(256)[-1] == densities(1024)[-1] == 400
    assert room(SIZE, SMALLEST) == (186.0, 16) and room(SIZE, LARGEST) == (186.0, 8)
    assert [shown(["aaa", "b b", "cccc"], wanted) for wanted in (1, 5, 6, 100)] == [1, 2, 2, 3]


def test_print_is_the_smaller_the_more_is_said() -> None:
    sizes = [print_size(SIZE, characters) for characters in densities(SIZE)]
    assert sizes == sorted(sizes, reverse=True) and (sizes[0], sizes[-1]) == (LARGEST, SMALLEST)


def test_no_entry_is_too_long_for_the_largest_print() -> None:
    """Dense pages would else show longer entries than sparse ones, whose lines cannot hold them."""
    lengths = []
    for characters in (50, 350):
        rendered = (render_density(np.random.default_rng(s), size=SIZE, characters=characters) for s in range(40))
        lengths.append([len(entry.label + entry.value) for document in rendered for entry in document.entries])
    sparse, dense = (np.mean(each) for each in lengths)
    assert abs(sparse - dense) < 0.8 and max(lengths[1]) <= 26


def test_other_densities_are_refused() -> None:
    with pytest.raises(ValueError, match=r"characters: expected one of 50, 100, .*, 350 on 192 px; got 60"):
        render_density(np.random.default_rng(0), size=SIZE, characters=60)


def test_the_answer_stands_in_its_box() -> None:
    for number in range(3):
        page = draw_page("density", 0, number, SIZE, "train")
        for question in page.questions:
            (x0, y0, x1, y1), (answer,) = question.boxes[0], question.answers
            centres = sorted(((g.box[0] + g.box[2]) / 2, (g.box[1] + g.box[3]) / 2, g.char) for g in page.glyphs)
            inside = [char for x, y, char in centres if x0 - 1 <= x <= x1 + 1 and y0 - 1 <= y <= y1 + 1]
            assert "".join(inside) == answer.replace(" ", "")


def test_questions_ask_for_every_field_and_the_tag_says_how_full_the_page_is() -> None:
    pages: list[Page] = [draw_page("density", 0, number, SIZE, "test") for number in range(12)]
    assert [page.image.tobytes() for page in pages[:2]] == [
        draw_page("density", 0, number, SIZE, "test").image.tobytes() for number in range(2)
    ]
    for page in pages:
        ((name, characters),) = page.tags
        assert name == "density" and abs(len(page.glyphs) - int(characters)) <= 12
        assert len({question.text for question in page.questions}) == len(page.questions)
        assert len(page.questions) >= int(characters) / 20
    assert len({page.tags for page in pages}) > 3 and set(DOMAINS["density"].layouts.test) == {"flow"}


def test_records_and_files_carry_the_tag(tmp_path: Path) -> None:
    source = Rendered(pages=3, questions=2, size=SIZE, split="test", domains=("density",))
    tags = [dict(record.tags)["density"] for record in source.read()]
    assert tags[0] == tags[1] and set(tags) <= {str(level) for level in densities(SIZE)}
    asked = ["--pages", "3", "--questions", "2", "--seed", "0", "--size", str(SIZE), "--domain", "density"]
    assert main(["render", str(tmp_path), *asked]) == 0
    lines = (tmp_path / "data.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["density"] for line in lines] == tags


def test_mixtures_draw_them() -> None:
    document = Mixture({"density": 1.0}).draw(np.random.default_rng(0), size=SIZE, split="train")
    assert document.layout == "flow" and document.entries


# ---- sketches -----------------------------------------------------------------------------------------------------


def test_a_sketch_says_where_every_character_of_its_entries_stands() -> None:
    for seed in range(4):
        entries, glyphs = sketch_document(np.random.default_rng(seed), size=SIZE)
        for entry in entries:
            x0, y0, x1, y1 = entry.value_box
            centres = [((g.box[0] + g.box[2]) / 2, (g.box[1] + g.box[3]) / 2, g.char) for g in glyphs]
            inside = [char for x, y, char in centres if x0 < x < x1 and y0 < y < y1]
            assert "".join(inside) == entry.value.replace(" ", "")
            assert box_targets([entry.value_box], size=SIZE, grid=24).any()
