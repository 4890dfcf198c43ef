"""From answers to predictions, and to scores of all questions and by kind.

Notation: n questions, R runs of an arm (one per seed), N patches, G side of the fine grid.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image
from transformers.utils import logging

from ..data.records import Record, says_absent
from ..metrics import METRICS, patch_recall
from ..modeling.answers import Answer
from ..modeling.image_encoding import ImageEncoding
from ..modeling.image_processing_arr_coc import Box, boxes_to_patches, map_boxes
from .arms import HALVES, Arm
from .calibration import calibration
from .statistics import Interval, bootstrap_mean, holm, is_significant, paired_difference, score_interval, sign_flip

_ACROSS = 16  # sample points along each side of a box, which measure its fetched share


@dataclass(frozen=True)
class Prediction:
    """A run's answer to one record."""

    line: int
    answer: str  # the text of the `Answer`
    probability: float
    tokens: int  # positions of the image in the prompt
    grid: int  # G
    size: tuple[int, int]  # (height, width) of the source image, px
    patches: tuple[int, ...] | None  # the fetched patches, ascending; None with several views
    image: str = ""  # digest of the image's pixels (see `image_digest`)
    sources: int = 1  # the number of sources in the prompt
    # With several views, source, x0, y0, x1, y1 of each patch, px of its source.
    fetched: tuple[tuple[float, ...], ...] = ()
    best: int = -1  # the source of the fetched patch with the highest relevance, or -1
    evidence: Mapping[str, float] = field(default_factory=dict)  # `Answer.evidence`

    @property
    def over_views(self) -> bool:
        """Whether the question had several views; `patches`, on a single grid, is then unknown."""
        return self.patches is None


def prediction(line: int, answer: Answer, encoding: ImageEncoding, image: Image.Image) -> Prediction:
    """The prediction for an answer about one image of `encoding`, whose images have one size."""
    patches = tuple(answer.fetch.covered()[0].nonzero()[:, 0].tolist())
    tokens, size = encoding.base_positions + int(answer.fetch.tokens.sum()), (image.height, image.width)
    said = prediction_in_views(line, answer, tokens, [size], image_digest(image), best=-1, grid=encoding.side)
    return replace(said, patches=patches, fetched=())


def prediction_in_views(
    line: int, answer: Answer, tokens: int, sizes: Sequence[tuple[int, int]], image: str, *, best: int, grid: int = 0
) -> Prediction:
    """The prediction for an answer about sources of `sizes`, with the place of each patch in px of its source."""
    fetched = tuple((origin.source, *(round(edge, 1) for edge in origin.box)) for origin in answer.sources)
    said = (line, answer.text, round(answer.probability, 6), tokens)
    return Prediction(*said, grid, sizes[0], None, image, len(sizes), fetched, best, answer.evidence)


def image_digest(image: Image.Image) -> str:
    """16 hexadecimal digits that identify an image's pixels, independent of their file or row."""
    content = hashlib.blake2b(f"{image.mode} {image.size} ".encode(), digest_size=8)
    content.update(image.tobytes())
    return content.hexdigest()


def boxed_patches(record: Record, size: tuple[int, int], grid: int, patch_size: int) -> np.ndarray:
    """bool [G, G]: True on the patches under the record's boxes in an image of `size` (height, width) px. Raises
    ValueError: a box is outside the image; the message names the record's line."""
    boxed = boxes_to_patches(map_boxes(record.boxes, *size, grid * patch_size), grid, patch_size)
    if record.boxes and not boxed.any():
        raise ValueError(f"line {record.line}: boxes: expected boxes that reach into the image; got {record.boxes}")
    return boxed


def right_source(said: Prediction, record: Record) -> tuple[float, float]:
    """Whether a source with the answer holds the patch of the highest relevance, and whether it holds the most patches.

    NaN if the source of the answer is unknown, if there is only one source, or without fetched patches. Of sources with
    equally many patches, the first counts.
    """
    if not record.answer_sources or said.sources == 1 or not said.fetched:
        return float("nan"), float("nan")
    counts = np.bincount([int(source) for source, *_ in said.fetched], minlength=said.sources)
    return float(said.best in record.answer_sources), float(counts.argmax() in record.answer_sources)


