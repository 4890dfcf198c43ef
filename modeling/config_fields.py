"""Config fields that check their values: an error names the field, the expected and the received value in one line.

The checking is huggingface_hub's `strict`, on which transformers' own configs rest: a field's value must be of its
annotated type (a bool is no int) and pass its validator, when the dataclass is made and whenever the field is assigned.
Here are the validators, and the errors: "field: expected ...; got ...", a ValueError for a type and a range alike.

A file that declares such fields has no `from __future__ import annotations`: `strict` skips types that are strings.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, get_args

import torch
from huggingface_hub.dataclasses import strict, validated_field
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from transformers import AutoConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import PretrainedConfig

Part = TypeVar("Part")


FAMILIES: dict[str, "Registry[Any]"] = {}
"""All families by their noun, once their files are imported."""

BROUGHT = {
    "strategy": ("compositional", "contextual", "experts", "hierarchical", "shannon_jung_vervaeke"),
    "bridge": ("quality", "transformer"),
    "textures": ("basic", "full"),
    "exploration": ("learned",),
    "compressor": ("mask",),
    "tier_choice": ("classifier",),
}
"""Members that package arr-coc registers. A checkpoint that needs some holds their files (`write_members`)."""


class Registry(dict[str, Part]):
    """Maps names to the members of a family: `registry[name]` is the member; an unknown name raises a ValueError.

    Args:
        noun: names the family in errors.
    """

    def __init__(self, noun: str) -> None:
        super().__init__()
        self.noun = noun
        FAMILIES.setdefault(noun, self)

    def register(self, name: str) -> Callable[[Part], Part]:
        """Decorator that adds a member.

        Raises:
            ValueError: the name is taken.
        """

        def add(part: Part) -> Part:
            if name in self:
                raise ValueError(f"{self.noun}: expected a new name; got {name!r}, which is taken by {self[name]!r}")
            self[name] = part
            return part

        return add

    def __missing__(self, name: object) -> Part:
        raise ValueError(f"{self.noun}: expected {self.known}; got {name!r}")

    @property
    def known(self) -> str:
        """The members' names, and those that are not there because package arr-coc brings them."""
        missing = sorted({*BROUGHT.get(self.noun, ())} - {*self})
        brought = f" (or of {', '.join(missing)}, which package arr-coc brings)" if missing else ""
        return f"one of {', '.join(sorted(self))}{brought}"


ENTRY = "modeling_arr_coc.py"


def write_members(folder: Path, members: Iterable[Any]) -> None:
    """Copies the files of members from elsewhere into a checkpoint, whose `ENTRY` then imports them.

    A file of a package may import `modeling/` and files beside itself.
    """
    here, entry = __name__.rpartition(".")[0], folder / ENTRY
    for member in members if entry.is_file() else ():
        beside, _, name = member.__module__.rpartition(".")
        line = f"from .{name} import {member.__name__} as {member.__name__}\n"
        if not beside or beside == here or line in (code := entry.read_text(encoding="utf-8")):
            continue
        entry.write_text(code + line, encoding="utf-8")
        names = [name]
        for name in names:
            code = Path(sys.modules[f"{beside}.{name}"].__file__ or "").read_text(encoding="utf-8")
            names += sorted({*re.findall(r"^from \.(\w+) import", code, re.MULTILINE)} - {*names})
            code = re.sub(r"^from (\.|arr_coc)\.modeling\.", "from .", code, flags=re.MULTILINE)
            (folder / f"{name}.py").write_text(code, encoding="utf-8")


Held = TypeVar("Held", bound=type)

_LONGEST = 200
"""Characters of a refused value that an error quotes."""

_MOST_LABELS = 2**16
"""The most labels of a classifier: transformers makes a table of their names for every config."""


def checked_field(expected: str | Callable[[], str], holds: Callable[[Any], bool], default: Any) -> Any:
    """A field whose values `holds` checks, once they have its type.

    Args:
        expected: the expected value in errors; a function if it is known only later.
        holds: called with every value but None, which the type allows or refuses.
        default: the field's default.
    """

    def validate(value: Any) -> None:
        if value is not None and not holds(value):
            raise ValueError(expected if isinstance(expected, str) else expected())

    return validated_field(validate, default=default, metadata={"expected": expected})


def whole(low: int, high: int, default: int | None) -> Any:
    """A field for a whole number from `low` to `high`."""
    return checked_field(f"a whole number from {low} to {high}", lambda value: low <= value <= high, default)


