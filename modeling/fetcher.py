"""The running-back fetcher: scores the patches, allocates the budget and returns the fetched patches.

Notation: B batch, I image slots, G side of the fine grid, N = G*G patches, M base tokens, K fetched tokens (the largest
number of any item), T tiers. Positions are (y, x), row-major.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from .allocators import ALLOCATORS, Budgets, token_weights
from .budgets import VIEWS_AT_ONCE
from .checks import FETCHING, Registry, refusal
from .configuration_arr_coc import AS_CONFIGURED as AS_CONFIGURED
from .configuration_arr_coc import AUTO, ArrCocFetcherConfig
from .configuration_arr_coc import FetchChoices as FetchChoices
from .grid_encoder import region_boxes, spread_regions
from .image_encoding import Rows
from .scorers import (
    EMPTY,
    SCORERS,
    FetchContext,
    SaliencyScorer,
    Scorer,
    is_uninformative,
    saliency,
    scored,
    unit_range,
    warn_of_fallback,
)

# ---- the result of a fetch ------------------------------------------------------------------------------------------

PatchesOf = Callable[[FetchContext, Tensor, Tensor | None], Tensor]
"""A function of a context [n], patches [n, k] of its grids and their levels (or None), which returns [n, k, ...]."""


@dataclass(kw_only=True)
class FetchResult(Rows):
    """The fetched patches, and the scores that chose them."""

    # [B, K] int64, distinct in each item. The first `counts` of an item are fetched, ascending; the next most relevant
    # patches behind them only fill the rectangle and give no token. A region has its first patch.
    indices: Tensor
    scores: Tensor  # [B, N] float32, the scorer's output (logits for trained scorers)
    relevance: Tensor  # [B, N] float32 in 0..1: sigmoid of logits; fixed scorers: scaled to each item's own range
    is_padding: Tensor  # [B, K] bool, True on fetched padding patches
    budget: int  # K
    # Their names; "given" if the call gave the patches.
    strategy: str
    allocator: str
    counts: Tensor  # [B] int64, the number of fetched patches of each item
    wanted: Tensor  # [B] int64, the number that evaluation would fetch: in training, allocators that choose fetch more
    # [B] int64, the number of fetched tokens in the prompt: `counts`, unless the bridge makes fewer (`Bridged.source`).
    tokens: Tensor
    fell_back: Tensor  # [B] bool, True where strategy "saliency" replaced a failed scorer
    bypassed: Tensor  # [B] bool, True where the bridge's linear projection replaced its failed adapter
    weights: Tensor | None = None  # [B, K] the factor of each token, or None: see `ArrCocFetcherConfig.gradient`
    # [B] float32, differentiable: the expected number of tokens from an allocator that chooses it ("adaptive" not cut
    # at K); None from allocators that fetch exactly the budget.
    expected_tokens: Tensor | None = None
    tier_logits: Tensor | None = None  # [B, T] of the tier classifier, or None
    survival: Tensor | None = None  # see `Budgets.survival`; None from allocators that fetch exactly the budget
    is_ragged: bool = False  # whether some items get fewer than K
    # [B, K] int64, the level of detail of each token: 0 a patch, 1 2x2, 2 4x4 patches, disjoint; None: all 0.
    levels: Tensor | None = None
    source: Tensor | None = None  # [B, K] see `Bridged.source`; None: token and patch have the same index
    # [B] int64, the most tokens of each item's patches, from bridges that make several of one; None: `counts`.
    room: Tensor | None = None
    base: int | None = None  # base tokens of an image in the prompt; None: one for each 4x4 patches

    PER_TOKEN: ClassVar[tuple[str, ...]] = ("indices", "is_padding", "weights", "survival", "levels", "source")

    @classmethod
    def of(cls, counts: Tensor, **fields: Any) -> Self:
        """The result of a fetch of `counts` patches; nothing failed, unless other `fields` say so."""
        never = torch.zeros_like(counts, dtype=torch.bool)
        known = {"wanted": counts, "tokens": counts, "fell_back": never, "bypassed": never, **fields}
        return cls(counts=counts, **known)

    @property
    def positions(self) -> Tensor:
        """[B, K, 2] int64, (y, x) of each index in the fine grid of the page as it was read."""
        side = math.isqrt(self.scores.shape[1])
        return torch.stack((self.indices // side, self.indices % side), -1)

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

    def pieces(self, pieces: Tensor, used: Tensor | None = None) -> Tensor:
        """[B, K, 2, S] the wordpieces of fetched patches, of those of all patches [B, N, 2, S]."""
        return pieces.take_along_dim(self.indices[..., None, None], 1)

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


# ---- the fetcher ----------------------------------------------------------------------------------------------------


def ranked_scores(scores: Tensor, patch_mask: Tensor, hidden: Tensor | None) -> Tensor:
    """Ranks [B, N] of scores of any scale, N down to 1; padding comes behind all other patches, hidden patches last. In
    float32, which every device has. Padding has the lowest finite value, `hidden` patches [B, N] have -inf."""
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
        """The scorer class registered as `strategy`. Raises ValueError: an unknown name, or a trained scorer without
        weights in this checkpoint."""
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
        return FetchResult.of(
            counts,
            indices=indices,
            scores=scores,
            relevance=relevance,
            is_padding=~patch_mask.gather(1, indices),
            budget=budget,
            strategy=choices.strategy or config.strategy,
            allocator=allocator,
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
    return FetchResult.of(
        indices.new_full((items,), budget),
        indices=indices,
        scores=relevance,
        relevance=relevance,
        is_padding=~context.patch_mask.gather(1, indices),
        budget=budget,
        strategy="given",
        allocator="given",
    )


# ---- one budget over all views of a prompt --------------------------------------------------------------------------

GroupFetch = tuple[list[int], Tensor, FetchResult]
"""Slots that share a budget, the numbers of their views, and what was fetched from all of these."""

FOCUS = 3.0
"""The factor of a view's highest score that is added to all of its scores, when views compete.

A scorer that was trained on single pages finds something on each page: at 0, patches of other tiles come between those
of the answer; 3 and 8 are about equal (42 questions about A4 pages, an earlier model).
"""


def fetch_over_views(fetcher: RunningBackFetcher, scorer: Scorer, selected: Any, choices: FetchChoices) -> FetchResult:
    """`RunningBackFetcher.forward` for slots with several views: `selected.budget` fetched tokens for each prompt.

    `selected`: `views.SelectedSlots`; the result is a `views.JointFetch`.

    Raises:
        ValueError: what `RunningBackFetcher.forward` refuses; `patches`, which are those of one grid; and `relevance`
            of overviews alone.
    """
    assert selected.views is not None
    if choices.patches is not None:
        received = f"{len(selected.views.slots)} views"
        raise ValueError(f"patches: expected them of images, not of documents or of images in tiles; got {received}")
    views, side = selected.views, selected.context.features.shape[-1]
    given = selected.context.relevance
    if given is not None and len(given) != len(views.slots):
        received = f"{len(given)} for {len(views.slots)} views"
        raise ValueError(f"relevance: expected that of images without tiles; got {received}")
    tiles = len(views.tile_rows)
    if scorer.reads_attention and tiles:
        expected, strategy = 'images without tiles (tiles="never")', choices.strategy or fetcher.config.strategy
        raise ValueError(f'strategy "{strategy}": expected {expected}; got {tiles} tiles')
    parts = torch.arange(len(views.slots)).split(VIEWS_AT_ONCE)
    contexts = [selected.context]
    if tiles or len(parts) > 1:
        contexts = [views.context_of(selected.context, numbers) for numbers in parts]
    predicted, masks, texts = list[Tensor](), list[Tensor](), list[Tensor]()
    for context in contexts:
        predicted.append(scorer(context))
        masks.append(context.patch_mask)
        if (text := scorer.begun(context)) is not None:
            texts.append(text)
    scores, mask = torch.cat(predicted).to(selected.context.features.device), torch.cat(masks)
    begun = torch.cat(texts).to(scores.device) if texts else None
    failed = _failed(scores, mask, is_uninformative(scores, mask), views, selected.rows)
    if fetcher.training or not scorer.fetches or isinstance(scorer, SaliencyScorer):
        failed = torch.zeros_like(failed)
    if failed.any():
        salient = torch.cat([saliency(context) for context in contexts])
        scores = torch.where(failed[:, None], salient.to(scores), scores)
        warn_of_fallback(scorer)
    shown = scores.detach().masked_fill(~mask, float("-inf"))
    evidence = shown.amax(1)
    hidden = views.seen_before(evidence.cpu(), side).to(mask.device) if tiles else torch.zeros_like(mask)
    if selected.taken is not None:
        hidden[: len(selected.rows)].scatter_(1, selected.taken, True)
    raised = scores + FOCUS * torch.where(evidence.isfinite(), evidence, 0.0)[:, None]
    raised = raised.masked_fill(scores <= EMPTY, (1 + FOCUS) * EMPTY)  # below the text of all views
    method = ALLOCATORS[choices.allocator or fetcher.config.allocator]
    relevance = scores.sigmoid()
    if not scorer.trained or failed.any():
        in_range = _in_prompts(scores, views, selected.rows)
        relevance = torch.where(failed[:, None], in_range, relevance) if scorer.trained else in_range
    fetches = list[GroupFetch]()
    for slots, budget in _groups(views, selected):
        numbers = torch.cat([(views.slots == slot).nonzero()[:, 0] for slot in slots])
        context = selected.context
        if method.budgeter is not None and len(slots) < len(selected.rows):  # which reads the question
            context = context.select(torch.tensor(slots))
        rows = (raised, relevance, mask, hidden)
        competing, relevant, real, gone = (tensor[numbers].flatten()[None] for tensor in rows)
        candidates = int((~gone).sum())
        if budget > candidates:
            expected = f"at most {candidates} patches that are not fetched already"
            raise ValueError(f"budget: expected {expected}; got {budget}")
        if method.detail:  # which goes by relevance itself: in views, as they compete; the best one is unchanged
            most = torch.where(evidence[numbers].isfinite(), evidence[numbers], 0.0).amax()
            learned = scorer.trained and not failed[numbers].any()
            relevant = (competing - FOCUS * most).sigmoid() if learned else unit_range(competing)
        text = None if begun is None else begun[numbers].flatten()[None]
        chosen = fetcher.choose(context, competing, relevant, real, budget, choices, gone, text)
        fetches.append((slots, numbers, chosen))
    fetched: FetchResult = views.by_slot(fetches, scores, relevance, hidden, mask=mask, begun=begun, failed=failed)
    return fetched


def _failed(scores: Tensor, mask: Tensor, nothing: Tensor, views: Any, rows: Tensor) -> Tensor:
    """[V] bool: the views of prompts with a score [V, N] that is not finite, or with `nothing` [V] but flat views. A
    single flat view beside others is valid: it has nothing relevant."""
    prompts, failed = rows.cpu()[views.slots].to(scores.device), torch.zeros_like(mask[:, 0])
    infinite = (mask & ~scores.isfinite()).any(1)
    for prompt in prompts.unique():
        own = prompts == prompt
        failed[own] = infinite[own].any() | nothing[own].all()
    return failed


def _groups(views: Any, selected: Any) -> list[tuple[list[int], int]]:
    """Slots that share a budget, and that budget."""
    rows = selected.rows.tolist()
    prompts = [[slot for slot, row in enumerate(rows) if row == prompt] for prompt in dict.fromkeys(rows)]
    if views.spread != "each":
        return [(slots, selected.budget) for slots in prompts]
    shares = []
    for slots in prompts:
        share, rest = divmod(selected.budget, len(slots))
        shares += [([slot], share + (number < rest)) for number, slot in enumerate(slots)]
    return shares


def _in_prompts(scores: Tensor, views: Any, rows: Tensor) -> Tensor:
    """Scores [V, N] of a fixed rule in 0..1, over the range of all views of a prompt; `rows` [I]: prompts of slots."""
    prompts, relevance = rows.cpu()[views.slots].to(scores.device), torch.zeros_like(scores)
    for prompt in prompts.unique():
        own = scores[prompts == prompt]
        relevance[prompts == prompt] = unit_range(own.flatten()[None]).view_as(own)
    return relevance
