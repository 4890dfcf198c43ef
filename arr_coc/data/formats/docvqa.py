"""DocVQA, single pages (Mathew et al. 2021): scanned documents, answers as they stand there (docvqa.org).

Questions `{"data": [{"question", "image": "documents/NAME.png", "answers": [str], "question_types": [str]}]}`; images
under `images`, with or without that folder. Optionally what was read, `NAME.json` of one page each,
`{"recognitionResults": [{"lines": [{"words": [{"text", "boundingBox": [x, y, ... of 4 corners]}]}]}]}` in px: the boxes
of words that spell an answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...modeling.image_processing_arr_coc import Box
from ..fields import answers_of, image_file, numbers_of, require, text_of
from ..matching import OcrToken, locate, within
from ..records import Record, Row
from .base import FORMATS, FileFormat, check_folder, image_size, list_in, numbered, tags_of


@FORMATS.register("docvqa")
@dataclass(frozen=True)
class DocVqa(FileFormat):
    """`path`: the questions; `images`: the folder (default: the questions'); `ocr`: folder of what was read."""

    metric = "anls"
    places = ("path", "images", "ocr")

    images: Path | None = None
    ocr: Path | None = None

    @property
    def files(self) -> list[Path]:
        return [self.path, *([] if self.ocr is None else sorted(self.ocr.glob("*.json")))]

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
        pages = list_in(path, "recognitionResults")
        tokens = []
        for page in pages:
            require(page, "lines")
            for line in page["lines"]:
                require(line, "words")
                tokens += [_token(word, path) for word in line["words"]]
        return locate(answers, within(tokens, *image_size(image)))


def _token(word: Any, path: Path) -> OcrToken:
    require(word, "text", "boundingBox")
    corners = numbers_of(word["boundingBox"], f"{path.name}: boundingBox", 8)
    xs, ys = corners[::2], corners[1::2]
    return OcrToken(str(word["text"]), (min(xs), min(ys), max(xs), max(ys)))
