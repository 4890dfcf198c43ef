"""Images and questions to begin with, where the package runs from a checkout of the repository."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_EXAMPLES = (
    ("Receipt", "examples/images/receipt.png", "What is the total?"),
    ("Receipt", "examples/images/receipt.png", "What is the date?"),
    ("Page", "examples/held_out/images/00000.jpg", "What is the phone?"),
)


@dataclass(frozen=True)
class Example:
    """An image and a question about it.

    Attributes:
        name: what the image shows.
        path: of the image.
        question: about it.
    """

    name: str
    path: Path
    question: str


def find_examples() -> Iterator[Example]:
    """Those whose images are here: beside the package or in the working directory."""
    roots = (Path(__file__).resolve().parents[2], Path.cwd())
    for name, image, question in _EXAMPLES:
        path = next((root / image for root in roots if (root / image).is_file()), None)
        if path is not None:
            yield Example(name, path, question)
