"""`arr-coc build`: a complete model repository, for the Hub or for use without this package."""

import argparse

from ..publishing import build
from .common import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="folder with config, processor, tokenizer, weights and card")
    parser.add_argument("out", metavar="OUT", help="folder to write; must not exist or be empty")
    parser.add_argument("--force", action="store_true", help="replace OUT if it has files")


def run(args: argparse.Namespace) -> None:
    out = build(args.source, args.out, force=args.force)
    print(f'{out}\nload it by AutoModel.from_pretrained("{out}", trust_remote_code=True)')


COMMAND = Command(
    name="build",
    summary="write a model repository that loads without this package",
    description=(
        "Write a complete model repository: the files of SOURCE, the model's code and the maps by which transformers'\n"
        "Auto classes find it (trust_remote_code=True). OUT appears in one step or not at all."
    ),
    examples=("arr-coc build hub_configs/arr-coc-tiny OUT", "arr-coc build hub_configs/arr-coc-tiny OUT --force"),
    add_arguments=add_arguments,
    run=run,
)
