"""Calibration: how well answers' probabilities agree with their accuracy, and weights that improve the agreement.

It is measured by the expected calibration error (Guo et al., 2017, https://arxiv.org/abs/1706.04599) in bins of equal
width.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .reporting import to_text

BINS = 5


def calibration(probabilities: np.ndarray, right: np.ndarray, refused: np.ndarray) -> dict[str, Any]:
    """The calibration of n answers.

    Args:
        probabilities: probabilities of the answers, 0..1.
        right: their scores, 0..1, or bool.
        refused: bool, the answers "not on the page".

    Returns:
        {"ece": mean over all answers of the distance between their bin's mean probability and mean score, "bins":
        {"n", "confidence", "accuracy"} of each of `BINS`, "refused": the same for the answers "not on the page"}. A
        mean over no answers is None.

    Raises:
        ValueError: no answers, or a probability outside 0..1.
    """
    if not len(probabilities) or not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError(f"probabilities: expected some within 0..1; got {probabilities}")
    number = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    bins = [_means(probabilities, right, number == each) for each in range(BINS)]
    distances = [own["n"] * abs(own["confidence"] - own["accuracy"]) for own in bins if own["n"]]
    return {"ece": sum(distances) / len(probabilities), "bins": bins, "refused": _means(probabilities, right, refused)}


_RIDGE = 1e-4
"""Weight of the distance from `_IDENTITY` in the loss. It keeps weights finite if right and wrong are separable."""

_IDENTITY = {"logit": 1.0, **dict.fromkeys(("legibility", "characters", "words", "refused", "bias"), 0.0)}
"""Weights of `answers.calibrated` that leave probabilities as they are."""


def fit_calibration(known: Sequence[Mapping[str, float]], right: np.ndarray) -> dict[str, float]:
    """Fits the weights of `answers.calibrated` to n answers, by the maximum likelihood of their scores.

    This is logistic regression. A higher probability, legibility or confidence of characters must not reduce the
    confidence: a negative weight of one of these becomes 0.

    Args:
        known: `Answer.evidence` of each.
        right: their scores, 0..1, or bool.

    Raises:
        ValueError: fewer than two answers, or all are right, or all are wrong.
    """
    if len(right) < 2 or right.min() == right.max():
        raise ValueError(f"calibration: expected right and wrong answers; got {len(right)}, alike")
    features = torch.tensor([[each[name] for name in _IDENTITY] for each in known], dtype=torch.float64)
    free = torch.ones(len(_IDENTITY), dtype=torch.bool)
    while True:
        weights = _likeliest(features, torch.tensor(right, dtype=torch.float64), free)
        below = weights < 0
        below[3:] = False
        if not below.any():
            return dict(zip(_IDENTITY, weights.tolist(), strict=True))
        free &= ~below


def _likeliest(features: Tensor, right: Tensor, free: Tensor) -> Tensor:
    """The maximum-likelihood weights [6] of features [n, 6] for scores `right` [n]; 0 where not `free` [6]."""
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


LEGEND = "ECE: expected calibration error. Then, by probability: mean probability / share right, % (answers)."


def calibration_text(rows: Iterable[tuple[list[str], Mapping[str, Any]]], head: list[str]) -> str:
    """A row for each result of `calibration`, whose first cells, under `head`, name the result; then `LEGEND`.

    The last column is omitted if no answer is "not on the page".
    """
    edges = [f"{100 * each // BINS}-{100 * (each + 1) // BINS} %" for each in range(BINS)]
    cells = [[*named, f"{100 * of['ece']:.1f}", *map(_cell, of["bins"]), _cell(of["refused"])] for named, of in rows]
    titles = [*head, "ECE, points", *edges, '"not on the page"']
    shown = len(titles) - all(row[-1] == "-" for row in cells)
    return f"{to_text(titles[:shown], [row[:shown] for row in cells])}\n{LEGEND}"


def _cell(found: Mapping[str, Any]) -> str:
    if not found["n"]:
        return "-"
    return f"{100 * found['confidence']:.1f} / {100 * found['accuracy']:.1f} ({found['n']})"
