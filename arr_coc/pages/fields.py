"""Names of fields of real documents by domain, with synonyms and kinds of values.

A line of a domain: `Name = synonym = synonym ~ kind of value`, see `values.KINDS`. The page prints one of the names, a
question can use another; all are held out together. Terms of receipts, invoices and letters for the same concept are
listed as: training | validation | test.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from .splits import SPLITS, Split, Words, items_of, listed, pairs, pool, share

LANGUAGES = ("German", "French", "Spanish")
"""Languages of terms beside English, which stands in for those that they lack."""


@lru_cache(maxsize=1)
def terms() -> dict[str, dict[Split, tuple[str, ...]]]:
    """Terms by concept and split; those of another language have its name before the concept."""
    table: dict[str, dict[Split, tuple[str, ...]]] = {}
    for concept, parts in items_of("terms.txt", "|").items():
        own = (tuple(term.strip() for term in part.split(";")) for part in parts)
        table[concept] = dict(zip(SPLITS, own, strict=True))
    return table


def term(random: Random, concept: str, split: Split, language: str = "English") -> tuple[str, ...]:
    """All terms of a concept in random order; the first is for the page."""
    own = terms().get(f"{language} {concept}", terms()[concept])[split]
    return tuple(random.sample(own, len(own)))


@dataclass(frozen=True)
class Field:
    """A field of a document: its names, the printed one first, and the kind of its value."""

    names: tuple[str, ...]
    kind: str
    concept: str = ""  # what it means, a key of terms.txt, if it is one of these
    lines: tuple[str, ...] = ()  # the value; empty if it is to be drawn by its kind

    @property
    def name(self) -> str:
        """The printed name."""
        return self.names[0]

    def __str__(self) -> str:
        return "/".join(sorted(self.names))


@lru_cache(maxsize=1)
def domains() -> dict[str, tuple[Field, ...]]:
    """Fields by domain."""
    table: dict[str, tuple[Field, ...]] = {}
    for domain, entries in items_of("fields.txt").items():
        pairs = (entry.split("~") for entry in entries)
        table[domain] = tuple(Field(tuple(n.strip() for n in names.split("=")), kind.strip()) for names, kind in pairs)
    return table


@lru_cache(maxsize=64)
def fields_of(domain: str, split: Split) -> tuple[Field, ...]:
    """A split's fields of a domain, without names that are terms of another split."""
    fields = domains()[domain]
    # nearly every document has general fields: all names of half of them are in training
    own = share(fields, split, "field", core=len(fields) // 2 if domain == "general" else 0)
    others = {
        name.casefold() for own in terms().values() for other, names in own.items() if other != split for name in names
    }
    kept = (Field(tuple(name for name in field.names if name.casefold() not in others), field.kind) for field in own)
    return tuple(field for field in kept if field.names)


@lru_cache(maxsize=4)
def all_fields(split: Split) -> tuple[Field, ...]:
    """A split's fields of all domains."""
    return tuple(field for domain in domains() for field in fields_of(domain, split))


_INVENTED_KINDS = listed("kinds of invented fields")
_ENDINGS = pairs("endings of invented fields")


class FieldNames:
    """Draws fields of a split: of a domain, of any domain, or with invented names."""

    def __init__(self, random: Random, split: Split) -> None:
        self.random, self.split, self.words = random, split, Words(random, split)

    def invented(self) -> Field:
        """A field with a name of dictionary words or made-up words."""
        name, kind = self.words.thing(), self.random.choice(_INVENTED_KINDS)
        if self.random.random() < 0.25:
            ending, kind = self.random.choice(list(_ENDINGS.items()))
            name = f"{self.words.noun()} {ending}"
        return Field((name[0].upper() + name[1:],), kind)

    def domain(self) -> str:
        """The name of a random domain."""
        return self.random.choice(list(domains()))

    def title(self, domain: str) -> str:
        """A heading for a document of a domain."""
        noun, adjective = self.words.noun(), self.words.adjective()
        starts = (noun, f"{adjective} {noun}", domain.rsplit(" ", 1)[0])
        ending = self.random.choice(pool("title", self.split))
        titles = [*(f"{start} {ending}" for start in starts), domain]
        return self.random.choices(titles, (30, 20, 43, 7))[0].title()

    def draw(self, domain: str, count: int) -> list[Field]:
        """`count` fields with different names, each with its names in random order."""
        general = fields_of("general", self.split)
        pools = (fields_of(domain, self.split), general, all_fields(self.split), ())
        drawn: list[Field] = []
        taken: set[str] = set()
        while len(drawn) < count:
            (known,) = self.random.choices(pools, (50, 22, 8, 20))
            field = self.random.choice(known) if known else self.invented()
            if taken & {name.casefold() for name in field.names}:
                field = self.invented()
            if field.name.casefold() not in taken:
                taken.update(name.casefold() for name in field.names)
                drawn.append(Field(tuple(self.random.sample(field.names, len(field.names))), field.kind))
        return drawn
