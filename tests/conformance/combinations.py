"""The models that transformers' tests run on: combinations of parts, small enough for hundreds of tests.

Notation: S side of the image in pixels, M base tokens, K fetched tokens.
"""

from typing import Any

from helpers import MIXTURE, READS_WORDS, tiny_config

from arr_coc import ArrCocConfig

COMBINATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "mask": {"vision": {"compressor": "mask"}},
    "quality": {"bridge": {"kind": "quality"}},
    "vet": {"bridge": {"kind": "vet", "table_size": 24, "layout": "indicators"}},
    "cells": {"bridge": {"kind": "cells", "place_words": [5, 3]}},
    "wordpieces": READS_WORDS,
    "adaptive": {"fetcher": {"allocator": "adaptive", "adaptive_share": 0.04}},
    "tiers": {"fetcher": {"allocator": "tiers"}},
    "deepseek": {"bridge": {"layout": "rows"}, "text": MIXTURE},
}
"""By name: what `tiny_config` changes."""

SIDE = 64
"""S, px: 8 x 8 patches of 8 px, so M = 4."""

IMAGE_TOKEN_ID = 5
"""Among the first ids: tests make the vocabulary smaller and cut ids down to it."""


def small_config(name: str) -> ArrCocConfig:
    """The config of a combination at `SIDE`."""
    changes = COMBINATIONS[name]
    config = tiny_config(**{**changes, "vision": {"image_size": SIDE, **changes.get("vision", {})}})
    config.image_token_id = IMAGE_TOKEN_ID
    return config
