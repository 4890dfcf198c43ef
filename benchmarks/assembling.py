"""How much memory does assembling take, against what it must hold?

    python -m benchmarks.assembling [--max-shard-size 500MB] [--llm qwen3|deepseek] [--scale 1]

Writes stand-ins of the published sizes (see `upstream.py`; `--scale 8` divides widths by 8), assembles them, and prints
the growth of resident memory at its peak beside the largest tensor group and the largest file of the output.
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

from arr_coc.assembling import Plan, Request, Source, make_plan, write
from arr_coc.assembling.writer import part_of
from arr_coc.files import run_module
from arr_coc.loading import find_model

from . import upstream

LIMIT = 1.3
"""Peak memory may be this many times the largest tensor group and one file of the output together."""
SMALL = 64
"""Published widths over this make the stand-in that is assembled first, unmeasured."""


@dataclass(frozen=True)
class Footprint:
    """Bytes: growth of resident memory at its peak; largest tensor group; largest file of the output; all files."""

    peak: int
    group: int
    shard: int
    total: int

    @property
    def ratio(self) -> float:
        """Peak over what must be held."""
        return self.peak / (self.group + self.shard)


def peak_growth(work: Callable[[], object]) -> int:
    """Bytes by which resident memory grows while `work` runs, at its peak. Linux only.

    Raises:
        OSError: the system does not let the peak be reset.
    """
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident now
    before = _status("VmRSS")
    work()
    return peak_memory() - before


def peak_memory() -> int:
    """Resident bytes of this process at their peak. Linux only."""
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def footprint(plan: Plan, out: Path) -> Footprint:
    """Writes `plan` to `out` and measures. A group: the published rows of one tensor, or a part that starts anew."""
    new: Counter[str] = Counter()
    for name, target in plan.targets.items():
        if not target.rows:
            new[part_of(name)] += target.numel * torch.float32.itemsize
    peak = peak_growth(lambda: write(plan, out))
    return Footprint(
        peak=peak,
        group=max(*(target.input_nbytes for target in plan.targets.values()), *new.values()),
        shard=max(sum(plan.targets[name].nbytes for name in names) for names in plan.shards.values()),
        total=plan.nbytes,
    )


def stand_ins(folder: Path, llm: str, scale: int) -> dict[str, Path]:
    """Writes a vision encoder and a language model of the published sizes, widths divided by `scale`."""
    vision = upstream.deepseek_vision(
        width=768 // scale,
        channels=256 // scale,
        compressed=(512 // scale, 1024 // scale),
        projected=1280 // scale,
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
    """The plan over `stand_ins`; a folder that holds both parts is opened once."""
    opened = {path: Source(path) for path in paths.values()}
    sources = {part: opened[path] for part, path in paths.items()}
    return make_plan(Request(sources=sources, max_shard_size=max_shard_size))


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--llm", choices=("qwen3", "deepseek"), default="qwen3")
    parser.add_argument("--scale", type=int, default=1, help="divide the published widths by this (default: 1)")
    parser.add_argument("--max-shard-size", default="500MB")
    parser.add_argument("--folder", help="where to write, which is cleared afterwards (default: the system's)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder, llm, shard = Path(name), arguments.llm, arguments.max_shard_size
        # In a process of its own: memory that this one has freed would be used again, and no growth be seen.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
            small, whole = other.map(stand_ins, (folder / "a", folder / "b"), (llm, llm), (SMALL, arguments.scale))
        write(plan_of(small, shard), folder / "first")  # what Python sets aside once is not the plan's
        plan = plan_of(whole, shard)
        memory = footprint(plan, folder / "out")
    print(f"{arguments.llm}, widths / {arguments.scale}, {len(plan.shards)} files")
    for name in ("total", "group", "shard", "peak"):
        print(f"{name:<8}{getattr(memory, name) / 2**20:>10.1f} MiB")
    print(f"peak / (group + shard)  {memory.ratio:.2f}  (limit {LIMIT})")


if __name__ == "__main__":
    run_module(main)
