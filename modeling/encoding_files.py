"""Encodings in files: what was encoded once, in one safetensors file, readable by the model that made it.

Kept are all tensors but the language model's keys and values of the prefix, which it makes anew. Pixels are not: a
question cannot run back to them for new tiles.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers.modeling_utils import safe_open, safe_save_file

from .image_loading import Source
from .placement import loaded_weights
from .vision_tower import ImageEncoding, Tiles

if TYPE_CHECKING:
    from .base_model import ArrCocModel

FORMAT = "arr_coc.encoding.1"

SAMPLES = 1024
"""Weights of each parameter that its part of the identity is made of, evenly spaced."""

_UNRELATED = ("transformers_version", "_name_or_path", "dtype")
"""Settings that say where a config comes from, and which type it was loaded in: the weights' own types count."""

_CACHES = ("semantic_cache", "bridge_cache")
_SAID = ("bypass", "pool", "source_sizes", "documents")


def model_identity(core: "ArrCocModel") -> str:
    """A checksum of what makes an encoding: configs, samples of the weights and active adapters, before the prompt."""
    config, digest = core.config, sha256()
    for part in (config.vision_config, config.semantic_config, config.bridge_config):
        usual = type(part)().to_dict()  # left out, so that a setting that is new changes nothing where it is unused
        settings = {name: value for name, value in part.to_dict().items() if value != usual.get(name)}
        settings = {name: value for name, value in settings.items() if name not in _UNRELATED}
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, module in (("tower", core.vision_tower), ("bridge", core.bridge), ("layout", core.layout)):
        for key, said in sorted((key, _sampled(tensor)) for key, tensor in loaded_weights(module)):
            digest.update(f"{name}.{key}".encode() + said)
        for key, part in module.named_modules():
            if hasattr(part, "active_adapters") and hasattr(part, "disable_adapters"):  # of PEFT: who is asked, and how
                read = [] if part.disable_adapters else part.active_adapters
                digest.update(f"{name}.{key}{read}{getattr(part, 'scaling', None)}".encode())
    return digest.hexdigest()


def maker(core: "ArrCocModel") -> tuple[str, str] | None:
    """What an encoding remembers of the model that makes it: which object in this process, and its identity.

    None where weights have no numbers to sample, as some quantized ones.
    """
    try:
        return core.token, model_identity(core)
    except (NotImplementedError, RuntimeError):
        return None


def of_model(encoding: ImageEncoding, core: "ArrCocModel") -> ImageEncoding:
    """The encoding, for questions to `core`: without its prefix where another object of the same weights made it.

    Raises:
        ValueError: a model of other weights made it.
    """
    encoding.check_fits(core.config)
    if encoding.made_by is None or encoding.made_by[0] == core.token:
        return encoding
    if (own := maker(core)) is not None:
        _check_identity("image", encoding.made_by[1], own[1])
    return encoding.without_prefix()


def _check_identity(name: str, made_by: str, identity: str) -> None:
    if made_by != identity:
        expected = f"an encoding of this model ({identity[:12]})"
        raise ValueError(f"{name}: expected {expected}; got one of {made_by[:12]}")


def _sampled(tensor: Tensor) -> bytes:
    flat = tensor.detach().flatten()
    sample = flat[:: max(1, len(flat) // SAMPLES)].float().cpu().numpy()
    return f"{list(tensor.shape)}{tensor.dtype}".encode() + sample.tobytes()


def save_encoding(encoding: ImageEncoding, path: str | os.PathLike, core: "ArrCocModel") -> None:
    """Writes an encoding to one safetensors file.

    Raises:
        ValueError: its tiles are encoded when questions ask for them, which a file cannot do.
    """
    if encoding.tiling is not None:
        expected = "an encoding that holds all of its tiles (a larger max_tiles, fewer tiles by a number, or none)"
        raise ValueError(f'tiles: expected {expected}; got one of tiles="asked", or of more than max_tiles')
    said = {name: getattr(encoding, name) for name in _SAID}
    if encoding.sources is not None:
        said["places"] = [(source.page, source.second) for source in encoding.sources]
    about = {"format": FORMAT, "identity": model_identity(core), "encoding": json.dumps(said)}
    tensors = {name: tensor.detach().contiguous().cpu().clone() for name, tensor in _tensors(encoding)}
    safe_save_file(tensors, str(path), metadata=about)


def _tensors(encoding: ImageEncoding) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a file holds, by its name there."""
    for part in fields(encoding):
        value = getattr(encoding, part.name)
        if isinstance(value, Tensor) and part.name != "prefix_ids":
            yield part.name, value
    for name in _CACHES:
        for layer, pair in enumerate(getattr(encoding, name) or []):
            yield from ((f"{name}.{layer}.{kind}", tensor) for kind, tensor in zip("kv", pair, strict=True))
    if encoding.tiles is not None:
        yield from ((f"tiles.{part.name}", getattr(encoding.tiles, part.name)) for part in fields(encoding.tiles))


def load_encoding(path: str | os.PathLike, core: "ArrCocModel") -> ImageEncoding:
    """The encoding in a file that `save_encoding` wrote, on the model's device.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such content, or of another model.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: expected a file that ImageEncoding.save wrote; got a missing path")
    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name).to(core.input_device) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors has a class of its own
        expected = "a file that ImageEncoding.save wrote"
        raise ValueError(f"{path}: expected {expected}; got a broken one ({type(error).__name__})") from None
    if about.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT}; got {about.get('format')!r}")
    _check_identity(str(path), about["identity"], model_identity(core))
    encoding = _rebuilt(tensors, json.loads(about["encoding"]))
    encoding.made_by = (core.token, about["identity"])
    return encoding


def _rebuilt(tensors: dict[str, Tensor], said: dict[str, Any]) -> ImageEncoding:
    whole: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if "." not in name}
    for name in _CACHES:
        layers = sum(key.startswith(f"{name}.") for key in tensors) // 2
        pairs = [(tensors[f"{name}.{layer}.k"], tensors[f"{name}.{layer}.v"]) for layer in range(layers)]
        whole[name] = pairs or ([] if name == "semantic_cache" else None)
    tiles = {name.removeprefix("tiles."): tensor for name, tensor in tensors.items() if name.startswith("tiles.")}
    places = said.pop("places", None)
    if said["source_sizes"] is not None:
        said["source_sizes"] = [(height, width) for height, width in said["source_sizes"]]
    encoding = ImageEncoding(base_indices=whole.pop("base_indices", None), **whole, **said)
    if tiles:
        apart = {name: tensor.cpu() if name in ("sources", "windows") else tensor for name, tensor in tiles.items()}
        encoding.tiles = Tiles(**apart)
    if places is not None:
        sizes = said["source_sizes"]
        encoding.sources = [
            Source(height, width, no_pixels, page, second)
            for (height, width), (page, second) in zip(sizes, places, strict=True)
        ]
    return encoding


def no_pixels() -> Any:
    raise ValueError("source: expected its pixels; got an encoding that holds none")
