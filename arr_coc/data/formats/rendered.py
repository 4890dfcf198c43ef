"""Rendered documents, drawn as they are asked for: the pages and questions that `arr-coc render` writes."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import get_args

import numpy as np
from PIL import Image

from ..images import HeldImage
from ..questions import ask
from ..records import Record, Row
from ..rendering import Document, render_document
from ..values import Split
from .base import FORMATS, Format

_DRAWN = 64
"""Pages that are kept; others are drawn again when they are needed."""


@FORMATS.register("rendered")
@dataclass(frozen=True)
class Rendered(Format):
    """`pages`, `questions` about each at most, `seed` of everything drawn, `size` px, `split` of fonts and layouts."""

    pages: int
    questions: int = 3
    seed: int = 0
    size: int = 256
    split: Split = "train"

    def __post_init__(self) -> None:
        for name in ("pages", "questions"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a number of at least 1; got {getattr(self, name)!r}")
        if self.split not in get_args(Split):
            raise ValueError(f"split: expected one of {', '.join(get_args(Split))}; got {self.split!r}")

    @property
    def title(self) -> str:
        return f"rendered pages, {self.split} split, seed {self.seed}"

    def rows(self) -> Iterator[Row]:
        number = 0
        for page in range(self.pages):
            document, rng = self._draw(page)
            image = HeldImage((self, page), partial(_image, self.seed, page, self.size, self.split))
            for index in rng.permutation(len(document.entries))[: self.questions]:
                entry, number = document.entries[int(index)], number + 1
                asked = ask(rng, entry.field, split=self.split)
                yield Row(f"{self.title}, page {page}", number, (image, asked, entry, document.layout, document.font))

    def record(self, row: Row) -> Record:
        image, question, entry, layout, font = row.content
        tags = (("layout", layout), ("font", font))
        return Record(image, question, (entry.value,), (entry.value_box,), row.number, (entry.label_box,), tags)

    def _draw(self, page: int) -> tuple[Document, np.random.Generator]:
        rng = np.random.default_rng((self.seed, page))
        return render_document(rng, size=self.size, split=self.split), rng


@lru_cache(maxsize=_DRAWN)
def _image(seed: int, page: int, size: int, split: Split) -> Image.Image:
    return render_document(np.random.default_rng((seed, page)), size=size, split=split).image.convert("RGB")
