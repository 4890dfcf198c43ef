"""Joint allocation: one budget over all views of a prompt.

Notation: B prompts, I image slots, V views (the overviews of all slots, then their tiles), G side of the fine grid, N =
G*G patches, K fetched tokens (the largest number of any slot).
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .allocators import FetchResult, PatchesOf, positions_of
from .bridges import Bridged
from .detail_allocators import ALLOCATORS
from .fetcher import FetchChoices, RunningBackFetcher
from .grid_encoder import spread_regions
from .image_encoding import ImageEncoding
from .prompt import Core, SelectedSlots
from .scorers import EMPTY, FetchContext, SaliencyScorer, is_uninformative, saliency, unit_range, warn_of_fallback
from .views import VIEWS_AT_ONCE, Views, context_of
from .wordpieces import FOREMOST

FOCUS = 3.0
"""The factor of a view's highest score that is added to all of its scores, when views compete.

A scorer that was trained on single pages finds something on each page. Measured on A4 pages in validation fonts with an
earlier model of 3.8 M parameters: at 0, patches of other tiles come between those of the answer; 3 and 8 are about
equal (42 questions).
"""


@dataclass(frozen=True)
class Seen:
    """The views and their relevance.

    Attributes:
        views: all views.
        relevance: [V, N] float32 in 0..1, of every view's patches.
        hidden: [V, N] bool, True on patches whose place is in an earlier view.
    """

    views: Views
    relevance: Tensor
    hidden: Tensor


@dataclass
class JointFetch(FetchResult):
    """The fetched patches of several views; `scores` and `relevance` are those of the overviews.

    Attributes:
        view: [I, K] int64, the view of each fetched token; its `indices` and `positions` are in that view's grid.
        order: [I, K] int64, the rank of each token by relevance, from 0, among all that share the budget.
        seen: the views.
    """

    view: Tensor = None  # type: ignore[assignment]  # fields behind those with defaults need one
    order: Tensor = None  # type: ignore[assignment]
    seen: Seen = field(default=None, metadata={"shared": True})  # type: ignore[assignment]

    PER_TOKEN: ClassVar[tuple[str, ...]] = (*FetchResult.PER_TOKEN, "view", "order")

    def select(self, index: Tensor) -> Self:
        """The items at `index` [I] with their own views, numbered anew: overviews in that order, then tiles."""
        rows, views, device = super().select(index), self.seen.views, self.view.device
        first, slots = views.overviews, index.cpu()
        tiles = [(views.slots[first:] == slot).nonzero()[:, 0] for slot in slots]
        numbers = torch.cat([slots, *(first + own for own in tiles)])  # those of before
        owners = torch.arange(len(slots)).repeat_interleave(torch.tensor([len(own) for own in tiles], dtype=torch.long))
        owners = torch.cat([torch.arange(len(slots)), owners])
        table = torch.zeros(len(slots), len(views.slots), dtype=torch.int64)
        table[owners, numbers] = torch.arange(len(numbers))
        kept = replace(
            views,
            slots=owners,
            windows=views.windows[numbers],
            tile_rows=views.tile_rows[numbers[len(slots) :] - first],
        )
        at = numbers.to(device)
        seen = Seen(kept, self.seen.relevance[at], self.seen.hidden[at])
        return replace(rows, seen=seen, view=table.to(device).gather(1, rows.view))

    def own_relevance(self) -> Tensor:
        return self.seen.relevance[self.view, self.indices]

    def ranks(self) -> Tensor:
        return self.order

    def boxes(self) -> Tensor:
        """[I, K, 4] x0, y0, x1, y1 of each fetched token in px of its source."""
        side = math.isqrt(self.scores.shape[1])
        flat = self.seen.views.boxes(self.view.flatten(), self.regions().flatten(0, 1), side)
        return flat.view(*self.view.shape, 4)

    def centres(self) -> Tensor:
        """As `FetchResult.centres`; a token of a tile has its place in the overview."""
        if self.seen.views.whole:
            return super().centres()
        side, boxes = math.isqrt(self.scores.shape[1]), self.boxes()
        squares = self.seen.views.windows[: self.seen.views.overviews, None]  # [I, 1, 4]
        middles = (boxes[..., :2] + boxes[..., 2:]) / 2 - squares[..., :2]
        places = middles * side / (squares[..., 2:] - squares[..., :2]) - 0.5
        return places.flip(-1).to(self.indices.device)

    def of_patches(self, make: PatchesOf, context: FetchContext) -> Tensor:
        """As `FetchResult.of_patches`, each token in its own view; 0 on entries that only fill the rectangle."""
        views, made = self.seen.views, None
        slots, places, view, indices, levels = self._listed()
        for numbers in view.unique().split(VIEWS_AT_ONCE):
            at, used = _of_views(view, numbers)
            detail = None if levels is None else levels[at].where(used, 0)
            part = make(context_of(views, context, numbers.cpu()), indices[at].where(used, 0), detail)
            made = part.new_zeros(*self.indices.shape, *part.shape[2:]) if made is None else made
            made = made.index_put((slots[at[used]], places[at[used]]), part[used])
        assert made is not None, "called where something was fetched"
        return made

    def fetched_characters(self, characters: Tensor) -> Tensor:
        """`FetchResult.fetched_characters` over all views; `characters` are those of the overviews of all slots."""
        side, views = math.isqrt(self.scores.shape[1]), self.seen.views
        slots, _, view, indices, levels = self._listed()
        levels = torch.zeros_like(indices) if levels is None else levels
        total = characters.new_zeros(len(self.indices), 2)
        for number in view.unique():
            own = view == number
            ones = torch.ones(1, int(own.sum()), device=view.device)
            covered = spread_regions(ones, indices[own][None], levels[own][None], (side, side))[0] > 0
            held = views.pick(characters, "characters", number.cpu()[None])[0]
            total[slots[own][0]] += held[covered.to(held.device)].sum(0)
        return total

    def _listed(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Slot, place in its row, view, index and level (or None) of each of the n fetched tokens."""
        slots, places = self.used.nonzero(as_tuple=True)
        levels = None if self.levels is None else self.levels[slots, places]
        return slots, places, self.view[slots, places], self.indices[slots, places], levels


