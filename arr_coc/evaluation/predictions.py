"""Predictions, and statistics that need no metric: recall, changed answers, tokens of hard questions.

Notation: N patches, G side of the fine grid, n questions.
"""

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from PIL import Image

from ..data.records import Record
from ..metrics import fetch_distances, patch_recall
from ..modeling.answers import Answer
from ..modeling.image_encoding import ImageEncoding
from ..modeling.image_processing_arr_coc import Box, boxes_to_patches, map_boxes
from .arms import HALVES, Arm
from .statistics import Interval, score_interval

_ACROSS = 16
"""Sample points along each side of a box, which measure its fetched share."""


@dataclass(frozen=True)
class Prediction:
    """A run's answer to one record.

    Attributes:
        answer, probability: as in `Answer`.
        tokens: positions of the image in the prompt.
        grid: G.
        size: (height, width) of the source image, px.
        patches: the fetched patches, N bits in base64.
        image: digest of the image's pixels (see `image_digest`).
        sources: the number of sources in the prompt.
        fetched: with several views, source, x0, y0, x1, y1 of each patch, px of its source; `patches` is then "".
        best: the source of the fetched patch with the highest relevance, or -1.
        legibility: `Answer.fetched_legibility`.
    """

    line: int
    answer: str
    probability: float
    tokens: int
    grid: int
    size: tuple[int, int]
    patches: str
    image: str = ""
    sources: int = 1
    fetched: tuple[tuple[float, ...], ...] = ()
    best: int = -1
    legibility: float | None = None

    @property
    def over_views(self) -> bool:
        """Whether the question had several views; `patches`, on a single grid, is then unknown."""
        return not self.patches

    @property
    def mask(self) -> np.ndarray:
        """bool [N]: True on fetched patches; all False with several views."""
        if self.over_views:
            return np.zeros(self.grid**2, dtype=bool)
        return np.unpackbits(np.frombuffer(base64.b64decode(self.patches), np.uint8), count=self.grid**2).astype(bool)

    @property
    def indices(self) -> list[int]:
        """The fetched patches, ascending."""
        return np.flatnonzero(self.mask).tolist()


def prediction(line: int, answer: Answer, encoding: ImageEncoding, image: Image.Image) -> Prediction:
    """The prediction for an answer about one image of `encoding`, whose images have one size."""
    bits = np.packbits(answer.fetch.covered()[0].cpu().numpy())
    tokens, size = encoding.base_positions + int(answer.fetch.tokens.sum()), (image.height, image.width)
    given = {"grid": encoding.side, "patches": base64.b64encode(bits.tobytes()).decode()}
    return _prediction(line, answer, tokens, [size], image_digest(image), **given)


def prediction_in_views(
    line: int, answer: Answer, tokens: int, sizes: Sequence[tuple[int, int]], image: str, *, best: int, grid: int = 0
) -> Prediction:
    """The prediction for an answer about sources of `sizes`, with the place of each patch in px of its source."""
    fetched = tuple((origin.source, *(round(edge, 1) for edge in origin.box)) for origin in answer.sources)
    return _prediction(line, answer, tokens, sizes, image, grid=grid, patches="", fetched=fetched, best=best)


def _prediction(
    line: int, answer: Answer, tokens: int, sizes: Sequence[tuple[int, int]], image: str, **given: Any
) -> Prediction:
    said, probability = answer.text, round(answer.probability, 6)
    given |= {"image": image, "sources": len(sizes), "legibility": answer.fetched_legibility}
    return Prediction(line, said, probability, tokens, size=sizes[0], **given)


def image_digest(image: Image.Image) -> str:
    """16 hexadecimal digits that identify an image's pixels, independent of their file or row."""
    content = hashlib.blake2b(f"{image.mode} {image.size} ".encode(), digest_size=8)
    content.update(image.tobytes())
    return content.hexdigest()


def boxed_patches(record: Record, size: tuple[int, int], grid: int, patch_size: int) -> np.ndarray:
    """bool [G, G]: True on the patches under the record's boxes in an image of `size` (height, width) px.

    Raises:
        ValueError: a box is outside the image; the message names the record's line.
    """
    boxed = boxes_to_patches(map_boxes(record.boxes, *size, grid * patch_size), grid, patch_size)
    if record.boxes and not boxed.any():
        raise ValueError(f"line {record.line}: boxes: expected boxes that reach into the image; got {record.boxes}")
    return boxed


