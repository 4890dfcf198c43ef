"""Accuracy on A4 pages, PDFs of ten pages, pairs of pages and clips of 30 frames, as one table.

    python -m benchmarks.view_report [MODEL] --out FOLDER [--questions 200] [--seed 7] [--split test]
        [--only invoices documents pairs clips]

Pages are rendered into FOLDER if they do not exist. "encoder" of A4 pages is the share of views that the grid encoder
encodes if it encodes only the tiles that a question needs. Comparisons of a pair of pages are separate from questions
that one page answers.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from operator import not_
from pathlib import Path
from typing import Any

from arr_coc.data.domains.document import COMPARISONS
from arr_coc.data.records import Record, read_records
from arr_coc.data.splits import SPLITS, Split
from arr_coc.data.writing import DATA, write_questions
from arr_coc.evaluation.strategies import evaluate
from arr_coc.files import run_module
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

METRIC = "exact_match"


@dataclass(frozen=True)
class Measured:
    """One line of the table.

    Attributes:
        name: data set and options.
        count: number of questions.
        exact: share of exact answers, with its interval.
        right: share of questions whose patch of the highest relevance came from a source with the answer, with its
            interval; None if not applicable.
        views: number of views that the grid encoder encoded.
    """

    name: str
    count: int
    exact: dict[str, float]
    right: dict[str, float] | None
    views: int


@contextmanager
def counting_views(model: ArrCocForConditionalGeneration) -> Iterator[list[int]]:
    """A context that counts the views that the grid encoder encodes, in a list of one number."""
    count = [0]

    def counted(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        count[0] += len(inputs[0])

    hook = model.model.vision_tower.grid_encoder.register_forward_hook(counted)
    try:
        yield count
    finally:
        hook.remove()


def measured(
    model: ArrCocForConditionalGeneration, records: Sequence[Record], name: str, tiles: str | None
) -> Measured:
    """The default strategy's answers to the questions."""
    with counting_views(model) as views:
        strategy = model.config.fetcher_config.strategy
        report = evaluate(model, records, [strategy], metric=METRIC, tiles=tiles)["strategies"][strategy]
    pages = report.get("pages")
    return Measured(name, report["n"], report[METRIC], None if pages is None else pages["best"], views[0])


def rendered(out: Path, name: str, questions: int, seed: int, split: Split, **how: Any) -> list[Record]:
    """The questions about the pages in `out / name`, which are drawn if they do not exist."""
    each, domain = how.pop("each"), how.pop("domain")
    path = out / f"{name}-{how['size']}-{split}-{seed}-{questions}"
    if not (path / DATA).exists():
        pages = math.ceil(questions / each)
        write_questions(path, pages=pages, questions=each, seed=seed, split=split, domains=(domain,), **how)
    return read_records(path / DATA, limit=questions)


def view_report(
    model: ArrCocForConditionalGeneration, out: Path, *, questions: int, seed: int, split: Split, only: Sequence[str]
) -> list[Measured]:
    """Yields the lines of the table, each after its measurement.

    Args:
        model: with a processor.
        out: folder of the pages.
        questions: number of questions of each kind.
        seed, split: seed and split of the pages.
        only: names of `DATA_SETS`.
    """
    lines: list[Measured] = []
    side = model.config.vision_config.image_size

    def ask(records: Sequence[Record], name: str, tiles: str | None = None) -> None:
        if not records:
            return
        lines.append(measured(model, records, name, tiles))
        print(line_of(lines[-1], lines), flush=True)

    for name in only:
        how = {**DATA_SETS[name]}
        how["size"] = how["size"] or side
        records = rendered(out, name, questions, seed, split, **how)
        if name == "invoices":
            ask(records, "invoices, all tiles", "all")
            ask(records, "invoices, tiles asked for", "asked")
        elif name == "pairs":
            compares = [dict(record.tags)["kind"] in COMPARISONS for record in records]
            ask(list(compress(records, compares)), "pairs, comparisons")
            ask(list(compress(records, map(not_, compares))), "pairs, single questions")
        else:
            ask(records, name)
    return lines


DATA_SETS: dict[str, dict[str, Any]] = {
    "invoices": {"domain": "invoice", "size": 1240, "each": 3},
    "documents": {"domain": "pages", "size": 1240, "sources": 10, "each": 4},
    "pairs": {"domain": "pair", "size": None, "each": 4},
    "clips": {"domain": "clip", "size": None, "sources": 30, "each": 4},
}
"""Settings of rendering by name: `each` questions per page or document; the default size is the model's square."""

HEADER = f"{'':28} {'n':>4} {'exact':>22} {'right source':>22} {'views':>6} encoder"


def line_of(line: Measured, before: Sequence[Measured]) -> str:
    """A line of the table; it compares requested tiles with all tiles, which are an earlier line."""
    whole = [other for other in before if other.name == "invoices, all tiles"]
    share = f"{line.views / whole[0].views:7.1%}" if whole and line.name == "invoices, tiles asked for" else ""
    return f"{line.name:28} {line.count:4} {_percent(line.exact):>22} {_percent(line.right):>22} {line.views:6} {share}"


def _percent(interval: dict[str, float] | None) -> str:
    return "" if interval is None else "{value:.1%} [{low:.1%}, {high:.1%}]".format(**interval)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", nargs="?", default="hub_configs/arr-coc-tiny-2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--split", choices=SPLITS, default="test")
    parser.add_argument("--only", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    arguments = parser.parse_args()
    if arguments.questions < 1:
        parser.error(f"--questions: expected at least 1; got {arguments.questions}")
    model = ArrCocForConditionalGeneration.from_pretrained(Path(arguments.model)).eval()
    print(f"{arguments.model}, {arguments.split} split, seed {arguments.seed}\n{HEADER}")
    view_report(
        model, arguments.out, questions=arguments.questions, seed=arguments.seed, split=arguments.split,
        only=arguments.only,
    )  # fmt: skip


if __name__ == "__main__":
    run_module(main)
