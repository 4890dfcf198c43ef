"""The running-back fetcher: score the patches, allocate the budget; and say what was done.

Notation: B batch, G side of the fine grid, N = G*G patches, K saccades (where items get different numbers: the most of
any), T tiers. Positions are (y, x).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from .allocators import Budgets, TemperingPolicy, most_relevant_first, ranked_scores, token_weights
from .checks import FETCHING, SEEDS, refusal
from .configuration_arr_coc import AUTO, ArrCocFetcherConfig
from .detail_allocators import ALLOCATORS
from .grid_encoder import region_boxes, spread_regions
from .image_encoding import Rows
from .relevance_maps import SCORERS
from .scorers import FetchContext, Scorer, scored


@dataclass(frozen=True)
class FetchChoices:
    """How one call fetches. None leaves a choice to the configuration.

    Attributes:
        strategy: which scorer says what is relevant.
        allocator: what turns relevance into patches.
        budget: see `resolve_budget`. In `forward` the prompts' placeholders say how many, and this has to agree.
        seed: of random relevance where there is no generator.
        generator: for strategy "random".
        overlap: "exclude" or "allow": whether patches that are base tokens already may be fetched again.
        bypass: whether the bridge gives way to its linear projection; None: as configured, or as encoded.
        patches: [I, K] patches to fetch of each image slot, whatever their relevance; no scorer runs.
        relevance: [I, N] relevance that is known beforehand, which strategy "oracle" fetches.
        all_scores: whether every trained scorer runs, not only the strategy's.
        num_passes: runs back for each question, or "auto": up to 4, while the answer is unsure. 1 where not given.
        exploration: of several passes, what says how much of each is drawn: a name in `passes.EXPLORATION`.

    Example:
        >>> model.generate("receipt.png", "What is the total?", choices=FetchChoices(strategy="saliency", budget=64))
    """

    strategy: str | None = None
    allocator: str | None = None
    budget: int | str | None = None
    seed: int | None = None
    generator: torch.Generator | None = None
    overlap: str | None = None
    bypass: bool | None = None
    patches: Tensor | None = None
    relevance: Tensor | None = None
    all_scores: bool = False
    num_passes: int | str | None = None
    exploration: str | None = None

    def __post_init__(self) -> None:
        for name, (kinds, expected) in FETCHING.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool)):
                raise refusal(name, expected, value)
        if self.seed is not None and not -SEEDS <= self.seed <= SEEDS:
            raise refusal("seed", FETCHING["seed"][1], self.seed)
        for name in ("patches", "relevance"):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.ndim != 2 or tensor.layout != torch.strided or tensor.is_quantized):
                raise refusal(name, FETCHING[name][1], tensor)

    @classmethod
    def of(cls, choices: "FetchChoices | Mapping[str, Any] | None") -> "FetchChoices":
        """Choices as they are, by name, or none.

        Raises:
            ValueError: a name that is no choice.
        """
        if type(choices).__name__ == cls.__name__:  # by name: remote code may load a class twice
            return choices  # type: ignore[return-value]
        if choices is None:
            return AS_CONFIGURED
        if not isinstance(choices, Mapping):
            raise refusal("choices", "FetchChoices, or a mapping of their names", choices)
        known = [*cls.__dataclass_fields__]
        if unknown := sorted(map(str, set(choices) - set(known))):
            raise ValueError(f"choices: expected names among {', '.join(known)}; got {', '.join(unknown)}")
        return cls(**choices)


AS_CONFIGURED = FetchChoices()


@dataclass
class FetchResult(Rows):
    """What was fetched, and why.

    Attributes:
        indices: [B, K] int64, distinct per item. The first `counts` of an item are fetched, ascending; behind them the
            next most relevant patches fill the rectangle, and no token comes of them. Of regions their first patch.
        positions: [B, K, 2] int64, (y, x) of each of them in the fine grid.
        scores: [B, N] float32, the scorer's output (logits for trained scorers).
        relevance: [B, N] float32 in 0..1: sigmoid of logits; fixed scorers: scaled to each item's own range.
        is_padding: [B, K] bool, True on fetched patches that hold nothing of the image.
        budget: K.
        strategy, allocator: their names; "given" where the call said which patches.
        counts: [B] int64, how many are fetched of each item; K where not given.
        wanted: [B] int64, how many evaluation would fetch: in training, allocators that choose fetch more than that.
        weights: [B, K] what each token is multiplied by, or None: see `ArrCocFetcherConfig.gradient`.
        expected_tokens: [B] float32, differentiable: how many saccades an allocator that chooses it expects to fetch
            ("adaptive" not cut at K); None from allocators that fetch exactly the budget.
        tier_logits: [B, T] of the tier classifier, or None.
        survival: see `Budgets.survival`, or None from allocators that fetch exactly the budget.
        is_ragged: whether some items get fewer than K.
        levels: [B, K] int64, the level of detail of each token: 0 a patch, 1 2x2, 2 4x4 patches, disjoint; None: all 0.
        fell_back: [B] bool, True where the scorer's map was of no use and strategy "saliency" stands in for it.
        bypassed: [B] bool, True where what the bridge's adapter made was of no use and its linear projection stands in.
        tokens: [B] int64, how many tokens of the prompt tell of what was fetched: `counts`, unless the bridge says
            otherwise (`Bridged.source`).
    """

    indices: Tensor
    positions: Tensor
    scores: Tensor
    relevance: Tensor
    is_padding: Tensor
    budget: int
    strategy: str
    allocator: str
    counts: Tensor = None  # type: ignore[assignment]  # given by __post_init__
    wanted: Tensor = None  # type: ignore[assignment]
    weights: Tensor | None = None
    expected_tokens: Tensor | None = None
    tier_logits: Tensor | None = None
    survival: Tensor | None = None
    is_ragged: bool = False
    levels: Tensor | None = None
    fell_back: Tensor = None  # type: ignore[assignment]
    bypassed: Tensor = None  # type: ignore[assignment]
    tokens: Tensor = None  # type: ignore[assignment]

    PER_SACCADE: ClassVar[tuple[str, ...]] = ("indices", "positions", "is_padding", "weights", "survival", "levels")

    def __post_init__(self) -> None:
        if self.counts is None:
            self.counts = self.indices.new_full((len(self.indices),), self.budget)
        if self.wanted is None:
            self.wanted = self.counts
        if self.tokens is None:
            self.tokens = self.counts
        nowhere = self.indices.new_zeros(len(self.indices), dtype=torch.bool)
        self.fell_back = nowhere if self.fell_back is None else self.fell_back
        self.bypassed = nowhere if self.bypassed is None else self.bypassed

    @property
    def fallbacks(self) -> dict[str, int]:
        """How many items a simpler part stood in for, by the part that failed."""
        return {"scorer": int(self.fell_back.sum()), "bridge": int(self.bypassed.sum())}

    @property
    def used(self) -> Tensor:
        """[B, K] bool, True on what is fetched, False on what only fills the rectangle."""
        return torch.arange(self.budget, device=self.counts.device) < self.counts[:, None]

    def regions(self) -> Tensor:
        """[B, K, 4] y0, x0, y1, x1 of each token in patches of the fine grid, ends exclusive."""
        levels = torch.zeros_like(self.indices) if self.levels is None else self.levels
        return region_boxes(self.indices, levels, math.isqrt(self.scores.shape[1]))

    def on_patches(self, values: Tensor) -> Tensor:
        """A value of each token [B, K] on all of its patches, 0 on those that are in none: [B, N]."""
        side = math.isqrt(self.scores.shape[1])
        levels = torch.zeros_like(self.indices) if self.levels is None else self.levels
        return spread_regions(values, self.indices, levels, (side, side))

    def covered(self) -> Tensor:
        """bool [B, N], True on the patches that were fetched."""
        return self.on_patches(self.used.float()) > 0

    def select(self, index: Tensor) -> Self:
        """The items at `index` [I], K being the most of theirs."""
        rows = super().select(index)
        if not self.is_ragged or not len(index):
            return rows
        most = int(rows.counts.max())
        held = ((name, getattr(rows, name)) for name in self.PER_SACCADE)
        cut = {name: tensor[:, :most] for name, tensor in held if tensor is not None}
        return replace(rows, **cut, budget=most, is_ragged=bool((rows.counts < most).any()))


class RunningBackFetcher(nn.Module):
    """Holds the trained scorers; makes the fixed ones on demand."""

    def __init__(
        self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int, depth_size: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.sizes = {"feature_size": feature_size, "text_size": text_size}
        self.depth_size = depth_size
        self.check_strategy(config.strategy)
        self.scorers = nn.ModuleDict({name: self._build(SCORERS[name]) for name in config.scorers})
        # Of the allocators that choose how many: checkpoints hold their weights under this name.
        budgeters = {name: allocator.budgeter for name, allocator in ALLOCATORS.items()}
        choosing = {name: kind(config, **self.sizes) for name, kind in budgeters.items() if kind is not None}
        self.budgeters = nn.ModuleDict(choosing)
        self.tempering = TemperingPolicy() if config.learned_exploration else None
        self.temperature = config.temperature
        """Of gradient "soft", in units of the score; the trainer's to lower."""

    def check_strategy(self, strategy: str) -> type[Scorer]:
        """The scorer class called `strategy`, if this checkpoint can run it.

        Raises:
            ValueError: unknown, or a trained scorer whose weights this checkpoint does not hold.
        """
        kind = SCORERS[strategy]
        if kind.trained and strategy not in self.config.scorers:
            usable = [n for n, k in SCORERS.items() if not k.trained or n in self.config.scorers]
            raise ValueError(f"strategy: expected one of {', '.join(sorted(usable))} (held here); got {strategy!r}")
        return kind

    def resolve(self, choices: FetchChoices) -> FetchChoices:
        """The choices with the most an item may take, and who chooses: a stated budget is exact unless they name one.

        Raises:
            ValueError: an unknown strategy or allocator, or "auto" beside an allocator that fetches exactly the budget.
        """
        if choices.strategy is not None:
            self.check_strategy(choices.strategy)
        budget, allocator = choices.budget, choices.allocator
        chooses = ALLOCATORS[self.config.allocator].budgeter is not None
        if allocator is not None and ALLOCATORS[allocator].budgeter is not None:
            return replace(choices, budget=AUTO if budget is None else budget)
        if budget == AUTO:
            if allocator is not None:
                expected = f"a number or a name beside allocator {allocator!r}, which fetches exactly that"
                raise ValueError(f"budget: expected {expected}; got {budget!r}")
            return replace(choices, allocator=None if chooses else "tiers")
        exact = chooses and allocator is None and budget is not None
        return replace(choices, allocator="topk") if exact else choices

    def scorer(self, strategy: str) -> Scorer:
        """The scorer itself: this checkpoint's weights, or a fixed rule."""
        kind = self.check_strategy(strategy)
        held: Any = self.scorers
        return held[strategy] if kind.trained else self._build(kind)

    def _build(self, kind: type[Scorer]) -> Scorer:
        depth: dict[str, Any] = {"depth_size": self.depth_size} if kind.reads_depths else {}
        return kind(self.config, **self.sizes, **depth)

    def reads_attention(self, choices: FetchChoices) -> bool:
        """Whether the scorer of these choices needs the language model to read base and question first."""
        strategy = choices.strategy or self.config.strategy
        return choices.patches is None and self.check_strategy(strategy).reads_attention

    def all_scores(self, context: FetchContext, fetched: FetchResult | None = None) -> dict[str, Tensor]:
        """Logits [B, N] of every trained scorer; the one that led to `fetched` does not run again."""
        done = {} if fetched is None else {fetched.strategy: fetched.scores}
        return {name: done[name] if name in done else scorer(context) for name, scorer in self.scorers.items()}

    def forward(
        self, context: FetchContext, budget: int, choices: FetchChoices = AS_CONFIGURED, *, taken: Tensor | None = None
    ) -> FetchResult:
        """Chooses exactly `budget` distinct patches per item, or up to as many with an allocator that chooses it.

        In training mode with a gradient, allocators that choose fetch all that they ever would, each weighted by the
        probability that it is fetched: what is missing could not say that it is.

        Args:
            context: what the scorer sees.
            budget: K.
            choices: strategy and allocator, or the patches themselves.
            taken: [B, M] patches that are base tokens already and must not be fetched again, or None.

        Raises:
            ValueError: unknown names, K above the number of candidates, any K for a strategy that fetches nothing, or
                given patches that are not K distinct ones of each item.
        """
        if choices.patches is not None:
            return _given(context, budget, choices.patches)
        if choices.overlap not in (None, "exclude", "allow"):
            raise ValueError(f'overlap: expected "exclude" or "allow"; got {choices.overlap!r}')
        strategy = choices.strategy or self.config.strategy
        scorer = self.scorer(strategy)
        _check_budget(context, budget, scorer, strategy, taken)
        scores, relevance, fell_back = scored(scorer, context, fall_back=not self.training)
        hidden = None if taken is None else torch.zeros_like(context.patch_mask).scatter(1, taken, True)
        fetched = self.choose(context, scores, relevance, context.patch_mask, budget, choices, hidden=hidden)
        fetched.fell_back = fell_back
        return fetched

    def choose(
        self,
        context: FetchContext,
        scores: Tensor,
        relevance: Tensor,
        patch_mask: Tensor,
        budget: int,
        choices: FetchChoices = AS_CONFIGURED,
        *,
        hidden: Tensor | None = None,
    ) -> FetchResult:
        """The allocator's half of `forward`, for scores of one grid per item or of n, one after the other.

        Args:
            context: question and grid size, as the scorer saw them.
            scores, relevance, patch_mask: [B, n * N]; False on padding.
            budget, choices: see `forward`.
            hidden: [B, n * N] True on patches that must not be fetched, or None.
        """
        strategy, allocator = choices.strategy or self.config.strategy, choices.allocator or self.config.allocator
        ranked, side = ranked_scores(scores, patch_mask, hidden), context.features.shape[-1]
        counted = allocator in self.budgeters and budget
        budgets = self._budgets(allocator, context, relevance, ranked, budget) if counted else None
        counts = ranked.new_full((len(ranked),), budget, dtype=torch.int64)
        ragged = False
        if budgets is not None:
            learns = self._learns and budgets.survival.requires_grad
            counts = torch.full_like(counts, budgets.survival.shape[1]) if learns else budgets.counts
            budget = int(counts.max()) if len(counts) else 0
            ragged = bool((counts < budget).any())
        method, levels, grid = ALLOCATORS[allocator], None, {"config": self.config, "side": side}
        if method.detail:
            indices, levels = method.choose(ranked, budget, relevance=relevance.detach(), **grid)
            rank = torch.zeros_like(indices)
        else:
            indices, rank = most_relevant_first(ranked, method.choose(ranked, budget, **grid), counts)
        weights = None
        if self._learns:
            parts = (scores, relevance, ranked, indices, levels, rank, budgets)
            temperature = self.temperature if self.config.gradient == "soft" else None
            weights = token_weights(*parts, side=side, temperature=temperature)
        return FetchResult(
            indices=indices,
            positions=positions_of(indices, side),
            scores=scores,
            relevance=relevance,
            is_padding=~patch_mask.gather(1, indices),
            budget=budget,
            strategy=strategy,
            allocator=allocator,
            counts=counts,
            wanted=counts if budgets is None else budgets.counts,
            weights=weights,
            expected_tokens=None if budgets is None else budgets.expected,
            tier_logits=None if budgets is None else budgets.tier_logits,
            survival=None if budgets is None else budgets.survival,
            is_ragged=ragged,
            levels=levels,
        )

    @property
    def _learns(self) -> bool:
        """Whether the answer's loss is to reach what chooses."""
        return self.training and torch.is_grad_enabled() and self.config.gradient != "none"

    def _budgets(self, allocator: str, context: FetchContext, relevance: Tensor, ranked: Tensor, most: int) -> Budgets:
        """How many each item gets."""
        eligible = ranked > torch.finfo(ranked.dtype).min
        return self.budgeters[allocator](context, torch.where(eligible, relevance, 0.0), most)


