"""The running-back fetcher: scores the patches, allocates the budget and returns the fetched patches.

Notation: B batch, I image slots, G side of the fine grid, N = G*G patches, M base tokens, K fetched tokens (the largest
number of any item), T tiers. Positions are (y, x), row-major.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from .allocators import ALLOCATORS, Budgets, token_weights
from .checks import FETCHING, SEEDS, Registry, refusal
from .configuration_arr_coc import AUTO, ArrCocFetcherConfig
from .grid_encoder import region_boxes, spread_regions
from .image_encoding import Rows
from .scorers import SCORERS, FetchContext, Scorer, scored

# ---- the result of a fetch ------------------------------------------------------------------------------------------

PatchesOf = Callable[[FetchContext, Tensor, Tensor | None], Tensor]
"""A function of a context [n], patches [n, k] of its grids and their levels (or None), which returns [n, k, ...]."""


@dataclass
class FetchResult(Rows):
    """The fetched patches, and the scores that chose them.

    Attributes:
        indices: [B, K] int64, distinct in each item. The first `counts` of an item are fetched, ascending; the next
            most relevant patches behind them only fill the rectangle and give no token. A region has its first patch.
        positions: [B, K, 2] int64, (y, x) of each index in the fine grid of the page as it was read.
        scores: [B, N] float32, the scorer's output (logits for trained scorers).
        relevance: [B, N] float32 in 0..1: sigmoid of logits; fixed scorers: scaled to each item's own range.
        is_padding: [B, K] bool, True on fetched padding patches.
        budget: K.
        strategy, allocator: their names; "given" if the call gave the patches.
        counts: [B] int64, the number of fetched patches of each item (default: K).
        wanted: [B] int64, the number that evaluation would fetch: in training, allocators that choose fetch more.
        weights: [B, K] the factor of each token, or None: see `ArrCocFetcherConfig.gradient`.
        expected_tokens: [B] float32, differentiable: the expected number of tokens from an allocator that chooses it
            ("adaptive" not cut at K); None from allocators that fetch exactly the budget.
        tier_logits: [B, T] of the tier classifier, or None.
        survival: see `Budgets.survival`; None from allocators that fetch exactly the budget.
        is_ragged: whether some items get fewer than K.
        levels: [B, K] int64, the level of detail of each token: 0 a patch, 1 2x2, 2 4x4 patches, disjoint; None: all 0.
        fell_back: [B] bool, True where strategy "saliency" replaced a failed scorer.
        bypassed: [B] bool, True where the bridge's linear projection replaced its failed adapter.
        tokens: [B] int64, the number of fetched tokens in the prompt: `counts`, unless the bridge makes fewer
            (`Bridged.source`).
        source: [B, K] see `Bridged.source`; None: token and patch have the same index.
        room: [B] int64, the most tokens of each item's patches, from bridges that make several of one; None: `counts`.
    """

    indices: Tensor
    positions: Tensor
    scores: Tensor
    relevance: Tensor
    is_padding: Tensor
    budget: int
    strategy: str
    allocator: str
    counts: Tensor = None  # type: ignore[assignment]  # set by __post_init__
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
    source: Tensor | None = None
    room: Tensor | None = None

    PER_TOKEN: ClassVar[tuple[str, ...]] = (
        "indices", "positions", "is_padding", "weights", "survival", "levels", "source",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.counts is None:
            self.counts = self.indices.new_full((len(self.indices),), self.budget)
        if self.wanted is None:
            self.wanted = self.counts
        if self.tokens is None:
            self.tokens = self.counts
        none = self.indices.new_zeros(len(self.indices), dtype=torch.bool)
        self.fell_back = none if self.fell_back is None else self.fell_back
        self.bypassed = none if self.bypassed is None else self.bypassed

    @property
    def fallbacks(self) -> dict[str, int]:
        """The number of items for which a simpler part replaced the scorer or the bridge, by the part that failed."""
        return {"scorer": int(self.fell_back.sum()), "bridge": int(self.bypassed.sum())}

    @property
    def used(self) -> Tensor:
        """[B, K] bool, True on fetched patches, False on those that only fill the rectangle."""
        return torch.arange(self.budget, device=self.counts.device) < self.counts[:, None]

    def own_relevance(self) -> Tensor:
        """[B, K] the relevance of each index."""
        return self.relevance.gather(1, self.indices)

    def predicted_relevance(self) -> Tensor | None:
        """`own_relevance` if a trained scorer predicted it or it is the ground truth, else None."""
        trained = self.strategy == "oracle" or (self.strategy in SCORERS and SCORERS[self.strategy].trained)
        return self.own_relevance() if trained else None

    def ranks(self) -> Tensor:
        """[B, K] the rank of each index by relevance, from 0; those that are not fetched come last."""
        relevance = self.own_relevance().masked_fill(~self.used, float("-inf"))
        return relevance.argsort(dim=1, descending=True, stable=True).argsort(dim=1)

    def placement(self) -> dict[str, Any]:
        """[B, K] what bridges that place tokens take of each: its index, rank and relevance; and `room`."""
        relevance = self.predicted_relevance()
        return {"indices": self.indices, "rank": self.ranks(), "relevance": relevance, "room": self.room}

    def regions(self) -> Tensor:
        """[B, K, 4] y0, x0, y1, x1 of each token in patches of the fine grid, ends exclusive."""
        levels = torch.zeros_like(self.indices) if self.levels is None else self.levels
        return region_boxes(self.indices, levels, math.isqrt(self.scores.shape[1]))

    def centres(self) -> Tensor:
        """[B, K, 2] float32, (y, x) of the middle of each token's patch or region, in patches of the image's grid."""
        places = self.positions.float()
        return places if self.levels is None else places + ((1 << self.levels) - 1)[..., None] / 2

    def of_patches(self, make: PatchesOf, context: FetchContext) -> Tensor:
        """[B, K, ...]: `make` for each token's patch or region, whose scorer had `context`."""
        return make(context, self.indices, self.levels)

    def on_patches(self, values: Tensor) -> Tensor:
        """Values of tokens [B, K] -> [B, N]: on all patches of the token, 0 on other patches."""
        side = math.isqrt(self.scores.shape[1])
        levels = torch.zeros_like(self.indices) if self.levels is None else self.levels
        return spread_regions(values, self.indices, levels, (side, side))

    def fetched_characters(self, characters: Tensor) -> Tensor:
        """[B, 2] `ImageEncoding.characters` [B, N, 2] of the images, summed over the fetched patches."""
        return (characters * self.covered()[..., None].to(characters)).sum(1)

    def covered(self) -> Tensor:
        """bool [B, N], True on the patches that were fetched."""
        return self.on_patches(self.used.float()) > 0

    def select(self, index: Tensor) -> Self:
        """The items at `index` [I]; K is the largest of their counts, or of their room for tokens that are not made."""
        rows = super().select(index)
        if not self.is_ragged or not len(index):
            return rows
        room = rows.room if rows.source is None else None
        most = int((rows.counts if room is None else torch.maximum(rows.counts, room)).max())
        held = ((name, getattr(rows, name)) for name in self.PER_TOKEN if rows.room is None or name != "source")
        cut = {name: tensor[:, :most] for name, tensor in held if tensor is not None}
        return replace(rows, **cut, budget=most, is_ragged=bool((rows.counts < most).any()), room=room)


