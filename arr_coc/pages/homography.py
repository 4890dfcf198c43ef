"""Homographies: the view of a flat page from an angle. Points are (x, y) in px."""

from __future__ import annotations

import math

import numpy as np

from ..modeling.image_processing_arr_coc import Box


def corners_of(box: Box) -> np.ndarray:
    """[4, 2]: upper left, upper right, lower right, lower left."""
    x0, y0, x1, y1 = box
    return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], np.float64)


def sample_quad(rng: np.random.Generator, width: float, height: float, *, turn: float, skew: float) -> np.ndarray:
    """Corners [4, 2] about the origin of a panel seen at an angle, of a rotation of at most `turn` degrees. Corners
    move by at most the share `skew` of the sides."""
    quad = corners_of((-width / 2, -height / 2, width / 2, height / 2))
    quad *= 1 - skew * rng.random((4, 2))
    angle = math.radians(float(rng.uniform(-turn, turn)))
    rotation = np.array([(math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))])
    turned: np.ndarray = quad @ rotation
    return turned


def homography(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The 3x3 matrix, with last entry 1, that maps four points to four others, float64 [4, 2] each."""
    rows, values = [], []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
        values += [u, v]
    return np.append(steady(np.linalg.solve(np.array(rows), np.array(values))), 1.0).reshape(3, 3)


def steady(values: np.ndarray) -> np.ndarray:
    """The values, rounded to 12 significant digits: solvers differ between CPUs in the last digits, pages must not."""
    return np.array([float(f"{value:.12g}") for value in values.tolist()])


def project(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points [n, 2], mapped by a homography."""
    mapped = np.column_stack([points, np.ones(len(points))]) @ matrix.T
    moved: np.ndarray = mapped[:, :2] / mapped[:, 2:]
    return moved


def bounds_of(points: np.ndarray) -> Box:
    """(x0, y0, x1, y1) around points [n, 2]."""
    (x0, y0), (x1, y1) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return x0, y0, x1, y1


def moved_box(matrix: np.ndarray, box: Box, size: tuple[int, int]) -> Box:
    """The axis-aligned box around a box mapped by a homography, clipped to a picture of a size (width, height)."""
    return bounds_of(project(matrix, corners_of(box)).clip(0, size))


def moved_boxes(matrix: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Axis-aligned boxes [n, 4] around boxes [n, 4] mapped by a homography."""
    corners = project(matrix, boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 2).astype(np.float64)).reshape(-1, 4, 2)
    around: np.ndarray = np.concatenate([corners.min(1), corners.max(1)], 1)
    return around
