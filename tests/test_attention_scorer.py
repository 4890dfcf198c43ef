"""Strategy "attention": it reads the language model's own attention, and no part of the base twice."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import Calls, tiny_model

from arr_coc.model_summary import generated_image
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.patch_scorers import AttentionRecorder, attention_weights, on_fine_grid

PAGE, OTHER = generated_image(128), generated_image(128).rotate(90)
QUESTION = "What is the total?"
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rows": {"bridge": {"layout": "rows"}},
    "indicators": {"bridge": {"kind": "vet", "layout": "indicators", "table_size": 40}},
    "mask": {"vision": {"compressor": "mask"}},
}


def fetched(model: Any, image: Any, question: Any, **settings: Any) -> Any:
    return model.generate(image, question, strategy="attention", return_fetch=True, max_new_tokens=2, **settings)


# ---- the weights
@pytest.mark.parametrize(
    "settings", [{}, {"is_causal": True}, {"scale": 0.3}, {"mask": "bool"}, {"mask": "float"}, {"enable_gqa": True}]
)
def test_weights_are_those_of_the_fused_kernel(settings: dict[str, Any]) -> None:
    """Attention over an identity as values gives the weights themselves."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 6, 8, generator=generator)
    key = torch.randn(2, 2 if settings.get("enable_gqa") else 4, 6, 8, generator=generator)
    value = torch.eye(6).expand(2, key.shape[1], 6, 6)
    mask = torch.rand(2, 1, 6, 6, generator=generator) > 0.3
    mask[..., 0] = True
    arguments = dict(settings)
    kind = arguments.pop("mask", None)
    if kind is not None:
        arguments["attn_mask"] = mask if kind == "bool" else torch.where(mask, 0.0, -1e4)
    expected = F.scaled_dot_product_attention(query, key, value, **arguments)
    assert torch.allclose(attention_weights(query, key, value, **arguments), expected, atol=1e-5)


@torch.no_grad()
def test_what_is_recorded_is_what_transformers_shows(model: Any) -> None:
    embeds, question = torch.randn(2, 9, 24), torch.zeros(2, 9, dtype=torch.bool)
    question[0, 5:], question[1, 3] = True, True
    language_model = model.model.language_model
    with AttentionRecorder(question) as fused:
        language_model(inputs_embeds=embeds)
    language_model.set_attn_implementation("eager")
    try:
        with AttentionRecorder(question) as written:
            shown = language_model(inputs_embeds=embeds, output_attentions=True).attentions
    finally:
        language_model.set_attn_implementation("sdpa")
    assert len(fused.layers) == len(written.layers) == len(shown) == 2
    for layer, weights in enumerate(shown):
        mean = weights.mean(1)
        expected = torch.stack((mean[0, 5:].mean(0), mean[1, 3]))
        assert torch.allclose(fused.layers[layer], expected, atol=1e-5)
        assert torch.allclose(written.layers[layer], expected, atol=1e-5)


# ---- where it looks
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_to_each_base_token_lands_on_its_patches(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newlines and indicators are between base tokens: one place off, and every row of the page is shifted."""
    model = tiny_model(**LAYOUTS[layout])
    shown: list[torch.Tensor] = []
    before = AttentionRecorder._record

    def record(self: AttentionRecorder, weights: torch.Tensor) -> None:
        before(self, weights)
        self.layers[-1] = self.layers[-1] * 0 + torch.arange(self.layers[-1].shape[1]) ** 2.0
        shown.append(self.layers[-1])

    monkeypatch.setattr(AttentionRecorder, "_record", record)
    encoding = model.encode_image(PAGE)
    scores = fetched(model, encoding, QUESTION).fetch.scores
    tokens = encoding.tokens[0]
    base = model.model.bridge(encoding.semantic, encoding.compressed.flatten(2).transpose(1, 2)).tokens[0]
    offset = len(encoding.prefix_ids) - len(tokens)
    places = [int((tokens - row).abs().sum(-1).argmin()) + offset for row in base]
    paid = torch.tensor(places)[None] ** 2.0
    assert torch.allclose(scores, on_fine_grid(paid, encoding.side, encoding.base_indices), rtol=1e-5)


def test_upsampling_keeps_what_is_where() -> None:
    attention = torch.zeros(1, 16)
    attention[0, 6] = 1.0  # cell (1, 2) of 4 x 4
    grid = on_fine_grid(attention, 16, None).view(16, 16)
    assert grid[4:8, 8:12].min() > grid[:4].max() and grid[5:7, 9:11].min() > 0.7
    places = torch.tensor([[3 * 16 + 12, 200, 20]])
    grid = on_fine_grid(torch.tensor([[1.0, 0.0, 0.0]]), 16, places)
    assert grid.argmax() in (12, 13, 14, 15, 3 * 16 + 12, 3 * 16 + 15) and grid[0, 200] < 1e-3 < 0.9 < grid[0, 60]


@torch.no_grad()
def test_with_a_prefix_and_without_one_it_is_the_same(model: Any) -> None:
    """`forward` has no prefix, and its padding is on the left."""
    processor, encoding = model.processor, model.encode_image([PAGE, OTHER])
    inputs = processor.prompts([QUESTION, "Who?"], images=[1, 1], placeholders=encoding.base_positions + 17)
    choices = FetchChoices(strategy="attention")
    masks = {name: inputs[name] for name in ("query_mask", "attention_mask")}
    whole = model(inputs["input_ids"], image_encoding=encoding.without_prefix(), choices=choices, **masks)
    asked = fetched(model, encoding, [QUESTION, "Who?"])
    for row, answer in enumerate(asked):
        assert torch.allclose(whole.fetch.scores[row], answer.fetch.scores[0], atol=1e-5)


# ---- what it costs
def test_the_base_is_read_once_for_the_scorer_and_the_answer(model: Any) -> None:
    language_model = model.model.language_model
    encoding = model.encode_image(PAGE)
    with Calls(language_model) as glancing:
        model.generate(encoding, QUESTION, strategy="attention", max_new_tokens=1)
    with Calls(language_model) as plain:
        model.generate(encoding, QUESTION, strategy="saliency", max_new_tokens=1)
    extra = glancing.positions - plain.positions
    assert glancing.count == plain.count + 1 and extra == plain.positions - 17, "the question's tokens, once more"
    with Calls(language_model) as fresh:
        model.generate(PAGE, QUESTION, strategy="attention", max_new_tokens=1)
    assert fresh.positions == len(encoding.prefix_ids) + glancing.positions


# ---- what cannot be read
def test_attention_without_weights_is_named_or_never_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionRecorder, "_record", lambda *_: None)
    with pytest.raises(ValueError, match=r'^strategy "attention": expected a language model with attention "sdpa" or'):
        fetched(model, PAGE, QUESTION)
    monkeypatch.setattr("arr_coc.modeling.base_model.attention_relevance", lambda *_: pytest.fail("nobody asked"))
    for strategy in ("realizer", "saliency"):
        model.generate(PAGE, QUESTION, strategy=strategy, max_new_tokens=1)
    patches = torch.arange(17)[None]
    model.generate(PAGE, QUESTION, strategy="attention", patches=patches, max_new_tokens=1)
