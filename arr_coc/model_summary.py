"""Parts and costs of a model, from its config alone: as numbers, and as text.

Parameters and floating-point operations are counted on the meta device: no weights are read. `stage_statistics` runs a
model on a generated image: a fingerprint of weights and arithmetic.

Notation: N patches, M base tokens, K fetched patches, L question tokens, D language-model width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.cache_utils import DynamicCache

from .modeling.allocators import ALLOCATORS
from .modeling.configuration_arr_coc import NAMED_BUDGETS, ArrCocConfig, grid_size
from .modeling.fetcher import FetchChoices, FetchResult
from .modeling.image_encoding import ImageEncoding
from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .modeling.pretrained import CACHE
from .modeling.prompt import image_planes
from .modeling.scorers import SCORERS, FetchContext
from .modeling.views import SelectedSlots
from .probes import Statistics, set_probes

STAGES = ("grid encoder", "base tokens", "fetcher", "fetched tokens", "prefill", "one decode step")


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
        "fetcher": body.fetcher,
        "bridge": nn.ModuleList(part for part in (body.bridge, body.layout, body.deepstack) if part is not None),
        "language model": body.language_model,
        "vocabulary head": model.lm_head,
    }
    if tower.text_reader is not None:
        parts["text reader"] = tower.text_reader
    else:
        parts |= {"compressor": tower.compressor, "semantic encoder": tower.semantic_encoder}
        parts["fetched-patch projection"] = tower.saccade_projection
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
    config, body = model.config, model.model
    image_size = image_size or config.vision_config.image_size
    base, num_fetched = config.vision_tokens(image_size, budget)
    if body.language_model._can_set_experts_implementation():  # that of meta in float32; the work is the same
        body.language_model.set_experts_implementation("batched_mm")
    flops: dict[str, int] = {}

    def counted(stage: str, work: Callable[[], Any]) -> Any:
        with _counting() as counter:
            result = work()
        flops[stage] = counter.get_total_flops()
        return result

    pixels = _empty(model, config.vision_config.num_channels, image_size, image_size)
    grid = counted("grid encoder", lambda: body.vision_tower.encode_grid(pixels))
    encoding = counted("base tokens", lambda: body.encode_image(pixels, **grid))
    selected = _selected_slots(model, encoding, question_tokens, num_fetched)
    strategy = config.fetcher_config.strategy
    fetched = counted("fetcher", _fetching(model, selected, strategy, base))

    def place() -> None:
        body.image_tokens(encoding, fetched)
        if body.deepstack is not None:
            image_planes(body, encoding, fetched, selected.context)

    counted("fetched tokens", place)
    cache = DynamicCache(config=config.text_config)

    def read(length: int) -> Tensor:
        return model.lm_head(_read(model, length, cache)[:, -1:])

    counted("prefill", lambda: read(base + num_fetched + question_tokens))
    counted("one decode step", lambda: read(1))
    assert tuple(flops) == STAGES
    return flops


@torch.no_grad()
def count_scorers(
    config: ArrCocConfig, *, question_tokens: int = 16, image_size: int | None = None
) -> dict[str, dict[str, int]]:
    """Every registered scorer, as if the checkpoint held it: its "parameters", and its "flops" for one question.

    Scorers that read text are left out unless the checkpoint holds them (`Scorer.reads_text`).

    FLOPs as in `count_flops`, of scoring alone; textures are computed once per image. For "attention" they are those of
    the language model for the question behind the base tokens, whose prefill the answer reuses.

    Args:
        config: of the model; its scorers do not matter.
        question_tokens: L.
        image_size: side of the image, px; the config's by default.
    """
    config = ArrCocConfig.from_dict(config.to_dict())
    held = config.fetcher_config.scorers
    kinds = {name: kind for name, kind in SCORERS.items() if not kind.reads_text or name in held}
    config.fetcher_config.scorers = [name for name, kind in kinds.items() if kind.trained]
    config.fetcher_config.textures = None
    model, selected = _model_and_slots(config, question_tokens, image_size)
    base, _ = config.vision_tokens(image_size or config.vision_config.image_size)
    counts = {}
    for name, kind in kinds.items():
        fetch = _fetching(model, selected, name, base)
        with _counting() as counter:
            if kind.fetches:
                fetch()
        parameters = sum(_new(model.model.fetcher.scorers[name], set())) if kind.trained else 0
        counts[name] = {"parameters": parameters, "flops": counter.get_total_flops()}
    return counts


@torch.no_grad()
def count_allocators(config: ArrCocConfig) -> dict[str, dict[str, int]]:
    """The "parameters" and "flops" of every registered allocator for one question of 16 tokens, with the largest
    trained part that the configuration allows: the classifier of "tiers". Choosing needs no matrix products."""
    config = ArrCocConfig.from_dict(config.to_dict())
    config.fetcher_config.tier_choice = "classifier"
    model, selected = _model_and_slots(config, 16)
    counts = {}
    for name in ALLOCATORS:
        held = model.model.fetcher.budgeters
        learned = [*held[name].children()] if name in held else []
        with _counting() as counter:
            for part in learned:
                part(selected.context)
        parameters = sum(parameter.numel() for part in learned for parameter in part.parameters())
        counts[name] = {"parameters": parameters, "flops": counter.get_total_flops()}
    return counts


def _fetching(
    model: ArrCocForConditionalGeneration, selected: SelectedSlots, strategy: str, base: int
) -> Callable[[], FetchResult]:
    """The arithmetic of `ArrCocModel.fetch` for an image with `base` positions."""
    kind, cache = SCORERS[strategy], DynamicCache(config=model.config.text_config)
    if kind.reads_attention:
        _read(model, base, cache)  # before the counter starts: the answer's prefill counts it
    # The most that an allocator may fetch, as what it chooses from values is not to be had on meta; nor is what has no
    # arithmetic of its own: random numbers, boxes and attention that was read.
    plain = strategy in ("random", "oracle") or kind.reads_attention
    choices = FetchChoices(strategy="saliency" if plain else strategy, allocator="topk")

    def fetch() -> FetchResult:
        if kind.reads_attention:
            _read(model, selected.context.query.shape[1], cache)
        return model.model.fetch(selected, choices)

    return fetch


def _read(model: ArrCocForConditionalGeneration, length: int, cache: DynamicCache) -> Tensor:
    """The language model's states [1, length, D] for `length` tokens behind those in the cache."""
    embeds = _empty(model, length, model.config.text_config.hidden_size)
    read: Tensor = model.model.language_model(inputs_embeds=embeds, use_cache=True, **{CACHE: cache}).last_hidden_state
    return read


