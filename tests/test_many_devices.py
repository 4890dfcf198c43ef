"""Two processes on a CPU (gloo), as the shipped accelerate configs say: the same losses and weights as one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml
from accelerate import DeepSpeedPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from helpers import PAGE, QUESTION, prompt, tiny_checkpoint
from safetensors.torch import load_file
from trainers import CONFIGS, ROOT, launched

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.training.checkpoints import newest_complete
from arr_coc.training.recipe import load_recipe, train

PAGES = {"format": "rendered", "pages": 3, "questions": 2, "size": 128}
HELD_OUT = {**PAGES, "pages": 5, "questions": 1, "seed": 9}  # 5 items: the last batch of two processes is filled up
STAGE = {"stage": "joint", "data": PAGES, "held_out": HELD_OUT, "steps": 3, "warmup": 1, "evaluate_every": 3} | {
    "log_every": 1,
    "learning_rate": 1e-3,
    "strategies": {"realizer": 1.0, "clip_query": 1.0, "none": 1.0},
}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    tiny_checkpoint(folder / "tiny")
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"model": "tiny", "start": "tiny", "stages": [STAGE]}))
    return path


@pytest.fixture(scope="module")
def alone(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of it, with four questions at a time."""
    out = tmp_path_factory.mktemp("alone")
    train(load_recipe(recipe, ["batch_size=4"]), out)
    return out


def history(out: Path) -> list[dict[str, Any]]:
    """What a run has logged."""
    folder = newest_complete(out / "stage0")
    assert folder is not None
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


def assert_same(out: Path, alone: Path) -> None:
    """The same losses, gradient norms, evaluation and weights, but for the order in which numbers are added."""
    timing = ("runtime", "per_second", "flos")
    lines, expected = history(out), history(alone)
    assert len(lines) == len(expected) >= 4
    for line, one in zip(lines, expected, strict=True):
        kept = {name: value for name, value in one.items() if not any(part in name for part in timing)}
        assert {name: line[name] for name in kept} == pytest.approx(kept, rel=2e-3, abs=1e-5)
        if "eval_loss" in line:
            measured = line["eval_samples_per_second"] * line["eval_runtime"]
            assert measured == pytest.approx(HELD_OUT["pages"], rel=0.02), "each item once, none twice"
    weights, before = load_file(out / "model" / "model.safetensors"), load_file(alone / "model" / "model.safetensors")
    assert weights.keys() == before.keys()
    for name, weight in weights.items():
        assert torch.allclose(weight, before[name], atol=2e-3), name  # Adam's first steps are the gradient's sign


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "program"),
    [("ddp.yaml", ["-m", "arr_coc.cli", "train"]), ("fsdp2.yaml", [str(ROOT / "tests" / "sharded_on_cpu.py")])],
)
def test_two_processes_are_as_one(config: str, program: list[str], recipe: Path, alone: Path, tmp_path: Path) -> None:
    launched(config, *program, str(recipe), "batch_size=2", "--out", str(tmp_path))
    assert_same(tmp_path, alone)


# ---- configs
def arguments(config: str) -> Any:
    """What `accelerate launch` makes of a shipped config."""
    load_config_from_file(str(CONFIGS / config))
    given = ["--config_file", str(CONFIGS / config), "-m", "arr_coc.cli", "train", "recipe.yaml"]
    return _validate_launch_command(launch_command_parser().parse_args(given))[0]


@patch.dict(os.environ)
def test_the_fsdp2_config_wraps_the_layers_that_must_not_be_split(recipe: Path) -> None:
    os.environ.update(prepare_multi_gpu_env(arguments("fsdp2.yaml")))
    plugin = FullyShardedDataParallelPlugin()
    model = ArrCocForConditionalGeneration.from_pretrained(recipe.parent / "tiny")
    held = {type(module).__name__ for module in model.modules()}  # as the trainer does
    model._no_split_modules = [name for name in model._no_split_modules if name in held and not name.endswith("Bridge")]
    plugin.set_auto_wrap_policy(model)
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True
    wrapped = plugin.auto_wrap_policy.keywords["transformer_layer_cls"]
    assert {kind.__name__ for kind in wrapped} == {"GridLayer", "SemanticLayer", "PatchLayer", "Qwen3DecoderLayer"}


@patch.dict(os.environ)
def test_the_zero3_config_plans_stage_3() -> None:
    """As far as without DeepSpeed: accelerate's reading of the config, and its plan filled in by a run's settings."""
    args = arguments("zero3.yaml")
    fields = load_config_from_file(str(CONFIGS / "zero3.yaml")).deepspeed_config
    args.deepspeed_fields_from_accelerate_config = ",".join(fields)  # as the launcher does where DeepSpeed is installed
    _, environment = prepare_deepspeed_cmd_env(args)
    os.environ.update({name: value for name, value in environment.items() if name.startswith("ACCELERATE_")})
    plugin = DeepSpeedPlugin()
    assert plugin.zero_stage == 3 and plugin.hf_ds_config.is_zero3() and not plugin.hf_ds_config.is_offload()
    sizes = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 8, "gradient_accumulation_steps": 2}
    plugin.deepspeed_config_process(must_match=False, gradient_clipping=1.0, **sizes)
    plan = plugin.deepspeed_config
    assert plan["zero_optimization"]["stage"] == 3
    assert plan["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] is True
    assert plan["gradient_accumulation_steps"] == 2 and plan["gradient_clipping"] == 1.0


# ---- Two processes that share one checkpoint's tensors, as `tp_plan="auto"` splits them, over gloo
SCRIPT = Path(__file__).parent / "logits_in_parallel.py"
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_split_tensors_give_the_same_logits(tied: bool, tmp_path: Path) -> None:
    """A tied checkpoint was refused on loading: no plan said how lm_head is split."""
    folder = tiny_checkpoint(tmp_path / "model", text={**HEADS, "tie_word_embeddings": tied})
    model = ArrCocForConditionalGeneration.from_pretrained(folder).eval()
    batch = dict(prompt(model, (PAGE, QUESTION)))
    torch.save(batch, tmp_path / "batch.pt")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    files = [str(folder), str(tmp_path / "batch.pt"), str(tmp_path / "out.pt")]
    done = subprocess.run([*launch, str(SCRIPT), *files], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    measured = torch.load(tmp_path / "out.pt")
    assert {name.split(".")[-2] for name in measured["split"]} >= {"q_proj", "down_proj", "embed_tokens"}
    with torch.no_grad():
        expected = model(**batch).logits
    scale = float(expected.abs().max())
    assert torch.allclose(measured["logits"], expected, atol=1e-6 * scale), (measured["logits"] - expected).abs().max()
