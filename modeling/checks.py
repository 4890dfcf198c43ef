"""Families by name (`Registry`), and checks of config fields and arguments: errors are ValueErrors of one line, which
name the field, the expected and the received value.

The checking of config fields is huggingface_hub's `strict`, on which transformers' own configs rest: a field's value
must be of its annotated type (a bool is no int) and pass its validator, when the dataclass is made and whenever the
field is assigned. A file that declares such fields has no `from __future__ import annotations`: `strict` skips types
that are strings.

Notation: B prompts, S sequence length, P encoded images, I image slots, N patches.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, get_args

import numpy as np
import torch
from huggingface_hub.dataclasses import strict, validated_field
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError
from torch import Tensor
from transformers import AutoConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import PretrainedConfig
from transformers.image_utils import SizeDict
from transformers.utils import PaddingStrategy

Part = TypeVar("Part")


FAMILIES: dict[str, "Registry[Any]"] = {}  # all families by their noun, once their files are imported

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
        """Decorator that adds a member. Raises ValueError: the name is taken."""

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
    """Copies the files of members from elsewhere into a checkpoint, whose `ENTRY` then imports them. A file of a
    package may import `modeling/` and files beside itself."""
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


# ---- config fields ---------------------------------------------------------------------------------------------------

Held = TypeVar("Held", bound=type)


def checked_field(expected: str | Callable[[], str], holds: Callable[[Any], bool], default: Any) -> Any:
    """A field whose values `holds` checks, once they have its type.

    Args:
        expected: the expected value in errors; a function if it is known only later.
        holds: called with every value but None, which the type allows or refuses.
        default: the field's default.
    """

    def validate(value: Any) -> None:
        if value is not None and not holds(value):
            raise ValueError(expected)

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


def choice(names: Collection[str], default: str | None) -> Any:
    """A field for one of `names`."""
    return checked_field(f"one of {', '.join(names)}", lambda value: value in names, default)


def member(noun: str, default: str) -> Any:
    """A field for the name of a registered part; if its family is not imported, building the model checks it."""

    def holds(name: str) -> bool:
        return not FAMILIES.get(noun) or name in FAMILIES[noun]

    return checked_field(lambda: FAMILIES[noun].known, holds, default)


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
            field = self.__dataclass_fields__[name]
            expected = field.metadata.get("expected", getattr(field.type, "__name__", str(field.type)))
            expected = expected() if callable(expected) else expected
            allowed = ", or None" if "expected" in field.metadata and type(None) in get_args(field.type) else ""
            raise ValueError(f"{name}: expected {expected}{allowed}; got {quoted(value)}") from error

    @wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            begin(self, *args, **kwargs)
        except StrictDataclassClassValidationError as error:
            expected = f"{type(self).__name__}: expected settings that go together"
            raise ValueError(f"{expected}; got {error.__cause__}") from error

    checked.__setattr__, checked.__init__ = __setattr__, __init__
    return checked


def require(condition: bool, field: str, expected: str, received: Any) -> None:
    """Raises the ValueError of a field unless the condition holds; for conditions on several fields."""
    if not condition:
        raise ValueError(f"{field}: expected {expected}; got {quoted(received)}")


def quoted(value: Any, longest: int = 200) -> str:
    """A received value in errors: in one line, and shortened."""
    text = " ".join(repr(value).split())
    return text if len(text) <= longest else f"{text[:longest]}..."


def is_dtype(dtype: Any) -> bool:
    """Whether `dtype` is, or names, a floating-point dtype of torch."""
    named = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    return isinstance(named, torch.dtype) and named.is_floating_point


class ValidatedConfig(PretrainedConfig):
    """Fields of all transformers configs, with types: transformers' annotations are strings, which `strict` skips.
    `retired` has the fields of earlier releases that have one value now. Configs that state it still load."""

    retired: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    architectures: list[str] | None = None
    output_hidden_states: bool | None = False
    return_dict: bool = True
    dtype: str | torch.dtype | None = checked_field("a floating-point type of torch", is_dtype, default=None)
    chunk_size_feed_forward: int = whole(0, 2**20, default=0)
    is_encoder_decoder: bool = False
    id2label: dict[int, str] | dict[str, str] | None = checked_field(
        "names by number", lambda labels: all(str(number).isdecimal() for number in labels), default=None
    )
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
            usual = stated == self.retired[name]
            unused = getattr(self, "num_hidden_layers", None) == 0  # an encoder without layers never used them
            require(usual or unused, name, f"{self.retired[name]!r} (this release has no other)", stated)
            if usual:
                del kwargs[name]
        # transformers has no such field: it makes a table of all labels.
        labels, low, high = kwargs.get("num_labels"), *LIMITS["num_labels"]
        counted = labels is None or (type(labels) is int and low <= labels <= high)
        require(counted, "num_labels", f"a whole number from {low} to {high}", labels)
        attention, shown = kwargs.get("attn_implementation"), kwargs.get("output_attentions")
        expected = "a name, names by part, or None"
        require(isinstance(attention, str | dict | None), "attn_implementation", expected, attention)
        require(isinstance(shown, bool | None), "output_attentions", "true or false", shown)
        try:
            super().__post_init__(**kwargs)
        except (AttributeError, TypeError) as error:
            raise ValueError(f"{type(self).__name__}: expected fields that it has; got {error}") from error


def make_part(name: str, kind: type[PretrainedConfig], value: Any) -> PretrainedConfig:
    """The config of a part, from itself, from a dict of its fields, or from None: the defaults. Raises ValueError:
    another type, or an invalid field, which the message names with the part's `name` in front."""
    fields = {} if value is None else value
    if isinstance(fields, kind):
        return fields
    named = isinstance(fields, dict) and all(isinstance(field, str) for field in fields)
    require(named, name, f"a {kind.__name__} or a dict of its fields", value)
    stated = fields.get("model_type", kind.model_type)
    require(stated == kind.model_type, f"{name}.model_type", repr(kind.model_type), stated)
    try:
        return kind(**fields)
    except ValueError as error:
        raise ValueError(f"{name}.{error}") from error


