"""Simulated photographs of pages: at an angle, in uneven light, a little out of focus, and compressed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from PIL import Image, ImageFilter

from ...modeling.image_processing_arr_coc import Box
from ..homography import bounds_of, corners_of, homography, project, sample_quad, steady
from .domain import Page
from .glyphs import Glyph, text_unit
from .rasterising import compressed


def paste_warped(page: Image.Image, panel: Image.Image, alpha: Image.Image, matrix: np.ndarray) -> None:
    """Pastes a panel with mask `alpha` onto the page by the homography from panel to page."""
    x0, y0, x1, y1 = bounds_of(project(matrix, corners_of((0, 0, panel.width, panel.height))))
    left, top = math.floor(x0), math.floor(y0)
    size = (math.ceil(x1) - left, math.ceil(y1) - top)
    shift = np.array([(1, 0, left), (0, 1, top), (0, 0, 1)], np.float64)
    back = np.linalg.inv(matrix) @ shift
    coefficients = steady((back / back[2, 2]).reshape(-1)[:8]).tolist()
    colours, cover = (
        layer.transform(size, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC)
        for layer in (panel, alpha)
    )
    page.paste(colours, (left, top), cover)


_TURN, _SKEW = 5.0, 0.05  # at most: degrees of rotation, share of the sides by which corners move
_FILLED = (0.9, 1.0)  # share of the picture that the page fills
_SHADOW = 0.45  # at most: share of the light that a shadow removes
_BLUR = 0.6  # px at most on a page of 256 px, whose letters are 11 px high at least
_NOISE = 6.0  # of 255, at most
_QUALITY = (40, 90)  # of JPEG


def photograph(rng: np.random.Generator, page: Page) -> Page:
    """A photograph of a square page, of the same size, with the boxes of questions and characters mapped.

    Boxes are axis-aligned around the mapped corners, clipped to the picture.
    """
    size = page.image.width
    matrix = _view(rng, size)
    picture = _ground(rng, size)
    cover = Image.new("L", (size, size), 0)
    cover.paste(255, (1, 1, size - 1, size - 1))  # without the outermost pixels, so that its edge is smooth
    paste_warped(picture, page.image.convert("RGB"), cover, matrix)
    picture = _lit(rng, picture)
    picture = picture.filter(ImageFilter.GaussianBlur(text_unit(size) * float(rng.uniform(0, _BLUR))))
    picture = _compressed(rng, _noisy(rng, picture))

    def seen(box: Box) -> Box:
        return bounds_of(project(matrix, corners_of(box)).clip(0, size))

    glyphs = tuple(Glyph(glyph.char, seen(glyph.box)) for glyph in page.glyphs)
    return replace(page, image=picture, questions=tuple(each.moved(seen) for each in page.questions), glyphs=glyphs)


def _view(rng: np.random.Generator, size: int) -> np.ndarray:
    """The homography from page to picture; the whole page is visible and fills most of the picture."""
    quad = sample_quad(rng, size, size, turn=_TURN, skew=_SKEW)
    left, top, right, bottom = bounds_of(quad)
    quad *= float(rng.uniform(*_FILLED)) * size / max(right - left, bottom - top)
    left, top, right, bottom = bounds_of(quad)
    x, y = float(rng.uniform(-left, size - right)), float(rng.uniform(-top, size - bottom))
    return homography(corners_of((0, 0, size, size)), quad + (x, y))


def _ground(rng: np.random.Generator, size: int) -> Image.Image:
    """The background below the page: a muted colour with a coarse texture."""
    cells = int(rng.integers(4, 20))
    colour = rng.uniform(20, 235) + rng.uniform(-30, 30, 3)
    texture = colour + rng.uniform(5, 30) * rng.standard_normal((cells, cells, 1))
    coarse = Image.fromarray(texture.clip(0, 255).astype(np.uint8))
    return coarse.resize((size, size), Image.Resampling.BICUBIC)


def _lit(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    """The picture in coloured light with a gradient and an optional soft shadow."""
    size = picture.width
    at = np.linspace(-1, 1, size)
    across, along = np.meshgrid(at, at)

    def distance() -> np.ndarray:
        """[size, size]: signed distance from a random line through the picture's middle, -1.4 to 1.4."""
        angle = float(rng.uniform(0, 2 * math.pi))
        return math.cos(angle) * across + math.sin(angle) * along

    light = 1 - float(rng.uniform(0, 0.15)) * (distance() + 1.4) / 2.8
    if rng.random() < 0.6:
        edge, softness = float(rng.uniform(-0.8, 0.8)), float(rng.uniform(0.02, 0.3))
        light *= 1 - float(rng.uniform(0.1, _SHADOW)) / (1 + np.exp(-(distance() - edge) / softness))
    colour = 1 - rng.uniform(0, 0.12, 3)
    return _from_levels(np.asarray(picture) * light[:, :, None] * colour)


def _noisy(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    strength = float(rng.uniform(0, _NOISE))
    return _from_levels(np.asarray(picture) + strength * rng.standard_normal((picture.height, picture.width, 1)))


def _compressed(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    return compressed(picture, int(rng.integers(*_QUALITY)))


def _from_levels(levels: np.ndarray) -> Image.Image:
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))
