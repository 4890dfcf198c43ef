"""The rule that decides, written before the first answer to these questions, and its simulation.

The split with the highest mean over the four kinds of question is chosen on validation pages, of the splits with
0 % < base share < 100 %. It is shown that a page should have both kinds of token (GO) where this split, on test pages,
meets every condition:

* above base tokens alone by at least 10 points on detail and on two places,
* above fetched tokens alone by at least 5 points on spread and on gist,
* on no other kind below either by 2 points or more.

Each condition is a one-sided test of the mean difference on the same questions against its margin. Its error combines
pages, whose questions are kept together, and trainings, whose spread is pooled over the compared arms, for each kind
on its own. As all conditions have to hold, the verdict's p is the largest of theirs (an intersection-union test), which
needs no correction. NO-GO: the opposite of a condition is shown, at a level that is divided by the number of
conditions. Otherwise: INCONCLUSIVE.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, t

from arr_coc.evaluation.statistics import clustered_error
from arr_coc.pages.line_questions import KINDS

LEVEL = 0.015
"""Of the one-sided tests: half of what false GOs may be (0.03), as the chosen split may have had lucky trainings."""
ALONE, FETCHED = "base_100", "base_0"
DETAIL, TWO_PLACES, SPREAD, GIST = KINDS
MARGINS = {
    ALONE: {DETAIL: 0.10, TWO_PLACES: 0.10, SPREAD: -0.02, GIST: -0.02},
    FETCHED: {DETAIL: -0.02, TWO_PLACES: -0.02, SPREAD: 0.05, GIST: 0.05},
}
"""By how much a split has to be above base tokens alone, and above fetched tokens alone."""
SPLITS = ("base_12", "base_25", "base_50", "base_75")
"""The splits with base and fetched tokens."""


@dataclass(frozen=True)
class Scores:
    """What an arm's trainings answered: of each kind of question the pages [n], and right answers [trainings, n]."""

    pages: Mapping[str, np.ndarray]
    right: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Condition:
    """A condition and its test.

    Attributes:
        other: the arm that the split is compared with.
        kind: of question.
        margin: what the difference has to be above.
        difference: the split's mean less the other arm's; `error` is its standard error.
        p, p_refuted: one-sided, that it is above the margin, and that it is below.
    """

    other: str
    kind: str
    margin: float
    difference: float
    error: float
    p: float
    p_refuted: float

    @property
    def state(self) -> str:
        """What the numbers show of it."""
        if self.p <= LEVEL:
            return "shown"
        return "refuted" if self.p_refuted <= LEVEL / CONDITIONS else "neither shown nor refuted"


CONDITIONS = sum(map(len, MARGINS.values()))


@dataclass(frozen=True)
class Verdict:
    """`decision`: GO, NO-GO or INCONCLUSIVE, about a split and its conditions; `p` that it meets them all."""

    decision: str
    split: str
    conditions: tuple[Condition, ...]
    p: float


def training_spread(arms: Sequence[np.ndarray]) -> tuple[float, int]:
    """The spread between trainings on the scale 2 arcsin sqrt(share), and its degrees of freedom, 0 if it is unknown.

    It is pooled over arms, from the scores of each arm's trainings; on this scale it is constant (Bartlett 1936).
    """
    scaled = [2 * np.arcsin(np.sqrt(runs)) for runs in arms]
    freedom = sum(len(runs) - 1 for runs in scaled)
    squares = sum(float(((runs - runs.mean()) ** 2).sum()) for runs in scaled)
    return (math.sqrt(squares / freedom) if freedom else math.inf), freedom


def training_error(sd: float, *arms: np.ndarray) -> float:
    """Standard error of the sum or difference of the arms' mean scores, from the scores of their trainings."""
    slopes = [math.sqrt(share * (1 - share)) for share in (float(np.mean(runs)) for runs in arms)]
    return sd * math.sqrt(sum(slope**2 / len(runs) for slope, runs in zip(slopes, arms, strict=True)))


def mean(scores: Scores) -> float:
    """Exact match, 0 to 1, as the mean of the kinds."""
    return float(np.mean([right.mean() for right in scores.right.values()]))


def best_split(arms: Mapping[str, Scores], splits: Sequence[str]) -> str:
    """The split with the highest mean; of equal ones the first."""
    return max(splits, key=lambda name: mean(arms[name]))