def positions_of(indices: Tensor, side: int) -> Tensor:
    """(y, x) of patches on a grid of `side`: [B, K] -> [B, K, 2]."""
    return torch.stack((indices // side, indices % side), -1)


def ranked_scores(scores: Tensor, patch_mask: Tensor, hidden: Tensor | None) -> Tensor:
    """Ranks [B, N] of scores of any scale, N down to 1; padding comes behind all other patches, hidden patches last.

    In float32, which every device has. Padding has the lowest finite value, `hidden` patches [B, N] have -inf.
    """
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(scores.shape[1], 0, -1, dtype=torch.float32, device=scores.device)
    ranked = torch.empty_like(scores, dtype=torch.float32).scatter(1, order, places.expand_as(scores))
    ranked = ranked.masked_fill(~patch_mask, torch.finfo(torch.float32).min)
    return ranked if hidden is None else ranked.masked_fill(hidden, float("-inf"))


def most_relevant_first(scores: Tensor, indices: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Divides chosen patches into those that an item keeps and the surplus.

    Args:
        scores: [B, N].
        indices: [B, K] chosen patches, ascending.
        counts: [B] the number that each item keeps: those with the highest scores; ties break by lower index.

    Returns:
        Indices [B, K], kept patches first, both parts ascending; and the rank of each by score, [B, K] from 0.
    """
    order = scores.gather(1, indices).sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(indices.shape[1], device=indices.device).expand_as(indices)
    rank = torch.empty_like(indices).scatter_(1, order, places)
    front = (rank >= counts[:, None]).int().sort(dim=-1, stable=True).indices
    return indices.gather(1, front), rank.gather(1, front)


# ---- the fetcher ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FetchChoices:
    """How one call fetches. None leaves a choice to the configuration.

    Attributes:
        strategy: the name of the scorer.
        allocator: the name of the allocator, which chooses patches by relevance.
        budget: see `resolve_budget`. In `forward` it has to agree with the placeholders of the prompts.
        seed: of random relevance.
        overlap: "exclude" or "allow": whether patches that are base tokens already may be fetched again.
        bypass: whether the bridge uses its linear projection alone; None: as configured, or as encoded.
        patches: [I, K] patches to fetch for each image slot, whatever their relevance; no scorer runs.
        relevance: [I, N] given relevance, by which strategy "oracle" fetches.
        all_scores: whether all trained scorers run, not only the strategy's.
        num_passes: runs back for each question (default 1), or "auto": up to 4, while the answer is unsure.
        exploration: with several passes, the policy for the share of drawn patches: a name in `passes.EXPLORATION`.

    Example:
        >>> model.generate("receipt.png", "What is the total?", choices=FetchChoices(strategy="saliency", budget=64))
    """

    strategy: str | None = None
    allocator: str | None = None
    budget: int | str | None = None
    seed: int | None = None
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
        """`FetchChoices` from themselves, from a mapping of their fields, or from None: as configured.

        Raises:
            ValueError: an unknown field.
        """
        if type(choices).__name__ == cls.__name__:  # by name: remote code may load a class twice
            return choices  # type: ignore[return-value]
        if choices is None:
            return AS_CONFIGURED
        if not isinstance(choices, Mapping):
            raise refusal("choices", "FetchChoices, or a mapping of their names", choices)
        field_names = [*cls.__dataclass_fields__]
        if unknown := sorted(map(str, set(choices) - set(field_names))):
            raise ValueError(f"choices: expected names among {', '.join(field_names)}; got {', '.join(unknown)}")
        return cls(**choices)


AS_CONFIGURED = FetchChoices()

EXPLORATION: Registry[Callable[..., Any]] = Registry("exploration")
"""Policies: the passes so far, and the model -> the share of the next pass's patches that are drawn at random, 0..1.

"learned" is the class of a policy with weights (`RunningBackFetcher.tempering`). It is the default of checkpoints that
hold these weights, else "tempered".
"""


class RunningBackFetcher(nn.Module):
    """Holds the trained scorers and budgeters; creates scorers without weights on demand."""

    def __init__(
        self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int, depth_size: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.sizes = {"feature_size": feature_size, "text_size": text_size}
        self.depth_size = depth_size
        self.check_strategy(config.strategy)
        self.scorers = nn.ModuleDict({name: self._build(SCORERS[name]) for name in config.scorers})
        # Checkpoints hold the weights of allocators that choose the number of patches under this name.
        budgeters = {name: allocator.budgeter for name, allocator in ALLOCATORS.items()}
        choosing = {name: kind(config, **self.sizes) for name, kind in budgeters.items() if kind is not None}
        self.budgeters = nn.ModuleDict(choosing)
        self.tempering = EXPLORATION["learned"]() if config.learned_exploration else None
        self.temperature = config.temperature
        """For gradient "soft", in units of the score; a trainer may lower it."""

    def check_strategy(self, strategy: str) -> type[Scorer]:
        """The scorer class registered as `strategy`.

        Raises:
            ValueError: an unknown name, or a trained scorer without weights in this checkpoint.
        """
        usable = {name: kind for name, kind in SCORERS.items() if not kind.trained or name in self.config.scorers}
        if strategy not in usable:
            raise ValueError(f"strategy: expected one of {', '.join(sorted(usable))} (held here); got {strategy!r}")
        return usable[strategy]

    def resolve(self, choices: FetchChoices) -> FetchChoices:
        """The choices with budget and allocator resolved.

        A given budget is exact unless the choices also name an allocator that chooses the number of patches.

        Raises:
            ValueError: an unknown strategy or allocator, or "auto" with an allocator that fetches exactly the budget.
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
        """The scorer: with this checkpoint's weights, or without weights."""
        kind = self.check_strategy(strategy)
        held: Any = self.scorers
        return held[strategy] if kind.trained else self._build(kind)

    def _build(self, kind: type[Scorer]) -> Scorer:
        depth: dict[str, Any] = {"depth_size": self.depth_size} if kind.reads_depths else {}
        return kind(self.config, **self.sizes, **depth)

    def all_scores(self, context: FetchContext, fetched: FetchResult | None = None) -> dict[str, Tensor]:
        """Logits [B, N] of each trained scorer; the one that chose `fetched` does not run again."""
        done = {} if fetched is None else {fetched.strategy: fetched.scores}
        return {name: done[name] if name in done else scorer(context) for name, scorer in self.scorers.items()}

    def forward(
        self, context: FetchContext, budget: int, choices: FetchChoices = AS_CONFIGURED, *, taken: Tensor | None = None
    ) -> FetchResult:
        """Chooses `budget` distinct patches per item, or at most as many with an allocator that chooses their number.

        In training mode with a gradient, such an allocator fetches all patches that it could ever fetch, each weighted
        by its probability: patches that are not fetched would have no gradient.

        Args:
            context: the inputs of the scorer.
            budget: K.
            choices: strategy and allocator, or the patches themselves.
            taken: [B, M] patches that are base tokens already and must not be fetched again, or None.

        Raises:
            ValueError: an unknown name, K above the number of candidates, K above 0 for strategy "none", or given
                patches that are not K distinct patches of each item.
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
        fetched = self.choose(
            context, scores, relevance, context.patch_mask, budget, choices, hidden=hidden, begun=scorer.begun(context)
        )
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
        hidden: Tensor | None = None,
        begun: Tensor | None = None,
    ) -> FetchResult:
        """The second half of `forward`: chooses patches by the scores of one grid per item, or of n grids, one after
        the other.

        Args:
            context: the scorer's inputs: question and grid size are used.
            scores, relevance, patch_mask: [B, n * N]; False on padding.
            budget: K.
            choices: strategy and allocator.
            hidden: [B, n * N] True on patches that must not be fetched, or None.
            begun: [B, n * N] number of wordpieces that begin in each patch; those without give no token. None: each
                patch is one token.
        """
        config, allocator = self.config, choices.allocator or self.config.allocator
        method, levels, room = ALLOCATORS[allocator], None, None
        learns = self.training and torch.is_grad_enabled() and config.gradient != "none"
        ranked, side = ranked_scores(scores, patch_mask, hidden), context.features.shape[-1]
        budgets: Budgets | None = None
        if method.budgeter is not None and budget:
            eligible = ranked > torch.finfo(ranked.dtype).min
            budgets = self.budgeters[allocator](context, torch.where(eligible, relevance, 0.0), budget)
        counts = ranked.new_full((len(ranked),), budget, dtype=torch.int64)
        ragged = False
        if budgets is not None:
            learned = learns and budgets.survival.requires_grad
            counts = torch.full_like(counts, budgets.survival.shape[1]) if learned else budgets.counts
            budget = int(counts.max()) if len(counts) else 0
            ragged = bool((counts < budget).any())
        static = torch.compiler.is_compiling() or scores.is_meta  # no shape may depend on data
        if begun is not None and not method.detail and not static and budget:
            begun = begun.to(ranked.device) * (ranked > torch.finfo(ranked.dtype).min)
            room = counts.minimum(2 * begun.sum(1).clamp(min=1))  # the most relevant come twice
            counts = counts.minimum((begun > 0).sum(1).clamp(min=1))
            budget = int(room.max()) if len(counts) else budget
            ragged = bool((counts < budget).any())
        if method.choose is None:
            order = ranked.sort(dim=-1, descending=True, stable=True).indices
            indices, rank = most_relevant_first(ranked, order[:, :budget].sort(-1).values, counts)
        elif method.detail:
            indices, levels = method.choose(ranked, budget, relevance=relevance.detach(), config=config, side=side)
            rank = torch.zeros_like(indices)
        else:
            chosen = method.choose(ranked, budget, config=config, side=side)
            indices, rank = most_relevant_first(ranked, chosen, counts)
        weights = None
        if learns:
            parts = (scores, relevance, ranked, indices, levels, rank, budgets)
            temperature = self.temperature if config.gradient == "soft" else None
            weights = token_weights(*parts, side=side, temperature=temperature)
        return FetchResult(
            indices=indices,
            positions=positions_of(indices, side),
            scores=scores,
            relevance=relevance,
            is_padding=~patch_mask.gather(1, indices),
            budget=budget,
            strategy=choices.strategy or config.strategy,
            allocator=allocator,
            counts=counts,
            wanted=counts if budgets is None else budgets.counts,
            weights=weights,
            expected_tokens=None if budgets is None else budgets.expected,
            tier_logits=None if budgets is None else budgets.tier_logits,
            survival=None if budgets is None else budgets.survival,
            is_ragged=ragged,
            levels=levels,
            room=room,
        )


def _check_budget(context: FetchContext, budget: int, scorer: Scorer, strategy: str, taken: Tensor | None) -> None:
    if budget and not scorer.fetches:
        expected = (
            "prompts without placeholders for fetched tokens (a processor makes them when given the strategy too)"
        )
        raise ValueError(f'strategy "{strategy}": expected {expected}; got room for {budget} per image')
    candidates = context.patch_mask.shape[1] - (0 if taken is None else taken.shape[1])
    if budget > candidates:
        raise ValueError(f"budget: expected at most {candidates} patches that are not base tokens; got {budget}")


def _given(context: FetchContext, budget: int, patches: Tensor) -> FetchResult:
    """The result for the patches [B, K] that a call gives; their relevance is 1, that of all others 0."""
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