def positions_of(indices: Tensor, side: int) -> Tensor:
    """(y, x) of patches on a grid of `side`: [B, K] -> [B, K, 2]."""
    return torch.stack((indices // side, indices % side), -1)


def _check_budget(context: FetchContext, budget: int, scorer: Scorer, strategy: str, taken: Tensor | None) -> None:
    if budget and not scorer.fetches:
        expected = "prompts without placeholders for saccades (a processor makes them when given the strategy too)"
        raise ValueError(f'strategy "{strategy}": expected {expected}; got room for {budget} per image')
    candidates = context.patch_mask.shape[1] - (0 if taken is None else taken.shape[1])
    if budget > candidates:
        raise ValueError(f"budget: expected at most {candidates} patches that are not base tokens; got {budget}")


def _given(context: FetchContext, budget: int, patches: Tensor) -> FetchResult:
    """The patches [B, K] that a call asks for: relevant are they alone."""
    items, total = context.patch_mask.shape
    if patches.is_floating_point() or patches.is_complex() or patches.is_meta:
        raise refusal("patches", FETCHING["patches"][1], patches)
    indices = patches.to(context.patch_mask.device).long().sort(-1).values
    if list(indices.shape) != [items, budget]:
        raise ValueError(f"patches: expected shape {[items, budget]} (image slots, K); got {list(indices.shape)}")
    distinct = bool((indices[:, 1:] > indices[:, :-1]).all())
    if indices.numel() and not (distinct and int(indices.min()) >= 0 and int(indices.max()) < total):
        raise ValueError(f"patches: expected distinct numbers of {total} patches, from 0; got {patches.tolist()}")
    relevance = torch.zeros(items, total, device=indices.device).scatter(1, indices, 1.0)
    return FetchResult(
        indices=indices,
        positions=positions_of(indices, context.features.shape[-1]),
        scores=relevance,
        relevance=relevance,
        is_padding=~context.patch_mask.gather(1, indices),
        budget=budget,
        strategy="given",
        allocator="given",
    )
