"""Kills a training run with SIGKILL at random moments and compares what comes of it with an uninterrupted run.

python tests/kill_training.py --kills 20
"""

import argparse
import hashlib
import random
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

import torch
import yaml
from helpers import tiny_checkpoint
from safetensors.torch import load_file
from transformers.utils import logging

from arr_coc.training.checkpoints import checkpoints, damage, newest_complete
from arr_coc.training.recipe import load_recipe, train

PAGES = {"format": "rendered", "pages": 4, "questions": 2, "size": 128}
STAGE = {"data": PAGES, "held_out": {**PAGES, "pages": 1, "seed": 9}, "warmup": 2, "batch_size": 2} | {
    "evaluate_every": 2,
    "learning_rate": 1e-3,
    "strategies": {"realizer": 1.0, "clip_query": 1.0, "none": 0.5},
}


def write_recipe(folder: Path, steps: int) -> Path:
    """A tiny model and a recipe of two phases for it."""
    tiny_checkpoint(folder / "tiny")
    stages = [{"stage": "allocator"}, {"stage": "joint"}]
    recipe = {"model": "tiny", "start": "tiny", "defaults": {**STAGE, "steps": steps}, "stages": stages}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def begin(recipe: Path, out: Path) -> ForkProcess:
    """Starts the run in a process of its own, which has imported everything already."""
    child = get_context("fork").Process(target=train, args=(load_recipe(recipe), out))
    child.start()
    return child


def finished(child: ForkProcess, seconds: float) -> bool:
    """Whether the run ended by itself within that time; it fails this script if it ended badly."""
    child.join(seconds)
    if child.exitcode:
        raise SystemExit(f"the run ended with status {child.exitcode}")
    return child.exitcode == 0


def digest(out: Path) -> str:
    """Of the weights that a run has made."""
    return hashlib.sha256((out / "model" / "model.safetensors").read_bytes()).hexdigest()


def inspect(out: Path) -> tuple[int, int]:
    """What a kill left: (checkpoints that are not whole, the step to go on from); what counts as whole can be read."""
    broken, step = 0, 0
    for number, folder in enumerate(sorted(out.glob("stage*"))):
        broken += sum(damage(path) is not None for path in checkpoints(folder))
        newest = newest_complete(folder)
        if newest is not None:
            load_file(newest / "model.safetensors")
            torch.load(newest / "optimizer.pt", weights_only=True)
            step = 1000 * number + int(newest.name.split("-")[1])
    return broken, step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30, help="of each of two phases")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = write_recipe(folder, args.steps)
        began = time.monotonic()
        finished(begin(recipe, folder / "whole"), 3600)
        whole = time.monotonic() - began
        expected, kills, rounds, broken, exact = digest(folder / "whole"), 0, 0, 0, 0
        while kills < args.kills:
            rounds += 1
            out = folder / f"killed{rounds}"
            while kills < args.kills:
                child = begin(recipe, out)
                if finished(child, rng.uniform(0.0, whole / 3)):
                    break
                child.kill()
                child.join()
                kills += 1
                left, step = inspect(out)
                broken += left
                where = f"step {step % 1000} of phase {step // 1000}"
                print(f"kill {kills}: {where}, {left} checkpoints not whole", flush=True)
            else:
                finished(begin(recipe, out), 3600)
            exact += digest(out) == expected
    print(
        f"{kills} kills in {rounds} runs; {broken} checkpoints not whole, none loaded; {exact} of {rounds} runs exact"
    )
    return 0 if exact == rounds else 1


if __name__ == "__main__":
    sys.exit(main())
