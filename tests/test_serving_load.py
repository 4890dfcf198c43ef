"""The server as a process of its own: documented commands, and the load benchmark at a small size."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import tiny_model
from serving_client import noise

from arr_coc.data.formats import open_records
from arr_coc.loading import load_model
from arr_coc.serving.app import share_cores
from benchmarks.served import ServedProcess, ask, cases, serve_command
from benchmarks.serving_load import BODY_LIMIT, KINDS, Load
from benchmarks.serving_throughput import GENERATE, PLAIN, Comparison, few_images

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in Linux' /proc")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two questions about each of three images."""
    folder = tmp_path_factory.mktemp("pages")
    lines = []
    for number in range(3):
        noise(number).save(folder / f"{number}.png")
        for question in ("What is the total?", "Who?"):
            lines.append(json.dumps({"image": f"{number}.png", "question": question, "answers": ["x"]}) + "\n")
    (folder / "data.jsonl").write_text("".join(lines))
    return folder / "data.jsonl"


@pytest.fixture
def command(checkpoint: Path) -> Iterator[list[str]]:
    yield serve_command(str(checkpoint), "--max-body", str(BODY_LIMIT))


@pytest.mark.slow
def test_the_documented_client_asks_the_documented_command(command: list[str], picture: Path) -> None:
    with ServedProcess([*command, "--port", "0"]) as server:
        assert len(server.descendants()) == 3 and server.memory() > 2**20
        example = [sys.executable, "examples/ask_server.py", str(picture), "Who?", "What?", "--url", server.url]
        done = subprocess.run(example, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        model = tiny_model()
        assert done.stdout.splitlines() == [f"{asked} {model.generate(picture, asked)}" for asked in ("Who?", "What?")]
        children = server.descendants()
    assert not any(Path(f"/proc/{child}").exists() for child in children)


@pytest.mark.slow
def test_load_loses_and_mixes_up_nothing(command: list[str], checkpoint: Path, pages: Path) -> None:
    asked = cases(load_model(str(checkpoint), "cpu"), open_records({"path": pages}))
    assert len(asked) == 6 and len({case.expected for case in asked}) > 2
    report = Load(command, asked, requests=160, clients=8).run()
    assert not (report.lost or report.crossed or report.broken or report.wrong), report.text()
    assert report.ended.total() == 160 and set(report.ended) == set(KINDS) and len(report.memory) == 2
    assert "lost 0, crossed 0" in report.text()


@pytest.mark.slow
def test_load_notices_what_goes_wrong(command: list[str], pages: Path, checkpoint: Path) -> None:
    """Answers that are not the expected ones, and statuses."""
    asked = cases(load_model(str(checkpoint), "cpu"), open_records({"path": pages}))
    load = Load(command, asked, requests=1, clients=1)
    with ServedProcess([*command, "--port", "0"]) as server:
        load.url = server.url
        other = next(case for case in asked if case.expected != asked[0].expected)
        crossed = type(other)(asked[0].question, asked[0].url, other.expected)
        load._do("plain", crossed, 0.5)
        load._do("streamed", crossed, 0.5)
        load._do("plain", type(other)("", asked[0].url, ""), 0.5)
        assert ask(server.url, asked[0].body()).text == asked[0].expected
    assert load.report.crossed == 2 and list(load.report.wrong) == [
        "plain: 400 question: expected a non-empty string; got ''"
    ]
    assert not load.report.good


@pytest.mark.parametrize(("threads", "each"), [(1, 1), (2, 1), (16, 8)])
def test_the_two_threads_that_compute_share_the_cores(threads: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    share_cores()
    assert told == [each]


@pytest.mark.slow
def test_throughput_is_compared_in_one_run(checkpoint: Path, pages: Path) -> None:
    records = few_images(open_records({"path": pages}), 2)
    assert len(records) == 4
    results = Comparison(str(checkpoint), records, [1, 3], questions=6).run(1)
    assert list(results) == [GENERATE, PLAIN, "1 clients", "3 clients"]
    assert all(own.rate > 0 and own.cpu > 0 for rounds in results.values() for own in rounds)
