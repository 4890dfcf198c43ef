"""What comes from files that people or killed processes may have changed: whether it is of the types declared."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from huggingface_hub.dataclasses import type_validator


def check_types(settings: Any) -> None:
    """Refuses values of other types than a dataclass declares. A whole number passes as a number, a list as a tuple.

    Raises:
        ValueError: the message names the field.
    """
    hints = get_type_hints(type(settings))
    for field in fields(settings):
        _check_type(field.name, getattr(settings, field.name), hints[field.name])


def check_entries(content: Any, schema: type, where: str) -> None:
    """As `check_types`, of a mapping with a `TypedDict` for schema; it may hold other entries too.

    Raises:
        ValueError: no mapping, or an entry is missing or of another type; the message begins with `where`.
    """
    hints = get_type_hints(schema)
    if not isinstance(content, dict) or not set(hints) <= set(content):
        received = f"none of {', '.join(sorted(set(hints) - set(content)))}" if isinstance(content, dict) else content
        raise ValueError(f"{where}: expected {', '.join(hints)}; got {received!r}")
    for name, hint in hints.items():
        _check_type(f"{where}: {name}", content[name], hint)


def _check_type(name: str, value: Any, hint: Any) -> None:
    try:
        type_validator(name, value, _as_read(hint))
    except TypeError as error:
        declared = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
        expected = re.sub(r"(collections\.abc|typing)\.", "", declared)
        raise ValueError(f"{name}: expected {expected}; got {value!r}") from error


def _as_read(hint: Any) -> Any:
    """The type that a value has as YAML and JSON give it, for what is declared as `hint`."""
    origin, parts = get_origin(hint), tuple(_as_read(part) for part in get_args(hint) if part is not ...)
    if hint is float:
        return int | float
    if origin in (Union, UnionType):
        return reduce(or_, parts)
    if origin in (Mapping, dict):
        return GenericAlias(dict, parts)
    if origin in (tuple, list, Sequence):
        alike = origin is not tuple or ... in get_args(hint)
        return GenericAlias(tuple, (parts[0], ...) if alike else parts) | GenericAlias(list, (reduce(or_, parts),))
    return hint
