"""What comes out of every stage of a model for an image made on the spot: a fingerprint of weights and arithmetic."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.probes import EXPECTED, Range, Statistics

QUESTION = "What is written here?"


def generated_image(side: int) -> Image.Image:
    """A square RGB image of `side` px, the same everywhere: colours that change slowly, and dark marks in rows."""
    y, x = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    pixels = np.stack((255 * y // side, 255 * x // side, 255 * (y + x) // (2 * side)), -1)
    marks = (y // 8 % 3 == 1) & ((x // 4 * 7 + y // 24 * 5) % 3 > 0)
    pixels[marks] //= 4
    return Image.fromarray(pixels.astype(np.uint8))


def question_inputs(
    model: ArrCocForConditionalGeneration,
    *,
    strategy: str | None = None,
    budget: int | str | None = None,
    image_size: int | None = None,
) -> dict[str, Tensor]:
    """What `model.generate(**inputs)` takes for `QUESTION` about `generated_image`; the model's defaults where None."""
    side = model.config.vision_config.image_size if image_size is None else image_size
    text = model.processor.prompt(QUESTION)
    settings = {"strategy": strategy, "budget": budget, "size": {"height": side, "width": side}}
    chosen = {name: value for name, value in settings.items() if value is not None}
    inputs = model.processor(images=[generated_image(side)], text=[text], return_tensors="pt", **chosen)
    return dict(inputs.to(model.device))


@torch.no_grad()
def stage_statistics(
    model: ArrCocForConditionalGeneration, *, budget: int | str | None = None, image_size: int | None = None
) -> dict[str, Statistics]:
    """Runs `model`, with its processor, on `generated_image` (side `image_size` px) and one question.

    Strategy "oracle" has nothing to go by here: such a model fetches by "saliency".
    """
    strategy = model.config.fetcher_config.strategy
    strategy = "saliency" if strategy == "oracle" else strategy
    inputs = question_inputs(model, strategy=strategy, budget=budget, image_size=image_size)
    encoding = model.model.encode_image(inputs.pop("pixel_values"), inputs.pop("patch_mask"))
    outputs = model(**inputs, image_encoding=encoding, choices={"strategy": strategy})
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
    return {name: Statistics.of(tensor) for name, tensor in stages.items()}


def expected_range(stage: str) -> Range:
    """Where the values of a stage of `stage_statistics` are expected."""
    return EXPECTED.get(stage, Range())
