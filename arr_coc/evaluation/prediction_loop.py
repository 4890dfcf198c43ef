"""From questions to predictions: the loop that batches, encodes and generates for all evaluations."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm
from transformers.utils import cached_file

from ..attached import AttachedReader
from ..data.records import HeldImage, Record, of_line, opened
from ..modeling.image_encoding import ImageEncoding
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.processing_arr_coc import checked_questions
from .answers import (
    PeerChoices,
    ask,
    attached_prediction,
    boxes_of_each,
    check_arms,
    check_record,
    digest_of,
    encode,
    encode_document,
    load_images,
    needs_views,
    open_sources,
    view_prediction,
)
from .arms import Arm
from .scores import Prediction, boxed_patches, image_digest, prediction


def other_pages(
    model: ArrCocForConditionalGeneration, images: Sequence[Path | HeldImage]
) -> Callable[[Path | HeldImage], Path | HeldImage]:
    """A function that gives for each image of the data the next image with other pixels.

    Images are in the order of their first use in the data; the first follows the last. Images with the same pixels are
    one page, so a copy is not another page. The choice depends on the data alone, not on batches. The function raises a
    ValueError if all pages are the same.
    """
    distinct = list(dict.fromkeys(images))
    digest = cache(lambda image: image_digest(*load_images(model, [image])))

    def after(image: Path | HeldImage) -> Path | HeldImage:
        place = distinct.index(image)
        for other in (*distinct[place + 1 :], *distinct[:place]):
            if digest(other) != digest(image):
                return other
        raise ValueError('arms: expected more than one page for "other_base"; got one')

    return after


def as_read(arm: Arm, encoding: ImageEncoding, images: Tensor, others: Tensor) -> ImageEncoding:
    """The images number `images` [I] of an encoding, with the base tokens that the language model reads under `arm`.
    `others` [I]: the numbers of their other pages in the encoding, whose base tokens and prefill "other_base" takes."""
    own = encoding.select(images)
    if arm.rule != "other_base":
        return own.without_base() if arm.rule == "patches_only" else own
    other = encoding.select(others)
    names = ("tokens", "closing", "prefix_ids", "prefix_cache")
    return replace(own, page_cache=None, **{name: getattr(other, name) for name in names})


MAX_NEW_TOKENS = 32  # the most tokens of an answer if the checkpoint's generation config sets no limit


class Item(NamedTuple):
    """A record and its number among all records."""

    place: int
    record: Record


def new_tokens(model: ArrCocForConditionalGeneration) -> int:
    """The most tokens of an answer."""
    return model.generation_config.max_new_tokens or MAX_NEW_TOKENS


def by_image(records: Sequence[Record]) -> list[list[Item]]:
    """The records of each image or document, in the order of their first use."""
    groups: dict[tuple[Path | HeldImage, ...], list[Item]] = {}
    for place, record in enumerate(records):
        groups.setdefault(record.images, []).append(Item(place, record))
    return list(groups.values())


def parts(
    arms: Sequence[Arm], items: Sequence[Item], size: Callable[[Arm], int]
) -> Iterator[tuple[Arm, str, int | None, Sequence[Item]]]:
    """Each arm with the name and seed of each of its runs and each part of the items, of at most `size(arm)`."""
    for arm in arms:
        count = max(1, size(arm))
        for run, seed in arm.runs.items():
            for start in range(0, len(items), count):
                yield arm, run, seed, items[start : start + count]


def predict_all(
    model: ArrCocForConditionalGeneration | AttachedReader,
    arms: Sequence[Arm],
    records: Sequence[Record],
    *,
    batch_size: int = 32,
    tiles: str | int | None = None,
    progress: bool = True,
) -> Iterator[tuple[str, dict[int, Prediction]]]:
    """Yields the name of a run and a part of its predictions by the record's place, until all questions are answered.

    Args:
        model: with a processor, in evaluation mode meanwhile; or a reader of a published model.
        arms: arms whose runs answer every record.
        batch_size: questions per batch at the model's usual number of image tokens; fewer for arms with more tokens.
        tiles: see `views.ViewOptions`; None: one view per image, but views of documents and of several images.

    Raises:
        ValueError: an image that cannot be read, or boxes outside it; and of our own models, before anything is asked,
            also a question that `generate` refuses, or an arm that needs a single view where there are several.
            Messages about records name their line.
    """
    groups = by_image(records)
    network: Any = model
    steps: Iterable[Iterator[tuple[str, dict[int, Prediction]]]]
    if isinstance(model, AttachedReader):
        network, steps = model.model, (_predict_attached(model, arms, group, batch_size, records) for group in groups)
    else:
        steps = _own_steps(model, arms, records, groups, batch_size, tiles)
    total = len(records) * sum(len(arm.runs) for arm in arms)
    was_training = network.training
    network.eval()
    try:
        with tqdm(total=total, unit="answer", disable=None if progress else True) as bar:
            for run, predictions in chain.from_iterable(steps):
                yield run, predictions
                bar.update(len(predictions))
    finally:
        network.train(was_training)


def _own_steps(
    model: ArrCocForConditionalGeneration,
    arms: Sequence[Arm],
    records: Sequence[Record],
    groups: Sequence[list[Item]],
    batch_size: int,
    tiles: str | int | None,
) -> list[Iterator[tuple[str, dict[int, Prediction]]]]:
    """The parts of `predict_all` for one of our own models, whose questions and images are checked first."""
    processor = model.processor
    for record in records:
        with of_line(record.line):
            checked_questions(record.question, processor.control_tokens, processor.count_tokens)
    other_page = other_pages(model, [record.image for record in records])
    documents, images = list[list[Item]](), list[list[Item]]()
    for group in groups:
        (documents if needs_views([item.record for item in group], tiles) else images).append(group)
    if documents:
        check_arms(arms, model.config.vision_config.image_size)
    for group in documents:
        with of_line(group[0].record.line):
            sizes = [(source.height, source.width) for source in open_sources(model, group[0].record, tiles)[0]]
        for _, own in group:
            check_record(own, sizes)
    for group in images:
        if isinstance(source := group[0].record.image, Path):  # others are in memory, or drawn: they are read later
            with of_line(group[0].record.line):
                (image,) = load_images(model, [source])
            _check_boxes(model, group, {source: image})
    return [
        *(_predict_batch(model, arms, batch, other_page, batch_size) for batch in _batches(images, batch_size)),
        *(_predict_document(model, arms, group, tiles, batch_size) for group in documents),
    ]


def _batches(groups: Sequence[list[Item]], batch_size: int) -> Iterator[list[Item]]:
    """Batches of whole images, each of at least `batch_size` items except the last."""
    batch: list[Item] = []
    for group in groups:
        batch += group
        if len(batch) >= batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


def _predict_batch(
    model: ArrCocForConditionalGeneration,
    arms: Sequence[Arm],
    batch: Sequence[Item],
    other_page: Callable[[Path | HeldImage], Path | HeldImage],
    batch_size: int,
) -> Iterator[tuple[str, dict[int, Prediction]]]:
    """All runs' predictions for a few images. Images are loaded once, and encoded once per size."""
    sources = list(dict.fromkeys(item.record.image for item in batch))
    swapped = any(arm.rule == "other_base" for arm in arms)
    others = {image: other_page(image) if swapped else image for image in sources}
    sources = list(dict.fromkeys((*sources, *others.values())))
    lines = {item.record.image: item.record.line for item in batch}
    images: list[Image.Image] = []
    for source in sources:
        with of_line(lines.get(source)):  # another page may be of another batch
            images += load_images(model, [source])
    _check_boxes(model, batch, dict(zip(sources, images, strict=True)))
    encodings: dict[int, ImageEncoding] = {}
    choices, usual = PeerChoices(model, arms), sum(model.config.vision_tokens())
    for arm, run, seed, part in parts(arms, batch, lambda arm: batch_size * usual // max(usual, arm.tokens)):
        if arm.side not in encodings:
            encodings[arm.side] = encode(model, images, arm.side)
        slots = [sources.index(item.record.image) for item in part]
        beside = [sources.index(others[item.record.image]) for item in part]
        encoding = as_read(arm, encodings[arm.side], torch.tensor(slots), torch.tensor(beside))
        asked = [item.record for item in part]
        answers = ask(model, arm, asked, encoding, seed=seed, choices=choices, max_new_tokens=new_tokens(model))
        answered = zip(part, answers, slots, strict=True)
        yield run, {at: prediction(own.line, said, encoding, images[slot]) for (at, own), said, slot in answered}


def _predict_document(
    model: ArrCocForConditionalGeneration,
    arms: Sequence[Arm],
    group: Sequence[Item],
    tiles: str | int | None,
    batch_size: int,
) -> Iterator[tuple[str, dict[int, Prediction]]]:
    """All runs' predictions for one document, whose sources are encoded once."""
    encoding, digest = encode_document(model, group[0].record, tiles)
    for arm, run, seed, part in parts(arms, group, lambda arm: batch_size // len(encoding)):  # each uses all sources
        asked = [item.record for item in part]
        answers = ask(model, arm, asked, encoding, seed=seed, max_new_tokens=new_tokens(model))
        answered = zip(part, answers, strict=True)
        yield run, {at: view_prediction(own.line, said, encoding, digest) for (at, own), said in answered}


def _predict_attached(
    reader: AttachedReader, arms: Sequence[Arm], group: Sequence[Item], batch_size: int, records: Sequence[Record]
) -> Iterator[tuple[str, dict[int, Prediction]]]:
    """All runs' predictions of a reader for the images of one prompt, which are encoded once; "random" draws for each
    question alone."""
    decoding: dict[str, Any] = {"do_sample": False, "max_new_tokens": new_tokens(reader.model), "return_fetch": True}
    first = group[0].record
    with of_line(first.line):
        encoding = reader.encode_image([[opened(image) for image in first.images]])
    sizes = [(source.height, source.width) for source in encoding.prompts[0].sources]
    for item in group:
        check_record(item.record, sizes)
    digest = digest_of(first.images)
    for arm, run, seed, part in parts(arms, group, lambda arm: 1 if arm.strategy == "random" else batch_size):
        asked = [item.record for item in part]
        drawn = part[0].place + (0 if seed is None else seed * len(records))
        fetching: dict[str, Any] = {"strategy": arm.strategy, "budget": arm.budget, "seed": drawn}
        if arm.strategy == "oracle":
            fetching["boxes"] = boxes_of_each(asked, len(sizes))
        fetching["history"] = [list(own.history) for own in asked]
        answers = reader.generate(encoding, [own.question for own in asked], **fetching, **decoding)
        answered = zip(part, answers, strict=True)
        yield run, {at: attached_prediction(own.line, said, encoding, sizes, digest) for (at, own), said in answered}


def _check_boxes(
    model: ArrCocForConditionalGeneration, batch: Sequence[Item], images: Mapping[Path | HeldImage, Image.Image]
) -> None:
    """Refuses boxes outside their image, before any question is asked."""
    vision = model.config.vision_config
    for _, record in batch:
        image = images[record.image]
        grid = vision.image_size // vision.patch_size
        boxed_patches(record, (image.height, image.width), grid, vision.patch_size)


WEIGHTS = frozenset((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"))
"""Endings of the files that hold weights, also of adapters."""


def weights_hash(model: ArrCocForConditionalGeneration) -> str:
    """SHA-256 of the files that hold a model's weights, in any format."""
    return hash_files(weight_files(model.config._name_or_path))


def answering_hash(model: Any, name: str | None) -> str:
    """SHA-256 of weights and settings of a model that was loaded by `name`, our own or a published one. The folder of a
    published model's trained scorer has its weights; those of the model itself are elsewhere."""
    paths = weight_files(model.config._name_or_path)
    if name is not None and Path(name).is_dir():
        paths += [path for path in weight_files(name) if path not in paths]
    settings = [model.config.to_json_string(), model.generation_config.to_json_string()]
    return hashlib.sha256("".join([hash_files(paths), *settings]).encode()).hexdigest()


def weight_files(source: str) -> list[Path]:
    """All weight files of a checkpoint (a folder, or a repository's name), sorted by name."""
    folder = Path(source)
    if not folder.is_dir():
        config = cached_file(source, "config.json")
        assert config is not None  # cached_file raises if there is none
        folder = Path(config).parent
    return sorted(path for path in folder.rglob("*") if path.suffix in WEIGHTS)


def hash_files(paths: Iterable[Path]) -> str:
    """SHA-256 of the files' contents, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return digest.hexdigest()
