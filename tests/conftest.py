"""What every test runs under: no network, no progress bars; which may be skipped; the fixtures of several test files.

`--bare` hides the system's fonts and browsers, as on a machine with Python, make and git alone. `--strict-skips` fails
every test that is skipped for a reason that `MAY_SKIP` does not list. CI runs `make test` with both, and what it can
install for the slow tests, those without `--bare`.
"""

import gc
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported, which reads it once
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest

gc.disable()  # until all test files are imported, see `pytest_collection_finish`

collect_ignore = ["conformance"]  # transformers' tests, which `make conformance` fetches and runs

MAY_SKIP = {
    r"could not import 'ray": "the extra `ray` is not installed for tests: a large package for one gateway",
    r"could not import 'trl'": "the extra `trl` is not installed for tests: it changes with every release",
    r"lmms-eval is not installed": "it asks for some hundred packages",
    r"could not import 'vllm": "it needs a GPU and several GB",
    r"may not mount a disk": "a small disk that is full takes root and a kernel that lets it mount one",
    r"the bench of real pages is not here": "several of its sources state no licence, so it is never copied",
    r"the language model of arr-coc-135m is not here": "it takes access to the Hub or to a package index",
    r"does not let the peak be reset": "some kernels do not offer /proc/self/clear_refs",
}
"""Regular expressions of reasons why a test may be skipped in CI, and why that is not mended."""

BROWSER_SKIPS = r"browser: expected one of"
"""Of tests that need Chromium, which pip does not bring: CI installs it with apt-get and then skips none of them."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bare", action="store_true", help="hide the system's fonts and browsers")
    parser.addoption("--strict-skips", action="store_true", help="fail skipped tests whose reason conftest.py lacks")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--bare"):
        from arr_coc.pages.domains.chromium import PROGRAMS
        from arr_coc.pages.fonts import FONT_PATH, pip_font_directories

        os.environ[FONT_PATH] = os.pathsep.join(map(str, pip_font_directories()))
        os.environ["PATH"] = path_without(PROGRAMS, config)


def pytest_collection_finish() -> None:
    """What the imports made is never garbage: looking through it again and again took a third of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def path_without(programs: tuple[str, ...], config: pytest.Config) -> str:
    """PATH, with folders of links in place of those that hold one of some programs."""
    folders = os.environ["PATH"].split(os.pathsep)
    for place, folder in enumerate(folders):
        if any(shutil.which(program, path=folder) for program in programs):
            folders[place] = tempfile.mkdtemp(prefix="arr-coc-path-")
            config.add_cleanup(lambda made=folders[place]: shutil.rmtree(made))
            for file in Path(folder).iterdir():
                if file.name not in programs:
                    Path(folders[place], file.name).symlink_to(file)
    return os.pathsep.join(folders)


def judge_skip(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Makes a failure of a skip that is not expected, under `--strict-skips`."""
    if not config.getoption("--strict-skips") or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    expected = [*MAY_SKIP, *([BROWSER_SKIPS] if config.getoption("--bare") else [])]
    if not any(re.search(pattern, reason) for pattern in expected):
        report.outcome = "failed"
        report.longrepr = f"skipped for a reason that tests/conftest.py does not list: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    judge_skip(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    judge_skip(report, collector.config)
    return report


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model and its processor, without code. Read only: tests share it."""
    from helpers import tiny_checkpoint

    return tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def tiered_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose tiers are learned, so that every part has weights. Read only."""
    from helpers import tiny_checkpoint

    return tiny_checkpoint(tmp_path_factory.mktemp("tiers"), fetcher={"tier_choice": "classifier"})


@pytest.fixture(scope="session")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PNG of 60 x 90 px (height x width) of noise. Read only."""
    from helpers import noise

    path = tmp_path_factory.mktemp("picture") / "noise.png"
    noise(60, 90).save(path)
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


@pytest.fixture(scope="session")
def attached_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published model in small, of a family whose processor needs no torchvision. Read only."""
    from attached_models import published

    folder = tmp_path_factory.mktemp("attached")
    for part in published("idefics3"):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def shipped() -> Any:
    """arr-coc-135m. Read only."""
    from helpers import needs_the_shipped_model

    from arr_coc import load_model

    needs_the_shipped_model("load_model()")
    return load_model()


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny model whose answers depend on image and question, unless a test file has its own."""
    from helpers import loud_model

    return loud_model()


@pytest.fixture(params=[True, False], ids=["merged", "bytes"])
def processor(request: pytest.FixtureRequest) -> Any:
    """The processor of `chats`, once with a tokenizer that merges bytes and once with one that does not."""
    from chats import make_processor
    from helpers import tiny_tokenizer

    return make_processor(tiny_tokenizer(merged=request.param))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What transformers' loggers say, which do not pass it on by default; what is said once is said once again."""
    from transformers.utils import logging

    logging.warning_once.cache_clear()
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line; gives exit code, standard output and standard error.

    Any use of the network fails, but for this machine's own servers.
    """
    from arr_coc.cli import main

    connect = socket.socket.connect

    def refuse(self: socket.socket, address: Any) -> None:
        assert address[0] in ("127.0.0.1", "localhost"), f"the network was used: {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", refuse)

    def run(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()  # what the test's own preparations said
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