MAX_ID = 2**31 - 1  # the largest id of a token, and the largest number in a language model's config

# ---- the language model's config ------------------------------------------------------------------------------------

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
    "num_labels": (0, 2**16),
}
"""Least and greatest value of a language model's fields, several times those of the largest models."""

FLAGS = ("output_hidden_states", "output_attentions", "return_dict", "use_cache", "is_encoder_decoder")
"""Boolean fields of every config; transformers does not check the first ones."""

ROPE = ("rope_theta", "factor")  # numbers; transformers only notices when it computes with them


def make_text_config(value: Any) -> PretrainedConfig:
    """The language model's config, from itself, from a dict with `model_type` (Qwen3 by default), or from None. Raises
    ValueError: another type, an unknown model, or an invalid field, which the message names."""
    config = value if isinstance(value, PretrainedConfig) else _from_fields({} if value is None else value)
    dtype = config.dtype
    require(dtype is None or is_dtype(dtype), "text_config.dtype", "a floating-point type of torch", dtype)
    _check_values(config.to_dict(), "text_config")
    for name in ("hidden_act", "activation_function"):
        activation = getattr(config, name, None)
        known = activation is None or activation in ACT2FN
        require(known, f"text_config.{name}", f"one of {', '.join(ACT2FN)}", activation)
    words, padding = (getattr(config, name, None) for name in ("vocab_size", "pad_token_id"))
    inside = not isinstance(words, int) or not isinstance(padding, int) or -words <= padding < words
    require(inside, "text_config.pad_token_id", f"an id below {words}", padding)
    heads, groups = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    whole_groups = not heads or not groups or heads % groups == 0
    require(whole_groups, "text_config.num_key_value_heads", f"a divisor of {heads} heads", groups)
    return config


