"""Knobs that only this model has: names of its parts, budgets, sizes with their bounds (see `knobs.py`)."""

from collections.abc import Sequence
from typing import Any

from .knobs import choice, knob, number, whole
from .language_model import LAYOUTS
from .prompt import AUTO, NAMED_BUDGETS, TIERS, resolve_budget
from .registry import Registry

MAX_SIDE, MAX_PATCHES = 8192, 2**18
"""Of an image, px, and patches of one: bounds keep a typo from filling the memory."""

MAX_WIDTH, MAX_MLP, MAX_LAYERS, MAX_HEADS = 2**14, 2**17, 512, 1024
"""Bounds of the parts' sizes, several times those of the largest models there are."""

MAX_ID = 2**31 - 1
"""Of a token."""


def width(default: int, *, least: int = 1) -> Any:
    """A field for channels."""
    return whole(least, MAX_WIDTH, default)


def epsilon(default: float) -> Any:
    """A field for what keeps a normalisation from dividing by zero."""
    return number(0.0, 1.0, default, above=True)


def spread(default: float) -> Any:
    """A field for the standard deviation of new weights."""
    return number(0.0, 10.0, default)


def member(noun: str, default: str) -> Any:
    """A field for the name of a registered part."""
    return choice(lambda: sorted(_family(noun)), default)


def trained_scorers(default: Sequence[str]) -> Any:
    """A field for the names of scorers with weights."""

    def trained() -> list[str]:
        return [name for name, scorer in _family("strategy").items() if scorer.trained]

    return knob(
        lambda: f"distinct scorers with weights ({', '.join(trained())})",
        lambda names: len(set(names)) == len(names) and set(names) <= set(trained()),
        default,
    )


def shares(count: int, default: Sequence[float]) -> Any:
    """A field for so many weights that are divided by their sum."""
    return knob(
        f"{count} numbers from 0 to 1000000, one above 0",
        lambda weights: len(weights) == count and all(0 <= weight <= 1e6 for weight in weights) and sum(weights) > 0,
        default,
    )


def span(default: Sequence[float]) -> Any:
    """A field for a part of a whole: where it begins and ends."""
    return knob(
        "two increasing numbers from 0 to 1", lambda ends: len(ends) == 2 and 0 <= ends[0] < ends[1] <= 1, default
    )


def budget(default: str) -> Any:
    """A field for a budget that some grid has: whether the model's has it, only the whole config knows."""

    def holds(value: int | str) -> bool:
        try:
            return resolve_budget(value, MAX_PATCHES) >= 0
        except ValueError:
            return False

    names = (*NAMED_BUDGETS, AUTO, "all", *(f"tier:{tier}" for tier in TIERS))
    return knob(f"a number of patches or one of {', '.join(names)}", holds, default)


def markers() -> Any:
    """A field for what `processing_arr_coc.query_markers` returns."""
    turns, texts = ("start_id", "end_id"), ("role_ids", "newline_ids", "ignored_ids")

    def holds(value: dict[str, Any]) -> bool:
        if set(value) != {*turns, *texts} or not all(isinstance(value[name], list) for name in texts):
            return False
        ids = [value[name] for name in turns if value[name] is not None]
        ids += [index for name in texts for index in value[name]]
        return all(type(index) is int and 0 <= index <= MAX_ID for index in ids)

    return knob(f"ids {', '.join(turns)} (or None) and lists of ids {', '.join(texts)}", holds, default=None)


def _family(noun: str) -> Registry[Any]:
    """A family of parts, looked up when it is needed: its members import the configs."""
    from .bridges import BRIDGES
    from .compressors import COMPRESSORS
    from .detail_allocators import ALLOCATORS  # which imports the file of the others
    from .glance import SCORERS  # of the files that hold scorers the last one, which imports all others
    from .grid_encoder import STEMS

    families = (ALLOCATORS, BRIDGES, COMPRESSORS, LAYOUTS, SCORERS, STEMS)
    return next(family for family in families if family.noun == noun)
