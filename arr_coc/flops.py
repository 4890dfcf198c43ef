"""Parameters and floating-point operations of a model's parts, counted on the meta device: no weights are read.

Notation: N patches, M base tokens, K saccades, L question tokens, D language-model width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.cache_utils import DynamicCache

from .modeling.configuration_arr_coc import ArrCocConfig, grid_size
from .modeling.fetcher import FetchChoices
from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration, ImageEncoding
from .modeling.scorers import FetchContext
from .modeling.textures import textures

STAGES = ("grid encoder", "base tokens", "fetcher", "saccades", "prefill", "one decode step")


def on_meta(config: ArrCocConfig) -> ArrCocForConditionalGeneration:
    """The model without memory for its weights."""
    with torch.device("meta"):
        return ArrCocForConditionalGeneration(config).eval()


def count_parameters(model: ArrCocForConditionalGeneration) -> dict[str, int]:
    """Parameters of each part and "total". A vocabulary head that is tied to the embeddings counts once, with them."""
    body = model.model
    tower = body.vision_tower
    parts: dict[str, nn.Module] = {
        "grid encoder": tower.grid_encoder,
        "compressor": tower.compressor,
        "semantic encoder": tower.semantic_encoder,
        "saccade projection": tower.saccade_projection,
        "fetcher": body.fetcher,
        "bridge": nn.ModuleList((body.bridge, body.layout)),
        "language model": body.language_model,
        "vocabulary head": model.lm_head,
    }
    seen: set[int] = set()
    counts = {name: sum(_new(part, seen)) for name, part in parts.items()}
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sum(counts.values()) == total, "a part is missing from the list"
    return {**counts, "total": total}


def _new(part: nn.Module, seen: set[int]) -> Iterator[int]:
    for parameter in part.parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter.numel()


@torch.no_grad()
def count_flops(
    model: ArrCocForConditionalGeneration,
    *,
    budget: int | str | None = None,
    question_tokens: int = 16,
    image_size: int | None = None,
) -> dict[str, int]:
    """FLOPs (a multiply-add is two) of each of `STAGES` for one image and one question, by torch's own counter.

    Matrix products, convolutions and attention count; normalisations, activations and sorting do not. Attention counts
    in full, causal or not. The prompt is M + K image tokens and the question; the template's few tokens are left out.

    Args:
        model: on the meta device, see `on_meta`.
        budget: see `resolve_budget`; the config's by default.
        question_tokens: L.
        image_size: side of the image, px; the config's by default.
    """
    config, body, tower = model.config, model.model, model.model.vision_tower
    vision = config.vision_config
    image_size = image_size or vision.image_size
    side = grid_size(image_size, vision.patch_size)
    base, fetched = config.vision_tokens(image_size, budget)
    if body.language_model._can_set_experts_implementation():
        body.language_model.set_experts_implementation("batched_mm")  # the one that meta runs in float32; the same work
    width = config.text_config.hidden_size
    flops: dict[str, int] = {}

    def counted(stage: str, work: Callable[[], Any]) -> Any:
        with _plain_attention(), FlopCounterMode(display=False) as counter:
            result = work()
        flops[stage] = counter.get_total_flops()
        return result

    pixels = torch.empty(1, vision.num_channels, image_size, image_size, device="meta", dtype=model.dtype)
    mask = torch.ones(1, side**2, dtype=torch.bool, device="meta")
    features = counted("grid encoder", lambda: tower.grid_encoder(pixels))

    def base_tokens() -> dict[str, Any]:
        tokens = tower.compressor(features, mask)
        semantic, cache = tower.semantic_encoder(tokens.tokens, side, tokens.indices)
        compressed = tokens.compressed
        seen = {"compressed": compressed, "base_indices": tokens.indices, "semantic": semantic, "semantic_cache": cache}
        bridged = body.bridge(semantic, compressed.flatten(2).transpose(1, 2))
        return {**seen, "tokens": bridged.tokens, "bridge_cache": bridged.cache}

    seen = counted("base tokens", base_tokens)
    seeds = torch.zeros(1, dtype=torch.long, device="meta")

    def fetch() -> tuple[ImageEncoding, torch.Tensor]:
        channels = textures(pixels, side)
        encoding = ImageEncoding(features=features, textures=channels, patch_mask=mask, seeds=seeds, **seen)
        question = torch.empty(1, question_tokens, width, device="meta", dtype=model.dtype)
        asked = torch.ones(1, question_tokens, dtype=torch.bool, device="meta")
        context = FetchContext(features, channels, mask, question, asked, seeds)
        strategy = config.fetcher_config.strategy
        if strategy in ("random", "oracle"):  # no arithmetic, and their values are not to be had on meta
            return encoding, torch.zeros(1, fetched, dtype=torch.long, device="meta")
        # The most that an allocator may fetch; what it chooses from values is not to be had on meta.
        choices = FetchChoices(allocator="topk")
        return encoding, body.fetcher(context, fetched, choices, taken=encoding.base_indices).indices

    encoding, indices = counted("fetcher", fetch)
    counted("saccades", lambda: body.bridge_saccades(encoding, indices) if fetched else None)
    cache = DynamicCache(config=config.text_config)

    def read(length: int) -> torch.Tensor:
        embeds = torch.empty(1, length, width, device="meta", dtype=model.dtype)
        hidden = body(inputs_embeds=embeds, past_key_values=cache, use_cache=True).last_hidden_state
        return model.lm_head(hidden[:, -1:])

    counted("prefill", lambda: read(base + fetched + question_tokens))
    counted("one decode step", lambda: read(1))
    assert tuple(flops) == STAGES
    return flops


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention as matrix products: the counter does not know every fused kernel."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield
