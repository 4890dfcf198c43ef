"""Each bridge and each host, small: base tokens, the layout around an image, training, saving, half precision."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CARD, MIXTURE, PAGE, QUESTION, READS_WORDS, TINY_PATCH, TINY_SIDE, loud_model, prompt, refuses
from worked_cases import OVIS_TABLE, ovis_table

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.bridges import BRIDGES
from arr_coc.modeling.prompt_format import LAYOUTS, count_vision_tokens

CASES: dict[str, dict[str, Any]] = {
    "qwen3, linear": {},
    "qwen3, quality": {"bridge": {"kind": "quality"}},
    "qwen3, transformer": {"bridge": {"kind": "transformer", "num_layers": 2}},
    "qwen3, vet": {"bridge": {"kind": "vet", "table_size": 40}},
    "qwen3, cells": {"bridge": {"kind": "cells", "place_words": [5, 3]}},
    "llama, wordpieces": {**READS_WORDS, "text": {"model_type": "llama"}},
    "llama, wordpieces, fetched": {
        "text": {"model_type": "llama"},
        "bridge": {**READS_WORDS["bridge"], "layout": "fetched"},
        "vision": READS_WORDS["vision"],
    },
    "qwen3, mask, transformer": {"bridge": {"kind": "transformer"}, "vision": {"compressor": "mask"}},
    "ovis2.5": {"bridge": {"kind": "vet", "table_size": 40, "layout": "indicators"}},
    "deepseek-ocr": {"bridge": {"layout": "rows"}, "text": MIXTURE},
    "deepseek-ocr, transformer": {
        "bridge": {"kind": "transformer", "layout": "rows", "latent_size": 6},
        "text": MIXTURE,
    },
}
HOSTS = ["qwen3, transformer", "llama, wordpieces", "llama, wordpieces, fetched", "ovis2.5", "deepseek-ocr"]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: loud_model(**changes) for name, changes in CASES.items()}


@pytest.fixture(params=CASES)
def model(request: pytest.FixtureRequest, models: dict[str, Any]) -> Any:
    return models[request.param]


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest, models: dict[str, Any]) -> Any:
    return models[request.param]


def test_every_bridge_and_layout_has_a_host_here() -> None:
    bridges = [changes.get("bridge", {}) for changes in CASES.values()]
    assert {bridge.get("kind", "linear") for bridge in bridges} == set(BRIDGES)
    assert {bridge.get("layout", "plain") for bridge in bridges} == set(LAYOUTS) - {"qwen3_vl"}  # test_spatial.py


# ---- base tokens
@torch.no_grad()
def test_base_tokens_are_the_same_bits_whatever_is_fetched(model: Any) -> None:
    inputs = prompt(model, (PAGE, QUESTION))
    encoding = model.model.encode_image(inputs.pixel_values, inputs.patch_mask)
    base_only = encoding.tokens
    if not base_only.shape[1]:
        with pytest.raises(ValueError, match=r"expected 1 images of 0 base tokens and .*; got \[0\] placeholders"):
            model(**prompt(model, (PAGE, QUESTION), strategy="none"))
        return
    for budget in (0, 1, "standard", 200):
        output = model(**prompt(model, (PAGE, QUESTION), budget=budget), choices={"strategy": "saliency"})
        assert torch.equal(output.image_tokens[:, : base_only.shape[1]], base_only)
    off = model(**prompt(model, (PAGE, QUESTION), strategy="none"), choices={"strategy": "none"}).image_tokens
    assert torch.equal(off, base_only if encoding.closing is None else torch.cat((base_only, encoding.closing), 1))


@torch.no_grad()
def test_batch_equals_single(model: Any) -> None:
    pairs = [(PAGE, "What is it?"), (CARD, "Who?")]
    together = model(**prompt(model, *pairs))
    for i, pair in enumerate(pairs):
        alone = model(**prompt(model, pair))
        assert torch.equal(together.fetch.indices[i], alone.fetch.indices[0])
        assert torch.allclose(together.image_tokens[i], alone.image_tokens[0], atol=1e-4)


# ---- what is around an image
@torch.no_grad()
@pytest.mark.parametrize("side", [8, 12, 16, 20])
def test_counted_placeholders_and_tokens_agree_on_every_grid(model: Any, side: int) -> None:
    pixels, config = side * TINY_PATCH, model.config
    settings = {"layout": config.bridge_config.layout, "excludes_base": config.excludes_base}
    for budget in (0, 5) if config.bridge_config.layout != "fetched" else (5,):
        inputs = prompt(model, (PAGE, QUESTION), size={"height": pixels, "width": pixels}, budget=budget)
        counted = count_vision_tokens(pixels, TINY_PATCH, budget, **settings)
        assert int((inputs.input_ids == config.image_token_id).sum()) == sum(counted)
        assert model.config.vision_tokens(pixels, budget) == counted and counted[1] == budget
        output = model(**inputs)
        assert output.image_tokens.shape[1] == sum(counted) and output.fetch.budget == budget


@torch.no_grad()
def test_rows_end_with_newlines_and_indicators_stand_around_base_and_fetched_tokens(models: dict[str, Any]) -> None:
    model = models["deepseek-ocr"]
    inputs = prompt(model, (PAGE, QUESTION), (CARD, "Who?"), budget=3)
    output = model(**inputs)
    core, side = model.model, TINY_SIDE // TINY_PATCH // 4
    encoding = core.encode_image(inputs.pixel_values, inputs.patch_mask)
    base = core.bridge(encoding.semantic, encoding.compressed.flatten(2).transpose(1, 2)).tokens
    expected = []
    for row in base.split(side, 1):
        expected += [row, core.layout.image_newline.expand(2, 1, -1)]
    expected += [core.layout.view_seperator.expand(2, 1, -1)]
    assert torch.equal(output.image_tokens[:, :-3], torch.cat(expected, 1))
    states, projected = core.vision_tower.fetched_states(encoding, output.fetch.indices)
    assert torch.equal(output.image_tokens[:, -3:], core.bridge(states, projected, base=[]).tokens)
    model = models["ovis2.5"]
    inputs = prompt(model, (PAGE, QUESTION), budget=3)
    output, table = model(**inputs), model.model.bridge.table.weight
    assert output.image_tokens.shape[1] == 1 + 16 + 3 + 1
    assert torch.equal(output.image_tokens[0, 0], table[-4]) and torch.equal(output.image_tokens[0, -1], table[-3])
    text = model.processor.apply_chat_template([{"role": "user", "content": [{"type": "image"}]}])
    assert "<|image_pad|>" in text and "<|vision_" not in text, "they are Qwen's, and stand for the same"
    # With the 16 base tokens alone there was room for no newline: a wrong scatter, or a negative budget.
    model = models["deepseek-ocr"]
    inputs = prompt(models["qwen3, linear"], (PAGE, QUESTION), budget=0)
    refuses(r"expected 1 images of 21 base tokens .*; got \[16\] placeholders", model, **inputs)


def test_the_worked_case_of_ovis_is_laid_out_alike() -> None:
    _, computed = ovis_table()
    layout = LAYOUTS["indicators"](OVIS_TABLE["text_width"])
    opening, closing = layout(computed["visual_embeds"][None], computed["indicator_embeds"])
    assert torch.equal(torch.cat((opening, closing), 1), computed["inputs_embeds"][:, 2:12])


# ---- asking
def test_convenience_standard_call_and_encoding_answer_alike(host: Any) -> None:
    expected = host.generate(PAGE, QUESTION)
    encoding = host.encode_image(PAGE)
    assert encoding.prefix_ids is not None
    assert host.generate(encoding, [QUESTION, "Who?"])[0] == expected
    inputs = prompt(host, (PAGE, QUESTION))
    tokens = host.generate(**inputs, num_beams=1)[:, inputs.input_ids.shape[1] :]
    assert host.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0].strip() == expected
    assert len(host.generate(PAGE, [QUESTION, "Who?"], num_beams=2)) == 2


# ---- training, precision, storage
def test_gradients_reach_every_parameter(model: Any) -> None:
    model.zero_grad()
    inputs = prompt(model, (PAGE, QUESTION), (CARD, "Who?"))
    labels = inputs.input_ids.masked_fill(inputs.query_mask.bool(), -100)
    relevant = torch.rand(2, model.config.vision_config.num_patches).round()
    model(**inputs, labels=labels, relevance_targets=relevant).loss.backward()
    without = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    model.zero_grad()
    chooses = "compressor" if model.config.vision_config.compressor == "mask" else "nothing"
    if model.config.bridge_config.kind == "wordpieces":  # which text there is
        chooses = r"text_reader\.(line|character)_head"
    assert not [name for name in without if not re.search(chooses, name)]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_half_precision_is_finite(name: str, dtype: torch.dtype) -> None:
    model = loud_model(**CASES[name]).to(dtype)
    output = model(**prompt(model, (PAGE, QUESTION)))
    assert output.logits.isfinite().all() and output.logits.dtype == output.image_tokens.dtype == dtype
    assert isinstance(model.generate(PAGE, QUESTION, max_new_tokens=2), str)


@pytest.mark.parametrize("name", HOSTS)
def test_offloaded_to_disk_the_answers_are_the_same(name: str, models: dict[str, Any], tmp_path: Path) -> None:
    """Parameters that are read outside their module's own forward stay on the meta device."""
    model = models[name]
    model.save_pretrained(tmp_path / "model")
    model.processor.save_pretrained(tmp_path / "model")
    parts = ("model.vision_tower", "model.fetcher", "model.bridge", "model.layout", "model.language_model", "lm_head")
    placed = {part: "disk" if part in ("model.bridge", "model.layout") else "cpu" for part in parts}
    again = ArrCocForConditionalGeneration.from_pretrained(
        tmp_path / "model", device_map=placed, offload_folder=tmp_path / "offload"
    )
    assert again.generate(PAGE, QUESTION) == model.generate(PAGE, QUESTION)


# ---- bypass and quality
def test_bypass_by_call_by_encoding_and_by_config_answer_alike(models: dict[str, Any]) -> None:
    """An encoding holds the base tokens, and a prefix of them, as they crossed the whole bridge."""
    model = models["qwen3, transformer"]
    config, encoding = model.config.bridge_config, model.encode_image(PAGE)
    usual = model.generate(PAGE, QUESTION)
    called = model.generate(PAGE, QUESTION, bypass=True)
    assert model.generate(encoding, QUESTION, bypass=True) == called != usual
    assert model.generate(PAGE, [QUESTION, QUESTION], bypass=True) == [called, called]
    inputs = prompt(model, (PAGE, QUESTION))
    tokens = model.generate(**inputs, bypass=True)[:, inputs.input_ids.shape[1] :]
    assert model.processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0].strip() == called
    try:
        config.bypass = True
        assert model.generate(PAGE, QUESTION) == called
        assert model.generate(PAGE, QUESTION, bypass=False) == usual
    finally:
        config.bypass = False
    assert model.generate(encoding, QUESTION) == usual
