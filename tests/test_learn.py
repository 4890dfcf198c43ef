"""`arr-coc learn`: from feedback to a version, or to the reasons why not."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli
from serving_client import noise, png

from arr_coc.data.feedback import JOURNAL, Feedback
from arr_coc.data.formats import FeedbackLog, Rendered
from arr_coc.evaluation.prediction_loop import model_identity
from arr_coc.journal import Journal
from arr_coc.learning import learn as learning
from arr_coc.learning.learn import Decision, Lesson, learn
from arr_coc.learning.versions import CHECKPOINT, Versions
from arr_coc.loading import load_model

PAGES = Rendered(1, 2, size=128)


NUMBERS = range(10, 16)
"""Seeds of images, of which those of 10 and 14 are held out."""


def say(folder: Path, numbers: Iterable[int] = NUMBERS) -> Path:
    log = Journal(folder, JOURNAL, limit=10**7, forgets=False, durable=False)
    for number in numbers:
        log.append(Feedback(png(noise(number)), "What is the fee?", False, answer=str(number)).content())
    log.close()
    return folder


@pytest.fixture
def lesson(checkpoint: Path, tmp_path: Path) -> Lesson:
    return Lesson(say(tmp_path / "said"), PAGES, PAGES, str(checkpoint), steps=2, batch_size=2, rank=2)


def test_what_is_not_shown_to_be_better_is_not_promoted(lesson: Lesson, tmp_path: Path) -> None:
    versions = Versions(tmp_path / "versions")
    learned = learn(lesson, versions)
    assert learned.version is None and versions.current().version == CHECKPOINT
    assert any(reason.startswith("feedback: expected at least 20 images") for reason in learned.decision.reasons)
    assert [path.name for path in versions.folder.iterdir()] == [], "no checkpoint and no lock stays"


def promoted_anyway(feedback: Any, rest: Any, *, margin: float) -> Decision:
    return replace(gate(feedback, rest, margin=margin), promoted=True)


gate = learning.decide


def test_what_is_better_is_promoted_and_says_why(
    lesson: Lesson, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "decide", promoted_anyway)
    versions = Versions(tmp_path / "versions")
    assert learn(lesson, versions).version == "v0001" == versions.current().version
    folder = versions.adapter("v0001")
    assert folder is not None
    report = json.loads((folder / "decision.json").read_text())
    assert report["base"] == model_identity(load_model(str(checkpoint), "cpu"))["weights_sha256"]
    assert report["compared_with"] == CHECKPOINT and (report["learned"], report["feedback"]["n"]) == (4, 2)
    assert learn(replace(lesson, seed=1), versions).version == "v0002"
    folder = versions.adapter("v0002")
    assert folder is not None and json.loads((folder / "decision.json").read_text())["compared_with"] == "v0001"


def test_boxes_alone_teach_where_all_corrections_have_some(lesson: Lesson, tmp_path: Path) -> None:
    bare = learning._phase(lesson, FeedbackLog(lesson.feedback, "learned"), "realizer")
    assert bare.loss_weights()["answer"] == 1.0
    log = Journal(tmp_path / "boxed", JOURNAL, limit=10**7, forgets=False, durable=False)
    for number in NUMBERS:
        log.append(Feedback(png(noise(number)), "Who?", False, answer="x", boxes=((1, 1, 9, 9),)).content())
    log.close()
    boxed = learning._phase(lesson, FeedbackLog(tmp_path / "boxed", "learned"), "realizer")
    assert (boxed.loss_weights()["answer"], boxed.loss_weights()["relevance"]) == (0.0, 1.0)
    assert boxed.loss_weights()["retention"] == lesson.retention and boxed.data["retained"] == [1]


def test_a_killed_training_is_gone_on_with(lesson: Lesson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while it measured, it does not train again; other feedback begins anew."""
    versions, train, trained = Versions(tmp_path / "versions"), learning.train_adapter, []

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def counted(recipe: Any, out: Path, *args: Any, **kwargs: Any) -> Path:
        trained.append((out, (out / "stage0" / "model").is_dir()))
        return train(recipe, out, *args, **kwargs)

    monkeypatch.setattr(learning, "train_adapter", counted)
    monkeypatch.setattr(learning, "decide", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            learn(lesson, versions)
    (first, fresh), (second, done) = trained
    assert first == second and not fresh and done
    say(tmp_path / "said", [20])
    with pytest.raises(KeyboardInterrupt):
        learn(lesson, versions)
    assert trained[-1][0] != first and not first.exists()


def test_the_command_says_what_is_missing_and_steps_back(cli: Cli, tmp_path: Path) -> None:
    versions = tmp_path / "versions"
    code, _, err = cli("learn", "--versions", versions)
    assert code == 2 and "expected LOG, --original and --rest (or --back); got no log, original, rest" in err
    code, _, err = cli("learn", "--versions", versions, "--back")
    assert code == 2 and "expected a version before checkpoint; got none" in err
    (tmp_path / "adapter").mkdir()
    Versions(versions).promote(tmp_path / "adapter", {})
    assert cli("learn", "--versions", versions, "--back") == (0, "in use: checkpoint\n", "")


def test_the_command_learns(cli: Cli, lesson: Lesson, tmp_path: Path) -> None:
    data = tmp_path / "pages.yaml"
    data.write_text("{format: rendered, pages: 1, questions: 2, size: 128}")
    settings = ["--original", data, "--rest", data, "--versions", tmp_path / "v", "--steps", 1, "--device", "cpu"]
    code, out, err = cli("learn", lesson.feedback, "--model", lesson.model, *settings)
    assert code == 0, err
    assert "held-out feedback: " in out and "not promoted: feedback: " in out and "in use: checkpoint\n" in out
