"""Publishing: one whole commit or none, whatever the network does."""

import base64
import hashlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from helpers import refuses, tiny_model
from huggingface_hub import constants

from arr_coc.cli import main
from arr_coc.publishing import build, push, pushing

TOKEN = "hf_test"
"""The only token that may write."""

MODEL = r"/api/models/(?P<name>[^/]+/[^/]+)"


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, message: str, code: str | None = None, **more: Any) -> None:
        super().__init__(message)
        self.status, self.body = status, {"error": message, **more}
        self.code = code


@dataclass
class Failure:
    """The next `times` requests of this method whose path has `path` (a pattern) in it fail.

    `how`: a status code; "cut": the connection breaks within the request's body.
    """

    method: str
    path: str
    times: int
    how: int | str


class Hub:
    """Repositories: {name: {private, refs: {ref: oid}, commits: {oid: {parent, message, files}}}}; uploaded objects.

    `log` holds method, path and status of the answer (0: cut off) of every request.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.repositories: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, int] = {}
        self.failures: list[Failure] = []
        self.log: list[tuple[str, str, int]] = []
        self.lock = threading.RLock()

    # ---- what tests ask

    def fail(self, method: str, path: str, how: int | str, times: int = 1) -> None:
        self.failures.append(Failure(method, path, times, how))

    def sizes(self, name: str) -> dict[str, int]:
        """Bytes of the files at main, but for the Hub's own."""
        repository = self.repository(name)
        files = repository["commits"][repository["refs"]["main"]]["files"]
        return {path: file["size"] for path, file in files.items() if path != ".gitattributes"}

    def requests(self) -> Counter[str]:
        return Counter(f"{method} {path}" for method, path, _ in self.log)

    def uploads(self) -> list[str]:
        """The weights that were sent, by SHA-256, whatever became of them."""
        return [path.removeprefix("/lfs/") for method, path, _ in self.log if method == "PUT"]

    # ---- what answers need

    def failure(self, method: str, path: str) -> Failure | None:
        with self.lock:
            for failure in self.failures:
                if failure.times and failure.method == method and re.search(failure.path, path):
                    failure.times -= 1
                    return failure
        return None

    def repository(self, name: str) -> dict[str, Any]:
        if name not in self.repositories:
            raise Refused(404, "Repository not found", "RepoNotFound")
        return self.repositories[name]

    def commit_of(self, repository: dict[str, Any], revision: str) -> str:
        oid = repository["refs"].get(revision, revision)
        if oid not in repository["commits"]:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return str(oid)

    def commit(self, repository: dict[str, Any], parent: str | None, message: str, files: dict[str, Any]) -> str:
        text = json.dumps([len(repository["commits"]), parent, message, files])
        oid = hashlib.sha1(text.encode()).hexdigest()
        repository["commits"][oid] = {"parent": parent, "message": message, "files": files}
        return oid

    # ---- the calls, in the order of a push

    def create(self, base: str, body: dict[str, Any]) -> dict[str, Any]:
        name = f"{body['organization']}/{body['name']}"
        if name in self.repositories:
            raise Refused(409, "You already created this model repo", url=f"{base}/{name}")
        repository: dict[str, Any] = {"private": body.get("visibility") == "private", "refs": {}, "commits": {}}
        repository["refs"]["main"] = self.commit(repository, None, "initial commit", {".gitattributes": regular(b"")})
        self.repositories[name] = repository
        return {"url": f"{base}/{name}", "name": name}

    def info(self, name: str, revision: str) -> dict[str, Any]:
        repository = self.repository(name)
        oid = self.commit_of(repository, revision)
        files = repository["commits"][oid]["files"]
        siblings = [{"rfilename": path, "size": file["size"]} for path, file in sorted(files.items())]
        return {"id": name, "sha": oid, "private": repository["private"], "siblings": siblings}

    def preupload(self, name: str, revision: str, body: dict[str, Any]) -> dict[str, Any]:
        repository = self.repository(name)
        there = repository["commits"][self.commit_of(repository, revision)]["files"]
        files = []
        for file in body["files"]:
            mode = "lfs" if file["path"].endswith((".safetensors", ".png")) else "regular"
            oid = there.get(file["path"], {}).get("oid")
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return {"files": files}

    def batch(self, base: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self.repository(name)
        found = []
        for item in body["objects"]:
            entry = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.objects:
                verify = {"href": f"{base}/{name}.git/info/lfs/verify"}
                entry["actions"] = {"upload": {"href": f"{base}/lfs/{item['oid']}?signed=secret"}, "verify": verify}
            found.append(entry)
        return {"transfer": "basic", "objects": found}

    def upload(self, oid: str, content: bytes) -> dict[str, Any]:
        if hashlib.sha256(content).hexdigest() != oid:
            raise Refused(400, "The content has another SHA-256 than announced")
        self.objects[oid] = len(content)
        return {}

    def verify(self, body: dict[str, Any]) -> dict[str, Any]:
        if self.objects.get(body["oid"]) != body["size"]:
            raise Refused(404, "Object not found")
        return {}

    def take(self, base: str, name: str, revision: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        repository = self.repository(name)
        parent = self.commit_of(repository, revision)
        files, header = dict(repository["commits"][parent]["files"]), lines[0]["value"]
        if header.get("parentCommit", parent) != parent:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = regular(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                if self.objects.get(value["oid"]) != value["size"]:
                    raise Refused(400, f"{value['path']}: its content was not uploaded")
                files[value["path"]] = {"oid": value["oid"], "size": value["size"]}
            elif line["key"] == "deletedFile":
                if value["path"] not in files:
                    raise Refused(404, "A file with this name doesn't exist", "EntryNotFound")
                del files[value["path"]]
        oid = self.commit(repository, parent, header["summary"], files)
        repository["refs"][revision] = oid
        return {"commitUrl": f"{base}/{name}/commit/{oid}", "commitOid": oid}


def regular(content: bytes) -> dict[str, Any]:
    """A file that git itself holds, by git's name for its content."""
    return {"oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(), "size": len(content)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for its headers to be acknowledged

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined]

    def answer(self) -> None:
        failure = self.hub.failure(self.command, self.path)
        if failure is not None and failure.how == "cut":
            self.rfile.read(min(1000, int(self.headers.get("Content-Length", 0))))
            self.note(0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # with a reset
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            self.connection.close()
            return
        body = self.body()
        if failure is not None:
            self.send(int(failure.how), {"error": "told to fail"})
            return
        try:
            with self.hub.lock:
                status, found, headers = 200, self.route(urlsplit(self.path).path, body), {}
        except Refused as refused:
            status, found = refused.status, refused.body
            headers = {"X-Error-Message": str(refused), **({"X-Error-Code": refused.code} if refused.code else {})}
        self.send(status, found, headers)

    do_GET = do_POST = do_PUT = answer

    def route(self, path: str, body: bytes) -> dict[str, Any]:
        hub, base, method = self.hub, self.hub.url, self.command
        if method == "PUT":  # a signed address: no token
            return hub.upload(path.removeprefix("/lfs/"), body)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, "Invalid credentials in Authorization header")
        if path == "/api/repos/create":
            return hub.create(base, json.loads(body))
        if path == "/api/validate-yaml":
            if "license:" not in json.loads(body)["content"]:
                raise Refused(400, "invalid", errors=[{"message": '"license" is required'}], warnings=[])
            return {"errors": [], "warnings": []}
        if found := re.fullmatch(rf"{MODEL}(?:/revision/(?P<revision>[^/]+))?", path):
            return hub.info(found["name"], unquote(found["revision"] or "main"))
        if found := re.fullmatch(rf"{MODEL}/preupload/(?P<revision>[^/]+)", path):
            return hub.preupload(found["name"], unquote(found["revision"]), json.loads(body))
        if found := re.fullmatch(r"/(?P<name>.+)\.git/info/lfs/objects/batch", path):
            return hub.batch(base, found["name"], json.loads(body))
        if path.endswith(".git/info/lfs/verify"):
            return hub.verify(json.loads(body))
        if found := re.fullmatch(rf"{MODEL}/commit/(?P<revision>[^/]+)", path):
            lines = [json.loads(line) for line in body.splitlines()]
            return hub.take(base, found["name"], unquote(found["revision"]), lines)
        raise Refused(404, f"no such call: {method} {path}")

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def send(self, status: int, found: Any, headers: dict[str, str] | None = None) -> None:
        self.note(status)
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def note(self, status: int) -> None:
        self.hub.log.append((self.command, urlsplit(self.path).path, status))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        """Says nothing."""


@contextmanager
def serving() -> Iterator[Hub]:
    """An empty Hub that answers at its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = Hub(f"http://127.0.0.1:{server.server_port}")
        server.hub = hub  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub 2.4's own upload

CARD = "---\nlicense: apache-2.0\n---\n# Tiny\n"
NAME = "org/tiny"
FILES = f"/api/models/{NAME}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub that this process may use, without waiting between tries and without loading what is pushed."""
    with serving() as hub:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
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
    assert "\n" not in str(caught.value) and TOKEN not in str(caught.value)
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
