"""Stand-ins that several test files share."""

from typing import Any

from helpers import CARD, PAGE, pixels_of, prompt, tiny_model
from torch import Tensor, nn

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.image_encoding import ImageEncoding


class Asking(nn.Module):
    """A model with the encoding of an image and a stated budget: a graph from tokens to logits."""

    def __init__(self, model: Any, encoding: ImageEncoding, **choices: Any) -> None:
        super().__init__()
        self.model, self.encoding, self.choices = model, encoding, choices

    def forward(self, input_ids: Tensor, attention_mask: Tensor, query_mask: Tensor) -> Tensor:
        return self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            query_mask=query_mask,
            image_encoding=self.encoding,
            choices=self.choices,
            use_cache=False,
        ).logits


def tokens_of(model: Any, questions: list[str], strategy: str | None = None) -> tuple[Tensor, ...]:
    """input_ids, attention_mask and query_mask of questions, each about an image of its own."""
    inputs = prompt(
        model, *((image, text) for image, text in zip((PAGE, CARD), questions, strict=False)), strategy=strategy
    )
    return inputs["input_ids"], inputs["attention_mask"], inputs["query_mask"]


def vision(model: Any) -> dict[str, Tensor]:
    return pixels_of(model.processor.image_processor([PAGE, CARD], return_tensors="pt"))


ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 2], "mrope_interleaved": True}

TEXT = {"model_type": "qwen3_vl_text", "num_hidden_layers": 4, "rope_parameters": ROPE}

BRIDGES = {
    "places": {"layout": "qwen3_vl"},
    "planes": {"deepstack": True},
    "both": {"layout": "qwen3_vl", "deepstack": True},
}

BOTH = BRIDGES["both"]


def spatial_model(bridge: dict[str, Any] | None = None, **changes: Any) -> ArrCocForConditionalGeneration:
    text = {**TEXT, **changes.pop("text", {})}
    return tiny_model(text=text, bridge=bridge or BOTH, **changes)