def wholes(low: int, high: int, default: Sequence[int]) -> Any:
    """A field for a list of whole numbers from `low` to `high`."""
    expected = f"a list of whole numbers from {low} to {high}"
    return checked_field(expected, lambda values: all(low <= value <= high for value in values), default)


def number(low: float, high: float, default: Any, *, above: bool = False) -> Any:
    """A field for finite numbers from `low` (above it, if that is set) to `high`."""
    expected = f"a number above {low:g}, at most {high:g}" if above else f"a number from {low:g} to {high:g}"
    return checked_field(expected, lambda value: low <= value <= high and not (above and value == low), default)


def choice(names: Collection[str] | Callable[[], Collection[str]], default: str | None) -> Any:
    """A field for one of `names`; a function if they are known only later."""

    def known() -> Collection[str]:
        return names() if callable(names) else names

    return checked_field(lambda: f"one of {', '.join(known())}", lambda value: value in known(), default)


def validated(cls: Held) -> Held:
    """Class decorator for a dataclass of checked fields.

    Raises (in instances, not in the decorator):
        ValueError: an invalid value; the message names the field, the expected and the received value.
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
    """Raises the ValueError of a field unless the condition holds; for conditions on several fields."""
    if not condition:
        raise ValueError(f"{field}: expected {expected}; got {quoted(received)}")


def require_heads(config: PretrainedConfig, field: str) -> None:
    """Requires a width that is a multiple of the attention heads in `field`."""
    heads = getattr(config, field)
    require(config.hidden_size % heads == 0, "hidden_size", f"a multiple of {heads} heads", config.hidden_size)


def quoted(value: Any) -> str:
    """A received value in errors: in one line, and shortened."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _expected(cls: Any, name: str) -> str:
    """The expected value of a field, with None if its type allows it."""
    field = cls.__dataclass_fields__[name]
    expected = field.metadata.get("expected")
    if expected is None:
        return getattr(field.type, "__name__", str(field.type))
    text = expected() if callable(expected) else expected
    return f"{text}, or None" if type(None) in get_args(field.type) else text


def is_dtype(dtype: Any) -> bool:
    """Whether `dtype` is, or names, a floating-point dtype of torch."""
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    return isinstance(named, torch.dtype) and named.is_floating_point


def _are_numbered(labels: dict[Any, str]) -> bool:
    return all(str(number).isdecimal() for number in labels)


def check_labels(count: Any) -> None:
    """Refuses an invalid `num_labels`, which is not a field: transformers would make an endless table for it.

    Raises:
        ValueError: not a whole number, or too large.
    """
    if count is not None and not (type(count) is int and 0 <= count <= _MOST_LABELS):
        raise ValueError(f"num_labels: expected a whole number from 0 to {_MOST_LABELS}; got {quoted(count)}")


class ValidatedConfig(PretrainedConfig):
    """Fields of all transformers configs, with types: transformers' annotations are strings, which `strict` skips.

    `retired` has the fields of earlier releases that have one value now. Configs that state it still load.
    """

    retired: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    architectures: list[str] | None = None
    output_hidden_states: bool | None = False
    return_dict: bool = True
    dtype: str | torch.dtype | None = checked_field("a floating-point type of torch", is_dtype, default=None)
    chunk_size_feed_forward: int = whole(0, 2**20, default=0)
    is_encoder_decoder: bool = False
    id2label: dict[int, str] | dict[str, str] | None = checked_field("names by number", _are_numbered, default=None)
    label2id: dict[str, int] | dict[str, str] | None = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers; dtype "auto", which `pipeline` passes on, leaves the saved one."""
        auto = {"dtype": kwargs.pop("dtype")} if kwargs.get("dtype") == "auto" else {}
        loaded: Any = super().from_dict(config_dict, **kwargs)
        return (loaded[0], loaded[1] | auto) if kwargs.get("return_unused_kwargs") else loaded

    def __post_init__(self, **kwargs: Any) -> None:
        for name in self.retired.keys() & kwargs:
            stated = list(kwargs[name]) if isinstance(kwargs[name], tuple) else kwargs[name]
            if stated == self.retired[name]:
                del kwargs[name]
            elif getattr(self, "num_hidden_layers", None) != 0:  # an encoder without layers never used them
                expected = f"{self.retired[name]!r} (this release has no other)"
                raise ValueError(f"{name}: expected {expected}; got {quoted(stated)}")
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
    """The config of a part, from itself, from a dict of its fields, or from None: the defaults.

    Raises:
        ValueError: another type, or an invalid field, which the message names with the part's `name` in front.
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


