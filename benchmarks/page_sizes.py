"""One page at many sizes: do exact match and seconds depend on the resolution of the same page?

    python -m benchmarks.page_sizes [MODEL] [--pages 12] [--questions 6] [--sizes 256 384 ... 4096] [--dpi 72 ... 600]
        [--kinds document photo browser stacked] [--tiles auto] [--seed 7] [--split test] [--json FILE]
    python -m benchmarks.page_sizes --pages 4 --questions 2 --sizes 256 1024 --dpi 150     # minutes on a CPU

Pages of each kind are drawn 1024 px wide and high. The model then reads them at each size (longer side, px), and as a
PDF page of 11 inches at each resolution. A page is encoded once for all its questions, which are about its fields. At
a size at which the lines of a question's answer or label are lower than 9 px (capitals of 6.5 px, the smallest that
arr-coc-135m was trained to read), the question is not asked. The test passes if no size is more than 3 points below
the best one for the same questions, and none takes more than 4 times the seconds of the best.
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

from arr_coc.evaluation.reporting import environment, percent, to_text
from arr_coc.evaluation.statistics import score_interval
from arr_coc.files import run_module, write_json
from arr_coc.metrics import METRICS
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.pages.domains import AS_DRAWN, Variations, draw_page
from arr_coc.pages.page import Question
from arr_coc.pages.splits import SPLITS, Split
from arr_coc.publishing.building import load_model

SIZES = (256, 384, 512, 768, 1024, 1536, 2048, 4096)
RESOLUTIONS = (72, 150, 300, 600)
SIDE = 1024
"""The side of a drawn page, px."""
LOWEST = 9.0
"""The least height of a line that is asked about, px of the page at a size."""
INCHES = 11.0
"""The longer side of a PDF page, inches."""

BELOW, TIMES = 3.0, 4.0
"""Limits: points below the best size, and the ratio of seconds to the best size."""

KINDS: dict[str, tuple[str, Variations]] = {
    "document": ("document", AS_DRAWN),
    "photo": ("document", Variations(photo=1.0)),
    "browser": ("browser", AS_DRAWN),
    "stacked": ("stacked", AS_DRAWN),
}
"""Domain and variations of each kind of page."""


@dataclass(frozen=True)
class Shown:
    """One page at one size, with the options of `encode_image`; `scale`: px of it per px as drawn."""

    name: str
    scale: float
    source: Any
    options: dict[str, Any]


@dataclass(frozen=True)
class Line:
    """The measurements at one size.

    Attributes:
        name: "1024 px" or "300 dpi".
        scores: of each answer, by number of the page and question.
        exact: share of exact answers with its interval, drawn by pages.
        by_kind: the share of each kind of page.
        seconds: mean seconds per page, for its encoding and all questions.
        views: mean number of views that the grid encoder encodes.
    """

    name: str
    scores: dict[tuple[int, str], float]
    exact: dict[str, float]
    by_kind: dict[str, float]
    seconds: float
    views: float


def shown_at(page: Image.Image, sizes: Sequence[int], resolutions: Sequence[int]) -> Iterator[Shown]:
    """A page resized to each size, and as a PDF page rendered at each resolution."""
    for size in sizes:
        scale = size / max(page.size)
        resized = page.resize([max(1, round(side * scale)) for side in page.size], Image.Resampling.LANCZOS)
        yield Shown(f"{size} px", scale, resized, {})
    stream = BytesIO()
    whole = page.resize([4 * side for side in page.size], Image.Resampling.LANCZOS)  # sharp enough for 600 dpi
    whole.save(stream, "PDF", resolution=max(whole.size) / INCHES, quality=95)
    for resolution in resolutions:
        scale = INCHES * resolution / max(page.size)
        yield Shown(f"{resolution} dpi", scale, stream.getvalue(), {"dpi": resolution})


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
    rows: dict[str, list[_Asked]] = {}
    for number in range(pages):
        kind = kinds[number % len(kinds)]
        domain, variations = KINDS[kind]
        page = draw_page(domain, seed, number, SIDE, split, variations=variations)
        fields = [question for question in page.questions if question.kind == "field"][:questions]
        for shown in shown_at(page.image.convert("RGB"), sizes, resolutions):
            asked = [question for question in fields if _line_height(question) * shown.scale >= LOWEST]
            if asked:
                rows.setdefault(shown.name, []).append(_asked(model, shown, kind, number, asked, tiles))
    return [_line(name, row) for name, row in rows.items()]


@dataclass(frozen=True)
class _Asked:
    """A page at one size: its number and kind, scores by question, total seconds, and views that were encoded."""

    number: int
    kind: str
    scores: dict[str, float]
    seconds: float
    views: int


def _line_height(question: Question) -> float:
    """The height of the lowest line of a question's answer and label, px of the page as drawn."""
    return min(y1 - y0 for _, y0, _, y1 in (*question.boxes, *question.label_boxes))


