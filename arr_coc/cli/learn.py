"""`arr-coc learn`: from feedback to a better scorer, or to the reason why not."""

import argparse
import logging
import sys
from pathlib import Path

from .common import Command, add_device_argument, add_model_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", nargs="?", help="folder that arr-coc serve --feedback wrote")
    add_model_argument(parser)
    parser.add_argument("--versions", metavar="DIR", required=True, help="folder of the versions of the scorer")
    original = "YAML file (format, path, ...) of questions on which the scorer's relevance is kept by distillation"
    parser.add_argument("--original", metavar="DATA.yaml", help=original)
    parser.add_argument("--rest", metavar="DATA.yaml", help="regression set: YAML file, as --original")
    parser.add_argument("--back", action="store_true", help="go back to the previous version, and exit")
    parser.add_argument("--steps", metavar="N", type=int, help="training steps (default: 400)")
    parser.add_argument("--rank", metavar="R", type=int, help="rank of the LoRA adapter (default: 8)")
    margin = "points that the regression set may lose; the interval must exclude a larger loss (default: 1)"
    parser.add_argument("--margin", metavar="POINTS", type=float, help=margin)
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    from arr_coc.learning.versions import Versions

    versions = Versions(Path(args.versions).expanduser())
    if args.back:
        print(f"in use: {versions.step_back()}")
        return
    missing = [name for name in ("log", "original", "rest") if getattr(args, name) is None]
    if missing:
        raise ValueError(f"learn: expected LOG, --original and --rest (or --back); got no {', '.join(missing)}")
    from arr_coc.learning.learn import Lesson, learn
    from arr_coc.loading import find_device, find_model

    from .data_arguments import read_source

    margin = None if args.margin is None else args.margin / 100
    given = {"steps": args.steps, "rank": args.rank, "margin": margin}
    lesson = Lesson(
        feedback=Path(args.log).expanduser(),
        original=read_source(Path(args.original).expanduser()),
        rest=read_source(Path(args.rest).expanduser()),
        model=find_model(args.model),
        **{name: value for name, value in given.items() if value is not None},
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("arr_coc.training")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        learned = learn(lesson, versions, find_device(args.device))
    finally:
        logger.removeHandler(handler)
    print("\n".join(learned.decision.lines()))
    print(f"in use: {versions.current().version}")


COMMAND = Command(
    name="learn",
    summary="train the scorer on feedback, and promote it if it is better",
    description=(
        "Train an adapter of the scorer on feedback (two images in three). Every second question is an original one,\n"
        "on which the scorer's relevance is kept. Then compare the adapter with the scorer in use, on the other\n"
        "feedback and on a regression set. It is promoted if it is better on the feedback and loses no more than the\n"
        "margin on the regression set. Servers with --versions DIR load it at once. A killed run resumes."
    ),
    examples=(
        "arr-coc learn said --original original.yaml --rest rest.yaml --versions scorers",
        "arr-coc learn --versions scorers --back",
    ),
    add_arguments=add_arguments,
    run=run,
)
