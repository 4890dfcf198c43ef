"""Plots: every point is named, and no name covers another, a mark, or leaves the axes; ticks stand apart."""

import itertools
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from arr_coc.experiments.plots import MARKS, SIZES, Point, draw_scatter, pareto_front, scatter

BUDGETS = {"0": 100, "64": 125, "100": 139, "150": 159, "200": 178, "273": 207, "400": 256, "all": 500}
"""Of the shipped model's ablation: name and tokens."""


def crowded() -> list[Point]:
    """The ablation of the shipped model, in which 150 was on 100 and 200 on 273, and as many alike as it had."""
    rng = np.random.default_rng(0)
    points = [Point(name, at, 60 + 20 * (at > 120), 50, 90, "budget") for name, at in BUDGETS.items()]
    kinds = ("scorer", "allocator", "peer", "bridge")
    for number in range(20):
        y = 83.0 if number < 8 else float(rng.uniform(0, 84))
        points.append(Point(f"number {number}", 207, y, max(0, y - 4), y + 4, kinds[number % 4]))
    return points


def boxes(figure: Any, texts: Any) -> list[Any]:
    figure.draw_without_rendering()
    return [Text.get_window_extent(text, figure.canvas.get_renderer()) for text in texts]  # without its line


def assert_apart(extents: list[Any]) -> None:
    for first, second in itertools.combinations(extents, 2):
        assert not first.overlaps(second), (first.extents, second.extents)


@pytest.mark.parametrize(
    "points",
    [
        crowded(),
        [Point(str(at), at, 80.0, 78, 82, "ladder") for at in (14, 15, 16)],
        [Point(f"arm {i}", 132.0, 50.0 + i / 10, 48, 53, "ladder") for i in range(12)],
        [Point("none", 64, 0, 0, 0, "ladder")],
    ],
    ids=["an ablation", "14 15 16", "one cost", "nothing right"],
)
def test_names_and_ticks_stand_apart(points: list[Point]) -> None:
    figure = draw_scatter(points, x_title="tokens", y_title="accuracy")
    (axes,) = figure.axes
    names = [text for text in axes.texts if text.get_text()]
    assert sorted(text.get_text() for text in names) == sorted(point.name for point in points)
    extents = boxes(figure, names)
    assert_apart(extents)
    frame = axes.get_window_extent()
    assert all(
        frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1 for box in extents
    )
    for point in points:
        x, y = axes.transData.transform((point.x, point.y))
        assert not any(box.contains(x, y) for box in extents), "a name covers a mark"
    for axis in (axes.xaxis, axes.yaxis):
        ticks = [label for label in axis.get_ticklabels() if label.get_text()]
        assert ticks
        assert_apart(boxes(figure, ticks))


def test_the_labels_would_overlap_if_they_stood_beside_their_marks() -> None:
    """The check above can fail."""
    figure = draw_scatter(crowded(), x_title="tokens", y_title="accuracy")
    (axes,) = figure.axes
    for text in axes.texts:
        text.set_position((12, 0))
    with pytest.raises(AssertionError):
        assert_apart(boxes(figure, axes.texts))


@pytest.mark.versions
def test_a_plot_is_well_formed_and_says_what_it_shows() -> None:
    text = scatter(crowded(), x_title="tokens & more", y_title="<accuracy>")
    root = ElementTree.fromstring(text)
    said = {"".join(element.itertext()).strip() for element in root.iter() if element.tag.endswith("text")}
    assert said >= {"tokens & more", "<accuracy>", "budget", "peer", "number 7", "150"}
    assert text == scatter(crowded(), x_title="tokens & more", y_title="<accuracy>"), (
        "the same file for the same numbers"
    )
    assert "<metadata" not in text or "date" not in text.lower()


def test_more_kinds_than_shapes_are_drawn() -> None:
    points = [Point(f"a{i}", 10 + i, 50, 49, 51, f"kind {i}") for i in range(len(MARKS) + 2)]
    assert draw_scatter(points, x_title="x", y_title="y").get_size_inches().tolist() in [list(size) for size in SIZES]


def test_the_front_is_of_what_nothing_cheaper_matches() -> None:
    assert pareto_front([3, 1, 2, 2, 4], [5, 1, 1, 4, 5]) == [1, 3, 0]
