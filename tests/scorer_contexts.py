"""Stand-ins that several test files share."""

from typing import Any

import torch

from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.modeling.scorers import SCORERS, FetchContext, Scorer
from arr_coc.modeling.vision_tower import TEXTURE_SETS
from arr_coc.modeling.wordpieces import PIECE_SLOTS, SPELLED

C, D, W, SIDE, LENGTH = 12, 10, 14, 8, 5

ROWS = 40
"""Of the language model's table; row 0 stands for no wordpiece."""

PIXEL_TEXTURES = len(TEXTURE_SETS["full"])


def config(**changes: Any) -> ArrCocFetcherConfig:
    sizes = {"hidden_size": 16, "num_heads": 2, "num_layers": 2, "position_size": 8, "shared_size": 8, "key_pool": 2}
    return ArrCocFetcherConfig(**{**sizes, "match_size": 8, **changes})


def build(name: str, **changes: Any) -> Scorer:
    torch.manual_seed(0)
    depth: dict[str, Any] = {"depth_size": W} if SCORERS[name].reads_depths else {}
    scorer = SCORERS[name](config(**changes), feature_size=C, text_size=D, **depth)
    with torch.no_grad():
        for module in scorer.modules():
            if hasattr(module, "start_weights"):  # as the model's _init_weights does
                module.start_weights(0.02)
    return scorer.eval()


def context(batch: int = 3, side: int = SIDE, seed: int = 0) -> FetchContext:
    generator = torch.Generator().manual_seed(seed)
    query_mask = torch.arange(LENGTH).expand(batch, -1) < torch.tensor([3, 5, 2, 4])[:batch, None]
    patch_mask = torch.ones(batch, side * side, dtype=torch.bool)
    patch_mask[0, : 2 * side] = False
    words = torch.Generator().manual_seed(seed + 1)
    query_ids = torch.randint(1, ROWS, (batch, LENGTH), generator=words)
    pieces = torch.randint(1, ROWS, (batch, side * side, 2, PIECE_SLOTS), generator=words, dtype=torch.int32)
    empty = torch.rand(pieces.shape, generator=words) < 0.8
    return FetchContext(
        features=torch.randn(batch, C, side, side, generator=generator),
        textures=torch.rand(batch, PIXEL_TEXTURES, side, side, generator=generator),
        patch_mask=patch_mask,
        query=torch.randn(batch, LENGTH, D, generator=generator),
        query_mask=query_mask,
        seeds=torch.arange(batch) + 7,
        relevance=torch.rand(batch, side * side, generator=generator),
        depths=torch.randn(batch, 2, W, side, side, generator=generator),
        attention=torch.rand(batch, side * side, generator=generator),
        pieces=pieces.masked_fill(empty, -1),
        table=torch.randn(ROWS, D, generator=words),
        query_ids=query_ids,
        spellings=torch.randint(34, 60, (ROWS, SPELLED), generator=words, dtype=torch.uint8).index_fill(
            0, torch.tensor([0]), 0
        ),
    )
