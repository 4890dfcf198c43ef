"""`arr-coc learn`: from feedback to a version, or to the reasons why not."""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Cli, loud_model, png, refuses, tiny_model
from serving_client import noise
from trainers import write_adapter

from arr_coc.data.feedback import JOURNAL, Feedback
from arr_coc.data.formats import Rendered
from arr_coc.evaluation.arms import Arm
from arr_coc.evaluation.prediction_loop import weights_hash
from arr_coc.evaluation.scores import Scored
from arr_coc.journal import Journal
from arr_coc.learning import learn as learning
from arr_coc.learning.learn import Decision, Lesson, decide, learn
from arr_coc.learning.versions import CHECKPOINT, DECISION, Versions, adapted_fetcher
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
    decision = learn(lesson, versions)
    assert not decision.promoted and versions.current().version == CHECKPOINT
    assert any(reason.startswith("feedback: expected at least 20 images") for reason in decision.reasons)
    assert [path.name for path in versions.folder.iterdir()] == [], "no checkpoint and no lock stays"


def promoted_anyway(feedback: Any, rest: Any, *, margin: float) -> Decision:
    return replace(gate(feedback, rest, margin=margin), promoted=True)


gate = learning.decide


def test_better_is_promoted(lesson: Lesson, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "decide", promoted_anyway)
    versions = Versions(tmp_path / "versions")
    assert learn(lesson, versions).promoted and versions.current().version == "v0001"
    folder = versions.adapter("v0001")
    assert folder is not None
    report = json.loads((folder / "decision.json").read_text())
    assert report["base"] == weights_hash(load_model(str(checkpoint), "cpu"))
    assert report["compared_with"] == CHECKPOINT and (report["learned"], report["feedback"]["n"]) == (4, 2)
    assert learn(replace(lesson, seed=1), versions).promoted and versions.current().version == "v0002"
    folder = versions.adapter("v0002")
    assert folder is not None and json.loads((folder / "decision.json").read_text())["compared_with"] == "v0001"


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
        (trained[-1][0].parent / ".0123456789abcdef.lock").touch()  # as `kill -9` leaves it
    (first, fresh), (second, done) = trained
    assert first == second and not fresh and done
    say(tmp_path / "said", [20])
    with pytest.raises(KeyboardInterrupt):
        learn(lesson, versions)
    assert trained[-1][0] != first and not first.exists()


def test_the_command_says_what_is_missing_steps_back_and_learns(cli: Cli, tmp_path: Path, lesson: Lesson) -> None:
    versions = tmp_path / "versions"
    code, _, err = cli("learn", "--versions", versions)
    assert code == 2 and "expected LOG, --original and --rest (or --back); got no log, original, rest" in err
    code, _, err = cli("learn", "--versions", versions, "--back")
    assert code == 2 and "expected a version before checkpoint; got none" in err
    (tmp_path / "adapter").mkdir()
    Versions(versions).promote(tmp_path / "adapter", {})
    assert cli("learn", "--versions", versions, "--back") == (0, "in use: checkpoint\n", "")
    data = tmp_path / "pages.yaml"
    data.write_text("{format: rendered, pages: 1, questions: 2, size: 128}")
    settings = ["--original", data, "--rest", data, "--versions", tmp_path / "v", "--steps", 1, "--device", "cpu"]
    code, out, err = cli("learn", lesson.feedback, "--model", lesson.model, *settings)
    assert code == 0, err
    assert "held-out feedback: " in out and "not promoted: feedback: " in out and "in use: checkpoint\n" in out


ARM = Arm("realizer", "ladder", "realizer", 17, "topk", 128, 33, ())


def scored(values: Any, images: Any = None) -> Scored:
    scores = np.asarray(values, dtype=float)[None]
    numbers = np.arange(scores.size) if images is None else np.asarray(images)
    return Scored(ARM, "exact_match", [], scores, np.full_like(scores, np.nan), numbers, np.zeros(scores.size, bool))


