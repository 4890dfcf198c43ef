"""Flat panels seen at an angle: homographies between a panel and the page. Points are (x, y) in px."""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from ...modeling.image_processing_arr_coc import Box

_INK = 64  # of 255: fainter pixels do not count as visible ink


def corners_of(box: Box) -> np.ndarray:
    """[4, 2] upper left, upper right, lower right, lower left."""
    x0, y0, x1, y1 = box
    return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], np.float64)


def sample_quad(rng: np.random.Generator, width: float, height: float, *, turn: float, skew: float) -> np.ndarray:
    """Corners [4, 2] about the origin of a `width` x `height` panel seen at an angle.

    Args:
        rng: the only source of randomness.
        width, height: px.
        turn: at most so many degrees of rotation.
        skew: at most such a share of the sides' lengths by which corners move.
    """
    quad = corners_of((-width / 2, -height / 2, width / 2, height / 2))
    quad *= 1 - skew * rng.random((4, 2))
    angle = math.radians(float(rng.uniform(-turn, turn)))
    rotation = np.array([(math.cos(angle), math.sin(angle)), (-math.sin(angle), math.cos(angle))])
    turned: np.ndarray = quad @ rotation
    return turned


def homography(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The 3x3 matrix, its last entry 1, that takes four points to four others, float64 [4, 2] each."""
    rows, values = [], []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        rows += [(x, y, 1, 0, 0, 0, -u * x, -u * y), (0, 0, 0, x, y, 1, -v * x, -v * y)]
        values += [u, v]
    return np.append(_steady(np.linalg.solve(np.array(rows), np.array(values))), 1.0).reshape(3, 3)


def _steady(values: np.ndarray) -> np.ndarray:
    """The values to 12 significant digits: solvers differ in the last ones from CPU to CPU, and pages may not."""
    return np.array([float(f"{value:.12g}") for value in values.tolist()])


def project(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Points [n, 2] where a homography takes them."""
    mapped = np.column_stack([points, np.ones(len(points))]) @ matrix.T
    moved: np.ndarray = mapped[:, :2] / mapped[:, 2:]
    return moved


def bounds_of(points: np.ndarray) -> Box:
    """(x0, y0, x1, y1) around points [n, 2]."""
    (x0, y0), (x1, y1) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return x0, y0, x1, y1


def paste_warped(page: Image.Image, panel: Image.Image, alpha: Image.Image, matrix: np.ndarray) -> None:
    """Lays a panel, where `alpha` covers it, on the page as the homography from panel to page says."""
    x0, y0, x1, y1 = bounds_of(project(matrix, corners_of((0, 0, panel.width, panel.height))))
    left, top = math.floor(x0), math.floor(y0)
    size = (math.ceil(x1) - left, math.ceil(y1) - top)
    shift = np.array([(1, 0, left), (0, 1, top), (0, 0, 1)], np.float64)
    back = np.linalg.inv(matrix) @ shift
    coefficients = _steady((back / back[2, 2]).reshape(-1)[:8]).tolist()
    colours, cover = (
        layer.transform(size, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC)
        for layer in (panel, alpha)
    )
    page.paste(colours, (left, top), cover)


def ink_box(coverage: np.ndarray, box: Box, matrix: np.ndarray, size: int) -> Box:
    """Where on a page of `size` px the ink in a box of a flat layer, uint8 [height, width], comes to lie.

    A pixel of slack, clipped to the page.
    """
    x0, y0, x1, y1 = (round(edge) for edge in box)
    rows, columns = np.nonzero(coverage[y0:y1, x0:x1] >= _INK)
    if not len(rows):
        return bounds_of(project(matrix, corners_of(box)).clip(0, size))
    points = project(matrix, np.column_stack([columns + x0 + 0.5, rows + y0 + 0.5]))
    left, top, right, bottom = bounds_of(points)
    return (
        max(0.0, math.floor(left - 1.5)),
        max(0.0, math.floor(top - 1.5)),
        min(float(size), math.ceil(right + 1.5)),
        min(float(size), math.ceil(bottom + 1.5)),
    )
