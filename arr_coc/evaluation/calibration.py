"""Calibration: the agreement of answers' probabilities with their accuracy.

The expected calibration error (Guo et al., 2017, https://arxiv.org/abs/1706.04599) in bins of equal width.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .reporting import Table

BINS = 5


def calibration(probabilities: np.ndarray, right: np.ndarray, refused: np.ndarray) -> dict[str, Any]:
    """The calibration of the confidence of answers.

    Args:
        probabilities: of n answers, 0..1.
        right: their scores, 0..1, or bool.
        refused: bool, the answers "not on the page".

    Returns:
        {"ece": mean over all answers of the distance between their bin's mean probability and mean score, "bins": of
        each of `BINS` {"n", "confidence", "accuracy"}, "refused": the same of the answers "not on the page"}; means
        over no answers are None.

    Raises:
        ValueError: no answers, or a probability outside 0..1.
    """
    if not len(probabilities) or not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError(f"probabilities: expected some within 0..1; got {probabilities}")
    number = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    bins = [_means(probabilities, right, number == each) for each in range(BINS)]
    distances = [own["n"] * abs(own["confidence"] - own["accuracy"]) for own in bins if own["n"]]
    return {
        "ece": sum(distances) / len(probabilities),
        "bins": bins,
        "refused": _means(probabilities, right, refused),
    }


def _means(probabilities: np.ndarray, right: np.ndarray, among: np.ndarray) -> dict[str, Any]:
    means = (float(values[among].mean()) if among.any() else None for values in (probabilities, right))
    return {"n": int(among.sum()), **dict(zip(("confidence", "accuracy"), means, strict=True))}


def calibration_table(rows: Iterable[tuple[list[str], Mapping[str, Any]]], head: list[str]) -> Table:
    """A row for each result of `calibration`, behind the cells that name it under `head`.

    The last column is left out if no answer is "not on the page".
    """
    edges = [f"{100 * each // BINS}-{100 * (each + 1) // BINS} %" for each in range(BINS)]
    cells = [
        [*named, f"{100 * found['ece']:.1f}", *map(_cell, found["bins"]), _cell(found["refused"])]
        for named, found in rows
    ]
    titles = [*head, "ECE, points", *edges, '"not on the page"']
    shown = len(titles) - all(row[-1] == "-" for row in cells)
    return Table(titles[:shown], [row[:shown] for row in cells])


LEGEND = "ECE: expected calibration error. Then, by probability: mean probability / share right, % (answers)."
"""The note below a `calibration_table`."""


def _cell(found: Mapping[str, Any]) -> str:
    if not found["n"]:
        return "-"
    return f"{100 * found['confidence']:.1f} / {100 * found['accuracy']:.1f} ({found['n']})"
