"""Encoder outputs on disk: outputs of frozen parts are computed once for each image, for any number of epochs.

There is one file for each image and state of the weights: FOLDER/<weights>/<image>.safetensors. The names are hashes of
the weights and the configuration, and of the pixels (so of the image and its preprocessing). Changed inputs get another
name; unused files are evicted.

Notation: P images, C feature channels, G side of the fine grid, N = G*G patches.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import logging

from ..files import disk_faults
from ..modeling.modeling_arr_coc import ImageEncoding
from ..modeling.scorers import scorer_inputs
from ..version import __version__
from .optimizers import base_model

logger = logging.get_logger(__name__)

_SUFFIX, _BESIDE = ".safetensors", ".tmp"
_ABANDONED = 3600.0
"""Age in seconds at which an unfinished file is that of a killed process."""
_PAIRED = ("semantic_cache", "bridge_cache")
_NOT_KEPT = ("bypass", "prefix_ids", "prefix_cache", "source_sizes")


class CachedEncoder:
    """`encode_image` with a cache: pass its result as `image_encoding` to the model.

    Args:
        model: an ARR-COC model, wrapped by PEFT or not; all parts that make an `ImageEncoding` are frozen.
        folder: of the cache; any number of processes, models and runs may share it.
        limit_bytes: the size of all files in `folder` beyond which the least recently used are deleted.

    Attributes:
        hits, misses: images that were, and were not, in the cache.

    Raises:
        ValueError: a limit that is not positive.
    """

    def __init__(self, model: nn.Module, folder: str | Path, limit_bytes: int = 10 * 2**30) -> None:
        if limit_bytes < 1:
            raise ValueError(f"limit_bytes: expected at least 1; got {limit_bytes}")
        self.model = base_model(model)
        self.folder, self.limit_bytes = Path(folder), limit_bytes
        self.hits = self.misses = 0
        self._stamp: object = None
        self._weights = ""
        self._size = sum(size for _, size, _ in self._files())

    def encode(self, pixel_values: Tensor, patch_mask: Tensor | None = None) -> ImageEncoding:
        """`ArrCocModel.encode_image` for pixel_values [P, 3, S, S] and patch_mask [P, N].

        Raises:
            ValueError: a part that makes encodings is trained or has dropout, so its outputs cannot be cached.
        """
        core: Any = self.model.model
        parts = _parts(core)
        _check_frozen(parts)
        folder = self.folder / self._weights_hash(parts)
        masks = [None] * len(pixel_values) if patch_mask is None else patch_mask
        paths = [folder / (_image_hash(*row) + _SUFFIX) for row in zip(pixel_values, masks, strict=True)]
        held: dict[Path, dict[str, Tensor]] = {}
        for path in dict.fromkeys(paths):
            if (tensors := self._load(path)) is not None:
                held[path] = tensors
        missing = [path for path in dict.fromkeys(paths) if path not in held]
        self.misses += len(missing)
        self.hits += len(held)
        if missing:
            index = torch.tensor([paths.index(path) for path in missing], device=pixel_values.device)
            mask = None if patch_mask is None else patch_mask[index.to(patch_mask.device)]
            for path, tensors in zip(missing, self._made(pixel_values[index], mask), strict=True):
                self._keep(path, tensors)
                held[path] = tensors
        device = core.get_input_embeddings().weight.device
        joined = {name: torch.cat([held[path][name] for path in paths]).to(device) for name in held[paths[0]]}
        return _unpacked(joined, bypass=core.config.bridge_config.bypass)

    @torch.no_grad()
    def _made(self, pixel_values: Tensor, patch_mask: Tensor | None) -> list[dict[str, Tensor]]:
        """The tensors of each image's encoding, with a leading dimension of 1, on the CPU."""
        core = self.model.model
        mask = None if patch_mask is None else patch_mask.to(core.device)
        packed = _packed(core.encode_image(pixel_values.to(core.device), mask))
        packed = {name: tensor.cpu() for name, tensor in packed.items()}
        return [{n: t[i : i + 1].contiguous() for n, t in packed.items()} for i in range(len(pixel_values))]

    # ---- names

    def _weights_hash(self, parts: dict[str, nn.Module]) -> str:
        """A hash of the parts' weights, configuration and precision; computed again only after a write to them."""
        kind = self.model.device.type
        precision = str(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)
        stamp = (precision, *_stamps(parts))
        if stamp != self._stamp:
            self._stamp, self._weights = stamp, _hash_parts(self.model.config, parts, precision)
        return self._weights

    # ---- files

    def _load(self, path: Path) -> dict[str, Tensor] | None:
        """The tensors of a file, which becomes the most recently used; None without a complete file."""
        try:
            tensors = load_file(path)
            os.utime(path)
        except FileNotFoundError:
            return None
        except (SafetensorError, OSError, ValueError) as error:
            logger.warning(f"{path}: expected a whole cached encoding; got {error}; it is made again")
            return None
        needed = {"tokens", *(["characters"] if "pieces" in tensors else [])}
        return tensors if needed <= set(tensors) else None

    def _keep(self, path: Path, tensors: dict[str, Tensor]) -> None:
        """Writes a file beside its place and moves it there, so that no reader gets a part of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, suffix=_BESIDE, delete=False) as stream:
            beside = Path(stream.name)
        try:
            with disk_faults(path):
                save_file(tensors, beside)
            self._size += beside.stat().st_size
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        if self._size > self.limit_bytes:
            self._evict()

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use in s, bytes and path of every file in the cache; of other writers too."""
        for path in self.folder.glob(f"*/*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                status = path.stat()
                yield status.st_mtime_ns / 1e9, status.st_size, path

    def _evict(self) -> None:
        """Deletes the least recently used files until a tenth of the limit is free, and files of killed writers."""
        for path in self.folder.glob(f"*/*{_BESIDE}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - _ABANDONED:
                    path.unlink()
        files = sorted(self._files())
        self._size = sum(size for _, size, _ in files)
        room = self.limit_bytes - self.limit_bytes // 10
        for _, size, path in files:
            if self._size <= room:
                break
            path.unlink(missing_ok=True)
            self._size -= size


def _parts(core: Any) -> dict[str, nn.Module]:
    """The modules whose output is cached, by name: all but the parts for fetched patches only."""
    tower = core.vision_tower
    parts = {"grid encoder": tower.grid_encoder, "bridge": core.bridge, "layout": core.layout}
    if tower.text_reader is None:
        parts |= {"compressor": tower.compressor, "semantic encoder": tower.semantic_encoder}
    else:
        parts["text reader"] = tower.text_reader
    if core.bridge.places_tokens:  # base tokens are rows of the table
        parts["embeddings"] = core.get_input_embeddings()
    return parts


def _check_frozen(parts: dict[str, nn.Module]) -> None:
    for place, part in parts.items():
        trained = next((name for name, weight in part.named_parameters() if weight.requires_grad), None)
        if trained is not None:
            raise ValueError(f"cached encoder: expected a frozen {place}; got one that trains {trained}")
        for name, module in part.named_modules():
            if isinstance(module, nn.Dropout) and module.training and module.p > 0:
                raise ValueError(f"cached encoder: expected parts without dropout in training; got {place}.{name}")


def _adapter_state(part: nn.Module) -> list[tuple[Any, ...]]:
    """The active PEFT adapters of each layer's output: the same weights can count or not."""
    names = ("active_adapters", "disable_adapters", "merged_adapters", "scaling")
    return [
        (place, *(repr(getattr(module, name, None)) for name in names))
        for place, module in part.named_modules()
        if hasattr(module, "active_adapters") and hasattr(module, "merged_adapters")
    ]


def _stamps(parts: dict[str, nn.Module]) -> Iterator[object]:
    """Equal if no weight was written to since (by PyTorch's count of writes) and the active adapters are the same."""
    for part in parts.values():
        for name, tensor in part.state_dict(keep_vars=True).items():
            yield name, tensor.data_ptr(), tensor._version, tensor.dtype
        yield from _adapter_state(part)


def _hash_parts(config: Any, parts: dict[str, nn.Module], precision: str) -> str:
    digest = hashlib.sha256()
    settings = {name: getattr(config, name).to_dict() for name in ("vision_config", "semantic_config", "bridge_config")}
    read = scorer_inputs(config.fetcher_config)
    digest.update(json.dumps([__version__, precision, settings, read], sort_keys=True, default=str).encode())
    for place, part in parts.items():
        digest.update(repr(_adapter_state(part)).encode())
        for name, tensor in part.state_dict(keep_vars=True).items():
            digest.update(f"{place}.{name} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(_bytes(tensor))
    return digest.hexdigest()[:32]


def _image_hash(pixel_values: Tensor, patch_mask: Tensor | None) -> str:
    digest = hashlib.sha256()
    for tensor in (pixel_values, torch.zeros(0) if patch_mask is None else patch_mask.bool()):
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()[:32]


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def _packed(encoding: ImageEncoding) -> dict[str, Tensor]:
    """The tensors of an encoding by name; lists of keys and values as `name.layer.key` and `name.layer.value`."""
    packed: dict[str, Tensor] = {}
    for field in fields(encoding):
        value = getattr(encoding, field.name)
        if field.name in _PAIRED and value is not None:
            for layer, (key, states) in enumerate(value):
                packed |= {f"{field.name}.{layer}.key": key, f"{field.name}.{layer}.value": states}
        elif isinstance(value, Tensor) and field.name not in _NOT_KEPT:
            packed[field.name] = value
    return packed


def _unpacked(packed: dict[str, Tensor], *, bypass: bool) -> ImageEncoding:
    """The encoding that `_packed` took apart."""
    tensors: dict[str, Any] = {name: tensor for name, tensor in packed.items() if "." not in name}
    for name in _PAIRED:
        layers = sum(key.startswith(f"{name}.") for key in packed) // 2
        pairs = [(packed[f"{name}.{layer}.key"], packed[f"{name}.{layer}.value"]) for layer in range(layers)]
        tensors[name] = pairs
    return ImageEncoding(**{"base_indices": None, **tensors}, bypass=bypass)
