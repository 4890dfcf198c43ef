"""Publishing: one whole commit or none, whatever the network does. The Hub is `hub_server.py`."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from hashlib import sha256
from pathlib import Path

import hub_server
import huggingface_hub
import pytest
from helpers import refuses, tiny_model
from hub_server import Hub
from huggingface_hub import constants

from arr_coc.cli import main
from arr_coc.publishing import build, push, pushing

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub 2.4's own upload

CARD = "---\nlicense: apache-2.0\n---\n# Tiny\n"
NAME = "org/tiny"
FILES = f"/api/models/{NAME}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub that this process may use, without waiting between tries and without loading what is pushed."""
    with hub_server.serving() as hub:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", hub_server.TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        monkeypatch.setattr(pushing, "check_loads", lambda folder: 1)
        huggingface_hub.close_session()
        yield hub
        huggingface_hub.close_session()


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `arr-coc build` makes of the tiny model. Read only."""
    place = tmp_path_factory.mktemp("pushing")
    (place / "card.md").write_text(CARD)
    return build(checkpoint, place / "repository", card=place / "card.md")


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with weights in several files. Read only."""
    place = tmp_path_factory.mktemp("shards")
    shutil.copytree(folder, place / "source", ignore=shutil.ignore_patterns("*.safetensors"))
    tiny_model().save_pretrained(place / "saved", max_shard_size="150KB")
    for path in (place / "saved").glob("model*"):
        shutil.copyfile(path, place / "source" / path.name)
    made = build(place / "source", place / "repository")
    assert 2 <= len(list(made.glob("*.safetensors"))) <= 5  # all are sent at once
    return made


def sizes_of(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def digests(folder: Path) -> set[str]:
    """SHA-256 of the weights' files."""
    return {sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.safetensors")}


# ---- one commit, or none
def test_a_push_makes_a_private_repository_in_one_commit_and_again_changes_nothing(hub: Hub, folder: Path) -> None:
    pushed = push(folder, NAME)
    repository = hub.repository(NAME)
    assert repository["private"] and len(repository["commits"]) == 2  # the Hub's own first one, and ours
    assert hub.sizes(NAME) == sizes_of(folder) == pushed.checked.files
    assert pushed.changed and pushed.removed == ()
    assert pushed.url == f"{hub.url}/{NAME}/commit/{repository['refs']['main']}"
    again = push(folder, NAME)
    assert not again.changed and again.url == pushed.url
    assert len(hub.repository(NAME)["commits"]) == 2 and len(hub.uploads()) == 1


@pytest.mark.parametrize(
    ("how", "got"), [(500, "got 500 Internal Server Error"), (429, "got 429 Too Many Requests"), ("cut", r"got (?!\d)")]
)
def test_an_upload_that_fails_for_good_commits_nothing_and_the_next_run_sends_only_the_rest(
    hub: Hub, shards: Path, how: int | str, got: str
) -> None:
    hub.fail("PUT", f"/lfs/{min(digests(shards))}", how, times=1000)
    with pytest.raises(ConnectionError) as caught:
        push(shards, NAME)
    said = str(caught.value)
    assert re.match(rf"{NAME}: expected the Hub to take it; {got}", said)
    assert re.search(r"\(Error while uploading 'model-0000\d-of-0000\d\.safetensors' to the Hub\)", said)
    assert said.endswith("Nothing is committed in part. Run it again: weights that have arrived are not sent again")
    assert "signed" not in said and "\n" not in said
    assert hub.sizes(NAME) == {}
    arrived, sent = set(hub.objects), len(hub.uploads())
    assert arrived == digests(shards) - {min(digests(shards))}
    hub.failures.clear()
    push(shards, NAME)
    assert hub.uploads()[sent:] == [min(digests(shards))]
    assert hub.sizes(NAME) == sizes_of(shards)


def test_a_commit_that_fails_for_good_leaves_the_repository_as_it_was(hub: Hub, folder: Path, shards: Path) -> None:
    push(folder, NAME)
    before, sent = deepcopy(hub.repository(NAME)), len(hub.uploads())
    hub.fail("POST", f"{FILES}/commit/", 503)
    with pytest.raises(ConnectionError, match="got 503 Service Unavailable.* Nothing is committed in part"):
        push(shards, NAME)
    assert hub.repository(NAME) == before
    assert len(hub.uploads()) == sent + len(digests(shards))
    pushed = push(shards, NAME)
    assert len(hub.uploads()) == sent + len(digests(shards))  # resumed: nothing sent twice
    assert pushed.removed == ("model.safetensors",)  # from_pretrained would prefer it to the shards
    assert hub.sizes(NAME) == sizes_of(shards)


@pytest.mark.parametrize(("private", "other"), [(True, "public"), (False, "private")])
def test_a_repository_of_other_visibility_is_refused_first(hub: Hub, folder: Path, private: bool, other: str) -> None:
    push(folder, NAME, private=not private)
    requests = hub.requests()
    with pytest.raises(ValueError, match=rf"got a {other} one \(push with --{other}, or change it in its settings\)"):
        push(folder, NAME, private=private)
    assert set(hub.requests() - requests) == {"POST /api/repos/create", f"GET {FILES}"}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, r"expected a token that may write there \(HF_TOKEN, or hf auth login\); got 401"),
        (403, r"expected a token that may write there \(HF_TOKEN, or hf auth login\); got 403"),
        (404, r"expected a repository and a branch that are there; got 404"),
        (412, r"expected nobody else to write there meanwhile; got 412 .*Run it again"),
        (400, r"expected the Hub to take it; got 400 Bad Request \(told to fail\)"),
    ],
)
def test_what_the_hub_refuses_is_one_line_and_tried_once(hub: Hub, folder: Path, status: int, expected: str) -> None:
    hub.fail("POST", f"{FILES}/commit/", status)
    with pytest.raises(ValueError, match=f"^{NAME}: {expected}") as caught:
        push(folder, NAME)
    assert "\n" not in str(caught.value) and hub_server.TOKEN not in str(caught.value)
    assert hub.sizes(NAME) == {} and hub.requests()[f"POST {FILES}/commit/main"] == 1