def _from_fields(fields: Any) -> PretrainedConfig:
    named = isinstance(fields, dict) and all(isinstance(name, str) for name in fields)
    require(named, "text_config", "a config or a dict of its fields", fields)
    fields = dict(fields)
    model_type = fields.pop("model_type", "qwen3")
    _check_values(fields, "text_config")  # before transformers builds a list of the layers
    try:
        return AutoConfig.for_model(model_type, **fields)
    except StrictDataclassFieldValidationError as error:  # in this package's form
        name, cause = re.search(r"field '([^']*)'", str(error)), _line(error.__cause__)
        types = re.search(r"expected (.*?), got (.*)", cause)
        expected, received = types.groups() if types else ("another value", cause)
        raise ValueError(f"text_config.{name[1] if name else 'fields'}: expected {expected}; got {received}") from error
    except Exception as error:  # each config has its own checks and errors
        raise ValueError(f"text_config: expected fields of a {model_type!r} model; got {_line(error)}") from error


def _check_values(held: Any, name: str) -> None:
    """Refuses values, at any depth of a language model's config, that transformers takes and cannot compute with."""
    field = name.rpartition(".")[2]
    require(field not in FLAGS or isinstance(held, bool | None), name, "true or false", held)
    require(field not in ROPE or isinstance(held, int | float | None), name, "a number", held)
    if isinstance(held, dict):
        for key, value in held.items():
            _check_values(value, f"{name}.{key}")
    elif isinstance(held, list | tuple):
        for value in held:
            _check_values(value, name)
    elif isinstance(held, int | float) and not isinstance(held, bool):
        above = field.endswith(("_eps", "_epsilon", *ROPE))
        low, high = LIMITS.get(field, (0 if above else -MAX_ID, MAX_ID))
        expected = f"a number {'above' if above else 'from'} {low} to {high}"
        require(low <= held <= high and not (above and held == 0), name, expected, held)


def _line(error: BaseException | None) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# ---- arguments -------------------------------------------------------------------------------------------------------

MAX_BEAMS = 1024  # the most answers at a time for one question; more is taken for a typo and would fill the memory
NUMBERS = {bool: "True or False", Integral: "an integer", Real: "a number"}

DECODING: dict[str, tuple[Any, float, float]] = {
    "max_new_tokens": (Integral, 1, 2**31),
    "min_new_tokens": (Integral, 0, 2**31),
    "max_length": (Integral, 0, 2**31),
    "min_length": (Integral, 0, 2**31),
    "num_beams": (Integral, 1, MAX_BEAMS),
    "num_return_sequences": (Integral, 1, MAX_BEAMS),
    "top_k": (Integral, 0, 2**31),
    "pad_token_id": (Integral, 0, 2**31),
    "temperature": (Real, 1e-6, 1e6),
    "top_p": (Real, 0, 1),
    "repetition_penalty": (Real, 1e-6, 1e6),
    "length_penalty": (Real, -1e6, 1e6),
    "do_sample": (bool, 0, 1),
    "use_cache": (bool, 0, 1),
    "return_dict_in_generate": (bool, 0, 1),
    "output_scores": (bool, 0, 1),
    "output_logits": (bool, 0, 1),
}
"""Settings of transformers' `generate` that would fail deep within it: type, least and greatest value."""

CALLABLES: dict[str, tuple[tuple[str, ...], str]] = {
    "streamer": (("put", "end"), "an object with put and end"),
    "generation_config": (("to_dict", "max_new_tokens"), "a GenerationConfig"),
    "logits_processor": (("append", "extend"), "a list of logits processors"),
    "stopping_criteria": (("append", "extend"), "a list of stopping criteria"),
    "prefix_allowed_tokens_fn": (("__call__",), "a function"),
}
"""Other arguments of `generate`: the attributes that they need."""

