"""Fetchers, scorers and contexts of random weights and numbers, that several test files share."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.modeling.fetcher import FetchResult, RunningBackFetcher
from arr_coc.modeling.scorers import SCORERS, FetchContext, Scorer
from arr_coc.modeling.vision_tower import TEXTURE_SETS
from arr_coc.modeling.wordpieces import PIECE_SLOTS, SPELLED

C, D, W, SIDE, LENGTH = 12, 10, 14, 8, 5

N = SIDE * SIDE

ROWS = 40
"""Of the language model's table; row 0 stands for no wordpiece."""

PIXEL_TEXTURES = len(TEXTURE_SETS["full"])

SIZES = {"hidden_size": 16, "num_heads": 2, "num_layers": 1, "position_size": 8, "shared_size": 8, "match_size": 8}

FETCHING = [name for name, kind in SCORERS.items() if kind.fetches]

CHOOSE_COUNTS = {name for name, kind in ALLOCATORS.items() if kind.budgeter is not None}

TRAINED = [name for name, kind in SCORERS.items() if kind.trained]


def fetcher(**changes: Any) -> RunningBackFetcher:
    torch.manual_seed(0)
    config = ArrCocFetcherConfig(**{**SIZES, **changes})
    return RunningBackFetcher(config, feature_size=C, text_size=D, depth_size=W).eval()


def everything(**changes: Any) -> RunningBackFetcher:
    """With every scorer that has weights."""
    return fetcher(scorers=TRAINED, **changes)


def build(name: str, **changes: Any) -> Scorer:
    """A scorer by itself, with two layers."""
    torch.manual_seed(0)
    depth: dict[str, Any] = {"depth_size": W} if SCORERS[name].reads_depths else {}
    config = ArrCocFetcherConfig(**{**SIZES, "num_layers": 2, "key_pool": 2, **changes})
    scorer = SCORERS[name](config, feature_size=C, text_size=D, **depth)
    with torch.no_grad():
        for module in scorer.modules():
            if hasattr(module, "start_weights"):  # as the model's _init_weights does
                module.start_weights(0.02)
    return scorer.eval()


def context(batch: int = 2, side: int = SIDE) -> FetchContext:
    """Images without padding and questions of `LENGTH` tokens, for scorers that read features and light textures."""
    generator = torch.Generator().manual_seed(0)
    return FetchContext(
        features=torch.randn(batch, C, side, side, generator=generator),
        textures=torch.rand(batch, 2, side, side, generator=generator),
        patch_mask=torch.ones(batch, side * side, dtype=torch.bool),
        query=torch.randn(batch, LENGTH, D, generator=generator),
        query_mask=torch.ones(batch, LENGTH, dtype=torch.bool),
        seeds=torch.arange(batch),
        relevance=torch.rand(batch, side * side, generator=generator),
    )


def complete(given: FetchContext) -> FetchContext:
    """The same, with all that any scorer reads."""
    batch, _, side, _ = given.features.shape
    generator = torch.Generator().manual_seed(1)
    pieces = torch.randint(1, ROWS, (batch, side * side, 2, PIECE_SLOTS), generator=generator, dtype=torch.int32)
    spellings = torch.randint(34, 60, (ROWS, SPELLED), generator=generator, dtype=torch.uint8)
    spellings[0] = 0
    return replace(
        given,
        textures=torch.rand(batch, PIXEL_TEXTURES, side, side, generator=generator),
        depths=torch.randn(batch, 2, W, side, side, generator=generator),
        attention=torch.rand(batch, side * side, generator=generator),
        pieces=pieces.masked_fill(torch.rand(pieces.shape, generator=generator) < 0.8, -1),
        table=torch.randn(ROWS, D, generator=generator),
        query_ids=torch.randint(1, ROWS, given.query_mask.shape, generator=generator),
        spellings=spellings,
    )


def unequal_context(side: int = SIDE) -> FetchContext:
    """Three items with questions of three lengths, the first with padding above its image, and all that is read."""
    given = complete(context(3, side))
    given.patch_mask[0, : 2 * side] = False
    return replace(given, query_mask=torch.arange(LENGTH) < torch.tensor([[3], [5], [2]]), seeds=given.seeds + 7)


def fetch_of(indices: Tensor, relevance: Tensor, **fields: Any) -> FetchResult:
    """The fetch of patches [B, K] by their relevance [B, N], none of them padding."""
    counts = torch.full((len(indices),), indices.shape[1])
    known = {"budget": indices.shape[1], "is_padding": torch.zeros_like(indices, dtype=torch.bool), **fields}
    return FetchResult.of(counts, indices=indices, scores=relevance, relevance=relevance, **known)
