"""A page full of unrelated words and values, to learn reading.

It has more print than a real page, and its text cannot be guessed from the context. So an untrained encoder learns more
from a crop of it than from a crop of a document.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from random import Random

import numpy as np

from .fonts import find_fonts
from .maker import fonts_of
from .page import TextPage
from .sheet import Colour, Sheet, Style
from .splits import Split, Words
from .values import KINDS, Values

SIDE = 896  # px
SIZES = (9.0, 24.0)  # px per em
_VALUES = tuple(kind for kind in KINDS if kind not in ("note", "words", "choice"))
_SIGNS: tuple[str, ...] = ("({})", "({})", '"{}"', "'{}'", "{}:", "{}:", "{},", "{},", "{}.", "{}.")
_SIGNS += ("[{}]", "{}!", "{}?", "{};", "#{}", "@{}", "& {}", "* {}")
_SIGNS += ("<{}>", "{}/", "{}_", "+{}", "={}", "{} -", "{} %", "{}*")
_MARKED = "±{}|£{}|€{}|¥{}|§ {}|{}°|{} °C|{}²|{}³|{} µm|×{}|• {}|{}¹|{}½|₹{}|₪{}|÷{}".split("|")
"""Numbers with marks that are rare elsewhere; the last five are read as "unread"."""
_FOREIGN = "ΓΔΘΛΞΠΣΦΨΩβγδεζηθλμξπσφψωБГДЖЗИЙЛПУФЦЧШЩЪЫЬЭЮЯбвгджзийлптфцчшщъыьэюяĀČĎĘĞŁŃŘŞŤŻāčďęğıłńřşťż"
"""Letters that the reader has no class for, and that do not look like one with a class."""
_ALIKE = "AaBeEHKMoOpPTxXc"
_USES = ("plain",) * 14 + ("mono",) * 4 + ("hand", "display")
_TYPED = string.ascii_letters + string.digits * 3 + "-./:,#" * 2


def _grey(random: Random, low: int, high: int) -> Colour:
    """A slightly coloured grey between two levels."""
    level = random.randint(low, high)
    red, green, blue = (min(255, max(0, level + random.randint(-12, 12))) for _ in range(3))
    return red, green, blue


def _texts(random: Random, split: Split) -> Callable[[], str]:
    """A function that draws a word, a few words, or a value."""
    values, words = Values(random, split), Words(random, split)

    def word() -> str:
        text = random.choice((words.noun, words.noun, words.adjective, words.verb, words.made_up))()
        return random.choice((str, str, str, str.capitalize, str.capitalize, str.upper))(text)

    def draw() -> str:
        chance = random.random()
        if chance < 0.45:
            return word()
        if chance < 0.55:
            return random.choice(_SIGNS).format(word())
        if chance < 0.62:
            return words.sentence()
        if chance < 0.65:
            return "".join(random.choices(_FOREIGN + 2 * _ALIKE, k=random.randint(3, 9)))
        if chance < 0.69:
            number = f"{random.expovariate(0.05):.{random.randint(0, 2)}f}"
            return random.choice(_MARKED).format(number)
        if chance < 0.91:
            if random.random() < 0.3:
                values.reformat()
            return KINDS[random.choice(_VALUES)](values)
        return "".join(random.choices(_TYPED, k=random.randint(2, 9)))

    return draw


def jumble(rng: np.random.Generator, split: Split) -> TextPage:
    """A page of `SIDE` px with words, values, formats and fonts of a split, without questions."""
    random = Random(int(rng.integers(2**63)))
    fonts, draw = fonts_of(find_fonts(split)), _texts(random, split)
    paper, ink = _grey(random, 195, 255), _grey(random, 0, 95)
    if random.random() < 0.15:
        paper, ink = _grey(random, 0, 70), _grey(random, 170, 255)
    sheet, y = Sheet(SIDE, SIDE, paper), 0.0
    while True:
        size = SIZES[0] * (SIZES[1] / SIZES[0]) ** random.random()
        family = fonts.draw(random, random.choice(_USES))
        face = random.choice((family.regular, family.regular, family.bold, family.italic))
        style, leading = Style(face, size, ink), random.uniform(1.05, 1.7)
        for _ in range(random.randint(2, 7)):
            y += style.size * leading
            if y > SIDE - style.size * 0.3:
                return TextPage(
                    sheet.draw(scale=random.choice((1, 2))), sheet.size, sheet.lines, kind="jumble", source="jumble"
                )
            x = random.uniform(0.0, 2.5) * style.size
            while x < SIDE:
                text = style.printable(draw())
                if text:
                    sheet.write(text, x, y, style)
                x += style.width(text) + random.uniform(0.6, 2.5) * style.size
