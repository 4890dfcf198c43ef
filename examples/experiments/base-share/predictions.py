"""Stored predictions: a table with a row for each question, and a column for what each training says about it.

Columns are page, source, kind, question and answers, then `ARM-SEED`; `ARM-SEED swapped` is with another page's base
tokens, and `ARM-SEED split` is the split that an arm chose, where it chooses one.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from arr_coc.files import sole_writer

QUESTION = ("page", "source", "kind", "question", "answers")
SEVERAL = " | "
"""Between the answers of a question."""
END = "<|im_end|>"
CUT = " …"
"""Behind an answer that stops at its first wrong token."""
Row = dict[str, str]


class Column(NamedTuple):
    """What a column holds: `what` is empty, "swapped" or "split"."""

    arm: str
    seed: str
    what: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (f"{self.arm}-{self.seed}", self.what)))

    @classmethod
    def of(cls, name: str) -> "Column":
        training, _, what = name.partition(" ")
        return cls(*training.rsplit("-", 1), what)


def said(text: str) -> str:
    """An answer as it is stored, from a text with the token that ends it."""
    return " ".join(text.removesuffix(END).split()) + ("" if text.endswith(END) else CUT)


def is_right(stored: str, answers: Sequence[str]) -> bool:
    """Whether a stored answer is one of `answers`; case and white space are ignored."""
    return stored.casefold() in {" ".join(answer.casefold().split()) for answer in answers}


def read(path: Path) -> list[Row]:
    """The rows of a table; none where there is none."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def columns(rows: Sequence[Row]) -> list[Column]:
    """The columns of answers, in their order."""
    return [Column.of(name) for name in (rows[0] if rows else {}) if name not in QUESTION]


def check_questions(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Raises ValueError where there is a table with other questions than those of `rows`."""
    asked, known = ({tuple(row[name] for name in QUESTION) for row in each} for each in (rows, read(path)))
    if known and asked != known:
        raise ValueError(f"{path}: expected answers to its {len(known)} questions; got those to {len(asked)} others")


def add(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Adds columns to a table, or makes it; other processes may add others meanwhile.

    Raises:
        ValueError: the table has other questions.
    """
    with sole_writer(path, patience=60):
        check_questions(path, rows)
        before = read(path) or [{name: row[name] for name in QUESTION} for row in rows]
        added = {tuple(row[name] for name in QUESTION): row for row in rows}
        asked = [tuple(row[name] for name in QUESTION) for row in before]
        with path.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, list(dict.fromkeys((*before[0], *rows[0]))), lineterminator="\n")
            writer.writeheader()
            writer.writerows([{**row, **added[question]} for row, question in zip(before, asked, strict=True)])
