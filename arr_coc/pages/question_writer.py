"""Questions about a page, in natural wordings, with the boxes of their answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from ..modeling.image_processing_arr_coc import Box
from .page import ABSENT, Question
from .sheet import Piece, Pieces, joined
from .splits import Split, items_of, listed, pairs, share

DETAIL, SPREAD, TWO_PLACES, GIST, TICK = "detail", "spread", "two places", "gist", "tick"
"""Kinds of questions: the answer is printed in its boxes; needs a comparison; is printed in two places; is about the
whole page; is whether a box is ticked. `ABSENT`: the answer is not on the page."""

NOT_THERE = "not on the page"


Boxes = Sequence[Box]

_CORE = 4  # wordings of each pool that stay in training
WORDINGS: dict[str, tuple[str, ...]] = items_of("wordings.txt")  # wordings by kind of question
_OWN = pairs("wordings of values")  # wordings of kinds of values, in addition to those of any value
_PHRASE = re.compile(
    r"( (on|by|to|from|at|in|via|until|since|with|for)|^(in charge|from|to|for|about|cc|re|born|dated|admitted|"
    r"discharged|departs|arrives|expires|signed|printed|received|tendered|due|prepaid|unpaid|issued|each|call|dial|"
    r"received by))$"
)
_ANYTHING, _NOTHING = re.compile(""), re.compile("(?!)")
_FITS = {  # names with special wordings
    "count": re.compile(r"s$"),
    "date": re.compile(
        r"date|birth|day|start|end\b|loss|issue|expiry|renewal|delivery|appointment|due|discharge|admission|graduation"
    ),
}
_UNFIT = {  # names for which they are unnatural
    "date": re.compile("^date$|days"),
    "count": re.compile(r"\bof\b|number|class|no\."),
    "person": re.compile(r"name|signature|phone"),
    "company": re.compile("name"),
    "place": re.compile("place|city|town|location|port|district|venue|from|to$"),
    "time": re.compile("time|hour"),
    "percent": re.compile("percent"),
}


def is_phrase(name: str) -> bool:
    """Whether a field's name is not a noun, such as "Ship to"."""
    return _PHRASE.search(spoken(name)) is not None


def spoken(name: str) -> str:
    """A field's name within a sentence: in lower case, except abbreviations."""
    words = name.rstrip(":").split(" ")
    known = listed("abbreviation")
    return " ".join(word if word.strip("().:#").upper() in known and word.isupper() else word.lower() for word in words)


def boxes_of(pieces: Piece | Pieces) -> tuple[Box, ...]:
    """The boxes of the pieces."""
    return (pieces.box,) if isinstance(pieces, Piece) else tuple(piece.box for piece in pieces)


