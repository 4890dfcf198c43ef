"""Publishing: one whole commit or none, whatever the network does."""

import base64
import hashlib
import json
import os
import pickle
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub
import pytest
import torch
from helpers import change_json, change_tensors, refuses, tiny_model, truncate
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from arr_coc.cli import main
from arr_coc.publishing import alone, build, check, push, pushing

TOKEN = "hf_test"
"""The only token that may write."""


class Hub:
    """Repositories: {name: {private, refs: {ref: oid}, commits: {oid: files}}}; uploaded objects and their sizes.

    `log` holds method and path of every request; `failures` those that fail: method, pattern of the path, and how (a
    status, or "cut": the connection breaks within the request's body).
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.repositories: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, int] = {}
        self.failures: list[tuple[str, str, int | str]] = []
        self.log: list[tuple[str, str]] = []
        self.lock = threading.RLock()

    # ---- what tests ask

    def fail(self, method: str, path: str, how: int | str, times: int = 1) -> None:
        self.failures += [(method, path, how)] * times

    def sizes(self, name: str) -> dict[str, int]:
        """Bytes of the files at main, but for the Hub's own."""
        return {path: file["size"] for path, file in self.files(name).items() if path != ".gitattributes"}

    def requests(self) -> Counter[str]:
        return Counter(f"{method} {path}" for method, path in self.log)

    def uploads(self) -> list[str]:
        """The weights that were sent, by SHA-256, whatever became of them."""
        return [path.removeprefix("/lfs/") for method, path in self.log if method == "PUT"]

    # ---- what answers need

    def failure(self, method: str, path: str) -> int | str | None:
        with self.lock:
            for number, (failing, pattern, how) in enumerate(self.failures):
                if failing == method and re.search(pattern, path):
                    del self.failures[number]
                    return how
        return None

    def files(self, name: str, revision: str = "main") -> dict[str, Any]:
        repository = self.repositories[name]
        files: dict[str, Any] = repository["commits"][repository["refs"].get(revision, revision)]
        return files

    def commit(self, name: str, files: dict[str, Any]) -> str:
        repository = self.repositories[name]
        oid = hashlib.sha1(json.dumps([len(repository["commits"]), files]).encode()).hexdigest()
        repository["commits"][oid], repository["refs"]["main"] = files, oid
        return oid

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and content, by the calls of a push in their order."""
        match path.removeprefix("/api/").split("/"):
            case ["repos", "create"]:
                return self.create(json.loads(body))
            case ["validate-yaml"]:
                return 200, {"errors": [], "warnings": []}
            case ["models", owner, name, "revision", revision]:
                return self.info(f"{owner}/{name}", revision)
            case ["models", owner, name]:
                return self.info(f"{owner}/{name}", "main")
            case ["models", owner, name, "preupload", "main"]:
                return self.preupload(f"{owner}/{name}", json.loads(body))
            case ["", owner, name, "info", "lfs", "objects", "batch"]:
                return self.batch(f"{owner}/{name}", json.loads(body))
            case ["", "lfs", oid]:
                return self.upload(oid, body)
            case ["", *_, "lfs", "verify"]:
                held = json.loads(body)
                return (200 if self.objects.get(held["oid"]) == held["size"] else 404), {}
            case ["models", owner, name, "commit", "main"]:
                return self.take(f"{owner}/{name}", [json.loads(line) for line in body.splitlines()])
        return 404, {"error": f"no such call: {path}"}

    def create(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = f"{body['organization']}/{body['name']}"
        if name in self.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{self.url}/{name}"}
        self.repositories[name] = {"private": body.get("visibility") == "private", "refs": {}, "commits": {}}
        self.commit(name, {".gitattributes": regular(b"")})
        return 200, {"url": f"{self.url}/{name}", "name": name}

    def info(self, name: str, revision: str) -> tuple[int, dict[str, Any]]:
        repository, files = self.repositories[name], self.files(name, revision)
        siblings = [{"rfilename": path, "size": file["size"]} for path, file in sorted(files.items())]
        sha, private = repository["refs"].get(revision, revision), repository["private"]
        return 200, {"id": name, "sha": sha, "private": private, "siblings": siblings}

    def preupload(self, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        files, there = [], self.files(name)
        for path in (file["path"] for file in body["files"]):
            mode = "lfs" if path.endswith((".safetensors", ".png")) else "regular"
            oid = there.get(path, {}).get("oid")
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return 200, {"files": files}

    def batch(self, name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        found = [{"oid": item["oid"], "size": item["size"]} for item in body["objects"]]
        for entry in found:
            if entry["oid"] not in self.objects:
                verify = {"href": f"{self.url}/{name}/info/lfs/verify"}
                upload = {"href": f"{self.url}/lfs/{entry['oid']}?signed=secret"}
                entry["actions"] = {"upload": upload, "verify": verify}
        return 200, {"transfer": "basic", "objects": found}

    def upload(self, oid: str, content: bytes) -> tuple[int, dict[str, Any]]:
        if hashlib.sha256(content).hexdigest() != oid:
            return 400, {"error": "The content has another SHA-256 than announced"}
        self.objects[oid] = len(content)
        return 200, {}

    def take(self, name: str, lines: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        files = dict(self.files(name))
        for key, value in ((line["key"], line["value"]) for line in lines):
            if key == "file":
                files[value["path"]] = regular(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                if self.objects.get(value["oid"]) != value["size"]:
                    return 400, {"error": f"{value['path']}: its content was not uploaded"}
                files[value["path"]] = {"oid": value["oid"], "size": value["size"]}
            elif key == "deletedFile":
                del files[value["path"]]
        oid = self.commit(name, files)
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{oid}", "commitOid": oid}


def regular(content: bytes) -> dict[str, Any]:
    """A file that git itself holds, by git's name for its content."""
    return {"oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(), "size": len(content)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for its headers to be acknowledged

    def answer(self) -> None:
        hub, path = self.server.hub, urlsplit(self.path).path  # type: ignore[attr-defined]
        hub.log.append((self.command, path))
        how = hub.failure(self.command, self.path)
        if how == "cut":
            self.rfile.read(min(1000, int(self.headers.get("Content-Length", 0))))
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # with a reset
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            self.connection.close()
            return
        body = self.body()
        if how is not None:
            status, found = int(how), {"error": "told to fail"}
        elif self.command != "PUT" and self.headers.get("Authorization") != f"Bearer {TOKEN}":  # a PUT's URL is signed
            status, found = 401, {"error": "Invalid credentials in Authorization header"}
        else:
            with hub.lock:
                status, found = hub.answer(path, body)
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = answer

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        """Says nothing."""


pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub 2.4's own upload

CARD = "---\nlicense: apache-2.0\n---\n# Tiny\n"
NAME = "org/tiny"
FILES = f"/api/models/{NAME}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub that this process may use, without waiting between tries and without loading what is pushed."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = Hub(f"http://127.0.0.1:{server.server_port}")
        server.hub = hub  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
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
        server.shutdown()
        thread.join()


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
    repository = hub.repositories[NAME]
    assert repository["private"] and len(repository["commits"]) == 2  # the Hub's own first one, and ours
    assert hub.sizes(NAME) == sizes_of(folder) == pushed.checked.files
    assert pushed.changed and pushed.removed == ()
    assert pushed.url == f"{hub.url}/{NAME}/commit/{repository['refs']['main']}"
    again = push(folder, NAME)
    assert not again.changed and again.url == pushed.url
    assert len(hub.repositories[NAME]["commits"]) == 2 and len(hub.uploads()) == 1


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
    before, sent = deepcopy(hub.repositories[NAME]), len(hub.uploads())
    hub.fail("POST", f"{FILES}/commit/", 503)
    with pytest.raises(ConnectionError, match="got 503 Service Unavailable.* Nothing is committed in part"):
        push(shards, NAME)
    assert hub.repositories[NAME] == before
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
        f"{hub.url}/{NAME}/commit/{hub.repositories[NAME]['refs']['main']}",
        f"{count} files, {size:,} bytes pushed to {NAME} (private), branch main",
    ]
    assert hub.sizes(NAME) == sizes_of(folder)


