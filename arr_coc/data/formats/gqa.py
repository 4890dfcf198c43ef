"""GQA (Hudson and Manning 2019): compositional questions about photographs (cs.stanford.edu/people/dorarad/gqa).

Questions `{QUESTION_ID: {"question", "answer", "imageId", "types": {"structural", "semantic", "detailed"}}}`, in one
file or in the parts that lie in one folder; images `IMAGEID.jpg`. With `scene_graphs`,
`{IMAGEID: {"objects": {ID: {"x", "y", "w", "h"}}}}` in px, the objects that an answer is about are boxes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...modeling.image_processing_arr_coc import Box
from ..fields import image_file, numbers_of, require, shorten, text_of
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
        """Scene graphs by image.

        Raises:
            ValueError: the file is not of the format.
        """
        if self.scene_graphs is None:
            return {}
        scenes = read_json(self.scene_graphs)
        if not isinstance(scenes, dict):
            raise ValueError(f"{self.scene_graphs}: expected an object of scene graphs by image; got {shorten(scenes)}")
        return scenes

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
        image = image_file(self.images, f"{text_of(asked, 'imageId')}.jpg")
        tags = tags_of(asked.get("types"), "structural", "semantic", "detailed")
        answers = (text_of(asked, "answer"),)
        return Record(image, text_of(asked, "question"), answers, self._boxes(asked), row.number, tags=tags)

    def _boxes(self, asked: dict[str, Any]) -> tuple[Box, ...]:
        """Of the objects that the answer's words stand for; questions answered by yes or no have none."""
        scene = _object(self._scenes.get(asked["imageId"]), "scene graph")
        objects = _object(scene.get("objects"), "objects")
        named = _object(_object(asked.get("annotations"), "annotations").get("answer"), "annotations.answer")
        places = [objects[name] for name in dict.fromkeys(map(str, named.values())) if name in objects]
        return tuple(_box(place) for place in places)


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"{name}: expected an object; got {shorten(value)}")
    return value or {}


def _box(place: Any) -> Box:
    """Where an object of a scene graph is.

    Raises:
        ValueError: it does not say so in numbers.
    """
    require(place, "x", "y", "w", "h")
    x, y, width, height = numbers_of([place[name] for name in "xywh"], "x, y, w and h", 4)
    return (x, y, x + width, y + height)
