"""Every command with one damaged file among its inputs: an answer, or one line and exit code 2."""

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.mutations import mutate
from tests.fuzz.tally import Tally
from tests.fuzz.workbench import Bench, finish


class Case(NamedTuple):
    """A command line for a folder of its own (a copy of `source`), and the files in it that may be damaged."""

    source: Path
    files: tuple[str, ...]
    arguments: Callable[[Path], list[str]]


MODEL_FILES = tuple(
    "config.json generation_config.json model.safetensors processor_config.json tokenizer.json "
    "tokenizer_config.json chat_template.jinja".split()
)
QUICK = ("steps=2", "batch_size=1", "accumulation=1", "warmup=1")
"""What a recipe may say otherwise without being wrong, and take long."""

PUBLISHED_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.index.json", "tokenizer*.json")


def fuzz(count: int, seed: int) -> Tally:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        cases, tally = _cases(bench), Tally()
        for try_seed in range(seed, seed + count):
            drawn = random.Random(try_seed)
            case = drawn.choice(cases)
            place = bench.root / f"try{try_seed}"
            _make(bench, case.source)
            shutil.copytree(case.source, place)
            files = sorted(path for pattern in case.files for path in place.glob(pattern) if path.is_file())
            path = drawn.choice(files)
            damage = mutate(path, drawn)
            arguments = case.arguments(place)
            try:
                outcome, detail = finish(arguments).judge()
            except TimeoutError as error:
                outcome, detail = "hung", str(error)
            tally.add(outcome, try_seed, f"{arguments[0]}, {path.relative_to(place)} ({damage}): {detail}")
            shutil.rmtree(place)
        return tally


def _cases(bench: Bench) -> list[Case]:
    """Every command, with each kind of file that it reads."""
    image, data, model = str(bench.root / "noise.png"), str(bench.data), str(bench.model)
    built, trained = bench.root / "built", bench.root / "trained"
    inputs = bench.root / "inputs"
    inputs.mkdir()
    for name in ("noise.png", "data.jsonl", "recipe.yaml", "rules.yaml"):
        shutil.copyfile(bench.root / name, inputs / name)
    (inputs / "data.yaml").write_text("{format: jsonl, path: data.jsonl}\n")
    (inputs / "suite.yaml").write_text("sets: {a: {data: {format: jsonl, path: data.jsonl}, arms: [none]}}\n")
    (inputs / "recipe.yaml").write_text(bench.recipe.read_text().replace(": model\n", f": {model}\n"))
    evaluate = ["--model", model, "--strategies", "none"]
    states = tuple(f"out/stage0/{part}/*" for part in ("checkpoint-1", "checkpoint-2", "model"))
    return [
        Case(bench.model, MODEL_FILES, lambda at: ["ask", image, "What?", "--model", str(at)]),
        Case(bench.model, MODEL_FILES, lambda at: ["info", str(at)]),
        Case(bench.model, (*MODEL_FILES, "README.md"), lambda at: ["build", str(at), f"{at}.built"]),
        Case(bench.model, MODEL_FILES, lambda at: ["evaluate", data, "--model", str(at), "--strategies", "none"]),
        Case(bench.model, MODEL_FILES, lambda at: ["train", str(bench.recipe), f"start={at}", "--out", f"{at}.out"]),
        Case(bench.model, MODEL_FILES, lambda at: ["train", str(bench.recipe), f"model={at}", "--out", f"{at}.out"]),
        Case(built, (*MODEL_FILES, "README.md"), lambda at: ["push", str(at), "org/name", "--dry-run"]),
        Case(bench.published / "vision", PUBLISHED_FILES, lambda at: _assemble(bench, at, vision=at)),
        Case(bench.published / "qwen3", PUBLISHED_FILES, lambda at: _assemble(bench, at, llm=at)),
        Case(inputs, ("noise.png",), lambda at: ["ask", str(at / "noise.png"), "What?", "--model", model]),
        Case(inputs, ("data.*", "noise.png"), lambda at: ["evaluate", str(at / "data.jsonl"), *evaluate]),
        Case(inputs, ("data.*",), lambda at: ["evaluate", str(at / "data.yaml"), *evaluate]),
        Case(inputs, ("suite.yaml", "data.jsonl"), lambda at: ["evaluate", str(at / "suite.yaml"), "--model", model]),
        Case(inputs, ("rules.yaml",), lambda at: _arms(at, model)),
        Case(inputs, ("recipe.yaml", "data.jsonl"), lambda at: ["train", f"{at}/recipe.yaml", *QUICK, f"--out={at}/o"]),
        Case(trained, (*states, "out/stage0/*.json"), lambda at: [*bench.train(at / "out"), "steps=3"]),
        Case(trained, states, lambda at: bench.train(_without_model(at / "out"))),
    ]


def _make(bench: Bench, source: Path) -> None:
    """Runs the command whose output is damaged, if that has not been needed yet."""
    commands = {"built": bench.build, "trained": lambda at: bench.train(at / "out")}
    if not source.exists():
        ended = finish(commands[source.name](source))
        assert ended.status == 0, ended.text


def _assemble(bench: Bench, out: Path, **places: Path) -> list[str]:
    sources = {"vision": bench.published / "vision", "llm": bench.published / "qwen3", **places}
    return ["assemble", *(f"--{role}={place}" for role, place in sources.items()), "--out", f"{out}.out"]


def _arms(at: Path, model: str) -> list[str]:
    options = ["--model", model, "--arms", "none,realizer", "--rules", str(at / "rules.yaml")]
    return ["evaluate", str(at / "data.jsonl"), *options]


def _without_model(out: Path) -> Path:
    """A training's folder as if it had been killed before the phase was done."""
    shutil.rmtree(out / "stage0" / "model")
    return out
