"""Images of records: a file, or one held elsewhere (in memory, in a column, still to be drawn) and made when needed."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image


@dataclass(frozen=True)
class HeldImage:
    """An image that is no file of its own. Two are the same image where their keys are equal.

    Attributes:
        key: tells the image from others.
        make: gives the image: decodes, draws, or hands it over.
    """

    key: Hashable
    make: Callable[[], Any] = field(compare=False, repr=False)


@dataclass(frozen=True, eq=False)
class _Hand:
    """Hands over an image in memory, which it keeps alive: its identity is the key."""

    image: Image.Image

    def __call__(self) -> Image.Image:
        return self.image


def held(image: Image.Image) -> HeldImage:
    """An image in memory; the same object asked twice is the same image."""
    return HeldImage(("memory", id(image)), _Hand(image))


def opened(image: Path | HeldImage) -> Any:
    """What `load_image` takes: a path as it is, a held image made."""
    return image.make() if isinstance(image, HeldImage) else image
