"""Published formats of questions about images: ChartQA, DocVQA, GQA, TextVQA and VQA v2.

If the data has OCR tokens, an answer is located where consecutive tokens spell it, ignoring case, white space and
punctuation except between digits (12.5 is not 125). A token can hold several words of the answer, and a word can
consist of several tokens.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from ...modeling.image_processing_arr_coc import Box
from ..records import Record, Row, answers_of, image_file, numbers_of, require, said_by_people, shorten, text_of
from .base import FORMATS, FileFormat, check_folder, image_size, list_in, numbered, parts, read_json, tags_of

MOST_PLACES = 3
"""An answer in more places than this is not located, as most of the places are unrelated to the question."""

NOT_READ = frozenset(("yes", "no", "unanswerable", "answering does not require reading text in the image"))
"""Answers that are judgements, in lower case; places of these words have no meaning."""

_BETWEEN_DIGITS = re.compile(r"(?<!\d)[\W_]+|[\W_]+(?!\d)")


@dataclass(frozen=True)
class OcrToken:
    """A word from OCR, and its box, px of the image."""

    text: str
    box: Box


def spell(text: str) -> str:
    """The text normalised for comparison: letters and digits in one case and form, and punctuation between digits."""
    words = unicodedata.normalize("NFKC", text).casefold().split()
    return "".join(_BETWEEN_DIGITS.sub("", word) for word in words)


def within(tokens: Iterable[OcrToken], width: int, height: int) -> list[OcrToken]:
    """Tokens with boxes clipped to an image of `width` x `height` px, without tokens outside it."""
    inside = []
    for text, (x0, y0, x1, y1) in ((token.text, token.box) for token in tokens):
        box = (max(x0, 0.0), max(y0, 0.0), min(x1, float(width)), min(y1, float(height)))
        if box[0] < box[2] and box[1] < box[3]:
            inside.append(OcrToken(text, box))
    return inside


def reading_order(tokens: Iterable[OcrToken]) -> list[OcrToken]:
    """Tokens line by line; a token belongs to a line if its middle is within the height of the line's first token."""
    rows: list[list[OcrToken]] = []
    for token in sorted(tokens, key=lambda token: token.box[1] + token.box[3]):
        middle = (token.box[1] + token.box[3]) / 2
        row = next((row for row in rows[::-1] if row[0].box[1] <= middle <= row[0].box[3]), None)
        if row is None:
            rows.append([token])
        else:
            row.append(token)
    rows.sort(key=lambda row: median(token.box[1] for token in row))
    return [token for row in rows for token in sorted(row, key=lambda token: token.box[0])]


def locate(answers: Sequence[str], tokens: Sequence[OcrToken]) -> tuple[Box, ...]:
    """Boxes of the tokens that spell an answer, in all places; empty if no answer is found. Tokens are in reading
    order. Of several answers, the most frequent in at most `MOST_PLACES` places counts."""
    spelt = [(token, word) for token in tokens if (word := spell(token.text))]
    for answer, _ in Counter(answer.strip().casefold() for answer in answers).most_common():
        runs = [] if answer in NOT_READ else _runs(spell(answer), [word for _, word in spelt])
        if 0 < len(runs) <= MOST_PLACES:
            return tuple(spelt[place][0].box for run in runs for place in run)
    return ()


def _runs(wanted: str, words: Sequence[str]) -> list[range]:
    """Non-overlapping runs of consecutive words that spell `wanted`."""
    runs: list[range] = []
    start = 0
    while wanted and start < len(words):
        left, end = wanted, start
        while left and end < len(words) and left.startswith(words[end]):
            left, end = left[len(words[end]) :], end + 1
        if left:
            start += 1
        else:
            runs.append(range(start, end))
            start = end
    return runs


@FORMATS.register("chartqa")
@dataclass(frozen=True)
class ChartQa(FileFormat):
    """`path`: the questions, or the folder of both files; `images`: the folder (default: `png` beside them)."""

    metric = "relaxed_accuracy"
    places = ("path", "images")

    images: Path | None = None

    @property
    def _folder(self) -> Path:
        beside = (self.path if self.path.is_dir() else self.path.parent) / "png"
        return beside if self.images is None else self.images

    def rows(self) -> Iterator[Row]:
        check_folder(self._folder, "images")
        number = 1
        for path in parts(self.path):
            questions = list_in(path)
            for row in numbered(path, questions, number):
                yield row._replace(content=(path.stem, row.content))
            number += len(questions)

    def record(self, row: Row) -> Record:
        file, asked = row.content
        require(asked, "imgname", "query", "label")
        image = image_file(self._folder, text_of(asked, "imgname"))
        label = asked["label"]
        if isinstance(label, bool) or not isinstance(label, str | int | float):
            raise ValueError(f"label: expected a text or a number; got {shorten(label)}")
        return Record(image, text_of(asked, "query"), (str(label),), line=row.number, tags=(("file", file),))


