"""The pages of `arr_coc.data.mixture` as a source to learn reading from."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from arr_coc.data.domains.page import Line, TextPage
from arr_coc.data.glyphs import Glyph
from arr_coc.data.mixture import KINDS, Renderer
from arr_coc.data.splits import Split

from .pages import PAGES

SIDES = (400, 720)
"""Least and greatest side of a page, px: its print is then as high as that of a page of 1024 px."""
_SPACE = 0.22  # of a capital's height: characters of a word stand closer


def lines_of(glyphs: Sequence[Glyph]) -> tuple[Line, ...]:
    """Visible characters, in the order that they were written in, as lines with spaces."""
    lines: list[tuple[str, list[tuple[float, float, float, float]]]] = []
    for glyph in glyphs:
        x0, y0, _, y1 = glyph.box
        if lines:
            text, boxes = lines[-1]
            end, top, bottom = boxes[-1][2], boxes[-1][1], boxes[-1][3]
            gap, height = x0 - end, bottom - top
            if abs(y1 - bottom) < 0.1 * height and abs(y0 - top) < 0.1 * height and -0.5 * height < gap < 1.2 * height:
                if gap > _SPACE * height:
                    text, boxes = text + " ", [*boxes, (end, top, x0, bottom)]
                lines[-1] = (text + glyph.char, [*boxes, glyph.box])
                continue
        lines.append((glyph.char, [glyph.box]))
    return tuple(Line(text, np.array(boxes, np.float32)) for text, boxes in lines)


def draw(kind: Renderer, name: str, rng: np.random.Generator, split: Split) -> TextPage:
    """A page of a kind."""
    side = int(rng.integers(SIDES[0], SIDES[1] + 1))
    document = kind(rng, size=side, split=split)
    return TextPage(document.image, document.image.size, lines_of(document.glyphs), kind=name, source=document.layout)


for _name, _kind in KINDS.items():
    PAGES.register(_name)(partial(draw, _kind, _name))
