"""`arr-coc render`: rendered documents with questions, answers and boxes."""

import argparse
from pathlib import Path

from ..data.writing import write_questions
from .common import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder for data.jsonl and images/")
    parser.add_argument("--pages", metavar="N", type=int, default=400, help="(default: 400)")
    parser.add_argument("--questions", metavar="N", type=int, default=3, help="per page, at most (default: 3)")
    parser.add_argument("--seed", metavar="N", type=int, default=2026, help="(default: 2026)")
    parser.add_argument("--size", metavar="PX", type=int, default=256, help="side of a page (default: 256)")
    split = "fonts, layouts and words: those of training, or those held out (default: test)"
    parser.add_argument("--split", choices=("train", "test"), default="test", help=split)


def run(args: argparse.Namespace) -> None:
    for name in ("pages", "questions"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name}: expected at least 1; got {getattr(args, name)}")
    print(
        write_questions(
            Path(args.out), pages=args.pages, questions=args.questions, seed=args.seed, size=args.size, split=args.split
        )
    )


COMMAND = Command(
    name="render",
    summary="write rendered documents to train on or to be asked about",
    description=(
        "Write pages of `field value` lines as images and a JSONL file of questions, answers and boxes: what\n"
        "arr-coc-tiny is trained on (--split train) and measured on (--split test: other fonts, layouts and words).\n"
        "The same options and fonts give the same files."
    ),
    examples=("arr-coc render out/pages --pages 100", "arr-coc render out/train --split train --seed 1"),
    add_arguments=add_arguments,
    run=run,
)