# ---- What may not be published: pickles, paths of a machine, code that loads nowhere else, weights that do not fit
def _edit(name: str, key: str, value: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / name, key, to=value)


def _write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return apply


def _append(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: _write(name, (folder / name).read_text() + content)(folder)


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _name_path_in_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", "source": "/home/me/run"})


PATHS = "expected no absolute paths; got"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickle by ending": (_write("sub/model.bin", b"x"), r"sub/model.bin: expected no pickles .*; got a .bin file"),
    "pickle by capital ending": (_write("MODEL.PT", b"x"), "MODEL.PT: expected no pickles"),
    "torch archive": (
        lambda folder: torch.save({"a": torch.zeros(2)}, folder / "weights.dat"),
        "weights.dat: expected no pickles .*; got one by its content",
    ),
    "pickle": (_write("data.txt", pickle.dumps({"a": os.getcwd}, 4)), "data.txt: expected no pickles"),
    "textual pickle": (_write("data.txt", pickle.dumps([1, "a"], 0)), "data.txt: expected no pickles"),
    "path in a config": (_edit("config.json", "_name_or_path", "/srv1/x/m"), rf"config.json: {PATHS} '/srv1/x/m'"),
    "short path in a config": (_edit("config.json", "_name_or_path", "/model"), rf"config.json: {PATHS} '/model'"),
    "Windows path": (_edit("generation_config.json", "x", ["D:\\models"]), rf"generation_config.json: {PATHS} 'D:"),
    "path in a value": (_edit("config.json", "x", {"y": "made in /home/me/run 3"}), rf"{PATHS} '/home/me/run'"),
    "path in the card": (_append("README.md", "\n\nsee `/mnt/data/x`\n"), rf"README.md: {PATHS} '/mnt/data/x' in line"),
    "Windows path in the card": (_append("README.md", "C:\\Users\\me\\x\n"), rf"README.md: {PATHS} 'C:"),
    "path in an address": (_append("README.md", "file:///home/me/x\n"), rf"README.md: {PATHS} 'file:///home/me/x'"),
    "path in code": (_append("views.py", '\nX = "/Users/me/x"\n'), rf"views.py: {PATHS} '/Users/me/x' in line"),
    "path in weights": (_name_path_in_weights, rf"model.safetensors: {PATHS} '/home/me/run' in its metadata"),
    "truncated weights": (truncate, "model.safetensors: expected a whole .safetensors file"),
    "no JSON": (_write("more.json", "{"), "more.json: expected JSON"),
    "hidden file": (_write(".env", "HF_TOKEN=x"), ".env: expected no hidden files"),
    "broken link": (lambda folder: (folder / "x.txt").symlink_to("gone"), "x.txt: expected a file; got a link"),
    "another model": (_edit("config.json", "model_type", "bert"), "expected model_type 'arr_coc'; got 'bert'"),
    "no processor": (_remove("processor_config.json"), r"complete repository .*; got no processor_config.json"),
    "no generation config": (_remove("generation_config.json"), "got no generation_config.json"),
    "no chat template": (_remove("chat_template.jinja"), "expected a chat template"),
    "no weights": (_remove("model.safetensors"), "expected weights .*; got none"),
    "weights of another": (
        lambda folder: _write("old.safetensors", (folder / "model.safetensors").read_bytes())(folder),
        "expected the model's weights only; got old.safetensors too",
    ),
    "no card": (_remove("README.md"), "got no README.md"),
    "no licence": (_write("README.md", "# Tiny\n"), r"README.md: expected metadata on library_name.* license"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_unfit_folder_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(pushing, "check_loads", lambda folder: pytest.fail("loaded"))
    spoil, expected = REFUSED[case]
    spoiled = tmp_path / "spoiled"
    shutil.copytree(folder, spoiled)
    spoil(spoiled)
    refuses(expected, check, spoiled)


def test_what_only_looks_like_a_pickle_or_a_path_is_let_through(folder: Path, tmp_path: Path) -> None:
    files = {
        "README.md": b"See [a](https://x.org/home/me/page), `data/work/x`, `./tmp/x`, file:///path; C: or D:\\n.\n",
        "template.jinja": b"{{ 'Q:\\nWhat\\nA:\\n' }}",
        "vocab.txt": b"/home/me\n",
        "picture.png": b"\x89PNG\r\n\x1a\n\x00\x01\xff",
        "tokenizer.json": json.dumps({"model": {"vocab": [["/usr/bin/x", 0.1]]}, "x": "\\p{N}/+"}).encode(),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "notes").write_bytes(b"not published")
    found = pushing.files_of(tmp_path)
    assert sorted(found) == sorted(files)
    pushing.check_contents(found)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda held, name: held.pop(name), "got 1 missing, e.g. {name}"),
        (lambda held, name: held.update({name: held[name][:1].clone()}), "got 1 mismatched, e.g. {name}"),
        (lambda held, name: held.update({"extra.weight": torch.zeros(2)}), "got 1 unexpected, e.g. extra.weight"),
    ],
)
def test_every_weight_is_compared_with_the_model(
    folder: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor], str], Any], expected: str
) -> None:
    spoiled = tmp_path / "spoiled"
    shutil.copytree(folder, spoiled)
    held = load_file(spoiled / "model.safetensors")
    name = next(name for name, tensor in held.items() if tensor.ndim == 2 and "embed" not in name)
    change_tensors(spoiled, lambda held: change(held, name))
    refuses(re.escape(expected.format(name=name)), alone.check, str(spoiled))


def test_code_that_needs_this_package_is_refused(folder: Path, tmp_path: Path) -> None:
    """It would load here, and nowhere else."""
    spoiled = tmp_path / "spoiled"
    shutil.copytree(folder, spoiled)
    path = spoiled / "processing_arr_coc.py"
    importing = "\ntry:\n    import arr_coc\nexcept ImportError as error:\n    raise OSError('no') from error\n"
    path.write_text(path.read_text() + importing)
    refuses(r"expected it to load; got Auto\w+: no \(OSError\)", check, spoiled)
