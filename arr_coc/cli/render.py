"""`arr-coc render`: rendered pages with questions, answers and boxes."""

import argparse
from pathlib import Path

from .common import Command

DOMAINS = (
    "browser, chart, clip, density, departures, directory, document, form, invoice, pages, pair, receipt, sign, "
    "stacked, table"
)
VARIATIONS = {
    "photo": "share of pages that are photographed: at an angle, in uneven light, compressed",
    "absent": "share of questions about fields that a page of fields does not show",
    "unheard": "share of these that are about what no page has a field for",
    "turns": "share of questions that come second in a chat, after another one about the page",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder for data.jsonl and images/; must not exist or be empty")
    parser.add_argument("--pages", metavar="N", type=int, default=400, help="(default: 400)")
    parser.add_argument("--questions", metavar="N", type=int, default=3, help="per page, at most (default: 3)")
    parser.add_argument("--seed", metavar="N", type=int, default=2026, help="(default: 2026)")
    size = "side of a page; of an A4 page (invoice, pages) the width (default: 256)"
    parser.add_argument("--size", metavar="PX", type=int, default=256, help=size)
    domain = f"what is drawn, page by page in turn: {DOMAINS} (default: document)"
    parser.add_argument("--domain", metavar="NAME[,NAME]", default="document", help=domain)
    sources = "pages (of pages, each document a PDF), images (of pair) or frames (of clip) (default: drawn)"
    parser.add_argument("--sources", metavar="N", type=int, help=sources)
    split = "whose fonts, layouts, wordings and words; validation has training's layouts (default: test)"
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
    summary="write rendered pages to train on or to be asked about",
    description=(
        "Write pages as images and a JSONL file of questions, answers and boxes. By default they are lines of\n"
        "`field value`: what arr-coc-tiny is trained on (--split train) and measured on (--split test: other fonts,\n"
        "layouts and words). --domain names other pages, also several, which take turns.\n"
        "The same options and fonts give the same files. OUT appears in one step or not at all."
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