def test_token_network_name_come_first(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("tiny", "a/b/c", "org/..", "../tiny"):
        refuses("^name: expected org/name; got ", push, folder, name)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refuses("expected to use the network; got HF_HUB_OFFLINE in the environment", push, folder, NAME)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    refuses(r"token: expected one that may write, in HF_TOKEN .*; got none", push, folder, NAME)
    assert hub.requests() == Counter()


# ---- the command
def test_dry_run_lists_files_and_bytes_without_the_network(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert main(["push", str(folder), NAME, "--dry-run", "--public"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(maxsplit=1) for line in lines[:-2]]
    assert {name: int(size.replace(",", "")) for size, name in rows} == sizes_of(folder)
    assert lines[-2].strip() == f"{sum(sizes_of(folder).values()):,}  in {len(rows)} files, 1 parameters"
    assert lines[-1] == f"to {NAME} (public), branch main; nothing was sent"
    assert hub.requests() == Counter()
    assert main(["push", str(folder / "missing"), NAME, "--dry-run"]) == 2
    assert "expected a folder to publish; got nothing" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_loads_what_it_pushes_and_reads_the_environment(hub: Hub, folder: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "arr_coc.cli", "push", str(folder), NAME]
    hub.fail("PUT", "/lfs/", 500)
    result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    count, size = len(sizes_of(folder)), sum(sizes_of(folder).values())
    assert result.stdout.splitlines() == [
        f"{hub.url}/{NAME}/commit/{hub.repository(NAME)['refs']['main']}",
        f"{count} files, {size:,} bytes pushed to {NAME} (private), branch main",
    ]
    assert hub.sizes(NAME) == sizes_of(folder)
