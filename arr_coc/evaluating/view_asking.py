"""Asking about several sources or in views: all sources of a question are encoded together and share one budget.

A document's sources are encoded once for all of its questions and arms; see docs/views.md. Notation: S sources.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.images import HeldImage, opened
from ..data.records import Record
from ..modeling.answers import Answer
from ..modeling.fetcher import FetchChoices
from ..modeling.image_loading import MAX_IMAGE_PIXELS, Source, count_pages, document_kind, load_image, open_encoded
from ..modeling.image_processing_arr_coc import Box
from ..modeling.joint_allocation import JointFetch
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.prefix import with_prefix
from ..modeling.scorers import SCORERS
from ..modeling.view_encoding import encode_sources, sources_of
from ..modeling.views import ViewOptions, take_view_options
from ..modeling.vision_tower import ImageEncoding
from .arms import Arm
from .predictions import Prediction

_HEAD = 1024
"""Bytes of a file that tell a document from an image."""
_ACROSS = 16
"""Points along each side of a box, by which is measured how much of it was fetched."""


def needs_views(records: Sequence[Record], tiles: str | int | None) -> bool:
    """Whether tiles are asked for, or a record is about several images, or a PDF, a video, a TIFF or GIF of pages."""
    files = {record.image for record in records if isinstance(record.image, Path)}
    return tiles is not None or any(record.others for record in records) or any(map(_is_document, files))


def _is_document(path: Path) -> bool:
    with path.open("rb") as stream:
        if document_kind(stream.read(_HEAD)) is not None:
            return True
        try:
            with open_encoded(stream, str(path), MAX_IMAGE_PIXELS) as image:
                return count_pages(image, str(path)) > 1
        except ValueError:
            return False  # said when it is read, with its line


def check_arms(arms: Sequence[Arm], side: int) -> None:
    """Refuses arms that are defined for a single view: peers, another size of the image, halves, all patches.

    Raises:
        ValueError: so.
    """
    other = [arm.name for arm in arms if arm.rule not in SCORERS or arm.side != side]
    if other:
        expected = "strategies, also STRATEGY@K and STRATEGY+ALLOCATOR, with tiles or several sources"
        raise ValueError(f"arms: expected {expected}; got {', '.join(other)}")
    if again := [arm for arm in arms if arm.passes not in (None, 1)]:
        raise ValueError(f"passes: expected one with tiles or several sources; got {again[0].passes}")


def open_sources(
    model: ArrCocForConditionalGeneration, record: Record, tiles: str | int | None = None
) -> tuple[list[Source], ViewOptions]:
    """All images, pages or frames that a record is about, and the options of views that they were opened with.

    Raises:
        ValueError, OSError: one cannot be read.
    """
    processor = model.processor.image_processor
    options, _ = take_view_options({**processor.views, **({} if tiles is None else {"tiles": tiles})})
    loaded = processor.load_sources([opened(image) for image in record.images])
    return [source for image in loaded for source in sources_of(image, options, processor.max_image_pixels)], options


def encode_document(
    model: ArrCocForConditionalGeneration, record: Record, tiles: str | int | None
) -> tuple[ImageEncoding, str]:
    """All sources of a record, encoded for one prompt, and a digest that tells them from others.

    Raises:
        ValueError: sources that cannot be read, or that are too many; the message names the record's line.
    """
    try:
        sources, options = open_sources(model, record, tiles)
        encoding = encode_sources(model.model, model.processor.image_processor, [sources], options)
    except (ValueError, OSError) as error:
        raise ValueError(f"line {record.line}: {error}") from error
    if len(sources) == 1:  # a prompt begins with its first source's base tokens alone
        encoding = with_prefix(model, model.processor, encoding)
    return encoding, _digest(record.images)


def _digest(images: Sequence[Path | HeldImage]) -> str:
    content = hashlib.blake2b(digest_size=8)
    for image in images:
        content.update(image.read_bytes() if isinstance(image, Path) else load_image(image.make()).tobytes())
    return content.hexdigest()


def check_record(record: Record, sizes: Sequence[tuple[int, int]]) -> None:
    """Refuses numbers of sources that are not there, and boxes beside their source, whose `sizes` are (height, width).

    Raises:
        ValueError: so; the message names the record's line.
    """
    numbers = (*record.box_sources, *record.label_sources, *record.answer_sources)
    if numbers and max(numbers) >= len(sizes):
        expected = f"numbers of sources below {len(sizes)}"
        raise ValueError(f"line {record.line}: expected {expected}; got {max(numbers)}")
    for source, (height, width) in enumerate(sizes):
        for box in record.boxes_on(source):
            if not (box[0] < width and box[1] < height and box[2] > 0 and box[3] > 0):
                expected = f"boxes that reach into source {source} of {width} x {height} px"
                raise ValueError(f"line {record.line}: boxes: expected {expected}; got {box}")


def ask_views(
    model: ArrCocForConditionalGeneration,
    arm: Arm,
    records: Sequence[Record],
    encoding: ImageEncoding,
    *,
    seed: int | None = None,
    **settings: Any,
) -> list[Answer]:
    """The arm's answers to questions about one document, greedily decoded."""
    choices = FetchChoices(
        strategy=arm.strategy, allocator=arm.allocator, budget=arm.budget, seed=seed, overlap=arm.overlap or None,
        bypass=arm.bypass or None,
    )  # fmt: skip
    boxes = [_all_boxes(record, source) for record in records for source in range(len(encoding))]
    return model.generate(
        encoding, [record.question for record in records], choices=choices, return_fetch=True, do_sample=False,
        boxes=boxes if arm.strategy == "oracle" else None, history=[record.history for record in records], **settings,
    )  # fmt: skip


