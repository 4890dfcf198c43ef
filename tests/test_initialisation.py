"""What weights a new model begins with, and what a checkpoint lacks; any causal language model, tied or not."""

import shutil
from pathlib import Path

import pytest
import torch
from helpers import PAGE, QUESTION, refuses, tiny_config, tiny_model
from safetensors.torch import load_file, save_file

from arr_coc import ArrCocConfig, ArrCocForConditionalGeneration
from arr_coc.modeling.patch_scorers import PatchLayer


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
