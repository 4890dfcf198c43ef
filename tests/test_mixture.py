"""Mixtures of pages: what is drawn follows the weights, and what is no mixture is refused."""

from typing import Any

import numpy as np
import pytest

from arr_coc.data import mixture
from arr_coc.data.domains.browser import LAYOUTS, STACKED, HtmlLayout
from arr_coc.data.domains.page import Layouts
from arr_coc.data.mixture import KINDS, Mixture


@pytest.mark.parametrize("kind", ["document", "dense"])
def test_a_kind_alone_is_drawn_as_its_renderer_draws_it(kind: str) -> None:
    made = Mixture({kind: 1.0}).draw(np.random.default_rng(0), size=128, split="train")
    assert made.glyphs and made.image.size == (128, 128) and bool(made.entries) == (kind == "document")


def test_weights_say_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    for kind in ("document", "dense"):
        renderer = KINDS[kind]
        monkeypatch.setitem(
            KINDS, kind, lambda *args, k=kind, r=renderer, **more: (shown.append(k), r(*args, **more))[1]
        )
    rng = np.random.default_rng(0)
    for _ in range(40):
        Mixture({"document": 3, "dense": 1}).draw(rng, size=64, split="train")
    assert 22 <= shown.count("document") <= 38


def test_a_photograph_keeps_the_text_and_moves_the_boxes() -> None:
    drawn, taken = (
        Mixture({"document": 1.0}, photo=share).draw(np.random.default_rng(3), size=256, split="train")
        for share in (0.0, 1.0)
    )
    assert [entry.value for entry in drawn.entries] == [entry.value for entry in taken.entries]
    assert all(a.value_box != b.value_box for a, b in zip(drawn.entries, taken.entries, strict=True))
    assert [glyph.char for glyph in drawn.glyphs] == [glyph.char for glyph in taken.glyphs]
    for entry in taken.entries:
        x0, y0, x1, y1 = entry.value_box
        assert 0 <= x0 < x1 <= 256 and 0 <= y0 < y1 <= 256


@pytest.mark.parametrize(
    "weights, photo, expected",
    [
        ({"poem": 1.0}, 0.0, "pages: expected kinds among document, dense, browser, stacked, .*, overview; got poem"),
        ({}, 0.0, "pages: expected weights of at least 0"),
        ({"dense": 0.0}, 0.0, "pages: expected weights of at least 0"),
        ({"dense": -1.0, "document": 2.0}, 0.0, "pages: expected weights of at least 0"),
        ({"dense": 1.0}, 1.5, "photo: expected a share from 0 to 1; got 1.5"),
    ],
)
def test_what_is_no_mixture_is_refused(weights: dict[str, float], photo: float, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        Mixture(weights, photo)


@pytest.mark.parametrize("kind, layouts", [("browser", LAYOUTS), ("stacked", STACKED)])
def test_browser_pages_come_up_again(kind: str, layouts: Layouts[HtmlLayout], monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser is asked for a page once, however often it is drawn."""
    asked: list[Any] = []

    def rendered(rng: np.random.Generator, **settings: object) -> mixture.Document:
        asked.append(settings["layouts"])
        return KINDS["document"](rng, size=64, split="train")

    monkeypatch.setattr(mixture, "render_browser", rendered)
    monkeypatch.setattr(mixture, "BROWSER_PAGES", 2)
    mixture._browser_page.cache_clear()
    rng = np.random.default_rng(0)
    pages = [Mixture({kind: 1.0}).draw(rng, size=64, split="train") for _ in range(12)]
    mixture._browser_page.cache_clear()
    assert asked == [layouts] * 2 and all(page.image.size == (64, 64) for page in pages)
