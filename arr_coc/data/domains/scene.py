"""Drawn backgrounds for signs: streets, walls, parks, with clutter. Lengths are px; each fills a square page."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from .page import Layouts

Fill = tuple[int, int, int]
Scene = Callable[[np.random.Generator, int], Image.Image]


def _near(rng: np.random.Generator, base: Fill, spread: int = 20) -> Fill:
    """A colour that differs from `base` by up to `spread` in each channel."""
    red, green, blue = np.clip(np.asarray(base) + rng.integers(-spread, spread + 1, 3), 0, 255).tolist()
    return red, green, blue


def _gradient(rng: np.random.Generator, size: int, top: Fill, bottom: Fill) -> Image.Image:
    """A page that fades from one colour to another."""
    share = np.linspace(0, 1, size)[:, None, None]
    ends = np.asarray(_near(rng, top)), np.asarray(_near(rng, bottom))
    rows = (1 - share) * ends[0] + share * ends[1]
    return Image.fromarray(np.broadcast_to(rows, (size, size, 3)).round().astype(np.uint8))


def _house(
    rng: np.random.Generator, draw: ImageDraw.ImageDraw, left: float, right: float, top: float, low: float
) -> None:
    """A front with rows of windows."""
    wall = _near(rng, (150, 130, 115), 60)
    draw.rectangle((left, top, right, low), wall)
    columns, rows = int(rng.integers(2, 5)), int(rng.integers(2, 6))
    pane = _near(rng, (70, 85, 105), 40)
    wide, high = (right - left) / columns, (low - top) / rows
    for x in range(columns):
        for y in range(rows):
            x0, y0 = left + (x + 0.25) * wide, top + (y + 0.25) * high
            draw.rectangle((x0, y0, x0 + 0.5 * wide, y0 + 0.5 * high), pane)


def _tree(rng: np.random.Generator, draw: ImageDraw.ImageDraw, x: float, low: float, height: float) -> None:
    """A trunk and a crown of overlapping circles."""
    draw.rectangle((x - 0.04 * height, low - 0.5 * height, x + 0.04 * height, low), _near(rng, (90, 65, 45)))
    leaves = _near(rng, (60, 110, 55), 30)
    for _ in range(7):
        radius = height * float(rng.uniform(0.12, 0.2))
        cx, cy = x + height * float(rng.uniform(-0.18, 0.18)), low - height * float(rng.uniform(0.5, 0.85))
        draw.ellipse((cx - radius, cy - radius, cx + radius, cy + radius), _near(rng, leaves, 10))


def _car(rng: np.random.Generator, draw: ImageDraw.ImageDraw, x: float, low: float, length: float) -> None:
    """A car from the side."""
    paint, height = _near(rng, (130, 90, 90), 90), 0.22 * length
    draw.rectangle((x, low - 1.2 * height, x + length, low - 0.2 * height), paint)
    draw.polygon(
        [(x + 0.2 * length, low - 1.2 * height), (x + 0.32 * length, low - 2 * height)]
        + [(x + 0.7 * length, low - 2 * height), (x + 0.85 * length, low - 1.2 * height)],
        paint,
    )
    for wheel in (0.22, 0.78):
        cx, radius = x + wheel * length, 0.3 * height
        draw.ellipse((cx - radius, low - 2 * radius, cx + radius, low), (35, 35, 38))


def street(rng: np.random.Generator, size: int) -> Image.Image:
    """Houses behind a pavement, cars before it."""
    page = _gradient(rng, size, (140, 175, 215), (205, 220, 230))
    draw, ground = ImageDraw.Draw(page), size * float(rng.uniform(0.7, 0.85))
    left = 0.0
    while left < size:
        right = left + size * float(rng.uniform(0.18, 0.4))
        _house(rng, draw, left, right, size * float(rng.uniform(0.05, 0.4)), ground)
        left = right
    draw.rectangle((0, ground, size, size), _near(rng, (125, 125, 125)))
    for _ in range(int(rng.integers(0, 3))):
        _car(rng, draw, size * float(rng.uniform(-0.1, 0.9)), size * float(rng.uniform(0.88, 0.98)), 0.3 * size)
    return page


def park(rng: np.random.Generator, size: int) -> Image.Image:
    """Trees on grass under a sky."""
    page = _gradient(rng, size, (120, 170, 225), (215, 230, 240))
    draw, ground = ImageDraw.Draw(page), size * float(rng.uniform(0.5, 0.75))
    draw.rectangle((0, ground, size, size), _near(rng, (105, 150, 80)))
    for _ in range(int(rng.integers(3, 9))):
        low = float(rng.uniform(ground, size))
        _tree(rng, draw, size * float(rng.random()), low, size * float(rng.uniform(0.2, 0.5)))
    return page


def _masonry(rng: np.random.Generator, size: int, base: Fill, wide: float, high: float, shift: float) -> Image.Image:
    """A wall of stones of one size, every other row shifted by a share of a stone."""
    page = Image.new("RGB", (size, size), _near(rng, (190, 185, 178)))
    draw, joint = ImageDraw.Draw(page), max(1.0, 0.06 * high)
    for row, y in enumerate(np.arange(0, size, high).tolist()):
        for x in np.arange(-(row % 2) * shift * wide, size, wide).tolist():
            draw.rectangle((x, y, x + wide - joint, y + high - joint), _near(rng, base, 9))
    return page


def bricks(rng: np.random.Generator, size: int) -> Image.Image:
    """A brick wall, with a door perhaps."""
    high = size * float(rng.uniform(0.03, 0.07))
    page = _masonry(rng, size, _near(rng, (150, 85, 65), 25), 2.4 * high, high, 0.5)
    if rng.random() < 0.6:
        left = size * float(rng.uniform(0.0, 0.7))
        box = (left, 0.45 * size, left + 0.28 * size, size)
        ImageDraw.Draw(page).rectangle(box, _near(rng, (90, 75, 60), 40), (40, 35, 30), max(1, size // 128))
    return page


def tiles(rng: np.random.Generator, size: int) -> Image.Image:
    """A tiled wall over a platform."""
    side = size * float(rng.uniform(0.05, 0.1))
    page = _masonry(rng, size, _near(rng, (205, 205, 195), 25), side, side, 0.0)
    draw, ground = ImageDraw.Draw(page), size * float(rng.uniform(0.75, 0.9))
    draw.rectangle((0, ground, size, size), _near(rng, (90, 90, 95)))
    draw.rectangle((0, ground, size, ground + 0.02 * size), _near(rng, (215, 185, 60)))
    return page


def road(rng: np.random.Generator, size: int) -> Image.Image:
    """A road that runs to the horizon between fields and hills."""
    page = _gradient(rng, size, (110, 150, 205), (225, 225, 220))
    draw, horizon = ImageDraw.Draw(page), size * float(rng.uniform(0.45, 0.6))
    for _ in range(3):
        radius, x = size * float(rng.uniform(0.2, 0.5)), size * float(rng.random())
        draw.ellipse((x - radius, horizon - 0.4 * radius, x + radius, horizon + radius), _near(rng, (95, 125, 110)))
    draw.rectangle((0, horizon, size, size), _near(rng, (140, 150, 85)))
    far = size * float(rng.uniform(0.3, 0.7))
    near = [(0.05 * size, size), (0.95 * size, size)]
    draw.polygon([(far - 0.02 * size, horizon), *near, (far + 0.02 * size, horizon)], _near(rng, (95, 95, 98)))
    for start in (0.15, 0.4, 0.75):
        ends = [(far + t * (0.5 * size - far), horizon + t * (size - horizon)) for t in (start, start + 0.15)]
        draw.line(ends, (235, 235, 230), max(1, round(0.015 * size * start * 2)))
    return page


SCENES: Layouts[Scene] = Layouts(
    train={"street": street, "park": park, "bricks": bricks}, test={"road": road, "tiles": tiles}
)
