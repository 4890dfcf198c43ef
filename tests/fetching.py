"""Stand-ins that several test files share."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.modeling.fetcher import FetchResult, RunningBackFetcher
from arr_coc.modeling.scorers import SCORERS, FetchContext
from arr_coc.modeling.vision_tower import TEXTURE_SETS
from arr_coc.modeling.wordpieces import PIECE_SLOTS

C, D, W, SIDE = 6, 5, 7, 8

N = SIDE * SIDE

FETCHING = [name for name, kind in SCORERS.items() if kind.fetches]

CHOOSE_COUNTS = {name for name, kind in ALLOCATORS.items() if kind.budgeter is not None}

TRAINED = [name for name, kind in SCORERS.items() if kind.trained]


def fetcher(**changes: Any) -> RunningBackFetcher:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_heads": 2, "num_layers": 1, "position_size": 8, "shared_size": 8, "match_size": 8}
    config = ArrCocFetcherConfig(**{**sizes, **changes})
    return RunningBackFetcher(config, feature_size=C, text_size=D, depth_size=W).eval()


def context(batch: int = 2, seed: int = 0) -> FetchContext:
    generator = torch.Generator().manual_seed(seed)
    return FetchContext(
        features=torch.randn(batch, C, SIDE, SIDE, generator=generator),
        textures=torch.rand(batch, 2, SIDE, SIDE, generator=generator),
        patch_mask=torch.ones(batch, N, dtype=torch.bool),
        query=torch.randn(batch, 4, D, generator=generator),
        query_mask=torch.ones(batch, 4, dtype=torch.bool),
        seeds=torch.arange(batch),
        relevance=torch.rand(batch, N, generator=generator),
    )


def everything(**changes: Any) -> RunningBackFetcher:
    """With every scorer that has weights."""
    return fetcher(scorers=TRAINED, **changes)


def complete(given: FetchContext) -> FetchContext:
    """The same, with all that any scorer reads."""
    batch, channels = len(given.features), len(TEXTURE_SETS["full"])
    words = torch.Generator().manual_seed(4)
    pieces = torch.randint(1, 30, (batch, N, 2, PIECE_SLOTS), generator=words, dtype=torch.int32)
    return replace(
        given,
        textures=torch.rand(batch, channels, SIDE, SIDE, generator=torch.Generator().manual_seed(1)),
        depths=torch.randn(batch, 2, W, SIDE, SIDE, generator=torch.Generator().manual_seed(2)),
        attention=torch.rand(batch, N, generator=torch.Generator().manual_seed(3)),
        pieces=pieces.masked_fill(torch.rand(pieces.shape, generator=words) < 0.9, -1),
        table=torch.randn(30, D, generator=words),
    )


def fetch_of(indices: Tensor, relevance: Tensor, **fields: Any) -> FetchResult:
    """The fetch of patches [B, K] by their relevance [B, N], none of them padding."""
    counts = torch.full((len(indices),), indices.shape[1])
    known = {"budget": indices.shape[1], "is_padding": torch.zeros_like(indices, dtype=torch.bool), **fields}
    return FetchResult.of(counts, indices=indices, scores=relevance, relevance=relevance, **known)
