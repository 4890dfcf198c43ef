"""One page at many sizes: do exact match and seconds depend on the resolution of the same page?

    python -m benchmarks.page_sizes [MODEL] [--pages 12] [--questions 3] [--sizes 256 384 ... 4096] [--dpi 72 ... 600]
        [--kinds document photo density receipt] [--tiles auto] [--seed 7] [--split test] [--json FILE]
    python -m benchmarks.page_sizes --pages 4 --questions 2 --sizes 256 1024 --dpi 150     # minutes on a CPU

Pages of each kind are drawn 320 px wide and high, so that their print is legible at every size. The model then reads
them at each size (longer side, px), and as a PDF page of 11 inches at each resolution. A page is encoded once for all
its questions. The test passes if no size, over all kinds, is more than 3 points below the best, and none takes more
than 4 times the seconds of the best.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from arr_coc.data.domains import draw_page
from arr_coc.data.domains.page import Question
from arr_coc.data.domains.variations import AS_DRAWN, Variations
from arr_coc.data.splits import SPLITS, Split
from arr_coc.evaluation.reporting import environment, percent, to_text
from arr_coc.evaluation.statistics import score_interval
from arr_coc.files import run_module, write_json
from arr_coc.metrics import METRICS
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.publishing.building import load_model

SIZES = (256, 384, 512, 768, 1024, 1536, 2048, 4096)
RESOLUTIONS = (72, 150, 300, 600)
SIDE = 320
"""The side of a drawn page, px."""
INCHES = 11.0
"""The longer side of a PDF page, inches."""

BELOW, TIMES = 3.0, 4.0
"""Limits: points below the best size, and the ratio of seconds to the best size."""

KINDS: dict[str, tuple[str, Variations]] = {
    "document": ("document", AS_DRAWN),
    "photo": ("document", Variations(photo=1.0)),
    "density": ("density", AS_DRAWN),
    "receipt": ("receipt", AS_DRAWN),
}
"""Domain and variations of each kind of page."""


@dataclass(frozen=True)
class Shown:
    """One page at one size, with the options of `encode_image`."""

    name: str
    source: Any
    options: dict[str, Any]


@dataclass(frozen=True)
class Line:
    """The measurements at one size.

    Attributes:
        name: "1024 px" or "300 dpi".
        exact: share of exact answers with its interval, drawn by pages.
        by_kind: the share of each kind of page.
        seconds: mean seconds per page, for its encoding and all questions.
        views: mean number of views that the grid encoder encodes.
    """

    name: str
    exact: dict[str, float]
    by_kind: dict[str, float]
    seconds: float
    views: float


def shown_at(page: Image.Image, sizes: Sequence[int], resolutions: Sequence[int]) -> Iterator[Shown]:
    """A page resized to each size, and as a PDF page rendered at each resolution."""
    for size in sizes:
        scale = size / max(page.size)
        resized = page.resize([max(1, round(side * scale)) for side in page.size], Image.Resampling.LANCZOS)
        yield Shown(f"{size} px", resized, {})
    stream = BytesIO()
    whole = page.resize([4 * side for side in page.size], Image.Resampling.LANCZOS)  # sharp enough for 600 dpi
    whole.save(stream, "PDF", resolution=max(whole.size) / INCHES, quality=95)
    for resolution in resolutions:
        yield Shown(f"{resolution} dpi", stream.getvalue(), {"dpi": resolution})


def page_sizes(
    model: ArrCocForConditionalGeneration,
    *,
    pages: int,
    questions: int,
    sizes: Sequence[int] = SIZES,
    resolutions: Sequence[int] = RESOLUTIONS,
    kinds: Sequence[str] = tuple(KINDS),
    tiles: str = "auto",
    seed: int = 7,
    split: Split = "test",
) -> list[Line]:
    """A line for each size and resolution.

    Args:
        model: with a processor.
        pages: number of pages; the kinds alternate.
        questions: the most questions per page.
        sizes: longer sides of a page, px.
        resolutions: resolutions of a PDF page, dpi.
        kinds: names of `KINDS`.
        tiles: see `ViewOptions`.
        seed, split: seed and split of the pages.

    Raises:
        ValueError: fewer pages than kinds, no size, or an unknown kind.
    """
    if pages < len(kinds) or questions < 1 or not (sizes or resolutions):
        expected = f"a page for each of {len(kinds)} kinds, a question and a size"
        raise ValueError(f"page_sizes: expected {expected}; got {pages} pages, {questions} questions")
    rows: dict[str, list[tuple[str, int, list[float], float, int]]] = {}
    for number in range(pages):
        kind = kinds[number % len(kinds)]
        domain, variations = KINDS[kind]
        page = draw_page(domain, seed, number, SIDE, split, variations=variations)
        asked = page.questions[:questions]
        for shown in shown_at(page.sources[0].convert("RGB"), sizes, resolutions):
            scores, seconds, views = _asked(model, shown, asked, tiles)
            rows.setdefault(shown.name, []).append((kind, number, scores, seconds, views))
    return [_line(name, row) for name, row in rows.items()]


def _asked(
    model: ArrCocForConditionalGeneration, shown: Shown, questions: Sequence[Question], tiles: str
) -> tuple[list[float], float, int]:
    """Scores of the answers, total seconds, and the number of encoded views."""
    began = time.perf_counter()
    encoding = model.encode_image(shown.source, tiles=tiles, **shown.options)
    answers = model.generate(encoding, [question.text for question in questions])
    seconds = time.perf_counter() - began
    score = METRICS["exact_match"].score
    scores = [float(score(answer, question.answers)) for answer, question in zip(answers, questions, strict=True)]
    return scores, seconds, len(encoding) + (0 if encoding.tiles is None else len(encoding.tiles))


def _line(name: str, rows: Sequence[tuple[str, int, list[float], float, int]]) -> Line:
    scores = [score for _, _, own, _, _ in rows for score in own]
    numbers = [number for _, number, own, _, _ in rows for _ in own]
    exact = score_interval(np.array(scores), np.array(numbers))
    of_kind: dict[str, list[float]] = {}
    for kind, _, own, _, _ in rows:
        of_kind.setdefault(kind, []).extend(own)
    return Line(
        name,
        {"value": exact.value, "low": exact.low, "high": exact.high},
        {kind: float(np.mean(own)) for kind, own in of_kind.items()},
        float(np.mean([seconds for *_, seconds, _ in rows])),
        float(np.mean([views for *_, views in rows])),
    )


@dataclass(frozen=True)
class Verdict:
    """The comparison of all sizes.

    Attributes:
        best, worst: lines with the highest and the lowest share of exact answers.
        below: points between them.
        slowest: the slowest line.
        times: its seconds relative to those of the best line.
    """

    best: Line
    worst: Line
    below: float
    slowest: Line
    times: float

    @property
    def passed(self) -> bool:
        """Whether both limits hold."""
        return self.below <= BELOW + 1e-9 and self.times <= TIMES


def verdict(lines: Sequence[Line]) -> Verdict:
    """Compares the lines; the best one has the highest share of exact answers, and of equal ones is the fastest."""
    best = min(lines, key=lambda line: (-line.exact["value"], line.seconds))
    worst = min(lines, key=lambda line: line.exact["value"])
    slowest = max(lines, key=lambda line: line.seconds)
    below = 100 * (best.exact["value"] - worst.exact["value"])
    return Verdict(best, worst, below, slowest, slowest.seconds / best.seconds)


def report(lines: Sequence[Line], count: int) -> str:
    """The table and the verdict as text; `count`: questions at each size."""
    kinds = list(lines[0].by_kind)
    rows = [
        [
            line.name, percent(line.exact), *(f"{100 * line.by_kind[kind]:.1f}" for kind in kinds),
            f"{line.views:.1f}", f"{line.seconds:.2f}",
        ]
        for line in lines
    ]  # fmt: skip
    found = verdict(lines)
    return "\n".join(
        [
            to_text(["size", "exact match, %", *kinds, "views", "seconds a page"], rows),
            f"n = {count} questions at each size. In brackets: 95 % intervals, drawn by pages.",
            f"Best: {found.best.name}. {found.worst.name} is {found.below:.1f} points below it (at most {BELOW:g}).",
            f"Slowest: {found.slowest.name}, {found.times:.1f} times the best's seconds (at most {TIMES:g}).",
            "Passed." if found.passed else "Not passed.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", nargs="?", help="folder or org/name (default: arr-coc-135m)")
    parser.add_argument("--pages", type=int, default=12, help="pages of all kinds (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=3, help="questions per page (default: %(default)s)")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, metavar="PX", help="longer sides, px")
    parser.add_argument(
        "--dpi", type=int, nargs="*", default=RESOLUTIONS, metavar="DPI", help="resolutions of PDFs, dpi"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of pages")
    parser.add_argument("--tiles", default="auto", help="auto, asked, all or never (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--split", choices=SPLITS, default="test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the results (default: none)")
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    lines = page_sizes(
        model, pages=arguments.pages, questions=arguments.questions, sizes=arguments.sizes,
        resolutions=arguments.dpi, kinds=arguments.kinds, tiles=arguments.tiles, seed=arguments.seed,
        split=arguments.split,
    )  # fmt: skip
    print(
        f"{arguments.model or 'arr-coc-135m'}, {arguments.pages} pages, {arguments.split} split, seed {arguments.seed}"
    )
    print(report(lines, arguments.pages * arguments.questions))
    if arguments.json is not None:
        write_json(arguments.json, {"lines": [vars(line) for line in lines], **environment(model.device)})


if __name__ == "__main__":
    run_module(main)
