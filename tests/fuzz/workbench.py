"""What commands are tried on: a tiny model, a data set, a recipe; and processes that run a command line."""

import fcntl
import hashlib
import importlib
import json
import os
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from PIL import Image
from tqdm import tqdm

from tests.fuzz.tally import Tally
from tests.helpers import tiny_checkpoint, tiny_tokenizer
from tests.published import write_published

LIMIT = 60.0
"""Seconds that a whole command may take."""

PIPE_BYTES = 2**20
"""Room for what a command prints; it is read when the command has ended."""


class Bench:
    """A folder of inputs, made once.

    Attributes:
        root: the folder; outputs of tries go beside the inputs.
        model, published, data, recipe, rules: a checkpoint, stand-ins of published ones, a JSONL file, a recipe, what
            decides an experiment.
    """

    def __init__(self, root: Path) -> None:
        torch.set_num_threads(1)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        import_commands()
        self.root = root
        self.model = tiny_checkpoint(root / "model")
        (root / "tokenizer").mkdir()
        tiny_tokenizer().save_pretrained(root / "tokenizer")
        self.published = write_published(root / "published", root / "tokenizer")
        Image.effect_noise((90, 60), 80).convert("RGB").save(root / "noise.png")
        line = {"image": "noise.png", "question": "What is it?", "answers": ["12"], "boxes": [[8, 8, 20, 16]]}
        self.data = root / "data.jsonl"
        self.data.write_text("".join(json.dumps({**line, "question": f"Line {n}?"}) + "\n" for n in range(3)))
        phase = {"stage": "allocator", "data": {"path": "data.jsonl"}, "steps": 2, "warmup": 1, "batch_size": 1} | {
            "evaluate_every": 1,
            "learning_rate": 1e-3,
            "losses": {"relevance": 1.0},
        }
        self.recipe = root / "recipe.yaml"
        self.recipe.write_text(yaml.safe_dump({"model": "model", "start": "model", "stages": [phase]}))
        rule = {"if": {"arm": "realizer", "above": ["none"], "by": 2.0}, "decision": "GO"}
        otherwise = {"decision": "INCONCLUSIVE"}
        self.rules = root / "rules.yaml"
        self.rules.write_text(yaml.safe_dump({"rules": [rule], "otherwise": otherwise}))

    def evaluate(self, out: Path) -> list[str]:
        options = ["--strategies", "none,random", "--json", str(out)]
        return ["evaluate", str(self.data), "--model", str(self.model), *options]

    def assemble(self, out: Path) -> list[str]:
        sources = ["--vision", str(self.published / "vision"), "--llm", str(self.published / "qwen3")]
        return ["assemble", *sources, "--max-shard-size", "20KB", "--out", str(out), "--force"]

    def train(self, out: Path) -> list[str]:
        return ["train", str(self.recipe), "--out", str(out)]

    def build(self, out: Path) -> list[str]:
        return ["build", str(self.model), str(out), "--force"]

    def render(self, out: Path) -> list[str]:
        return ["render", str(out), "--pages", "3", "--size", "160", "--split", "train", "--force"]


def import_commands() -> None:
    """Imports what the commands import, so that a forked process need not."""
    for name in ("assembling", "data.writing", "evaluation", "model_summary", "publishing.pushing", "training.recipe"):
        importlib.import_module(f"arr_coc.{name}")


@dataclass
class Running:
    """A command at work in a process of its own."""

    process: int
    output: int
    began: float

    def wait(self, seconds: float = LIMIT) -> "Ended | None":
        """What it came to; None if it still works after that time."""
        until = time.monotonic() + seconds
        while not (done := os.waitpid(self.process, os.WNOHANG))[0]:
            if time.monotonic() > until:
                return None
            time.sleep(0.002)
        text = b""
        while select.select([self.output], [], [], 0)[0] and (part := os.read(self.output, PIPE_BYTES)):
            text += part
        os.close(self.output)
        status = os.waitstatus_to_exitcode(done[1])
        return Ended(status, text.decode(errors="replace"), time.monotonic() - self.began)

    def kill(self) -> "Ended":
        os.kill(self.process, signal.SIGKILL)
        ended = self.wait()
        assert ended is not None
        return ended


@dataclass(frozen=True)
class Ended:
    """A command's exit status (negative: the signal that ended it), what it printed, and how long it took, s."""

    status: int
    text: str
    seconds: float

    def judge(self) -> tuple[str, str]:
        """(outcome, what to say of it), of a run that nobody killed."""
        last = self.text.strip().splitlines()[-1:] or [""]
        if self.status < 0:
            return "crashed", f"signal {-self.status}: {last[0]}"
        if self.status == 0:
            return "answered", ""
        said = [line for line in self.text.splitlines() if line.startswith("arr-coc: error: ")]
        if self.status != 2 or "Traceback" in self.text:
            return "traceback", self.text.strip()[-1200:]
        if len(said) != 1 or last != said:
            return "wrong", f"no refusal in one line: {self.text.strip()[-400:]}"
        return "refused", said[0]


