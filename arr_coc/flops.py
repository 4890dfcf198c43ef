"""Parameters and floating-point operations of a model's parts, counted on the meta device: no weights are read.

Notation: N patches, M base tokens, K saccades, L question tokens, D language-model width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.cache_utils import DynamicCache

from .modeling.configuration_arr_coc import ArrCocConfig
from .modeling.fetcher import FetchChoices
from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .modeling.prompt import Look
from .modeling.scorers import FetchContext
from .modeling.vision_tower import ImageEncoding

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
    reads_base: bool = True,
) -> dict[str, int]:
    """FLOPs (a multiply-add is two) of each of `STAGES` for one image and one question, by torch's own counter.

    Matrix products, convolutions and attention count; normalisations, activations and sorting do not. Attention counts
    in full, causal or not. The prompt is M + K image tokens and the question; the template's few tokens are left out.

    Args:
        model: on the meta device, see `on_meta`.
        budget: see `resolve_budget`; the config's by default.
        question_tokens: L.
        image_size: side of the image, px; the config's by default.
        reads_base: whether the prompt holds the base tokens.
    """
    config, body = model.config, model.model
    image_size = image_size or config.vision_config.image_size
    base, saccades = config.vision_tokens(image_size, budget)
    if body.language_model._can_set_experts_implementation():
        body.language_model.set_experts_implementation("batched_mm")  # the one that meta runs in float32; the same work
    flops: dict[str, int] = {}

    def counted(stage: str, work: Callable[[], Any]) -> Any:
        with _plain_attention(), FlopCounterMode(display=False) as counter:
            result = work()
        flops[stage] = counter.get_total_flops()
        return result

    pixels = _empty(model, config.vision_config.num_channels, image_size, image_size)
    features = counted("grid encoder", lambda: body.vision_tower.grid_encoder(pixels))
    encoding = counted("base tokens", lambda: body.encode_features(features, pixels))
    look = _look(model, encoding, question_tokens, saccades)
    strategy = config.fetcher_config.strategy
    # The most that an allocator may fetch, as what it chooses from values is not to be had on meta; nor is what has no
    # arithmetic anyway: random numbers and boxes.
    choices = FetchChoices(strategy="saliency" if strategy in ("random", "oracle") else strategy, allocator="topk")
    fetched = counted("fetcher", lambda: body.fetch(look, choices))
    counted("saccades", lambda: body.image_tokens(encoding, fetched))
    cache = DynamicCache(config=config.text_config)

    def read(length: int) -> Tensor:
        embeds = _empty(model, length, config.text_config.hidden_size)
        hidden = body(inputs_embeds=embeds, past_key_values=cache, use_cache=True).last_hidden_state
        return model.lm_head(hidden[:, -1:])

    counted("prefill", lambda: read((base if reads_base else 0) + saccades + question_tokens))
    counted("one decode step", lambda: read(1))
    assert tuple(flops) == STAGES
    return flops


def _empty(model: ArrCocForConditionalGeneration, *shape: int) -> Tensor:
    """[1, *shape] on the meta device, in the model's precision."""
    return torch.empty(1, *shape, device="meta", dtype=model.dtype)


def _look(model: ArrCocForConditionalGeneration, encoding: ImageEncoding, question_tokens: int, saccades: int) -> Look:
    """What a question of so many tokens about one image sees, whatever the prompt around it."""
    query = _empty(model, question_tokens, model.config.text_config.hidden_size)
    query_mask = torch.ones(1, question_tokens, dtype=torch.bool, device="meta")
    context = FetchContext(encoding.features, encoding.textures, encoding.patch_mask, query, query_mask, encoding.seeds)
    ids = query_mask.long()
    return Look(ids, query_mask, query, encoding, ids[:, 0], saccades, context, encoding.base_indices)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention as matrix products: the counter does not know every fused kernel."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield
