"""What a server keeps of its use: examples that are replayed, feedback, a scorer that is swapped while it answers."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from helpers import Cli, refuses, tiny_model
from serving_client import IMAGES, QUESTION, URLS, ask, chat, serving, text_of, until
from trainers import write_adapter

from arr_coc.data.feedback import Feedback, read_feedback
from arr_coc.evaluation.prediction_loop import weights_hash
from arr_coc.journal import journal_files, read_journal
from arr_coc.learning.versions import Versions
from arr_coc.loading import load_model
from arr_coc.serving.app import Server
from arr_coc.serving.examples import ALLOCATION, ANSWER, JOURNAL, SAME, SKIPPED, LoggedExample, Replay, example_of
from arr_coc.serving.settings import ServerSettings, UseSettings

pytestmark = pytest.mark.slow


def redact(kept: LoggedExample | Feedback) -> LoggedExample | Feedback | None:
    """A hook: no names, and nothing at all of what is secret."""
    if "secret" in kept.question:
        return None
    return replace(kept, question=kept.question.replace("Ada", "..."))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("use")


@pytest.fixture(scope="module")
def served(folder: Path, checkpoint: Path) -> Iterator[tuple[Server, Any]]:
    settings = ServerSettings(cache_tokens=4096, image_workers=1)
    use = UseSettings(
        examples=folder / "log",
        sample=1.0,
        feedback=folder / "said",
        versions=folder / "versions",
        versions_seconds=0.02,
        redact="test_use:redact",
    )
    with serving(load_model(str(checkpoint), "cpu"), settings, use) as (server, _, client):
        yield server, client


@pytest.fixture(scope="module")
def client(served: tuple[Server, Any]) -> Any:
    return served[1]


def say(client: Any, **body: Any) -> Any:
    return client.post("/feedback", cast_to=object, body=body)


def logged(folder: Path, number: str) -> LoggedExample | None:
    if not journal_files(folder / "log", JOURNAL):
        return None
    entries = [example_of(entry) for entry in read_journal(folder / "log", JOURNAL)]
    return next((entry for entry in entries if f"chatcmpl-{entry.id}" == number), None)


# ---- examples
def test_examples_hold_what_it_takes_to_ask_again(folder: Path, client: Any, checkpoint: Path) -> None:
    first = ask(client, QUESTION, *URLS[:2], max_tokens=5, stop=["\x00"], extra_body={"budget": 9})
    assert until(lambda: logged(folder, first.id) is not None)
    example = logged(folder, first.id)
    assert example is not None and example.images == tuple(IMAGES[:2])
    assert (example.answer, example.finish) == (text_of(first), first.choices[0].finish_reason)
    assert example.fetched is not None and sum(len(patches) for patches in example.fetched) == 9
    assert (example.budget, example.stops, example.max_tokens, example.version) == (9, ("\x00",), 5, "checkpoint")
    assert example.why in ("sample", "unsure") and example.probability is not None
    assert not example.redacted


def test_a_log_is_replayed(folder: Path, client: Any, checkpoint: Path, cli: Cli) -> None:
    """Mixed choices, several images, a history, stop strings; what was redacted or drawn is passed over."""
    turns = [*chat("Who?", URLS[1]), {"role": "assistant", "content": "Me."}, {"role": "user", "content": QUESTION}]
    answers = [
        ask(client, QUESTION, URLS[1], extra_body={"strategy": "saliency", "budget": 5}),
        ask(client, QUESTION, *URLS[:3]),
        client.chat.completions.create(model="tiny", messages=turns, max_tokens=9),
        ask(client, max_tokens=12, stop=[text_of(ask(client, max_tokens=12))[3:5]]),
        ask(client, temperature=2.0),
        ask(client, "Who is Ada?"),
        ask(client, "Where is the secret?"),
        ask(client, QUESTION, URLS[2]),
    ]
    assert until(lambda: logged(folder, answers[-1].id) is not None)
    assert logged(folder, answers[-2].id) is None
    (folder / "copy").mkdir()
    for path in (folder / "log").iterdir():  # the server goes on writing
        (folder / "copy" / path.name).write_bytes(path.read_bytes())
    out = folder / "outcomes.json"
    code, said, err = cli("replay", folder / "copy", "--model", checkpoint, "--json", out, "--device", "cpu")
    assert code == 0, err
    outcomes = {row["id"]: (row["outcome"], row["note"], row["question"]) for row in json.loads(out.read_text())}
    asked = [outcomes.get(answer.id.removeprefix("chatcmpl-")) for answer in answers]
    assert asked[:4] == [(SAME, "", QUESTION)] * 4 and asked[7] == (SAME, "", QUESTION)
    assert asked[4] == (SKIPPED, "its tokens were drawn", QUESTION)
    assert asked[5] == (SKIPPED, "redacted", "Who is ...?") and asked[6] is None
    assert f"{len(outcomes) - 2} same, 2 not asked" in said


def test_a_replay_tells_what_differs(folder: Path, client: Any, tmp_path: Path) -> None:
    number = ask(client, QUESTION, URLS[2]).id
    assert until(lambda: logged(folder, number) is not None)
    example = logged(folder, number)
    assert example is not None and example.fetched is not None
    replay = Replay(tiny_model())
    replay.weights = example.weights
    changes: list[tuple[dict[str, Any], str, str]] = [
        ({}, SAME, ""),
        ({"answer": "another"}, ANSWER, ""),
        ({"fetched": ((1, 2, 3),)}, ALLOCATION, ""),
        ({"weights": "0" * 64}, SAME, "other weights"),
        ({"finish": "failed", "answer": None, "fetched": None}, SAME, "then it was failed"),
        ({"finish": "late", "answer": example.answer[:2] if example.answer else ""}, SAME, "then it was late"),
        ({"version": "v0001"}, SKIPPED, "version: expected --versions, where v0001 is; got none"),
        ({"images": (b"nothing",)}, SKIPPED, "bytes: expected an image"),
    ]
    for changed, outcome, note in changes:
        replayed = replay.replay(replace(example, **changed))
        assert replayed.outcome == outcome and replayed.note.startswith(note), changed


def test_failures_and_improbable_answers_are_examples_and_others_are_drawn(served: tuple[Server, Any]) -> None:
    server, client = served
    log = server.use.examples
    assert log is not None
    usual, ended = log.settings, []
    server.chat.on_end, watch = ended.append, server.chat.on_end
    try:
        ask(client)
    finally:
        server.chat.on_end = watch
    (end,) = ended
    log.settings = replace(usual, sample=0.25, unsure=0.5)
    draws = iter([0.2, 0.3])
    log.draw, draw = lambda: next(draws), log.draw
    try:
        sure, unsure = replace(end, answer=("12", 0.9)), replace(end, answer=("12", 0.4))
        kinds = [replace(end, finish=finish) for finish in ("failed", "late", "cancelled", "refused")]
        whys = [log._why(one) for one in (sure, sure, unsure, *kinds)]
        assert whys == ["sample", None, "unsure", "failure", "failure", None, None]
    finally:
        log.settings, log.draw = usual, draw


# ---- feedback
def test_feedback_on_an_answer_is_kept_with_its_image(folder: Path, client: Any) -> None:
    answer = ask(client, "What is the fee?", URLS[1])
    say(client, id=answer.id, right=False, answer=" 12.50 ", boxes=[[1, 2, 30, 40]])
    say(client, id=ask(client, "What is the tax?", URLS[1]).id, right=True)
    say(client, image=URLS[2], question="What is the date?", right=False, answer="today")
    records = {record.question: record for record in read_feedback(folder / "said")}
    fee, date = records["What is the fee?"], records["What is the date?"]
    assert (fee.answers, fee.boxes, fee.picture) == (("12.50",), ((1.0, 2.0, 30.0, 40.0),), IMAGES[1])
    assert (date.answers, date.boxes, date.picture) == (("today",), (), IMAGES[2])
    assert records["What is the tax?"].answers[0]
    number = ask(client).id
    with pytest.raises(openai.BadRequestError, match="expected none beside an answer that is right"):
        say(client, id=number, right=True, answer="another")


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "an unknown answer": ({"id": "chatcmpl-0", "right": True}, 404, "send image and question"),
    "about nothing": ({"right": True}, 400, "got both, or neither"),
    "about two things": ({"id": "x", "image": URLS[0], "question": "a?", "right": True}, 400, "got both, or neither"),
    "no question": ({"image": URLS[0], "question": " ", "right": True}, 400, "question: expected one"),
    "no answer": ({"image": URLS[0], "question": "a?", "right": True}, 400, "answer: expected one"),
    "a blank answer": ({"image": URLS[0], "question": "a?", "right": False, "answer": " "}, 400, "answer: expected"),
    "a box outside": (
        {"image": URLS[0], "question": "a?", "right": False, "boxes": [[0, 0, 91, 10]]},
        400,
        "inside 90 x 60 px",
    ),
    "no box": ({"image": URLS[0], "question": "a?", "right": False, "boxes": [[1, 2]]}, 400, "boxes: expected"),
    "a field": ({"id": "x", "right": True, "wrong": True}, 400, "wrong"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_feedback_that_cannot_be_is_refused(case: str, client: Any) -> None:
    body, status, message = REFUSED[case]
    with pytest.raises(openai.APIStatusError) as caught:
        say(client, **body)
    assert caught.value.status_code == status and message in str(caught.value.body)


def test_a_full_journal_takes_no_feedback_and_few_answers_are_remembered(served: tuple[Server, Any]) -> None:
    server, client = served
    desk = server.use.desk
    assert desk is not None
    usual, limit = desk.journal.limit, desk.limit
    first, second = ask(client).id, ask(client).id
    try:
        desk.journal.limit = 100
        with pytest.raises(openai.APIStatusError) as caught:
            say(client, id=first, right=True)
        assert caught.value.status_code == 507 and "/" not in str(caught.value.body)
        desk.limit = len(IMAGES[0])
        third = ask(client).id
        with pytest.raises(openai.NotFoundError):
            say(client, id=second, right=True)
        desk.journal.limit = usual
        assert say(client, id=third, right=True) == {"object": "feedback", "taken": True}
    finally:
        desk.journal.limit, desk.limit = usual, limit


# ---- versions
def test_the_scorer_is_swapped_while_questions_are_answered(
    served: tuple[Server, Any], folder: Path, checkpoint: Path, tmp_path: Path
) -> None:
    """Each answer is the one of the version that its example names; one step leads back."""
    server, client = served
    adapter = write_adapter(tmp_path / "adapter")
    versions = Versions(folder / "versions")
    base = weights_hash(server.model)
    before = ask(client, QUESTION, URLS[0], max_tokens=8)
    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(ask, client, QUESTION, URLS[n % 3], max_tokens=8) for n in range(12)]
        assert versions.promote(adapter, {"base": base}) == "v0001"
        assert until(lambda: server.engine.version == "v0001")
        jobs += [threads.submit(ask, client, QUESTION, URLS[n % 3], max_tokens=8) for n in range(3)]
        numbers = [job.result().id for job in jobs]
    assert until(lambda: all(logged(folder, number) is not None for number in numbers))
    replay = Replay(tiny_model(), versions)
    replay.weights = base
    examples = [logged(folder, number) for number in numbers]
    assert all(example is not None and replay.replay(example).outcome == SAME for example in examples)
    assert {example.version for example in examples[-3:] if example} == {"v0001"}
    last = examples[-3]
    assert last is not None and last.fetched != (logged(folder, before.id) or last).fetched
    versions.step_back()
    assert until(lambda: server.engine.version == "checkpoint")
    assert ask(client, QUESTION, URLS[0], max_tokens=8).choices == before.choices


def test_an_adapter_of_another_one_is_refused(served: tuple[Server, Any], folder: Path, tmp_path: Path) -> None:
    server, client = served
    watch = server.use.versions
    assert watch is not None
    Versions(folder / "versions").promote(write_adapter(tmp_path / "adapter"), {"base": "of another"})
    refuses("expected an adapter of the checkpoint .*; got one of of another", watch.look)
    assert server.engine.version == "checkpoint" and ask(client)
    Versions(folder / "versions").step_back()