PROCESSING: dict[str, tuple[Any, str]] = {
    "size": (int | Mapping | SizeDict, 'px, or {"height": px, "width": px}'),
    "patch_size": (int, "px, an integer above 0"),
    "budget": (int | str, "an integer or a name"),
    "strategy": (str, "a name"),
    "padding": (bool | str | PaddingStrategy, "True, False, longest, max_length or do_not_pad"),
}
"""Arguments of processors."""

SEEDS = 2**62  # seeds are within -2^62..2^62: sums with them are int64

FETCHING: dict[str, tuple[Any, str]] = {
    "strategy": (str, "a name"),
    "allocator": (str, "a name"),
    "budget": (int | str, "an integer or a name"),
    "seed": (int, f"an integer in {-SEEDS}..{SEEDS}"),
    "overlap": (str, '"exclude" or "allow"'),
    "bypass": (bool, "True or False"),
    "patches": (Tensor, "a dense tensor [image slots, K] of integers"),
    "relevance": (Tensor, "a dense tensor [image slots, patches]"),
    "all_scores": (bool, "True or False"),
    "num_passes": (int | str, 'an integer from 1, or "auto"'),
    "exploration": (str, "a name"),
}
"""Fields of `FetchChoices`: types, and the text for errors."""


def refusal(field: str, expected: str, value: Any) -> ValueError:
    """The error for an invalid value of a field."""
    return ValueError(f"{field}: expected {expected}; got {describe(value)}")


def check_processing(arguments: Mapping[str, Any]) -> None:
    """Raises a ValueError for an argument of `PROCESSING` of another type."""
    for name in arguments.keys() & PROCESSING.keys():
        value, (kinds, expected) = arguments[name], PROCESSING[name]
        wrong = not isinstance(value, kinds) or (isinstance(value, bool) and name != "padding")
        if name == "padding" and isinstance(value, str):
            wrong = value not in [*PaddingStrategy]
        if name == "size" and isinstance(value, Mapping):
            wrong = {*value} != {"height", "width"} or not all(isinstance(side, int) for side in value.values())
        wrong = wrong or (name == "patch_size" and value < 1)
        if wrong and (value is not None or name in ("padding", "patch_size")):
            raise refusal(name, expected, value)


