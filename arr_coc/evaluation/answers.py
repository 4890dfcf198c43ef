"""Answers of one arm: it encodes images at the arm's size, fetches patches and decodes tokens greedily.

Several sources, or several views of one, are encoded once for all questions and arms. They share one budget
(docs/views.md).

Notation: G side of the fine grid, K fetched patches, S sources. Positions are (y, x).
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..attached.encoding import AttachedEncoding
from ..data.records import HeldImage, Record, is_document, of_line, opened
from ..modeling.answers import Answer
from ..modeling.budgets import ViewOptions
from ..modeling.fetcher import FetchChoices
from ..modeling.image_encoding import ImageEncoding
from ..modeling.image_loading import Source, load_image, load_sources, reaches
from ..modeling.image_processing_arr_coc import Box, boxes_to_patches, map_boxes
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.scorers import SCORERS, topk
from ..modeling.view_encoding import encode_sources, sources_of, take_view_options
from ..modeling.views import JointFetch
from .arms import Arm
from .peers import PEERS, PeerQuestion
from .scores import Prediction, prediction_in_views


def load_images(model: ArrCocForConditionalGeneration, images: Sequence[Path | HeldImage]) -> list[Image.Image]:
    """The images in the form that the processor takes."""
    limit = model.processor.image_processor.max_image_pixels
    return [load_image(opened(image), max_image_pixels=limit) for image in images]


@torch.no_grad()
def encode(model: ArrCocForConditionalGeneration, images: Sequence[Image.Image], side: int) -> ImageEncoding:
    """`encode_image` for images fitted into a square of `side` px, prefilled for several questions.

    Args:
        model: with a processor.
        images: from `load_images`.
        side: px, a multiple of 4 patches.
    """
    size = {"height": side, "width": side}
    inputs = model.processor.image_processor(list(images), size=size, return_tensors="pt")
    pixels, mask = inputs["pixel_values"].to(model.device), inputs["patch_mask"].to(model.device)
    encoding = model.encode_image(pixel_values=pixels, patch_mask=mask)
    return replace(encoding, source_sizes=[(image.height, image.width) for image in images])


def ask(
    model: ArrCocForConditionalGeneration,
    arm: Arm,
    records: Sequence[Record],
    encoding: ImageEncoding,
    *,
    seed: int | None = None,
    choices: "PeerChoices | None" = None,
    **settings: Any,
) -> list[Answer]:
    """The arm's greedily decoded answers.

    `encoding` holds one image per record, at the arm's side, or the sources of the one document that all are about.
    An item's random draws depend on its pixels, its question and `seed`, never on the batch, so an interrupted run
    resumes with the same answers. `choices` is shared by peers with the same questions.
    """
    fetching = FetchChoices(
        arm.strategy, arm.allocator, arm.budget, seed, overlap=arm.overlap or None, num_passes=arm.passes
    )
    if encoding.documents is not None:
        if arm.strategy == "oracle":
            settings["boxes"] = boxes_of_each(records, len(encoding))
    elif arm.rule == "uniform" or arm.rule in PEERS:
        if arm.rule == "uniform":
            patches: Sequence[Any] = _lattices(encoding, arm.budget)
        else:
            patches = (choices or PeerChoices(model, [arm])).of(arm, records, encoding)
        wanted = encoding.patch_mask.float()  # filled up with the real patches of the lowest index
        for row, chosen in zip(wanted, patches, strict=True):
            row[chosen] = 2.0
        fetching = replace(fetching, patches=topk(wanted, arm.budget))
    elif arm.strategy == "oracle":
        fetching = replace(fetching, relevance=_boxed(model, records, encoding))
    questions, history = [record.question for record in records], [record.history for record in records]
    settings |= {"choices": fetching, "history": history, "return_fetch": True, "do_sample": False}
    own = model.model.fetcher
    model.model.fetcher = own if arm.fetcher is None else arm.fetcher
    try:
        return model.generate(encoding, questions, **settings)
    finally:
        model.model.fetcher = own


class PeerChoices:
    """The patches that the peers among `arms` choose for a few questions; a peer's first arm computes them for all.

    Args:
        model: with a processor.
        arms: of an experiment.
    """

    def __init__(self, model: ArrCocForConditionalGeneration, arms: Sequence[Arm]) -> None:
        self.model = model
        self.wanted = {arm.name: (PEERS[arm.rule], arm.budget) for arm in arms if arm.rule in PEERS}
        self._kept: dict[tuple[Path | HeldImage, str], dict[str, Tensor]] = {}

    def of(self, arm: Arm, records: Sequence[Record], encoding: ImageEncoding) -> list[Tensor]:
        """The patches that `arm` keeps for each record; `encoding` holds one image per record."""
        asked = [(record.image, record.question) for record in records]
        for number, key in enumerate(asked):
            if key not in self._kept:
                question = PeerQuestion(self.model, encoding.select(torch.tensor([number])), key[1])
                self._kept[key] = {name: question.kept(*wanted) for name, wanted in self.wanted.items()}
        return [self._kept[key][arm.name] for key in asked]


def _boxed(model: ArrCocForConditionalGeneration, records: Sequence[Record], encoding: ImageEncoding) -> Tensor:
    """[I, N]: 1 on the patches under the boxes of each record's answer and of its label, else 0."""
    assert encoding.source_sizes is not None, "the images were given as files"
    rows, patch = [], model.config.vision_config.patch_size
    for record, size in zip(records, encoding.source_sizes, strict=True):
        boxes = map_boxes([*record.boxes, *record.label_boxes], *size, encoding.side * patch)
        rows.append(torch.from_numpy(boxes_to_patches(boxes, encoding.side, patch)).flatten())
    return torch.stack(rows).float().to(encoding.tokens.device)


