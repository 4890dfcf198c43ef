"""Folders are replaced whole: what was there stays until the new one is in its place."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import Cli, refuses

from arr_coc import files
from arr_coc.data.feedback import JOURNAL, Feedback, read_feedback
from arr_coc.data.formats import open_records
from arr_coc.files import fresh_file, fresh_folder, parse_json, read_yaml, replace_folder, sole_writer, write_text
from arr_coc.journal import Journal, JournalFull, journal_files, read_entry, read_journal


def folder_of(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    out = folder_of(tmp_path / "out", "old")
    replace_folder(folder_of(tmp_path / "beside", "new"), out)
    assert (out / "file").read_text() == "new" and list(tmp_path.iterdir()) == [out]


def test_the_old_folder_stays_if_the_new_one_cannot_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training deleted a phase's model before it moved the new one into place."""
    out, beside = folder_of(tmp_path / "out", "old"), folder_of(tmp_path / "beside", "new")
    move = os.replace

    def replace(source: Any, target: Any) -> None:
        if Path(source) == beside:
            raise PermissionError(source)
        move(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "rename", replace)
    with pytest.raises(PermissionError):
        replace_folder(beside, out)
    assert (out / "file").read_text() == "old"


def replace_and_be_killed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces a folder in a process that kills itself between the two moves."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        return
    move, moves = os.replace, []

    def killed_at_the_second(source: Any, target: Any) -> None:
        if moves:
            os.kill(os.getpid(), signal.SIGKILL)
        moves.append(move(source, target))

    monkeypatch.setattr(os, "replace", killed_at_the_second)
    try:
        with fresh_folder(out, force=True) as beside:
            (beside / "file").write_text("new")
    finally:
        os._exit(1)


def test_a_folder_moved_away_by_a_killed_run_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `build --force` killed between its two moves left nothing at OUT, and nobody looked for what lay beside it."""
    out = folder_of(tmp_path / "out", "old")
    replace_and_be_killed(out, monkeypatch)
    assert not out.exists()
    with pytest.raises(ValueError, match="expected a new or empty folder"), fresh_folder(out):
        pass
    assert (out / "file").read_text() == "old"
    with fresh_folder(out, force=True) as beside:
        (beside / "file").write_text("new")
    assert (out / "file").read_text() == "new" and list(tmp_path.iterdir()) == [out]


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path, link = tmp_path / "result.json", tmp_path / "link.json"
    path.write_text("old")
    link.symlink_to(path)
    with pytest.raises(OSError, match="full"), fresh_file(path) as beside:
        beside.write_text("ne")
        assert path.read_text() == "old" and beside.suffix == ".json"
        raise OSError("full")
    assert path.read_text() == "old"
    write_text(link, "new")
    assert path.read_text() == "new" and link.is_symlink() and sorted(tmp_path.iterdir()) == [link, path]


@pytest.mark.parametrize("content", [b"a: [", b"\xff", b"a: " + b"[" * 100_000])
def test_what_is_no_yaml_or_nested_without_end_is_refused(content: bytes, tmp_path: Path) -> None:
    for name, read in (("file.yaml", read_yaml), ("file.json", parse_json)):
        (tmp_path / name).write_bytes(content[3:] if read is parse_json else content)
        with pytest.raises(ValueError, match=rf"{name}: expected (YAML|JSON); got "):
            read(tmp_path / name)


def holder(out: Path, seconds: float) -> int:
    """A process that holds `out` for a while; its id."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            with sole_writer(out):
                os.write(write, b"held")
                time.sleep(seconds)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.read(read, 4) == b"held"
    os.close(read)
    os.close(write)
    return child


@pytest.mark.versions
def test_a_second_writer_says_who_holds_it(tmp_path: Path) -> None:
    """Two experiments in one folder mended each other's predictions."""
    out = tmp_path / "out"
    first = holder(out, 60)
    expected = rf"out: expected no other process to write there; got process {first} on .+ since \d{{4}}-"
    with pytest.raises(ValueError, match=expected), sole_writer(out, patience=0.2):
        pass
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    with sole_writer(out, patience=0):
        assert (tmp_path / ".out.lock").read_text().startswith(f"process {os.getpid()} ")
    assert list(tmp_path.iterdir()) == []


# ---- Whoever writes a folder does so alone, and what is damaged in one is said in one line
ROOT = Path(__file__).parents[1]
DATA = ROOT / "examples" / "held_out" / "data.jsonl"


def refused(result: tuple[int, str, str]) -> str:
    """The one line of a command that was refused."""
    code, _, err = result
    said = [line for line in err.splitlines() if line.startswith("arr-coc: error: ")]
    assert code == 2 and len(said) == 1 and "Traceback" not in err, err
    return said[0]


def write_recipe(folder: Path, checkpoint: Path, **changes: Any) -> Path:
    stage = {"stage": "allocator", "data": {"path": str(DATA)}, "steps": 1}
    recipe = {"model": str(checkpoint), "start": str(checkpoint), "stages": [stage], **changes}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "recipe.yaml"


@pytest.mark.filterwarnings("ignore")  # of a fork
def test_a_folder_in_use_is_refused(
    cli: Cli, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainings in one folder wrote over each other's checkpoints; two builds replaced each other's output."""
    out, recipe = tmp_path / "out", write_recipe(tmp_path, checkpoint)
    monkeypatch.setattr(files, "PATIENCE", 0.05)
    model = ("--model", checkpoint)
    commands: list[tuple[Any, ...]] = [
        ("train", recipe, "--out", out),
        ("train", recipe, "--out", out, "--adapter"),
        ("build", checkpoint, out),
        ("render", out, "--pages", "1", "--split", "train"),
        ("evaluate", DATA, "--json", out, "--limit", "1", "--strategies", "none", *model),
    ]
    other = holder(out, 600)
    for command in commands:
        line = refused(cli(*command))
        assert f"{out}: expected no other process to write there; got process {other} on " in line, command
    assert not out.exists()
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)


def test_damaged_weights_to_train_from_are_one_line(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    for path in checkpoint.iterdir():
        (start / path.name).write_bytes(path.read_bytes()[: -100 if path.suffix == ".safetensors" else None])
    for options in ((), ("--adapter",)):
        recipe = write_recipe(tmp_path, checkpoint, start=str(start))
        line = refused(cli("train", recipe, "--out", tmp_path / "out", *options))
        assert f"{start}: expected whole .safetensors files; got " in line
    (start / "model.safetensors").rename(start / "pytorch_model.bin")
    assert f"{start}: expected " in refused(cli("train", recipe, "--out", tmp_path / "out"))


# ---- Journals: entries are whole or absent, files are bounded and rotated
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
