"""Encoder outputs on disk: outputs of frozen parts are computed once for each image, for any number of epochs.

There is one file for each image and state of the weights: FOLDER/<weights>/<image>.pt. The names are hashes of the
weights and the configuration, and of the pixels (so of the image and its preprocessing). Changed inputs get another
name. Nothing deletes files, and they may be deleted at any time.

Notation: P images, N patches.
"""

import hashlib
import json
import os
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from ..files import disk_faults
from ..modeling.modeling_arr_coc import ImageEncoding
from ..modeling.scorers import scorer_inputs
from ..version import __version__
from .optimizers import base_model

logger = logging.get_logger(__name__)

torch.serialization.add_safe_globals([ImageEncoding])  # the only class in a cached file


class CachedEncoder:
    """`encode_image` with a cache: pass its result as `image_encoding` to the model.

    Args:
        model: an ARR-COC model, wrapped by PEFT or not; all parts that make an `ImageEncoding` are frozen.
        folder: of the cache; any number of processes, models and runs may share it.

    Attributes:
        hits, misses: images that were, and were not, in the cache.
    """

    def __init__(self, model: nn.Module, folder: str | Path) -> None:
        self.model, self.folder = base_model(model), Path(folder)
        self.hits = self.misses = 0

    @cached_property
    def _place(self) -> Path:
        """The folder for these weights and settings, which stay as they are at the first image."""
        return self.folder / _hash_parts(self.model.config, _frozen_parts(self.model.model))

    def encode(self, pixel_values: Tensor, patch_mask: Tensor | None = None) -> ImageEncoding:
        """`ArrCocModel.encode_image` for pixel_values [P, 3, S, S] and patch_mask [P, N]. Raises ValueError: a part
        that makes encodings is trained or has dropout, so its outputs cannot be cached."""
        core: Any = self.model.model
        kind = core.device.type
        precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else core.dtype
        masks = [None] * len(pixel_values) if patch_mask is None else patch_mask
        paths = [
            self._place / f"{_hash(pixels, torch.zeros(0) if mask is None else mask.bool(), said=str(precision))}.pt"
            for pixels, mask in zip(pixel_values, masks, strict=True)
        ]
        distinct = list(dict.fromkeys(paths))
        held = {path: encoding for path in distinct if (encoding := self._load(path)) is not None}
        missing = [path for path in distinct if path not in held]
        self.misses += len(missing)
        self.hits += len(held)
        if missing:
            index = torch.tensor([paths.index(path) for path in missing], device=pixel_values.device)
            mask = None if patch_mask is None else patch_mask[index.to(patch_mask.device)].to(core.device)
            with torch.no_grad():
                made = core.encode_image(pixel_values[index].to(core.device), mask)
            made = replace(made, made_by=None, source_sizes=None).without_prefix()
            for row, path in enumerate(missing):
                held[path] = made.select(torch.tensor([row], device=made.features.device))
                self._keep(path, held[path])
        encodings = [held[path] for path in paths]
        return replace(encodings[0].join(*encodings[1:]), joined=False)

    # ---- files

    def _load(self, path: Path) -> ImageEncoding | None:
        """The encoding in a file; None without a complete file."""
        try:
            encoding: ImageEncoding = torch.load(path, map_location=self.model.device, weights_only=True)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RuntimeError, EOFError, UnpicklingError) as error:
            logger.warning(f"{path}: expected a whole cached encoding; got {error}; it is made again")
            return None
        return encoding

    def _keep(self, path: Path, encoding: ImageEncoding) -> None:
        """Writes a file beside its place and moves it there, so that no reader gets a part of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as stream:
            beside = Path(stream.name)
        try:
            with disk_faults(path), beside.open("wb") as stream:
                torch.save(encoding, stream)
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)


def _frozen_parts(core: Any) -> dict[str, nn.Module]:
    """The modules whose output is cached, by name: all but the parts for fetched patches only. Raises ValueError: one
    is trained, or has dropout."""
    tower = core.vision_tower
    parts = {"grid encoder": tower.grid_encoder, "bridge": core.bridge, "layout": core.layout}
    if tower.text_reader is None:
        parts |= {"compressor": tower.compressor, "semantic encoder": tower.semantic_encoder}
    else:
        parts["text reader"] = tower.text_reader
    if core.bridge.places_tokens:  # base tokens are rows of the table
        parts["embeddings"] = core.get_input_embeddings()
    for place, part in parts.items():
        trained = next((name for name, weight in part.named_parameters() if weight.requires_grad), None)
        if trained is not None:
            raise ValueError(f"cached encoder: expected a frozen {place}; got one that trains {trained}")
        for name, module in part.named_modules():
            if isinstance(module, nn.Dropout) and module.training and module.p > 0:
                raise ValueError(f"cached encoder: expected parts without dropout in training; got {place}.{name}")
    return parts


def _hash_parts(config: Any, parts: dict[str, nn.Module]) -> str:
    settings = {name: getattr(config, name).to_dict() for name in ("vision_config", "semantic_config", "bridge_config")}
    weights = {f"{place}.{name}": own for place, part in parts.items() for name, own in part.state_dict().items()}
    said = [__version__, settings, scorer_inputs(config.fetcher_config), [*weights]]
    return _hash(*weights.values(), said=json.dumps(said, sort_keys=True, default=str))


def _hash(*tensors: Tensor, said: str) -> str:
    digest = hashlib.sha256(said.encode())
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
