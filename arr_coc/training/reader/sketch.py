"""Pages as perfect tokens: what a bridge would say if the encoder read without a fault.

The language model learns to answer from these before there is an encoder that reads, and without drawing or encoding a
page. Slips that an encoder makes are made here too: wordpieces that are missing, others in their place, a patch to the
side.

Notation: G side of the grid, M base tokens of 4 x 4 patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arr_coc.data.domains.page import TextPage
from arr_coc.modeling.configuration_arr_coc import COMPRESSION
from arr_coc.modeling.image_processing_arr_coc import Box

from .vocabulary import Wordpieces


@dataclass(frozen=True)
class Sketch:
    """The wordpieces on a page, in reading order by patches: as the bridge packs them.

    Attributes:
        pieces: [n] ids.
        half_rows: [n] half row of patches, 0 to 2G - 1.
        columns: [n] column of patches.
        near: [n, q] whether the patch of each is one that question q asks for.
        side: G.
    """

    pieces: np.ndarray
    half_rows: np.ndarray
    columns: np.ndarray
    near: np.ndarray
    side: int

    @property
    def patches(self) -> np.ndarray:
        """[n] the patch of each, row-major."""
        return self.half_rows // 2 * self.side + self.columns

    def only(self, kept: np.ndarray) -> "Sketch":
        """Those of the wordpieces, by mask or index."""
        return Sketch(self.pieces[kept], self.half_rows[kept], self.columns[kept], self.near[kept], self.side)


def sketch(page: TextPage, boxes: Sequence[Sequence[Box]], side: int, cut: Wordpieces) -> Sketch:
    """The wordpieces of a page that is fitted into a square of `side` x `side` patches, centred.

    Args:
        page: with text.
        boxes: of each question those around its answer and what leads to it, px.
        side: G.
        cut: words into wordpieces.
    """
    scale = side / max(page.size)
    shift = [(side - length * scale) / 2 for length in page.size]
    rows: list[tuple[int, float, float]] = []
    for line in page.lines:
        x = (line.boxes[:, 0] + line.boxes[:, 2]) / 2 * scale + shift[0]
        y = float(np.median(line.boxes[:, 1] + line.boxes[:, 3])) / 2 * scale + shift[1]
        start = 0
        for word in line.text.split(" "):
            rows += ((piece.id, float(x[start + piece.start]), y) for piece in cut(word))
            start += len(word) + 1
    table = np.array(rows, np.float64).reshape(-1, 3)
    x, half = table[:, 1].clip(0, side - 1e-3), (2 * table[:, 2]).clip(0, 2 * side - 1e-3).astype(np.int64)
    order = np.lexsort((np.arange(len(x)), x, half))
    column = x.astype(np.int64)
    near = np.zeros((len(x), len(boxes)), bool)
    for number, each in enumerate(boxes):
        for box in each:
            x0, y0, x1, y1 = (end * scale + shift[axis % 2] for axis, end in enumerate(box))
            row = half // 2
            within = (column >= int(x0)) & (column <= int(x1)) & (row >= int(y0)) & (row <= int(y1))
            near[:, number] |= within
    return Sketch(table[order, 0].astype(np.int64), half[order], column[order], near[order], side)


def fetched(rng: np.random.Generator, page: Sketch, budget: int) -> Sketch:
    """What a scorer might fetch of a page for its questions: what they ask for, and blocks of other patches.

    Args:
        rng: which other patches.
        page: all of it.
        budget: most wordpieces.
    """
    grid = np.zeros((page.side, page.side))
    for _ in range(int(rng.integers(1, 7))):
        y, x = rng.integers(page.side, size=2)
        tall, wide = int(rng.integers(1, 8)), int(rng.integers(4, 40))
        grid[max(0, y - tall) : y + tall, max(0, x - wide) : x + wide] += rng.random()
    score = grid.ravel()[page.patches] + 1e-3 * rng.random(len(page.patches)) + 10.0 * page.near.any(1)
    room = int(rng.integers(budget // 3, budget + 1))
    kept = np.zeros(len(score), bool)
    kept[np.argsort(-score, kind="stable")[:room]] = True
    return page.only(kept & ((score > 0.01) | (rng.random() < 0.5)))


def slipped(rng: np.random.Generator, page: Sketch, rate: float, vocabulary: int) -> Sketch:
    """The page with slips: of `rate` wordpieces each is missing, another one, or in the patch to the side."""
    kind = rng.random(len(page.pieces)) / max(rate, 1e-9)
    pieces = np.where(kind < 0.4, rng.integers(vocabulary, size=len(kind)), page.pieces)
    columns = np.where((kind >= 0.4) & (kind < 0.7), page.columns + rng.choice([-1, 1], len(kind)), page.columns)
    moved = Sketch(pieces, page.half_rows, columns.clip(0, page.side - 1), page.near, page.side)
    return moved.only((kind < 0.7) | (kind >= 1))


def base_mixture(page: Sketch) -> tuple[np.ndarray, np.ndarray]:
    """The base cells that hold wordpieces: [n] the cell of each wordpiece, and its weight, 1 / their number."""
    cells = page.half_rows // 2 // COMPRESSION * (page.side // COMPRESSION) + page.columns // COMPRESSION
    count = np.bincount(cells, minlength=(page.side // COMPRESSION) ** 2)
    return cells, 1.0 / count[cells]
