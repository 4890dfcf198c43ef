"""What every test runs under: no network, no progress bars; and the fixtures of several test files."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported, which reads it once
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import numpy as np
import pytest
from PIL import Image

collect_ignore = ["conformance"]  # transformers' tests, which `make conformance` fetches and runs


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model and its processor, without code. Read only: tests share it."""
    from helpers import tiny_checkpoint

    return tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PNG of 60 x 90 px (height x width) of noise. Read only."""
    path = tmp_path_factory.mktemp("picture") / "noise.png"
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny tokenizer. Read only."""
    from helpers import tiny_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """Small stand-ins of published checkpoints, a folder per family. Read only: tests share them."""
    from published import write_published

    return write_published(tmp_path_factory.mktemp("published"), tokenizer)


@pytest.fixture(params=[True, False], ids=["merged", "bytes"])
def processor(request: pytest.FixtureRequest) -> Any:
    """The processor of `chats`, once with a tokenizer that merges bytes and once with one that does not."""
    from chats import make_processor
    from helpers import tiny_tokenizer

    return make_processor(tiny_tokenizer(merged=request.param))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line; gives exit code, standard output and standard error. Any use of the network fails."""
    from arr_coc_cli import main

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)

    def run(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()  # what the test's own preparations said
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
