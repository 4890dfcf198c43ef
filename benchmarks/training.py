"""How fast is training, how much memory does it take, and what does the cache of encoder outputs save?

    python -m benchmarks.training [MODEL] [--steps 6] [--batch-size 8] [--processes 2]

All arms use the same rendered questions: all parts trained; the scorer only (the encoder runs without a gradient); the
scorer only, with cached encoder outputs. Figures are medians over steps, each with collating, forward, backward and
optimiser step. Memory is the peak of a step's tensors (activations, gradients), without weights and optimiser state.
--processes also compares the first arm in several processes (DDP over gloo, one thread each) with one.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs

from arr_coc.adapters import PARTS
from arr_coc.data.collator import QuestionCollator
from arr_coc.data.formats import open_records
from arr_coc.data.records import Record
from arr_coc.files import find_model, run_module
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.training.cache import CachedEncoder
from arr_coc.training.optimizers import train_only

from .costs import LiveTensors
from .timing import argument_parser

ARMS: dict[str, tuple[tuple[str, ...], bool]] = {
    "everything": (tuple(PARTS), False),
    "scorer": (("scorer",), False),
    "scorer, cached": (("scorer",), True),
}
"""Trained parts by name, and whether encoder outputs are cached."""


@dataclass(frozen=True)
class Throughput:
    """Items per second over all processes, median seconds per step, and peak bytes of a step in one process."""

    items: float
    seconds: float
    peak: int


def measure(model_path: str | Path, arm: str, records: Sequence[Record], *, batch_size: int, steps: int) -> Throughput:
    """Trains `steps` timed steps of an arm, after a warm-up step (which fills the cache) and one that measures memory.

    Args:
        model_path: a checkpoint's folder; reloaded, so that all arms start equally.
        arm: a name in `ARMS`.
        records: the questions; each process uses its share.
        batch_size: items per step and process.
        steps: number of timed steps.
    """
    parts, cached = ARMS[arm]
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # a step can skip scorers
    accelerator = Accelerator(cpu=True, kwargs_handlers=[unused])
    model = ArrCocForConditionalGeneration.from_pretrained(model_path)
    train_only(model, parts)
    collate = QuestionCollator(model.processor, model.config)
    own = list(records)[accelerator.process_index :: accelerator.num_processes]
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    prepared, optimizer = accelerator.prepare(model.train(), torch.optim.AdamW(trained, lr=1e-5))
    with tempfile.TemporaryDirectory() as folder:
        encoder = CachedEncoder(model, folder) if cached else None

        def step(number: int) -> None:
            first = number * batch_size % len(own)
            batch: dict[str, Any] = {**collate((own + own)[first : first + batch_size])}
            if encoder is not None:
                batch["image_encoding"] = encoder.encode(batch.pop("pixel_values"), batch.pop("patch_mask"))
            accelerator.backward(prepared(**batch, use_cache=False).loss)
            optimizer.step()
            optimizer.zero_grad()

        for number in range(-(-len(own) // batch_size) if cached else 1):
            step(number)
        optimizer.zero_grad(set_to_none=True)
        with LiveTensors() as live:
            step(0)
        seconds = []
        for number in range(steps):
            accelerator.wait_for_everyone()
            began = time.perf_counter()
            step(number)
            seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds)
    return Throughput(batch_size * accelerator.num_processes / median, median, live.peak)


def launched(arguments: argparse.Namespace, processes: int) -> Throughput:
    """The first arm in `processes` processes of one thread each.

    Raises:
        RuntimeError: the processes failed; the message is the end of their standard error.
    """
    command = (
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
        + ["benchmarks.training", str(arguments.model), "--worker", "--steps", str(arguments.steps), "--batch-size"]
        + [str(arguments.batch_size), "--pages", str(arguments.pages)]
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise RuntimeError(f"{processes} processes: {done.stderr[-2000:]}")
    return Throughput(**json.loads(lines[-1]))


def _row(name: str, measured: Throughput, base: Throughput) -> str:
    faster = measured.items / base.items
    return f"{name:16} {measured.items:8.2f} {1000 * measured.seconds:9.0f} {measured.peak / 2**20:8.0f} {faster:11.2f}"


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argument_parser(__doc__, "hub_configs/arr-coc-tiny-2")
    parser.add_argument("--steps", type=int, default=6, help="timed steps per arm (default: 6)")
    parser.add_argument("--batch-size", type=int, default=8, help="questions per step and process")
    parser.add_argument("--pages", type=int, default=16, help="rendered pages, with 2 questions each (default: 16)")
    parser.add_argument("--processes", type=int, default=0, help="also compare this number of processes with one")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    side = ArrCocConfig.from_pretrained(model).vision_config.image_size
    spec = {"format": "rendered", "pages": arguments.pages, "questions": 2, "size": side, "split": "train"}
    records = open_records(spec)
    if arguments.worker:
        measured = measure(model, next(iter(ARMS)), records, batch_size=arguments.batch_size, steps=arguments.steps)
        accelerator = Accelerator(cpu=True)
        if accelerator.is_main_process:
            print(json.dumps(asdict(measured)), flush=True)
        accelerator.end_training()
        return
    setting = f"{arguments.batch_size} questions per step and process, {torch.get_num_threads()} threads"
    print(f"{arguments.model}, {side} px, {setting}, medians of {arguments.steps} steps")
    print(f"{'trained':16} {'items/s':>8} {'ms/step':>9} {'MiB':>8} {'x the first':>11}", flush=True)
    base = None
    for arm in ARMS:
        measured = measure(model, arm, records, batch_size=arguments.batch_size, steps=arguments.steps)
        base = base or measured
        print(_row(arm, measured, base), flush=True)
    if arguments.processes:
        single = launched(arguments, 1)
        print(_row("1 process", single, single))
        print(_row(f"{arguments.processes} processes", launched(arguments, arguments.processes), single))


if __name__ == "__main__":
    run_module(main)
