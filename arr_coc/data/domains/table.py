"""Domain `table`: numbers by row and column name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..questions import Wordings
from ..splits import Split
from ..values import pick
from .canvas import Canvas, least_pixels
from .page import Asker, Layouts, Page, Question, Span, interleave, register
from .rows import Align, Row, Ruling, draw_rows, plan_rows, rule_rows
from .words import DAYS, DEPARTMENTS, MEASURES, MONTHS, PRODUCTS, QUARTERS, REGIONS, SIZES, sample_words


@dataclass(frozen=True)
class Layout:
    """The lines of a table, how its numbers are aligned, and where its title stands."""

    ruling: Ruling
    numbers: Align = "right"
    title: Align = "left"


LAYOUTS = Layouts(
    train={
        "plain": Layout(Ruling()),
        "plain_centred": Layout(Ruling(), "centre", "centre"),
        "header": Layout(Ruling(header=True)),
        "header_centred": Layout(Ruling(header=True), "centre", "centre"),
        "rows": Layout(Ruling(rows=True)),
        "full": Layout(Ruling(frame=True, rows=True, columns=True), "centre", "centre"),
        "zebra": Layout(Ruling(zebra=True)),
        "columns": Layout(Ruling(columns=True), "left"),
    },
    test={
        "frame": Layout(Ruling(frame=True), "right", "centre"),
        "header_columns": Layout(Ruling(header=True, columns=True)),
        "zebra_header": Layout(Ruling(zebra=True, header=True), "centre"),
        "full_left": Layout(Ruling(frame=True, rows=True, columns=True), "left"),
        "rows_centred": Layout(Ruling(rows=True), "centre", "centre"),
    },
)

WORDINGS: dict[str, Wordings] = {
    "cell": Wordings(
        (
            "What is the {column} value of {row}?", "What is {column} for {row}?", "Give the {column} value of {row}.",
            "What does the table show for {row} and {column}?", "Find {column} of {row}.",
        ),
        ("What is the value of {row} for {column}?", "Find the {column} value of {row}.", "What is {column} of {row}?"),
    ),
    "row_of_value": Wordings(
        ("Which {noun} has {value} in {column}?", "What {noun} has the {column} value {value}?"),
        ("Which {noun} has the {column} value {value}?", "Find the {noun} that has {value} in {column}."),
    ),
    "cell_of_value": Wordings(
        (
            "What is the {other} value of the {noun} with {value} in {column}?",
            "Find {other} for the {noun} that has {value} in {column}.",
        ),
        ("Find the {other} value of the {noun} with {value} in {column}.",),
    ),
    "highest": Wordings(
        ("Which {noun} has the highest {column} value?", "What {noun} is highest in {column}?"),
        ("Which {noun} is highest in {column}?",),
    ),
}  # fmt: skip

_ROWS = (("region", REGIONS), ("department", DEPARTMENTS), ("product", PRODUCTS))
_COLUMNS = (MONTHS, QUARTERS, SIZES, MEASURES, DAYS)
_MIN_ROWS, _MAX_ROWS = 3, 14
_MAX_COLUMNS = {256: 4, 512: 6}  # of numbers, from this page size on
_ROW_HEIGHT = 1.5  # of a page full of rows, in font sizes
_TITLES = ("{noun} report", "By {noun}", "{noun} summary", "Values by {noun}", "Annual {noun} data")


def _most(size: int) -> int:
    return max((count for least, count in _MAX_COLUMNS.items() if size >= least), default=3)


def _sample_numbers(rng: np.random.Generator, rows: int, columns: int) -> list[list[str]]:
    """Numbers of one form: 1 to 4 digits, or with one decimal."""
    digits = int(rng.integers(2, 5))
    numbers = rng.integers(10 ** (digits - 2), 10**digits, (rows, columns))
    if rng.random() < 0.25:
        return [[f"{number / 10:.1f}" for number in row] for row in numbers.tolist()]
    return [[str(number) for number in row] for row in numbers.tolist()]


def _sample_rows(rng: np.random.Generator, size: int, split: Split, layout: Layout) -> tuple[list[Row], str]:
    """A title (or none), the header and the body; and what the rows are."""
    noun, pool = _ROWS[int(rng.integers(len(_ROWS)))]
    most = min(_MAX_ROWS, int(size / (_ROW_HEIGHT * least_pixels(size))) - 3)
    names = sample_words(rng, pool, int(rng.integers(_MIN_ROWS, max(_MIN_ROWS, most) + 1)), split)
    columns = _COLUMNS[int(rng.integers(len(_COLUMNS)))]
    count = min(len(columns), int(rng.integers(2, _most(size) + 1)))
    first = int(rng.integers(len(columns) - count + 1))
    header = columns[first : first + count]
    corner = noun.capitalize() if rng.random() < 0.7 else ""
    rows: list[Row] = []
    if rng.random() < 0.6:
        title = pick(rng, _TITLES).format(noun=noun)
        rows.append(Row((title[0].upper() + title[1:],), ("heading",), layout.title))
    rows.append(Row.of((corner, *header), "label", "label"))
    numbers = _sample_numbers(rng, len(names), count)
    rows += [Row.of((name, *line), "label", "value") for name, line in zip(names, numbers, strict=True)]
    return rows, noun


@register("table", LAYOUTS, WORDINGS)
def draw_table(rng: np.random.Generator, size: int, split: Split) -> Page:
    """A table of 3 to 14 rows and 2 to 6 columns of numbers, fewer on small pages."""
    canvas = Canvas(rng, size, split)
    while True:
        name, layout = LAYOUTS.draw(rng, split)
        rows, noun = _sample_rows(rng, size, split, layout)
        aligns: list[Align] = ["left", *[layout.numbers] * (len(rows[-1].texts) - 1)]
        plan = plan_rows(rng, rows, aligns, canvas.styles, size, ruled=layout.ruling.ruled)
        if plan is not None:
            break
    start = int(rows[0].span is not None)
    rule_rows(canvas, layout.ruling, rows, plan, start, len(rows))
    spans = draw_rows(canvas, rows, plan)[start:]
    image = canvas.finish()
    header = [span for span in spans[0][1:] if span is not None]
    body = [[span for span in row if span is not None] for row in spans[1:]]
    questions = _questions(Asker(WORDINGS, rng, split), noun, header, body)
    return Page(image, interleave(rng, questions), name, canvas.font, tuple(canvas.glyphs))


def _questions(ask: Asker, noun: str, header: list[Span], body: list[list[Span]]) -> Iterator[Question]:
    """Look-ups of cells and rows; `body` holds a row's name, then its numbers."""
    for column, head in enumerate(header, 1):
        counts = Counter(row[column].text for row in body)
        for row in body:
            cell = row[column]
            yield ask("cell", cell, [row[0], head], row=row[0].text, column=head.text)
            if counts[cell.text] > 1:
                continue
            names = {"noun": noun, "column": head.text, "value": cell.text}
            yield ask("row_of_value", row[0], [cell, head], **names)
            other = 1 + column % len(header)  # the next column
            path = [cell, head, header[other - 1]]
            yield ask("cell_of_value", row[other], path, 2, other=header[other - 1].text, **names)
        ranked = sorted((row[column].text for row in body), key=float, reverse=True)
        if ranked[0] != ranked[1]:
            best = next(row for row in body if row[column].text == ranked[0])
            yield ask("highest", best[0], [head, *(row[column] for row in body)], noun=noun, column=head.text)
