"""What comes out of every stage of a model for an image made on the spot: a fingerprint of weights and arithmetic."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration

QUESTION = "What is written here?"


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation over all values of a tensor, in float64, and its shape."""

    mean: float
    std: float
    shape: tuple[int, ...]


def generated_image(side: int) -> Image.Image:
    """A square RGB image of `side` px, the same everywhere: colours that change slowly, and dark marks in rows."""
    y, x = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    pixels = np.stack((255 * y // side, 255 * x // side, 255 * (y + x) // (2 * side)), -1)
    marks = (y // 8 % 3 == 1) & ((x // 4 * 7 + y // 24 * 5) % 3 > 0)
    pixels[marks] //= 4
    return Image.fromarray(pixels.astype(np.uint8))


@torch.no_grad()
def stage_statistics(
    model: ArrCocForConditionalGeneration, *, budget: int | str | None = None
) -> dict[str, Statistics]:
    """Runs `model`, with its processor, on `generated_image` and one question.

    Strategy "oracle" has nothing to go by here: such a model fetches by "saliency".
    """
    config, processor = model.config, model.processor
    strategy = config.fetcher_config.strategy
    strategy = "saliency" if strategy == "oracle" else strategy
    image = generated_image(config.vision_config.image_size)
    turns: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    text = processor.apply_chat_template(turns, add_generation_prompt=True)
    choice = {"strategy": strategy} if budget is None else {"strategy": strategy, "budget": budget}
    inputs = processor(images=[image], text=[text], return_tensors="pt", **choice).to(model.device)
    encoding = model.model.encode_image(inputs.pop("pixel_values"), inputs.pop("patch_mask"))
    outputs = model(**inputs, image_encoding=encoding, strategy=strategy)
    stages: dict[str, Tensor] = {
        "grid encoder": encoding.features,
        "compressor": encoding.compressed,
        "semantic encoder": encoding.semantic,
        "base after bridge": encoding.tokens,
        "image tokens": outputs.image_tokens,
        "relevance": outputs.fetch.relevance,
        "text embeddings": model.get_input_embeddings()(inputs["input_ids"]),
        "logits": outputs.logits,
    }
    return {name: _statistics(tensor) for name, tensor in stages.items()}


def _statistics(values: Tensor) -> Statistics:
    exact = values.double()
    return Statistics(float(exact.mean()), float(exact.std(correction=0)), tuple(values.shape))
