"""Feedback as records: what is learned, what is held out, which of several counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from arr_coc.data.feedback import JOURNAL, Feedback, read_feedback
from arr_coc.data.formats import open_records
from arr_coc.journal import Journal, journal_files

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


def test_of_several_about_one_question_the_last_counts(tmp_path: Path) -> None:
    said = [replace(SAID, answer=answer) for answer in ("1", "2")]
    write(tmp_path, *said, replace(SAID, image=b"another", answer="3"))
    assert [record.answers for record in read_feedback(tmp_path)] == [("2",), ("3",)]
    write(tmp_path, SAID)
    assert [record.answers for record in read_feedback(tmp_path)] == [("3",)], "what is right is not known any more"


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
    with pytest.raises(ValueError, match=message):
        list(read_feedback(tmp_path))


def test_a_log_of_nothing_that_can_be_learned_is_refused(tmp_path: Path) -> None:
    write(tmp_path, SAID)
    assert journal_files(tmp_path, JOURNAL)
    with pytest.raises(ValueError, match="expected feedback with right answers; got none"):
        open_records({"format": "feedback", "path": tmp_path})
    with pytest.raises(ValueError, match="part: expected one of all, learned, held_out; got 'half'"):
        open_records({"format": "feedback", "path": tmp_path, "part": "half"})


def test_sources_that_take_turns(tmp_path: Path) -> None:
    write(tmp_path, *(replace(SAID, question=f"{n}?", answer=str(n)) for n in range(3)))
    write(tmp_path / "other", replace(SAID, question="x?", answer="x"))
    spec = {"format": "mixed", "sources": [{"format": "feedback", "path": name} for name in (".", "other")]}
    records = open_records(spec, folder=tmp_path)
    assert [record.question for record in records] == ["0?", "x?", "1?", "x?", "2?", "x?"]
    assert records[-1].question == "x?" and [record.line for record in records] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(IndexError):
        records[6]
    with pytest.raises(ValueError, match="sources: expected a list of sources; got 3"):
        open_records({"format": "mixed", "sources": 3})