MAX_SIDE, MAX_PATCHES = 8192, 2**18
"""Bounds of an image's side, px, and of its patches: larger values are typos that would fill the memory."""

MAX_WIDTH, MAX_MLP, MAX_LAYERS, MAX_HEADS = 2**14, 2**17, 512, 1024
"""Bounds of the parts' sizes, several times those of the largest models there are."""

MAX_ID = 2**31 - 1
"""The largest id of a token, and the largest number in a language model's config."""


def width(default: int, *, least: int = 1) -> Any:
    """A field for channels."""
    return whole(least, MAX_WIDTH, default)


def epsilon(default: float) -> Any:
    """A field for the epsilon of a normalisation."""
    return number(0.0, 1.0, default, above=True)


def spread(default: float) -> Any:
    """A field for the standard deviation of new weights."""
    return number(0.0, 10.0, default)


def member(noun: str, default: str) -> Any:
    """A field for the name of a registered part; if its family is not imported, building the model checks it."""

    def holds(name: str) -> bool:
        return not FAMILIES.get(noun) or name in FAMILIES[noun]

    return checked_field(lambda: FAMILIES[noun].known, holds, default)


def trained_scorers(default: Sequence[str]) -> Any:
    """A field for the names of scorers with weights, checked as `member` does."""

    def trained() -> list[str]:
        return [name for name, scorer in FAMILIES.get("strategy", {}).items() if scorer.trained]

    def holds(names: Sequence[str]) -> bool:
        return len(set(names)) == len(names) and (not trained() or set(names) <= set(trained()))

    return checked_field(lambda: f"distinct scorers with weights ({', '.join(trained())})", holds, default)


def span(default: Sequence[float]) -> Any:
    """A field for an interval within 0..1: its start and its end."""
    return checked_field(
        "two increasing numbers from 0 to 1", lambda ends: len(ends) == 2 and 0 <= ends[0] < ends[1] <= 1, default
    )


def markers() -> Any:
    """A field for the markers of `prompt.query_markers`."""
    turns, texts = ("start_id", "end_id"), ("role_ids", "newline_ids", "ignored_ids")

    def holds(value: dict[str, Any]) -> bool:
        if set(value) != {*turns, *texts} or not all(isinstance(value[name], list) for name in texts):
            return False
        ids = [value[name] for name in turns if value[name] is not None]
        ids += [index for name in texts for index in value[name]]
        return all(type(index) is int and 0 <= index <= MAX_ID for index in ids)

    return checked_field(f"ids {', '.join(turns)} (or None) and lists of ids {', '.join(texts)}", holds, default=None)


def calibration_weights() -> Any:
    """A field for the weights of `answers.calibrated`."""
    lows = {**dict.fromkeys(("logit", "legibility", "relevance", "characters"), 0.0), "words": -1e3, "bias": -1e3}
    later = {"relevance", "characters"}  # not in configs of earlier versions

    def holds(value: dict[str, Any]) -> bool:
        numbers = all(isinstance(weight, int | float) and not isinstance(weight, bool) for weight in value.values())
        named = set(lows) - later <= set(value) <= set(lows)
        return named and numbers and all(lows[name] <= weight <= 1e3 for name, weight in value.items())

    expected = f"a number up to 1000 for each of {', '.join(lows)}, the first four from 0, the others from -1000"
    return checked_field(expected, holds, default=None)


LIMITS: dict[str, tuple[float, float]] = {
    "vocab_size": (1, 2**22),
    "hidden_size": (1, 2**15),
    "num_hidden_layers": (1, 512),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), (1, 2**18)),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), (1, 1024)),
    **dict.fromkeys(("head_dim", "n_routed_experts", "num_experts", "num_local_experts"), (1, 2**12)),
    **dict.fromkeys(("max_position_embeddings", "sliding_window"), (1, 2**24)),
    "initializer_range": (0, 10),
    "attention_dropout": (0, 1),
}
"""Least and greatest value by field, several times those of the largest models."""

FLAGS = ("output_hidden_states", "output_attentions", "return_dict", "use_cache", "is_encoder_decoder")
"""Boolean fields of every config; transformers does not check the first ones."""