@FORMATS.register("docvqa")
@dataclass(frozen=True)
class DocVqa(FileFormat):
    """`path`: the questions; `images`: the folder (default: the questions'); `ocr`: folder of OCR results."""

    metric = "anls"
    places = ("path", "images", "ocr")

    images: Path | None = None
    ocr: Path | None = None

    def rows(self) -> Iterator[Row]:
        for name in ("images", "ocr"):
            if getattr(self, name) is not None:
                check_folder(getattr(self, name), name)
        yield from numbered(self.path, list_in(self.path, "data"))

    def record(self, row: Row) -> Record:
        asked = row.content
        require(asked, "image", "question", "answers")
        name = text_of(asked, "image")
        folder = self.path.parent if self.images is None else self.images
        image = image_file(folder, name, Path(name).name)
        answers = answers_of(asked["answers"])
        boxes = () if self.ocr is None else self._boxes(self.ocr / f"{image.stem}.json", image, answers)
        tags = tags_of(asked, "question_types")
        return Record(image, text_of(asked, "question"), answers, boxes, row.number, tags=tags)

    @staticmethod
    def _boxes(path: Path, image: Path, answers: tuple[str, ...]) -> tuple[Box, ...]:
        tokens = []
        for page in list_in(path, "recognitionResults"):
            require(page, "lines")
            for line in page["lines"]:
                require(line, "words")
                for word in line["words"]:
                    require(word, "text", "boundingBox")
                    corners = numbers_of(word["boundingBox"], f"{path.name}: boundingBox", 8)
                    xs, ys = corners[::2], corners[1::2]
                    tokens.append(OcrToken(str(word["text"]), (min(xs), min(ys), max(xs), max(ys))))
        return locate(answers, within(tokens, *image_size(image)))


@FORMATS.register("gqa")
@dataclass(frozen=True)
class Gqa(FileFormat):
    """`path`: the questions, a file or a folder of parts; `images`: the folder; `scene_graphs`: for boxes."""

    metric = "gqa_accuracy"
    places = ("path", "images", "scene_graphs")

    images: Path
    scene_graphs: Path | None = None

    @cached_property
    def _scenes(self) -> dict[str, Any]:
        """Scene graphs by image."""
        if self.scene_graphs is None:
            return {}
        scenes = read_json(self.scene_graphs)
        if not isinstance(scenes, dict):
            raise ValueError(f"{self.scene_graphs}: expected an object of scene graphs by image; got {shorten(scenes)}")
        return scenes

    def rows(self) -> Iterator[Row]:
        check_folder(self.images, "images")
        _ = self._scenes  # read now, as its errors do not belong to a record
        number = 0
        for path in parts(self.path):
            content = read_json(path)
            if not isinstance(content, dict):
                raise ValueError(f"{path}: expected an object of questions by id; got {shorten(content)}")
            for name, asked in content.items():
                number += 1
                yield Row(f"{path}, question {name}", number, asked)

    def record(self, row: Row) -> Record:
        asked = row.content
        require(asked, "imageId", "question", "answer")
        image = image_file(self.images, f"{text_of(asked, 'imageId')}.jpg")
        tags = tags_of(asked.get("types"), "structural", "semantic", "detailed")
        answers = (text_of(asked, "answer"),)
        return Record(image, text_of(asked, "question"), answers, self._boxes(asked), row.number, tags=tags)

    def _boxes(self, asked: dict[str, Any]) -> tuple[Box, ...]:
        """Boxes of the objects in the answer; none for answers yes and no."""
        scene = _object(self._scenes.get(asked["imageId"]), "scene graph")
        objects = _object(scene.get("objects"), "objects")
        named = _object(_object(asked.get("annotations"), "annotations").get("answer"), "annotations.answer")
        boxes: list[Box] = []
        for name in dict.fromkeys(map(str, named.values())):
            if name in objects:
                require(objects[name], "x", "y", "w", "h")
                x, y, width, height = numbers_of([objects[name][side] for side in "xywh"], "x, y, w and h", 4)
                boxes.append((x, y, x + width, y + height))
        return tuple(boxes)


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name}: expected an object; got {shorten(value)}")
    return value or {}


_CORNERS = (("top_left_x", "topLeftX"), ("top_left_y", "topLeftY"))
"""Names of a box's corner, which differ between releases of the file."""


