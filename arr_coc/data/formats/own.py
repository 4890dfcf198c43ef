"""Our own formats: JSON lines, feedback of a server's users, alternating sources, rendered pages."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from PIL import Image

from ...journal import journal_files
from ...pages.domains import DOMAINS, Page, Variations, draw_page
from ...pages.splits import Split, check_split
from ..feedback import JOURNAL, Part, read_feedback
from ..records import HeldImage, Record, Row, check_limit, lines, parse
from .base import FORMATS, FileFormat, Format


@FORMATS.register("jsonl")
@dataclass(frozen=True)
class Jsonl(FileFormat):
    """`path`: the file; paths of images are relative to it."""

    places = ("path",)

    def rows(self) -> Iterator[Row]:
        yield from lines(self.path.absolute())

    def record(self, row: Row) -> Record:
        return parse(row, self.path.absolute().parent)


@FORMATS.register("feedback")
@dataclass(frozen=True)
class FeedbackLog(Format):
    """Feedback from `arr-coc serve --feedback`."""

    path: Path
    part: Part = "all"  # "learned", "held_out" (one image in three) or "all"

    places = ("path",)

    def __post_init__(self) -> None:
        if self.part not in get_args(Part):
            raise ValueError(f"part: expected one of {', '.join(get_args(Part))}; got {self.part!r}")

    @property
    def title(self) -> str:
        return f"{self.path} ({self.part})"

    def digest(self) -> str:
        """SHA-256 of the journal's files."""
        return hashlib.sha256(b"".join(path.read_bytes() for path in journal_files(self.path, JOURNAL))).hexdigest()

    def read(self, *, limit: int | None = None, **errors: Any) -> Sequence[Record]:
        """The records. Entries are written atomically, so a damaged entry is an error."""
        check_limit(limit)
        records = list(islice(read_feedback(self.path, self.part), limit))
        if not records:
            raise ValueError(f"{self.title}: expected feedback with right answers; got none")
        return records


@FORMATS.register("mixed")
@dataclass(frozen=True)
class Mixed(Format):
    """Equally many records of each source; shorter sources repeat until the longest ends."""

    sources: tuple[Format, ...]
    # Indices, from 0, of the sources on whose records the scorer's relevance is retained, see `Record`.
    retained: tuple[int, ...] = ()

    nested = ("sources",)

    def __post_init__(self) -> None:
        numbers = range(len(self.sources))
        told = self.retained if isinstance(self.retained, list | tuple) else (None,)
        if not all(type(number) is int and number in numbers for number in told):
            expected = f"a list of numbers of sources, 0 to {len(self.sources) - 1}"
            raise ValueError(f"retained: expected {expected}; got {self.retained!r}")

    @property
    def title(self) -> str:
        return " and ".join(source.title for source in self.sources)

    def read(self, *, limit: int | None = None, **errors: Any) -> Sequence[Record]:
        """The records of all sources in turn, renumbered."""
        check_limit(limit)
        sources = [source.read(limit=limit, **errors) for source in self.sources]
        numbers = range(len(sources) * max(map(len, sources)))
        records = OnDemand(partial(_in_turn, sources, self.retained), numbers)
        return records if limit is None else list(records[:limit])


def _in_turn(sources: Sequence[Sequence[Record]], retained: Sequence[int], number: int) -> Record:
    """The record with this number, from 0, of sources in turn."""
    turn, source = divmod(number, len(sources))
    records = sources[source]
    return replace(records[turn % len(records)], line=number + 1, retained=source in retained)


class OnDemand(Sequence[Record]):
    """The records that `make` makes of `numbers`, at every access."""

    def __init__(self, make: Callable[[int], Record], numbers: range) -> None:
        self.make, self.numbers = make, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: Any) -> Any:
        chosen = self.numbers[index]
        return OnDemand(self.make, chosen) if isinstance(index, slice) else self.make(chosen)


_DRAWN = 64  # number of pages kept in memory; others are drawn again on demand


@FORMATS.register("rendered")
@dataclass(frozen=True)
class Rendered(Format):
    """Pages of one or more domains, the same in every process and in any order of access."""

    pages: int  # number of pages
    questions: int = 3  # questions per page; if a page has fewer, the first ones repeat
    seed: int = 0  # seed of all random draws
    size: int = 256  # side of a page, px
    split: Split = "train"  # split of fonts, layouts, wordings and words, see `arr_coc.pages.splits`
    domains: tuple[str, ...] = ("document",)  # names in `DOMAINS`, which alternate; a list, or a comma-separated text
    fields: tuple[str, ...] | None = None  # for domain document, at least 4 names in place of its default
    # Shares, see `Variations`.
    photo: float = 0.0
    absent: float = 0.0
    turns: float = 0.0
    unheard: float = 0.0

    def __post_init__(self) -> None:
        for name in ("pages", "questions"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a number of at least 1; got {getattr(self, name)!r}")
        check_split(self.split)
        self.variations  # noqa: B018 (refuses invalid shares)
        object.__setattr__(self, "domains", _names(self.domains))
        if not self.domains:
            raise ValueError("domains: expected at least one; got none")
        for domain in self.domains:
            DOMAINS[domain]  # raises ValueError if unknown
        if self.fields is not None:
            object.__setattr__(self, "fields", _names(self.fields))
            if self.domains != ("document",):
                raise ValueError(f"fields: expected domain document alone; got {', '.join(self.domains)}")

    @property
    def variations(self) -> Variations:
        """The variations of the domains' pages."""
        return Variations(self.photo, self.absent, self.turns, self.unheard)

    @property
    def title(self) -> str:
        return f"rendered pages ({', '.join(self.domains)}), {self.split} split, seed {self.seed}"

    def read(self, *, limit: int | None = None, **errors: Any) -> Sequence[Record]:
        """The records, each drawn on demand; none can be bad."""
        check_limit(limit)
        return OnDemand(self.record, range(self.pages * self.questions)[:limit])

    def page(self, number: int) -> Page:
        """The page with this number, from 0."""
        return _page(self, number)

    def record(self, number: int) -> Record:
        """The record with this number, from 0."""
        page_number, place = divmod(number, self.questions)
        page = self.page(page_number)
        asked = page.questions[place % len(page.questions)]
        image = HeldImage((self, page_number), partial(_image, self, page_number))
        tags = {"domain": self.domains[page_number % len(self.domains)], "kind": asked.kind}
        tags |= {"difficulty": asked.difficulty, "layout": page.layout, "font": page.font, **page.told}
        tags |= {"turn": asked.turn} if self.turns else {}
        told = asked.label_boxes, tuple(tags.items()), asked.absent, asked.history
        return Record(image, asked.text, asked.answers, asked.boxes, number + 1, *told)


def _names(names: Any) -> tuple[str, ...]:
    """Names from a list or a comma-separated text."""
    if not isinstance(names, str | list | tuple):
        raise ValueError(f"domains, fields: expected a list of names; got {names!r}")
    return tuple(part.strip() for part in names.split(",")) if isinstance(names, str) else tuple(names)


@lru_cache(maxsize=_DRAWN)
def _page(drawn: Rendered, number: int) -> Page:
    domain, variations = drawn.domains[number % len(drawn.domains)], drawn.variations
    return draw_page(domain, drawn.seed, number, drawn.size, drawn.split, fields=drawn.fields, variations=variations)


def _image(drawn: Rendered, number: int) -> Image.Image:
    return drawn.page(number).image.convert("RGB")
