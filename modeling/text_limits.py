"""What is refused in a language model's config, whichever model of transformers it is: typos before they fill memory.

transformers itself checks types. Here are bounds by the names that its configs share, names of activations, heads that
divide, and numbers that are finite.
"""

import re
from collections.abc import Iterator
from typing import Any

from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import PretrainedConfig

from .knobs import check_labels, is_dtype, quoted

LIMITS: dict[str, tuple[float, float]] = {
    "vocab_size": (1, 2**22),
    "hidden_size": (1, 2**15),
    "intermediate_size": (1, 2**18),
    "moe_intermediate_size": (1, 2**18),
    "num_hidden_layers": (1, 512),
    "num_attention_heads": (1, 1024),
    "num_key_value_heads": (1, 1024),
    "head_dim": (1, 2**12),
    "n_routed_experts": (1, 2**12),
    "num_experts": (1, 2**12),
    "num_local_experts": (1, 2**12),
    "max_position_embeddings": (1, 2**24),
    "sliding_window": (1, 2**24),
    "initializer_range": (0, 10),
    "attention_dropout": (0, 1),
}
"""Least and most by field, several times those of the largest models there are."""

FLAGS = ("output_hidden_states", "output_attentions", "return_dict", "use_cache", "is_encoder_decoder")
"""What is on or off in every config; transformers does not check the first ones."""

_LARGEST = 2**31 - 1
"""Of any whole number in a config: ids and sizes alike."""


def make_text_config(value: Any) -> PretrainedConfig:
    """The language model's config, from itself, from a dict with `model_type` (Qwen3 by default), or from None.

    Raises:
        ValueError: something else, an unknown model, or a field that is refused, which the message names.
    """
    config = value if isinstance(value, PretrainedConfig) else _from_fields({} if value is None else value)
    if config.dtype is not None and not is_dtype(config.dtype):
        raise ValueError(f"text_config.dtype: expected a floating-point type of torch; got {quoted(config.dtype)}")
    for name in FLAGS:
        if not isinstance(getattr(config, name, None), bool | None):
            raise ValueError(f"text_config.{name}: expected true or false; got {quoted(getattr(config, name))}")
    _check_limits({name: getattr(config, name, None) for name in LIMITS})
    for name, number in _numbers(config.to_dict(), "text_config"):
        if not abs(number) <= _LARGEST:
            raise ValueError(f"{name}: expected a finite number up to {_LARGEST}; got {quoted(number)}")
        if name.endswith(("_eps", "_epsilon", "rope_theta", "factor")) and not number > 0:
            raise ValueError(f"{name}: expected a number above 0; got {quoted(number)}")
    _check_rope(config)
    _check_names(config)
    return config


def _from_fields(fields: Any) -> PretrainedConfig:
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise ValueError(f"text_config: expected a config or a dict of its fields; got {quoted(fields)}")
    fields = dict(fields)
    model_type = fields.pop("model_type", "qwen3")
    _check_limits(fields)  # before transformers makes a list of the layers
    try:
        check_labels(fields.get("num_labels"))
        return AutoConfig.for_model(model_type, **fields)
    except StrictDataclassFieldValidationError as error:
        raise ValueError(f"text_config.{_reworded(error)}") from error
    except Exception as error:  # each config has checks of its own, and raises what it likes
        raise ValueError(f"text_config: expected fields of a {model_type!r} model; got {_line(error)}") from error


def _check_limits(fields: dict[str, Any]) -> None:
    for name, (low, high) in LIMITS.items():
        number = fields.get(name)
        if isinstance(number, (int, float)) and not low <= number <= high:
            raise ValueError(f"text_config.{name}: expected a number from {low} to {high}; got {quoted(number)}")


def _check_rope(config: PretrainedConfig) -> None:
    """The rotary positions' numbers are numbers, which transformers finds out when it computes with them."""
    rope = getattr(config, "rope_parameters", None)
    for holder in (vars(config), rope if isinstance(rope, dict) else {}):
        for name in ("rope_theta", "factor"):
            if not isinstance(holder.get(name), int | float | None):
                raise ValueError(f"text_config.{name}: expected a number; got {quoted(holder[name])}")


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
    """Every number in a config, with the name of the field that holds it."""
    if isinstance(held, dict):
        for key, value in held.items():
            yield from _numbers(value, f"{name}.{key}")
    elif isinstance(held, (list, tuple)):
        for value in held:
            yield from _numbers(value, name)
    elif isinstance(held, (int, float)) and not isinstance(held, bool):
        yield name, held


def _reworded(error: StrictDataclassFieldValidationError) -> str:
    """transformers' refusal of a field, as ours read."""
    name = re.search(r"field '([^']*)'", str(error))
    cause = _line(error.__cause__)
    types = re.search(r"expected (.*?), got (.*)", cause)
    expected, received = types.groups() if types else ("another value", cause)
    return f"{name[1] if name else 'fields'}: expected {expected}; got {received}"


def _line(error: BaseException | None) -> str:
    return " ".join(str(error).split()) or type(error).__name__
