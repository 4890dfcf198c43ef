"""Calibration: the agreement of answers' probabilities with their accuracy, and weights that improve it.

The expected calibration error (Guo et al., 2017, https://arxiv.org/abs/1706.04599) in bins of equal width.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..modeling.answers import SUREST
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


_RIDGE = 1e-4
"""Weight of the distance from `_IDENTITY` in the loss; it keeps weights finite if a line separates right from wrong."""

_IDENTITY = {"logit": 1.0, "legibility": 0.0, "not_on_the_page": 0.0, "bias": 0.0}
"""Weights of `answers.calibrated` that leave probabilities as they are."""


def fit_calibration(
    probabilities: np.ndarray, right: np.ndarray, refused: np.ndarray, legibility: Sequence[float | None]
) -> dict[str, float]:
    """The weights of `answers.calibrated` under which n answers are the likeliest to be right as they are.

    Logistic regression. Neither a higher probability nor a better legibility may make an answer less sure: a weight of
    them below 0 becomes 0.

    Args:
        probabilities: of their tokens, 0..1.
        right: their scores, 0..1, or bool.
        refused: bool, the answers "not on the page".
        legibility: of what was fetched for each; None where that is not known.

    Raises:
        ValueError: fewer than two answers, or all of them right, or all wrong.
    """
    if len(right) < 2 or right.min() == right.max():
        raise ValueError(f"calibration: expected right and wrong answers; got {len(right)}, alike")
    sure = torch.tensor(probabilities, dtype=torch.float64).clamp(SUREST, 1 - SUREST).logit()
    read = torch.tensor([0.0 if each is None else each - 1 for each in legibility], dtype=torch.float64)
    features = torch.stack((sure, read, torch.tensor(refused).double(), torch.ones_like(sure)), 1)
    free = torch.ones(len(_IDENTITY), dtype=torch.bool)
    while True:
        weights = _likeliest(features, torch.tensor(right, dtype=torch.float64), free)
        below = weights < 0
        below[2:] = False
        if not below.any():
            return dict(zip(_IDENTITY, weights.tolist(), strict=True))
        free &= ~below


def _likeliest(features: Tensor, right: Tensor, free: Tensor) -> Tensor:
    """The weights [4] of features [n, 4] under which n answers are `right`, 0 where they are not `free`."""
    usual = torch.tensor([*_IDENTITY.values()], dtype=torch.float64)
    weights = (usual * free).requires_grad_()
    search = torch.optim.LBFGS([weights], max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        total = F.binary_cross_entropy_with_logits(features @ (weights * free), right)
        total = total + _RIDGE * ((weights - usual)[free] ** 2).sum()
        total.backward()
        return total

    with torch.enable_grad():
        search.step(loss)
    return weights.detach() * free


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
