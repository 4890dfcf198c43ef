"""The arms of a contest, which have weights of their own, as a configuration lists them.

contest:
  running: {arm: realizer, weights: [runs/running-0/model, runs/running-1/model]}    # trainings that differ by seed
  floor: {arm: larger, weights: [runs/floor-0/model, runs/floor-1/model]}
  keep_all: {arm: keep_all, weights: [runs/keep_all-0/model], bound: true}           # may read any number of tokens
reference: running     # whom the others are compared with, and whose tokens they read; the first one by default
tolerance: 0.1         # by which share an arm that is no bound may read more or fewer

`arm` is any name that `make_arms` takes, resolved with the configuration of the arm's own models. In rules and reports
arms go by the contest's names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """An arm of a contest.

    Attributes:
        name: its own.
        arm: the name of what it does, see `make_arms`.
        weights: folders of models that were trained alike but for their seeds.
        bound: whether it may read another number of tokens than the reference.
        trained_on: of `TRAINABLE`, what the weights read well besides.
    """

    name: str
    arm: str
    weights: tuple[str, ...]
    bound: bool = False
    trained_on: tuple[str, ...] = ()


def read_entries(spec: Any, folder: Path = Path(".")) -> list[Entry]:
    """The arms of a contest as a configuration lists them; their weights' paths are relative to `folder`.

    Raises:
        ValueError: no mapping of names to arms, fewer than two, or one that is malformed; the message says which.
    """
    if not isinstance(spec, Mapping) or len(spec) < 2:
        raise ValueError(f"contest: expected at least two arms by name; got {spec!r}")
    return [_entry(name, content, folder) for name, content in spec.items()]


def _entry(name: Any, content: Any, folder: Path) -> Entry:
    where = f"contest.{name}"
    if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
        raise ValueError(f"contest: expected names of letters, digits and _; got {name!r}")
    known = [field.name for field in fields(Entry) if field.name != "name"]
    if not isinstance(content, Mapping) or not {"arm", "weights"} <= set(content) <= set(known):
        raise ValueError(f"{where}: expected arm and weights, perhaps {', '.join(known[2:])}; got {content!r}")
    lists = {key: content.get(key, []) for key in ("weights", "trained_on")}
    for key, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise ValueError(f"{where}.{key}: expected a list of texts; got {value!r}")
    if not lists["weights"] or not isinstance(content["arm"], str) or not isinstance(content.get("bound", False), bool):
        expected = "the name of an arm, at least one folder of weights, and bound as true or false"
        raise ValueError(f"{where}: expected {expected}; got {dict(content)}")
    weights = tuple(str(folder / path) if (folder / path).exists() else path for path in lists["weights"])
    return Entry(name, content["arm"], weights, content.get("bound", False), tuple(lists["trained_on"]))
