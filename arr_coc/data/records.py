"""Questions with known answers, one JSON object per line.

`{"image": path, "question": str, "answers": [str], "boxes": [[x0, y0, x1, y1]], "label_box": [x0, y0, x1, y1]}`: the
path is relative to the file; any of the answers is right. Optional, in px of the image, ends exclusive: `boxes` of the
answer, and `label_box` of its label (strategy "oracle" also fetches it), or `label_boxes`, a list. Also optional:
`absent`, true if the image does not show the answer, so that no part of it is relevant (the answer is then "not on the
page", without boxes); and `history`, a list of [question, answer], the earlier turns of the chat.

A question about several sources has `images`, a list of paths, in place of `image`; a PDF, a TIFF or GIF of several
pages or a video is one `image` with several sources. Sources are counted from 0: `box_sources` and `label_sources` are
the source of each box (default: the first), `answer_sources` the sources that each have the answer. All other fields
with a string are tags, by which `arr-coc evaluate` reports scores.
"""

import json
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from PIL import Image
from transformers.utils import logging

from ..modeling.image_loading import MAX_IMAGE_PIXELS, count_pages, document_kind, open_encoded
from ..modeling.image_processing_arr_coc import Box
from ..modeling.prompt_format import NOT_ON_THE_PAGE as NOT_ON_THE_PAGE


@dataclass(frozen=True)
class HeldImage:
    """An image that is not a file. Two are the same image if their keys are equal."""

    key: Hashable  # identifies the image
    make: Callable[[], Any] = field(compare=False, repr=False)  # returns the image; can decode or draw it


def opened(image: Path | HeldImage) -> Any:
    """An argument of `load_image`: the path, or the image of a held one."""
    return image.make() if isinstance(image, HeldImage) else image


def says_absent(answer: str) -> bool:
    """Whether an answer says that the page does not have it, in any case."""
    return " ".join(answer.casefold().split()) == NOT_ON_THE_PAGE


def is_document(path: Path) -> bool:
    """Whether a file is a PDF, a video, or a TIFF or GIF of several pages; an image is opened, but not decoded.

    Raises:
        ValueError: a file that is no image either.
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        if document_kind(stream.read(1024)) is not None:
            return True
        with open_encoded(stream, str(path), MAX_IMAGE_PIXELS) as image:
            return count_pages(image, str(path)) > 1


def shorten(value: Any, length: int = 60) -> str:
    """`repr` for an error message, of at most `length` characters."""
    text = repr(value.strip() if isinstance(value, str) else value)
    return text if len(text) <= length else f"{text[:length]}..."


def require(row: Any, *names: str) -> None:
    """Refuses, by a ValueError, a row that is not a mapping, or that lacks one of the fields `names`."""
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object with {listed(names)}; got {shorten(row)}")
    for name in names:
        if name not in row:
            raise ValueError(f"expected {listed(names)}; got no {name}")


def listed(names: Sequence[str]) -> str:
    """ "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def text_of(row: Mapping[str, Any], name: str) -> str:
    """The string in the field `name`; a ValueError for another type or a blank string."""
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name}: expected a non-empty string; got {shorten(value)}")
    return value


def answers_of(value: Any, name: str = "answers") -> tuple[str, ...]:
    """The right answers, a list of strings; a ValueError if all are blank, or for another type."""
    if not isinstance(value, list | tuple) or not value or not all(isinstance(answer, str) for answer in value):
        raise ValueError(f"{name}: expected a non-empty list of strings; got {shorten(value)}")
    if not any(answer.strip() for answer in value):
        raise ValueError(f"{name}: expected an answer that is not blank; got {shorten(value)}")
    return tuple(value)


def said_by_people(value: Any) -> tuple[str, ...]:
    """The right answers, from a list of strings or of `{"answer": str}`; a ValueError for others."""
    if isinstance(value, list | tuple):
        value = [said.get("answer") if isinstance(said, Mapping) else said for said in value]
    return answers_of(value)


def numbers_of(value: Any, name: str, count: int) -> list[float]:
    """A list of `count` finite numbers; a ValueError for another type."""
    numbers = isinstance(value, list | tuple) and all(type(number) in (int, float) for number in value)
    if not numbers or len(value) != count or not all(abs(number) <= sys.float_info.max for number in value):
        raise ValueError(f"{name}: expected {count} numbers; got {shorten(value)}")
    return [float(number) for number in value]


def numbers_in(row: Mapping[str, Any], name: str, count: int | None, length: int | None = None) -> tuple[int, ...]:
    """Numbers of sources in the field `name`, below `count` and as many as `length`, if known; empty if it is missing.
    Raises ValueError: another type, or a number outside the sources."""
    value = row.get(name)
    if value is None:
        return ()
    whole = isinstance(value, list | tuple) and all(type(number) is int for number in value)
    if not whole or not all(0 <= number < (count or number + 1) for number in value):
        limit = "" if count is None else f" below {count}"
        raise ValueError(f"{name}: expected a list of numbers from 0{limit}; got {shorten(value)}")
    if length is not None and len(value) != length:
        raise ValueError(f"{name}: expected a number for each of {length} boxes; got {shorten(value)}")
    return tuple(value)


