"""`arr-coc assemble`: one checkpoint from the published weights of several models."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .common import Command

if TYPE_CHECKING:
    from arr_coc.assembling import Source

BRIDGES = "cells, linear, quality, transformer, vet, wordpieces"
SCORERS = (
    "none, random, saliency, variance, oracle, clip_query, realizer, compositional, contextual, shannon_jung_vervaeke, "
    "hierarchical, experts, glance"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = "folder, or org/name or org/name@revision on the Hub"
    parser.add_argument("--vision", metavar="V", required=True, help=f"DeepSeek-OCR's weights: {where}")
    parser.add_argument("--llm", metavar="L", required=True, help=f"Qwen3, Ovis2.5 or DeepSeek-OCR: {where}")
    parser.add_argument("--bridge", metavar="B", default="linear", help=f"{BRIDGES} (default: linear)")
    scorers = f"one or more, with commas; the first is the default strategy: {SCORERS} (default: realizer)"
    parser.add_argument("--scorer", metavar="S,...", default="realizer", help=scorers)
    clip = f"a CLIP model whose word embeddings scorer clip_query starts from: {where}"
    parser.add_argument("--clip-text", metavar="C", help=clip)
    for option in ("vision", "llm", "clip-text"):
        parser.add_argument(f"--{option}-revision", metavar="R", help=f"commit, tag or branch of --{option} on the Hub")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        help="type of the weights (default: the vision encoder's)",
    )
    parser.add_argument("--max-shard-size", metavar="SIZE", default="5GB", help='of a file, as "500MB" (default: 5GB)')
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of parts that start at random (default: 0)")
    parser.add_argument("--out", metavar="OUT", help="folder to write; must not exist or be empty")
    parser.add_argument("--force", action="store_true", help="replace OUT if it has files")
    parser.add_argument("--dry-run", action="store_true", help="print the plan; write nothing, download no weights")


def run(args: argparse.Namespace) -> None:
    from huggingface_hub.utils import enable_progress_bars

    from arr_coc.assembling import Request, make_plan, report, write
    from arr_coc.files import check_free
    from arr_coc.modeling.bridges import BRIDGES
    from arr_coc.modeling.scorers import SCORERS

    if args.out is None and not args.dry_run:
        raise ValueError("--out: expected a folder to write, or --dry-run; got neither")
    out = None if args.out is None else Path(args.out).expanduser().absolute()
    if out is not None:
        check_free(out, args.force)
    scorers = tuple(name.strip() for name in args.scorer.split(","))
    BRIDGES[args.bridge]  # a ValueError before anything is downloaded
    for name in scorers:
        SCORERS[name]
    request = Request(
        sources=_sources(args),
        bridge=args.bridge,
        scorers=scorers,
        dtype=args.dtype,
        max_shard_size=args.max_shard_size,
        seed=args.seed,
    )
    plan = make_plan(request)
    print(report(plan))
    if args.dry_run or out is None:
        return
    progress = sys.stderr.isatty()
    if progress:
        enable_progress_bars()  # of downloads; commands switch them off otherwise
    write(plan, out, force=args.force, progress=progress)
    print(f"\n{out}\nmake a repository of it by: arr-coc build {out} OUT")


def _sources(args: argparse.Namespace) -> dict[str, Source]:
    """By role; a source that is asked for twice is opened once, and its tensors are accounted for together."""
    from arr_coc.assembling import open_source

    opened: dict[tuple[str, str | None], Source] = {}
    sources = {}
    for role in ("vision", "llm", "clip-text"):
        key = (getattr(args, role.replace("-", "_")), getattr(args, f"{role.replace('-', '_')}_revision"))
        if key[0] is None:
            continue
        if key not in opened:
            opened[key] = open_source(*key, option=f"--{role}")
        sources[role] = opened[key]
    return sources


COMMAND = Command(
    name="assemble",
    summary="make a checkpoint from the published weights of other models",
    description=(
        "Make an ARR-COC checkpoint from DeepSeek-OCR's vision encoder and a published language model. Weights are\n"
        "streamed: memory holds one file of the output at a time. OUT appears in one step or not at all; a killed run\n"
        "can be started again."
    ),
    examples=(
        "arr-coc assemble --vision deepseek-ai/DeepSeek-OCR --llm Qwen/Qwen3-0.6B --out OUT",
        "arr-coc assemble --vision deepseek-ai/DeepSeek-OCR --llm deepseek-ai/DeepSeek-OCR --dry-run",
        "arr-coc assemble --vision deepseek-ai/DeepSeek-OCR --llm AIDC-AI/Ovis2.5-2B --bridge vet --out OUT",
    ),
    add_arguments=add_arguments,
    run=run,
)