def _asked(
    model: ArrCocForConditionalGeneration,
    shown: Shown,
    kind: str,
    number: int,
    questions: Sequence[Question],
    tiles: str,
) -> _Asked:
    began = time.perf_counter()
    encoding = model.encode_image(shown.source, tiles=tiles, **shown.options)
    answers = model.generate(encoding, [question.text for question in questions])
    seconds = time.perf_counter() - began
    score = METRICS["exact_match"].score
    scores = {own.text: float(score(answer, own.answers)) for answer, own in zip(answers, questions, strict=True)}
    views = len(encoding) + (0 if encoding.tiles is None else len(encoding.tiles))
    return _Asked(number, kind, scores, seconds, views)


def _line(name: str, rows: Sequence[_Asked]) -> Line:
    scores = {(row.number, question): score for row in rows for question, score in row.scores.items()}
    exact = score_interval(np.array([*scores.values()]), np.array([number for number, _ in scores]))
    of_kind: dict[str, list[float]] = {}
    for row in rows:
        of_kind.setdefault(row.kind, []).extend(row.scores.values())
    return Line(
        name,
        scores,
        {"value": exact.value, "low": exact.low, "high": exact.high},
        {kind: float(np.mean(own)) for kind, own in of_kind.items()},
        float(np.mean([row.seconds for row in rows])),
        float(np.mean([row.views for row in rows])),
    )


@dataclass(frozen=True)
class Verdict:
    """The comparison of all sizes.

    Attributes:
        worst: the line that is furthest below another one, for the questions of both.
        best: the other one.
        below: points between them.
        slowest: the slowest line.
        times: its seconds relative to those of the line with the most exact answers.
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
    """Compares the lines; a line is compared with those that were asked all of its questions."""
    pairs = [(_below(line, other), line, other) for line in lines for other in lines]
    below, worst, best = max(pairs, key=lambda pair: pair[0])
    most = min(lines, key=lambda line: (-line.exact["value"], line.seconds))
    slowest = max(lines, key=lambda line: line.seconds)
    return Verdict(best, worst, below, slowest, slowest.seconds / most.seconds)


def _below(line: Line, other: Line) -> float:
    """Points by which a line is below another one for its own questions; 0 if these were not asked there."""
    if not line.scores.keys() <= other.scores.keys():
        return 0.0
    return 100 * float(np.mean([other.scores[asked] - score for asked, score in line.scores.items()]))


def report(lines: Sequence[Line]) -> str:
    """The table and the verdict as text."""
    kinds = [*dict.fromkeys(kind for line in lines for kind in line.by_kind)]
    rows = [
        [
            line.name,
            percent(line.exact),
            *(f"{100 * line.by_kind[kind]:.1f}" if kind in line.by_kind else "-" for kind in kinds),
            str(len(line.scores)),
            f"{line.views:.1f}",
            f"{line.seconds:.2f}",
        ]
        for line in lines
    ]
    found = verdict(lines)
    return "\n".join(
        [
            to_text(["size", "exact match, %", *kinds, "n", "views", "seconds a page"], rows),
            "In brackets: 95 % intervals, drawn by pages.",
            f"{found.worst.name} is {found.below:.1f} points below {found.best.name} for the same questions "
            f"(at most {BELOW:g}).",
            f"Slowest: {found.slowest.name}, {found.times:.1f} times the best's seconds (at most {TIMES:g}).",
            "Passed." if found.passed else "Not passed.",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", nargs="?", help="folder or org/name (default: arr-coc-135m)")
    parser.add_argument("--pages", type=int, default=12, help="pages of all kinds (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=6, help="questions per page (default: %(default)s)")
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
        model,
        pages=arguments.pages,
        questions=arguments.questions,
        sizes=arguments.sizes,
        resolutions=arguments.dpi,
        kinds=arguments.kinds,
        tiles=arguments.tiles,
        seed=arguments.seed,
        split=arguments.split,
    )
    print(
        f"{arguments.model or 'arr-coc-135m'}, {arguments.pages} pages, {arguments.split} split, seed {arguments.seed}"
    )
    print(report(lines))
    if arguments.json is not None:
        content = [
            {**vars(line), "scores": [[*asked, score] for asked, score in line.scores.items()]} for line in lines
        ]
        write_json(arguments.json, {"lines": content, **environment(model.device)})


if __name__ == "__main__":
    run_module(main)
