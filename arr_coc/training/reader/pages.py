"""Pages to learn reading from, by the name of their source, and crops of them.

A crop is cut about a character drawn anywhere on the page and scaled, so that print of every size is seen at every size
that a patch can hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arr_coc.data.domains.page import Line, TextPage
from arr_coc.data.pdf_corpus import CachedPages
from arr_coc.data.splits import Split
from arr_coc.data.wear import wear
from arr_coc.modeling.config_fields import Registry
from arr_coc.modeling.image_processing_arr_coc import fit_square

from ..from_scratch.streaming import Batches
from ..from_scratch.targets import pixels
from .targets import Print, printed
from .vocabulary import Wordpieces

Draw = Callable[[np.random.Generator, Split], TextPage]

PAGES: Registry[Draw] = Registry("page source")
"""Sources of pages that need no folder: `draw(rng, split)`."""


@PAGES.register("generated")
def generated(rng: np.random.Generator, split: Split) -> TextPage:
    """A page of `arr_coc.data.generated`."""
    return _generator().draw_page(rng, split)


@PAGES.register("laid_out")
def laid_out(rng: np.random.Generator, split: Split) -> TextPage:
    """The same without a picture, which is quick."""
    return _generator().layout_page(rng, split)


@PAGES.register("jumble")
def jumble(rng: np.random.Generator, split: Split) -> TextPage:
    """A page of `arr_coc.data.generated.jumble`."""
    return _generator("jumble").jumble(rng, split)


def _generator(name: str = "") -> ModuleType:
    """`arr_coc.data.generated` or a module of it, which needs packages of the extra "train"."""
    try:
        return import_module(f"arr_coc.data.generated.{name}".rstrip("."))
    except ImportError as error:
        raise ValueError(f"pages: expected its packages, pip install 'arr-coc[train]'; got {error}") from error


Heights = tuple[float, float]
"""Of the smallest and the largest print on crops: that of a line's characters, px."""


def square(image: Image.Image, side: int, blank: int = 127) -> np.ndarray:
    """A page of any shape as uint8 [side, side, 3], placed and resized as the image processor does."""
    placed = fit_square(image.height, image.width, side)
    whole = Image.new("RGB", (side, side), (blank,) * 3)
    whole.paste(
        image.convert("RGB").resize(placed.size[::-1], Image.Resampling.BICUBIC), (placed.offset[1], placed.offset[0])
    )
    return np.asarray(whole)


BEYOND = 0.2
"""Share of a crop that may lie behind an edge of the page."""
CANDIDATES = 4
"""Squares of which a crop is chosen."""


@dataclass(frozen=True)
class Crops:
    """A batch: pixels [B, 3, s, s] in -1..1 and the text on them."""

    pixels: Tensor
    text: Print


def _corner(wanted: float, length: int, reach: float) -> float:
    """Where a crop begins, so that at most `BEYOND` of it is behind either edge of the page, or it shows all of it."""
    least, most = sorted((-BEYOND * reach, length - (1 - BEYOND) * reach))
    return min(max(wanted, least), most)


def _place(rng: np.random.Generator, page: TextPage, side: int, heights: Heights) -> tuple[float, float, float]:
    """Where a crop about some character begins, x and y in px of the page, and its scale."""
    line = page.lines[int(rng.integers(len(page.lines)))]
    box = line.boxes[int(rng.integers(len(line.text)))]
    height = max(2.0, float(box[3] - box[1]))
    wanted = float(np.exp(rng.uniform(*np.log(heights))))
    fits = heights[0] <= height <= heights[1]
    scale = 1.0 if rng.random() < 0.4 and fits else float(np.clip(wanted / height, 0.5, 2.0))
    reach = side / scale
    x, y = (
        _corner(float(box[axis]) - float(rng.uniform(0.05, 0.95)) * reach, length, reach)
        for axis, length in enumerate(page.size)
    )
    return x, y, scale