def make_text_config(value: Any) -> PretrainedConfig:
    """The language model's config, from itself, from a dict with `model_type` (Qwen3 by default), or from None.

    Raises:
        ValueError: another type, an unknown model, or an invalid field, which the message names.
    """
    config = value if isinstance(value, PretrainedConfig) else _from_fields({} if value is None else value)
    if config.dtype is not None and not is_dtype(config.dtype):
        raise ValueError(f"text_config.dtype: expected a floating-point type of torch; got {quoted(config.dtype)}")
    for name in FLAGS:
        if not isinstance(getattr(config, name, None), bool | None):
            raise ValueError(f"text_config.{name}: expected true or false; got {quoted(getattr(config, name))}")
    _check_limits({name: getattr(config, name, None) for name in LIMITS})
    for name, number in _numbers(config.to_dict(), "text_config"):
        if not abs(number) <= MAX_ID:
            raise ValueError(f"{name}: expected a finite number up to {MAX_ID}; got {quoted(number)}")
        if name.endswith(("_eps", "_epsilon", "rope_theta", "factor")) and not number > 0:
            raise ValueError(f"{name}: expected a number above 0; got {quoted(number)}")
    rope = getattr(config, "rope_parameters", None)
    for holder in (vars(config), rope if isinstance(rope, dict) else {}):
        for name in ("rope_theta", "factor"):  # transformers only notices when it computes with them
            if not isinstance(holder.get(name), int | float | None):
                raise ValueError(f"text_config.{name}: expected a number; got {quoted(holder[name])}")
    _check_names(config)
    return config


def _from_fields(fields: Any) -> PretrainedConfig:
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise ValueError(f"text_config: expected a config or a dict of its fields; got {quoted(fields)}")
    fields = dict(fields)
    model_type = fields.pop("model_type", "qwen3")
    _check_limits(fields)  # before transformers builds a list of the layers
    try:
        check_labels(fields.get("num_labels"))
        return AutoConfig.for_model(model_type, **fields)
    except StrictDataclassFieldValidationError as error:
        raise ValueError(f"text_config.{_reworded(error)}") from error
    except Exception as error:  # each config has its own checks and errors
        raise ValueError(f"text_config: expected fields of a {model_type!r} model; got {_line(error)}") from error


def _check_limits(fields: dict[str, Any]) -> None:
    for name, (low, high) in LIMITS.items():
        number = fields.get(name)
        if isinstance(number, (int, float)) and not low <= number <= high:
            raise ValueError(f"text_config.{name}: expected a number from {low} to {high}; got {quoted(number)}")


def _check_names(config: PretrainedConfig) -> None:
    for name in ("hidden_act", "activation_function"):
        activation = getattr(config, name, None)
        if activation is not None and activation not in ACT2FN:
            raise ValueError(f"text_config.{name}: expected one of {', '.join(ACT2FN)}; got {quoted(activation)}")
    words, padding = (getattr(config, name, None) for name in ("vocab_size", "pad_token_id"))
    if isinstance(words, int) and isinstance(padding, int) and not -words <= padding < words:
        raise ValueError(f"text_config.pad_token_id: expected an id below {words}; got {padding}")
    heads, groups = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    if heads and groups and heads % groups:
        raise ValueError(f"text_config.num_key_value_heads: expected a divisor of {heads} heads; got {groups}")


def _numbers(held: Any, name: str) -> Iterator[tuple[str, float]]:
    """All numbers in a config, with the names of their fields."""
    if isinstance(held, dict):
        for key, value in held.items():
            yield from _numbers(value, f"{name}.{key}")
    elif isinstance(held, (list, tuple)):
        for value in held:
            yield from _numbers(value, name)
    elif isinstance(held, (int, float)) and not isinstance(held, bool):
        yield name, held


def _reworded(error: StrictDataclassFieldValidationError) -> str:
    """transformers' error for a field, in this package's form."""
    name = re.search(r"field '([^']*)'", str(error))
    cause = _line(error.__cause__)
    types = re.search(r"expected (.*?), got (.*)", cause)
    expected, received = types.groups() if types else ("another value", cause)
    return f"{name[1] if name else 'fields'}: expected {expected}; got {received}"


def _line(error: BaseException | None) -> str:
    return " ".join(str(error).split()) or type(error).__name__
