"""Small stand-ins of published checkpoints, and what is assembled from them, for the tests of assembling."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.assembling import Plan, Request, WeightsSource, make_plan, write
from arr_coc.cli import main
from benchmarks import upstream
from benchmarks.upstream import write_upstream

VISION: dict[str, Any] = {
    **{"image": 128, "patch": 8, "width": 24, "layers": 2, "heads": 2, "whole": (1,), "window": 7, "channels": 16},
    **{"compressed": (24, 32), "semantic_layers": 2, "semantic_heads": 2, "grid": 4, "projected": 24},
}
QWEN3 = {"width": 24, "vocabulary": 300, "layers": 2, "heads": 2, "groups": 1, "head": 12, "inner": 48}
DEEPSEEK = {
    **{"width": 24, "vocabulary": 300, "layers": 3, "heads": 2, "inner": 40},
    **{"expert": 8, "experts": 4, "active": 2},
}
PARTS = ("vision", "llm")


def fits_deepseek(tokenizer: Path) -> dict[str, Any]:
    return {"tokenizer": tokenizer, "special_tokens": {"bos_token": "<|endoftext|>"}, "std": 0.2}


def write_published(root: Path, tokenizer: Path) -> Path:
    """Small checkpoints of every family, in float32."""
    vision, language = upstream.deepseek_vision(**VISION), upstream.qwen3(**QWEN3)
    own = upstream.qwen3(**QWEN3, prefix="llm.", stored_head=False)
    sizes: dict[str, Any] = {"dtype": torch.float32, "std": 0.2}
    write_upstream(root / "vision", vision, **sizes)
    write_upstream(root / "qwen3", language, tokenizer=tokenizer, max_shard_size=20_000, **sizes)
    write_upstream(
        root / "ovis", upstream.ovis(own, width=16, layers=1, inner=20, side=4, rows=40), tokenizer=tokenizer, **sizes
    )
    small: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "inner": 20, "grid": 4, "depths": (0, 1)}
    places = upstream.qwen3(**{**QWEN3, "layers": 3}, stored_head=False)
    write_upstream(root / "qwen3_vl", upstream.qwen3_vl(places, **small), tokenizer=tokenizer, **sizes)
    mixed = upstream.qwen3_vl(places, **small, experts=(4, 2, 8))
    write_upstream(root / "qwen3_vl_moe", mixed, tokenizer=tokenizer, **sizes)
    both = vision | upstream.deepseek_language(**DEEPSEEK)
    write_upstream(root / "deepseek", both, **{**sizes, **fits_deepseek(tokenizer)}, max_shard_size=50_000)
    return root


def opened(published: Path, llm: str = "qwen3") -> dict[str, WeightsSource]:
    if llm == "deepseek":
        return dict.fromkeys(PARTS, WeightsSource(published / "deepseek"))
    return {"vision": WeightsSource(published / "vision"), "llm": WeightsSource(published / llm)}


def assembled(published: Path, out: Path, llm: str = "qwen3", **choices: Any) -> tuple[Plan, dict[str, Tensor]]:
    """The plan, and every tensor of the checkpoint written by it."""
    plan = make_plan(Request(sources=opened(published, llm), **choices))
    write(plan, out)
    return plan, stored(out)


def stored(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def load(folder: Path) -> ArrCocForConditionalGeneration:
    """From disk as users do; fails where a weight is missing, unknown or of another shape."""
    loaded: Any = ArrCocForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    model, report = loaded
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """The one line of a refused command."""
    capsys.readouterr()
    assert main(["assemble", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("arr-coc: error: ") and error.count("\n") == 1
    return error


def command(published: Path, out: Path, llm: str = "qwen3") -> list[Any]:
    return ["--vision", published / "vision", "--llm", published / llm, "--out", out, "--max-shard-size", "40KB"]
