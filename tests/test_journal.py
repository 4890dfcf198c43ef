"""Journals: entries are whole or absent, files are bounded and rotated."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import refuses

from arr_coc.data.feedback import JOURNAL, Feedback, read_feedback
from arr_coc.data.formats import open_records
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


@pytest.mark.parametrize(
    ("content", "message"), [(b"nothing\n", "byte 0: expected JSON; got"), (b"[]\n", "JSON object; got list")]
)
def test_damaged_lines_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "log-1-1.jsonl").write_bytes(content)
    refuses(message, contents, tmp_path)
    refuses("expected a folder with files other-", list, read_journal(tmp_path, "other"))


# ---- Feedback as records: what is learned, what is held out, which of several counts
SAID = Feedback(b"image", "What is the fee?", False, said="12")


def write(folder: Path, *entries: Feedback) -> Path:
    log = Journal(folder, JOURNAL, limit=10**7, forgets=False, durable=False)
    for entry in entries:
        log.append(entry.content())
    log.close()
    return folder


def test_what_is_said_to_be_right_is_learned(tmp_path: Path) -> None:
    write(
        tmp_path,
        replace(SAID, question="a?", right=True),
        replace(SAID, question="b?", answer="34", boxes=((1, 2, 3, 4),), history=(("a?", "12"),)),
        replace(SAID, question="c?"),
        replace(SAID, question="d?", answer="not on the page"),
    )
    records = list(read_feedback(tmp_path))
    assert [(record.question, record.answers) for record in records] == [
        ("a?", ("12",)),
        ("b?", ("34",)),
        ("d?", ("not on the page",)),
    ]
    assert records[1].boxes == ((1.0, 2.0, 3.0, 4.0),) and records[1].history == (("a?", "12"),)
    assert [record.absent for record in records] == [False, False, True]
    assert all(record.picture == b"image" for record in records)


def test_no_image_is_learned_and_held_out_and_more_feedback_moves_none(tmp_path: Path) -> None:
    images = [str(number).encode() for number in range(90)]
    said = [replace(SAID, image=image, question=q, answer="1") for image in images for q in ("a?", "b?")]
    write(tmp_path, *said[:60])
    early = {record.image for record in read_feedback(tmp_path, "held_out")}
    write(tmp_path, *said[60:])
    learned, held_out = ({record.image for record in read_feedback(tmp_path, part)} for part in ("learned", "held_out"))
    assert not learned & held_out and len(learned | held_out) == 90 and 20 <= len(held_out) <= 40
    assert early <= held_out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"image": "aW1hZ2U=", "question": "a?"}', "byte 0: expected image, question and right; got no right"),
        ('{"image": "&", "question": "a?", "right": true}', "image: expected base64; got '&'"),
        ('{"image": "aQ==", "question": "a?", "right": 1}', "right, answer: expected true or false, and text"),
        ('{"image": "aQ==", "question": "a?", "right": true, "boxes": [[1, 2]]}', "boxes: expected"),
        ('{"image": "aQ==", "question": "a?", "right": true, "history": [1]}', "byte 0"),
    ],
)
def test_damaged_entries_are_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "feedback-1-1.jsonl").write_text(line + "\n")
    refuses(message, list, read_feedback(tmp_path))


def test_a_log_of_nothing_that_can_be_learned_is_refused(tmp_path: Path) -> None:
    write(tmp_path, SAID)
    assert journal_files(tmp_path, JOURNAL)
    refuses("expected feedback with right answers; got none", open_records, {"format": "feedback", "path": tmp_path})
    with pytest.raises(ValueError, match="part: expected one of all, learned, held_out; got 'half'"):
        open_records({"format": "feedback", "path": tmp_path, "part": "half"})
    write(tmp_path, *(replace(SAID, question=f"{n}?", answer=str(n)) for n in range(3)))
    write(tmp_path / "other", replace(SAID, question="x?", answer="x"))
    spec = {"format": "mixed", "sources": [{"format": "feedback", "path": name} for name in (".", "other")]}
    records = open_records(spec, folder=tmp_path)
    assert [record.question for record in records] == ["0?", "x?", "1?", "x?", "2?", "x?"]
    assert records[-1].question == "x?" and [record.line for record in records] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(IndexError):
        records[6]
    refuses("sources: expected a list of sources; got 3", open_records, {"format": "mixed", "sources": 3})
