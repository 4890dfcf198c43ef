"""Journals: entries are whole or absent, files are bounded and rotated."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from arr_coc.journal import Journal, JournalFull, journal_files, read_entry, read_journal


def journal(folder: Path, *, limit: int = 10**6, forgets: bool = True) -> Journal:
    return Journal(folder, "log", limit=limit, forgets=forgets, durable=False)


def contents(folder: Path) -> list[dict[str, object]]:
    return [entry.content for entry in read_journal(folder, "log")]


def test_entries_come_back_in_order_and_no_file_is_gone_on_with(tmp_path: Path) -> None:
    for run in range(2):
        log = journal(tmp_path / "new")
        for number in range(3):
            log.append({"run": run, "number": number, "text": "Zürich\nline\r\u2028"})
        log.close()
    assert [(entry["run"], entry["number"]) for entry in contents(tmp_path / "new")] == [
        (run, number) for run in range(2) for number in range(3)
    ]
    for entry in read_journal(tmp_path / "new", "log"):
        assert read_entry(entry.path, entry.offset) == entry
    files = journal_files(tmp_path / "new", "log")
    assert len(files) == 2 and all(path.stat().st_mode & 0o777 == 0o600 for path in files)


def test_the_oldest_file_goes_where_the_limit_is_reached(tmp_path: Path) -> None:
    log = journal(tmp_path, limit=4000)
    for number in range(200):
        log.append({"number": number, "text": "x" * 50})
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 4000
    numbers = [entry["number"] for entry in contents(tmp_path)]
    assert numbers == list(range(numbers[0], 200)) and len(numbers) > 30  # type: ignore[arg-type]
    with pytest.raises(JournalFull, match="expected at most 4000 bytes of log; got"):
        log.append({"text": "x" * 5000})
    assert [entry["number"] for entry in contents(tmp_path)] == numbers


def test_a_journal_that_forgets_nothing_takes_no_more(tmp_path: Path) -> None:
    log = journal(tmp_path, limit=1000, forgets=False)
    with pytest.raises(JournalFull):
        for number in range(100):
            log.append({"number": number, "text": "x" * 50})
    assert [entry["number"] for entry in contents(tmp_path)] == list(range(len(contents(tmp_path))))


def test_what_a_failed_write_left_spoils_no_later_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write = journal(tmp_path), os.write
    log.append({"number": 0})

    def fails(stream: int, line: bytes) -> int:
        write(stream, bytes(line)[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(OSError, match="No space"):
        log.append({"number": 1})
    monkeypatch.undo()
    log.append({"number": 2})
    assert [entry["number"] for entry in contents(tmp_path)] == [0, 2]


@pytest.mark.filterwarnings("ignore")  # of a fork
def test_entries_of_a_killed_process_are_whole_or_absent(tmp_path: Path) -> None:
    """Large ones, so that kills come while they are written; another process goes on beside what is left."""
    text = "x" * 2_000_000
    for kill in range(3):
        child = os.fork()
        if child == 0:
            try:
                log = journal(tmp_path, limit=10**10)
                while True:
                    log.append({"text": text})
            finally:
                os._exit(1)
        while len(journal_files(tmp_path, "log")) <= kill or not journal_files(tmp_path, "log")[-1].stat().st_size:
            time.sleep(0.001)
        time.sleep(0.004 * kill)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    journal(tmp_path, limit=10**10).append({"text": text})
    entries = contents(tmp_path)
    assert entries and all(entry == {"text": text} for entry in entries)


def test_threads_share_one(tmp_path: Path) -> None:
    log = journal(tmp_path, limit=10**7)
    threads = [
        threading.Thread(target=lambda n=n: [log.append({"n": n, "text": "x" * 5000}) for _ in range(20)])  # type: ignore[misc]
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry["n"] for entry in contents(tmp_path)) == sorted([*range(4)] * 20)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("content", "message"), [(b"nothing\n", "byte 0: expected JSON; got"), (b"[]\n", "JSON object; got list")]
)
def test_damaged_lines_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "log-1-1.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        contents(tmp_path)
    with pytest.raises(ValueError, match="expected a folder with files other-"):
        list(read_journal(tmp_path, "other"))
