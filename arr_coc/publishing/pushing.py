"""Publishes a model repository: checks that it is complete, loadable, without pickles and local paths; then sends it in
one commit, or not at all.

`HfApi.upload_folder` can split a folder into several commits; `create_commit` makes one. The Hub keeps uploaded weights
until a commit names them, so an interrupted run is resumed by running it again.
"""

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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelInfo, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import HFValidationError, validate_repo_id
from safetensors import SafetensorError, safe_open

from ..files import read_json
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.pretrained import WEIGHTS_INDEX, weight_files
from ..version import __version__
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

MAIN = "main"
_PASSING = (408, 429, 500, 502, 503, 504)  # status codes of temporary errors, as in huggingface_hub


@dataclass(frozen=True)
class Checked:
    """A folder that passed every check."""

    files: dict[str, int]  # bytes of each file by its name in the repository, sorted
    parameters: int  # the model's number of parameters

    @property
    def nbytes(self) -> int:
        return sum(self.files.values())


@dataclass(frozen=True)
class Pushed:
    """A successful push."""

    url: str  # URL of the commit or of the pull request
    checked: Checked
    removed: tuple[str, ...]  # weight files that were removed from the repository
    changed: bool  # False if the repository already had the same files


def check(folder: str | Path) -> Checked:
    """Makes all checks of `folder`, without the network. Raises ValueError: the folder is missing, incomplete or
    damaged, does not load, or contains pickles or local paths."""
    folder = Path(folder).absolute()
    files = files_of(folder)
    check_contents(files)
    check_complete(folder)
    return Checked({name: path.stat().st_size for name, path in files.items()}, check_loads(folder))


def files_of(folder: Path) -> dict[str, Path]:
    """The files to publish by their names in the repository, sorted; links to files are followed. Raises ValueError:
    not a folder, no files, a broken link or a link to a folder, a hidden file, or a special file."""
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
    """Refuses pickles (by ending and by content) and local paths. Raises ValueError: a file is a pickle or contains a
    local path; the message names the file and line."""
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
    """Refuses an incomplete folder; folders from `arr-coc build` are complete. Raises ValueError: config, processor,
    chat template, generation config, weights or card metadata are missing."""
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


def check_name(name: str) -> str:
    """Returns the name of a repository if it is valid. Raises ValueError: `name` is not org/name, or the Hub does not
    allow it."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ValueError(f"name: expected org/name; got {name!r} ({_line(error)})") from error
    if name.count("/") != 1:
        raise ValueError(f"name: expected org/name; got {name!r}")
    return name


def push(
    folder: str | Path,
    name: str,
    *,
    private: bool = True,
    revision: str | None = None,
    create_pr: bool = False,
    message: str | None = None,
) -> Pushed:
    """Checks `folder` and writes it to the model repository `name` in one commit.

    A missing repository or branch is created. Weight files that the folder does not have are removed, because
    `from_pretrained` prefers one file to shards; other files stay. A concurrent commit stops the push.

    Args:
        folder: a folder from `arr-coc build`.
        private: whether the repository is private. An existing repository must agree.
        revision: a branch (default: main).
        create_pr: whether to open a pull request instead.

    Raises:
        ValueError: the folder, the name, the token, the branch or the visibility is refused.
        ConnectionError: the Hub cannot be reached, or fails. The repository is then unchanged or complete; the next run
            does not upload finished weights again.
    """
    check_name(name)
    if get_token() is None:
        raise ValueError("token: expected one that may write, in HF_TOKEN (or hf auth login); got none")
    checked = check(folder)
    api = HfApi(library_name="arr-coc", library_version=__version__)
    branch = revision or MAIN
    with _told(name, create_pr):
        api.create_repo(name, private=private, exist_ok=True)
        info = api.model_info(name)
    if info.private is not None and bool(info.private) != private:
        ours, theirs = ("private", "public") if private else ("public", "private")
        got = f"a {theirs} one (push with --{theirs}, or change it in its settings)"
        raise ValueError(f"{name}: expected a {ours} repository; got {got}")
    with _told(name, create_pr):
        if branch != MAIN and not create_pr and not branch.startswith("refs/"):
            api.create_branch(name, branch=branch, exist_ok=True)
        head = api.model_info(name, revision=branch)
        removed = _weights_apart(head, checked)
        additions = [CommitOperationAdd(file, str(Path(folder).absolute() / file)) for file in checked.files]
        commit = api.create_commit(
            name,
            [*additions, *map(CommitOperationDelete, removed)],
            commit_message=message or "Upload model by arr-coc push",
            revision=branch,
            create_pr=create_pr,
            parent_commit=head.sha,
        )
        after = api.model_info(name, revision=commit.pr_revision or commit.oid, files_metadata=True)
    sizes = {sibling.rfilename: sibling.size for sibling in after.siblings or ()}
    wrong = [file for file, size in checked.files.items() if file not in sizes or sizes[file] not in (size, None)]
    if wrong:
        raise ValueError(f"{name}: expected every file to arrive; got no {', '.join(wrong)} (see its .gitignore)")
    return Pushed(commit.pr_url or commit.commit_url, checked, removed, changed=commit.oid != head.sha)


def _weights_apart(head: ModelInfo, checked: Checked) -> tuple[str, ...]:
    """The weight files of a repository that the folder does not have."""
    there = [sibling.rfilename for sibling in head.siblings or () if "/" not in sibling.rfilename]
    weights = [file for file in there if file.endswith(".safetensors") or file == WEIGHTS_INDEX]
    return tuple(file for file in weights if file not in checked.files)


@contextmanager
def _told(name: str, create_pr: bool) -> Iterator[None]:
    """Turns errors of the Hub and the network into one line without URLs, which can be signed."""
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise ValueError("push: expected to use the network; got HF_HUB_OFFLINE in the environment") from error
    except (HTTPError, OSError, RuntimeError, json.JSONDecodeError) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        during = f" ({_line(error).rstrip('.')})" if cause is not error else ""
        response: Any = cause.response if isinstance(cause, HfHubHTTPError) else None
        if response is not None and response.status_code not in _PASSING:
            raise ValueError(f"{name}: {_refusal(name, cause, response)}{during}") from error
        got = f"{response.status_code} {response.reason_phrase}" if response is not None else _line(cause)
        advice = "See whether a pull request is open; if not: run" if create_pr else "Nothing is committed in part. Run"
        advice += " it again: weights that have arrived are not sent again"
        raise ConnectionError(f"{name}: expected the Hub to take it; got {got}{during}. {advice}") from error
    except ValueError as error:  # the Hub refuses a card or a name
        raise ValueError(f"{name}: {' '.join(str(error).split())}") from error


def _refusal(name: str, error: BaseException, response: Any) -> str:
    status = f"{response.status_code} {response.reason_phrase}"
    said = _line(getattr(error, "server_message", None) or "")
    got = f"{status} ({said})" if said else status
    if response.status_code in (401, 403):
        return f"expected a token that may write there (HF_TOKEN, or hf auth login); got {got}"
    if response.status_code == 404:
        return f"expected a repository and a branch that are there; got {got}"
    if response.status_code in (409, 412):
        return f"expected nobody else to write there meanwhile; got {got}. Run it again"
    return f"expected the Hub to take it; got {got}"


def _line(error: BaseException | str) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else "" if isinstance(error, str) else type(error).__name__
