"""GQA (Hudson and Manning 2019): compositional questions about photographs (cs.stanford.edu/people/dorarad/gqa).

Questions `{QUESTION_ID: {"question", "answer", "imageId", "types": {"structural", "semantic", "detailed"}}}`, in one
file or in the parts that lie in one folder; images `IMAGEID.jpg`. With `scene_graphs`,
`{IMAGEID: {"objects": {ID: {"x", "y", "w", "h"}}}}` in px, the objects that an answer is about are boxes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...modeling.image_processing_arr_coc import Box
from ..fields import image_file, require, shorten, text_of
from ..records import Record, Row
from .base import FORMATS, FileFormat, check_folder, read_json, tags_of


@FORMATS.register("gqa")
@dataclass(frozen=True)
class Gqa(FileFormat):
    """`path`: the questions, a file or a folder of parts; `images`: the folder; `scene_graphs`: for boxes."""

    metric = "gqa_accuracy"
    places = ("path", "images", "scene_graphs")

    images: Path
    scene_graphs: Path | None = None

    @property
    def _parts(self) -> list[Path]:
        return sorted(self.path.glob("*.json")) if self.path.is_dir() else [self.path]

    @property
    def files(self) -> list[Path]:
        return [*self._parts, *([] if self.scene_graphs is None else [self.scene_graphs])]

    @cached_property
    def _scenes(self) -> dict[str, Any]:
        return {} if self.scene_graphs is None else read_json(self.scene_graphs)

    def rows(self) -> Iterator[Row]:
        check_folder(self.images, "images")
        _ = self._scenes  # read now: its faults are no record's
        number = 0
        for path in self._parts:
            content = read_json(path)
            if not isinstance(content, dict):
                raise ValueError(f"{path}: expected an object of questions by id; got {shorten(content)}")
            for name, asked in content.items():
                number += 1
                yield Row(f"{path}, question {name}", number, asked)

    def record(self, row: Row) -> Record:
        asked = row.content
        require(asked, "imageId", "question", "answer")
        image = image_file(self.images, f"{asked['imageId']}.jpg")
        tags = tags_of(asked.get("types"), "structural", "semantic", "detailed")
        answers = (text_of(asked, "answer"),)
        return Record(image, text_of(asked, "question"), answers, self._boxes(asked), row.number, tags=tags)

    def _boxes(self, asked: dict[str, Any]) -> tuple[Box, ...]:
        """Of the objects that the answer's words stand for; questions answered by yes or no have none."""
        objects = self._scenes.get(asked["imageId"], {}).get("objects", {})
        named = (asked.get("annotations") or {}).get("answer") or {}
        places = [objects[name] for name in dict.fromkeys(named.values()) if name in objects]
        for place in places:
            require(place, "x", "y", "w", "h")
        corners = [(float(place["x"]), float(place["y"]), float(place["w"]), float(place["h"])) for place in places]
        return tuple((x, y, x + width, y + height) for x, y, width, height in corners)
