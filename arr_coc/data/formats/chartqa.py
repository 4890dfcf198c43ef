"""ChartQA (Masry et al. 2022): questions about charts, by people and by a machine (github.com/vis-nlp/ChartQA).

Questions `[{"imgname", "query", "label"}]` such as `test_human.json` and `test_augmented.json`; images in `png/`
beside them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..fields import image_file, require, shorten, text_of
from ..records import Record, Row
from .base import FORMATS, FileFormat, check_folder, list_in, numbered


@FORMATS.register("chartqa")
@dataclass(frozen=True)
class ChartQa(FileFormat):
    """`path`: the questions, or the folder of both files; `images`: the folder (default: `png` beside them)."""

    metric = "relaxed_accuracy"
    places = ("path", "images")

    images: Path | None = None

    @property
    def files(self) -> list[Path]:
        return sorted(self.path.glob("*.json")) if self.path.is_dir() else [self.path]

    @property
    def _folder(self) -> Path:
        beside = (self.path if self.path.is_dir() else self.path.parent) / "png"
        return beside if self.images is None else self.images

    def rows(self) -> Iterator[Row]:
        check_folder(self._folder, "images")
        number = 1
        for path in self.files:
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
