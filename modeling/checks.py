"""Checks of arguments: each error is a ValueError of one line with the expected and the received value.

Notation: B prompts, S sequence length, P encoded images, I image slots, N patches.
"""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.image_utils import SizeDict
from transformers.utils import PaddingStrategy

FARTHEST = 1e9
"""px; a box further away is a mistake."""

MAX_BEAMS = 1024
"""The most answers at a time for one question; more is taken for a typo and would fill the memory."""

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

SEEDS = 2**62
"""Seeds are within -2^62..2^62: sums with them are int64."""

FETCHING: dict[str, tuple[Any, str]] = {
    "strategy": (str, "a name"),
    "allocator": (str, "a name"),
    "budget": (int | str, "an integer or a name"),
    "seed": (int, f"an integer in {-SEEDS}..{SEEDS}"),
    "generator": (torch.Generator, "a torch.Generator"),
    "overlap": (str, '"exclude" or "allow"'),
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
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 80 else f'{text[:80]}...'} ({type(value).__name__})"


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
    """A list of boxes for one slot, or a list of such lists -> one list of boxes per slot.

    Raises:
        ValueError: a box that is not four finite numbers, or no list of boxes.
    """
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
    return numbers and all(-FARTHEST <= part <= FARTHEST for part in value)


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
        if here[name].shape != ids.shape:
            own = f"shape {list(ids.shape)}, that of input_ids"
            raise ValueError(f"{name}: expected {own}; got {list(here[name].shape)}")
    mask = here.get("attention_mask")
    if mask is not None and (len(mask) != len(ids) or mask.shape[-1] < ids.shape[1]):
        raise refusal("attention_mask", f"shape {list(ids.shape)}, that of input_ids, or longer", mask)
    if mask is not None and mask.ndim == 4 and mask.dtype not in (torch.bool, dtype):
        raise refusal("attention_mask", f"torch.bool or {dtype} in one of 4 dimensions", mask)
    index = here.get("image_index")
    shape = [images if index is None else len(index), encoding.side**2]
    if relevance is not None and list(relevance.shape) != shape:
        received = list(relevance.shape)
        raise ValueError(f"relevance_targets: expected shape {shape} (image slots, patches); got {received}")
    if torch.compiler.is_compiling() or ids.is_meta:  # the numbers are not known
        return
    if index is not None and not all(0 <= number < images for number in index.tolist()):
        raise ValueError(f"image_index: expected numbers of {images} images, from 0; got {index.tolist()}")
    for name, least in (("input_ids", 0), ("labels", -100)):
        if name in here and here[name].numel():
            low, high = int(here[name].min()), int(here[name].max())
            if not least <= low <= high < vocabulary:
                expected = f"numbers of tokens, {least} to {vocabulary - 1}"
                raise ValueError(f"{name}: expected {expected}; got {low} to {high}")
