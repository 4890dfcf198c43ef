"""Assembling from damaged, missing or unfitting weights: one clear error, nothing half-written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from helpers import change_json, change_tensors, tiny_tokenizer, truncate
from huggingface_hub.errors import GatedRepoError
from published import DEEPSEEK, VISION, command, fits_deepseek, refused
from safetensors.torch import load_file, save_file
from torch import Tensor

from arr_coc.assembling import sources as sources_module
from arr_coc.cli import main
from benchmarks import upstream
from benchmarks.upstream import write_upstream


# ---- bad input
def copied(published: Path, tmp_path: Path, name: str) -> Path:
    shutil.copytree(published / name, tmp_path / name)
    return tmp_path / name


def sets(path: str, value: Any) -> Callable[[Path], Any]:
    return lambda folder: change_json(folder / "config.json", *path.split("."), to=value)


def puts(name: str, tensor: Tensor | None) -> Callable[[Path], Any]:
    """Changes a tensor of the grid encoder, or takes it away."""
    name = f"model.sam_model.{name}"
    return lambda f: change_tensors(f, lambda held: held.pop(name) if tensor is None else held.update({name: tensor}))


SAM = "vision_config.width.sam_vit_b."
BAD_VISION: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (truncate, "expected a whole safetensors file"),
    "no config": (lambda f: (f / "config.json").unlink(), "expected config.json; got none"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "expected weights"),
    "other family": (sets("model_type", "llava"), "upstream model_type: expected one of"),
    "unknown tensor": (puts("extra", torch.ones(2)), "a place here; got 1 without, e.g. model.sam_model.extra"),
    "unknown layer part": (puts("blocks.0.attn.scale", torch.ones(2)), "e.g. model.sam_model.blocks.0.attn.scale"),
    "missing tensor": (puts("neck.1.bias", None), "got none for 1, e.g. model.vision_tower.grid_encoder.neck"),
    "wrong shape": (puts("neck.1.bias", torch.ones(5)), "neck.1.bias of shape [16] (config.json); got [5]"),
    "wrong type": (puts("neck.1.bias", torch.ones(16).int()), "neck.1.bias stored as one of BF16"),
    "heads": (sets(SAM + "heads", 3), "agree on grid encoder heads; got 3 and 2.0"),
    "layers": (sets(SAM + "layers", 3), "agree on grid encoder layers; got 3 and 2"),
    "global layers": (sets(SAM + "global_attn_indexes", [0]), "agree on the side of the grid"),
    "image size": (sets("vision_config.image_size", 64), "agree on image size; got 64 and 128"),
    "no field": (sets("vision_config.width", {}), "expected vision_config.width.clip"),
}


@pytest.mark.parametrize("case", BAD_VISION)
def test_a_damaged_vision_encoder_is_refused(
    case: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = BAD_VISION[case]
    folder = copied(published, tmp_path, "vision")
    damage(folder)
    arguments = ["--vision", folder, "--llm", published / "qwen3", "--out", tmp_path / "made" / "out"]
    assert message in refused(capsys, *arguments)
    assert not (tmp_path / "made").exists()


def lie_in_index(folder: Path) -> None:
    shard = sorted(path.name for path in folder.glob("*.safetensors"))[0]
    change_json(folder / "model.safetensors.index.json", "weight_map", "model.extra", to=shard)


def place_shard(folder: Path, place: str) -> None:
    """Has the index say that a shard, which is there as well, lies at `place`."""
    shard = sorted(folder.glob("*.safetensors"))[0]
    shutil.copy(shard, folder.parent / "outside.safetensors")
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text().replace(shard.name, place))


def spoil(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        held = {name: tensor.clone() for name, tensor in load_file(path).items()}
        for name in [name for name in held if name.endswith("up_proj.weight")]:
            held[name][0, 0] = float("nan")
        save_file(held, path)


BAD_LLM: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "missing shard": ("qwen3", lambda f: sorted(f.glob("*.safetensors"))[1].unlink(), "expected the"),
    "index of another model": ("qwen3", lie_in_index, "expected model.extra in model-0"),
    "shard outside": ("qwen3", lambda f: place_shard(f, "../outside.safetensors"), "expected names of .safetensors"),
    "index of nothing": (
        "qwen3",
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {}}'),
        "expected a weight_map from tensors to files; got none",
    ),
    "width": ("qwen3", sets("hidden_size", 32), "agree on vocabulary and width"),
    "no tokenizer": ("qwen3", lambda f: (f / "tokenizer.json").unlink(), "expected tokenizer.json; got none"),
    "broken tokenizer": ("qwen3", lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer that can be read"),
    "tokenizer without chat": (
        "qwen3",
        lambda f: tiny_tokenizer(without=("<|im_start|>",)).save_pretrained(f),
        "got no <|im_start|>",
    ),
    "untied without a head": ("ovis", sets("llm_config.tie_word_embeddings", False), "lm_head"),
    "rows of the table": ("ovis", sets("visual_vocab_size", 50), "agree on rows of the visual"),
    "other language model": ("ovis", sets("llm_config.model_type", "llama"), "type 'qwen3'"),
    "experts": ("deepseek", sets("language_config.n_routed_experts", 5), "mlp.experts.4.gate_proj.weight; got none"),
    "fewer experts": ("deepseek", sets("language_config.n_routed_experts", 3), "expected only tensors with a place"),
    "latent attention": ("deepseek", sets("language_config.use_mla", True), "use_mla true"),
    "no numbers": ("qwen3", spoil, "expected finite weights; got NaN or infinity in model.layers.0.mlp.up_proj.weight"),
}


@pytest.mark.parametrize("case", BAD_LLM)
def test_a_bad_llm_is_refused(case: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, damage, message = BAD_LLM[case]
    folder = copied(published, tmp_path, name)
    damage(folder)
    vision = folder if name == "deepseek" else published / "vision"
    bridge = "vet" if name == "ovis" else "linear"
    arguments = ["--vision", vision, "--llm", folder, "--bridge", bridge, "--out", tmp_path / "made" / "out"]
    assert message in refused(capsys, *arguments)
    assert (tmp_path / "made").exists() == (case == "no numbers")  # found as they are written
    assert not list(tmp_path.glob("made/*"))


def test_a_projector_that_does_not_fit_its_own_language_model_is_refused(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = upstream.deepseek_vision(**{**VISION, "projected": 20}) | upstream.deepseek_language(**DEEPSEEK)
    folder = write_upstream(tmp_path / "both", narrow, **fits_deepseek(tokenizer))
    message = refused(capsys, "--vision", folder, "--llm", folder, "--out", tmp_path / "out")
    assert "expected model.projector.layers.weight of shape [24, 64]" in message
    assert not (tmp_path / "out").exists()


def test_what_was_asked_for_is_checked_first(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = command(published, tmp_path / "out")
    assert "bridge: expected one of" in refused(capsys, *asked, "--bridge", "rope")
    assert "strategy: expected one of" in refused(capsys, *asked, "--scorer", "realizer,guess")
    assert "--out: expected a folder to write, or --dry-run" in refused(capsys, *asked[:4])
    assert "expected no revision of a folder" in refused(capsys, *asked, "--llm-revision", "main")
    assert "visual embedding table (Ovis2.5)" in refused(capsys, *asked, "--bridge", "vet")
    nothing = [*asked[:2], "--llm", tmp_path / "nothing", *asked[4:]]
    assert "expected a folder, a .gguf file, or org/name on the Hub" in refused(capsys, *nothing)
    swapped = ["--vision", published / "qwen3", *asked[2:]]
    assert "--vision: expected a model that can be vision" in refused(capsys, *swapped)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert "of free disk space; got 1" in refused(capsys, *asked)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    assert "expected a new or empty folder" in refused(capsys, *asked)


# ---- the Hub
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hub cache that holds `org/vision` and `org/llm`; the Hub itself cannot be reached."""
    root = tmp_path / "cache"
    for name, folder in (("vision", "vision"), ("llm", "qwen3")):
        held = root / f"models--org--{name}"
        shutil.copytree(published / folder, held / "snapshots" / COMMIT)
        (held / "refs").mkdir()
        (held / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return root


def test_names_on_the_hub_are_found_in_its_cache(cache: Path, tmp_path: Path) -> None:
    """Every file is of the commit that the first one was of, and the record says which."""
    asked = ["--vision", "org/vision", "--llm", f"org/llm@{COMMIT}", "--out", str(tmp_path / "out")]
    assert main(["assemble", *asked]) == 0
    sources = json.loads((tmp_path / "out" / "assembly.json").read_text())["sources"]
    assert sources == {
        "vision": {"name": "org/vision", "revision": COMMIT},
        "llm": {"name": "org/llm", "revision": COMMIT},
    }


def test_repositories_that_cannot_be_had_are_refused(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["--vision", "org/vision", "--out", tmp_path / "out", "--llm"]
    assert "org/absent: expected config.json; got none in the cache" in refused(capsys, *asked, "org/absent")
    assert "expected one revision" in refused(capsys, *asked, "org/llm@main", "--llm-revision", "v2")

    def gated(*_: Any, **__: Any) -> str:
        raise GatedRepoError.__new__(GatedRepoError)

    monkeypatch.setattr(sources_module, "hf_hub_download", gated)
    assert "org/vision: expected a repository on the Hub; got a gated one" in refused(capsys, *asked, "org/llm")
    assert not (tmp_path / "out").exists()