def recall(prediction: Prediction, record: Record, patch_size: int) -> float:
    """Share of the record's boxed patches that were fetched, for a single view; NaN without boxes."""
    if not record.boxes:
        return float("nan")
    boxed = boxed_patches(record, prediction.size, prediction.grid, patch_size)
    return patch_recall(prediction.indices, boxed)


def right_source(said: Prediction, record: Record) -> tuple[float, float]:
    """Whether a source with the answer holds the patch of the highest relevance, and whether it holds the most patches.

    NaN if the source of the answer is unknown, if there is only one source, or without fetched patches. Of sources with
    equally many patches, the first counts.
    """
    if not record.answer_sources or said.sources == 1 or not said.fetched:
        return float("nan"), float("nan")
    counts = np.bincount([int(source) for source, *_ in said.fetched], minlength=said.sources)
    return float(said.best in record.answer_sources), float(counts.argmax() in record.answer_sources)


def view_recall(said: Prediction, record: Record) -> float:
    """Fetched share of the area of the record's boxes; if several sources have the answer, that of the best source.

    NaN without boxes.
    """
    if not record.boxes:
        return float("nan")
    sources = record.answer_sources
    groups = [[source] for source in sources] if len(sources) > 1 else [list(range(said.sources))]
    return max(_covered(said, [(box, source) for source in own for box in record.boxes_on(source)]) for own in groups)


def _covered(said: Prediction, boxes: Sequence[tuple[Box, int]]) -> float:
    """Share of the area of the boxes, each with its source, that the fetched patches cover."""
    whole = held = 0.0
    unit = (np.arange(_ACROSS) + 0.5) / _ACROSS
    for (x0, y0, x1, y1), source in boxes:
        patches = np.array([patch for number, *patch in said.fetched if number == source]).reshape(-1, 4)
        x, y = (x0 + (x1 - x0) * unit)[None, :, None], (y0 + (y1 - y0) * unit)[:, None, None]
        inside = (x >= patches[:, 0]) & (x < patches[:, 2]) & (y >= patches[:, 1]) & (y < patches[:, 3])
        area = max((x1 - x0) * (y1 - y0), 1e-6)
        whole, held = whole + area, held + area * float(inside.any(-1).mean())
    return held / whole if whole else 0.0


def swapped_pairs(arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    """Pairs of (an arm with its own base tokens, the same arm with those of another page), the most patches first."""
    swapped = sorted((arm for arm in arms if arm.rule == "other_base"), key=lambda arm: -arm.budget)
    pairs = [(next((own for own in arms if _is_own(own, other)), None), other) for other in swapped]
    return [(own, other) for own, other in pairs if own is not None]


def _is_own(own: Arm, other: Arm) -> bool:
    """Whether `own` and `other` differ in their base tokens only."""
    if own.rule in HALVES or own.rule != own.strategy or own.overlap or own.side != other.side:
        return False
    same_patches = own.strategy == other.strategy and own.allocator == other.allocator
    return own.budget == other.budget and (same_patches or not own.budget)


def compared_halves(arms: Sequence[Arm]) -> list[tuple[str, str]]:
    """The pairs of arms whose difference is the contribution of a half (base tokens, then patches), in both orders."""
    pairs = swapped_pairs(arms)
    base = [(own.name, other.name) for own, other in pairs]
    patches = [(more.name, fewer.name) for bases in zip(*pairs, strict=True) for more, fewer in pairwise(bases)]
    return [*base, *patches]


def changed_answers(
    own: Sequence[Prediction], other: Sequence[Prediction], images: Sequence[int] | np.ndarray
) -> Interval:
    """Share of n questions whose answer differs; its interval is drawn by `images` [n]."""
    changed = [float(first.answer != second.answer) for first, second in zip(own, other, strict=True)]
    return score_interval(changed, images)


def query_dependence(rows: Sequence[Sequence[Prediction]], groups: np.ndarray) -> float | None:
    """Mean Jaccard distance between the patches of two questions about one image: 0 if equal, 1 if disjoint.

    Of R runs of n predictions; `groups`, int [n], is the index of each question's image. None if no image has two
    questions, or if nothing is fetched.
    """
    distances: list[float] = []
    for image in np.unique(groups):
        places = np.flatnonzero(groups == image).tolist()
        if len(places) < 2:
            continue
        upper = torch.triu_indices(len(places), len(places), offset=1)
        for row in rows:
            masks = np.stack([row[place].mask for place in places])
            distances += fetch_distances(torch.from_numpy(masks))[upper[0], upper[1]].tolist()
    known = [distance for distance in distances if not math.isnan(distance)]
    return float(np.mean(known)) if known else None
