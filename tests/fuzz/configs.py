"""Odd values in every field of configs and processors: a model that answers, or one line that says what is wrong."""

import copy
import json
import random
import tempfile
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from arr_coc import ArrCocConfig, ArrCocForConditionalGeneration, ArrCocImageProcessor, ArrCocProcessor
from arr_coc.assembling.plan import skeleton
from arr_coc.cli.common import quiet
from arr_coc.loading import load_config
from arr_coc.modeling.image_processing_arr_coc import ImageSettings, ProcessorSettings
from tests.fuzz.tally import Tally
from tests.helpers import TINY_PATCH, TINY_SIDE, tiny_config, tiny_tokenizer

Draw = random.Random

ONE_LINE = r"\A[^\n]*expected[^\n]*got[^\n]*\Z|\ASpecified `attn_implementation="
"""Of a refusal; kinds of attention are transformers' to know."""

VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"vision": {"compressor": "mask"}, "fetcher": {"allocator": "adaptive", "overlap": "allow"}},
    {"bridge": {"kind": "vet", "layout": "indicators", "table_size": 40}, "fetcher": {"tier_choice": "classifier"}},
    {"bridge": {"kind": "transformer", "num_layers": 1, "layout": "rows"}, "fetcher": {"allocator": "window"}},
    {"bridge": {"kind": "quality"}, "text": {"model_type": "llama"}, "fetcher": {"allocator": "tiers"}},
    {"bridge": {"layout": "fetched"}},
)
"""Configs that the odd values go into, so that every field matters in one of them."""

PARTS = ("vision_config", "semantic_config", "fetcher_config", "bridge_config", "text_config")

ODD: tuple[Any, ...] = (
    (None, True, False, 0, 1, -1, 2, 3, 7, 64, 4096, 160_000, 2_000_000, 2**31, 2**63, 10**30, 10**400, 0.5, 1.0)
    + (0.0, -0.5, 1e-30, 1e30, float("nan"), float("inf"), -float("inf"), "", "x", "3", "none", "conv", "mask")
    + ("vet", "rows", "transformer", "window", "adaptive", "soft", "hard", "all", "auto", "tier:7", "gelu")
    + ("float16", "bfloat16", "int8", "nn", "regression", "\ud800", "\0", "x" * 5000, "../../etc", [], [[]], [0])
    + ([1, 2], [1, 1], [-1], [True], ["x"], ["realizer"], ["realizer", "realizer"], ["saliency"], [1, 2, 3, 4])
    + ([4, 3, 2, 1], [8, 12, 16, 24], [10**30, 1], [0.5, 0.5, 0.5], [float("nan")] * 3, [None], list(range(2000)))
    + ({}, {"a": 1}, {"0": "a"}, {"height": 64}, {"height": 64, "width": 64}, {"height": 0, "width": 0})
    + ({"height": 10**9, "width": 10**9}, {"rope_theta": 1e4}, {"rope_type": "x", "rope_theta": 0.0})
    + ({"rope_type": "default", "rope_theta": float("nan")}, {"model_type": "llama"})
    + ({"start_id": 1, "end_id": 2, "role_ids": [3], "newline_ids": [4], "ignored_ids": [5]},)
    + ({"start_id": "1", "end_id": 2, "role_ids": 3, "newline_ids": [4], "ignored_ids": [5]},)
)

SMALL_WEIGHTS, SMALL_PATCHES = 1_000_000, 1024
"""An accepted config of more is built without memory only, and not asked."""

IMAGE = Image.effect_noise((90, 60), 80).convert("RGB")


def odd_value(draw: Draw, value: Any) -> Any:
    """Anything, or something near the `value` that is there."""
    if type(value) in (int, float) and draw.random() < 0.3:
        near = [value + 1, value - 1, value * 2, -value, value * 1000, float(value), str(value), [value]]
        return draw.choice(near)
    return draw.choice(ODD)