def _of_views(view: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The fetched tokens of the views `numbers` [n], by the `view` of each: [n, k], and bool, False on padding."""
    own = [(view == number).nonzero()[:, 0] for number in numbers]
    return pad_sequence(own, True), pad_sequence([torch.ones_like(places) for places in own], True).bool()


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
    views, side = selected.views, selected.context.side
    given = selected.context.relevance
    if given is not None and len(given) != len(views.slots):
        expected = "that of images without tiles"
        raise ValueError(f"relevance: expected {expected}; got {len(given)} for {len(views.slots)} views")
    strategy = choices.strategy or fetcher.config.strategy
    scorer = fetcher.scorer(strategy)
    if scorer.reads_attention and not views.whole:
        expected = 'images without tiles (tiles="never")'
        raise ValueError(f'strategy "{strategy}": expected {expected}; got {len(views.tile_rows)} tiles')
    parts = torch.arange(len(views.slots)).split(VIEWS_AT_ONCE)
    contexts = [context_of(views, selected.context, numbers) for numbers in parts]
    scores = torch.cat([scorer(context) for context in contexts]).to(selected.context.features.device)
    texts = [begun for context in contexts if (begun := fetcher.begun(context, choices)) is not None]
    begun = torch.cat(texts).to(scores.device) if texts else None
    everything = torch.arange(len(views.slots))
    mask = views.pick(selected.context.patch_mask, "patch_mask", everything)
    failed = _failed(scores, mask, views, selected.rows)
    if fetcher.training or not scorer.fetches or isinstance(scorer, SaliencyScorer):
        failed = torch.zeros_like(failed)
    if failed.any():
        salient = torch.cat([saliency(context) for context in contexts])
        scores = torch.where(failed[:, None], salient.to(scores), scores)
        warn_of_fallback(scorer)
    shown = scores.detach().masked_fill(~mask, float("-inf"))
    evidence = shown.amax(1)
    hidden = seen_before(views, evidence.cpu(), side).to(mask.device)
    if selected.taken is not None:
        hidden[: views.overviews].scatter_(1, selected.taken, True)
    raised = scores + FOCUS * torch.where(evidence.isfinite(), evidence, 0.0)[:, None]
    raised = raised.masked_fill(scores <= EMPTY, (1 + FOCUS) * EMPTY)  # below the text of all views
    in_detail = ALLOCATORS[choices.allocator or fetcher.config.allocator].detail
    relevance = _in_prompts(scores, views, selected.rows)
    if scorer.trained:
        relevance = torch.where(failed[:, None], relevance, scores.sigmoid())
    fetches = []
    for slots, budget in _groups(views, selected):
        numbers = torch.cat([(views.slots == slot).nonzero()[:, 0] for slot in slots])
        context = selected.context.select(torch.tensor(slots))
        competing, relevant, real, gone = (
            tensor[numbers].flatten()[None] for tensor in (raised, relevance, mask, hidden)
        )
        _check_budget(budget, gone)
        if in_detail:  # which goes by relevance itself: in views, as they compete
            learned = scorer.trained and not failed[numbers].any()
            relevant = _competing(competing, evidence[numbers], learned)
        text = None if begun is None else begun[numbers].flatten()[None]
        fetched = fetcher.choose(context, competing, relevant, real, budget, choices, hidden=gone, begun=text)
        fetches.append((slots, numbers, fetched))
    fetched = _by_slot(fetches, scores, Seen(views, relevance, hidden), side, mask, begun)
    fetched.fell_back = failed[: views.overviews]
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
    if views.spread == "joint":
        return [(slots, selected.budget) for slots in prompts]
    shares = []
    for slots in prompts:
        share, rest = divmod(selected.budget, len(slots))
        shares += [([slot], share + (number < rest)) for number, slot in enumerate(slots)]
    return shares


def _check_budget(budget: int, hidden: Tensor) -> None:
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
    count = seen.views.overviews
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
        positions=positions_of(indices, side),
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


# ---- from patches of views to tokens ------------------------------------------------------------------------------


def bridge_over_views(model: Core, encoding: ImageEncoding, fetched: JointFetch) -> Bridged:
    """`ArrCocModel.bridge_fetched` for tokens from several views.

    Each fetched token attends to the base tokens of its own view and to the tokens fetched from it.
    """
    if model.bridge.places_tokens and not encoding.bypass:
        return _place_over_views(model, encoding, fetched)
    views = fetched.seen.views
    slots, places, view, indices, levels = fetched._listed()
    tokens = encoding.tokens.new_zeros(*fetched.indices.shape, encoding.tokens.shape[-1])
    quality = None if encoding.quality is None else encoding.quality.new_zeros(fetched.indices.shape)
    failed = torch.zeros_like(fetched.counts, dtype=torch.bool)
    for numbers in view.unique().split(VIEWS_AT_ONCE):
        at, used = _of_views(view, numbers)
        base = _bases(model, encoding, views, numbers.cpu())
        detail = None if levels is None else levels[at].where(used, 0)
        bridged = model.bridge_fetched(base, indices[at].where(used, 0), used, detail)
        entries = (slots[at[used]], places[at[used]])
        tokens = tokens.index_put(entries, bridged.tokens[used])
        if quality is not None and bridged.quality is not None:
            quality = quality.index_put(entries, bridged.quality[used])
        if bridged.failed is not None:
            failed[views.slots[numbers.cpu()].to(failed.device)[bridged.failed]] = True
    return Bridged(tokens, quality, failed=failed)


def _place_over_views(model: Core, encoding: ImageEncoding, fetched: JointFetch) -> Bridged:
    """`bridge_over_views` for bridges that place tokens: the texts of a slot's views follow one another."""
    slots, places, view, indices, levels = fetched._listed()
    made: list[Tensor] = []
    for numbers in view.unique().split(VIEWS_AT_ONCE):
        at, used = _of_views(view, numbers)
        base = _bases(model, encoding, fetched.seen.views, numbers.cpu())
        assert base.pieces is not None, "encodings for bridges that place tokens have wordpieces"
        detail, own = None if levels is None else levels[at].where(used, 0), indices[at].where(used, 0)
        both = model.vision_tower.fetched_states(base, own, used, detail)
        parts = (*both, base.pieces.take_along_dim(own[..., None, None], 1))
        made = made or [part.new_zeros(*fetched.indices.shape, *part.shape[2:]) for part in parts]
        entries = (slots[at[used]], places[at[used]])
        made = [whole.index_put(entries, part[used]) for whole, part in zip(made, parts, strict=True)]
    states, projected, pieces = made
    return model.bridge_states(
        encoding, states, projected, fetched.used, pieces=pieces, indices=fetched.indices, rank=fetched.ranks(),
        relevance=fetched.predicted_relevance(), room=fetched.room, view=fetched.view,
    )  # fmt: skip


def _bases(model: Core, encoding: ImageEncoding, views: Views, numbers: Tensor) -> ImageEncoding:
    """The states that fetched tokens of some views attend to: kept for overviews, computed for tiles."""
    if views.whole and encoding.semantic_cache and encoding.pool == 1:
        return encoding.select(numbers)
    features = views.pick(encoding.features, "features", numbers)
    pieces = None if encoding.pieces is None else views.pick(encoding.pieces, "pieces", numbers)
    mask = views.pick(encoding.patch_mask, "patch_mask", numbers)
    return model.encode_base(features, mask, encoding.bypass, pieces)
