"""How much memory does a model take with several placements, and is its answer always the same?

    python -m benchmarks.placing MODEL [--dtype bfloat16] [--new-tokens 8] [--max-shard-size 500MB]

Each placement runs in a separate process; the peak of its resident memory is printed, imports included. Placements: the
whole model; `device_map="auto"`; its language model on disk; exported in shards and loaded from them. Linux only.
"""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from arr_coc.files import run_module
from arr_coc.model_summary import question_inputs
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from .assembling import peak_memory
from .timing import argument_parser

MODULES = ("model.vision_tower", "model.fetcher", "model.bridge", "model.layout", "model.language_model", "lm_head")
ON_DISK = ("model.language_model", "lm_head")


@dataclass(frozen=True)
class Asked:
    """The arguments of every process: folders of model and scratch files, dtype, length of the answer, shard size."""

    model: Path
    scratch: Path
    dtype: torch.dtype
    new_tokens: int
    max_shard_size: str


@dataclass(frozen=True)
class Placed:
    """The answer's token ids, peak resident bytes, and seconds of loading and answering."""

    answer: list[int]
    peak: int
    seconds: float


def _load(asked: Asked, folder: Path | None = None, **placing: Any) -> ArrCocForConditionalGeneration:
    source = asked.model if folder is None else folder
    return ArrCocForConditionalGeneration.from_pretrained(source, dtype=asked.dtype, **placing).eval()


def _auto(asked: Asked) -> ArrCocForConditionalGeneration:
    return _load(asked, device_map="auto")


def _disk(asked: Asked) -> ArrCocForConditionalGeneration:
    placed = {part: "disk" if part in ON_DISK else "cpu" for part in MODULES}
    return _load(asked, device_map=placed, offload_folder=asked.scratch / "offload")


def _exported(asked: Asked) -> ArrCocForConditionalGeneration:
    model, folder = _load(asked), asked.scratch / "exported"
    model.save_pretrained(folder, max_shard_size=asked.max_shard_size)
    model.processor.save_pretrained(folder)
    del model
    return _load(asked, folder)


WAYS: dict[str, Callable[[Asked], ArrCocForConditionalGeneration]] = {
    "whole": _load,
    'device_map="auto"': _auto,
    "language model on disk": _disk,
    "exported in shards, loaded": _exported,
}


def place(way: str, asked: Asked) -> Placed:
    """Loads the model with this placement and answers one question about `generated_image`."""
    began = time.perf_counter()
    model = WAYS[way](asked)
    inputs: Any = question_inputs(model)
    length: Any = {"max_new_tokens": asked.new_tokens, "min_new_tokens": asked.new_tokens}
    ids = model.generate(**inputs, **length)[0, inputs["input_ids"].shape[1] :]
    return Placed(ids.tolist(), peak_memory(), time.perf_counter() - began)


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argument_parser(__doc__, None, dtype="bfloat16")
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--max-shard-size", default="500MB")
    parser.add_argument("--folder", help="folder for temporary weights (default: the system's)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as scratch:
        asked = Asked(
            model=Path(arguments.model),
            scratch=Path(scratch),
            dtype=getattr(torch, arguments.dtype),
            new_tokens=arguments.new_tokens,
            max_shard_size=arguments.max_shard_size,
        )
        with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
            placed = dict(zip(WAYS, pool.map(place, WAYS, [asked] * len(WAYS)), strict=True))
        shards = len(list((asked.scratch / "exported").glob("*.safetensors")))
    print(f"{arguments.model}, {arguments.dtype}, {arguments.new_tokens} new tokens, exported in {shards} files")
    print(f"{'':<28}{'peak memory':>12}{'seconds':>9}  token ids of the answer")
    for way, of in placed.items():
        answer = "the same" if way != "whole" and of.answer == placed["whole"].answer else of.answer
        print(f"{way:<28}{of.peak / 2**30:>8.2f} GiB{of.seconds:>9.1f}  {answer}")


if __name__ == "__main__":
    run_module(main)
