"""Checks of a folder before publication: complete, loadable, without pickles and local paths."""

import io
import json
import os
import pickletools
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ..files import read_json
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.pretrained import weight_files
from .building import CARD, EVALUATION, REQUIRED, evaluation_results, missing_metadata, read_card

PICKLES = (".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pt2", ".pth")  # endings of files that hold pickles

VOCABULARIES = ("vocab.json", "vocab.txt", "merges.txt")
"""Files with pieces of words, which can look like paths, as can the pieces in tokenizer.json."""

IGNORED = ("__pycache__", ".git", ".cache")  # folders that are not part of a repository; the Hub refuses the last two

_ROOTS = (
    "home|Users|Volumes|cluster|content|data|export|gpfs|kaggle|lustre|media|mnt|nfs|opt|private|root|scratch|srv|"
    "storage|tmp|var|work|workspaces?"
)
_DRIVES = "Documents and Settings|Program Files|ProgramData|Users|Windows|code|data|dev|home|models|projects|temp|tmp"
_PATH = re.compile(
    rf"(?:(?<![\w./:~)\]}}>%$-])|file://)/(?:{_ROOTS})/[\w.~@+-][\w.~@+/-]*"
    rf"|(?<![A-Za-z0-9])[A-Za-z]:(?:\\{{1,2}}|/)(?:{_DRIVES})\b[\w.~ \\/-]*"
)
"""A local path in a text: below the folders of users, jobs and mounts."""

_WHOLE_PATH = re.compile(r"/[\w.@+ -]+(?:/[\w.@+ -]+)+/?|[A-Za-z]:[\\/].+|\\\\[^\\]+\\.+")
"""A JSON string that is an absolute path in any folder."""

_MAX_TEXT = 256 * 2**20
"""The most bytes of a file that does not hold weights; larger files are refused without being read."""


