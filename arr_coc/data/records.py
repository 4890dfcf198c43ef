"""Questions with known answers, one JSON object per line.

`{"image": path, "question": str, "answers": [str], "boxes": [[x0, y0, x1, y1]], "label_box": [x0, y0, x1, y1]}`: the
path is relative to the file, any of the answers is right. Optional, in px of the image, ends exclusive: `boxes` (where
the answer stands) and `label_box` (the words beside it that say it is the answer: strategy "oracle" fetches them too).
Any other fields that hold a string are tags: `arr-coc experiment` tells scores apart by them.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..modeling.image_processing_arr_coc import Box

_FIELDS = ("image", "question", "answers", "boxes", "label_box")


@dataclass(frozen=True)
class Record:
    """One question: `image` as an absolute path, boxes empty where none are known, `line` counted from 1.

    `tags`: other fields of the record that hold a string, by name.
    """

    image: Path
    question: str
    answers: tuple[str, ...]
    boxes: tuple[Box, ...] = ()
    line: int = 0
    label_boxes: tuple[Box, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()


def read_records(path: str | Path, *, limit: int | None = None) -> list[Record]:
    """The records of a JSONL file; empty lines are skipped.

    Args:
        path: the file.
        limit: read the first so many only.

    Raises:
        ValueError: an unreadable line, a missing image, no records at all; the message names file and line.
        OSError: the file cannot be read.
    """
    path = Path(path).absolute()
    if limit is not None and limit < 1:
        raise ValueError(f"limit: expected at least 1 record; got {limit}")
    records: list[Record] = []
    try:
        with path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    records.append(_record(line, path.parent, f"{path}, line {number}", number))
                if len(records) == limit:
                    break
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected UTF-8 text; got {error.reason} at byte {error.start}") from error
    if not records:
        raise ValueError(f"{path}: expected one JSON object per line; got an empty file")
    return records


def _record(text: str, folder: Path, where: str, number: int) -> Record:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: expected a JSON object; got {_shorten(text)} ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{where}: expected a JSON object; got {_shorten(text)}")
    for field in ("image", "question", "answers"):
        if field not in content:
            raise ValueError(f"{where}: expected image, question and answers; got no {field}")
    for field in ("image", "question"):
        if not isinstance(content[field], str) or not content[field].strip():
            raise ValueError(f"{where}: {field}: expected a non-empty string; got {_shorten(content[field])}")
    answers = content["answers"]
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"{where}: answers: expected a non-empty list of strings; got {_shorten(answers)}")
    image = folder / content["image"]
    if not image.is_file():
        raise ValueError(f"{where}: image: expected a file, relative to {folder}; got {content['image']!r}")
    boxes = tuple(_box(box, where) for box in _list(content.get("boxes"), where))
    labels = () if content.get("label_box") is None else (_box(content["label_box"], where, "label_box"),)
    tags = tuple((name, value) for name, value in content.items() if isinstance(value, str) and name not in _FIELDS)
    return Record(image, content["question"], tuple(answers), boxes, number, labels, tags)


def _list(boxes: Any, where: str) -> list[Any]:
    if boxes is None:
        return []
    if not isinstance(boxes, list):
        raise ValueError(f"{where}: boxes: expected a list of [x0, y0, x1, y1]; got {_shorten(boxes)}")
    return boxes


def _box(box: Any, where: str, name: str = "boxes") -> Box:
    numbers = isinstance(box, list) and len(box) == 4 and all(type(edge) in (int, float) for edge in box)
    if not numbers or not all(map(math.isfinite, box)) or box[0] > box[2] or box[1] > box[3]:
        raise ValueError(f"{where}: {name}: expected [x0, y0, x1, y1] with x0 <= x1 and y0 <= y1; got {_shorten(box)}")
    return (float(box[0]), float(box[1]), float(box[2]), float(box[3]))


def _shorten(value: Any, length: int = 60) -> str:
    text = repr(value.strip() if isinstance(value, str) else value)
    return text if len(text) <= length else f"{text[:length]}..."
