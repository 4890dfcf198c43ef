"""Plots as SVG text: no library, no script, readable at the width of a phone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 14, 42
COLOURS = {"ladder": "#1f5fbf", "baseline": "#b35900", "bound": "#5f5f5f", "ablation": "#00796b", "peer": "#8e2f7a"}
"""Apart for colour-blind eyes and in grey; the number in each mark says the same without colour."""

INK, SOFT, PAPER = "#1c1c1c", "#8a8a8a", "#ffffff"
RADIUS = 8

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Point:
    """A mark: `number` stands in it, `low` to `high` is its interval, `role` gives its colour."""

    number: int
    name: str
    x: float
    y: float
    low: float
    high: float
    role: str


def scatter(points: Sequence[Point], *, x_title: str, y_title: str) -> str:
    """Points with intervals over a logarithmic x axis, and the line of those that no cheaper point matches.

    Args:
        points: at least one; x above 0.
        x_title, y_title: of the axes.
    """
    low, high = min(p.x for p in points), max(p.x for p in points)
    low, high = low / 1.15, high * 1.15
    top = _round_up(max(p.high for p in points))

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log(x) - math.log(low)) / (math.log(high) - math.log(low))

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(y_title)} against {escape(x_title)}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
    ]
    for i in range(5):
        y = top * i / 4
        at = down(y)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="{SOFT}" stroke-width="0.4"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 4:.1f}" text-anchor="end" fill="{INK}">{y:.3g}</text>')
    for x in ticks(low, high):
        at = across(x)
        parts.append(f'<path d="M{at:.1f} {HEIGHT - BOTTOM}v4" stroke="{INK}"/>')
        label = f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="{INK}">{x:g}</text>'
        parts.append(label)
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle" fill="{INK}">{escape(x_title)}</text>')
    parts.append(
        f'<text transform="translate(11 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle" '
        f'fill="{INK}">{escape(y_title)}</text>'
    )
    parts.append(_front(points, across, down))
    placed, rest = _apart([across(p.x) for p in points], [down(p.y) for p in points])
    for place, at in placed.items():
        parts.append(_mark(points[place], at, down, [points[other] for other in rest[place]]))
    return "\n".join([*parts, "</svg>"])


def _mark(point: Point, at: float, down: Scale, hidden: Sequence[Point]) -> str:
    """A mark at x `at`; the numbers of those `hidden` by it stand on its interval, one on the other."""
    colour, y = COLOURS[point.role], down(point.y)
    top, bottom = down(point.high), down(point.low)
    said = "; ".join(f"{p.name}: {p.y:.1f} [{p.low:.1f}, {p.high:.1f}] at {p.x:.4g}" for p in (point, *hidden))
    more = "".join(
        f'<text x="{at:.1f}" y="{min(top, y - RADIUS) - 4 - 10 * i:.1f}" text-anchor="middle" font-size="10" '
        f'fill="{COLOURS[other.role]}">{other.number}</text>'
        for i, other in enumerate(hidden)
    )
    return (
        f"<g><title>{escape(said)}</title>"
        f'<path d="M{at:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}" stroke-width="1.5"/>'
        f'<circle cx="{at:.1f}" cy="{y:.1f}" r="{RADIUS}" fill="{colour}"/>'
        f'<text x="{at:.1f}" y="{y + 3.5:.1f}" text-anchor="middle" font-size="10" fill="{PAPER}">'
        f"{point.number}</text>{more}</g>"
    )


def pareto_front(xs: Sequence[float], ys: Sequence[float]) -> list[int]:
    """Places of the points that none of lower or equal x matches or beats in y, by rising x."""
    front: list[int] = []
    for place in sorted(range(len(xs)), key=lambda i: (xs[i], -ys[i])):
        if not front or ys[place] > ys[front[-1]]:
            front.append(place)
    return front


def _front(points: Sequence[Point], across: Scale, down: Scale) -> str:
    """Steps along the points that no point of lower or equal x is above."""
    steps = ""
    for place in pareto_front([p.x for p in points], [p.y for p in points]):
        at, y = across(points[place].x), down(points[place].y)
        steps += f"H{at:.1f}V{y:.1f}" if steps else f"M{at:.1f} {y:.1f}"
    return f'<path d="{steps}" fill="none" stroke="{SOFT}" stroke-dasharray="4 3"/>'


def _apart(xs: Sequence[float], ys: Sequence[float]) -> tuple[dict[int, float], dict[int, list[int]]]:
    """Where marks stand that would lie on each other.

    Returns:
        {place of a point: x of its mark}, moved aside by at most its width; and {place of a mark: places of the points
        that found no room}, which its label names.
    """
    placed: dict[int, float] = {}
    rest: dict[int, list[int]] = {}

    def distance(place: int, x: float, y: float) -> float:
        return math.hypot(x - placed[place], y - ys[place])

    for number, (x, y) in enumerate(zip(xs, ys, strict=True)):
        tried = (x, x + RADIUS, x - RADIUS, x + 2 * RADIUS, x - 2 * RADIUS)
        inside = [at for at in tried if LEFT + RADIUS <= at <= WIDTH - RADIUS]
        free = next((at for at in inside if all(distance(p, at, y) >= 2 * RADIUS for p in placed)), None)
        if free is not None:
            placed[number] = free
            rest[number] = []
        else:
            rest[max(placed, key=lambda p: (-distance(p, x, y), p))].append(number)
    return placed, rest


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8, 10 times a power of ten: a scale whose quarters are short numbers."""
    if value <= 0:
        return 1.0
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * (1 - 1e-9))


def ticks(low: float, high: float) -> list[float]:
    """Two to about eight short numbers on a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), tuple(i / 10 for i in range(10, 100))):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) >= 3:
            return found[:: math.ceil(len(found) / 8)]
    return [low, high]
