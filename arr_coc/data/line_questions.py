"""Questions about the printed lines of any page: drawn, browser and PDF pages alike.

There are four kinds: *detail* is answered by one place, *two places* by two, *spread* by words all over the page,
*gist* by the page as a whole. The answers follow from the text and the boxes of its characters, so they are right
whatever the page is about. A question that more than one answer could fit is not asked. Where the answer is yes, no or
a count, what is asked is drawn so that no answer is much more frequent: else it could be guessed without the page.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, zip_longest
from random import Random

import numpy as np

from ..modeling.image_processing_arr_coc import Box
from .domains.page import UNKNOWN, Line, Question, TextPage
from .generated.question_writer import DETAIL, GIST, SPREAD, TWO_PLACES, QuestionWriter
from .splits import Split

KINDS = (DETAIL, TWO_PLACES, SPREAD, GIST)
"""The kinds of questions, from the fewest places to the whole page."""

_AMOUNT = re.compile(r"[$€£]?(\d+(\.\d+)?)%?")
_EDGES = "()[]{}.,:;!?'\"*"
_LARGER = 1.3  # times the height of the next largest line
_MARGIN = 1.3  # between a count and the threshold that is asked about, as a factor
_WORD_COUNTS = (10, 20, 40, 80, 160, 320, 640, 1280)
_MOSTLY = 0.65  # share of the words
_MOSTLY_WORDS = 0.05  # share of the pages of words that are asked about, as pages of numbers are rare
_FULL = 0.1  # share of the pages with text in the lower half that are asked about, as others are rare
_BLANK = 0.4  # share of the page's height: text that ends there leaves the lower half blank
_LINE_WORDS = 6  # most words of an answer that is a line
_MOST_OCCURRENCES = 6
_EACH = 3  # most questions of a sort


@dataclass(frozen=True)
class Word:
    """A word of a line: text between spaces.

    Attributes:
        text: as printed.
        box: (x0, y0, x1, y1), px.
        line, place: its line, and its place in the line, from 0.
    """

    text: str
    box: Box
    line: int
    place: int

    @property
    def bare(self) -> str:
        """Without punctuation around it, in lower case."""
        return self.text.strip(_EDGES).casefold()


def words_of(lines: Sequence[Line]) -> list[list[Word]]:
    """The words of each line, in order; lines may have none."""
    found = []
    for number, line in enumerate(lines):
        own: list[Word] = []
        for match in re.finditer(r"[^ ]+", line.text):
            boxes = line.boxes[match.start() : match.end()]
            (x0, y0), (x1, y1) = boxes[:, :2].min(0).tolist(), boxes[:, 2:].max(0).tolist()
            own.append(Word(match[0], (x0, y0, x1, y1), number, len(own)))
        found.append(own)
    return found


class _Asker:
    """Asks about the lines of one page."""

    def __init__(self, random: Random, page: TextPage, split: Split) -> None:
        self.random, self.page, self.writer = random, page, QuestionWriter(random, split)
        self.lines = words_of(page.lines)
        self.words = [word for line in self.lines for word in line]

    def ask(self) -> tuple[Question, ...]:
        """All questions; none of a page with characters that are not known."""
        if self.words and all(UNKNOWN not in line.text for line in self.page.lines):
            for sort in (self._follow, self._higher_up, self._more, self._occurrences, self._numbers, self._whole):
                sort()
        return tuple(self.writer.questions)

    def _add(self, wording: str, answers: str | Sequence[str], shown: Sequence[Word], leads: Sequence[Word],
             kind: str, **names: str) -> None:  # fmt: skip
        boxes, labels = [word.box for word in shown], [word.box for word in leads]
        self.writer.add(self.writer.word(wording, **names), answers, boxes, labels, kind)

    def _drawn(self, pool: Sequence[Word]) -> list[Word]:
        return self.random.sample(pool, min(_EACH, len(pool)))

    # ---- detail, two places ------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """The word behind two words that stand beside each other once on the page."""
        pairs = Counter(
            (first.text.casefold(), second.text.casefold())
            for line in self.lines
            for first, second in zip(line, line[1:], strict=False)
        )
        known = [
            (first, second, answer)
            for line in self.lines
            for first, second, answer in zip(line, line[1:], line[2:], strict=False)
            if pairs[first.text.casefold(), second.text.casefold()] == 1 and '"' not in first.text + second.text
        ]
        drawn = self.random.sample(known, min(2 * _EACH, len(known)))
        for first, second, answer in drawn[:_EACH]:
            self._add("follows", answer.text, [answer], [first, second], DETAIL, label=f"{first.text} {second.text}")
        for one, other in zip(drawn[_EACH::2], drawn[_EACH + 1 :: 2], strict=False):
            answers = tuple(one[2].text + sign + other[2].text for sign in (" and ", ", ", " "))
            names = {name: f"{each[0].text} {each[1].text}" for name, each in (("first", one), ("second", other))}
            self._add("both follow", answers, [one[2], other[2]], [*one[:2], *other[:2]], TWO_PLACES, **names)

    @cached_property
    def _single(self) -> list[Word]:
        """Words of letters that are printed once, also as a part of others."""
        every = " ".join(word.text for word in self.words).casefold()
        return [
            word for word in self.words if len(word.bare) > 3 and word.bare.isalpha() and every.count(word.bare) == 1
        ]

    def _higher_up(self) -> None:
        drawn = self.random.sample(self._single, min(2 * _EACH, len(self._single)))
        for pair in zip(drawn[::2], drawn[1::2], strict=False):
            upper, lower = sorted(pair, key=lambda word: word.box[1])
            if upper.box[3] < lower.box[1]:  # no part of them is at one height
                names = {name: word.text.strip(_EDGES) for name, word in zip(("first", "second"), pair, strict=True)}
                self._add("which is higher up", upper.text.strip(_EDGES), [upper], [lower], TWO_PLACES, **names)

    def _more(self) -> None:
        """Of two lines that each end in a number behind a label, which number is greater?"""
        labelled: dict[str, list[tuple[float, list[Word]]]] = defaultdict(list)
        for line in self.lines:
            number = _AMOUNT.fullmatch(line[-1].text) if len(line) > 1 else None
            label = " ".join(word.text for word in line[:-1]).rstrip(": .")
            if number and not any(character.isdigit() for character in label) and any(map(str.isalpha, label)):
                labelled[label].append((float(number[1]), line))
        once = [(label, *found[0]) for label, found in labelled.items() if len(found) == 1 and '"' not in label]
        pairs = [pair for pair in combinations(once, 2) if pair[0][1] != pair[1][1]]
        for first, second in self.random.sample(pairs, min(_EACH, len(pairs))):
            more = max(first, second, key=lambda each: each[1])
            numbers, labels = [first[2][-1], second[2][-1]], [*first[2][:-1], *second[2][:-1]]
            self._add("which is more", more[0], numbers, labels, TWO_PLACES, first=first[0], second=second[0])

    # ---- spread ------------------------------------------------------------------------------------------------------

    def _occurrences(self) -> None:
        """How often is a word printed? No other word of the page contains it."""
        places = defaultdict[str, list[Word]](list)
        for word in self.words:
            places[word.bare].append(word)
        every = " ".join(places)
        counted = {
            bare: found for bare, found in places.items()
            if len(bare) > 2 and bare.isalpha() and every.count(bare) == 1 and len(found) <= _MOST_OCCURRENCES
        }  # fmt: skip
        several = [bare for bare, found in counted.items() if len(found) > 1]
        by_count = defaultdict[int, list[str]](list)
        for bare in several:
            by_count[len(counted[bare])].append(bare)
        counts = [1, *by_count] if self._single else [*by_count]
        for count in self.random.sample(counts, min(2, len(counts))):
            bare = self.random.choice(by_count[count] if count > 1 else [word.bare for word in self._single])
            self._add("how often", str(len(counted[bare])), counted[bare], [], SPREAD, label=bare)
        pairs = [(one, other) for one in several for other in counted if len(counted[one]) > len(counted[other])]
        if pairs:
            more, less = self.random.choice(pairs)
            first, second = self.random.sample((more, less), 2)
            shown = [*counted[more], *counted[less]]
            self._add("which more often", more, shown, [], SPREAD, first=first, second=second)

    def _numbers(self) -> None:
        """The highest number, and whether any is above another: where all words with digits are plain numbers."""
        digits = [word for word in self.words if any(map(str.isdigit, word.text))]
        plain = [(_AMOUNT.fullmatch(word.text.strip(_EDGES)), word) for word in digits]
        found = [(float(match[1]), word) for match, word in plain if match is not None]
        if len(found) < max(3, len(digits)):
            return
        highest = max(value for value, _ in found)
        best = [word for value, word in found if value == highest]
        if len(best) == 1:
            text = best[0].text.strip(_EDGES)
            self._add("highest number", (text, text.strip("$€£%")), best, [], SPREAD)
        threshold = highest * self.random.choice((0.5, 0.8, 1.25, 2.0))  # equally often below and above
        if threshold >= 1:
            above = [word for value, word in found if value > round(threshold)]
            answer = "yes" if above else "no"
            self._add("any above", answer, above, [], SPREAD, value=str(round(threshold)))

    # ---- gist --------------------------------------------------------------------------------------------------------

    def _whole(self) -> None:
        heights = [float(np.median(line.boxes[:, 3] - line.boxes[:, 1])) for line in self.page.lines]
        order = sorted(range(len(heights)), key=lambda number: -heights[number])
        largest = self.lines[order[0]]
        if len(order) > 1 and heights[order[0]] > _LARGER * heights[order[1]] and len(largest) <= _LINE_WORDS:
            self._add("largest", self.page.lines[order[0]].text.strip(), largest, [], GIST)
        lowest, tall = max(word.box[3] for word in self.words), self.page.size[1]
        if lowest < _BLANK * tall or (lowest > (1 - _BLANK) * tall and self.random.random() < _FULL):
            self._add("lower half", "yes" if lowest > tall / 2 else "no", [], [], GIST)
        count = len(self.words)
        below = [each for each in _WORD_COUNTS if count > _MARGIN * each]
        above = [each for each in _WORD_COUNTS if _MARGIN * count < each]
        if below and above:
            threshold = self.random.choice((below[-1], above[0]))
            self._add("many words", "yes" if count > threshold else "no", [], [], GIST, count=str(threshold))
        numbers = sum(any(map(str.isdigit, word.text)) for word in self.words) / count
        if numbers > _MOSTLY or (1 - numbers > _MOSTLY and self.random.random() < _MOSTLY_WORDS):
            self._add("words or numbers", "numbers" if numbers > 0.5 else "words", [], [], GIST)


def line_questions(random: Random, page: TextPage, split: Split) -> tuple[Question, ...]:
    """Questions of the four `KINDS` about a page's lines, as many as it allows.

    Args:
        random: the only source of randomness.
        page: with text.
        split: of the wordings.

    Raises:
        ValueError: an unknown split.
    """
    return _Asker(random, page, split).ask()


def by_kind(random: Random, page: TextPage, split: Split) -> tuple[Question, ...]:
    """The page's own questions of the four `KINDS` and its `line_questions`, in random order, the kinds in turn.

    Arguments and errors are those of `line_questions`; a page that allows no such question keeps its own ones.
    """
    asked = [question for question in page.questions if question.kind in KINDS]
    asked += line_questions(random, page, split)
    random.shuffle(asked)
    own = {kind: [question for question in asked if question.kind == kind] for kind in KINDS}
    turns = zip_longest(*(own[kind] for kind in random.sample(KINDS, len(KINDS))))
    return tuple(question for turn in turns for question in turn if question is not None) or page.questions
