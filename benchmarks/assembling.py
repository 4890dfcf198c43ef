"""How much memory does assembling take, compared with the data that it must hold?

    python -m benchmarks.assembling [--max-shard-size 500MB] [--llm qwen3|deepseek] [--scale 1]

Writes stand-ins of the published sizes (see `upstream.py`; `--scale 8` divides widths by 8), assembles them, and prints
the peak growth of resident memory, the largest tensor group and the largest file of the output.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from arr_coc.assembling import Plan, Request, WeightsSource, make_plan, write
from arr_coc.assembling.plan import STORED, Target, part_of
from arr_coc.files import run_module
from arr_coc.loading import find_model

from . import upstream

LIMIT = 1.3
"""The largest allowed ratio of peak memory to the largest tensor group plus one file of the output."""
SMALL = 64
"""The published widths are divided by this for the stand-in of the warm-up."""


@dataclass(frozen=True)
class Footprint:
    """Bytes: peak growth of resident memory; largest tensor group; largest file of the output; all files."""

    peak: int
    group: int
    shard: int
    total: int

    @property
    def ratio(self) -> float:
        """The peak, divided by the bytes that must be held."""
        return self.peak / (self.group + self.shard)


def peak_growth(work: Callable[[], object]) -> int:
    """The peak growth of resident memory while `work` runs, bytes. Linux only.

    Raises:
        OSError: the system does not allow resetting the peak.
    """
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current value
    before = _status("VmRSS")
    work()
    return peak_memory() - before


def peak_memory() -> int:
    """The peak of this process's resident memory, bytes. Linux only."""
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def footprint(plan: Plan, out: Path) -> Footprint:
    """Writes `plan` to `out` and measures. A group is the published rows of one tensor, or a new part of the model."""
    new: Counter[str] = Counter()
    for name, target in plan.targets.items():
        if not target.rows:
            new[part_of(name)] += target.numel * torch.float32.itemsize
    peak = peak_growth(lambda: write(plan, out))
    return Footprint(
        peak=peak,
        group=max(*map(published_nbytes, plan.targets.values()), *new.values()),
        shard=max(sum(plan.targets[name].nbytes for name in names) for names in plan.shards.values()),
        total=plan.nbytes,
    )


def published_nbytes(target: Target) -> int:
    """Bytes of a tensor's published rows."""
    return sum(torch.Size(part.shape).numel() * STORED[part.info.dtype].itemsize for part in target.rows)


def stand_ins(folder: Path, llm: str, scale: int) -> dict[str, Path]:
    """Writes a vision encoder and a language model of the published sizes, with widths divided by `scale`."""
    vision = upstream.deepseek_vision(
        width=768 // scale, channels=256 // scale, compressed=(512 // scale, 1024 // scale), projected=1280 // scale
    )
    tokenizer = Path(find_model(None))
    if llm == "deepseek":
        language = upstream.deepseek_language(width=1280 // scale, inner=6848 // scale, expert=896 // scale)
        special = {"bos_token": "<|endoftext|>"}
        both = upstream.write_upstream(folder / "both", vision | language, tokenizer=tokenizer, special_tokens=special)
        return dict.fromkeys(("vision", "llm"), both)
    language = upstream.qwen3(width=1024 // scale, inner=3072 // scale)
    return {
        "vision": upstream.write_upstream(folder / "vision", vision),
        "llm": upstream.write_upstream(folder / "llm", language, tokenizer=tokenizer),
    }


def plan_of(paths: dict[str, Path], max_shard_size: str) -> Plan:
    """The plan for `stand_ins`; a folder with both parts is opened once."""
    opened = {path: WeightsSource(path) for path in paths.values()}
    sources = {part: opened[path] for part, path in paths.items()}
    return make_plan(Request(sources=sources, max_shard_size=max_shard_size))


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llm", choices=("qwen3", "deepseek"), default="qwen3")
    parser.add_argument("--scale", type=int, default=1, help="divide the published widths by this (default: 1)")
    parser.add_argument("--max-shard-size", default="500MB")
    parser.add_argument("--folder", help="folder for temporary files (default: the system's)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder, llm, shard = Path(name), arguments.llm, arguments.max_shard_size
        # In a separate process, since reuse of freed memory in this one would hide the growth.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
            small, whole = other.map(stand_ins, (folder / "a", folder / "b"), (llm, llm), (SMALL, arguments.scale))
        write(plan_of(small, shard), folder / "first")  # warm-up: Python's one-time allocations do not count
        plan = plan_of(whole, shard)
        memory = footprint(plan, folder / "out")
    print(f"{arguments.llm}, widths / {arguments.scale}, {len(plan.shards)} files")
    for name in ("total", "group", "shard", "peak"):
        print(f"{name:<8}{getattr(memory, name) / 2**20:>10.1f} MiB")
    print(f"peak / (group + shard)  {memory.ratio:.2f}  (limit {LIMIT})")


if __name__ == "__main__":
    run_module(main)
