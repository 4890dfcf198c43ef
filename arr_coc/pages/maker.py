"""Common parts of all generated pages: a sheet, fonts, values, names of fields and questions."""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from ..modeling.checks import Registry
from .fields import LANGUAGES, Field, FieldNames, term
from .fonts import FontFace
from .question_writer import QuestionWriter
from .sheet import Colour, Pieces, Sheet, Style, advances, joined
from .splits import Split, Words, listed, pairs, pool, pools
from .values import Values

_BASIC = string.ascii_letters + string.digits + ".,:-/()$%&'#"


def on(colour: Colour, dark: int = 420) -> Colour:
    """White or black, whichever can be read on a colour."""
    return (255, 255, 255) if sum(colour) < dark else (0, 0, 0)


@dataclass(frozen=True)
class Family:
    """Faces of one family."""

    regular: FontFace
    bold: FontFace
    italic: FontFace


class Fonts:
    """The families of some faces, by use."""

    def __init__(self, faces: tuple[FontFace, ...]) -> None:
        self._faces: dict[str, list[FontFace]] = {}
        for face in faces:
            self._faces.setdefault(face.family, []).append(face)
        self._uses: dict[str, list[str]] = {}

    def use(self, family: str) -> str:
        """The use of a family: `hand`, `display`, `mono`, `plain`, or `none` if it lacks basic characters."""
        face = self._faces[family][0]
        known = advances(face.path)
        if not all(known[char] for char in _BASIC):
            return "none"
        for use, kind in (("hand", "handwriting"), ("display", "display")):
            if family.strip() in pools()[kind][1]:
                return use
        return "mono" if abs(known["i"] - known["W"]) < 0.02 else "plain"

    def families(self, use: str) -> list[str]:
        """Names of the families for a use, or of all families if there are none."""
        if not self._uses:
            for family in self._faces:
                self._uses.setdefault(self.use(family), []).append(family)
        usable = [name for key, names in self._uses.items() if key != "none" for name in names]
        return self._uses.get(use, usable)

    def draw(self, random: Random, use: str) -> Family:
        """A random family for a use."""
        faces = self._faces[random.choice(self.families(use))]
        upright = [face for face in faces if not face.italic] or faces
        regular = random.choice([face for face in upright if not face.bold] or upright)
        bold = [face for face in faces if face.bold and face.italic == regular.italic]
        italic = [face for face in faces if face.italic and face.bold == regular.bold]
        return Family(regular, bold[0] if bold else regular, italic[0] if italic else regular)


@lru_cache(maxsize=8)
def fonts_of(faces: tuple[FontFace, ...]) -> Fonts:
    """The families of some faces; measured once."""
    return Fonts(faces)


class PageMaker:
    """A page under construction; a kind of page writes on `sheet` and adds to `questions`."""

    def __init__(self, random: Random, split: Split, fonts: Fonts) -> None:
        self.random, self.split, self.fonts = random, split, fonts
        self.values, self.names, self.words = Values(random, split), FieldNames(random, split), Words(random, split)
        self.questions = QuestionWriter(random, split)
        self.sheet = Sheet(724, 1024)
        self.kind, self.layout, self.language = "", "", "English"
        self.title: Pieces = []
        self.called: tuple[str, ...] = ()  # what the page is, if its kind does not say it
        self.sharp = random.random() < 0.35  # drawn at final scale, as screens are

    def pool(self, name: str) -> tuple[str, ...]:
        """The split's items of a pool of pools.txt."""
        return pool(name, self.split)

    def one(self, name: str) -> str:
        """One of the split's items of a pool of pools.txt."""
        return self.random.choice(pool(name, self.split))

    def arrange(self, kind: str) -> str:
        """Draws the name of a layout of the split for a kind of page."""
        self.layout = self.one(f"layout of {kind}")
        return self.layout

    def ask_whole(self) -> None:
        """Asks about the page as a whole: what it is, its title and its language."""
        self.questions.gist("kind of page", self.called or pairs("names of pages")[self.kind].split("/"))
        if self.title:
            self.questions.gist("title", joined(self.title), self.title)
        if self.kind in listed("pages of a language") and self.random.random() < (self.language != "English") + 0.3:
            self.questions.gist("language", self.language)

    def speak(self) -> None:
        """Chooses the page's language, sometimes another than English."""
        if self.random.random() < 0.1:
            self.language = self.random.choice(LANGUAGES)
            self.questions.quotes = True

    def term(self, concept: str) -> tuple[str, ...]:
        """Terms of a concept in the page's language, in random order."""
        return term(self.random, concept, self.split, self.language)

    def fact(self, concept: str, value: str, kind: str = "words") -> Field:
        """A field with the terms of a concept as its names, and with a value."""
        return Field(self.term(concept), kind, concept, (value,))

    def open(self, width: int, height: int, paper: Colour = (255, 255, 255)) -> Sheet:
        """An empty sheet of a size."""
        self.sheet = Sheet(width, height, paper)
        return self.sheet

    def paper(self) -> Colour:
        """White, or nearly so."""
        if self.random.random() < 0.6:
            return (255, 255, 255)
        low = self.random.randint(236, 254)
        return (self.random.randint(low, 255), self.random.randint(low, 255), self.random.randint(low - 6, 254))

    def ink(self) -> Colour:
        """Black, or nearly so."""
        grey = self.random.choice((0, 0, 20, 40, 60))
        return (grey, grey, grey)

    def accent(self) -> Colour:
        """A dark colour, for headings, shading and bars."""
        base = [self.random.randint(0, 90), self.random.randint(20, 120), self.random.randint(60, 170)]
        self.random.shuffle(base)
        return (base[0], base[1], base[2])

    def tint(self) -> Colour:
        """A light colour, behind print."""
        low = self.random.randint(205, 240)
        return (self.random.randint(low, 255), self.random.randint(low, 255), self.random.randint(low, 255))

    def family(self, *, mono: float = 0.1, display: float = 0.0) -> Family:
        """A family for body text; `mono` and `display` are the shares of fixed-width and display families."""
        draw = self.random.random()
        return self.fonts.draw(self.random, "mono" if draw < mono else "display" if draw < mono + display else "plain")

    def styles(self, family: Family, size: float, colour: Colour | None = None) -> tuple[Style, Style]:
        """Regular and bold style of a family at `size` px per em, in one colour."""
        colour = self.ink() if colour is None else colour
        return Style(family.regular, size, colour), Style(family.bold, size, colour)

    def shown(self, text: str, *, upper: float = 0.0) -> str:
        """A text, in capitals with probability `upper`."""
        return text.upper() if self.random.random() < upper else text


PAGES: Registry[Callable[[PageMaker], None]] = Registry("kind of generated page")
"""Makes a page of a kind: writes on the maker's sheet and asks questions."""