def lattice(rows: int, columns: int, count: int) -> list[tuple[int, int]]:
    """`count` distinct cells (y, x), spread evenly over `rows` x `columns`; all cells if there are fewer."""
    if count >= rows * columns:
        return [(y, x) for y in range(rows) for x in range(columns)]
    # As square as the area allows; no row has more points than cells.
    lines = min(rows, count, max(-(-count // columns), round((count * rows / columns) ** 0.5)))
    cells = []
    for line in range(lines):
        share = (line + 1) * count // lines - line * count // lines
        y = (2 * line + 1) * rows // (2 * lines)
        cells += [(y, (2 * i + 1) * columns // (2 * share)) for i in range(share)]
    return cells


def _lattices(encoding: ImageEncoding, count: int) -> list[list[int]]:
    """A `lattice` over the real patches of each image."""
    patches = []
    for real in encoding.patch_mask.view(-1, encoding.side, encoding.side).cpu().numpy():
        ys, xs = (np.flatnonzero(real.any(axis=axis)) for axis in (1, 0))
        cells = lattice(len(ys), len(xs), count)
        patches.append([int(ys[y]) * encoding.side + int(xs[x]) for y, x in cells])
    return patches


def question_room(model: ArrCocForConditionalGeneration, records: Sequence[Record], new_tokens: int) -> int | None:
    """The image tokens that fit into the context with the longest question and its answer; None: no limit."""
    limit = getattr(model.config.text_config, "max_position_embeddings", None)
    if limit is None:
        return None
    questions, history = [record.question for record in records], [record.history for record in records]
    prompts = model.processor.prompts(questions, images=[1] * len(questions), placeholders=1, history=history)
    return limit - prompts["input_ids"].shape[1] - new_tokens


def needs_views(records: Sequence[Record], tiles: str | int | None) -> bool:
    """Whether tiles are on, or a record has several images, a PDF, a video, or a TIFF or GIF with several pages."""
    if tiles is not None or any(record.others for record in records):
        return True
    for path in {record.image for record in records if isinstance(record.image, Path)}:
        with suppress(ValueError):  # reading the image later raises the error, with the record's line
            if is_document(path):
                return True
    return False


def check_arms(arms: Sequence[Arm], side: int) -> None:
    """Refuses arms that need a single view: peers, halves, all patches, and other image sizes. Raises ValueError: an
    arm needs a single view."""
    other = [arm.name for arm in arms if arm.rule not in SCORERS or arm.side != side]
    if other:
        expected = "strategies, also STRATEGY@K and STRATEGY+ALLOCATOR, with tiles or several sources"
        raise ValueError(f"arms: expected {expected}; got {', '.join(other)}")
    if again := [arm for arm in arms if arm.passes not in (None, 1)]:
        raise ValueError(f"passes: expected one with tiles or several sources; got {again[0].passes}")


def open_sources(
    model: ArrCocForConditionalGeneration, record: Record, tiles: str | int | None = None
) -> tuple[list[Source], ViewOptions]:
    """All images, pages or frames of a record, and the view options that opened them.

    Raises:
        ValueError, OSError: a source cannot be read.
    """
    processor = model.processor.image_processor
    options, _ = take_view_options({**processor.views, **({} if tiles is None else {"tiles": tiles})})
    images = [opened(image) for image in record.images]
    loaded = load_sources(images, max_image_pixels=processor.max_image_pixels, policy=processor.sources)
    return [source for image in loaded for source in sources_of(image, options, processor.max_image_pixels)], options


def encode_document(
    model: ArrCocForConditionalGeneration, record: Record, tiles: str | int | None
) -> tuple[ImageEncoding, str]:
    """The encoding of all sources of a record for one prompt, and a digest of the sources. Raises ValueError: sources
    that cannot be read, or too many; the message names the record's line."""
    with of_line(record.line):
        sources, options = open_sources(model, record, tiles)
        encoding = encode_sources(model.model, model.processor.image_processor, [sources], options)
    if len(sources) == 1:  # a prefill covers the base tokens of the prompt's first source only
        encoding = model.prefilled(encoding)
    return encoding, digest_of(record.images)


def digest_of(images: Sequence[Path | HeldImage]) -> str:
    """16 hexadecimal digits that identify the content of a question's sources."""
    content = hashlib.blake2b(digest_size=8)
    for image in images:
        content.update(image.read_bytes() if isinstance(image, Path) else load_image(image.make()).tobytes())
    return content.hexdigest()


def check_record(record: Record, sizes: Sequence[tuple[int, int]]) -> None:
    """Refuses unknown source numbers, and boxes outside their source, whose `sizes` are (height, width). Raises
    ValueError: the message names the record's line."""
    numbers = (*record.box_sources, *record.label_sources, *record.answer_sources)
    if numbers and max(numbers) >= len(sizes):
        expected = f"numbers of sources below {len(sizes)}"
        raise ValueError(f"line {record.line}: expected {expected}; got {max(numbers)}")
    for source, (height, width) in enumerate(sizes):
        for box in record.boxes_on(source):
            if not reaches(box, height, width):
                expected = f"boxes that reach into source {source} of {width} x {height} px"
                raise ValueError(f"line {record.line}: boxes: expected {expected}; got {box}")


def all_boxes(record: Record, source: int) -> list[Box]:
    """The boxes of the answer and of its label in one source, px."""
    return [*record.boxes_on(source), *record.boxes_on(source, labels=True)]


def boxes_of_each(records: Sequence[Record], sources: int) -> list[list[Box]]:
    """`all_boxes` of each of so many sources, question by question."""
    return [all_boxes(record, source) for record in records for source in range(sources)]


def attached_prediction(
    line: int, answer: Answer, encoding: AttachedEncoding, sizes: Sequence[tuple[int, int]], digest: str
) -> Prediction:
    """The prediction for an answer of a reader about sources of `sizes`."""
    fetch: Any = answer.fetch
    indices = fetch.indices[0].cpu()
    placed = indices[encoding.prompts[0].is_place[indices]]
    best = answer.sources[int(fetch.relevance[0].cpu()[placed].argmax())].source if len(placed) else -1
    return prediction_in_views(line, answer, len(indices) + fetch.base, sizes, digest, best=best)


def view_prediction(line: int, answer: Answer, encoding: ImageEncoding, digest: str) -> Prediction:
    """The prediction for an answer about a document."""
    assert encoding.source_sizes is not None, "sources were given"
    fetch = answer.fetch
    tokens, real = len(encoding) * encoding.base_positions + int(fetch.tokens.sum()), fetch.used & ~fetch.is_padding
    if isinstance(fetch, JointFetch):
        relevance = fetch.seen.relevance[fetch.view, fetch.indices]
    else:
        relevance = fetch.own_relevance()
    best = int(relevance.masked_fill(~real, -1.0).amax(1).argmax()) if bool(real.any()) else -1
    return prediction_in_views(line, answer, tokens, encoding.source_sizes, digest, best=best, grid=encoding.side)
