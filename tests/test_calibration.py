"""Whether answers are right as often as their probabilities say, and the fit that brings these closer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import refuses, tiny_config, tiny_model
from PIL import Image

from arr_coc import ArrCocConfig
from arr_coc.evaluation.calibration import calibration, fit_calibration
from arr_coc.modeling.answers import budget_warning, calibrated, evidence
from arr_coc.modeling.prompt_format import NOT_ON_THE_PAGE

PROBABILITIES = np.array([0.1, 0.25, 0.35, 0.8, 0.9, 1.0, 0.2, 0.95])
RIGHT = np.array([0, 1, 0, 1, 1, 0, 0, 1])
REFUSED = PROBABILITIES >= 0.9


def test_calibration_by_hand() -> None:
    found = calibration(PROBABILITIES, RIGHT, REFUSED)
    assert [own["n"] for own in found["bins"]] == [1, 3, 0, 0, 4]
    confidence, accuracy = ([own[name] for own in found["bins"]] for name in ("confidence", "accuracy"))
    assert confidence == [pytest.approx(0.1), pytest.approx(0.8 / 3), None, None, pytest.approx(3.65 / 4)]
    assert accuracy == [0, pytest.approx(1 / 3), None, None, 0.75]
    assert found["ece"] == pytest.approx((0.1 + 0.2 + 0.65) / 8)
    assert found["refused"] == {"n": 3, "confidence": pytest.approx(0.95), "accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize("probabilities", [[], [1.2], [float("nan")]])
def test_what_is_no_probability_is_refused(probabilities: list[float]) -> None:
    with pytest.raises(ValueError, match="probabilities: expected some within 0..1"):
        calibration(np.array(probabilities), np.ones(len(probabilities)), np.ones(len(probabilities), dtype=bool))


# ---- the fit
TRUE = {"logit": 0.6, "legibility": 4.0, "characters": 3.0, "words": -1.0, "refused": -1.5, "bias": 1.0}


def answers(seed: int, count: int = 8000) -> tuple[np.ndarray, np.ndarray, list[dict[str, float]]]:
    """Probabilities, scores, evidence: too sure, the more the longer and the less legible."""
    rng = np.random.default_rng(seed)
    told, own = 1 / (1 + np.exp(-rng.normal(2, 2, count))), ("a", "a b", "a b c", NOT_ON_THE_PAGE)
    texts = [own[number] for number in rng.integers(4, size=count)]
    read = rng.uniform(0.3, 1, (count, 2)).tolist()
    known = [
        evidence(float(own), text=text, legibility=legible, characters=characters)
        for own, text, (legible, characters) in zip(told, texts, read, strict=True)
    ]
    return told, rng.random(count) < sure(TRUE, told, known), known


def sure(weights: dict[str, float], told: np.ndarray, known: list[dict[str, float]]) -> np.ndarray:
    return np.array([calibrated(own, weights, each) for own, each in zip(told.tolist(), known, strict=True)])


def test_the_fit_finds_the_weights_and_lowers_the_error_on_other_answers() -> None:
    _, right, known = answers(0)
    weights = fit_calibration(known, right)
    assert weights == {name: pytest.approx(value, abs=0.5) for name, value in TRUE.items()}
    told, right, known = answers(1)
    before = calibration(told, right, right)["ece"]
    after = calibration(sure(weights, told, known), right, right)["ece"]
    assert before > 0.1 and after < 0.03


def test_no_calibration_changes_nothing_and_weights_are_kept_with_the_config(tmp_path: Path) -> None:
    config = tiny_config()
    assert config.calibration is None and calibrated(0.3, None, {}) == 0.3
    identity = {"logit": 1, "legibility": 0, "words": 0, "bias": 0}  # of a config of an earlier version
    assert calibrated(0.3, identity, evidence(0.3, text="", legibility=0.1, characters=0.4)) == pytest.approx(0.3)
    for weights in (TRUE, identity):
        tiny_config(calibration=weights).save_pretrained(tmp_path)
        assert ArrCocConfig.from_pretrained(tmp_path).calibration == weights


@pytest.mark.parametrize(
    "weights", [{}, {**TRUE, "logit": -1.0}, {**TRUE, "bias": float("nan")}, {**TRUE, "bias": "1"}]
)
def test_other_weights_are_refused(weights: Any) -> None:
    refuses("calibration: expected a number up to 1000 for each of logit, legibility", tiny_config, calibration=weights)


@pytest.mark.parametrize(
    ("choices", "few"),
    [({"budget": 0}, 0), ({"budget": 1}, 1), ({"budget": "fast"}, None), ({"strategy": "none"}, None)],
)
def test_an_answer_from_few_patches_is_warned_of(choices: dict[str, Any], few: int | None) -> None:
    """A value that was cut had a high probability."""
    answer = tiny_model().generate(Image.effect_noise((64, 64), 80), "What?", return_fetch=True, **choices)
    expected = "" if few is None else f"few patches were fetched ({few}): the answer may be cut"
    assert budget_warning(answer.fetch) == expected and answer.warning.startswith(expected)
