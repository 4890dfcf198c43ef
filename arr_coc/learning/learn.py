"""Learning from feedback: trains an adapter of the scorer, compares it with the scorer in use, promotes or refuses it.

Two paired tests with sign flips of whole images decide. Better: significantly more right answers on held-out feedback.
Not worse: a loss below a margin on the regression set. The null hypothesis of the second test is a loss of the whole
margin: if there are too few questions to reject it, nothing is promoted.
"""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..data.formats import FeedbackLog, Format
from ..evaluation.prediction_loop import weights_hash
from ..evaluation.reporting import p_value, percent, points
from ..evaluation.scores import Scored, compare
from ..evaluation.statistics import FEWEST_IMAGES, SIGNIFICANCE, Interval, is_significant, sign_flip
from ..evaluation.strategies import score_fetchers
from ..files import sole_writer
from ..loading import load_config, load_model
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..training.phases import AllocatorPhase
from ..training.recipe import Recipe, train_adapter
from .versions import Versions, adapted_fetcher

MARGIN = 0.01  # default margin: the largest accepted loss on the regression set, one point


@dataclass(frozen=True)
class Decision:
    """The result of two paired tests."""

    promoted: bool  # whether both succeed
    reasons: tuple[str, ...]  # failures, in words; empty if there are none
    # comparisons of the new scorer (first) with the one in use (`evaluation.scores.compare`), with both
    # scores and the numbers of questions and images
    feedback: dict[str, Any]
    rest: dict[str, Any]
    margin: float  # the margin of the regression set
    p_margin: float  # p of the test that the loss on the regression set is less than the margin

    def lines(self) -> list[str]:
        """The measurements and the decision."""
        tested = (("held-out feedback", self.feedback), ("the rest", self.rest))
        excluded = f"a loss of {100 * self.margin:g} points on the rest is excluded with p {p_value(self.p_margin)}"
        measured = [f"{name}: {_measured(compared)}" for name, compared in tested]
        return [*measured, excluded, *(f"not promoted: {reason}" for reason in self.reasons)]


def _measured(compared: dict[str, Any]) -> str:
    scores = f"{percent(compared['used'])} % before, {percent(compared['new'])} % after"
    change = f"{points(compared['difference'])} points, p {p_value(compared['p'])}"
    counts = f"{compared['gained']} gained, {compared['lost']} lost, n = {compared['n']}, {compared['images']} images"
    return f"{scores}, {change} ({counts})"


def decide(feedback: tuple[Scored, Scored], rest: tuple[Scored, Scored], *, margin: float = MARGIN) -> Decision:
    """Compares a new scorer with the one in use.

    Args:
        feedback: answers of both to held-out feedback.
        rest: answers of both to the regression set.
        margin: the accepted loss on the regression set, in 0..1.

    Raises:
        ValueError: unequal questions, or a margin that is not above 0.
    """
    if not 0 < margin <= 1:
        raise ValueError(f"margin: expected a share above 0, at most 1; got {margin}")
    better, kept = _compared(*feedback), _compared(*rest)
    above = rest[0].mean_scores - rest[1].mean_scores + margin
    # One-sided p of a loss of at least the margin, by sign flips of the differences plus the margin.
    p_margin = sign_flip(above, np.zeros_like(above), groups=rest[0].images) / 2 if above.mean() > 0 else 1.0
    reasons = []
    for name, compared in (("feedback", better), ("rest", kept)):
        if compared["images"] < FEWEST_IMAGES:
            reasons.append(f"{name}: expected at least {FEWEST_IMAGES} images to test on; got {compared['images']}")
    difference = Interval(**better["difference"])
    if not (difference.value > 0 and is_significant(difference, better["p"], better["images"])):
        reasons.append(f"feedback: expected a gain with p at most {SIGNIFICANCE}; got {_said(better, better['p'])}")
    if p_margin > SIGNIFICANCE:
        expected = f"a loss of {100 * margin:g} points excluded with p at most {SIGNIFICANCE}"
        reasons.append(f"rest: expected {expected}; got {_said(kept, p_margin)}")
    return Decision(not reasons, tuple(reasons), better, kept, margin, p_margin)


def _compared(new: Scored, used: Scored) -> dict[str, Any]:
    scores = {"new": asdict(new.score), "used": asdict(used.score)}
    return {**compare(new, used), **scores, "n": len(new.images), "images": len(np.unique(new.images))}