def odd_config(draw: Draw, bases: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """A config's dict with one or two odd fields, and what they are called."""
    config = copy.deepcopy(bases[draw.randrange(len(bases))])
    names = []
    for _ in range(draw.choice((1, 1, 1, 2))):
        part = draw.choice((*PARTS, None))
        held = config if part is None else config[part]
        if not isinstance(held, dict):
            continue
        name = draw.choice([*sorted(held), "num_labels", "attn_implementation", "unknown_field"])
        held[name] = odd_value(draw, held.get(name))
        names.append(f"{part or ''}.{name} = {str(held[name])[:60]}")
    return config, ", ".join(names)


def make_config(settings: dict[str, Any], as_file: bool) -> ArrCocConfig:
    """From a config.json, or as Python makes it."""
    if not as_file:
        return ArrCocConfig(**settings)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps({**settings, "model_type": "arr_coc"}), encoding="utf-8")
        return load_config(folder)


def try_config(settings: dict[str, Any], as_file: bool) -> tuple[ArrCocConfig, str | None]:
    """The accepted config, and its model's answer if it is small."""
    config = make_config(settings, as_file)
    size = sum(parameter.numel() for parameter in skeleton(config).parameters())
    vision = config.vision_config
    if size > SMALL_WEIGHTS or vision.num_patches > SMALL_PATCHES:
        return config, None
    torch.manual_seed(0)
    model = ArrCocForConditionalGeneration(config).eval()
    square = {"height": vision.image_size, "width": vision.image_size}
    images = ArrCocImageProcessor(size=square, patch_size=vision.patch_size)
    fetcher = config.fetcher_config
    model.processor = ArrCocProcessor(
        images,
        tiny_tokenizer(),
        budget=fetcher.budget,
        layout=config.bridge_config.layout,
        excludes_base=config.excludes_base,
    )
    answer = model.generate(IMAGE, "What is the total?", max_new_tokens=2, return_fetch=True)
    return config, f"{answer.probability}"


def check_config(outcome: tuple[ArrCocConfig, str | None]) -> str | None:
    config, probability = outcome
    if probability is not None and not 0 <= float(probability) <= 1:
        return f"accepted, and answers with probability {probability}"
    again = ArrCocConfig(**config.to_dict())
    return None if again.to_dict() == config.to_dict() else "accepted, and another config once it is saved"


def try_processor(settings: dict[str, Any]) -> Any:
    """The pixels that processors of these settings make."""
    names = {field.name for field in fields(ProcessorSettings)}
    own = {name: value for name, value in settings.items() if name in names}
    images = {"size": {"height": TINY_SIDE, "width": TINY_SIDE}, "patch_size": TINY_PATCH}
    images |= {name: value for name, value in settings.items() if name not in names}
    processor = ArrCocProcessor(ArrCocImageProcessor(**images), tiny_tokenizer(), **own)
    if processor.image_processor.size["height"] > 4 * TINY_SIDE:
        return None
    text = f"{processor.image_token}What is the total?"
    return processor(images=IMAGE, text=text, return_tensors="pt")["pixel_values"]


def check_pixels(pixels: Any) -> str | None:
    return None if pixels is None or bool(torch.as_tensor(pixels).isfinite().all()) else "pixels that are no numbers"


SETTINGS = sorted({field.name for kind in (ImageSettings, ProcessorSettings) for field in fields(kind)})
"""Of both processors."""


def attempt(tally: Tally, seed: int, bases: list[dict[str, Any]]) -> None:
    """One config, or one pair of processors, with odd fields."""
    draw = Draw(seed)
    if draw.random() < 0.2:
        settings = {name: draw.choice(ODD) for name in draw.sample(SETTINGS, draw.choice((1, 1, 2)))}
        name, action, check = str(settings)[:200], partial(try_processor, settings), check_pixels
        tally.attempt(seed, action, name=name, wording=ONE_LINE, check=check)
    else:
        odd, name = odd_config(draw, bases)
        tally.attempt(
            seed, partial(try_config, odd, draw.random() < 0.5), name=name, wording=ONE_LINE, check=check_config
        )


def fuzz(count: int, seed: int) -> Tally:
    """`count` configs and processors with odd fields, the first one by `seed`."""
    bases = [tiny_config(**variant).to_dict() for variant in VARIANTS]
    try_config(bases[0], as_file=True)  # what loads on first use counts before the tally begins
    tally = Tally()
    with quiet():
        for number in range(seed, seed + count):
            attempt(tally, number, bases)
    return tally