def decide(arms: Mapping[str, Scores], split: str) -> Verdict:
    """The verdict about a split.

    Args:
        arms: with the split, `ALONE` and `FETCHED`; all answer the same questions in one order. The spread of trainings
            is that of all `SPLITS` and these.
        split: chosen on other pages.

    Raises:
        ValueError: an arm is missing, or has answered other questions.
    """
    needed = (split, ALONE, FETCHED)
    if missing := [name for name in needed if name not in arms]:
        raise ValueError(f"predictions: expected those of {', '.join(needed)}; got none of {', '.join(missing)}")
    for name in needed:
        for kind in KINDS:
            if not np.array_equal(arms[name].pages[kind], arms[ALONE].pages[kind]):
                raise ValueError(f"predictions: expected the same questions of all arms; got others of {name}")
    compared = [arm for name, arm in arms.items() if name in (*SPLITS, *needed)]
    spreads = {kind: training_spread([arm.right[kind].mean(1) for arm in compared]) for kind in KINDS}
    conditions = []
    for other, margins in MARGINS.items():
        for kind, margin in margins.items():
            sd, freedom = spreads[kind]
            first, second, groups = arms[split].right[kind], arms[other].right[kind], arms[split].pages[kind]
            difference = float(first.mean() - second.mean())
            if not freedom:  # one training of each arm says nothing about their spread
                conditions.append(Condition(other, kind, margin, difference, float("nan"), 1.0, 1.0))
                continue
            of_pages = clustered_error(first.mean(0), second.mean(0), groups=groups)
            error = float(np.hypot(of_pages, training_error(sd, first.mean(1), second.mean(1))))
            above, below = (float(side((difference - margin) / error, freedom)) for side in (t.sf, t.cdf))
            conditions.append(Condition(other, kind, margin, difference, error, above, below))
    states = {condition.state for condition in conditions}
    decision = "GO" if states == {"shown"} else "NO-GO" if "refuted" in states else "INCONCLUSIVE"
    return Verdict(decision, split, tuple(conditions), max(condition.p for condition in conditions))


# ---- simulation ------------------------------------------------------------------------------------------------------

DIFFICULTY = 1.5
"""Spread of the questions' difficulty, which all arms share, beside a spread of 1 of each answer (probit)."""
OF_PAGE = 0.4
"""Share of that difficulty that the questions of a page share."""
OF_TRAINING = {DETAIL: 0.03, TWO_PLACES: 0.05, SPREAD: 0.10, GIST: 0.10}
"""Spread between trainings on the probit scale, at least that of any run so far: 0.05 is about 2 points at 50 %."""

Rates = Mapping[str, Mapping[str, float]]
"""The share of questions that each arm answers in truth, by kind."""


def levels(rng: np.random.Generator, rates: Rates, trainings: int = 2) -> dict[str, dict[str, np.ndarray]]:
    """What each arm's trainings can do, by kind [trainings, 1], on the probit scale."""
    scale = (1 + DIFFICULTY**2) ** 0.5
    return {
        name: {
            kind: scale * (norm.ppf(np.clip(own[kind], 1e-6, 1 - 1e-6)) + of_training * rng.normal(size=(trainings, 1)))
            for kind, of_training in OF_TRAINING.items()
        }
        for name, own in rates.items()
    }


def simulated(
    rng: np.random.Generator, trained: Mapping[str, Mapping[str, np.ndarray]], pages: int
) -> dict[str, Scores]:
    """Answers of trained arms (`levels`) to one question of each kind about `pages` pages."""
    page = rng.normal(size=pages)
    hard = {kind: DIFFICULTY * (OF_PAGE**0.5 * page + (1 - OF_PAGE) ** 0.5 * rng.normal(size=pages)) for kind in KINDS}
    return {
        name: Scores(
            dict.fromkeys(KINDS, np.arange(pages)),
            {
                kind: (rng.normal(size=(len(level), pages)) < level + hard[kind]).astype(float)
                for kind, level in own.items()
            },
        )
        for name, own in trained.items()
    }


def rates(beyond: float, at: tuple[str, str] | None = None) -> Rates:
    """Arms of which each split is `beyond` its margins in every condition, but for the condition `at` (arm, kind), in
    which it is at its margin: there, GO is false."""
    made: dict[str, dict[str, float]] = {split: dict.fromkeys(KINDS, 0.6) for split in SPLITS}
    for other, margins in MARGINS.items():
        made[other] = {
            kind: 0.6 - margin - (0.0 if at == (other, kind) else beyond) for kind, margin in margins.items()
        }
    return made


def decisions(rng: np.random.Generator, truth: Rates, pages: int, runs: int) -> dict[str, float]:
    """The share of each decision in simulated experiments; half as many validation pages choose the split."""
    found = dict.fromkeys(("GO", "NO-GO", "INCONCLUSIVE"), 0.0)
    for _ in range(runs):
        trained = levels(rng, truth)
        split = best_split(simulated(rng, trained, pages // 2), SPLITS)
        found[decide(simulated(rng, trained, pages), split).decision] += 1 / runs
    return found


def simulate(
    pages: int = 400, runs: int = 500, seed: int = 0
) -> tuple[dict[str, float], dict[float, dict[str, float]]]:
    """False positives and power of the whole procedure.

    Returns:
        The share of GO where all arms are alike, and where all splits are exactly at the margin of one condition and
        far beyond all others; and, by how far one split is beyond all its margins (the other splits are like base
        tokens alone), the share of each decision.
    """
    rng = np.random.default_rng(seed)
    alike = {name: dict.fromkeys(KINDS, 0.5) for name in (*SPLITS, *MARGINS)}
    false = {"all arms alike": decisions(rng, alike, pages, runs)["GO"]}
    for other, margins in MARGINS.items():
        for kind, margin in margins.items():
            name = f"{100 * margin:+.0f} points against {other} on {kind}"
            false[name] = decisions(rng, rates(0.2, (other, kind)), pages, runs)["GO"]
    power = {}
    for beyond in (0.0, 0.05, 0.08, 0.10, 0.12, 0.15, 0.20, 0.25):
        truth = dict(rates(beyond))
        truth |= dict.fromkeys(SPLITS[1:], truth[ALONE])
        power[beyond] = decisions(rng, truth, pages, runs)
    return false, power
