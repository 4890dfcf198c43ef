"""Build a model repository: weights, configs and card of a `hub_configs/` folder, plus the code that runs them.

The result loads with `trust_remote_code=True` where `arr_coc` is not installed.
"""

import glob
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import modeling
from ..modeling.auto_map import AUTO_MAP, PROCESSOR_MAP
from ..modeling.configuration_arr_coc import ArrCocConfig
from .cards import ASSEMBLY, CARD, EVALUATION, base_models, complete_card, default_strategy

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # not on Windows: there, what a killed run left stays
    fcntl = None

CODE = Path(modeling.__file__).parent
"""The folder whose files travel with the weights."""

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
REQUIRED = ("config.json", "processor_config.json", "tokenizer_config.json")
_TAKEN = (".json", ".jinja", ".md", ".safetensors", ".txt", ".model")
"""Endings of what is copied from the source: configs, tokenizer, chat template, card, weights."""


def weight_files(source: Path) -> list[str]:
    """Names of the weight files in `source`: one, or the shards that its index names.

    Raises:
        ValueError: there are none, or a shard is missing.
    """
    if (source / WEIGHTS).is_file():
        return [WEIGHTS]
    index = source / WEIGHTS_INDEX
    if not index.is_file():
        raise ValueError(f"{source}: expected weights ({WEIGHTS}, or shards with {WEIGHTS_INDEX}); got none")
    shards = sorted(set(read_json(index)["weight_map"].values()))
    missing = [name for name in shards if not (source / name).is_file()]
    if missing:
        raise ValueError(f"{source}: expected the {len(shards)} shards of {WEIGHTS_INDEX}; got no {', '.join(missing)}")
    return shards


def build(source: str | Path, out: str | Path, *, card: str | Path | None = None, force: bool = False) -> Path:
    """Writes the complete model repository of `source` to `out`, in one step: beside it first, then renamed.

    Args:
        source: a folder with config, processor, tokenizer, weights (one file or shards) and, for people, a README.md.
        out: the folder to make.
        card: a README.md to take instead of the source's. Either is completed, a missing one written (`complete_card`).
        force: replace `out` if it is there and not empty.

    Returns:
        `out`.

    Raises:
        ValueError: `source` is incomplete or no ARR-COC model, a card or an evaluation has another form, `card` is no
            file, or `out` is in the way.
    """
    source, out = Path(source).absolute(), Path(out).absolute()
    _check(source, out, force)
    if card is not None and not Path(card).is_file():
        raise ValueError(f"card: expected a README.md; got {str(card)!r}, which is no file")
    kept = {*weight_files(source), WEIGHTS_INDEX} if not (source / WEIGHTS).is_file() else {WEIGHTS}
    with fresh_folder(out, force=force) as beside:
        for path in sorted(source.iterdir()):
            weights = path.suffix == ".safetensors" or path.name == WEIGHTS_INDEX
            if path.is_file() and path.suffix in _TAKEN and (not weights or path.name in kept):
                shutil.copyfile(path, beside / path.name)
        for path in sorted(CODE.glob("*.py")):
            if path.name != "__init__.py":
                shutil.copyfile(path, beside / path.name)
        _write_auto_maps(beside)
        if card is not None:
            shutil.copyfile(card, beside / CARD)
        _complete_card(beside, source.name)
    return out


def _complete_card(folder: Path, name: str) -> None:
    evaluation, assembly = folder / EVALUATION, folder / ASSEMBLY
    complete_card(
        folder / CARD,
        name,
        strategy=default_strategy(read_json(folder / "config.json")),
        evaluation=read_json(evaluation) if evaluation.is_file() else None,
        base_model=base_models(read_json(assembly)) if assembly.is_file() else (),
    )


@contextmanager
def fresh_folder(out: Path, *, force: bool = False) -> Iterator[Path]:
    """A folder beside `out` to write into, which becomes `out` when the block ends without an error, else goes away.

    What a killed run left beside is cleared away first; the folder of a run that still writes is left alone.

    Args:
        out: an absolute path.
        force: replace `out` if it is there and not empty.

    Raises:
        ValueError: `out` is in the way (`check_free`).
    """
    check_free(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f"{glob.escape(f'.{out.name}.new.')}*"):
        with suppress(FileNotFoundError), _locked(left) as stale:
            if stale:
                shutil.rmtree(left, ignore_errors=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.new.", dir=out.parent))
    try:
        with _locked(beside):
            yield beside
            beside.chmod(0o777 & ~_umask())  # mkdtemp's folder is its owner's only
            _replace(beside, out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether this process has `folder` for itself; the lock ends with the block, or with a killed process."""
    if fcntl is None:
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except BlockingIOError:
            ours = False
        yield ours
    finally:
        os.close(descriptor)


def _check(source: Path, out: Path, force: bool) -> None:
    if not source.is_dir():
        raise ValueError(f"{source}: expected a folder with a model; got {'a file' if source.exists() else 'nothing'}")
    missing = [name for name in REQUIRED if not (source / name).is_file()]
    if missing:
        raise ValueError(f"{source}: expected {', '.join(REQUIRED)}; got no {', '.join(missing)}")
    model_type = read_json(source / "config.json").get("model_type")
    if model_type != ArrCocConfig.model_type:
        raise ValueError(f"{source}: expected model_type {ArrCocConfig.model_type!r}; got {model_type!r}")
    if out == source or out in source.parents or source in out.parents:
        raise ValueError(f"{out}: expected a folder apart from the source; got one that holds it or lies in it")
    check_free(out, force)


def check_free(out: Path, force: bool = False) -> None:
    """Refuses an output folder that is a file, or that has files and is not to be replaced.

    Raises:
        ValueError: it is.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out}: expected a folder to make; got a file")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise ValueError(f"{out}: expected a new or empty folder (or --force, which replaces it); got one with files")


def _write_auto_maps(folder: Path) -> None:
    """Every Auto class looks into one of these files: the model's, the processor's, the image processor's in it."""
    config = read_json(folder / "config.json")
    config["auto_map"] = dict(AUTO_MAP)
    write_json(folder / "config.json", config)
    for name in ("processor_config.json", "preprocessor_config.json"):
        path = folder / name
        if path.is_file():
            settings = read_json(path)
            settings["auto_map"] = dict(PROCESSOR_MAP)
            if isinstance(settings.get("image_processor"), dict):
                settings["image_processor"]["auto_map"] = {"AutoImageProcessor": PROCESSOR_MAP["AutoImageProcessor"]}
            write_json(path, settings)


def _replace(made: Path, out: Path) -> None:
    """Moves `made` to `out`; what was there goes away only after the new folder is in place."""
    if not out.exists():
        os.replace(made, out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    os.replace(out, old)  # onto an empty folder
    try:
        os.replace(made, out)
    except OSError:
        os.replace(old, out)
        raise
    shutil.rmtree(old)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: no JSON, or no object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON; got {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object; got {type(content).__name__}")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a JSON object for people to read."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
