"""Whether answers are right as often as their probabilities say."""

import numpy as np
import pytest

from arr_coc.evaluation.calibration import LEGEND, calibration, calibration_table
from arr_coc.evaluation.reporting import to_text

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


def test_a_calibrated_model_has_no_error() -> None:
    probabilities = np.repeat([0.1, 0.3, 0.5, 0.7, 0.9], 10)
    right = np.concatenate([np.arange(10) < 10 * share for share in (0.1, 0.3, 0.5, 0.7, 0.9)])
    assert calibration(probabilities, right, right)["ece"] == pytest.approx(0)


def test_the_table_shows_both_in_each_bin() -> None:
    table = calibration_table([(["all"], calibration(PROBABILITIES, RIGHT, REFUSED))], ["data"])
    head, row = to_text(table.head, table.rows).splitlines()
    assert "0-20 %" in head and "80-100 %" in head and "mean probability" in LEGEND
    assert row.split("  ")[0] == "all" and "11.9" in row and "26.7 / 33.3 (3)" in row
    assert row.endswith("95.0 / 66.7 (3)") and table.rows[0][4:6] == ["-", "-"]
    never = calibration_table([(["all"], calibration(PROBABILITIES, RIGHT, REFUSED & False))], ["data"])
    assert table.head[-1] == '"not on the page"' and never.head == table.head[:-1] and len(never.rows[0]) == 7


@pytest.mark.parametrize("probabilities", [[], [1.2], [float("nan")]])
def test_what_is_no_probability_is_refused(probabilities: list[float]) -> None:
    with pytest.raises(ValueError, match="probabilities: expected some within 0..1"):
        calibration(np.array(probabilities), np.ones(len(probabilities)), np.ones(len(probabilities), dtype=bool))