def recall(said: Prediction, record: Record, patch_size: int) -> float:
    """Fetched share of what the record's boxes cover: of patches for a single view, else of the boxes' area. If several
    sources have the answer, that of the best source. NaN without boxes."""
    if not record.boxes:
        return float("nan")
    if not said.over_views:
        return patch_recall(said.patches or (), boxed_patches(record, said.size, said.grid, patch_size))
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


def kinds_table(by: str, kinds: Sequence[str], scored: Sequence["Scored"]) -> dict[str, Any]:
    """The scores of each kind of question; "" is no kind.

    Returns:
        {"by", "rows": [{"bucket", "n", "scores": {arm: interval}, "tokens": {arm: mean}}]}; `tokens` holds only arms
        whose number of tokens depends on the question.
    """
    rows = []
    for value in sorted(set(kinds) - {""}, key=lambda kind: (int(kind), "") if kind.isdecimal() else (math.inf, kind)):
        inside = np.array([kind == value for kind in kinds])
        intervals = {own.arm.name: score_interval(own.mean_scores[inside], own.images[inside]) for own in scored}
        scores = {name: asdict(interval) for name, interval in intervals.items()}
        spent = {own.arm.name: own.tokens[:, inside] for own in scored if (own.tokens != own.tokens[:, :1]).any()}
        tokens = {name: float(positions.mean()) for name, positions in spent.items()}
        rows.append({"bucket": value, "n": int(inside.sum()), "scores": scores, "tokens": tokens})
    return {"by": by, "rows": rows}


logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Items:
    """The distinct questions of a data set: of copies (same pixels, question and answers) only the first counts."""

    records: list[Record]
    places: np.ndarray  # int [n], the index of each among all records
    images: np.ndarray  # int [n], the index of each record's image; images with the same pixels have the same index
    copies: int  # the number of records that do not count

    @property
    def number_of_images(self) -> int:
        """The number of different images that the questions are about."""
        return len(np.unique(self.images))


def distinct_items(records: Sequence[Record], predictions: Sequence[Prediction]) -> Items:
    """The records that count; the predictions of any run hold the digests of their images."""
    numbers: dict[Any, int] = {}
    first: dict[Any, Record] = {}
    places, images = [], []
    for place, (record, said) in enumerate(zip(records, predictions, strict=True)):
        image = numbers.setdefault(said.image or record.images, len(numbers))
        item = (image, record.question, record.answers, record.history)
        if item not in first:
            first[item] = record
            places.append(place)
            images.append(image)
    copies = len(predictions) - len(places)
    if copies:
        logger.warning(f"{copies} of {len(predictions)} questions are copies of others, which count once")
    return Items(list(first.values()), np.array(places), np.array(images), copies)


def check_answers(records: Sequence[Record], metric: str) -> None:
    """Refuses reference answers that the metric cannot score, before any question is asked. Raises ValueError: an
    unknown metric, or an answer that it cannot score; the message names the record's line."""
    scored = METRICS[metric]
    for record in records:
        try:
            scored.score(record.answers[0], record.answers)
        except ValueError as error:
            raise ValueError(f"line {record.line}: {error}") from error


