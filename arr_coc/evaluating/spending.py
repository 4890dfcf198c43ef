"""What an arm's tokens went to: whether the question moves them, and whether hard questions get fewer.

Notation: n questions, R runs of an arm.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from .predictions import Prediction


def query_dependence(rows: Sequence[Sequence[Prediction]], groups: np.ndarray) -> float | None:
    """Mean Jaccard distance between what is fetched for two questions about one image: 0 the same patches, 1 no shared.

    Args:
        rows: R runs of n predictions.
        groups: int [n], the number of each question's image.

    Returns:
        None where no image has two questions, or nothing is fetched.
    """
    pairs = [
        pair
        for image in np.unique(groups)
        for pair in combinations(np.flatnonzero(groups == image).tolist(), 2)
    ]  # fmt: skip
    distances = []
    for row in rows:
        fetched = [set(prediction.indices) for prediction in row]
        for first, second in pairs:
            either = fetched[first] | fetched[second]
            if either:
                distances.append(1 - len(fetched[first] & fetched[second]) / len(either))
    return float(np.mean(distances)) if distances else None


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