def _said(compared: dict[str, Any], p: float) -> str:
    return f"{100 * compared['difference']['value']:+.1f} points, p {p:.3f}, n = {compared['n']}"


_WORK = "training"  # folder of checkpoints among the versions: the same command resumes a killed training


@dataclass(frozen=True)
class Lesson:
    """The data and the settings of a training."""

    feedback: Path  # folder of the journal
    # questions without boxes on which the scorer's relevance is retained, as those of its first training
    original: Format
    rest: Format  # the regression set, always the same
    model: str  # folder of the checkpoint
    steps: int = 400  # this and the next three: settings of the adapter's training
    batch_size: int = 8
    learning_rate: float = 3e-3
    rank: int = 8
    retention: float = 1.0  # weight of the retention loss, relative to the loss on feedback
    margin: float = MARGIN  # see `decide`
    seed: int = 0  # seed of all random draws


def learn(lesson: Lesson, versions: Versions, device: torch.device | str = "cpu") -> Decision:
    """Trains a new adapter on the feedback that is not held out, and promotes it if `decide` does.

    Raises:
        ValueError: there is no feedback for training or for the test, data cannot be read, or another process uses the
            same versions.
    """
    folder = lesson.feedback.absolute()
    held_out, rest = FeedbackLog(folder, "held_out").read(), lesson.rest.read()
    learned = FeedbackLog(folder, "learned")
    count, digest = len(learned.read()), learned.digest()
    phase = _phase(lesson, learned, load_config(lesson.model).fetcher_config.strategy)
    work = versions.folder / _WORK
    out = work / hashlib.sha256(f"{digest} {lesson.model} {lesson.rank} {phase}".encode()).hexdigest()[:16]
    versions.folder.mkdir(parents=True, exist_ok=True)
    with sole_writer(work):
        used = versions.current().version
        for other in work.glob("*"):
            if other != out and other.is_dir():  # a killed run leaves the file of its lock too
                shutil.rmtree(other)  # a training on other feedback, which no run resumes
        phase = replace(phase, cache=str(out.absolute() / "encoded"))
        recipe = Recipe(Path(lesson.model), (phase,), lesson.seed, Path(lesson.model))
        adapter = train_adapter(recipe, out, device, rank=lesson.rank)
        model = load_model(lesson.model, str(device))
        adapters = {"new": adapter, "used": versions.adapter(used)}
        fetchers = {name: adapted_fetcher(model.model.fetcher, each) for name, each in adapters.items()}
        scored = [score_fetchers(model, records, fetchers) for records in (held_out, rest)]
        better, kept = ((of_records["new"], of_records["used"]) for of_records in scored)
        decision = decide(better, kept, margin=lesson.margin)
        if decision.promoted:
            versions.promote(adapter, _report(lesson, decision, model, used, count))
        shutil.rmtree(work)
    return decision


def _phase(lesson: Lesson, learned: Format, strategy: str) -> AllocatorPhase:
    """A phase in which every second question is feedback, and the others retain the scorer's relevance.

    The relevance of all patches is retained, because an answer also depends on fetched patches around the right ones.

    Boxes give the relevance of each patch. If every correction has boxes, only the boxes train the scorer: the answer's
    loss reaches fetched patches only, and its much larger gradient comes from text that the model cannot read.
    """
    located = all(record.located for record in learned.read())
    return AllocatorPhase(
        data={"format": "mixed", "sources": [learned, lesson.original], "retained": [1]},
        losses={"retention": lesson.retention, **({"answer": 0.0} if located else {})},
        trained=("scorer",),
        strategies={strategy: 1.0},
        steps=lesson.steps,
        warmup=max(1, lesson.steps // 10),
        batch_size=lesson.batch_size,
        learning_rate=lesson.learning_rate,
        weight_decay=0.0,
        evaluate_every=max(1, lesson.steps // 4),
        keep=1,
        seed=lesson.seed,
    )


def _report(
    lesson: Lesson, decision: Decision, model: ArrCocForConditionalGeneration, used: str, learned: int
) -> dict[str, Any]:
    weights = weights_hash(model)
    said = {**asdict(lesson), "feedback": str(lesson.feedback)}
    settings = json.loads(json.dumps(said, default=str))
    return {**asdict(decision), "compared_with": used, "learned": learned, "base": weights, "lesson": settings}
