"""`arr-coc build`: a complete model repository, for the Hub or for use without this package."""

import argparse
import sys

from .common import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="folder with config, processor, tokenizer, weights and card")
    parser.add_argument("out", metavar="OUT", help="output folder; must be empty or not exist")
    parser.add_argument("--card", metavar="FILE", help="README.md to use as the card (default: the one in SOURCE)")
    parser.add_argument("--force", action="store_true", help="replace OUT if it has files")


def run(args: argparse.Namespace) -> None:
    from arr_coc.publishing import build
    from arr_coc.publishing.building import CARD, missing_metadata, read_card

    out = build(args.source, args.out, card=args.card, force=args.force)
    print(f'{out}\nload it by AutoModel.from_pretrained("{out}", trust_remote_code=True)')
    missing = missing_metadata(read_card(out / CARD))
    if missing:
        print(f"arr-coc push will ask for {', '.join(missing)} in the metadata of the card", file=sys.stderr)


COMMAND = Command(
    name="build",
    summary="write a model repository that loads without this package",
    description=(
        "Write a complete model repository: the files of SOURCE, the model's code, the auto_map for transformers'\n"
        "Auto classes (trust_remote_code=True), and a card whose metadata has library, task, base models, the tested\n"
        "range of transformers and the results in evaluation.json. OUT is written in one step or not at all."
    ),
    examples=(
        "arr-coc build hub_configs/arr-coc-tiny OUT",
        "arr-coc build ASSEMBLED OUT --card hub_configs/arr-coc-qwen3-0.6b/README.md --force",
    ),
    add_arguments=add_arguments,
    run=run,
)