def changed(n: int, gained: int, lost: int) -> tuple[Scored, Scored]:
    """Answers of the new scorer and the one in use, half of which right, and so many of them changed."""
    used = np.tile([0.0, 1.0], n // 2)
    new = used.copy()
    new[0 : 2 * gained : 2] = 1.0
    new[1 : 1 + 2 * lost : 2] = 0.0
    return scored(new), scored(used)


BETTER, SAME = changed(60, 20, 1), changed(1200, 8, 8)


def test_better_there_and_the_same_here_is_promoted() -> None:
    decision = decide(BETTER, SAME)
    assert decision.promoted and not decision.reasons
    assert (decision.feedback["gained"], decision.feedback["lost"], decision.feedback["n"]) == (20, 1, 60)
    assert decision.p_margin < 0.02 < 0.5 < decision.rest["p"]
    lines = decision.lines()
    assert lines[0].startswith("held-out feedback: 50.0 [") and "+31.7 [" in lines[0] and len(lines) == 3
    assert json.loads(json.dumps(asdict(decision)))["promoted"] is True
    # Sixty answers gained on three pages are three observations, not sixty.
    n, images = 60, np.arange(60) // 20
    decision = decide((scored(np.ones(n), images), scored(np.zeros(n), images)), SAME)
    assert not decision.promoted and decision.feedback["images"] == 3


@pytest.mark.parametrize(
    ("feedback", "rest", "reason"),
    [
        (changed(60, 4, 3), SAME, "feedback: expected a gain with p at most 0.02; got +1.7 points, p 1.000, n = 60"),
        (changed(60, 1, 20), SAME, "feedback: expected a gain with p at most 0.02; got -31.7 points"),
        (changed(18, 9, 0), SAME, "feedback: expected at least 20 images to test on; got 18"),
        (BETTER, changed(1200, 8, 26), "rest: expected a loss of 1 points excluded with p at most 0.02; got -1.5 poi"),
        (BETTER, changed(200, 0, 0), None),
        (BETTER, changed(200, 4, 4), "rest: expected a loss of 1 points excluded with p at most 0.02; got +0.0 points"),
        (BETTER, changed(18, 0, 0), "rest: expected at least 20 images to test on; got 18"),
    ],
)
def test_whatever_is_not_shown_is_a_reason(feedback: Any, rest: Any, reason: str | None) -> None:
    """Too few questions show nothing: to be no worse has to be shown, too."""
    reasons = decide(feedback, rest).reasons
    assert (not reasons) if reason is None else any(text.startswith(reason) for text in reasons), reasons


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"))


def test_each_promotion_is_a_version_and_one_step_leads_back(adapter: Path, tmp_path: Path) -> None:
    versions = Versions(tmp_path / "versions")
    assert versions.current().version == CHECKPOINT and versions.adapter(CHECKPOINT) is None
    refuses("expected a version before checkpoint; got none", versions.step_back)
    assert [versions.promote(adapter, {"number": number}) for number in range(3)] == ["v0001", "v0002", "v0003"]
    assert versions.names() == [CHECKPOINT, "v0001", "v0002", "v0003"]
    folder = versions.adapter("v0003")
    assert folder is not None and {path.name for path in folder.iterdir()} >= {DECISION, "adapter_model.safetensors"}
    assert versions.step_back() == versions.current().version == "v0002"
    refuses("expected a version before v0002; got none", versions.step_back)
    assert versions.promote(adapter, {}) == "v0004"
    assert versions.step_back() == "v0002"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("{}", None),
        ('{"version": 3}', "expected version and previous; got"),
        ('{"version": "checkpoint", "x": 1}', "expected version and previous; got"),
        ('{"version": "v0009"}', "version: expected one of checkpoint; got 'v0009'"),
        ('{"version": "../x"}', "version: expected one of checkpoint; got '../x'"),
    ],
)
def test_damaged_versions_are_refused(text: str, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions/current.json").write_text(text)
    if message is None:
        assert Versions(tmp_path / "versions").current().version == CHECKPOINT
    else:
        refuses(message, Versions(tmp_path / "versions").current)


def test_a_version_fetches_as_its_adapter_does(adapter: Path, model: Any, picture: Path) -> None:
    from peft import PeftModel

    own = model.model.fetcher
    before = model.generate(picture, "What is the fee?", return_fetch=True)
    weights = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    try:
        model.model.fetcher = adapted_fetcher(own, adapter)
        after = model.generate(picture, "What is the fee?", return_fetch=True)
    finally:
        model.model.fetcher = own
    with_peft = PeftModel.from_pretrained(loud_model(), str(adapter)).eval().get_base_model()
    expected = with_peft.generate(picture, "What is the fee?", return_fetch=True)
    assert torch.allclose(after.fetch.scores, expected.fetch.scores, rtol=1e-4, atol=1e-5)
    assert torch.equal(after.fetch.indices, expected.fetch.indices)
    assert not torch.equal(after.fetch.indices, before.fetch.indices)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in own.state_dict().items())
    assert adapted_fetcher(own, None) is own


def test_other_adapters_are_refused(model: Any, tmp_path: Path) -> None:
    bridge = write_adapter(tmp_path / "bridge", part="semantic")
    message = "expected an adapter of scorers alone; got base_model.model.model.vision_tower"
    refuses(message, adapted_fetcher, model.model.fetcher, bridge)
    refuses("expected an adapter of this model's scorer; got", adapted_fetcher, model.model.fetcher, tmp_path)
    larger = write_adapter(tmp_path / "scorer")
    with pytest.raises(ValueError, match="expected an adapter of this model's scorer; got"):
        adapted_fetcher(tiny_model(fetcher={"hidden_size": 32}).model.fetcher, larger)
