"""Rendered pages, drawn when a question about them is asked for: as many as a training wants, none on disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, overload

from PIL import Image

from ..domains import DOMAINS, Page, Variations, draw_page
from ..images import HeldImage
from ..records import MAX_ERRORS, OnError, Record
from ..splits import Split, check_split
from .base import FORMATS, Format

_DRAWN = 64
"""Pages that are kept; others are drawn again when they are needed."""


@FORMATS.register("rendered")
@dataclass(frozen=True)
class Rendered(Format):
    """Pages of one or more domains, the same in every process and whatever is asked first.

    Attributes:
        pages: how many.
        questions: about each; where a page has fewer, the first ones come again.
        seed: of everything drawn.
        size: side of a page, px.
        split: fonts, layouts, wordings and words, see `arr_coc.data.splits`.
        domains: names in `DOMAINS`, which take turns; also as text with commas between them.
        fields: of domain document, at least 4 names in place of its own.
        sources: pages, images or frames of domains that draw several; None: drawn.
        photo, absent, turns, unheard: shares, see `Variations`.
    """

    pages: int
    questions: int = 3
    seed: int = 0
    size: int = 256
    split: Split = "train"
    domains: tuple[str, ...] = ("document",)
    fields: tuple[str, ...] | None = None
    sources: int | None = None
    photo: float = 0.0
    absent: float = 0.0
    turns: float = 0.0
    unheard: float = 0.0

    def __post_init__(self) -> None:
        for name in ("pages", "questions"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a number of at least 1; got {getattr(self, name)!r}")
        check_split(self.split)
        self.variations  # noqa: B018 (refuses what is no share)
        object.__setattr__(self, "domains", _names(self.domains))
        if not self.domains:
            raise ValueError("domains: expected at least one; got none")
        for domain in self.domains:
            DOMAINS[domain]  # a ValueError where it is unknown
        if self.fields is not None:
            object.__setattr__(self, "fields", _names(self.fields))
            if self.domains != ("document",):
                raise ValueError(f"fields: expected domain document alone; got {', '.join(self.domains)}")

    @property
    def variations(self) -> Variations:
        """What is done with the pages that the domains draw."""
        return Variations(self.photo, self.absent, self.turns, self.unheard)

    @property
    def title(self) -> str:
        return f"rendered pages ({', '.join(self.domains)}), {self.split} split, seed {self.seed}"

    def read(
        self, *, limit: int | None = None, on_error: OnError = "stop", max_errors: int = MAX_ERRORS
    ) -> Sequence[Record]:
        """The records, each drawn when it is taken: none can be bad."""
        return _Drawn(self, range(self.pages * self.questions)[:limit])

    def page(self, number: int) -> Page:
        """A page, from 0."""
        domain = self.domains[number % len(self.domains)]
        return _page(domain, self.seed, number, self.size, self.split, self.fields, self.sources, self.variations)

    def record(self, number: int) -> Record:
        """A record, from 0."""
        page_number, place = divmod(number, self.questions)
        page = self.page(page_number)
        asked = page.questions[place % len(page.questions)]
        image, *others = (
            HeldImage((self, page_number, source), partial(_image, self, page_number, source))
            for source in range(len(page.sources))
        )
        tags = {
            "domain": self.domains[page_number % len(self.domains)],
            "kind": asked.kind,
            "difficulty": asked.difficulty,
            "layout": page.layout,
            "font": page.font,
            **page.told,
            **({"turn": asked.turn} if self.turns else {}),
        }
        return Record(
            image, asked.text, asked.answers, asked.boxes, number + 1, asked.label_boxes, tuple(tags.items()),
            asked.absent, asked.history, tuple(others), asked.box_sources, asked.label_sources, asked.answer_sources,
        )  # fmt: skip


def _names(names: Any) -> tuple[str, ...]:
    """A list of names, also as text with commas between them."""
    return tuple(part.strip() for part in names.split(",")) if isinstance(names, str) else tuple(names)


class _Drawn(Sequence[Record]):
    """Records of a source by number."""

    def __init__(self, source: Rendered, numbers: range) -> None:
        self.source, self.numbers = source, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> "_Drawn": ...
    def __getitem__(self, index: int | slice) -> "Record | _Drawn":
        if isinstance(index, slice):
            return _Drawn(self.source, self.numbers[index])
        return self.source.record(self.numbers[index])


@lru_cache(maxsize=_DRAWN)
def _page(
    domain: str,
    seed: int,
    number: int,
    size: int,
    split: Split,
    fields: tuple[str, ...] | None,
    sources: int | None,
    variations: Variations,
) -> Page:
    return draw_page(domain, seed, number, size, split, fields=fields, sources=sources, variations=variations)


def _image(rendered: Rendered, number: int, source: int) -> Image.Image:
    return rendered.page(number).sources[source].convert("RGB")
