"""Sources of published weights: a local folder, a GGUF file, or a repository on the Hub.

Headers are read first, weights only on demand.
"""

import hashlib
import math
import re
import sys
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    SafetensorsParsingError,
)
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from ..files import cache_folder, fresh_folder, read_json
from ..loading import refused
from ..modeling.pretrained import WEIGHTS, WEIGHTS_INDEX, weight_files, weight_map

_GGUF = b"GGUF"
_TOKENIZER = ("tokenizer", "special_tokens", "chat_template")
"""Prefixes of a tokenizer's files. The tokenizer is read separately, as this takes longer than reading weights."""

_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")


@dataclass(frozen=True)
class TensorInfo:
    """A tensor's entry in a header: its shape, its type by safetensors' name, and its file."""

    shape: tuple[int, ...]
    dtype: str
    file: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class WeightsSource:
    """Published weights in a local folder.

    Attributes:
        name: name in errors and reports.
        published_name: the name to publish: a folder's or a file's name without its path.
        revision: the commit on the Hub; None for a folder.
    """

    revision: str | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name, self.published_name = str(folder), folder.name

    def __str__(self) -> str:
        return self.name

    def optional(self, name: str) -> Path | None:
        """The file called `name`, or None."""
        path = self.folder / name
        return path if path.is_file() else None

    def file(self, name: str) -> Path:
        """Local path of the checkpoint's file `name`, downloaded if necessary. Raises ValueError: the checkpoint has no
        such file, or it cannot be downloaded."""
        path = self.optional(name)
        if path is None:
            raise ValueError(f"{self}: expected {name}; got none")
        return path

    def weight_files(self) -> list[str]:
        """Names of the safetensors files. Raises ValueError: the folder holds no weights, or lacks a shard."""
        return weight_files(self.folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The published config.json."""
        return read_json(self.file("config.json"))

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """All tensors of all files, from the headers only. Raises ValueError: a shard is missing, a file is damaged, or
        the index does not match the files."""
        tensors: dict[str, TensorInfo] = {}
        for file in self.weight_files():
            for name, info in self._header(file).items():
                if name in tensors:
                    raise ValueError(f"{self}: expected {name} in one file; got it in {tensors[name].file} and {file}")
                tensors[name] = info
        index = self.optional(WEIGHTS_INDEX)
        for name, file in ({} if index is None else weight_map(index)).items():
            if name not in tensors or tensors[name].file not in (file, WEIGHTS):
                where = tensors[name].file if name in tensors else "none"
                raise ValueError(f"{self}: expected {name} in {file}, as {WEIGHTS_INDEX} says; got {where}")
        return tensors

    def shape(self, name: str, axes: int | None = None) -> tuple[int, ...]:
        """The shape of a tensor. Raises ValueError: the checkpoint has no tensor of this name, or not with this number
        of axes."""
        if name not in self.tensors:
            raise ValueError(f"{self}: expected tensor {name}; got none")
        shape = self.tensors[name].shape
        if axes not in (None, len(shape)):
            raise ValueError(f"{self}: expected {name} with {axes} axes; got shape {list(shape)}")
        return shape

    def field(self, path: str, default: Any = ...) -> Any:
        """A field of config.json, with dots for nested fields. Raises ValueError: config.json lacks the field, and
        there is no default."""
        value: Any = self.config
        for step in path.split("."):
            if not isinstance(value, dict) or step not in value:
                if default is not ...:
                    return default
                raise ValueError(f"{self}: expected {path} in config.json; got none")
            value = value[step]
        return value

    def agree(self, what: str, tensors: Any, published: Any) -> Any:
        """The value on which tensors and config.json agree. Raises ValueError: tensors and config.json differ."""
        if tensors != published:
            expected = f"config.json and tensors to agree on {what}"
            raise ValueError(f"{self}: expected {expected}; got {published} and {tensors}")
        return tensors

    def _header(self, file: str) -> dict[str, TensorInfo]:
        path = self.file(file)
        with refused(str(path), "a whole safetensors file"), safe_open(path, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118  not a dict
            return {name: TensorInfo(tuple(s.get_shape()), s.get_dtype(), file) for name, s in slices.items()}


class HubSource(WeightsSource):
    """Published weights on the Hub: files are in huggingface_hub's cache, headers are read without the weights. The
    first file determines the commit of all others."""

    def __init__(self, repo: str, revision: str | None = None) -> None:
        self.repo, self.revision, self.published_name = repo, revision, repo
        self.name = repo if revision is None else f"{repo}@{revision}"
        path = self.file("config.json")
        if path.parent.parent.name == "snapshots":
            self.revision = path.parent.name

    def optional(self, name: str) -> Path | None:
        try:
            return self._download(name)
        except LocalEntryNotFoundError as error:  # means "no such file" only offline
            if constants.HF_HUB_OFFLINE:
                return None
            raise ValueError(f"{self}: expected {name}; got {_reason(error)}") from error
        except EntryNotFoundError:
            return None

    def file(self, name: str) -> Path:
        try:
            return self._download(name)
        except EntryNotFoundError as error:
            raise ValueError(f"{self}: expected {name}; got {_reason(error)}") from error

    def weight_files(self) -> list[str]:
        index = self.optional(WEIGHTS_INDEX)
        return [WEIGHTS] if index is None else sorted(set(weight_map(index).values()))

    def _download(self, name: str) -> Path:
        try:
            return Path(hf_hub_download(self.repo, name, revision=self.revision))
        except EntryNotFoundError:
            raise
        except (OSError, HFValidationError) as error:
            raise ValueError(f"{self}: expected a repository on the Hub; got {_reason(error)}") from error

    def _header(self, file: str) -> dict[str, TensorInfo]:
        cached = try_to_load_from_cache(self.repo, file, revision=self.revision)
        if isinstance(cached, str) or constants.HF_HUB_OFFLINE:
            return super()._header(file)
        try:
            read = HfApi().parse_safetensors_file_metadata(self.repo, file, revision=self.revision)
        except (OSError, EntryNotFoundError, SafetensorsParsingError) as error:
            raise ValueError(f"{self}: expected {file}; got {_reason(error)}") from error
        return {name: TensorInfo(tuple(t.shape), str(t.dtype), file) for name, t in read.tensors.items()}


class GgufSource(WeightsSource):
    """A language model in a GGUF file. transformers reads it once; the user's cache keeps it as a bfloat16 folder.
    Raises ValueError: the file is not a GGUF file."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            if (magic := file.read(len(_GGUF))) != _GGUF:
                raise ValueError(f"{path}: expected a GGUF file; got one that begins with {magic!r}")
            file.seek(0)
            self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        super().__init__(cache_folder() / "gguf" / self.sha256[:16])
        self.path, self.name, self.published_name = path.absolute(), str(path), path.name

    def optional(self, name: str) -> Path | None:
        path = self._read("tokenizer" if name.startswith(_TOKENIZER) else "model") / name
        return path if path.is_file() else None

    def weight_files(self) -> list[str]:
        return weight_files(self._read("model"))

    def _read(self, part: str) -> Path:
        """The cached folder of the "model" or the "tokenizer", written if missing.

        Raises:
            ValueError: transformers cannot read the file.
            OSError: the cache cannot be written.
        """
        folder = self.folder / part
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        on_terminal = sys.stderr.isatty()
        if on_terminal and part == "model":  # a command shows no progress bars of transformers
            print(f"Converting {self.path.name}, once", file=sys.stderr, flush=True)
        shown = nullcontext() if on_terminal else redirect_stderr(StringIO())  # hides the reader's progress bar
        with fresh_folder(folder) as beside, shown:
            where, file = str(self.path.parent), self.path.name
            try:
                if part == "tokenizer":
                    AutoTokenizer.from_pretrained(where, gguf_file=file).save_pretrained(beside)
                else:
                    unpacked = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
                    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=file, **unpacked)
                    vars(model.config).pop("quantization_config", None)  # weights are no longer quantized
                    model.save_pretrained(beside)
            except OSError:
                raise
            except Exception as error:  # damaged files cause many kinds of errors
                reason = " ".join(str(error).split()) or type(error).__name__
                raise ValueError(f"{self}: expected a GGUF file that transformers reads; got {reason}") from error
        return folder


