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

from .modeling.allocators import ALLOCATORS
from .modeling.configuration_arr_coc import ArrCocConfig
from .modeling.fetcher import FetchChoices, FetchResult
from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .modeling.prompt import Look
from .modeling.scorers import SCORERS, FetchContext
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
    features, depths = counted("grid encoder", lambda: body.vision_tower.encode_grid(pixels))
    encoding = counted("base tokens", lambda: body.encode_features(features, pixels, depths=depths))
    look = _look(model, encoding, question_tokens, saccades)
    strategy = config.fetcher_config.strategy
    fetched = counted("fetcher", _fetching(model, look, strategy, base))
    counted("saccades", lambda: body.image_tokens(encoding, fetched))
    cache = DynamicCache(config=config.text_config)

    def read(length: int) -> Tensor:
        return model.lm_head(_read(model, length, cache)[:, -1:])

    counted("prefill", lambda: read((base if reads_base else 0) + saccades + question_tokens))
    counted("one decode step", lambda: read(1))
    assert tuple(flops) == STAGES
    return flops


@torch.no_grad()
def count_scorers(
    config: ArrCocConfig, *, question_tokens: int = 16, image_size: int | None = None
) -> dict[str, dict[str, int]]:
    """Every registered scorer, as if the checkpoint held it: its "parameters", and its "flops" for one question.

    FLOPs as in `count_flops`, of scoring alone; textures are made once per image. For "glance" they are those of the
    language model's reading of the question behind the base, whose own reading the answer reuses.

    Args:
        config: of the model; its scorers do not matter.
        question_tokens: L.
        image_size: side of the image, px; the config's by default.
    """
    trained = [name for name, kind in SCORERS.items() if kind.trained]
    config = ArrCocConfig.from_dict(config.to_dict())
    config.fetcher_config.scorers, config.fetcher_config.textures = trained, None
    model = on_meta(config)
    image_size = image_size or config.vision_config.image_size
    base, _ = config.vision_tokens(image_size)
    encoding = model.model.encode_image(_empty(model, config.vision_config.num_channels, image_size, image_size))
    look = _look(model, encoding, question_tokens, 1)
    counts = {}
    for name, kind in SCORERS.items():
        fetch = _fetching(model, look, name, base)
        with _plain_attention(), FlopCounterMode(display=False) as counter:
            if kind.fetches:
                fetch()
        parameters = sum(_new(model.model.fetcher.scorers[name], set())) if kind.trained else 0
        counts[name] = {"parameters": parameters, "flops": counter.get_total_flops()}
    return counts


@torch.no_grad()
def count_allocators(config: ArrCocConfig, *, question_tokens: int = 16) -> dict[str, dict[str, int]]:
    """Every registered allocator's "parameters" and "flops" for one question, with all that the configuration can have
    it learn: the classifier of "tiers". Choosing multiplies no matrices."""
    config = ArrCocConfig.from_dict(config.to_dict())
    config.fetcher_config.tier_choice = "classifier"
    model = on_meta(config)
    image_size = config.vision_config.image_size
    encoding = model.model.encode_image(_empty(model, config.vision_config.num_channels, image_size, image_size))
    context = _look(model, encoding, question_tokens, 1).context
    counts = {}
    for name in ALLOCATORS:
        held = model.model.fetcher.budgeters
        learned = [*held[name].children()] if name in held else []
        with _plain_attention(), FlopCounterMode(display=False) as counter:
            for part in learned:
                part(context)
        parameters = sum(parameter.numel() for part in learned for parameter in part.parameters())
        counts[name] = {"parameters": parameters, "flops": counter.get_total_flops()}
    return counts


def _fetching(model: ArrCocForConditionalGeneration, look: Look, strategy: str, base: int) -> Callable[[], FetchResult]:
    """What `ArrCocModel.fetch` does on a real device, as far as it has arithmetic, for an image of `base` positions."""
    kind, cache = SCORERS[strategy], DynamicCache(config=model.config.text_config)
    if kind.reads_attention:
        _read(model, base, cache)  # here already, as the answer's prefill counts it
    # The most that an allocator may fetch, as what it chooses from values is not to be had on meta; nor is what has no
    # arithmetic of its own: random numbers, boxes and attention that was read.
    plain = strategy in ("random", "oracle") or kind.reads_attention
    choices = FetchChoices(strategy="saliency" if plain else strategy, allocator="topk")

    def fetch() -> FetchResult:
        if kind.reads_attention:
            _read(model, look.context.query.shape[1], cache)
        return model.model.fetch(look, choices)

    return fetch


def _read(model: ArrCocForConditionalGeneration, length: int, cache: DynamicCache) -> Tensor:
    """The language model's states [1, length, D] of so many tokens behind those in the cache."""
    embeds = _empty(model, length, model.config.text_config.hidden_size)
    return model.model(inputs_embeds=embeds, cache=cache, use_cache=True).last_hidden_state


def _empty(model: ArrCocForConditionalGeneration, *shape: int) -> Tensor:
    """[1, *shape] on the meta device, in the model's precision."""
    return torch.empty(1, *shape, device="meta", dtype=model.dtype)


def _look(model: ArrCocForConditionalGeneration, encoding: ImageEncoding, question_tokens: int, saccades: int) -> Look:
    """What a question of so many tokens about one image sees, whatever the prompt around it."""
    query = _empty(model, question_tokens, model.config.text_config.hidden_size)
    query_mask = torch.ones(1, question_tokens, dtype=torch.bool, device="meta")
    seen = (encoding.features, encoding.textures, encoding.patch_mask)
    context = FetchContext(*seen, query, query_mask, encoding.seeds, depths=encoding.depths)
    ids = query_mask.long()
    return Look(ids, query_mask, query, encoding, ids[:, 0], saccades, context, encoding.base_indices)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention as matrix products: the counter does not know every fused kernel."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield
