"""Where an answer stands in an image, from what an OCR system read there.

An answer is found where a run of consecutive tokens spells it, but for case, white space and punctuation (that between
digits counts: 12.5 is not 125). A token may hold several words of the answer, and a word several tokens.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ..modeling.image_processing_arr_coc import Box

MOST_PLACES = 3
"""An answer that stands in more places than this is not located: most of them are not what was asked about."""

NOT_READ = frozenset(("yes", "no", "unanswerable", "answering does not require reading text in the image"))
"""Answers that are judgements, in lower case: where their words happen to stand says nothing."""

_BETWEEN_DIGITS = re.compile(r"(?<!\d)[\W_]+|[\W_]+(?!\d)")


@dataclass(frozen=True)
class OcrToken:
    """A word that was read, and its box in px of the image."""

    text: str
    box: Box


def spell(text: str) -> str:
    """What is compared: letters and digits in one case and one Unicode form, with the punctuation between digits."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    return "".join(_BETWEEN_DIGITS.sub("", word) for word in words)


def within(tokens: Iterable[OcrToken], width: int, height: int) -> list[OcrToken]:
    """Boxes cut off at the edges of an image of `width` x `height` px; tokens beyond them left out."""
    inside = []
    for token in tokens:
        x0, y0, x1, y1 = token.box
        box = (max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height)))
        if box[0] < box[2] and box[1] < box[3]:
            inside.append(OcrToken(token.text, box))
    return inside


def reading_order(tokens: Iterable[OcrToken]) -> list[OcrToken]:
    """Tokens line by line: a token whose middle lies within the height of a line's first one belongs to that line."""
    rows: list[list[OcrToken]] = []
    for token in sorted(tokens, key=lambda token: token.box[1] + token.box[3]):
        middle = (token.box[1] + token.box[3]) / 2
        row = next((row for row in rows[::-1] if row[0].box[1] <= middle <= row[0].box[3]), None)
        if row is None:
            rows.append([token])
        else:
            row.append(token)
    rows.sort(key=lambda row: median(token.box[1] for token in row))
    return [token for row in rows for token in sorted(row, key=lambda token: token.box[0])]


def locate(answers: Sequence[str], tokens: Sequence[OcrToken]) -> tuple[Box, ...]:
    """Boxes of the tokens that spell an answer, wherever it stands; none where no answer is found.

    Of several answers the one given most often counts that is found in at most `MOST_PLACES` places.

    Args:
        answers: the right answers.
        tokens: in reading order.
    """
    spelt = [(token, word) for token in tokens if (word := spell(token.text))]
    for answer, _ in Counter(answer.strip().casefold() for answer in answers).most_common():
        runs = [] if answer in NOT_READ else _runs(spell(answer), [word for _, word in spelt])
        if 0 < len(runs) <= MOST_PLACES:
            return tuple(spelt[place][0].box for run in runs for place in run)
    return ()


def _runs(wanted: str, words: Sequence[str]) -> list[range]:
    """Where consecutive words make up `wanted`, without overlap."""
    runs: list[range] = []
    start = 0
    while wanted and start < len(words):
        left, end = wanted, start
        while left and end < len(words) and left.startswith(words[end]):
            left, end = left[len(words[end]) :], end + 1
        if left:
            start += 1
        else:
            runs.append(range(start, end))
            start = end
    return runs