def crop(
    rng: np.random.Generator, page: TextPage, side: int, heights: Heights, blank: int = 127
) -> tuple[np.ndarray, list[Line]]:
    """A square of `side` px of a page, scaled; uint8 [side, side, 3] and its lines, in px of the crop.

    Of `CANDIDATES` squares it is the one with the most characters: blank paper teaches little.

    Args:
        rng: which squares, and how large their print is.
        page: with text.
        side: px.
        heights: between which print is scaled, where it is larger or smaller, and in six of ten other cases.
        blank: grey level beyond the page's edges.
    """
    assert page.image is not None
    places = [_place(rng, page, side, heights) for _ in range(CANDIDATES)]
    boxes = np.concatenate([line.boxes for line in page.lines])
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2

    def characters(place: tuple[float, float, float]) -> int:
        away = (centres - place[:2]) * place[2]
        return int(((away >= 0) & (away < side)).all(1).sum())

    x0, y0, scale = max(places, key=characters)
    reach, (width, tall) = side / scale, page.size  # of the page, px
    region = (x0, y0, x0 + reach, y0 + reach)
    inside = (max(0, int(x0)), max(0, int(y0)), min(width, int(x0 + reach) + 1), min(tall, int(y0 + reach) + 1))
    cut = page.image.convert("RGB").crop(inside)
    if region[0] < 0 or region[1] < 0 or region[2] > width or region[3] > tall:
        wide = Image.new("RGB", (int(reach) + 2, int(reach) + 2), (blank,) * 3)
        wide.paste(cut, (round(inside[0] - x0), round(inside[1] - y0)))
        cut, within = wide, (0.0, 0.0, reach, reach)
    else:
        within = (x0 - inside[0], y0 - inside[1], x0 - inside[0] + reach, y0 - inside[1] + reach)
    picture = cut.resize((side, side), Image.Resampling.BICUBIC, box=within, reducing_gap=None)
    corner = np.array([x0, y0, x0, y0], np.float32)
    lines = []
    for each in page.lines:
        boxes = (each.boxes - corner) * scale
        if (boxes[:, 2:].max(0) > 0).all() and (boxes[:, :2].min(0) < side).all():
            lines.append(Line(each.text, boxes))
    return np.asarray(picture), lines


@dataclass(frozen=True)
class Sources:
    """A mixture of sources of pages.

    Attributes:
        shares: how often each source comes up; "pdf" are pages of `pdf_folder`, others are names of `PAGES`.
        split: of fonts, words and packages.
        pdf_folder: a cache of PDF pages that `arr_coc.data.pdf_corpus` drew, with a folder for each split.
        worn: share of the pages that are worn, see `arr_coc.data.wear`.
    """

    shares: Mapping[str, float]
    split: Split
    pdf_folder: Path | None = None
    worn: float = 0.5

    def __post_init__(self) -> None:
        for name in self.shares:
            if name == "pdf":
                if self.pdf_folder is None:
                    raise ValueError('pdf_folder: expected a folder of cached pages for the source "pdf"; got none')
            else:
                PAGES[name]

    def page(self, rng: np.random.Generator) -> TextPage:
        """A page with text of one of the sources, worn or not."""
        names, shares = list(self.shares), np.array(list(self.shares.values()), float)
        while True:
            name = names[int(rng.choice(len(names), p=shares / shares.sum()))]
            page = self._pdf(rng) if name == "pdf" else PAGES[name](rng, self.split)
            if page.lines:
                break
        return wear(rng, page) if rng.random() < self.worn else page

    def _pdf(self, rng: np.random.Generator) -> TextPage:
        assert self.pdf_folder is not None
        pages = _cached(self.pdf_folder / self.split)
        return pages[int(rng.integers(len(pages)))]


@lru_cache(maxsize=8)
def _cached(folder: Path) -> CachedPages:
    return CachedPages(folder)


class CropBatches(Batches[Crops]):
    """Endless batches of crops, a function of (seed, step).

    Args:
        sources: of pages.
        seed: of everything that is drawn.
        crops: of a batch, B.
        per_page: crops that are cut of one page.
        side: of a crop, px.
        heights: see `crop`.
        patch: side of a patch, px.
        cut: words into wordpieces.
        start: the first step.
    """

    def __init__(
        self, sources: Sources, seed: tuple[int, ...], crops: int, per_page: int, side: int, heights: Heights,
        patch: int, cut: Wordpieces, start: int = 0,
    ) -> None:  # fmt: skip
        self.sources, self.seed, self.crops, self.per_page = sources, seed, crops, per_page
        self.side, self.heights, self.patch, self.cut, self.start = side, heights, patch, cut, start

    def batch(self, step: int) -> Crops:
        rng = np.random.default_rng((*self.seed, step))
        pictures: list[np.ndarray] = []
        lines: list[list[Line]] = []
        while len(pictures) < self.crops:
            page = self.sources.page(rng)
            for _ in range(min(self.per_page, self.crops - len(pictures))):
                picture, shown = crop(rng, page, self.side, self.heights)
                pictures.append(pixels(picture))
                lines.append(shown)
        return Crops(torch.from_numpy(np.stack(pictures)), printed(lines, self.side, self.patch, self.cut))
