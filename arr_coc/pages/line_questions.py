"""Questions about the printed lines of any page: drawn, browser and PDF pages alike.

There are four kinds: *detail* is answered by one place, *two places* by two, *spread* by words all over the page,
*gist* by the page as a whole. The answers follow from the text and the boxes of its characters, so they are right
whatever the page is about. A question that more than one answer could fit is not asked. But for words behind two others
a page gets at most one question of each sort, so that none prevails. Most answers are words, places or counts: yes and
no would be guessed too easily.
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
from .page import UNKNOWN, Line, Question, TextPage
from .question_writer import DETAIL, GIST, SPREAD, TWO_PLACES, QuestionWriter
from .splits import Split

KINDS = (DETAIL, TWO_PLACES, SPREAD, GIST)  # the kinds of questions, from the fewest places to the whole page
_AMOUNT = re.compile(r"[$€£]?(\d+(\.\d+)?)%?")
_EDGES = "()[]{}.,:;!?'\"*"
_LARGER = 1.3  # times the height of the next largest line
_MARGIN = 1.3  # between the quarter with the most or fewest words and the next, as a factor
_NEAR = 8  # words from the multiple of 20 that is the answer, at most
_QUARTERS = ("top left", "top right", "bottom left", "bottom right")
_LONG_LINE = 5  # words
_LONG_WORD = 5  # letters
_MOSTLY = 0.65  # share of the words
_MOSTLY_WORDS = 0.05  # share of the pages of words that are asked about, as pages of numbers are rare
_CHOICES = 0.4  # share of the pages that are asked which of two words; half of such answers can be guessed
_LINE_WORDS = 6  # most words of an answer that is a line
_MOST_OCCURRENCES = 6
_EACH = 3  # most questions about the word behind two others


@dataclass(frozen=True)
class PrintedWord:
    """A word of a line, text between spaces: its box, px, its line, and its place in the line, from 0."""

    text: str
    box: Box
    line: int
    place: int

    @property
    def bare(self) -> str:
        """Without punctuation around it, in lower case."""
        return self.text.strip(_EDGES).casefold()


Printed = Sequence[PrintedWord]


def words_of(lines: Sequence[Line]) -> list[list[PrintedWord]]:
    """The words of each line, in order; lines may have none."""
    found = []
    for number, line in enumerate(lines):
        own: list[PrintedWord] = []
        for match in re.finditer(r"[^ ]+", line.text):
            boxes = line.boxes[match.start() : match.end()]
            (x0, y0), (x1, y1) = boxes[:, :2].min(0).tolist(), boxes[:, 2:].max(0).tolist()
            own.append(PrintedWord(match[0], (x0, y0, x1, y1), number, len(own)))
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
            two_places = (self._higher_up, self._line_end, self._second_time, self._more)
            for sort in (self._follow, *two_places, self._occurrences, self._numbers, self._whole):
                sort()
        return tuple(self.writer.questions)

    def _add(
        self, wording: str, answers: str | Sequence[str], shown: Printed, leads: Printed, kind: str, **names: str
    ) -> None:
        boxes, labels = [word.box for word in shown], [word.box for word in leads]
        self.writer.add(self.writer.word(wording, **names), answers, boxes, labels, kind)

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
        drawn = self.random.sample(known, min(_EACH + 2, len(known)))
        for first, second, answer in drawn[:_EACH]:
            self._add("follows", answer.text, [answer], [first, second], DETAIL, label=f"{first.text} {second.text}")
        for one, other in zip(drawn[_EACH::2], drawn[_EACH + 1 :: 2], strict=False):
            answers = tuple(one[2].text + sign + other[2].text for sign in (" and ", ", ", " "))
            names = {name: f"{each[0].text} {each[1].text}" for name, each in (("first", one), ("second", other))}
            self._add("both follow", answers, [one[2], other[2]], [*one[:2], *other[:2]], TWO_PLACES, **names)

    @cached_property
    def _single(self) -> list[PrintedWord]:
        """Words of letters that are printed once, also as a part of others."""
        every = " ".join(word.text for word in self.words).casefold()
        return [
            word for word in self.words if len(word.bare) > 3 and word.bare.isalpha() and every.count(word.bare) == 1
        ]

    def _higher_up(self) -> None:
        pair = self.random.sample(self._single, min(2, len(self._single)))
        if len(pair) < 2:
            return
        upper, lower = sorted(pair, key=lambda word: word.box[1])
        if upper.box[3] < lower.box[1] and self.random.random() < _CHOICES:  # no part of them is at one height
            names = {name: word.text.strip(_EDGES) for name, word in zip(("first", "second"), pair, strict=True)}
            self._add("which is higher up", upper.text.strip(_EDGES), [upper], [lower], TWO_PLACES, **names)

    def _line_end(self) -> None:
        """The last word of a line that begins as no other does, and has no other text beside it."""
        begins = Counter(" ".join(word.text for word in line[:2]).casefold() for line in self.lines)
        heights = [(line[0].box[1], line[0].box[3]) for line in self.lines if line]
        known = [
            line
            for line in self.lines
            if len(line) >= _LONG_LINE
            and '"' not in line[0].text + line[1].text
            and begins[f"{line[0].text} {line[1].text}".casefold()] == 1
            and sum(top < line[0].box[3] and line[0].box[1] < bottom for top, bottom in heights) == 1
        ]
        if known:
            first, second, *_, last = self.random.choice(known)
            text, label = last.text.strip(_EDGES) or last.text, f"{first.text} {second.text}"
            self._add("line end", text, [last], [first, second], TWO_PLACES, label=label)

    def _second_time(self) -> None:
        """The word behind the lower one of two equal words."""
        known = []
        for found in self._places.values():
            upper, *others = sorted(found, key=lambda word: word.box[1])
            if len(others) == 1 and upper.box[3] < others[0].box[1]:
                behind = [self.lines[word.line][word.place + 1 :] for word in (upper, others[0])]
                if all(behind) and behind[0][0].bare != behind[1][0].bare != "":
                    known.append((upper, others[0], behind[1][0]))
        if known:
            upper, lower, answer = self.random.choice(known)
            text = answer.text.strip(_EDGES)
            self._add("second time", text, [answer], [upper, lower], TWO_PLACES, label=lower.bare)

    def _more(self) -> None:
        """Of two lines that each end in a number behind a label, which number is greater?"""
        labelled: dict[str, list[tuple[float, list[PrintedWord]]]] = defaultdict(list)
        for line in self.lines:
            number = _AMOUNT.fullmatch(line[-1].text) if len(line) > 1 else None
            label = " ".join(word.text for word in line[:-1]).rstrip(": .")
            if number and not any(character.isdigit() for character in label) and any(map(str.isalpha, label)):
                labelled[label].append((float(number[1]), line))
        once = [(label, *found[0]) for label, found in labelled.items() if len(found) == 1 and '"' not in label]
        pairs = [pair for pair in combinations(once, 2) if pair[0][1] != pair[1][1]]
        for first, second in self.random.sample(pairs, min(1, len(pairs))):
            more = max(first, second, key=lambda each: each[1])
            numbers, labels = [first[2][-1], second[2][-1]], [*first[2][:-1], *second[2][:-1]]
            self._add("which is more", more[0], numbers, labels, TWO_PLACES, first=first[0], second=second[0])

    # ---- spread ------------------------------------------------------------------------------------------------------

    @cached_property
    def _places(self) -> dict[str, list[PrintedWord]]:
        """Words of letters that no other word of the page contains, with all places where they are printed."""
        places = defaultdict[str, list[PrintedWord]](list)
        for word in self.words:
            places[word.bare].append(word)
        every = " ".join(places)
        return {
            bare: found for bare, found in places.items() if len(bare) > 2 and bare.isalpha() and every.count(bare) == 1
        }

    def _occurrences(self) -> None:
        """How often is a word printed, and which is printed more often, or most often?"""
        counted = {bare: found for bare, found in self._places.items() if len(found) <= _MOST_OCCURRENCES}
        several = [bare for bare, found in counted.items() if len(found) > 1]
        by_count = defaultdict[int, list[str]](list)
        for bare in [*several, *(word.bare for word in self._single if several)]:
            by_count[len(self._places[bare])].append(bare)
        if by_count:
            (count,) = self.random.choices([*by_count], [count + 0.5 for count in by_count])  # higher ones are rarer
            bare = self.random.choice(by_count[count])
            self._add("how often", str(count), self._places[bare], [], SPREAD, label=bare)
        long = Counter(word.bare for word in self.words if len(word.bare) >= _LONG_WORD and word.bare.isalpha())
        (most, count), (_, next_count) = [*long.most_common(2), ("", 0), ("", 0)][:2]
        if count > max(2, next_count):
            places = [word for word in self.words if word.bare == most]
            self._add("most often", most, places, [], SPREAD)
        pairs = [(one, other) for one in several for other in counted if len(counted[one]) > len(counted[other])]
        if pairs and self.random.random() < _CHOICES:
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
        by_height = sorted(range(len(heights)), key=lambda number: -heights[number])
        first, largest = by_height[0], self.lines[by_height[0]]
        if len(heights) > 1 and heights[first] > _LARGER * heights[by_height[1]] and len(largest) <= _LINE_WORDS:
            self._add("largest", self.page.lines[first].text.strip(), largest, [], GIST)
        (wide, tall), quarters = self.page.size, Counter[str]()
        for word in self.words:
            x, y = (word.box[0] + word.box[2]) / 2, (word.box[1] + word.box[3]) / 2
            quarters[_QUARTERS[2 * (y > tall / 2) + (x > wide / 2)]] += 1
        order = sorted(_QUARTERS, key=lambda name: quarters[name])
        if quarters[order[3]] > _MARGIN * quarters[order[2]]:
            self._add("most words in", order[3], [], [], GIST)
        if _MARGIN * quarters[order[0]] < quarters[order[1]]:
            self._add("fewest words in", order[0], [], [], GIST)
        count = len(self.words)
        rounded = 20 * round(count / 20)
        if rounded and abs(count - rounded) <= _NEAR:
            self._add("number of words", str(rounded), [], [], GIST)
        numbers = sum(any(map(str.isdigit, word.text)) for word in self.words) / count
        if numbers > _MOSTLY or (1 - numbers > _MOSTLY and self.random.random() < _MOSTLY_WORDS):
            self._add("words or numbers", "numbers" if numbers > 0.5 else "words", [], [], GIST)


def line_questions(random: Random, page: TextPage, split: Split) -> tuple[Question, ...]:
    """Questions of the four `KINDS` about a page's lines, as many as it allows, in wordings of a split. Raises
    ValueError: an unknown split."""
    return _Asker(random, page, split).ask()


def by_kind(random: Random, page: TextPage, split: Split) -> tuple[Question, ...]:
    """The page's own questions of the four `KINDS` and its `line_questions`, in random order, the kinds in turn.
    Arguments and errors are those of `line_questions`; a page that allows no such question keeps its own ones."""
    asked = [question for question in page.questions if question.kind in KINDS]
    asked += line_questions(random, page, split)
    random.shuffle(asked)
    own = {kind: [question for question in asked if question.kind == kind] for kind in KINDS}
    turns = zip_longest(*(own[kind] for kind in random.sample(KINDS, len(KINDS))))
    return tuple(question for turn in turns for question in turn if question is not None) or page.questions