def _all_boxes(record: Record, source: int) -> list[Box]:
    return [*record.boxes_on(source), *record.boxes_on(source, labels=True)]


def view_prediction(line: int, answer: Answer, encoding: ImageEncoding, digest: str) -> Prediction:
    """What is kept of an answer about a document: where each patch was fetched from, in px of its source."""
    fetch = answer.fetch
    assert encoding.source_sizes is not None, "sources were given"
    fetched = int(fetch.tokens.sum())
    return Prediction(
        line=line,
        answer=answer.text,
        probability=round(answer.probability, 6),
        tokens=len(encoding) * encoding.base_positions + fetched,
        grid=encoding.side,
        size=encoding.source_sizes[0],
        patches="",
        image=digest,
        sources=len(encoding),
        fetched=tuple((origin.source, *(round(edge, 1) for edge in origin.box)) for origin in answer.sources),
        best=_best_source(answer),
    )


def _best_source(answer: Answer) -> int:
    """The source of the patch with the highest relevance among those that were fetched; -1 where none was."""
    fetch = answer.fetch
    real = fetch.used & ~fetch.is_padding
    if not bool(real.any()):
        return -1
    if isinstance(fetch, JointFetch):
        relevance = fetch.seen.relevance[fetch.view, fetch.indices]
    else:
        relevance = fetch.relevance.gather(1, fetch.indices)
    return int(relevance.masked_fill(~real, -1.0).amax(1).argmax())


# ---- scores -------------------------------------------------------------------------------------------------------


def right_source(said: Prediction, record: Record) -> tuple[float, float]:
    """Whether what was fetched came from a source that answers: the patch with the highest relevance, and the most.

    NaN where it is not known which source answers, where there is one alone, or where nothing was fetched. Of sources
    with equally many patches the first counts.
    """
    if not record.answer_sources or said.sources == 1 or not said.fetched:
        return float("nan"), float("nan")
    counts = np.bincount([int(source) for source, *_ in said.fetched], minlength=said.sources)
    return float(said.best in record.answer_sources), float(counts.argmax() in record.answer_sources)


def view_recall(said: Prediction, record: Record) -> float:
    """Share of the area of the record's boxes that was fetched; of several sources that answer, of the best of them.

    NaN where it has no boxes.
    """
    if not record.boxes:
        return float("nan")
    sources = record.answer_sources
    groups = [[source] for source in sources] if len(sources) > 1 else [list(range(said.sources))]
    return max(_covered(said, [(box, source) for source in own for box in record.boxes_on(source)]) for own in groups)


def _covered(said: Prediction, boxes: Sequence[tuple[Box, int]]) -> float:
    """Share of the boxes' area, each on its source, that what was fetched covers."""
    whole = held = 0.0
    unit = (np.arange(_ACROSS) + 0.5) / _ACROSS
    for (x0, y0, x1, y1), source in boxes:
        patches = np.array([patch for number, *patch in said.fetched if number == source]).reshape(-1, 4)
        x, y = (x0 + (x1 - x0) * unit)[None, :, None], (y0 + (y1 - y0) * unit)[:, None, None]
        inside = (x >= patches[:, 0]) & (x < patches[:, 2]) & (y >= patches[:, 1]) & (y < patches[:, 3])
        area = max((x1 - x0) * (y1 - y0), 1e-6)
        whole, held = whole + area, held + area * float(inside.any(-1).mean())
    return held / whole if whole else 0.0