def files_of(folder: Path) -> dict[str, Path]:
    """The files to publish by their names in the repository, sorted; links to files are followed.

    Raises:
        ValueError: not a folder, no files, a broken link or a link to a folder, a hidden file, or a special file.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder to publish; got {'a file' if folder.exists() else 'nothing'}")
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(part in IGNORED for part in name.split("/")):
            continue
        if path.is_symlink() and not path.is_file():
            raise ValueError(f"{name}: expected a file; got a link to a folder or to nothing")
        if path.is_dir():
            continue
        if not path.is_file():
            raise ValueError(f"{name}: expected a file; got a device, a pipe or a socket")
        if any(part.startswith(".") for part in name.split("/")) and name != ".gitattributes":
            raise ValueError(f"{name}: expected no hidden files; got one (it may hold secrets; remove it)")
        files[name] = path
    if not files:
        raise ValueError(f"{folder}: expected files to publish; got an empty folder")
    return files


def check_contents(files: dict[str, Path]) -> None:
    """Refuses pickles (by ending and by content) and local paths.

    Raises:
        ValueError: a file is a pickle or contains a local path; the message names the file and line.
    """
    for name, path in files.items():
        if path.suffix.lower() in PICKLES:
            raise ValueError(f"{name}: expected no pickles (loading one runs its code); got a {path.suffix} file")
        if path.suffix == ".safetensors":
            try:
                with safe_open(path, framework="pt") as weights:
                    metadata = weights.metadata() or {}
            except (SafetensorError, OSError) as error:
                raise ValueError(f"{name}: expected a whole .safetensors file; got {error}") from error
            if where := _find_in_json(metadata):
                raise ValueError(f"{name}: expected no absolute paths; got {where!r} in its metadata")
            continue
        if path.stat().st_size > _MAX_TEXT:
            raise ValueError(f"{name}: expected weights in .safetensors files only; got {path.stat().st_size:,} bytes")
        content = path.read_bytes()
        if holds_pickle(content):
            raise ValueError(f"{name}: expected no pickles (loading one runs its code); got one by its content")
        _check_text(name, content)


def holds_pickle(content: bytes) -> bool:
    """Whether `content` is a pickle of any protocol, or an archive with one, as from torch.save: whether it parses as a
    pickle, with an instruction that imports or calls, or up to the last byte."""
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return any(
                item.filename.endswith(".pkl") or holds_pickle(archive.read(item)) for item in archive.infolist()
            )
    try:
        places = {opcode.name: place or 0 for opcode, _, place in pickletools.genops(content)}
    except Exception:  # files of other formats cause many kinds of errors
        return False
    calls = {"PROTO", "GLOBAL", "STACK_GLOBAL", "INST", "REDUCE", "BUILD"}
    return places["STOP"] + 1 >= len(content.rstrip()) or bool(places.keys() & calls)


def _check_text(name: str, content: bytes) -> None:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return  # not text, but a picture or a SentencePiece model
    if "\0" in text or name in VOCABULARIES:
        return
    if name.endswith(".json"):
        try:
            held = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{name}: expected JSON; got {error}") from error
        if name == "tokenizer.json" and isinstance(held, dict):
            held.pop("model", None)
        if where := _find_in_json(held):
            raise ValueError(f"{name}: expected no absolute paths; got {where!r}")
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _PATH.search(line):
            raise ValueError(f"{name}: expected no absolute paths; got {match[0]!r} in line {number}")


def _find_in_json(held: Any) -> str | None:
    """The first absolute path among the strings in `held`, keys included."""
    for string, key in _strings(held, ""):
        place = key.endswith(("path", "file", "dir", "folder"))
        if _WHOLE_PATH.fullmatch(string) or (place and string.startswith("/")):
            return string
        if match := _PATH.search(string):
            return match[0]
    return None


def _strings(held: Any, key: str) -> Iterator[tuple[str, str]]:
    """Every string in `held` with its key."""
    if isinstance(held, str):
        yield held, key
    elif isinstance(held, dict):
        for name, value in held.items():
            yield name, ""
            yield from _strings(value, name)
    elif isinstance(held, list):
        for value in held:
            yield from _strings(value, key)


def check_complete(folder: Path) -> None:
    """Refuses an incomplete folder; folders from `arr-coc build` are complete.

    Raises:
        ValueError: config, processor, chat template, generation config, weights or card metadata are missing.
    """
    missing = [name for name in (*REQUIRED, "generation_config.json", CARD) if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder}: expected a complete repository (arr-coc build); got no {', '.join(missing)}")
    config = read_json(folder / "config.json")
    if config.get("model_type") != ArrCocConfig.model_type:
        expected = f"model_type {ArrCocConfig.model_type!r}"
        raise ValueError(f"config.json: expected {expected}; got {config.get('model_type')!r}")
    settings = ("processor_config.json", "tokenizer_config.json")
    if not (folder / "chat_template.jinja").is_file() and not any(
        read_json(folder / name).get("chat_template") for name in settings
    ):
        raise ValueError(f"{folder}: expected a chat template (chat_template.jinja); got none")
    weights = weight_files(folder)
    left = sorted(path.name for path in folder.glob("*.safetensors") if path.name not in weights)
    if left:
        raise ValueError(f"{folder}: expected the model's weights only; got {', '.join(left)} too")
    card = read_card(folder / CARD)
    missing = missing_metadata(card)
    if missing:
        raise ValueError(f"{CARD}: expected metadata on {', '.join(missing)}; got none")
    evaluation, strategy = folder / EVALUATION, ArrCocConfig.from_pretrained(folder).fetcher_config.strategy
    results = evaluation_results(read_json(evaluation), strategy) if evaluation.is_file() else []
    if results and not card.data.get("eval_results"):
        raise ValueError(f"{CARD}: expected the results of {EVALUATION} in its metadata (arr-coc build); got none")


def check_loads(folder: Path) -> int:
    """Loads the folder in a new, offline Python process without this package; returns the number of parameters.

    Config, processor and code run as after a download. The names and shapes of all weights are compared with the
    model's parameters.

    Raises:
        ValueError: the folder does not load, or weights are missing, unused, damaged or of another shape.
    """
    hidden = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HF_MODULES_CACHE", "HF_ENDPOINT")
    with tempfile.TemporaryDirectory(prefix="arr-coc-") as home:
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment |= {"HF_HOME": home, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-P", str(Path(__file__).with_name("alone.py")), str(folder.absolute())]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    try:
        report = json.loads(result.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise ValueError(f"{folder}: expected it to load; Python ended with {result.returncode}: {last}") from None
    if report["problem"]:
        raise ValueError(f"{folder}: expected it to load; got {report['problem']}")
    return int(report["parameters"])
