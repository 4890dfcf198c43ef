"""`arr-coc push`: publish a model repository on the Hub."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .common import Command

if TYPE_CHECKING:
    from arr_coc.publishing.pushing import Checked


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="folder that arr-coc build wrote")
    parser.add_argument("name", metavar="ORG/NAME", help="repository on the Hub; created if there is none")
    seen = parser.add_mutually_exclusive_group()
    seen.add_argument("--private", action="store_true", help="create a private repository (default)")
    seen.add_argument("--public", action="store_true", help="create a public repository")
    parser.add_argument("--revision", metavar="BRANCH", help="branch; created if there is none (default: main)")
    parser.add_argument("--create-pr", action="store_true", help="open a pull request instead of committing")
    parser.add_argument("--message", metavar="TEXT", help="commit message (default: a generated one)")
    parser.add_argument("--dry-run", action="store_true", help="check, list files and bytes; use no network")


def run(args: argparse.Namespace) -> None:
    from arr_coc.publishing import check, check_name, push
    from arr_coc.publishing.pushing import MAIN

    visibility = "public" if args.public else "private"
    place = f"{check_name(args.name)} ({visibility}), branch {args.revision or MAIN}"
    if args.dry_run:
        print(listing(check(args.folder)))
        print(f"{'a pull request to' if args.create_pr else 'to'} {place}; nothing was sent")
        return
    with _bars_only():
        pushed = push(
            args.folder,
            args.name,
            private=not args.public,
            revision=args.revision,
            create_pr=args.create_pr,
            message=args.message,
        )
    for name in pushed.removed:
        print(f"removed {name}, weights that the folder does not have", file=sys.stderr)
    files = f"{len(pushed.checked.files)} files, {pushed.checked.nbytes:,} bytes"
    print(f"{pushed.url}\n{files} {'pushed to' if pushed.changed else 'were there already:'} {place}")


def listing(checked: Checked) -> str:
    """Files with their bytes, and the sums."""
    rows = [
        *checked.files.items(),
        (f"in {len(checked.files)} files, {checked.parameters:,} parameters", checked.nbytes),
    ]
    width = max(len(f"{size:,}") for _, size in rows)
    return "\n".join(f"{size:>{width},}  {name}" for name, size in rows)


@contextmanager
def _bars_only() -> Iterator[None]:
    """Progress bars of the upload where somebody watches, without notes on retries, which name signed addresses."""
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars, logging

    verbosity = logging.get_verbosity()
    bars = are_progress_bars_disabled() and sys.stderr.isatty() and constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    logging.set_verbosity_error()
    if bars:
        enable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            disable_progress_bars()


COMMAND = Command(
    name="push",
    summary="publish a model repository on the Hub",
    description=(
        "Publish FOLDER as ORG/NAME in one commit. First FOLDER is checked: it must be complete, hold no pickles and\n"
        "no paths of this machine, and load as others will load it, which runs the code in it. Weights in the\n"
        "repository that are not in FOLDER are removed. The token comes from HF_TOKEN or hf auth login. An\n"
        "interrupted run resumes when it is repeated."
    ),
    examples=(
        "arr-coc push OUT org/name --dry-run",
        "arr-coc push OUT org/name --revision v2 --private",
        "arr-coc push OUT org/name --public --create-pr",
    ),
    add_arguments=add_arguments,
    run=run,
)
