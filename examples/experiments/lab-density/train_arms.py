"""Trains every arm of the density experiment, for every seed: the stages that all share first, then arm by arm.

python examples/experiments/lab-density/train_arms.py                               # on CPUs, one after the other
python examples/experiments/lab-density/train_arms.py --device cuda --jobs 6        # on a GPU, six at a time

What is finished is skipped and what was killed goes on, so the same command may be given again. Stages that a finished
training of the same seed began with are taken from it: they would come to the same weights. Each training is
`arr-coc train` with its output in OUT/NAME-SEED.log; SETTINGs are handed on (answering.steps=8000).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import itemgetter
from pathlib import Path
from shutil import copytree, rmtree

from arr_coc.training.recipe import load_recipe

LAB = Path(__file__).parents[3] / "hub_configs" / "arr-coc-lab"

SHARED = ("shared", "shared_floor")
"""The trainings that arms start from; the second begins as the first one does."""

STARTS = {"floor": "shared_floor", "floor_flops": "shared_floor"}
"""Which of them an arm starts from, where not from the first."""

SEEDS = {
    "running": 3, "floor": 3, "smaller": 2, "blind": 2, "patches_only": 2, "keep_all": 2, "floor_flops": 2,
    "smaller_flops": 2,
}  # fmt: skip
"""Arms, and how many trainings each gets: seeds 0, 1, ..."""


@dataclass(frozen=True)
class Training:
    """One run of a recipe with a seed.

    Attributes:
        name: of `SHARED`, or an arm.
        seed: of weights and pages; that of shared trainings is 0.
        out: folder of all trainings.
    """

    name: str
    seed: int
    out: Path

    @property
    def folder(self) -> Path:
        """Its own, which holds `model` once it is done."""
        return self.out / (self.name if self.name in SHARED else f"{self.name}-{self.seed}")

    @property
    def done(self) -> bool:
        """Whether it has run to its end: the model is written last, and in one go."""
        return (self.folder / "model").is_dir()

    @property
    def recipe(self) -> Path:
        """Its file."""
        return LAB / (f"{self.name}.yaml" if self.name in SHARED else f"arms/{self.name}.yaml")

    def settings(self, more: Sequence[str]) -> list[str]:
        """Of its recipe: those that tell trainings of an arm apart, and more."""
        if self.name in SHARED:
            return list(more)
        seeded = ("seed", *(f"{stage}.seed" for stage in ("visual_pretraining", "answering")))
        before = Training(STARTS.get(self.name, SHARED[0]), 0, self.out)
        start = before.folder.absolute() / "model"
        return [*(f"{setting}={self.seed}" for setting in seeded), f"start={start}", *more]

    def command(self, device: str, settings: Sequence[str]) -> list[str]:
        """What runs it."""
        command = [sys.executable, "-m", "arr_coc.cli", "train", str(self.recipe), *self.settings(settings)]
        return [*command, "--out", str(self.folder), "--device", device]

    def asked_alike(self, settings: Sequence[str]) -> bool:
        """Whether it was begun with these settings, which are kept beside its folder; it is begun now if it was not."""
        kept, asked = self.folder.with_suffix(".settings"), json.dumps(self.settings(settings))
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(asked)
        return kept.read_text() == asked

    def take_stages(self, settings: Sequence[str]) -> None:
        """Begins with the stages that a finished training of the same seed began with."""
        others = [Training(name, self.seed, self.out) for name in (SHARED if self.name in SHARED else SEEDS)]
        others = [other for other in others if other.done and other.asked_alike(settings)]
        if self.folder.exists() or not others:
            return
        other, count = max(((other, self._in_common(other, settings)) for other in others), key=itemgetter(1))
        beside = self.folder.with_suffix(".part")
        rmtree(beside, ignore_errors=True)
        beside.mkdir()
        for number in range(count):
            copytree(other.folder / f"stage{number}", beside / f"stage{number}")
        beside.rename(self.folder)

    def _in_common(self, other: "Training", settings: Sequence[str]) -> int:
        """How many stages at the start run in the same way, from the same weights, as another training's."""
        own, its = (load_recipe(each.recipe, each.settings(settings)) for each in (self, other))
        if replace(own, stages=()) != replace(its, stages=()):
            return 0
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(own.stages, its.stages, strict=False)))


def run(training: Training, device: str, settings: Sequence[str]) -> bool:
    """Runs a training unless it is done; returns whether it is now."""
    if not training.asked_alike(settings):
        print(f"{training.folder}: begun with other settings, see its .settings", flush=True)
        return False
    if not training.done:
        print(f"{training.folder}: training", flush=True)
        training.take_stages(settings)
        with training.folder.with_suffix(".log").open("a") as log:
            subprocess.run(training.command(device, settings), stdout=log, stderr=log, check=False)
    print(f"{training.folder}: {'done' if training.done else 'failed, see its .log'}", flush=True)
    return training.done


def run_all(trainings: Iterable[Training], jobs: int, device: str, settings: Sequence[str]) -> bool:
    """Runs trainings, so many at a time; returns whether all are done."""
    with ThreadPoolExecutor(jobs) as pool:
        return all(list(pool.map(lambda training: run(training, device, settings), trainings)))


def main() -> int:
    """Trains what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", metavar="SETTING", nargs="*", help="of every arm's recipe, as for arr-coc train")
    parser.add_argument("--out", type=Path, default=Path("runs/lab"), help="(default: runs/lab)")
    parser.add_argument("--device", default="cpu", help="(default: cpu)")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time (default: 1)")
    parser.add_argument("--arms", default=",".join(SEEDS), help=f"(default: {','.join(SEEDS)})")
    parser.add_argument(
        "--seeds", type=int, help="trainings of each arm (default: 3 of floor and running, 2 of others)"
    )
    of_shared = "setting of the shared training alone; may be repeated"
    parser.add_argument("--shared", metavar="SETTING", action="append", default=[], help=of_shared)
    options = parser.parse_args()
    arms = options.arms.split(",")
    if strange := sorted(set(arms) - set(SEEDS)):
        parser.error(f"--arms: expected names among {', '.join(SEEDS)}; got {', '.join(strange)}")
    counts = {arm: SEEDS[arm] if options.seeds is None else options.seeds for arm in arms}
    shared = [Training(name, 0, options.out) for name in SHARED]
    # Seed by seed: what is there early is one training of every arm.
    trainings = [
        Training(arm, seed, options.out) for seed in range(max(counts.values())) for arm in arms if seed < counts[arm]
    ]
    if not all(run(training, options.device, options.shared) for training in shared):
        return 1
    return 0 if run_all(trainings, options.jobs, options.device, options.settings) else 1


if __name__ == "__main__":
    sys.exit(main())