def _empty(model: ArrCocForConditionalGeneration, *shape: int) -> Tensor:
    """[1, *shape] on the meta device, in the model's precision."""
    return torch.empty(1, *shape, device="meta", dtype=model.dtype)


def _model_and_slots(
    config: ArrCocConfig, question_tokens: int, image_size: int | None = None
) -> tuple[ArrCocForConditionalGeneration, SelectedSlots]:
    """The model on the meta device, and `_selected_slots` of an image."""
    model, side = on_meta(config), image_size or config.vision_config.image_size
    encoding = model.model.encode_image(_empty(model, config.vision_config.num_channels, side, side))
    return model, _selected_slots(model, encoding, question_tokens, 1)


def _selected_slots(
    model: ArrCocForConditionalGeneration, encoding: ImageEncoding, question_tokens: int, num_fetched: int
) -> SelectedSlots:
    """The image slot of a question with so many tokens about one image, without the prompt around it."""
    query = _empty(model, question_tokens, model.config.text_config.hidden_size)
    query_mask = torch.ones(1, question_tokens, dtype=torch.bool, device="meta")
    seen = (encoding.features, encoding.textures, encoding.patch_mask, query, query_mask, encoding.seeds)
    table = model.get_input_embeddings().get_parameter("weight")
    context = FetchContext(*seen, depths=encoding.depths, pieces=encoding.pieces, table=table)
    ids = query_mask.long()
    return SelectedSlots(ids, query_mask, query, encoding, ids[:, 0], num_fetched, context, encoding.base_indices)


@contextmanager
def _counting() -> Iterator[FlopCounterMode]:
    """Counts FLOPs; attention is matrix products, as the counter does not know every fused kernel."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def describe_model(
    name: str, config: Any, budget: int | str | None, question_tokens: int, image_size: int | None = None
) -> dict[str, Any]:
    """Geometry, tokens, parameters and FLOPs, from the config alone; `image_size` in px, the config's by default."""
    vision, text, fetcher = config.vision_config, config.text_config, config.fetcher_config
    image_size = vision.image_size if image_size is None else image_size
    side = grid_size(image_size, vision.patch_size)
    base, fetched = config.vision_tokens(image_size, budget)
    model = on_meta(config)
    return {
        "model": name,
        "geometry": {
            "image_side_px": image_size,
            "patch_side_px": vision.patch_size,
            "grid": [side, side],
            "patches": side**2,
            "feature_channels": vision.out_channels,
            "compressor": None if config.bridge_config.kind == "wordpieces" else vision.compressor,
            "bridge": config.bridge_config.kind,
            "language_model": text.model_type,
            "language_width": text.hidden_size,
            "context_tokens": text.max_position_embeddings,
        },
        "fetching": {
            "strategy": fetcher.strategy,
            "trained_scorers": list(fetcher.scorers),
            "allocator": fetcher.allocator,
            "budgets": {n: config.vision_tokens(image_size, n, strategy="oracle")[1] for n in NAMED_BUDGETS},
        },
        "tokens": {"base": base, "fetched": fetched, "question": question_tokens},
        "parameters": count_parameters(model),
        "flops": count_flops(model, budget=budget, question_tokens=question_tokens, image_size=image_size),
    }


