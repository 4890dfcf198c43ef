"""What decides an answer, as hashes: two runs may share a folder of predictions only where all of them agree."""

import hashlib
import inspect
import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from ..data.images import HeldImage
from ..data.records import Record
from ..modeling.image_loading import load_image
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..version import __version__
from . import answers, arms, bases, peers, view_asking

WEIGHTS = frozenset((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"))
"""Endings of files that hold weights, an adapter's among them."""

_UNRELATED = ("_name_or_path", "transformers_version", "_from_model_config")
"""Fields of configs that say where they come from, not what is done."""


def model_identity(model: ArrCocForConditionalGeneration) -> dict[str, str]:
    """sha256 by part of all that decides a model's answers: {"weights_sha256", "config_sha256", ...}.

    Configs, tokenizer, chat template and processor are taken as they are in memory, so that what was changed after
    loading counts; weights as they lie in the checkpoint's folder, in any format.
    """
    processor = model.processor
    tokenizer = processor.tokenizer
    backend = getattr(tokenizer, "backend_tokenizer", None)
    spelling = sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str()
    parts = {
        "config": _settings(model.config),
        "generation_config": _settings(model.generation_config),
        "tokenizer": [spelling, {name: str(token) for name, token in tokenizer.special_tokens_map.items()}],
        "chat_template": [getattr(processor, "chat_template", None), getattr(tokenizer, "chat_template", None)],
        "processor": _settings(processor.image_processor),
    }
    hashes = {name: _hash_text(json.dumps(content, sort_keys=True, default=str)) for name, content in parts.items()}
    hashes = {"weights": hash_files(_weight_files(model.config._name_or_path)), **hashes, "code": _hash_code(model)}
    return {f"{name}_sha256": value for name, value in hashes.items()}


def _settings(holder: Any) -> dict[str, Any]:
    return {name: value for name, value in holder.to_dict().items() if name not in _UNRELATED}


def _weight_files(source: str) -> list[Path]:
    """All files of a checkpoint that hold weights, in the order of their names."""
    folder = Path(source)
    if not folder.is_dir():
        config = cached_file(source, "config.json")
        assert config is not None  # cached_file raises where there is none
        folder = Path(config).parent
    return sorted(path for path in folder.rglob("*") if path.suffix in WEIGHTS)


def _hash_code(model: ArrCocForConditionalGeneration) -> str:
    """Of the model's source files, of those that ask it, and of the versions of the libraries below."""
    modeling = Path(inspect.getfile(type(model))).parent
    asking = [Path(inspect.getfile(module)) for module in (answers, arms, bases, view_asking)]
    paths = [*sorted(modeling.glob("*.py")), *asking, *sorted(Path(inspect.getfile(peers)).parent.glob("*.py"))]
    versions = f"arr_coc {__version__}, torch {version('torch')}, transformers {version('transformers')}"
    return _hash_text(versions + hash_files(paths))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def hash_files(paths: Iterable[Path]) -> str:
    """sha256 of the files' contents, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def hash_images(records: Sequence[Record]) -> str:
    """sha256 over the image files in the order of their paths, then over the pixels of images that are no files."""
    images = dict.fromkeys(image for record in records for image in record.images)
    digest = hashlib.sha256()
    for path in sorted(image for image in images if isinstance(image, Path)):
        digest.update(path.read_bytes())
    for image in images:
        if isinstance(image, HeldImage):
            digest.update(load_image(image.make()).tobytes())
    return digest.hexdigest()