def describe(value: Any) -> str:
    """A short description of a value for errors."""
    if isinstance(value, Tensor):
        quantized = "quantized " if value.is_quantized else ""
        return f"a {quantized}tensor {value.dtype}, {value.layout}, {value.device}, shape {list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}, shape {list(value.shape)}"
    return f"{quoted(value, 80)} ({type(value).__name__})"


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read: not sparse, quantized or on the meta device."""
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta


def array_of_tensor(name: str, tensor: Tensor) -> np.ndarray:
    """The values of a tensor that has to be dense and of real numbers; half precision as float32."""
    if not is_dense(tensor) or tensor.is_complex():
        raise refusal(name, "a dense tensor of numbers", tensor)
    tensor = tensor.detach().cpu()
    array: np.ndarray = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return array


def too_long(limit: int, longest: int, num_fetched: int, fits: int) -> ValueError:
    """The error for a prompt of `longest` tokens; the context has room for `fits` of `num_fetched` patches."""
    if fits < 1:
        return ValueError(f"question: expected a prompt of fewer than {limit} tokens, images included; got {longest}")
    expected = f"at most {fits} patches of each budget, which with this question fill the {limit} tokens of context"
    return ValueError(f"budget: expected {expected}; got {num_fetched}")


IMAGE_INPUTS = (
    "pixel_values", "patch_mask", "image_index", "image_encoding", "image_sources", "source_sizes", "image_words",
)  # fmt: skip
MODEL_INPUTS = ("input_ids", "inputs", "inputs_embeds", "attention_mask", *IMAGE_INPUTS)
"""What the processor makes of images and text, which `ask` makes itself."""


# ---- boxes -----------------------------------------------------------------------------------------------------------


def boxes_per_slot(boxes: Any) -> list[list[Any]]:
    """A list of boxes for one slot, or a list of such lists -> one list of boxes per slot. Raises ValueError: a box
    that is not four finite numbers, or no list of boxes."""
    rows = _as_lists(boxes)
    if isinstance(rows, list) and (not rows or is_box(rows[0])):
        rows = [rows]
    if not isinstance(rows, list) or not all(isinstance(row, list) and all(map(is_box, row)) for row in rows):
        expected = "boxes (x0, y0, x1, y1) of finite numbers in a list, or a list of such lists"
        raise refusal("boxes", expected, boxes)
    return rows


def _as_lists(value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        return value.tolist() if isinstance(value, np.ndarray) or is_dense(value) else None
    return [_as_lists(part) for part in value] if isinstance(value, list | tuple) else value


def is_box(value: Any) -> bool:
    """Whether it is four finite numbers."""
    four = isinstance(value, list | tuple | np.ndarray) and len(value) == 4
    numbers = four and all(isinstance(part, Real) for part in value)
    return numbers and all(abs(part) <= 1e9 for part in value)  # px; a box further away is a mistake


# ---- a model's inputs ------------------------------------------------------------------------------------------------


def check_inputs(inputs: Mapping[str, Any], relevance: Tensor | None, encoding: Any, vocabulary: int) -> None:
    """Raises a ValueError for inputs of `forward` that are invalid or do not match its images.

    Args:
        inputs: by name; None is ignored.
        relevance: [I, N], or None.
        encoding: the `ImageEncoding`.
        vocabulary: the number of tokens.
    """
    images, dtype = len(encoding), encoding.tokens.dtype
    here = {name: value for name, value in inputs.items() if value is not None}
    ids = here["input_ids"]
    for name, value in here.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
            raise refusal(name, "a dense tensor", value)
        dimensions = 1 if name == "image_index" else 2
        if value.ndim != dimensions and (name, value.ndim) != ("attention_mask", 4):
            raise refusal(name, f"a tensor of {dimensions} dimensions", value)
        is_integer = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        if name in ("input_ids", "labels", "position_ids", "image_index") and not is_integer:
            raise refusal(name, "a tensor of integers", value)
    for name in here.keys() & {"labels", "position_ids", "query_mask"}:
        own, received = list(ids.shape), list(here[name].shape)
        require(own == received, name, f"shape {own}, that of input_ids", received)
    mask = here.get("attention_mask")
    if mask is not None and (len(mask) != len(ids) or mask.shape[-1] < ids.shape[1]):
        raise refusal("attention_mask", f"shape {list(ids.shape)}, that of input_ids, or longer", mask)
    if mask is not None and mask.ndim == 4 and mask.dtype not in (torch.bool, dtype):
        raise refusal("attention_mask", f"torch.bool or {dtype} in one of 4 dimensions", mask)
    index = here.get("image_index")
    shape = [images if index is None else len(index), encoding.side**2]
    given = shape if relevance is None else list(relevance.shape)
    require(given == shape, "relevance_targets", f"shape {shape} (image slots, patches)", given)
    if torch.compiler.is_compiling() or ids.is_meta:  # the numbers are not known
        return
    numbers = [] if index is None else index.tolist()
    inside = all(0 <= number < images for number in numbers)
    require(inside, "image_index", f"numbers of {images} images, from 0", numbers)
    for name, least in (("input_ids", 0), ("labels", -100)):
        if name in here and here[name].numel():
            low, high = int(here[name].min()), int(here[name].max())
            if not least <= low <= high < vocabulary:
                expected = f"numbers of tokens, {least} to {vocabulary - 1}"
                raise ValueError(f"{name}: expected {expected}; got {low} to {high}")


def is_one(value: Any) -> bool:
    """Whether an argument asks for nothing special: None, False or 1."""
    return value is None or value is False or (isinstance(value, int) and value == 1 and value is not True)
