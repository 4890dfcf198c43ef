"""Knobs: fields of a dataclass that say what they take, and refuse everything else in one line.

The checking is huggingface_hub's `strict`, on which transformers' own configs rest: a field's value must be of its
annotated type (a bool is no int) and pass its validator, when the dataclass is made and whenever the field is assigned.
Here are the validators, and the errors: "field: expected ...; got ...", a ValueError for a type and a range alike.

A file that declares knobs has no `from __future__ import annotations`: `strict` skips types that are strings.
"""

from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any, TypeVar, get_args

import torch
from huggingface_hub.dataclasses import strict, validated_field
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from transformers.configuration_utils import PretrainedConfig

Held = TypeVar("Held", bound=type)

_LONGEST = 200
"""Characters of a refused value that an error quotes."""

_MOST_LABELS = 2**16
"""Labels of a classifier, a table of names that transformers makes for every config."""


def knob(expected: str | Callable[[], str], holds: Callable[[Any], bool], default: Any) -> Any:
    """A field whose values, once they are of its type, `holds` has to be true of.

    Args:
        expected: what errors say that the field takes; a function where that is known only later.
        holds: asked about every value but None, which only the type allows or refuses.
        default: the field's.
    """

    def validate(value: Any) -> None:
        if value is not None and not holds(value):
            raise ValueError(expected if isinstance(expected, str) else expected())

    return validated_field(validate, default=default, metadata={"expected": expected})


def whole(low: int, high: int, default: int | None) -> Any:
    """A field for a whole number from `low` to `high`."""
    return knob(f"a whole number from {low} to {high}", lambda value: low <= value <= high, default)


def wholes(low: int, high: int, default: Sequence[int]) -> Any:
    """A field for a list of whole numbers from `low` to `high`."""
    expected = f"a list of whole numbers from {low} to {high}"
    return knob(expected, lambda values: all(low <= value <= high for value in values), default)


def number(low: float, high: float, default: Any, *, above: bool = False) -> Any:
    """A field for finite numbers from `low` (above it, if that is set) to `high`."""
    expected = f"a number above {low:g}, at most {high:g}" if above else f"a number from {low:g} to {high:g}"
    return knob(expected, lambda value: low <= value <= high and not (above and value == low), default)


def choice(names: Collection[str] | Callable[[], Collection[str]], default: str | None) -> Any:
    """A field for one of some names; a function where they are known only later."""

    def known() -> Collection[str]:
        return names() if callable(names) else names

    return knob(lambda: f"one of {', '.join(known())}", lambda value: value in known(), default)


def validated(cls: Held) -> Held:
    """Class decorator for a dataclass of knobs.

    Raises (what it makes, not the decorator):
        ValueError: a value that its field does not take; the message names the field, what it takes and what came.
    """
    checked: Any = strict(cls)
    assign, begin = checked.__setattr__, checked.__init__

    @wraps(assign)
    def __setattr__(self: Any, name: str, value: Any) -> None:
        try:
            assign(self, name, value)
        except StrictDataclassFieldValidationError as error:
            raise ValueError(f"{name}: expected {_expected(type(self), name)}; got {quoted(value)}") from error

    @wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            begin(self, *args, **kwargs)
        except StrictDataclassClassValidationError as error:
            raise ValueError(
                f"{type(self).__name__}: expected settings that go together; got {error.__cause__}"
            ) from error

    checked.__setattr__, checked.__init__ = __setattr__, __init__
    return checked


def require(condition: bool, field: str, expected: str, received: Any) -> None:
    """Raises the ValueError of a field, unless the condition holds: for what more than one field decides."""
    if not condition:
        raise ValueError(f"{field}: expected {expected}; got {quoted(received)}")


def require_heads(config: PretrainedConfig, field: str) -> None:
    """Requires a width that divides into the attention heads that the field counts."""
    heads = getattr(config, field)
    require(config.hidden_size % heads == 0, "hidden_size", f"a multiple of {heads} heads", config.hidden_size)


def quoted(value: Any) -> str:
    """A refused value as errors quote it: in one line, and not all of a long one."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _expected(cls: Any, name: str) -> str:
    """What the field takes, with None where its type has it."""
    field = cls.__dataclass_fields__[name]
    expected = field.metadata.get("expected")
    if expected is None:
        return getattr(field.type, "__name__", str(field.type))
    text = expected() if callable(expected) else expected
    return f"{text}, or None" if type(None) in get_args(field.type) else text


def is_dtype(dtype: Any) -> bool:
    """Whether it is, or names, a type of torch that weights can be of."""
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    return isinstance(named, torch.dtype) and named.is_floating_point


def _are_numbered(labels: dict[Any, str]) -> bool:
    return all(str(number).isdecimal() for number in labels)


def check_labels(count: Any) -> None:
    """Refuses `num_labels`, no field of its own, for which transformers would make an endless table.

    Raises:
        ValueError: no whole number, or too large a one.
    """
    if count is not None and not (type(count) is int and 0 <= count <= _MOST_LABELS):
        raise ValueError(f"num_labels: expected a whole number from 0 to {_MOST_LABELS}; got {quoted(count)}")


class KnobConfig(PretrainedConfig):
    """What transformers' configs share, with types: transformers states them as strings, which `strict` skips."""

    architectures: list[str] | None = None
    output_hidden_states: bool | None = False
    return_dict: bool = True
    dtype: str | torch.dtype | None = knob("a floating-point type of torch", is_dtype, default=None)
    chunk_size_feed_forward: int = whole(0, 2**20, default=0)
    is_encoder_decoder: bool = False
    id2label: dict[int, str] | dict[str, str] | None = knob("names by number", _are_numbered, default=None)
    label2id: dict[str, int] | dict[str, str] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        check_labels(kwargs.get("num_labels"))
        attention, shown = kwargs.get("attn_implementation"), kwargs.get("output_attentions")
        if not isinstance(attention, str | dict | None):
            raise ValueError(f"attn_implementation: expected a name, names by part, or None; got {quoted(attention)}")
        if not isinstance(shown, bool | None):
            raise ValueError(f"output_attentions: expected true or false; got {quoted(shown)}")
        try:
            super().__post_init__(**kwargs)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"{type(self).__name__}: expected fields that it has; got {error}") from error


def make_part(name: str, kind: type[PretrainedConfig], value: Any) -> PretrainedConfig:
    """The config of a part, from itself, from a dict of its fields, or from None: its defaults.

    Raises:
        ValueError: something else, or a field that is refused, which the message names behind the part's `name`.
    """
    fields = {} if value is None else value
    if isinstance(fields, kind):
        return fields
    if not isinstance(fields, dict) or not all(isinstance(field, str) for field in fields):
        raise ValueError(f"{name}: expected a {kind.__name__} or a dict of its fields; got {quoted(value)}")
    if fields.get("model_type", kind.model_type) != kind.model_type:
        raise ValueError(f"{name}.model_type: expected {kind.model_type!r}; got {quoted(fields['model_type'])}")
    try:
        return kind(**fields)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from error
