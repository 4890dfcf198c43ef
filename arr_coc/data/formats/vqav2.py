"""VQA v2 (Goyal et al. 2017), real images: questions, the answers of ten people, MS COCO's images (visualqa.org).

Questions `{"data_subtype": "val2014", "questions": [{"image_id", "question", "question_id"}]}`; annotations
`{"annotations": [{"question_id", "question_type", "answer_type", "answers": [{"answer"}]}]}`; images
`COCO_val2014_000000000042.jpg`, in the folder or in one named after the subtype.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..fields import image_file, require, said_by_people, shorten, text_of
from ..records import Record, Row
from .base import FORMATS, FileFormat, check_folder, list_in, numbered, read_json, tags_of


@FORMATS.register("vqav2")
@dataclass(frozen=True)
class VqaV2(FileFormat):
    """`path`: the questions; `annotations`: the answers; `images`: MS COCO's folder."""

    metric = "vqa_accuracy"
    places = ("path", "annotations", "images")

    annotations: Path
    images: Path

    @property
    def files(self) -> list[Path]:
        return [self.path, self.annotations]

    @cached_property
    def _answered(self) -> dict[int, dict[str, Any]]:
        """Question id -> its annotation."""
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
        """Such as "val2014": part of the images' names."""
        content = read_json(self.path)
        subtype = content.get("data_subtype") if isinstance(content, dict) else None
        if not isinstance(subtype, str):
            raise ValueError(f"{self.path}: data_subtype: expected such as 'val2014'; got {subtype!r}")
        return subtype

    def rows(self) -> Iterator[Row]:
        check_folder(self.images, "images")
        questions = list_in(self.path, "questions")
        _ = self._answered, self._subtype  # read now: their faults are no record's
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
