"""Feedback on answers, kept in a journal: right or wrong, the right answer, and its place.

The image alone determines whether feedback is for training or held out, so that no page is ever in both.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..journal import JournalEntry, read_entry, read_journal
from ..modeling.image_processing_arr_coc import Box
from .records import NOT_ON_THE_PAGE, HeldImage, Record, boxes_of, require, shorten, text_of

JOURNAL = "feedback"  # the journal's name, with which the names of its files begin

Part = Literal["all", "learned", "held_out"]

_HELD_OUT = 3  # one image in this number is held out


@dataclass(frozen=True)
class Feedback:
    """A user's feedback on an answer: what the model said and what is right, if known.

    `boxes`: of the right answer and of its label, px of the image; `history`: earlier questions about the image and
    their answers; `time`: in ISO 8601.
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
        """The content of its journal entry."""
        fields: dict[str, Any] = {**vars(self), "image": base64.b64encode(self.image).decode()}
        return fields


def read_feedback(folder: Path, part: Part = "all") -> Iterator[Record]:
    """Questions with right answers from feedback; of several entries about one question, the last counts.

    Entries that only mark an answer as wrong are skipped. Images are read on demand.

    Raises:
        ValueError: no such journal, or a damaged entry, whose place the message names.
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


def _record(entry: JournalEntry, number: int) -> tuple[Record, str]:
    """The entry as a record, without answers if no right one is known; and its image's SHA-256."""
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
