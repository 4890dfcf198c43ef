"""TextVQA (Singh et al. 2019): text in photographs, the answers of ten people (textvqa.org).

Questions `{"data": [{"image_id", "question", "answers": [str]}]}`, images `IMAGE_ID.jpg`. Optionally what Rosetta read,
`{"data": [{"image_id", "ocr_info": [{"word", "bounding_box": {"top_left_x", "top_left_y", "width", "height"}}]}]}` in
shares of the image's sides: the boxes of tokens that spell an answer. Their rotation is not followed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...modeling.image_processing_arr_coc import Box
from ..fields import answers_of, image_file, numbers_of, require, text_of
from ..matching import OcrToken, locate, reading_order, within
from ..records import Record, Row
from .base import FORMATS, FileFormat, check_folder, image_size, list_in, numbered, tags_of

_CORNERS = (("top_left_x", "topLeftX"), ("top_left_y", "topLeftY"))
"""Names of a box's corner: the releases of the file differ."""


@FORMATS.register("textvqa")
@dataclass(frozen=True)
class TextVqa(FileFormat):
    """`path`: the questions; `images`: the folder; `ocr`: what Rosetta read there, for boxes."""

    metric = "textvqa_accuracy"
    places = ("path", "images", "ocr")

    images: Path
    ocr: Path | None = None

    @property
    def files(self) -> list[Path]:
        return [self.path, *([] if self.ocr is None else [self.ocr])]

    @cached_property
    def _read(self) -> dict[str, list[Any]]:
        """Image id -> its `ocr_info`."""
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
        _ = self._read  # now: its faults are no record's
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
            tokens.append(OcrToken(str(info["word"]), _box(info["bounding_box"], width, height)))
        return locate(answers, reading_order(within(tokens, width, height)))


def _box(shares: Any, width: int, height: int) -> Box:
    """A box in px from shares of the image's sides."""
    require(shares, "width", "height")
    corner = [next((shares[name] for name in names if name in shares), None) for names in _CORNERS]
    x, y, across, down = numbers_of([*corner, shares["width"], shares["height"]], "bounding_box", 4)
    return (x * width, y * height, (x + across) * width, (y + down) * height)
