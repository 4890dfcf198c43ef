"""What may not be published: pickles, paths of a machine, code that loads nowhere else, weights that do not fit."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import refuses
from safetensors.torch import load_file, save_file

from arr_coc.publishing import alone, build, check, pushing


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `arr-coc build` makes of the tiny model. Read only."""
    place = tmp_path_factory.mktemp("checking")
    (place / "card.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    return build(checkpoint, place / "repository", card=place / "card.md")


def _edit(name: str, **changes: Any) -> Callable[[Path], None]:
    """Lays `changes` over a JSON file; None takes a key away."""

    def apply(folder: Path) -> None:
        held = {**json.loads((folder / name).read_text()), **changes}
        (folder / name).write_text(json.dumps({key: value for key, value in held.items() if value is not None}))

    return apply


def _write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return apply


def _append(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: _write(name, (folder / name).read_text() + content)(folder)


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _torch_save(folder: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, folder / "weights.dat")


def _name_path_in_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path), path, metadata={"format": "pt", "source": "/home/me/run"})


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


PATHS = "expected no absolute paths; got"
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickle by ending": (_write("sub/model.bin", b"x"), r"sub/model.bin: expected no pickles .*; got a .bin file"),
    "pickle by capital ending": (_write("MODEL.PT", b"x"), "MODEL.PT: expected no pickles"),
    "torch archive": (_torch_save, "weights.dat: expected no pickles .*; got one by its content"),
    "pickle": (_write("data.txt", pickle.dumps({"a": os.getcwd}, 4)), "data.txt: expected no pickles"),
    "textual pickle": (_write("data.txt", pickle.dumps([1, "a"], 0)), "data.txt: expected no pickles"),
    "path in a config": (_edit("config.json", _name_or_path="/srv1/x/model"), rf"config.json: {PATHS} '/srv1/x/model'"),
    "short path in a config": (_edit("config.json", _name_or_path="/model"), rf"config.json: {PATHS} '/model'"),
    "Windows path": (_edit("generation_config.json", x=["D:\\models"]), rf"generation_config.json: {PATHS} 'D:"),
    "path in a value": (_edit("config.json", x={"y": "made in /home/me/run 3"}), rf"{PATHS} '/home/me/run'"),
    "path in the card": (_append("README.md", "\n\nsee `/mnt/data/x`\n"), rf"README.md: {PATHS} '/mnt/data/x' in line"),
    "Windows path in the card": (_append("README.md", "C:\\Users\\me\\x\n"), rf"README.md: {PATHS} 'C:"),
    "path in an address": (_append("README.md", "file:///home/me/x\n"), rf"README.md: {PATHS} 'file:///home/me/x'"),
    "path in code": (_append("views.py", '\nX = "/Users/me/x"\n'), rf"views.py: {PATHS} '/Users/me/x' in line"),
    "path in weights": (_name_path_in_weights, rf"model.safetensors: {PATHS} '/home/me/run' in its metadata"),
    "truncated weights": (_truncate, "model.safetensors: expected a whole .safetensors file"),
    "no JSON": (_write("more.json", "{"), "more.json: expected JSON"),
    "hidden file": (_write(".env", "HF_TOKEN=x"), ".env: expected no hidden files"),
    "broken link": (lambda folder: (folder / "x.txt").symlink_to("gone"), "x.txt: expected a file; got a link"),
    "another model": (_edit("config.json", model_type="bert"), "expected model_type 'arr_coc'; got 'bert'"),
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
    change(held, name)
    save_file(held, spoiled / "model.safetensors", metadata={"format": "pt"})
    refuses(re.escape(expected.format(name=name)), alone.check, str(spoiled))


def test_code_that_needs_this_package_is_refused(folder: Path, tmp_path: Path) -> None:
    """It would load here, and nowhere else."""
    spoiled = tmp_path / "spoiled"
    shutil.copytree(folder, spoiled)
    path = spoiled / "processing_arr_coc.py"
    importing = "\ntry:\n    import arr_coc\nexcept ImportError as error:\n    raise OSError('no') from error\n"
    path.write_text(path.read_text() + importing)
    refuses(r"expected it to load; got Auto\w+: no \(OSError\)", check, spoiled)
