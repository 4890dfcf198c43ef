"""Clusters of relevance maps: which questions look at a page in like ways.

Notation: n questions, S side of a map, D = S*S.
"""

from typing import Any

import numpy as np
from PIL import Image

from ..evaluation.reporting import require_extra
from ..modeling.image_processing_arr_coc import fit_square

MAP_SIDE = 16
"""S: pages of all shapes are stretched to maps of this side, so that a place on one is a place on all."""

RESTARTS = 8
"""Runs of k-means, of which the best counts."""

STEPS = 50
"""Of one run, at most."""


def on_page(relevance: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Relevance [G, G] of a padded square -> [S, S] of the image alone, each the mean of what lies under it.

    Args:
        relevance: float.
        size: (height, width) of the image, px.
    """
    side, step = len(relevance), 64
    placed = fit_square(*size, side * step)
    (top, left), (height, width) = placed.offset, placed.size
    box = (left / step, top / step, (left + width) / step, (top + height) / step)
    grid = Image.fromarray(np.ascontiguousarray(relevance, dtype=np.float32))
    return np.asarray(grid.resize((MAP_SIDE, MAP_SIDE), Image.Resampling.BOX, box=box))


def as_distribution(maps: np.ndarray) -> np.ndarray:
    """Maps [n, D], at least 0, as shares of their sums; a map of zeros stays one."""
    total = maps.sum(1, keepdims=True)
    return np.divide(maps, total, out=np.zeros_like(maps, dtype=np.float64), where=total > 0)


def effective_share(maps: np.ndarray) -> np.ndarray:
    """[n] over how much of the page relevance [n, D] spreads: e to its entropy, over D. 1: evenly everywhere."""
    share = as_distribution(maps)
    logs = np.log(np.where(share > 0, share, 1.0))
    return np.exp(-(share * logs).sum(1)) / maps.shape[1]


def cluster_maps(maps: np.ndarray, count: int, *, seed: int = 0) -> np.ndarray:
    """Which cluster each map is in: int [n], 0 the largest cluster.

    k-means (scipy's, begun by k-means++) on the roots of the maps' shares, so that distances are Hellinger's and the
    scale of a map does not count; the best of several runs, the same for the same seed.

    Args:
        maps: float [n, D], at least 0.
        count: clusters; fewer where fewer maps differ.
        seed: of where the runs begin.

    Raises:
        ValueError: less than one cluster, or scipy is not installed.
    """
    if count < 1:
        raise ValueError(f"clusters: expected at least 1; got {count}")
    require_extra("scipy.cluster.vq", "clusters")
    points = np.sqrt(as_distribution(maps))
    for wanted in range(min(count, len(np.unique(points, axis=0))), 1, -1):
        labels = _best_run(points, wanted, seed)
        if labels is not None:
            return _largest_first(labels)
    return np.zeros(len(maps), dtype=np.int64)


def _best_run(points: np.ndarray, count: int, seed: int) -> np.ndarray | None:
    """Labels of the run whose clusters are tightest; None where each run left a cluster empty."""
    from scipy.cluster.vq import ClusterError, kmeans2

    draws: Any = np.random.default_rng(seed)
    best, least = None, np.inf
    for _ in range(RESTARTS):
        try:
            centres, labels = kmeans2(points, count, iter=STEPS, minit="++", missing="raise", seed=draws)
        except ClusterError:
            continue
        inertia = float(np.square(points - centres[labels]).sum())
        if inertia < least:
            best, least = labels, inertia
    return best


def _largest_first(labels: np.ndarray) -> np.ndarray:
    """Clusters renumbered by size; of equal ones that of the earliest member first."""
    _, first, inverse, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    order = np.lexsort((first, -sizes))
    return np.argsort(order)[inverse]


def most_typical(maps: np.ndarray, members: np.ndarray, count: int) -> list[int]:
    """Of a cluster's `members` (places in `maps` [n, D]) those nearest to its centre, the nearest first."""
    points = np.sqrt(as_distribution(maps[members]))
    distances = np.square(points - points.mean(0)).sum(1)
    return [int(members[place]) for place in np.argsort(distances, kind="stable")[:count]]
