"""Weights in files: which files hold them, whether they are those of a config, whether they are finite numbers."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"

_PREFIX = re.compile(r"^(model\.)+")


def weight_files(folder: Path) -> list[str]:
    """Names of the weight files in `folder`: one, or the shards that its index names.

    Raises:
        ValueError: `folder` holds no weights, or lacks a shard; an index of another form (`weight_map`).
    """
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    index = folder / WEIGHTS_INDEX
    if not index.is_file():
        raise ValueError(f"{folder}: expected weights ({WEIGHTS}, or shards with {WEIGHTS_INDEX}); got none")
    shards = sorted(set(weight_map(index).values()))
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder}: expected the {len(shards)} shards of {WEIGHTS_INDEX}; got no {', '.join(missing)}")
    return shards


def weight_map(index: Path) -> dict[str, str]:
    """The shard that each tensor is in, by an index file.

    Raises:
        ValueError: no JSON, no `weight_map` from tensors to files, an empty one, or a shard that is no .safetensors
            file right beside the index: such a name would reach into other folders.
    """
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{index}: expected JSON; got {error}") from error
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index}: expected a weight_map from tensors to files; got none")
    for name in names.values():
        if not name.endswith(".safetensors") or set(name) & set("/\\:\0"):
            raise ValueError(f"{index}: expected names of .safetensors files beside it; got {name!r}")
    return names


def check_names(folder: Path) -> None:
    """Refuses weights of which two would go to the same part: transformers takes names with and without "model.".

    Raises:
        ValueError: two tensors for one part; no weights, or shards elsewhere (`weight_files`).
        SafetensorError: a damaged file.
    """
    tensors: dict[str, str] = {}
    for file in weight_files(folder):
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  not a dict
                part = _PREFIX.sub("", name)
                if part in tensors:
                    raise ValueError(f"{folder}: expected one tensor for each part; got {tensors[part]} and {name}")
                tensors[part] = name


def check_fit(source: Any, report: Mapping[str, Iterable[Any]], *, passed: Iterable[str] = ()) -> None:
    """Refuses weights that are not those of the config.

    Args:
        source: names the checkpoint in errors.
        report: what transformers says of loading it: missing_keys, unexpected_keys, mismatched_keys.
        passed: of "missing", "unexpected", "mismatched" those that are let through.

    Raises:
        ValueError: some are missing, left over or of other shapes.
    """
    for kind in ("mismatched", "missing", "unexpected"):
        keys = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report[f"{kind}_keys"])
        if keys and kind not in passed:
            raise ValueError(
                f"{source}: expected weights for every part of the config, in its shapes, and no others; "
                f"got {len(keys)} {kind}, e.g. {keys[0]}"
            )


def check_finite(source: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuses tensors, by name, that hold what is no finite number.

    Those that are not in memory (offloaded) pass, and so do quantized ones.

    Raises:
        ValueError: NaN or an infinity.
    """
    for name, tensor in tensors:
        plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_floating_point() and not tensor.is_meta
        if plain and tensor.numel() and not _is_finite(tensor.detach()):
            raise ValueError(f"{source}: expected finite weights; got NaN or infinity in {name}")


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype.itemsize == 1:  # the 8-bit types have no minimum
        tensor = tensor.float()
    low, high = torch.aminmax(tensor)  # without a copy, and NaN comes through
    return bool(low.isfinite() & high.isfinite())
