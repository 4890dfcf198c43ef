"""Weights are the config's, whole, finite and beside their index, whichever door they come through."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import PAGE, change_json, change_tensors, refuses, tiny_checkpoint, tiny_config, tiny_model, truncate
from safetensors.torch import load_file, save_file
from torch import Tensor

from arr_coc import ArrCocConfig, ArrCocForConditionalGeneration
from arr_coc.loading import load_model
from arr_coc.modeling.base_model import ArrCocModel
from arr_coc.modeling.patch_scorers import PatchLayer
from arr_coc.modeling.pretrained import WEIGHTS, WEIGHTS_INDEX, check_finite, weight_map
from arr_coc.publishing import build

QUESTION = "What is the total?"
DOORS: tuple[Callable[[Path], Any], ...] = (
    ArrCocForConditionalGeneration.from_pretrained,
    lambda source: load_model(str(source)),
    lambda source: build(source, source.parent / "out"),
)


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint to damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


@pytest.fixture
def shards(checkpoint: Path, tmp_path: Path) -> Path:
    """The same in shards."""
    shutil.copytree(checkpoint, tmp_path / "model", ignore=shutil.ignore_patterns(WEIGHTS))
    model = ArrCocForConditionalGeneration.from_pretrained(checkpoint)
    model.save_pretrained(tmp_path / "model", max_shard_size="50KB")
    return tmp_path / "model"


def sets(part: str, **fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name, value in fields.items():
            change_json(folder / "config.json", part, name, to=value)

    return change


def some_bias(tensors: dict[str, Tensor]) -> str:
    return next(name for name in sorted(tensors) if name.endswith(".bias"))


def spoil(value: float) -> Callable[[Path], None]:
    return lambda folder: change_tensors(folder, lambda held: held[some_bias(held)].view(-1)[:1].fill_(value))


def repeat(held: dict[str, Tensor]) -> None:
    """transformers takes names with and without the prefix, and lets one of the two win."""
    name = some_bias(held)
    held[f"model.{name}"] = torch.ones_like(held[name])


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "fewer layers": (sets("vision_config", num_hidden_layers=1, global_attn_indexes=[]), "unexpected"),
    "more layers": (sets("text_config", num_hidden_layers=3, layer_types=None), "missing"),
    "another width": (sets("semantic_config", intermediate_size=131_000), "mismatched"),
    "an epsilon that is none": (sets("vision_config", layer_norm_eps=float("nan")), "vision_config.layer_norm_eps"),
    "an infinite epsilon": (sets("text_config", rms_norm_eps=float("inf")), "text_config.rms_norm_eps"),
    "NaN": (spoil(float("nan")), "NaN or infinity in .*bias"),
    "infinity": (spoil(float("inf")), "NaN or infinity in .*bias"),
    "left over": (lambda f: change_tensors(f, lambda held: held.update(extra=torch.ones(2))), "unexpected, .*extra"),
    "missing": (lambda f: change_tensors(f, lambda held: held.pop(some_bias(held))), "1 missing, e.g. "),
    "another shape": (
        lambda f: change_tensors(f, lambda held: held.update({some_bias(held): torch.zeros(70)})),
        "1 mismatched, e.g. ",
    ),
    "twice": (lambda f: change_tensors(f, repeat), "expected one tensor for each part"),
    "cut": (truncate, "got "),
    "a pickle": (lambda f: torch.save({"weight": torch.zeros(2)}, f / WEIGHTS), "got "),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_weights_that_are_not_the_configs_are_refused_everywhere(name: str, folder: Path) -> None:
    """A config with fewer layers, and NaN, gave wrong answers and exit code 0."""
    damage, message = DAMAGES[name]
    damage(folder)
    for door in DOORS:
        refuses(message, door, folder)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]


def test_weights_that_do_not_fit_take_no_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A width of 131,000 in config.json was allocated before it was compared."""
    change_json(folder / "config.json", "semantic_config", "intermediate_size", to=131_000)
    numel: list[int] = []
    empty_like = torch.empty_like

    def watched(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = empty_like(tensor, *args, **kwargs)
        numel.append(0 if made.is_meta else made.numel())
        return made

    monkeypatch.setattr(torch, "empty_like", watched)
    refuses("mismatched", ArrCocForConditionalGeneration.from_pretrained, folder)
    assert max(numel, default=0) < 1_000_000


# ---- the switch
def test_the_model_without_its_head_comes_from_the_whole_ones_checkpoint(tmp_path: Path) -> None:
    source = tiny_checkpoint(tmp_path, text={"tie_word_embeddings": False})
    state = load_file(source / WEIGHTS)
    model = ArrCocModel.from_pretrained(source)
    assert "lm_head.weight" in state
    assert all(torch.equal(tensor, state[f"model.{name}"]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_every_type_of_weights_is_looked_through(dtype: torch.dtype) -> None:
    tensor = torch.ones(4).to(dtype)
    check_finite("here", [("a", tensor), ("b", torch.ones(2, device="meta")), ("c", torch.ones(2).long())])
    tensor[2] = float("nan")
    refuses("here: expected finite weights; got NaN or infinity in a", check_finite, "here", [("a", tensor)])


# ---- shards
def forge(folder: Path, change: Callable[[dict[str, str]], Any]) -> None:
    index = json.loads((folder / WEIGHTS_INDEX).read_text())
    change(index["weight_map"])
    (folder / WEIGHTS_INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    "place", ["../outside.safetensors", "{}/outside.safetensors", "sub/outside.safetensors", "..", ""]
)
def test_a_shard_elsewhere_than_beside_its_index_is_refused(place: str, shards: Path) -> None:
    """`build` published a file from outside the folder, and loading read it."""
    shard = sorted(shards.glob("*.safetensors"))[0]
    (shards / "sub").mkdir()
    for other in (shards.parent, shards / "sub"):
        shutil.copy(shard, other / "outside.safetensors")
    place = place.format(shards.parent)
    forge(shards, lambda names: names.update({name: place for name, file in names.items() if file == shard.name}))
    for door in DOORS:
        refuses("expected names of .safetensors files beside it; got ", door, shards)
    assert not (shards.parent / "out").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": {}}', '{"weight_map": {"a": 3}}', "[" * 100_000])
def test_an_index_that_names_no_weights_is_refused(content: str, shards: Path) -> None:
    """An empty one was published without any weights."""
    (shards / WEIGHTS_INDEX).write_text(content)
    refuses("expected (JSON|a weight_map)", weight_map, shards / WEIGHTS_INDEX)
    refuses("expected (JSON|a weight_map)", build, shards, shards.parent / "out")


def test_an_index_that_does_not_tell_the_truth_is_not_published(shards: Path) -> None:
    files = sorted(path.name for path in shards.glob("*.safetensors"))
    forge(shards, lambda names: names.update({name: files[0] for name in list(names)[-1:]}))
    refuses(f"expected each tensor in the shard that {WEIGHTS_INDEX} says", build, shards, shards.parent / "out")


# ---- What weights a new model begins with, and what a checkpoint lacks; any causal language model, tied or not
@torch.no_grad()
def test_a_fetched_patch_starts_as_a_base_token_and_clip_query_with_a_temperature() -> None:
    tower = ArrCocForConditionalGeneration(tiny_config()).model.vision_tower
    colour = torch.randn(tower.compressor.conv1.in_channels)
    with torch.no_grad():
        base = tower.compressor(colour.view(1, -1, 1, 1).expand(1, -1, 16, 16), torch.ones(1, 256, dtype=torch.bool))
        assert torch.allclose(tower.saccade_projection(colour), base.compressed[0, :, 2, 2], atol=1e-6)
    # transformers passes over modules of custom code without parameters of their own: it started at 0.02 x cosine.
    scorer = ArrCocForConditionalGeneration(tiny_config()).model.fetcher.scorers["clip_query"]
    logits = scorer.temperature(torch.tensor([[-1.0], [1.0]]))
    assert float(logits[1] - logits[0]) == pytest.approx(20.0) and float(logits.sum()) == pytest.approx(-6.0)


@pytest.mark.parametrize(
    "lost", ["saccade_projection.weight", "temperature.weight", "query_position", "class_embedding"]
)
def test_what_a_checkpoint_lacks_is_initialised_not_garbage(checkpoint: Path, tmp_path: Path, lost: str) -> None:
    """from_pretrained builds on the meta device: whatever is missing from the file is memory as it was found."""
    folder = tmp_path / "cut"
    shutil.copytree(checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    gone = [name for name in weights if name.endswith(lost)]
    assert gone
    save_file({n: t for n, t in weights.items() if n not in gone}, folder / "model.safetensors", {"format": "pt"})
    refuses(f"got {len(gone)} missing, e.g. .*{lost}", ArrCocForConditionalGeneration.from_pretrained, folder)
    again = ArrCocForConditionalGeneration.from_pretrained(folder, strict=False)
    state = again.state_dict()
    assert all(torch.equal(state[n], t) for n, t in weights.items() if n not in gone)
    fresh = {n: state[n] for n in gone}
    assert all(t.isfinite().all() for t in fresh.values())
    if lost == "saccade_projection.weight":
        assert torch.allclose(*fresh.values(), again.model.vision_tower.compressor.warm_start(), atol=1e-6)
    elif lost == "temperature.weight":
        assert all((t == 10).all() for t in fresh.values()), "see the temperature test above"
    elif lost == "query_position":
        layers = [m for m in again.modules() if isinstance(m, PatchLayer)]
        assert all(torch.equal(m.query_position, m.initial_position()) for m in layers)
    else:
        assert all(0 < t.std() < 0.1 for t in fresh.values())


TEXT_MODELS = {
    "llama": {"intermediate_size": 24, "num_key_value_heads": 1},
    "gpt2": {"bos_token_id": 1, "eos_token_id": 1},
    "gpt_neox": {"intermediate_size": 24},
    "opt": {"ffn_dim": 24, "word_embed_proj_dim": 24},
    "bloom": {},
}


@pytest.mark.parametrize("kind", TEXT_MODELS)
def test_any_causal_language_model_will_do(kind: str, tmp_path: Path) -> None:
    """The tied weight was named after Qwen's embedding: a tied GPT-2 (it calls it wte) could not even be built."""
    tiny = tiny_config()
    text = {"model_type": kind, "vocab_size": tiny.text_config.vocab_size, "hidden_size": 24, "num_hidden_layers": 2}
    text = {**text, "num_attention_heads": 2, **TEXT_MODELS[kind]}
    config = ArrCocConfig(**{**tiny.to_dict(), "text_config": text})
    model = ArrCocForConditionalGeneration(config).eval()
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == config.tie_word_embeddings
    model.processor = tiny_model().processor
    answer = model.generate(PAGE, QUESTION, max_new_tokens=2, pad_token_id=1)
    assert isinstance(answer, str)
    model.save_pretrained(tmp_path)
    again = ArrCocForConditionalGeneration.from_pretrained(tmp_path)
    assert all(torch.equal(t, again.state_dict()[n]) for n, t in model.state_dict().items())
