"""Feedback on answers, kept in a journal: right or wrong, the right answer, and its place.

What is learned and what is held out is told by the image alone, so that no page is ever in both, however much follows.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..journal import Entry, read_entry, read_journal
from ..modeling.image_processing_arr_coc import Box
from .records import NOT_ON_THE_PAGE, HeldImage, Record, boxes_of, require, shorten, text_of

JOURNAL = "feedback"
"""The journal's name, which its files begin with."""

Part = Literal["all", "learned", "held_out"]

_HELD_OUT = 3
"""One image in so many is held out."""


@dataclass(frozen=True)
class Feedback:
    """What somebody said of an answer.

    Attributes:
        image: its encoded content.
        question: about it.
        right: whether the model's answer was.
        said: that answer, if it is known.
        answer: the right one, if it is known.
        boxes: where it is, and what says that it is the answer, px of the image; none where that is not known.
        history: earlier questions about the image and their answers.
        time: in ISO 8601.
        version: of the scorer that led to the answer.
    """

    image: bytes
    question: str
    right: bool
    said: str | None = None
    answer: str | None = None
    boxes: tuple[Box, ...] = ()
    history: tuple[tuple[str, str], ...] = ()
    time: str = ""
    version: str = ""

    def content(self) -> dict[str, Any]:
        """The entry of a journal."""
        fields: dict[str, Any] = {**vars(self), "image": base64.b64encode(self.image).decode()}
        return fields


def read_feedback(folder: Path, part: Part = "all") -> Iterator[Record]:
    """Questions with the right answers from feedback; of several about one question the last counts.

    Where it was only said that an answer is wrong, there is nothing to learn. Images are read when they are needed.

    Raises:
        ValueError: no such journal, or a damaged entry; the message says where it is.
    """
    latest: dict[Any, Record] = {}
    for number, entry in enumerate(read_journal(folder.absolute(), JOURNAL), 1):
        record, image = _record(entry, number)
        asked = (image, record.question, record.history)
        latest.pop(asked, None)
        latest[asked] = record
    for (image, *_), record in latest.items():
        held_out = int(image[:8], 16) % _HELD_OUT == 0
        if record.answers and part in ("all", "held_out" if held_out else "learned"):
            yield record


def _record(entry: Entry, number: int) -> tuple[Record, str]:
    """The entry as a record, without answers where none is known to be right; and its image's SHA-256."""
    content = entry.content
    try:
        require(content, "image", "question", "right")
        key = hashlib.sha256(_image(content)).hexdigest()
        right, question = content["right"], text_of(content, "question")
        answer = content.get("answer") or (content.get("said") if right else None)
        if not isinstance(right, bool) or not isinstance(answer, str | None):
            raise ValueError(f"right, answer: expected true or false, and text; got {shorten((right, answer))}")
        boxes = boxes_of(content.get("boxes"))
        history = tuple((str(asked), str(said)) for asked, said in content.get("history") or ())
    except (ValueError, TypeError) as error:
        raise ValueError(f"{entry.where}: {error}") from error
    image = HeldImage(key, partial(_read_image, entry.path, entry.offset))
    answers = (answer,) if answer is not None and answer.strip() else ()
    absent = answers == (NOT_ON_THE_PAGE,) and not boxes
    return Record(image, question, answers, boxes, number, absent=absent, history=history), key


def _image(content: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(text_of(content, "image"), validate=True)
    except binascii.Error as error:
        raise ValueError(f"image: expected base64; got {shorten(content['image'])}") from error


def _read_image(path: Path, offset: int) -> bytes:
    return _image(read_entry(path, offset).content)