def report(description: dict[str, Any]) -> str:
    """The result of `describe_model` as text."""
    geometry, fetching, tokens = description["geometry"], description["fetching"], description["tokens"]
    budgets = ", ".join(f"{name} {count}" for name, count in fetching["budgets"].items())
    trained = ", ".join(fetching["trained_scorers"]) or "none"
    flops = description["flops"]
    first_token = sum(count for stage, count in flops.items() if stage != STAGES[-1])
    lines = [
        description["model"],
        "",
        "geometry",
        f"  image             {geometry['image_side_px']} px square, patches of {geometry['patch_side_px']} px",
        f"  fine grid         {geometry['grid'][0]} x {geometry['grid'][1]} = {geometry['patches']} patches, "
        f"{geometry['feature_channels']} channels",
        f"  parts             compressor {geometry['compressor']}, bridge {geometry['bridge']}",
        f"  language model    {geometry['language_model']}, {geometry['language_width']} wide, "
        f"{geometry['context_tokens']} tokens of context",
        "",
        "tokens per image",
        f"  always            {tokens['base']} base tokens",
        f"  fetched           {tokens['fetched']} (strategy {fetching['strategy']}, allocator {fetching['allocator']})",
        f"  named budgets     {budgets}",
        f"  trained scorers   {trained}",
        "",
        "parameters",
        *_shares(description["parameters"], description["parameters"]["total"], "{:,}".format),
        "",
        f"FLOPs for one image and a question of {tokens['question']} tokens, counted (a multiply-add is 2)",
        *_shares(flops, first_token, _flops),
        "  shares are of the work up to the first token; the first two stages run once per image",
        *_scorers(description.get("scorers")),
        *_statistics(description.get("statistics")),
    ]
    return "\n".join(lines)


def _scorers(scorers: dict[str, dict[str, Any]] | None) -> list[str]:
    if scorers is None:
        return []
    rows = [
        f"  {name:<24}{of['parameters']:>12,}{_flops(of['flops']):>12}  {'yes' if of['held'] else 'no'}"
        for name, of in scorers.items()
    ]
    return ["", f"{'every scorer at these sizes':<28}parameters{'FLOPs':>10}  held here", *rows]


def _statistics(statistics: dict[str, dict[str, Any]] | None) -> list[str]:
    if statistics is None:
        return []
    rows = [
        f"  {stage:<20}{of['mean']:>12.5f}{of['std']:>12.5f}{of['min']:>12.5f}{of['max']:>12.5f}  "
        f"{' x '.join(map(str, of['shape']))} {of['dtype']}{'' if of['in_range'] else '  OUT OF RANGE'}"
        for stage, of in statistics.items()
    ]
    return ["", f"{'outputs on a generated image':<28}{'mean':>6}{'std':>12}{'min':>12}{'max':>12}  shape", *rows]


def _shares(counts: dict[str, int], whole: int, show: Any) -> list[str]:
    return [f"  {name:<20}{show(count):>12}{100 * count / max(1, whole):>8.1f} %" for name, count in counts.items()]


def _flops(number: int) -> str:
    unit, name = next(((u, n) for u, n in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if number >= u), (1e3, "k"))
    return f"{number / unit:.2f} {name}"


QUESTION = "What is written here?"


def generated_image(side: int) -> Image.Image:
    """A square RGB image of `side` px, the same on every machine: slowly changing colours, and dark marks in rows."""
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
    """The arguments of `model.generate(**inputs)` for `QUESTION` about `generated_image`; None gives the model's
    defaults."""
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
    """What `probes` see of `generated_image` (side `image_size` px) and one question. Strategy "oracle" has no boxes
    here, so "saliency" replaces it."""
    strategy = model.config.fetcher_config.strategy
    strategy = "saliency" if strategy == "oracle" else strategy
    inputs = question_inputs(model, strategy=strategy, budget=budget, image_size=image_size)
    probes = set_probes(model, True)
    model(**inputs, choices={"strategy": strategy})
    set_probes(model, False)
    return dict(probes or {})
