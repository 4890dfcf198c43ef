"""Where runs of text stand that fill a page line by line, as words of a paragraph do. Lengths are px."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np


def flow(
    rng: np.random.Generator, widths: Sequence[float], *, width: float, rows: int, gap: float
) -> list[tuple[int, float]] | None:
    """Row and x of every run, in reading order; None where they do not fit.

    A page with room to spare uses it: lines are then broken early, stand in any of the rows, and leave wider gaps.

    Args:
        rng: the only source of randomness.
        widths: of the runs, each of which stays on one line.
        width: of a line.
        rows: how many lines there is room for.
        gap: least distance of two runs on a line.
    """
    least = sum(widths) / rows
    lines = _broken(widths, width, gap, enough=float(rng.uniform(least, max(least, width))))
    if len(lines) > rows:
        lines = _broken(widths, width, gap, enough=width)
    if len(lines) > rows or max(widths) > width:
        return None
    places: list[tuple[int, float]] = []
    for row, line in zip(np.sort(rng.permutation(rows)[: len(lines)]).tolist(), lines, strict=True):
        spare = width - sum(line) - gap * (len(line) - 1)
        shifts = np.sort(rng.uniform(0, spare, len(line))).tolist()
        starts = accumulate(line[:-1], lambda x, run: x + run + gap, initial=0.0)
        places += [(row, start + shift) for start, shift in zip(starts, shifts, strict=True)]
    return places


def _broken(widths: Sequence[float], width: float, gap: float, *, enough: float) -> list[list[float]]:
    """The runs in lines, each broken where it is full, or as soon as its runs are `enough` wide."""
    lines: list[list[float]] = []
    for run in widths:
        line = lines[-1] if lines else []
        if not line or sum(line) >= enough or sum(line) + gap * len(line) + run > width:
            lines.append([run])
        else:
            line.append(run)
    return lines