@FORMATS.register("textvqa")
@dataclass(frozen=True)
class TextVqa(FileFormat):
    """`path`: the questions; `images`: the folder; `ocr`: Rosetta's OCR results, for boxes."""

    metric = "textvqa_accuracy"
    places = ("path", "images", "ocr")

    images: Path
    ocr: Path | None = None

    @cached_property
    def _read(self) -> dict[str, list[Any]]:
        """`ocr_info` by image id."""
        if self.ocr is None:
            return {}
        by_image = {}
        for row in numbered(self.ocr, list_in(self.ocr, "data")):
            try:
                require(row.content, "image_id", "ocr_info")
                by_image[row.content["image_id"]] = list(row.content["ocr_info"])
            except (ValueError, TypeError) as error:
                raise ValueError(f"{row.where}: {error}") from error
        return by_image

    def rows(self) -> Iterator[Row]:
        check_folder(self.images, "images")
        questions = list_in(self.path, "data")
        _ = self._read  # now, as its errors do not belong to a record
        yield from numbered(self.path, questions)

    def record(self, row: Row) -> Record:
        asked = row.content
        require(asked, "image_id", "question", "answers")
        image = image_file(self.images, f"{asked['image_id']}.jpg")
        answers = answers_of(asked["answers"])
        boxes = () if self.ocr is None else self._boxes(asked["image_id"], image, answers)
        return Record(image, text_of(asked, "question"), answers, boxes, row.number, tags=tags_of(asked, "set_name"))

    def _boxes(self, image_id: str, image: Path, answers: tuple[str, ...]) -> tuple[Box, ...]:
        if image_id not in self._read:
            assert self.ocr is not None
            raise ValueError(f"image_id: expected one in {self.ocr.name}; got {image_id!r}")
        width, height = image_size(image)
        tokens = []
        for info in self._read[image_id]:
            require(info, "word", "bounding_box")
            shares = info["bounding_box"]  # of the image's sides
            require(shares, "width", "height")
            corner = [next((shares[name] for name in names if name in shares), None) for names in _CORNERS]
            x, y, across, down = numbers_of([*corner, shares["width"], shares["height"]], "bounding_box", 4)
            box = (x * width, y * height, (x + across) * width, (y + down) * height)
            tokens.append(OcrToken(str(info["word"]), box))
        return locate(answers, reading_order(within(tokens, width, height)))


@FORMATS.register("vqav2")
@dataclass(frozen=True)
class VqaV2(FileFormat):
    """`path`: the questions; `annotations`: the answers; `images`: MS COCO's folder."""

    metric = "vqa_accuracy"
    places = ("path", "annotations", "images")

    annotations: Path
    images: Path

    @cached_property
    def _answered(self) -> dict[int, dict[str, Any]]:
        """Annotations by question id."""
        by_question: dict[int, dict[str, Any]] = {}
        for place, annotation in enumerate(list_in(self.annotations, "annotations")):
            where = f"{self.annotations}, annotation {place + 1}"
            if not isinstance(annotation, dict) or "question_id" not in annotation:
                raise ValueError(f"{where}: expected an object with question_id; got {shorten(annotation)}")
            question = annotation["question_id"]
            if question in by_question:
                raise ValueError(f"{where}: expected one annotation per question_id; got {question} again")
            by_question[question] = annotation
        return by_question

    @cached_property
    def _subtype(self) -> str:
        """The subtype in the images' names, such as "val2014"."""
        content = read_json(self.path)
        subtype = content.get("data_subtype") if isinstance(content, dict) else None
        if not isinstance(subtype, str):
            raise ValueError(f"{self.path}: data_subtype: expected such as 'val2014'; got {subtype!r}")
        return subtype

    def rows(self) -> Iterator[Row]:
        check_folder(self.images, "images")
        questions = list_in(self.path, "questions")
        _ = self._answered, self._subtype  # read now, as their errors do not belong to a record
        yield from numbered(self.path, questions)

    def record(self, row: Row) -> Record:
        asked = row.content
        require(asked, "image_id", "question", "question_id")
        said = self._answered.get(asked["question_id"])
        if said is None:
            raise ValueError(f"question_id: expected one in {self.annotations.name}; got {asked['question_id']}")
        require(said, "answers")
        answers = said_by_people(said["answers"])
        if type(asked["image_id"]) is not int:
            raise ValueError(f"image_id: expected a whole number; got {asked['image_id']!r}")
        name = f"COCO_{self._subtype}_{asked['image_id']:012d}.jpg"
        image = image_file(self.images, name, f"{self._subtype}/{name}")
        tags = tags_of(said, "question_type", "answer_type")
        return Record(image, text_of(asked, "question"), answers, line=row.number, tags=tags)
