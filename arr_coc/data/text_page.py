"""A page with the text on it: what the encoder learns to read and the language model to answer about.

Boxes are (x0, y0, x1, y1) in pixels of the page, x to the right, y down.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from .domains.page import Question

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
"""Stands in a line for what nobody can name: its box says where there may be text of any kind."""


@dataclass(frozen=True, eq=False)
class Line:
    """Characters on one baseline that belong together: a line of a paragraph, a label, a cell of a table.

    Attributes:
        text: the characters in reading order, with single spaces between words; UNKNOWN for what cannot be named.
        boxes: float32 [len(text), 4], each character's advance cell horizontally, from its baseline up to the height of
            a capital letter. Spaces have boxes too.

    Raises:
        ValueError: boxes of another shape.
    """

    text: str
    boxes: np.ndarray

    def __post_init__(self) -> None:
        if self.boxes.shape != (len(self.text), 4):
            raise ValueError(f"boxes: expected shape {(len(self.text), 4)}; got {self.boxes.shape}")


@dataclass(frozen=True, eq=False)
class TextPage:
    """A page of any aspect ratio, the text that is printed on it, and questions about it.

    Attributes:
        image: RGB; None where a page was laid out and not drawn.
        size: (width, height), px.
        lines: all text on the page, in reading order.
        questions: each with its answers and the boxes of the answer and of what leads to it.
        kind: of the page, such as "receipt".
        source: where it comes from: a generator and layout, or a package and file.
    """

    image: Image.Image | None
    size: tuple[int, int]
    lines: tuple[Line, ...]
    questions: tuple[Question, ...] = ()
    kind: str = ""
    source: str = field(default="", repr=False)
