"""Published models in small: names and shapes of all their weights, and what their own code computes in two cases.

The weights of the two cases are not stored: `fill` makes them anew from name and shape. Of large outputs every 16th
channel is stored; each depends on all channels before it.
"""

import itertools
import json
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

_FIXTURES = Path(__file__).parent / "fixtures"
TOLERANCE = 5e-5
"""Largest absolute difference in float32 on which independent implementations of an encoder agree."""
CHANNEL_STRIDE = 16
"""Of the encoder's outputs before the projector, one channel in so many is stored."""
DEEP_ENCODER: dict[str, Any] = {
    "image": 256,
    "width": 48,
    "layers": 4,
    "heads": 4,
    "whole": [1, 3],
    "semantic_layers": 2,
} | {"semantic_heads": 16, "projected": 64}
"""Sizes of the small case of DeepSeek-OCR's encoder; all others are the published ones."""
OVIS_TABLE = {"features": 96, "vision_width": 24, "rows": 260, "text_width": 32}
"""Sizes of the small case of Ovis 2.5's visual embedding table."""


def _read(name: str) -> Any:
    return json.loads((_FIXTURES / name).read_text(encoding="utf-8"))


def _numbers(spans: str) -> list[int]:
    """ "0-2,5" -> 0, 1, 2, 5."""
    pairs = [(span.split("-")[0], span.split("-")[-1]) for span in spans.split(",")]
    return [number for first, last in pairs for number in range(int(first), int(last) + 1)]


def published_shapes(name: str) -> dict[str, list[int]]:
    """Shapes by the names of all weights of a checkpoint of fixtures/published_shapes.json, which holds {0-11} once."""
    shapes = {}
    for pattern, shape in _read("published_shapes.json")[name].items():
        parts = re.split(r"\{(.+?)\}", pattern)  # every second one is a list of numbers
        choices = [_numbers(part) if place % 2 else [part] for place, part in enumerate(parts)]
        shapes.update({"".join(map(str, chosen)): shape for chosen in itertools.product(*choices)})
    return shapes


def published_config(name: str) -> dict[str, Any]:
    """What a checkpoint of fixtures/published_configs.json says of its sizes."""
    return _read("published_configs.json")[name]


def fill(name: str, shape: list[int]) -> Tensor:
    """The weight under a published name: noise from a seed of the name, as wide as a layer keeps its inputs."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if len(shape) == 1:
        return 0.1 * noise + (1.0 if name.endswith("weight") else 0.0)
    return 0.5 * noise if "pos_" in name or "embedding" in name else noise * (noise.numel() / shape[0]) ** -0.5


def deep_encoder() -> tuple[dict[str, Tensor], Tensor]:
    """DeepSeek-OCR's encoder in small: weights by published names, and pixels [2, 3, 256, 256] in -1..1."""
    weights = {name: fill(name, shape) for name, shape in published_shapes("deepencoder_small").items()}
    pixels = torch.rand((2, 3, 256, 256), generator=torch.Generator().manual_seed(0))
    return weights, (pixels - 0.5) / 0.5


def assert_deep_encoder_agrees(outputs: Mapping[str, Tensor]) -> None:
    """Asserts that what a model computes of the pixels of `deep_encoder` is what the published code computes.

    Args:
        outputs: `sam_neck` [2, 256, 16, 16], `sam_conv` [2, 1024, 4, 4], `clip_out` [2, 16, 1024] (without the class
            token), `projector_out` [2, 16, 64].
    """
    expected = load_file(_FIXTURES / "deepencoder_small.safetensors")
    comparable = {
        "sam_neck": outputs["sam_neck"][:, ::CHANNEL_STRIDE],
        "sam_conv": outputs["sam_conv"][:, ::CHANNEL_STRIDE],
        "clip_out": outputs["clip_out"][..., ::CHANNEL_STRIDE],
        "projector_out": outputs["projector_out"],
    }
    for name, output in comparable.items():
        stored = expected[name][:, 1:] if name == "clip_out" else expected[name]
        assert output.shape == stored.shape, name
        assert (output - stored).abs().max() < TOLERANCE, name


def ovis_table() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Ovis 2.5's table in small: its weights by published names, and what its code makes of 8 visual tokens.

    `merged_features` [8, 96] are the input; `visual_embeds` [8, 32], `indicator_embeds` [4, 32], and `inputs_embeds`
    [1, 15, 32], in which a prompt's ten embeddings from the third on are start, visual tokens and end of an image.
    """
    rows, features = OVIS_TABLE["rows"], OVIS_TABLE["features"]
    shapes = {
        "visual_tokenizer.head.0.weight": [rows - 4, features],
        "visual_tokenizer.head.1.weight": [rows - 4],
        "visual_tokenizer.head.1.bias": [rows - 4],
        "vte.weight": [rows, OVIS_TABLE["text_width"]],
    }
    weights = {name: fill(name, shape) for name, shape in shapes.items()}
    weights["visual_tokenizer.head.1.weight"] *= 6  # so that a few words of the table stand out, as after training
    return weights, load_file(_FIXTURES / "ovis_vet_small.safetensors")