def open_source(text: str, revision: str | None = None, *, option: str) -> WeightsSource:
    """Opens the source `text`: a folder, a GGUF file, or `org/name` or `org/name@revision` on the Hub. Raises
    ValueError: none of these, two revisions, or an unavailable repository; the message names `option`."""
    path = Path(text).expanduser()
    packed = [path] if path.is_file() and path.suffix == ".gguf" else []
    if path.is_dir() and not (path / "config.json").is_file():
        packed = sorted(path.glob("*.gguf"))
    if path.is_dir() or packed:
        if revision is not None:
            raise ValueError(f"{option}: expected no revision of a folder; got {revision!r}")
        if len(packed) > 1:
            raise ValueError(f"{option}: expected one GGUF file; got {len(packed)} in {path}")
        if packed:
            return GgufSource(packed[0])
        return WeightsSource(path.absolute())
    match = _HUB_NAME.fullmatch(text)
    if match is None or path.exists() or path.parent.is_dir():
        expected = "a folder, a .gguf file, or org/name on the Hub"
        raise ValueError(f"{option}: expected {expected}; got {text!r}, which is none")
    repo, own = match.groups()
    if own is not None and revision not in (None, own):
        raise ValueError(f"{option}: expected one revision; got {own!r} and {revision!r}")
    return HubSource(repo, own or revision)


def _reason(error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return "a gated one: accept its terms on its page, then log in (hf auth login)"
    if isinstance(error, RepositoryNotFoundError):
        return "none of that name, or a private one without a login (hf auth login)"
    if isinstance(error, RevisionNotFoundError):
        return "no such revision"
    if isinstance(error, LocalEntryNotFoundError):
        return "none in the cache, and the Hub cannot be reached"
    return " ".join(str(error).split()) or type(error).__name__
