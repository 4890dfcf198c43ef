"""`arr-coc render`: rendered pages with questions, answers and boxes."""

import argparse
from pathlib import Path

from .common import Command

DOMAINS = (
    "browser, chart, clip, density, departures, directory, document, form, invoice, pages, pair, receipt, sign, "
    "stacked, table"
)
VARIATIONS = {
    "photo": "share of pages as simulated photographs: at an angle, in uneven light, compressed",
    "absent": "share of questions about fields that the page does not show",
    "unheard": "share of these that are about names that no page has as a field",
    "turns": "share of questions in the second turn of a chat about the page",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "out", metavar="OUT", help="output folder for data.jsonl and images/; must be empty or not exist"
    )
    parser.add_argument("--pages", metavar="N", type=int, default=400, help="number of pages (default: 400)")
    parser.add_argument(
        "--questions", metavar="N", type=int, default=3, help="questions per page, at most (default: 3)"
    )
    parser.add_argument("--seed", metavar="N", type=int, default=2026, help="seed of the pages (default: 2026)")
    size = "side of a page in px; of an A4 page (invoice, pages) the width (default: 256)"
    parser.add_argument("--size", metavar="PX", type=int, default=256, help=size)
    domain = f"kinds of pages, drawn in turn: {DOMAINS} (default: document)"
    parser.add_argument("--domain", metavar="NAME[,NAME]", default="document", help=domain)
    sources = "pages per PDF (domain pages), images (pair) or frames (clip) (default: random)"
    parser.add_argument("--sources", metavar="N", type=int, help=sources)
    split = "split of fonts, layouts, wordings and words; validation has train's layouts (default: test)"
    parser.add_argument("--split", choices=("train", "validation", "test"), default="test", help=split)
    for name, what in VARIATIONS.items():
        parser.add_argument(f"--{name}", metavar="SHARE", type=float, default=0.0, help=f"{what} (default: 0)")
    parser.add_argument("--force", action="store_true", help="replace OUT if it has files")


def run(args: argparse.Namespace) -> None:
    from arr_coc.data.domains import Variations
    from arr_coc.data.writing import write_questions

    if args.unheard and not args.absent:
        raise ValueError(f"--unheard: expected --absent above 0, of which it is a share; got {args.absent:g}")
    path = write_questions(
        Path(args.out),
        pages=args.pages,
        questions=args.questions,
        seed=args.seed,
        size=args.size,
        split=args.split,
        domains=[name.strip() for name in args.domain.split(",")],
        sources=args.sources,
        variations=Variations(**{name: getattr(args, name) for name in VARIATIONS}),
        force=args.force,
    )
    print(path)


COMMAND = Command(
    name="render",
    summary="draw pages with questions, answers and boxes",
    description=(
        "Write pages as images, and a JSONL file of questions, answers and boxes. The default domain is lines of\n"
        "`field value`, on which arr-coc-tiny is trained (--split train) and measured (--split test: other fonts,\n"
        "layouts and words). --domain chooses other kinds of pages. The same options and fonts give the same files.\n"
        "OUT is written in one step or not at all."
    ),
    examples=(
        "arr-coc render out/pages --pages 100",
        "arr-coc render out/train --split train --seed 1",
        "arr-coc render out/mixed --domain receipt,table,chart,sign --size 768",
        "arr-coc render out/invoices --domain pages --size 1240 --sources 10",
        "arr-coc render out/photos --domain browser --photo 1 --absent 0.2 --turns 0.3",
    ),
    add_arguments=add_arguments,
    run=run,
)