class QuestionWriter:
    """Collects questions about one page, in the wordings of a split."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split = random, split
        self.questions: list[Question] = []
        self.quotes = False  # whether names are quoted as printed, as in other languages

    def word(self, kind: str, **names: str) -> str:
        """A filled wording of a kind of `WORDINGS`, sometimes with careless spelling."""
        template = self.random.choice(share(WORDINGS[kind], self.split, kind, min(_CORE, len(WORDINGS[kind]) - 4)))
        text = template.format(**names)
        text = re.sub(r"\b([Tt]he) (the|your|our) ", r"\1 ", text).replace("..", ".")
        text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
        if template[0] == "{" and self.random.random() < 0.25:
            text = text[0].upper() + text[1:]
        draw = self.random.random()
        if draw < 0.05:
            text = text.rstrip("?.")
        elif draw < 0.1 and template[0] != "{":
            text = text[0].lower() + text[1:]
        return text

    def add(
        self,
        text: str,
        answers: str | Sequence[str],
        boxes: Boxes = (),
        labels: Boxes = (),
        kind: str = DETAIL,
        choices: int = 0,
    ) -> None:
        """Adds a question, unless it exists."""
        told = (answers,) if isinstance(answers, str) else tuple(answers)
        if all(text.casefold() != other.text.casefold() for other in self.questions):
            self.questions.append(Question(text, told, tuple(boxes), tuple(labels), kind, choices=choices))

    def named(self, name: str, kind: str, label: str = "") -> str:
        """A question for the value of a name; `kind` is its kind of `values.KINDS`. `name`: name of the field, as in
        `fields`. `label`: the name as printed on the page."""
        said, own = spoken(name), _OWN.get(kind)
        if self.quotes or _PHRASE.search(said):
            return self.word("quoted", label=(label or name).rstrip(": "))
        fits = own is not None and _FITS.get(own, _ANYTHING).search(said) and not _UNFIT.get(own, _NOTHING).search(said)
        which = own if own and fits and self.random.random() < 0.5 else "any"
        return self.word(which, name=said, Name=said[0].upper() + said[1:], label=(label or name).rstrip(": "))

    def value(self, names: Sequence[str], kind: str, label: Pieces, value: Pieces) -> None:
        """Asks for the value of a label, by the label or by another of its names."""
        printed = joined(label).rstrip(": ")
        other = len(names) > 1 and self.random.random() < 0.3
        name = self.random.choice(names[1:]) if other else names[0]
        self.add(self.named(name, kind, "" if other else printed), joined(value), boxes_of(value), boxes_of(label))

    def beside(self, where: str, label: Piece, value: Pieces) -> None:
        """Asks for the text `right` of, `under` or `above` a label."""
        text = self.word(where, label=label.text.rstrip(": "))
        self.add(text, joined(value), boxes_of(value), boxes_of([label]))

    def inverse(self, label: Piece, value: Pieces) -> None:
        """Asks for the label of a value."""
        name = label.text.rstrip(": ")
        text = self.word("inverse", label=joined(value))
        self.add(text, name, [label.part(name).box], boxes_of(value))

    def ask(
        self, wording: str, answer: Piece | Pieces, labels: Piece | Pieces = (), kind: str = DETAIL, **names: str
    ) -> None:
        """Asks in a wording for what is printed in some pieces."""
        self.add(self.word(wording, **names), joined(answer), boxes_of(answer), boxes_of(labels), kind)

    def lack(self, wording: str, **names: str) -> None:
        """Asks in a wording for something that is absent."""
        self.absent(self.word(wording, **names))

    def absent(self, text: str) -> None:
        """Adds a question about an absent thing."""
        self.add(text, NOT_THERE, kind=ABSENT)

    def both(self, first: tuple[str, Pieces, Pieces], second: tuple[str, Pieces, Pieces]) -> None:
        """Asks for two values at once: each with its name, label and value."""
        (one, label, value), (two, other_label, other) = first, second
        one, two = (f'"{name}"' if self.quotes else spoken(name) for name in (one, two))
        text = self.word("both", first=one, second=two, First=one[0].upper() + one[1:])
        answers = tuple(joined(value) + sign + joined(other) for sign in (" and ", ", ", " "))
        self.add(text, answers, boxes_of([*value, *other]), boxes_of([*label, *other_label]), TWO_PLACES)

    def gist(self, kind: str, answers: str | Sequence[str], pieces: Pieces = (), **names: str) -> None:
        """A question about the page as a whole; one that asks to count, which is kind `SPREAD`, has such a `kind`."""
        spread = kind.startswith("how many")
        self.add(self.word(kind, **names), answers, boxes_of(pieces), kind=SPREAD if spread else GIST)

    def ordered(self, count: int, absent: float) -> tuple[Question, ...]:
        """At most `count` questions in random order, of which about a share of `absent` is about absent things."""
        missing = [question for question in self.questions if question.absent]
        there = [question for question in self.questions if not question.absent]
        self.random.shuffle(there)
        self.random.shuffle(missing)
        wanted = count * absent
        several = min(int(wanted) + (self.random.random() < wanted % 1), len(missing))
        chosen = [*there[: count - several], *missing[:several]]
        self.random.shuffle(chosen)
        return tuple(chosen)
