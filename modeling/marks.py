"""Marks: what is drawn beside words, such as a ticked box, by its name in brackets.

A head on the stem's features says which of `MARKS` each half patch shows. Connected half patches with a mark become a
word, whose wordpieces begin in the patch at its middle. So marks are scored, fetched and read as words are.

Notation: B batch, C channels of the stem, R half rows (2G), L = len(MARKS) + 1 classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid_encoder import LayerNorm2d
from .wordpieces import CELL_COLUMNS, Word, connected

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink")
BAR = "[bar]"
MARKS = (
    *("[x]", "[]", "(o)", "()", "[on]", "[off]", *(f"[{colour}]" for colour in COLOURS), "[struck]", "[highlight]"),
    *("[starred]", "[hollow]", "[locked]", "[unlocked]", BAR, "[signed]", "[stamp]"),
)
"""Names of marks, from class 1 on; class 0 is none."""
_HIGHLIGHT = "[highlight]"
"""Has words in it: its name begins before the first of them."""
_UNNAMED = ("[struck]", BAR)
"""Known, so that they are taken for nothing else, and not named: the reader does not read struck-out words, and the
head sees the edges of wide bars only."""
_WIDTH = 48
_SHOWN, _SURE, _SURER = 0.7, 0.5, 0.8
"""The least probability of any mark in its half patches; of this one, the mean over them; and that of a smaller one."""
_LEAST, _LARGE = 3, 8
"""Half patches of a mark, at least; and of one that is as large as words."""
_BESIDE = 1.3
"""Half rows between a mark and the text of its line, at most."""
_SHORT = 2
"""Characters of words that are read where a mark is, at most: its outline, taken for letters."""

Box = tuple[float, float, float, float]


class MarkHead(nn.Module):
    """Logits of marks from features of the stem, and from colours, of which features that read letters keep little.

    Args:
        channels: C.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = LayerNorm2d(channels)
        self.colours = nn.Conv2d(12, _WIDTH, 1)
        self.features = nn.Conv2d(channels, _WIDTH, 1)
        self.convs = nn.ModuleList(nn.Conv2d(_WIDTH, _WIDTH, 3, padding=step, dilation=step) for step in (1, 2, 4))
        self.head = nn.Conv2d(_WIDTH, len(MARKS) + 1, 1)

    def inputs(self, stem: Tensor, pixel_values: Tensor) -> Tensor:
        """Features [B, C, R, R] and normalised pixels [B, 3, S, S] -> what the head reads [B, C + 12, R, R]: features
        and the mean colours of the quarters of each half patch."""
        quarter = pixel_values.shape[-1] // stem.shape[-1] // 2
        return torch.cat((stem, F.pixel_unshuffle(F.avg_pool2d(pixel_values, quarter), 2).to(stem)), 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` -> logits [B, L, R, R]."""
        stem, colours = inputs.split((inputs.shape[1] - 12, 12), 1)
        hidden = F.gelu(self.features(self.norm(stem)) + self.colours(colours))
        for conv in self.convs:
            hidden = hidden + F.gelu(conv(hidden))
        return self.head(hidden)


@torch.no_grad()
def found_marks(logits: Tensor) -> list[list[tuple[str, Box]]]:
    """The marks of each image by name, with boxes in half patches, from the head's logits [B, L, R, R].

    Connected half patches that show a mark are one; the sum of their probabilities decides which.
    """
    return [_found(chances) for chances in logits.float().softmax(1).cpu()]


def _found(chances: Tensor) -> list[tuple[str, Box]]:
    """The sure ones of one image, from probabilities [L, R, R]."""
    on = chances[0] < 1 - _SHOWN
    marks: list[tuple[str, Box]] = []
    if not on.any():
        return marks
    labels, (rows, columns) = connected(on, torch.zeros_like(chances[0]))[on], on.nonzero().unbind(1)
    for label in labels.unique():
        y, x = rows[labels == label], columns[labels == label]
        sure, kind = chances[1:, y, x].mean(1).max(0)
        name = MARKS[int(kind)]
        least = _LARGE if name in (_HIGHLIGHT, "[signed]", "[stamp]", *_UNNAMED) else _LEAST
        if float(sure) >= (_SURE if len(y) >= least else _SURER) and 2 * len(y) >= least:
            box = (float(x.min()), float(y.min()), float(x.max()) + 1, float(y.max()) + 1)
            marks.append((name, box))
    return marks


def mark_words(marks: Sequence[tuple[str, Box]], text: np.ndarray) -> list[Word]:
    """The words that name marks with boxes in half patches, each in the half row of the text beside it.

    `text`: [n, 3] first and last column, and half row, of what is printed.
    """
    words = []
    for name, (x0, y0, x1, y1) in marks:
        if name not in _UNNAMED:
            x, y = CELL_COLUMNS * (x0 + x1) / 2, (y0 + y1) / 2
            if name == _HIGHLIGHT:
                shown = (
                    (text[:, 0] < CELL_COLUMNS * x1)
                    & (text[:, 1] > CELL_COLUMNS * x0)
                    & (abs(text[:, 2] - y) < _BESIDE)
                )
                x = max(min([CELL_COLUMNS * x0, *text[shown, 0]]) - CELL_COLUMNS / 2, 0.0)
            words.append(Word(name, (x,) * len(name), _row_beside(x, y, text), mark=True))
    return words


def _row_beside(x: float, y: float, text: np.ndarray) -> float:
    """The half row of the nearest text in the line of a mark at column `x` and half row `y`."""
    gap = np.maximum(np.maximum(text[:, 0] - x, x - text[:, 1]), 0)
    gap[abs(text[:, 2] - y) >= _BESIDE] = np.inf
    return float(text[gap.argmin(), 2]) if np.isfinite(gap).any() else y


def with_marks(words: list[Word], marks: Sequence[tuple[str, Box]]) -> list[Word]:
    """The words of a page and those that name its marks, without short ones that the reader took marks for."""
    inside = [box for name, box in marks if name not in (_HIGHLIGHT, *_UNNAMED)]

    def drawn(word: Word) -> bool:
        at = word.columns or word.unread
        x = (at[0] + at[-1]) / 2 / CELL_COLUMNS if at else -1.0
        return len(word.text) <= _SHORT and any(b[0] <= x <= b[2] and b[1] <= word.row <= b[3] for b in inside)

    kept = [word for word in words if not drawn(word)]
    text = np.array([(word.columns[0], word.columns[-1], word.row) for word in kept if word.columns]).reshape(-1, 3)
    return kept + mark_words(marks, text)
