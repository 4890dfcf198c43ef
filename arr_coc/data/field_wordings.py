"""Wordings of questions about the fields of real pages: by what a field means, and by its label.

A concept has labels (in normal form) under which pages print it, names that a question may call it by, and questions
of its own, with what it means in words that no label has. Names, questions and the wordings around names
(`question_writer.WORDINGS`) are divided into train, validation and test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

from ..pages.question_writer import WORDINGS, QuestionWriter, spoken
from ..pages.splits import Split, listed, pairs, share
from .field_mining import normal

_KINDS = frozenset(listed("kinds of concepts with wordings"))
"""Kinds of concepts that `QuestionWriter.named` has wordings for."""
_LONG_FORMS = pairs("long forms of labels")
PRICE = "price"  # the concept of fields whose label is an item that was bought
OWN, CORE = 0.45, 3
"""Share of a concept's own questions, and before them of those that drawn receipts are asked; names and questions that
are always for training."""


@dataclass(frozen=True)
class Concept:
    """What a field means: the pages that have it, its kind, the labels it is printed under, names for it, and questions
    of its own."""

    name: str
    pages: str
    kind: str
    labels: tuple[str, ...]
    names: tuple[str, ...]
    questions: tuple[str, ...]

    def own(self, what: str, split: Split) -> tuple[str, ...]:
        """A split's `names` or `questions`."""
        texts: tuple[str, ...] = getattr(self, what)
        return share(texts, split, f"{what}: {self.name}", min(CORE, len(texts) - 3))


def _items(text: str, sign: str = ";") -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(sign) if item.strip())


@lru_cache(maxsize=1)
def concepts() -> dict[str, Concept]:
    """All concepts by name."""
    bank, pages = {}, ""
    for line in (Path(__file__).parent / "field_bank.txt").read_text(encoding="utf-8").strip().splitlines():
        if not line.startswith(" "):
            pages = line.rstrip(":")
            continue
        name, kind, *labels, names, questions = line.strip().split(": ")
        printed = _items(labels[0], ",") if labels else ()
        bank[name] = Concept(name, pages, kind, printed, _items(names), _items(questions))
    return bank


def concept_of(label: str, pages: str) -> Concept | None:
    """The concept that is printed under a label on pages such as "receipts"."""
    return next((each for each in concepts().values() if each.pages == pages and normal(label) in each.labels), None)


def long_form(label: str) -> str:
    """A label as one would say it: "INV NO" -> "invoice number"."""
    words = re.sub(r"#", " # ", label.replace("(es)", "").strip(" :.,-")).split()
    plain = " ".join(_LONG_FORMS.get(word.lower().rstrip("."), word) for word in words)
    return spoken(plain)


class FieldAsker:
    """Asks for fields of real pages in the wordings of a split."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split, self.writer = random, split, QuestionWriter(random, split)

    def question(self, label: str, concept: str = "", part: str = "") -> str:
        """A question for a field.

        Args:
            label: as printed; empty if the page prints none.
            concept: its concept's name, if known.
            part: "start" or "end" of a range of dates.
        """
        known = concepts().get(concept)
        if concept == PRICE:
            return self.writer.word("price", item=label.lower(), itemlabel=label)
        if part:
            return self._span(label, known, part)
        if known is None:
            return self.writer.named(long_form(label), "", label)
        drawn = f"ask {concept.removeprefix('receipt ')}"  # what drawn receipts are asked
        if known.pages == "receipts" and drawn in WORDINGS and self.random.random() < OWN:
            return self.writer.word(drawn)
        if self.random.random() < OWN:
            return self.random.choice(known.own("questions", self.split))
        named = label and self.random.random() < 0.45
        name = long_form(label) if named else self.random.choice(known.own("names", self.split))
        return self.writer.named(name, known.kind if known.kind in _KINDS else "", label if named else "")

    def _span(self, label: str, concept: Concept | None, part: str) -> str:
        names, questions = listed(f"names of span {part}"), listed(f"questions for span {part}")
        own = concept.own("names", self.split) if concept and self.random.random() < 0.6 else ()
        name = self.random.choice(own) if own else long_form(label)
        name = re.sub(r"(^dates of the | dates?$|^dates? )", "", name).strip() or "period"
        if self.random.random() < 0.6:
            return self.random.choice(share(questions, self.split, f"{part} questions", CORE)).format(name=name)
        told = self.random.choice(share(names, self.split, f"{part} names", 1)).format(name=name)
        return self.writer.named(told, "date")
