"""A disk that takes no more: one line, exit code 2, nothing half-written; with room, the same command ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.disks import small_disk
from tests.fuzz.workbench import Bench, finish, jobs, start

NAMES = ("build", "render", "evaluate", "assemble", "train")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield Bench(tmp_path_factory.mktemp("bench"))


def refused(bench: Bench, name: str, out: Path, file_bytes: int | None) -> str:
    """The one line of a command that finds no room for its output, which does not appear."""
    (job,) = [job for job in jobs(bench) if job.name == name]
    outcome, line = finish(job.arguments(out), file_bytes=file_bytes).judge()
    assert outcome == "refused", line
    left = [path.name for path in out.parent.rglob("*") if path.is_file()]
    begun = ("recipe.json", "stage0.json")  # with which settings a training began: another try may go on with them
    assert [name for name in left if not name.endswith(".yaml") and name not in begun] == [], line
    return line


@pytest.mark.filterwarnings("ignore")  # of a fork
@pytest.mark.parametrize("name", NAMES)
def test_files_that_may_not_grow(name: str, bench: Bench, tmp_path: Path) -> None:
    """safetensors' and PyTorch's errors about it were tracebacks in `assemble` and `train`."""
    assert refused(bench, name, tmp_path / "out", 300 if name == "evaluate" else 2000)
    if name == "train":
        (job,) = [job for job in jobs(bench) if job.name == name]
        assert finish(job.arguments(tmp_path / "out")).status == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["assemble", "train"])
def test_a_disk_that_is_full(name: str, bench: Bench, tmp_path: Path) -> None:
    with small_disk(tmp_path, 64 * 1024) as mounted:
        if not mounted:
            pytest.skip("this process may not mount a disk")
        line = refused(bench, name, tmp_path / "out", None)
        assert "No space left on device" in line or "bytes of free disk space" in line


@pytest.mark.filterwarnings("ignore")
def test_a_command_can_be_killed_and_says_so(bench: Bench, tmp_path: Path) -> None:
    """The tests' own: a process that is killed counts as a crash, not as a refusal."""
    (job,) = [job for job in jobs(bench) if job.name == "train"]
    assert start(job.arguments(tmp_path / "out")).kill().judge()[0] == "crashed"