def boxes_of(value: Any, name: str = "boxes") -> tuple[Box, ...]:
    """Boxes from a list of [x0, y0, x1, y1], none from None; a ValueError for another type."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name}: expected a list of [x0, y0, x1, y1]; got {shorten(value)}")
    return tuple(box_of(box, name) for box in value)


def box_of(box: Any, name: str) -> Box:
    """A box from [x0, y0, x1, y1]; a ValueError if it is none, or ends before it starts."""
    try:
        x0, y0, x1, y1 = numbers_of(box, name, 4)
        ordered = x0 <= x1 and y0 <= y1
    except ValueError:
        ordered = False
    if not ordered:
        raise ValueError(f"{name}: expected [x0, y0, x1, y1] with x0 <= x1 and y0 <= y1; got {shorten(box)}")
    return (x0, y0, x1, y1)


def image_file(folder: Path, *names: str) -> Path:
    """The first of `names` that is a file in `folder`, as an absolute path; a ValueError if there is none."""
    for name in names:
        path = os.path.join(os.getcwd(), folder, name)  # pathlib would dominate the time of reading a large file
        if os.path.isfile(path):
            return Path(path)
    raise ValueError(f"image: expected a file, relative to {folder}; got {names[0]!r}")


logger = logging.get_logger(__name__)

OnError = Literal["stop", "skip"]

MAX_ERRORS = 100  # the number of bad records that are skipped before reading stops
_SOURCES = ("box_sources", "label_sources", "answer_sources")
_SHOWN = ("image", "images", "boxes", "label_box", "label_boxes", *_SOURCES)
_FIELDS = (*_SHOWN, "question", "answers", "absent", "history")


ALIASES = {"box": "boxes", "bbox": "boxes", "bboxes": "boxes", "answer": "answers", "labelbboxes": "label_boxes"}
"""What others call these fields; a string is a tag."""


@dataclass(frozen=True)
class Record:
    """One question: `image` is an absolute path or held, boxes are empty if unknown, `line` is counted from 1.

    A PIL image is held. `line`: without lines, the record's number in its source. `tags`: other fields of the record
    with a string, by name. `absent`: the image does not show the answer, so no patch is relevant. `history`: earlier
    questions about the image and their answers. `others`: further sources of the question after `image`; without them
    `image` can be a document. `box_sources`, `label_sources`: the source of each box, from 0; empty: the first.
    `answer_sources`: each of these sources has the answer; empty: unknown, or the answer needs several. `retained`: the
    scorer's relevance is retained on it (loss "retention"), and its boxes are not used.
    """

    image: Path | HeldImage
    question: str
    answers: tuple[str, ...]
    boxes: tuple[Box, ...] = ()
    line: int = 0
    label_boxes: tuple[Box, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    absent: bool = False
    history: tuple[tuple[str, str], ...] = ()
    others: tuple[Path | HeldImage, ...] = ()
    box_sources: tuple[int, ...] = ()
    label_sources: tuple[int, ...] = ()
    answer_sources: tuple[int, ...] = ()
    retained: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.image, Image.Image):
            object.__setattr__(self, "image", HeldImage(("memory", id(self.image)), self.image.copy))

    @property
    def located(self) -> bool:
        """Whether the patches of the answer are known, or there are none."""
        return self.absent or bool(self.boxes)

    @property
    def images(self) -> tuple[Path | HeldImage, ...]:
        """All sources of the question in order; they identify a document."""
        return (self.image, *self.others)

    def boxes_on(self, source: int, *, labels: bool = False) -> tuple[Box, ...]:
        """The boxes on a source, around the answer or around its labels."""
        boxes, sources = (self.label_boxes, self.label_sources) if labels else (self.boxes, self.box_sources)
        return tuple(box for box, own in zip(boxes, sources or (0,) * len(boxes), strict=True) if own == source)

    @property
    def picture(self) -> Any:
        """The image in a form that `load_image` accepts."""
        return opened(self.image)


@contextmanager
def of_line(line: int | None) -> Iterator[None]:
    """A context whose errors name a record's line, if it is known."""
    try:
        yield
    except (ValueError, OSError) as error:
        if line is None:
            raise
        raise ValueError(f"line {line}: {error}") from error


class Row(NamedTuple):
    """One unread record of a source: its place `where` for errors, its `number` from 1, its content."""

    where: str
    number: int
    content: Any


