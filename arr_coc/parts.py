"""Parts of the model that are trained, frozen, adapted and given learning rates apart from each other.

A parameter belongs to exactly one part, whatever wraps the model (PEFT, DDP): its name says which.
"""

import re
from collections.abc import Iterable

PARTS = {
    "scorer": r"fetcher\.scorers\.",
    "allocator": r"fetcher\.",
    "bridge": r"bridge\.|layout\.|vision_tower\.saccade_projection\.",
    "semantic": r"vision_tower\.semantic_encoder\.",
    "encoder": r"vision_tower\.",
    "language": r"language_model\.|lm_head\.",
}
"""Part -> pattern of its parameters' names; the first that matches counts. What the fetcher holds beside scorers is the
allocator's; the compressor belongs to the grid encoder."""

_PATTERNS = {part: re.compile(rf"(?:^|\.)(?:{pattern})") for part, pattern in PARTS.items()}


def part_of_parameter(name: str) -> str:
    """The part that a parameter belongs to.

    Raises:
        ValueError: no part has a parameter of that name.
    """
    for part, pattern in _PATTERNS.items():
        if pattern.search(name):
            return part
    raise ValueError(f"parameter: expected one of the parts {', '.join(PARTS)}; got {name!r}")


def in_parts(name: str, parts: Iterable[str]) -> bool:
    """Whether a parameter belongs to one of the parts, among which "scorer.realizer" is one scorer.

    Raises:
        ValueError: no part has a parameter of that name.
    """
    own = part_of_parameter(name)
    member = re.search(r"fetcher\.scorers\.(\w+)\.", name)
    return not {own, *([f"{own}.{member[1]}"] if member else [])}.isdisjoint(parts)


def check_parts(parts: Iterable[str], what: str, *, scorers: bool = False) -> None:
    """Refuses names that are no part's.

    Args:
        parts: names to check against `PARTS`.
        what: the setting that names them, for the error.
        scorers: whether single scorers are parts too, as "scorer.realizer".

    Raises:
        ValueError: an unknown part.
    """
    unknown = sorted(part for part in set(parts) - set(PARTS) if not (scorers and re.fullmatch(r"scorer\.\w+", part)))
    if unknown:
        raise ValueError(f"{what}: expected parts among {', '.join(PARTS)}; got {', '.join(unknown)}")
