"""What an arm's tokens went to: whether the question moves them, and whether hard questions get fewer.

Notation: n questions, R runs of an arm.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from ..metrics import fetch_distances
from .predictions import Prediction


def query_dependence(rows: Sequence[Sequence[Prediction]], groups: np.ndarray) -> float | None:
    """Mean Jaccard distance between what is fetched for two questions about one image: 0 the same patches, 1 no shared.

    Args:
        rows: R runs of n predictions.
        groups: int [n], the number of each question's image.

    Returns:
        None where no image has two questions, or nothing is fetched.
    """
    distances: list[float] = []
    for image in np.unique(groups):
        places = np.flatnonzero(groups == image).tolist()
        if len(places) < 2:
            continue
        upper = torch.triu_indices(len(places), len(places), offset=1)
        for row in rows:
            masks = np.stack([row[place].mask for place in places])
            distances += fetch_distances(torch.from_numpy(masks))[upper[0], upper[1]].tolist()
    known = [distance for distance in distances if not math.isnan(distance)]
    return float(np.mean(known)) if known else None


def misallocated(rows: Sequence[Sequence[Prediction]], hard: np.ndarray) -> float | None:
    """Share of the hard questions that got fewer tokens than the median question of their run.

    Args:
        rows: R runs of n predictions.
        hard: bool [n].

    Returns:
        None where all questions of a run get the same number, or none is hard.
    """
    tokens = np.array([[prediction.tokens for prediction in row] for row in rows])
    if not hard.any() or (tokens == tokens[:, :1]).all():
        return None
    return float((tokens < np.median(tokens, axis=1, keepdims=True))[:, hard].mean())


def token_ranges(row: Sequence[Prediction], parts: int = 4) -> list[str]:
    """The quarter of the run's numbers of tokens that each question's falls into, as "120 to 140".

    "" where all questions got the same number. Equal numbers always stand together.
    """
    tokens = np.array([prediction.tokens for prediction in row])
    if tokens.min() == tokens.max():
        return [""] * len(row)
    edges = np.unique(np.quantile(tokens, np.arange(1, parts) / parts, method="lower"))
    place = np.searchsorted(edges, tokens, side="left")
    width = len(str(tokens.max()))
    named = {}
    for part in np.unique(place):
        low, high = tokens[place == part].min(), tokens[place == part].max()
        named[part] = f"{low:>{width}} to {high}" if low < high else f"{low:>{width}}"
    return [named[part] for part in place]