def check_limit(limit: int | None) -> None:
    """Raises a ValueError for a number of records below 1."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected at least 1 record; got {limit}")


def gather(
    rows: Iterable[Row],
    read: Callable[[Row], Record],
    *,
    limit: int | None = None,
    on_error: OnError = "stop",
    max_errors: int = MAX_ERRORS,
) -> list[Record]:
    """Reads the records of all rows.

    Args:
        read: converts a row into a record; its ValueError names the problem, but not its place.
        limit: the most records, from the first on; None: all.
        on_error: "skip" skips bad records with a warning that names them.
        max_errors: with more bad records than this, reading stops.

    Raises:
        ValueError: a bad record, or too many of them; invalid arguments.
    """
    check_limit(limit)
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error: expected {' or '.join(get_args(OnError))}; got {on_error!r}")
    if max_errors < 0:
        raise ValueError(f"max_errors: expected at least 0; got {max_errors}")
    records: list[Record] = []
    errors, message = 0, ""
    for row in rows:
        try:
            records.append(read(row))
        except ValueError as error:
            message = f"{row.where}: {error}"
            if on_error == "stop":
                raise ValueError(message) from error
            errors += 1
            if errors > max_errors:
                raise ValueError(f"expected at most {max_errors} bad records; got one more: {message}") from error
            logger.warning(f"{message}; skipped")
        if len(records) == limit:
            break
    if errors and not records:
        raise ValueError(f"expected at least one good record; got {errors} bad ones, the last: {message}")
    return records


def read_records(path: str | Path, **settings: Any) -> list[Record]:
    """The records of a JSONL file; empty lines are ignored. Settings are those of `gather`.

    Raises:
        ValueError: an unreadable line, a missing image, no records; the message names file and line.
        OSError: the file cannot be read.
    """
    path = Path(path).absolute()
    records = gather(lines(path), lambda row: parse(row, path.parent), **settings)
    if not records:
        raise ValueError(f"{path}: expected one JSON object per line; got an empty file")
    return records


def lines(path: Path) -> Iterator[Row]:
    """The non-blank lines of a file, unparsed.

    Raises:
        ValueError: the file is not UTF-8.
        OSError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as stream:  # Windows' editors write a mark first
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield Row(f"{path}, line {number}", number, line)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text; got {error.reason} at byte {error.start}") from error


def parse(row: Row, folder: Path) -> Record:
    """The record of a line; its image's path is relative to `folder`. Raises ValueError: not a JSON object, missing
    fields, fields of another type, or no such image."""
    try:
        content = json.loads(row.content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a JSON object; got {shorten(row.content)} ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"expected a JSON object; got {shorten(row.content)}")
    require(content, "images" if "images" in content else "image", "question", "answers")
    image, *others = _images_of(content, folder)
    question, answers = text_of(content, "question"), answers_of(content["answers"])
    boxes = boxes_of(content.get("boxes"))
    labels = boxes_of(content.get("label_boxes"), "label_boxes")
    if content.get("label_box") is not None:
        labels = (box_of(content["label_box"], "label_box"), *labels)
    for key, value in content.items():
        plain = key.casefold().replace("_", "").replace(" ", "")
        meant = ALIASES.get(plain, next((name for name in _FIELDS if name.replace("_", "") == plain), key))
        if key not in _FIELDS and meant in _FIELDS and not isinstance(value, str):
            raise ValueError(f"{key}: expected {meant}; got an unknown field")
    tags = tuple((key, value) for key, value in content.items() if isinstance(value, str) and key not in _FIELDS)
    absent, history = _absent_of(content, boxes + labels), _history_of(content.get("history"))
    count = len(others) + 1 if others else None
    boxed = numbers_in(content, _SOURCES[0], count, len(boxes))
    labelled = numbers_in(content, _SOURCES[1], count, len(labels))
    answering = numbers_in(content, _SOURCES[2], count)
    told = (image, question, answers, boxes, row.number, labels, tags, absent, history)
    return Record(*told, tuple(others), boxed, labelled, answering)


def _images_of(content: dict[str, Any], folder: Path) -> list[Path]:
    if "images" not in content:
        return [image_file(folder, text_of(content, "image"))]
    names = content["images"]
    paths = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    if "image" in content or not paths:
        raise ValueError(f"images: expected a list of paths, and no image beside it; got {shorten(names)}")
    return [image_file(folder, name) for name in names]


def _absent_of(content: dict[str, Any], boxes: tuple[Box, ...]) -> bool:
    absent = content.get("absent", False)
    if not isinstance(absent, bool):
        raise ValueError(f"absent: expected true or false; got {shorten(absent)}")
    if absent and boxes:
        raise ValueError(f"absent: expected no boxes of what the image does not show; got {shorten(boxes)}")
    return absent


def _history_of(value: Any) -> tuple[tuple[str, str], ...]:
    turns = [] if value is None else value
    pairs = isinstance(turns, list) and all(isinstance(turn, list) and len(turn) == 2 for turn in turns)
    if not pairs or not all(isinstance(text, str) and text.strip() for turn in turns for text in turn):
        raise ValueError(f"history: expected a list of [question, answer]; got {shorten(value)}")
    return tuple((question, answer) for question, answer in turns)
