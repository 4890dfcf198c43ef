"""Scores against how much a page says, and which share of a gap is recovered."""

from typing import Any

import numpy as np
import pytest

from arr_coc.data.records import Record
from arr_coc.evaluation.arms import Arm
from arr_coc.evaluation.predictions import Prediction
from arr_coc.evaluation.scores import Scored
from arr_coc.evaluation.statistics import bootstrap_ratio
from arr_coc.experiments.plots import curve_blocks, draw_curve
from arr_coc.experiments.scoring import Curve, score_curve

CURVE = Curve("density", "running", "floor", "ceiling")
IMAGES, LEVELS = 60, (50, 100, 200)
SHARES = {"floor": (0.9, 0.6, 0.2), "running": (0.9, 0.8, 0.7), "ceiling": (0.95, 0.85, 0.8)}
"""Exact matches of each arm by level."""


def record(number: int, level: int) -> Record:
    return Record(None, "?", ("yes",), (), number, (), (("density", str(level)),))  # type: ignore[arg-type]


def asked() -> tuple[list[Scored], list[Record]]:
    """20 images of each level with two questions each, of which each arm has its share right."""
    records = [record(number, LEVELS[number // 2 // 20]) for number in range(2 * IMAGES)]
    images, scored = np.arange(2 * IMAGES) // 2, []
    for name, shares in SHARES.items():
        tokens = 33 if name != "ceiling" else 272
        arm = Arm(name, "bound" if name == "ceiling" else "contest", "none", 0, "topk", 64, tokens)
        said = [Prediction(number, "", 0.0, tokens, 4, (8, 8), "AAA=") for number in range(2 * IMAGES)]
        right = np.concatenate([np.arange(40) < 40 * share for share in shares])[None].astype(float)
        nothing = np.full((1, 2 * IMAGES), np.nan)
        scored.append(Scored(arm, "exact_match", [said], right, nothing, images, np.zeros(2 * IMAGES, bool)))
    return scored, records


def test_a_level_has_every_arms_score_the_gap_and_what_is_recovered() -> None:
    curve = score_curve(*asked(), CURVE)
    assert [(level["characters"], level["n"], level["images"]) for level in curve["levels"]] == [
        (50, 40, 20), (100, 40, 20), (200, 40, 20),
    ]  # fmt: skip
    for number, level in enumerate(curve["levels"]):
        assert level["per_token"] == LEVELS[number] / 33
        for name, shares in SHARES.items():
            assert level["scores"][name]["value"] == pytest.approx(shares[number])
            assert level["scores"][name]["low"] <= shares[number] <= level["scores"][name]["high"]
    assert [level["recovered"] and round(level["recovered"]["value"], 4) for level in curve["levels"]] == [
        None, 0.8, 0.8333,
    ]  # fmt: skip
    assert curve["levels"][0]["gap"]["value"] == pytest.approx(0.05)  # too little to recover
    assert curve["all"]["n"] == 120 and curve["tokens"] == 33


def test_all_of_a_gap_and_none_of_it() -> None:
    gap = np.repeat([0.0, 1.0, 1.0, 0.0], 20)
    whole, nothing = bootstrap_ratio(gap, gap), bootstrap_ratio(0 * gap, gap)
    assert (whole.value, whole.low, whole.high) == (1, 1, 1) and (nothing.low, nothing.high) == (0, 0)
    half = bootstrap_ratio(gap * np.tile([0, 1], 40), gap)
    assert half.value == pytest.approx(0.5) and 0.25 < half.low < 0.5 < half.high < 0.75


def test_questions_of_one_image_are_drawn_together() -> None:
    rng = np.random.default_rng(0)
    few = np.repeat(rng.random(12) < 0.5, 10).astype(float)
    each = bootstrap_ratio(few, np.ones(120))
    together = bootstrap_ratio(few, np.ones(120), groups=np.repeat(np.arange(12), 10))
    assert together.value == each.value and together.high - together.low > 2 * (each.high - each.low)


@pytest.mark.parametrize(
    ("above", "below", "message"),
    [([1.0], [1.0, 2.0], "expected one per numerator"), ([1.0], [0.0], "a mean above 0; got 0")],
)
def test_ratios_that_mean_nothing_are_refused(above: list[float], below: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bootstrap_ratio(above, below)


def test_a_ratio_whose_denominator_may_be_nothing_is_not_known() -> None:
    interval = bootstrap_ratio([1.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    assert interval.value == 1 and interval.low == 0  # draws without the one image that tells anything


def shown() -> dict[str, Any]:
    scored, records = asked()
    arms = {of.arm.name: {"role": of.arm.role, "mean_tokens": float(of.arm.tokens)} for of in scored}
    return {"curve": score_curve(scored, records, CURVE), "arms": arms}


def test_the_plot_has_a_line_for_each_arm_at_its_scores() -> None:
    result = shown()
    tokens = {name: arm["mean_tokens"] for name, arm in result["arms"].items()}
    (axes,) = draw_curve(result["curve"], tokens, ["ceiling"], y_title="%").axes
    lines = {bar.get_label(): bar.lines[0] for bar in axes.containers}
    assert list(lines) == ["floor (33 tokens)", "running (33 tokens)", "ceiling (272 tokens)"]
    for line, shares in zip(lines.values(), SHARES.values(), strict=True):
        assert np.allclose(line.get_ydata(), 100 * np.array(shares))
        assert np.allclose(line.get_xdata(), np.array(LEVELS) / 33, atol=0.1)
    assert lines["ceiling (272 tokens)"].get_linestyle() == "--" != lines["running (33 tokens)"].get_linestyle()


def test_the_section_has_the_numbers_and_the_same_picture_every_time() -> None:
    (_, figure, scores, shares, _), (_, again, *_) = (curve_blocks(shown(), metric="exact match") for _ in range(2))
    assert figure == again
    assert scores.head[4:] == ["floor, %", "running, %", "ceiling, %"]  # type: ignore[union-attr]
    assert [row[0] for row in scores.rows] == ["50", "100", "200", "all"]  # type: ignore[union-attr]
    assert [row[2].partition(" ")[0] for row in shares.rows] == ["-", "80.0", "83.3", "77.8"]  # type: ignore[union-attr]
    assert curve_blocks({"arms": {}}, metric="exact match") == []
