"""What a model is made of and what it costs, from its config alone: as numbers, and as text for people."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .flops import count_flops, count_parameters, count_scorers, on_meta
from .modeling.configuration_arr_coc import NAMED_BUDGETS, grid_size
from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .modeling.probes import EXPECTED, Range, Statistics


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
            "compressor": vision.compressor,
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


def describe_scorers(
    config: Any, question_tokens: int, image_size: int | None = None
) -> dict[str, dict[str, int | bool]]:
    """Every registered scorer's parameters and FLOPs at this model's sizes, and whether this model holds it."""
    counts = count_scorers(config, question_tokens=question_tokens, image_size=image_size)
    held = config.fetcher_config.scorers
    return {name: {**of, "held": not of["parameters"] or name in held} for name, of in counts.items()}


def report(description: dict[str, Any]) -> str:
    """`describe_model`'s answer for people."""
    geometry, fetching, tokens = description["geometry"], description["fetching"], description["tokens"]
    budgets = ", ".join(f"{name} {count}" for name, count in fetching["budgets"].items())
    trained = ", ".join(fetching["trained_scorers"]) or "none"
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
        *_shares(description["parameters"], description["parameters"]["total"], _count),
        "",
        f"FLOPs for one image and a question of {tokens['question']} tokens, counted (a multiply-add is 2)",
        *_shares(
            description["flops"],
            sum(n for stage, n in description["flops"].items() if stage != "one decode step"),
            _flops,
        ),
        "  shares are of the work up to the first token; the first two stages run once per image",
        *_scorers(description.get("scorers")),
        *_statistics(description.get("statistics")),
    ]
    return "\n".join(lines)


def _scorers(scorers: dict[str, dict[str, Any]] | None) -> list[str]:
    if scorers is None:
        return []
    rows = [
        f"  {name:<24}{_count(of['parameters']):>12}{_flops(of['flops']):>12}  {'yes' if of['held'] else 'no'}"
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


def _count(number: int) -> str:
    return f"{number:,}"


def _flops(number: int) -> str:
    unit, name = next(((u, n) for u, n in ((1e12, "T"), (1e9, "G"), (1e6, "M")) if number >= u), (1e3, "k"))
    return f"{number / unit:.2f} {name}"


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
