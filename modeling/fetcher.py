"""The running-back fetcher: scores the patches, allocates the budget and returns the fetched patches.

Notation: B batch (prompts), S their length, I image slots, V views (the overviews of all slots, then their tiles), G
side of the fine grid, N = G*G patches, M base tokens, K fetched tokens (the largest number of any item), D
language-model width. Positions are (y, x).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .allocators import allocate
from .bridges import FOREMOST
from .checks import FETCHING, SEEDS, refusal
from .config_fields import Registry
from .configuration_arr_coc import AUTO, ArrCocFetcherConfig
from .detail_allocators import ALLOCATORS
from .image_encoding import ImageEncoding
from .patch_scorers import SCORERS
from .scorers import (
    EMPTY,
    FetchContext,
    SaliencyScorer,
    Scorer,
    is_uninformative,
    saliency,
    scored,
    unit_range,
    warn_of_fallback,
)
from .tiles import VIEWS_AT_ONCE
from .views import FetchResult, JointFetch, Seen, Views, context_of, positions_of


@dataclass(frozen=True)
class FetchChoices:
    """How one call fetches. None leaves a choice to the configuration.

    Attributes:
        strategy: the name of the scorer.
        allocator: the name of the allocator, which chooses patches by relevance.
        budget: see `resolve_budget`. In `forward` it has to agree with the placeholders of the prompts.
        seed: of random relevance without a generator.
        generator: for strategy "random".
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


@dataclass
class SelectedSlots:
    """The first step of a question: its image slots and the inputs of the scorers.

    Attributes:
        input_ids: [B, S], with placeholders for every image token.
        query_mask: bool [B, S], True on the question.
        embeds: [B, S, D] of the text; those of placeholders have no meaning.
        encoding: the image of each slot.
        rows: [I] the prompt of each slot.
        budget: K, the number of placeholders for fetched tokens.
        context: the inputs of the scorers for each slot.
        taken: [I, M] patches that are base tokens already and must not be fetched again, or None.
        attention_mask: [B, S]; None: no padding.
        prefix: the encoded images with the language model's prefill of their base tokens, or None; image_index: [I] the
            number of the image in each slot.
        views: the views that each slot fetches from: its overview, the grid of `encoding`, and tiles; None: only the
            overview.
    """

    input_ids: Tensor
    query_mask: Tensor
    embeds: Tensor
    encoding: ImageEncoding
    rows: Tensor
    budget: int
    context: FetchContext
    taken: Tensor | None
    attention_mask: Tensor | None = None
    prefix: ImageEncoding | None = None
    image_index: Tensor | None = None
    views: Views | None = None


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

    def reads_attention(self, choices: FetchChoices) -> bool:
        """Whether the scorer needs the language model's attention from the question to the base tokens."""
        strategy = choices.strategy or self.config.strategy
        return choices.patches is None and self.check_strategy(strategy).reads_attention

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
        settings = self._settings(choices)
        scorer = self.scorer(settings["strategy"])
        _check_budget(context, budget, scorer, settings["strategy"], taken)
        begun = self.begun(context, choices)
        scores, relevance, fell_back = scored(scorer, context, fall_back=not self.training)
        hidden = None if taken is None else torch.zeros_like(context.patch_mask).scatter(1, taken, True)
        fetched = allocate(
            context, scores, relevance, context.patch_mask, budget, hidden=hidden, begun=begun, **settings
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
        *,
        hidden: Tensor | None = None,
        begun: Tensor | None = None,
    ) -> FetchResult:
        """The second half of `forward`: see `allocate`."""
        settings = self._settings(choices)
        return allocate(context, scores, relevance, patch_mask, budget, hidden=hidden, begun=begun, **settings)

    def begun(self, context: FetchContext, choices: FetchChoices) -> Tensor | None:
        """[B, N] number of wordpieces that begin in each patch, if the scorer reads text."""
        if context.pieces is None or not self.scorer(choices.strategy or self.config.strategy).reads_text:
            return None
        return (context.pieces >= 0).flatten(2).sum(2)

    def _settings(self, choices: FetchChoices) -> dict[str, Any]:
        """Arguments of `allocate` from the choices and the configuration."""
        allocator = choices.allocator or self.config.allocator
        return {
            "config": self.config,
            "strategy": choices.strategy or self.config.strategy,
            "allocator": allocator,
            "budgeter": None if ALLOCATORS[allocator].budgeter is None else self.budgeters[allocator],
            "learns": self.training and torch.is_grad_enabled() and self.config.gradient != "none",
            "temperature": self.temperature if self.config.gradient == "soft" else None,
        }


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


# ---- one budget over all views of a prompt --------------------------------------------------------------------------

FOCUS = 3.0
"""The factor of a view's highest score that is added to all of its scores, when views compete.

A scorer that was trained on single pages finds something on each page. Measured on A4 pages in validation fonts with an
earlier model of 3.8 M parameters: at 0, patches of other tiles come between those of the answer; 3 and 8 are about
equal (42 questions).
"""