@dataclass(frozen=True)
class Scored:
    """An arm's predictions for the items that count, with their scores."""

    arm: Arm
    metric: str
    predictions: list[list[Prediction]]  # R rows of n
    scores: np.ndarray  # float64 [R, n] in 0..1
    recalls: np.ndarray  # float64 [R, n], NaN for records without boxes
    images: np.ndarray  # int [n], the index of each question's image
    absent: np.ndarray  # bool [n], True on questions whose field is not on the page
    # Float64 [2, R, n], whether the best patch, and whether most patches, came from a source with the answer (see
    # `right_source`); NaN if unknown. None if unknown for all questions.
    pages: np.ndarray | None = None

    @cached_property
    def tokens(self) -> np.ndarray:
        """int [R, n]: positions of the image in the prompt."""
        return np.array([[prediction.tokens for prediction in row] for row in self.predictions])

    @cached_property
    def mean_scores(self) -> np.ndarray:
        """[n]: mean score of each question over the arm's runs."""
        return self.scores.mean(0)

    @property
    def told(self) -> list[dict[str, Any]]:
        """Each answer, run by run: {"line": of its record, "answer", "probability", "score": 0 to 1}."""
        return [
            {"line": said.line, "answer": said.answer, "probability": said.probability, "score": float(score)}
            for row, scores in zip(self.predictions, self.scores, strict=True)
            for said, score in zip(row, scores, strict=True)
        ]

    @property
    def score(self) -> Interval:
        """Mean score; its interval is drawn by images."""
        return score_interval(self.mean_scores, self.images)

    @cached_property
    def refused(self) -> np.ndarray:
        """bool [R, n]: True on answers "not on the page"."""
        return np.array([[says_absent(prediction.answer) for prediction in row] for row in self.predictions])

    @property
    def calibration(self) -> dict[str, Any]:
        """The `calibration.calibration` of all runs' answers."""
        probabilities = np.array([[prediction.probability for prediction in row] for row in self.predictions])
        return calibration(probabilities.ravel(), self.scores.ravel(), self.refused.ravel())

    def measures(self) -> dict[str, Any]:
        """{metric: interval, "recall": interval or None without boxes, "tokens": mean, "n", "calibration"}.

        With questions about absent fields also "not_on_the_page": the "precision" of the answers "not on the page"
        (None without any) and their "recall" over these questions. With questions whose source of the answer is known
        also "pages": the share of these whose "best" patch, and whose "most" patches, came from a page with the answer.
        Intervals are drawn by images or documents.
        """
        recalls, images = self.recalls.mean(0), self.images
        boxed = ~np.isnan(recalls)
        drawn = score_interval if self.arm.budget else bootstrap_mean  # if nothing is fetched it is exactly 0
        measured: dict[str, Any] = {
            self.metric: asdict(self.score),
            "recall": asdict(drawn(recalls[boxed], groups=images[boxed])) if boxed.any() else None,
            "tokens": float(self.tokens.mean()),
            "n": self.scores.shape[1],
            "calibration": self.calibration,
        }
        if self.absent.any():
            absent, own = (np.broadcast_to(values, self.refused.shape) for values in (self.absent, images))
            right, among = (self.refused & absent).astype(float), {"precision": self.refused, "recall": absent}
            measured["not_on_the_page"] = {
                name: asdict(score_interval(right[those], own[those])) if those.any() else None
                for name, those in among.items()
            }
        if self.pages is not None and (known := ~np.isnan(self.pages[0]).any(0)).any():
            shares = zip(("best", "most"), self.pages.mean(1)[:, known], strict=True)
            measured["pages"] = {name: asdict(score_interval(share, images[known])) for name, share in shares}
        return measured


def score_arm(arm: Arm, rows: Sequence[Sequence[Prediction]], items: Items, metric: str, patch_size: int) -> Scored:
    """Scores the predictions of an arm's R runs, each with one for every record of the data. Raises ValueError: answers
    that the metric cannot score, or boxes outside their image."""
    score = METRICS[metric].score
    counted = [[row[place] for place in items.places] for row in rows]
    pairs = [list(zip(row, items.records, strict=True)) for row in counted]
    scores = [[float(score(said.answer, record.answers)) for said, record in row] for row in pairs]
    recalls = [[recall(*pair, patch_size) for pair in row] for row in pairs]
    pages = np.moveaxis(np.array([[right_source(said, record) for said, record in row] for row in pairs]), -1, 0)
    absent = np.array([record.absent for record in items.records])
    return Scored(arm, metric, counted, np.array(scores), np.array(recalls), items.images, absent, pages)


def compare(first: Scored, second: Scored) -> dict[str, Any]:
    """Paired difference of two arms (means over their runs), with p by sign flips of whole images. `gained` and `lost`:
    the questions on which the first arm scores higher and lower."""
    ours, theirs, images = first.mean_scores, second.mean_scores, first.images
    difference, p = paired_difference(ours, theirs, groups=images), sign_flip(ours, theirs, groups=images)
    return {
        "first": first.arm.name,
        "second": second.arm.name,
        "difference": asdict(difference),
        "gained": int((ours > theirs).sum()),
        "lost": int((ours < theirs).sum()),
        "p": p,
    }


def compare_all(pairs: Sequence[tuple[Scored, Scored]]) -> list[dict[str, Any]]:
    """Compares all pairs as one family, with Holm's p and significance."""
    comparisons = [compare(first, second) for first, second in pairs]
    adjusted = holm([comparison["p"] for comparison in comparisons])
    for comparison, (first, _), p in zip(comparisons, pairs, adjusted, strict=True):
        difference, images = Interval(**comparison["difference"]), len(np.unique(first.images))
        comparison["p_holm"] = p
        comparison["significant"] = is_significant(difference, p, images)
    return comparisons