def start(arguments: list[str], *, file_bytes: int | None = None) -> Running:
    """Runs a command line in a forked process, which may write files of at most `file_bytes`."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    began = time.monotonic()
    process = os.fork()
    if process:
        os.close(write)
        return Running(process, read, began)
    status = 70
    try:
        os.dup2(write, 1)
        os.dup2(write, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        torch.set_num_threads(1)
        tqdm.set_lock(
            threading.RLock()
        )  # its own is shared by forked processes: one killed while it drew would keep it
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
        status = command(arguments)
    except BaseException:
        status = 1
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def command(arguments: list[str]) -> int:
    """`arr-coc ARGUMENTS`, from the root of a process: a traceback is printed where Python would print it."""
    from arr_coc.cli import main

    return main(arguments)


def finish(arguments: list[str], **options: int | None) -> Ended:
    """Runs a command line to its end.

    Raises:
        TimeoutError: it hangs.
    """
    running = start(arguments, **options)
    ended = running.wait()
    if ended is None:
        running.kill()
        raise TimeoutError(f"{arguments[0]}: still at work after {LIMIT:g} s")
    return ended


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder by its path in it; {} where there is none."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


# ---- what a command leaves
Fault = str | None
"""What is wrong with an output; None: nothing is."""


@dataclass(frozen=True)
class Job:
    """A command that writes, and how its output is looked at.

    Attributes:
        name: of the command.
        arguments: its command line for an output.
        look: what is wrong with an output that was left, given what an undisturbed run makes; `out` may not exist.
        final: as `look`, for a run that came to its end.
    """

    name: str
    arguments: Callable[[Path], list[str]]
    look: Callable[[Path, Path], Fault]
    final: Callable[[Path, Path], Fault]


def jobs(bench: Bench) -> list[Job]:
    """The commands that write folders or files, the quick ones first."""
    return [
        Job("build", bench.build, old_or_new, equal),
        Job("render", bench.render, old_or_new, equal),
        Job("evaluate", bench.evaluate, whole_json, same_scores),
        Job("assemble", bench.assemble, old_or_new, equal),
        Job("train", bench.train, whole_training, same_model),
    ]


Try = Callable[[Job, Path, Path, float, int], tuple[str, int, str]]
"""A job, its output, what an undisturbed run makes and in how many seconds, a seed -> what `Tally.add` takes."""


def fuzz_jobs(count: int, seed: int, attempt: Try) -> Tally:
    """Tries that disturb the commands in turn."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        undisturbed: dict[str, tuple[Path, float]] = {}
        listed, tally = jobs(bench), Tally()
        for try_seed in range(seed, seed + count):
            job = listed[try_seed % len(listed)]
            if job.name not in undisturbed:
                expected = bench.root / f"expected-{job.name}"
                ended = finish(job.arguments(expected))
                assert ended.status == 0, ended.text
                undisturbed[job.name] = expected, ended.seconds
            place = bench.root / f"try{try_seed}"
            place.mkdir()
            tally.add(*attempt(job, place / job.name, *undisturbed[job.name], try_seed))
        return tally


def put_old(job: Job, out: Path) -> None:
    """Puts there what an earlier run of the command may have left, where the command replaces it."""
    if job.look is old_or_new:
        out.mkdir()
        (out / "old.txt").write_text("old")
    elif job.look is whole_json:
        out.write_text('{"strategies": "old"}')


def leftovers(out: Path, before: set[str]) -> Fault:
    """What lies beside an output and did not before, once the command came to its end."""
    left = sorted({path.name for path in out.parent.iterdir()} - before - {out.name})
    return f"left beside it: {', '.join(left)}" if left else None


def equal(out: Path, expected: Path) -> Fault:
    here, there = digests(out), digests(expected)
    differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    return f"other files than undisturbed: {', '.join(differing)}" if differing else None


def old_or_new(out: Path, expected: Path) -> Fault:
    there = out if out.exists() else out.with_name(f".{out.name}.old")  # where the next run finds it
    if not there.exists():
        return "neither the old nor the new content is anywhere"
    return None if [path.name for path in there.iterdir()] == ["old.txt"] else equal(there, expected)


def whole_json(out: Path, expected: Path) -> Fault:
    return None if read_strategies(out) in ("old", read_strategies(expected)) else "neither old nor new"


def same_scores(out: Path, expected: Path) -> Fault:
    return None if read_strategies(out) == read_strategies(expected) else "other scores than undisturbed"


def read_strategies(path: Path) -> object:
    try:
        return json.loads(path.read_text())["strategies"]
    except (OSError, ValueError) as error:
        return str(error)


def whole_training(out: Path, expected: Path) -> Fault:
    return equal(out / "model", expected / "model") if (out / "model").exists() else None


def same_model(out: Path, expected: Path) -> Fault:
    return equal(out / "model", expected / "model")