def fetch_over_views(fetcher: RunningBackFetcher, selected: SelectedSlots, choices: FetchChoices) -> JointFetch:
    """`RunningBackFetcher.forward` for slots with several views: `selected.budget` fetched tokens for each prompt.

    Raises:
        ValueError: what `RunningBackFetcher.forward` refuses; `patches`, which are those of one grid; and `relevance`
            of overviews alone.
    """
    assert selected.views is not None
    if choices.patches is not None:
        expected = "them of images, not of documents or of images in tiles"
        raise ValueError(f"patches: expected {expected}; got {len(selected.views.slots)} views")
    views, side = selected.views, selected.context.features.shape[-1]
    given = selected.context.relevance
    if given is not None and len(given) != len(views.slots):
        expected = "that of images without tiles"
        raise ValueError(f"relevance: expected {expected}; got {len(given)} for {len(views.slots)} views")
    strategy = choices.strategy or fetcher.config.strategy
    scorer = fetcher.scorer(strategy)
    tiles = len(views.tile_rows)
    if scorer.reads_attention and tiles:
        expected = 'images without tiles (tiles="never")'
        raise ValueError(f'strategy "{strategy}": expected {expected}; got {tiles} tiles')
    parts = torch.arange(len(views.slots)).split(VIEWS_AT_ONCE)
    contexts = [selected.context]
    if tiles or len(parts) > 1:
        contexts = [context_of(views, selected.context, numbers) for numbers in parts]
    scores = torch.cat([scorer(context) for context in contexts]).to(selected.context.features.device)
    texts = [begun for context in contexts if (begun := fetcher.begun(context, choices)) is not None]
    begun = torch.cat(texts).to(scores.device) if texts else None
    mask = torch.cat([context.patch_mask for context in contexts])
    failed = _failed(scores, mask, views, selected.rows)
    if fetcher.training or not scorer.fetches or isinstance(scorer, SaliencyScorer):
        failed = torch.zeros_like(failed)
    if failed.any():
        salient = torch.cat([saliency(context) for context in contexts])
        scores = torch.where(failed[:, None], salient.to(scores), scores)
        warn_of_fallback(scorer)
    shown = scores.detach().masked_fill(~mask, float("-inf"))
    evidence = shown.amax(1)
    hidden = seen_before(views, evidence.cpu(), side).to(mask.device) if tiles else torch.zeros_like(mask)
    if selected.taken is not None:
        hidden[: len(selected.rows)].scatter_(1, selected.taken, True)
    raised = scores + FOCUS * torch.where(evidence.isfinite(), evidence, 0.0)[:, None]
    raised = raised.masked_fill(scores <= EMPTY, (1 + FOCUS) * EMPTY)  # below the text of all views
    in_detail = ALLOCATORS[choices.allocator or fetcher.config.allocator].detail
    relevance = scores.sigmoid()
    if not scorer.trained or failed.any():
        in_range = _in_prompts(scores, views, selected.rows)
        relevance = torch.where(failed[:, None], in_range, relevance) if scorer.trained else in_range
    fetches = []
    for slots, budget in _groups(views, selected):
        numbers = torch.cat([(views.slots == slot).nonzero()[:, 0] for slot in slots])
        context = selected.context
        if len(slots) < len(selected.rows):
            context = context.select(torch.tensor(slots))
        competing, relevant, real, gone = (
            tensor[numbers].flatten()[None] for tensor in (raised, relevance, mask, hidden)
        )
        _check_room(budget, gone)
        if in_detail:  # which goes by relevance itself: in views, as they compete
            learned = scorer.trained and not failed[numbers].any()
            relevant = _competing(competing, evidence[numbers], learned)
        text = None if begun is None else begun[numbers].flatten()[None]
        fetched = fetcher.choose(context, competing, relevant, real, budget, choices, hidden=gone, begun=text)
        fetches.append((slots, numbers, fetched))
    fetched = _by_slot(fetches, scores, Seen(views, relevance, hidden), side, mask, begun)
    fetched.fell_back = failed[: len(selected.rows)]
    return fetched


def _failed(scores: Tensor, mask: Tensor, views: Views, rows: Tensor) -> Tensor:
    """[V] bool: the views of prompts with a score [V, N] that is not finite, or with only flat views.

    A single flat view beside others is valid: it has nothing relevant.
    """
    prompts, failed = rows.cpu()[views.slots].to(scores.device), torch.zeros_like(mask[:, 0])
    infinite, nothing = (mask & ~scores.isfinite()).any(1), is_uninformative(scores, mask)
    for prompt in prompts.unique():
        own = prompts == prompt
        failed[own] = infinite[own].any() | nothing[own].all()
    return failed


