"""Publishes a model repository: checks and loads it, then sends it in one commit, or not at all.

`HfApi.upload_folder` can split a folder into several commits; `create_commit` makes one. The Hub keeps uploaded weights
until a commit names them, so an interrupted run is resumed by running it again.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import HFValidationError, validate_repo_id

from ..modeling.pretrained import WEIGHTS_INDEX
from ..version import __version__
from .checking import check_complete, check_contents, check_loads, files_of

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
    """Makes all checks of `folder`, without the network.

    Raises:
        ValueError: the folder is missing, incomplete or damaged, does not load, or contains pickles or local paths.
    """
    folder = Path(folder).absolute()
    files = files_of(folder)
    check_contents(files)
    check_complete(folder)
    return Checked({name: path.stat().st_size for name, path in files.items()}, check_loads(folder))


def check_name(name: str) -> str:
    """Returns the name of a repository if it is valid.

    Raises:
        ValueError: `name` is not org/name, or the Hub does not allow it.
    """
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
        there = [sibling.rfilename for sibling in head.siblings or () if "/" not in sibling.rfilename]
        weights = [file for file in there if file.endswith(".safetensors") or file == WEIGHTS_INDEX]
        removed = tuple(file for file in weights if file not in checked.files)
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
