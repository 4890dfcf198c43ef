"""The running-back fetcher: score the patches, allocate the budget, gather from the grid; and say what was done.

Notation: B batch, G side of the fine grid, N = G*G patches, C feature channels, K saccades. Positions are (y, x).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .attending import ALLOCATORS
from .configuration_arr_coc import ArrCocFetcherConfig
from .realizing import SCORERS, FetchContext, Scorer


@dataclass
class FetchResult:
    """What was fetched, and why.

    Attributes:
        indices: [B, K] int64, ascending, distinct per item.
        positions: [B, K, 2] int64, (y, x) of each patch in the fine grid.
        scores: [B, N] float32, the scorer's output (logits for trained scorers).
        relevance: [B, N] float32 in 0..1: sigmoid of logits; fixed scorers: scaled to each item's own range.
        is_padding: [B, K] bool, True on fetched patches that hold nothing of the image.
        budget: K.
        strategy, allocator: their names.
    """

    indices: Tensor
    positions: Tensor
    scores: Tensor
    relevance: Tensor
    is_padding: Tensor
    budget: int
    strategy: str
    allocator: str

    def rows(self, start: int, stop: int) -> "FetchResult":
        """The items `start` to `stop` of the batch."""
        tensors = {
            n: getattr(self, n)[start:stop] for n in ("indices", "positions", "scores", "relevance", "is_padding")
        }
        return replace(self, **tensors)


def gather_patches(features: Tensor, indices: Tensor) -> Tensor:
    """Features [B, C, G, G] at `indices` [B, K] -> [B, K, C]."""
    return features.flatten(2).gather(2, indices[:, None].expand(-1, features.shape[1], -1)).transpose(1, 2)


def _unit_range(scores: Tensor) -> Tensor:
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    return (scores - low) / (high - low).clamp(min=1e-12)


class RunningBackFetcher(nn.Module):
    """Holds the trained scorers; makes the fixed ones on demand."""

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__()
        self.config = config
        self.sizes = {"feature_size": feature_size, "text_size": text_size}
        fixed = [name for name in config.scorers if not SCORERS.named(name).trained]
        if fixed:
            raise ValueError(f"fetcher_config.scorers: expected scorers with weights; got {fixed}")
        ALLOCATORS.named(config.allocator)
        self.check_strategy(config.strategy)
        self.scorers = nn.ModuleDict({name: SCORERS[name](config, **self.sizes) for name in config.scorers})

    def check_strategy(self, strategy: str) -> type[Scorer]:
        """The scorer class called `strategy`, if this checkpoint can run it.

        Raises:
            ValueError: unknown, or a trained scorer whose weights this checkpoint does not hold.
        """
        kind = SCORERS.named(strategy)
        if kind.trained and strategy not in self.config.scorers:
            usable = [n for n, k in SCORERS.items() if not k.trained or n in self.config.scorers]
            raise ValueError(f"strategy: expected one of {', '.join(sorted(usable))} (held here); got {strategy!r}")
        return kind

    def scorer(self, strategy: str) -> Scorer:
        """The scorer itself: this checkpoint's weights, or a fixed rule."""
        kind = self.check_strategy(strategy)
        held: Any = self.scorers
        return held[strategy] if kind.trained else kind(self.config, **self.sizes)

    def all_scores(self, context: FetchContext, fetched: FetchResult) -> dict[str, Tensor]:
        """Logits [B, N] of every trained scorer; the one that led to `fetched` does not run again."""
        return {
            name: fetched.scores if name == fetched.strategy else scorer(context)
            for name, scorer in self.scorers.items()
        }

    def forward(
        self,
        context: FetchContext,
        budget: int,
        *,
        strategy: str | None = None,
        allocator: str | None = None,
        taken: Tensor | None = None,
    ) -> FetchResult:
        """Chooses exactly `budget` distinct patches per item.

        Args:
            context: what the scorer sees.
            budget: K.
            strategy, allocator: names; the config's by default.
            taken: [B, M] patches that are base tokens already and must not be fetched again, or None.

        Raises:
            ValueError: unknown names, K above the number of candidates, or any K for a strategy that fetches nothing.
        """
        strategy = self.config.strategy if strategy is None else strategy
        allocator = self.config.allocator if allocator is None else allocator
        allocate = ALLOCATORS.named(allocator)
        scorer = self.scorer(strategy)
        if budget and not scorer.fetches:
            raise ValueError(f'strategy "{strategy}": expected no saccades to fill; got a budget of {budget}')
        scores = scorer(context).to(context.features.device)
        candidates = scores.shape[1] - (0 if taken is None else taken.shape[1])
        if budget > candidates:
            raise ValueError(f"budget: expected at most {candidates} patches that are not base tokens; got {budget}")
        # Ranks, N down to 1: whatever the scale of scores, padding comes after every real patch, and what is taken last
        # of all. In float32, which every device has.
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        places = torch.arange(scores.shape[1], 0, -1, dtype=torch.float32, device=scores.device)
        ranked = torch.empty_like(scores, dtype=torch.float32).scatter(1, order, places.expand_as(scores))
        ranked = ranked.masked_fill(~context.patch_mask, torch.finfo(torch.float32).min)
        if taken is not None:
            ranked = ranked.scatter(1, taken, float("-inf"))
        indices = allocate(ranked, budget, config=self.config)
        side = context.side
        return FetchResult(
            indices=indices,
            positions=torch.stack((indices // side, indices % side), -1),
            scores=scores,
            relevance=scores.sigmoid() if scorer.trained else _unit_range(scores),
            is_padding=~context.patch_mask.gather(1, indices),
            budget=budget,
            strategy=strategy,
            allocator=allocator,
        )