def seen_before(views: Views, evidence: Tensor, side: int) -> Tensor:
    """[V, N] bool: patches whose centre is in an earlier view of the same source.

    Tiles come before overviews, which are coarser; tiles with more `evidence` [V] come before others, ties by number.
    """
    count, first = len(views.slots), views.overviews
    ranks = evidence.clone()
    ranks[:first] = float("-inf")
    order = ranks.sort(descending=True, stable=True).indices
    place = torch.empty_like(order)
    place[order] = torch.arange(count)
    centres, hidden = views.centres(side), torch.zeros(count, side * side, dtype=torch.bool)
    for view in range(first, count):
        later = ((views.slots == views.slots[view]) & (place > place[view])).nonzero()[:, 0]
        x, y = centres[later].unbind(-1)
        x0, y0, x1, y1 = views.windows[view].tolist()
        hidden[later] |= (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
    return hidden


def _groups(views: Views, selected: SelectedSlots) -> list[tuple[list[int], int]]:
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


def _check_room(budget: int, hidden: Tensor) -> None:
    candidates = int((~hidden).sum())
    if budget > candidates:
        raise ValueError(f"budget: expected at most {candidates} patches that are not fetched already; got {budget}")


def _competing(raised: Tensor, evidence: Tensor, trained: bool) -> Tensor:
    """The relevance [1, n * N], 0..1, of scores raised by their views' `evidence` [n]; the best view is unchanged."""
    most = torch.where(evidence.isfinite(), evidence, 0.0).amax()
    return (raised - FOCUS * most).sigmoid() if trained else unit_range(raised)


def _in_prompts(scores: Tensor, views: Views, rows: Tensor) -> Tensor:
    """Scores [V, N] of a fixed rule in 0..1, over the range of all views of a prompt; `rows` [I]: prompts of slots."""
    prompts, relevance = rows.cpu()[views.slots].to(scores.device), torch.zeros_like(scores)
    for prompt in prompts.unique():
        own = scores[prompts == prompt]
        relevance[prompts == prompt] = unit_range(own.flatten()[None]).view_as(own)
    return relevance


def _by_slot(
    fetches: list[tuple[list[int], Tensor, FetchResult]],
    scores: Tensor,
    seen: Seen,
    side: int,
    mask: Tensor,
    begun: Tensor | None,
) -> JointFetch:
    """The result for each slot, from the results of groups of slots over their views `numbers`."""
    slots, patches = seen.views.slots, side * side
    parts: dict[int, tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]] = {}
    rooms: dict[int, int] = {}
    for group, numbers, fetched in fetches:
        flat = fetched.indices[0, : int(fetched.counts[0])]
        view, indices, ranks = numbers.to(flat.device)[flat // patches], flat % patches, fetched.ranks()[0, : len(flat)]
        optional = [None if row is None else row[0, : len(flat)] for row in (fetched.weights, fetched.levels)]
        wanted: list[int] = []
        for slot in group:
            own = slots.to(flat.device)[view] == slot
            weights, levels = (None if row is None else row[own] for row in optional)
            parts[slot] = (view[own], indices[own], ranks[own], weights, levels)
            if begun is not None:
                wanted.append(int((begun[view[own], indices[own]] * (1 + (ranks[own] < FOREMOST).long())).sum()))
        if fetched.room is not None:
            rooms.update(zip(group, _shared(int(fetched.room[0]), wanted), strict=True))
    count = len(slots) - len(seen.views.tile_rows)
    counts = torch.tensor([len(parts[slot][0]) for slot in range(count)], device=scores.device)
    room = torch.tensor([rooms[slot] for slot in range(count)], device=scores.device) if rooms else None
    budget = int((counts if room is None else torch.maximum(counts, room)).max())

    def padded(number: int) -> Tensor:
        rows = [parts[slot][number] for slot in range(count)]
        return pad_sequence([F.pad(row, (0, budget - len(row))) for row in rows if row is not None], True)

    view, indices = padded(0), padded(1)
    used = torch.arange(budget, device=counts.device) < counts[:, None]
    first = fetches[0][2]
    return JointFetch(
        indices=indices,
        positions=torch.stack((indices // side, indices % side), -1),
        scores=scores[:count],
        relevance=seen.relevance[:count],
        is_padding=~mask[view, indices] & used,
        budget=budget,
        strategy=first.strategy,
        allocator=first.allocator,
        counts=counts,
        weights=None if first.weights is None else padded(3),
        levels=None if first.levels is None else padded(4),
        is_ragged=bool((counts < budget).any()),
        room=room,
        view=view,
        order=padded(2).masked_fill(~used, budget),
        seen=seen,
    )


def _shared(total: int, wanted: list[int]) -> list[int]:
    """`total` tokens among slots that want some; in proportion to what they want if that is more."""
    if sum(wanted) <= total:
        return wanted
    exact = [total * each / sum(wanted) for each in wanted]
    given = [math.floor(each) for each in exact]
    for slot in sorted(range(len(wanted)), key=lambda slot: given[slot] - exact[slot])[: total - sum(given)]:
        given[slot] += 1
    return given
