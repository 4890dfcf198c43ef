"""Comparisons of arms and decisions by rules: intervals decide; luck and copies do not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny_config

from arr_coc.data.records import Record
from arr_coc.evaluation.arms import LADDER, make_arms
from arr_coc.evaluation.predictions import Prediction
from arr_coc.evaluation.scores import Scored, compare, compare_all, distinct_items, score_arm
from arr_coc.experiments.scoring import (
    DEFAULT_RULES,
    check_rules,
    compared,
    decide,
    missing_arms,
    score_experiment,
    worst,
)


def scored(name: str, rows: list[list[float]]) -> Scored:
    """Every question about an image of its own."""
    (arm,) = make_arms(tiny_config(), [name], seeds=range(len(rows)))
    said = Prediction(1, "", 0.5, 33, 4, (9, 9), "")
    predictions, images = [[said] * len(row) for row in rows], np.arange(len(rows[0]))
    return Scored(
        arm,
        "exact_match",
        predictions,
        np.array(rows, dtype=float),
        np.ones((len(rows), len(rows[0]))),
        images,
        np.zeros(len(rows[0]), dtype=bool),
    )


def test_several_seeds_are_compared_by_their_mean() -> None:
    ours = scored("none", [[1] * 10])
    theirs = scored("random", [[0] * 10, [1] * 4 + [0] * 6])
    comparison = compare(ours, theirs)
    assert (comparison["gained"], comparison["lost"]) == (10, 0)
    assert comparison["difference"]["value"] == pytest.approx(0.8) and comparison["p"] < 0.01


def test_a_family_of_comparisons_says_what_it_could_have_seen() -> None:
    arms = [scored(name, [np.random.default_rng(i).integers(0, 2, 40).tolist()]) for i, name in enumerate(LADDER[:3])]
    one, _ = compare_all([(arms[0], arms[1]), (arms[0], arms[2])])
    assert one["p_holm"] >= one["p"] and not one["significant"]
    assert 0.2 < one["detectable"] < 0.8
    few = scored("none", [[1] * 19]), scored("saliency", [[0] * 19])
    enough = scored("none", [[1] * 20]), scored("saliency", [[0] * 20])
    assert [compare_all([pair])[0]["significant"] for pair in (few, enough)] == [False, True]


def test_the_worst_fall_behind_most() -> None:
    arms = [scored("none", [[1, 0, 1, 0]]), scored("realizer", [[1, 0, 0, 1]])]
    assert worst(arms, "realizer", 9) == [2, 1]
    assert worst(arms, "realizer", 1) == [2]


def differences(**intervals: tuple[float, float]) -> Any:
    """random=(1, 3) -> of realizer and random the interval 1 to 3 in points, significant where 0 is outside."""

    def compare(first: str, second: str) -> Any:
        low, high = intervals[second if first == "realizer" else f"{first}_{second}"]
        difference = {"value": (low + high) / 200, "low": low / 100, "high": high / 100}
        return {"difference": difference, "significant": low > 0 or high < 0}

    return compare


CLEAR, OPEN, NOTHING = (9.0, 12.0), (-1.0, 9.0), (-1.0, 1.5)
OTHERS = ("none", "random", "saliency", "uniform", "larger", "smaller", "patches_only")


@pytest.mark.parametrize(
    ("intervals", "decision"),
    [
        ({}, "GO"),
        *(({name: (1.9, 9.0)}, "CANNOT SAY") for name in OTHERS),  # above, but not by two points
        *(({name: NOTHING}, "NO-GO") for name in OTHERS[1:]),
        (dict.fromkeys(OTHERS, OPEN) | {"none": NOTHING}, "STOP"),
        (dict.fromkeys(OTHERS, OPEN), "CANNOT SAY"),
    ],
)
def test_the_interval_decides(intervals: dict[str, tuple[float, float]], decision: str) -> None:
    """GO: above a floor of as many tokens, a smaller image, blind patches and patches without a base."""
    arms = [*OTHERS, "realizer"]
    compare = differences(**{**dict.fromkeys(OTHERS, CLEAR), **intervals}, saliency_random=OPEN)
    outcome = decide(DEFAULT_RULES, arms, compare, images=20)
    assert outcome["decision"] == decision and outcome["notes"] == []
    few = decide(DEFAULT_RULES, arms, compare, images=19)
    assert few["decision"] == "NO VERDICT" and "at least 20 different images" in few["text"]


def test_go_needs_every_rival() -> None:
    """A floor that was never run is not beaten."""
    assert missing_arms(DEFAULT_RULES, [*LADDER, "uniform", "larger", "smaller"]) == ["patches_only"]
    assert not missing_arms(DEFAULT_RULES, [arm.name for arm in make_arms(tiny_config())])


def test_a_lucky_answer_of_random_changes_no_decision() -> None:
    """GO once turned to STOP when two lucky hits of random fell away: its mean was then not above that of none."""
    rng = np.random.default_rng(0)
    answers = {
        "none": np.zeros(60),
        "saliency": rng.random(60) < 0.1,
        **dict.fromkeys(("uniform", "larger", "smaller", "patches_only"), np.zeros(60)),
        "realizer": rng.random(60) < 0.8,
    }
    decisions = []
    for lucky in (0, 2):
        arms = {name: scored(name, [row.astype(float).tolist()]) for name, row in answers.items()}
        arms["random"] = scored("random", [[1.0] * lucky + [0.0] * (60 - lucky)])
        pairs = [pair for pair in compared(DEFAULT_RULES) if set(pair) <= set(arms)]
        known = dict(zip(pairs, compare_all([(arms[a], arms[b]) for a, b in pairs]), strict=True))
        decisions.append(decide(DEFAULT_RULES, list(arms), lambda a, b: known[a, b], images=60)["decision"])  # noqa: B023
    assert decisions == ["GO", "GO"]


def test_one_question_copied_twelve_times_gives_no_verdict() -> None:
    record = Record(Path("page.png"), "What is the total?", ("9",))
    records = [replace(record, image=Path(f"copy-{number}.png"), line=number) for number in range(12)]
    answers = {"realizer": "9", "none": "8"}
    said = {name: Prediction(1, answer, 0.5, 33, 4, (9, 9), "", "digest") for name, answer in answers.items()}
    items = distinct_items(records, [said["none"]] * 12)
    assert (len(items.records), items.number_of_images, items.copies) == (1, 1, 11)
    rule = {"decision": "GO", "if": {"arm": "realizer", "above": "none", "by": 2}}
    rules = {"rules": [rule], "otherwise": {"decision": "NO"}}
    arms = [
        score_arm(make_arms(tiny_config(), [name])[0], [[answer] * 12], items, "exact_match", 4)
        for name, answer in said.items()
    ]
    result = score_experiment(arms, items, rules, 4)
    assert (result["n"], result["copies"], result["decision"]["decision"]) == (1, 11, "NO VERDICT")
    assert not result["comparisons"][0]["significant"]


def test_more_points_than_asked_but_within_chance_are_not_enough() -> None:
    rules = {
        "rules": [{"decision": "GO", "if": {"arm": "realizer", "above": "b", "by": 2}}],
        "otherwise": {"decision": "NO"},
        "notes": [
            {"if": {"arm": "realizer", "not_above": "c"}},
            {"if": {"arm": "realizer", "not_above": "d"}},
        ],
    }
    check_rules(rules)
    assert compared(rules) == [("realizer", "b"), ("realizer", "c"), ("realizer", "d")]
    assert missing_arms(rules, ["realizer", "c"]) == ["b"]
    outcome = decide(rules, ["realizer", "b", "c"], differences(b=(1.0, 9.0), c=(-5.0, 2.0)), images=50)
    assert outcome == {
        "decision": "NO",
        "text": "No rule holds. Open: realizer against b, +5.0 [+1.0, +9.0] points.",
        "because": [("realizer", "b")],
        "notes": ["realizer is not above c by more than 2 points: -1.5 [-5.0, +2.0]."],
    }


@pytest.mark.parametrize(
    ("intervals", "says"),
    [
        ({}, "realizer is above none, floor and patches, by more than 2 points."),
        ({"floor": NOTHING}, "realizer is not above floor by more than 2 points: +0.2 [-1.0, +1.5]."),
        ({"patches": (-15.2, -10.3)}, "realizer is below patches: -12.8 [-15.2, -10.3] points."),
        ({"floor": OPEN}, "No rule holds. Open: realizer against floor, +4.0 [-1.0, +9.0] points."),
    ],
)
def test_a_decision_says_what_was_measured(intervals: dict[str, tuple[float, float]], says: str) -> None:
    """A rule once said of patches that answered 12.7 points more that they answer as many, to within two points."""
    others = ("none", "floor", "patches")
    rules = {
        "rules": [
            {"decision": "GO", "if": {"arm": "realizer", "above": list(others), "by": 2}},
            *({"decision": "NO-GO", "if": {"arm": "realizer", "not_above": other}} for other in others),
        ],
        "otherwise": {"decision": "CANNOT SAY"},
    }
    check_rules(rules)
    compare = differences(**{**dict.fromkeys(others, CLEAR), **intervals})
    assert decide(rules, [*others, "realizer"], compare, images=20)["text"] == says


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (None, "rules: expected a list of rules"),
        ({"rules": [{"decision": "GO"}]}, r"rules\[0\]: expected if with arm, above and by .*; got None"),
        (
            {"rules": [{"decision": "GO", "if": {"arm": "a", "above": "b"}}]},
            r"rules\[0\]: expected if .* above and by",
        ),
        (
            {"rules": [{"if": {"arm": "a", "not_above": "b"}}]},
            r"rules\[0\]: expected decision, a string",
        ),
        (
            {"rules": [{"decision": "GO", "if": {"arm": "a", "not_above": "b"}}]},
            "otherwise: expected decision, a string; got None",
        ),
        (
            {"rules": [{"decision": "GO", "text": "It pays.", "if": {"arm": "a", "not_above": "b"}}]},
            r"rules\[0\]: expected no text, which is made from what is measured; got 'It pays.'",
        ),
    ],
)
def test_bad_rules_are_refused(rules: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_rules(rules)
