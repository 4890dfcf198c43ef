"""`arr-coc export-language-model`: the language model as a plain checkpoint, for engines such as vLLM."""

import argparse
from pathlib import Path

from .common import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the model: a folder, or org/name on the Hub")
    parser.add_argument("out", metavar="OUT", help="output folder; must be empty or not exist")
    parser.add_argument("--max-shard-size", metavar="SIZE", default="5GB", help="size of a weights file (default: 5GB)")
    parser.add_argument("--force", action="store_true", help="replace OUT if it has files")


def run(args: argparse.Namespace) -> None:
    from arr_coc.files import check_free
    from arr_coc.loading import load_model
    from arr_coc.publishing.building import export_language_model

    check_free(Path(args.out).expanduser().absolute(), args.force)  # before the weights are read
    model = load_model(args.model, "cpu")
    out = export_language_model(model, args.out, force=args.force, max_shard_size=args.max_shard_size)
    print(
        f"{out}\nserve it by: vllm serve {out} --enable-prompt-embeds --dtype {str(model.dtype).removeprefix('torch.')}"
    )


COMMAND = Command(
    name="export-language-model",
    summary="write the language model as a plain checkpoint, for engines such as vLLM",
    description=(
        "Write the language model of MODEL as a plain transformers checkpoint, with tokenizer and chat template. An\n"
        "engine that takes prompt embeddings, such as vLLM, answers the prompts that arr_coc.serving.vllm_client\n"
        "embeds. OUT is written in one step or not at all."
    ),
    examples=("arr-coc export-language-model hub_configs/arr-coc-tiny OUT",),
    add_arguments=add_arguments,
    run=run,
)
