"""An example: a question that a server was asked, and all that is needed to ask it again."""

import base64
from dataclasses import dataclass
from typing import Any

from ..files import check_types
from ..journal import Entry
from ..modeling.allocators import FetchResult

JOURNAL = "examples"
"""The journal's name, which its files begin with."""


@dataclass(frozen=True)
class Example:
    """One answer and how it came about.

    Attributes:
        id: of the completion.
        time: in ISO 8601.
        why: it is kept: "sample", "failure" or "unsure".
        images: encoded content of each.
        question: the text.
        history: earlier questions and answers.
        strategy, budget, allocator: as they were asked for.
        max_tokens, temperature, top_p, stops: likewise.
        finish: how it ended, see `ended.Ended`.
        answer, probability: None where there is none.
        fetched: of each image the patches, ascending; None where none were fetched yet.
        weights: SHA-256 of the checkpoint's files.
        version: of the scorer.
        redacted: whether a hook changed it: it cannot be reproduced then.
        num_passes: as it was asked for.
    """

    id: str
    time: str
    why: str
    images: tuple[bytes, ...]
    question: str
    history: tuple[tuple[str, str], ...]
    strategy: str | None
    budget: int | str | None
    allocator: str | None
    max_tokens: int
    temperature: float
    top_p: float
    stops: tuple[str, ...]
    finish: str
    answer: str | None
    probability: float | None
    fetched: tuple[tuple[int, ...], ...] | None
    weights: str
    version: str
    redacted: bool = False
    num_passes: int | str | None = None

    def content(self) -> dict[str, Any]:
        """The entry of a journal."""
        fields: dict[str, Any] = {**vars(self), "images": [base64.b64encode(image).decode() for image in self.images]}
        return fields


def example_of(entry: Entry) -> Example:
    """The example that an entry holds.

    Raises:
        ValueError: it holds none; the message says where it stands.
    """
    try:
        content = dict(entry.content)
        content["images"] = tuple(base64.b64decode(image, validate=True) for image in content["images"])
        content["history"] = tuple((asked, said) for asked, said in content["history"])
        content["fetched"] = _numbers(content["fetched"])
        content["stops"] = tuple(content["stops"])
        example = Example(**content)
        check_types(example)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{entry.where}: expected an example; got {error}") from error
    return example


def _numbers(fetched: Any) -> tuple[tuple[int, ...], ...] | None:
    return None if fetched is None else tuple(tuple(patches) for patches in fetched)


def fetched_patches(fetch: FetchResult) -> tuple[tuple[int, ...], ...]:
    """Of each image of a prompt the patches that were fetched, ascending."""
    counts = fetch.counts.tolist()
    return tuple(tuple(row[:count]) for row, count in zip(fetch.indices.tolist(), counts, strict=True))
