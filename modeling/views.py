"""The views that a question fetches from, what was fetched from them, and its tokens.

Notation: B batch, I image slots, V views (the overviews of all slots, then their tiles), R tiles of an encoding, G side
of the fine grid, N = G*G patches, K fetched tokens (the largest number of any slot). Windows are x0, y0, x1, y1 in px
of the source, ends exclusive; positions are (y, x), row-major.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .bridges import Bridged
from .grid_encoder import region_boxes, spread_regions
from .image_encoding import ImageEncoding, Rows, Tiles
from .image_processing_arr_coc import Box, boxes_to_patches, square_of
from .scorers import SCORERS, FetchContext
from .tiles import VIEWS_AT_ONCE


@dataclass(frozen=True)
class Views:
    """The views that each image slot of a question fetches from: the overview of each slot, then the tiles.

    Attributes:
        slots: [V] int64, the slot of each view.
        windows: [V, 4] float32, the square of each view in px of its source; parts may lie outside the source.
        tile_rows: [V - I] int64, the row of each tile among `tiles`.
        tiles: those of the encoding, or None without tiles.
        spread: see `ViewOptions`.
    """

    slots: Tensor
    windows: Tensor
    tile_rows: Tensor
    tiles: Tiles | None
    spread: str

    @property
    def overviews(self) -> int:
        """I."""
        return len(self.slots) - len(self.tile_rows)

    @property
    def whole(self) -> bool:
        """Whether there are only overviews."""
        return not len(self.tile_rows)

    def pick(self, overviews: Tensor, name: str, views: Tensor) -> Tensor:
        """Rows of `views` [n] of a field of both `ImageEncoding` [I, ...] and `Tiles`, in the dtype of the former."""
        first = self.overviews
        parts = [overviews.index_select(0, views[views < first].to(overviews.device))]
        if self.tiles is not None:
            stored = getattr(self.tiles, name)
            rows = self.tile_rows[views[views >= first] - first]
            parts.append(stored.index_select(0, rows.to(stored.device)).to(overviews))
        order = torch.cat([(views < first).nonzero()[:, 0], (views >= first).nonzero()[:, 0]])
        return torch.cat(parts).index_select(0, order.argsort().to(overviews.device))

    def centres(self, side: int) -> Tensor:
        """[V, N, 2] (x, y) of the patches' centres in px of the source."""
        unit = (torch.arange(side) + 0.5) / side
        x0, y0, x1, y1 = self.windows[..., None].unbind(1)  # [V, 1] each
        x, y = x0 + (x1 - x0) * unit, y0 + (y1 - y0) * unit
        grid = torch.stack((x[:, None, :].expand(-1, side, -1), y[:, :, None].expand(-1, -1, side)), -1)
        return grid.flatten(1, 2)

    def boxes(self, views: Tensor, regions: Tensor, side: int) -> Tensor:
        """[n, 4] x0, y0, x1, y1 in px of the source, of `regions` [n, 4] (`FetchResult.regions`) of `views` [n]."""
        windows = self.windows[views.cpu()]
        size = (windows[:, 2:] - windows[:, :2]) / side
        start, end = (windows[:, :2] + corner.cpu().flip(-1) * size for corner in regions.split(2, -1))
        return torch.cat((start, end), -1)


def arrange(
    encoding: ImageEncoding, image_index: Tensor, rows: Sequence[Sequence[int]] | None, spread: str = "joint"
) -> Views:
    """The views of slots that show the images `image_index` [I] of an encoding.

    Args:
        encoding: the encoded images, with their tiles.
        image_index: the image in each slot.
        rows: the tiles of each slot, if a question chooses them; None: all tiles of its source.
        spread: see `ViewOptions`.
    """
    tiles, shown = encoding.tiles, image_index.tolist()
    if rows is None:
        sources = [] if tiles is None else tiles.sources.tolist()
        rows = [[row for row, source in enumerate(sources) if source == number] for number in shown]
    slots = [*range(len(shown)), *(slot for slot, own in enumerate(rows) for _ in own)]
    flat = [row for own in rows for row in own]
    side = encoding.features.shape[-1]
    sizes = encoding.read_sizes or [(side, side)] * len(encoding.features)
    squares = [square_of((0, 0, sizes[number][1], sizes[number][0])) for number in shown]
    if tiles is not None and flat:
        squares += [square_of(tuple(tiles.windows[row].tolist())) for row in flat]
    return Views(torch.tensor(slots), torch.tensor(squares), torch.tensor(flat, dtype=torch.int64), tiles, spread)


def context_of(views: Views, context: FetchContext, numbers: Tensor) -> FetchContext:
    """The scorer's inputs for the views `numbers` [n]; `context` is that of the overviews [I]."""
    slots = views.slots[numbers]
    of_slots = context.select(slots)
    seeds = views.pick(context.seeds, "seeds", numbers)
    tile = (numbers >= views.overviews).to(seeds.device)
    return replace(
        of_slots,
        features=views.pick(context.features, "features", numbers),
        textures=views.pick(context.textures, "textures", numbers),
        patch_mask=views.pick(context.patch_mask, "patch_mask", numbers),
        seeds=torch.where(tile, (seeds * 1_000_003 + of_slots.seeds) % 2**31, seeds),
        relevance=None if context.relevance is None else context.relevance[numbers],
        depths=_kept(views, context, "depths", numbers),
        pieces=_kept(views, context, "pieces", numbers),
        # The language model has not read tiles; scorers that need its attention raise an error.
        attention=of_slots.attention if views.whole else None,
    )


def _kept(views: Views, context: FetchContext, name: str, numbers: Tensor) -> Tensor | None:
    """The depths or wordpieces of some views; None if they were not kept, as in encodings of earlier versions."""
    overviews = getattr(context, name)
    if overviews is None or (views.tiles is not None and getattr(views.tiles, name) is None):
        return None
    return views.pick(overviews, name, numbers)


def relevance_of(views: Views, boxes: Sequence[Sequence[Box]], side: int) -> Tensor:
    """[V, N] float32: 1 on the patches of each view under the `boxes` of its slot, px of the source."""
    rows = []
    for slot, (x0, y0, x1, _) in zip(views.slots.tolist(), views.windows.tolist(), strict=True):
        unit = side / (x1 - x0)  # patches per px
        mapped = [((a - x0) * unit, (b - y0) * unit, (c - x0) * unit, (d - y0) * unit) for a, b, c, d in boxes[slot]]
        rows.append(torch.from_numpy(boxes_to_patches(mapped, side, 1)).flatten())
    return torch.stack(rows).float()


# ---- the result of a fetch ---------------------------------------------------------------------------------------


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
        """The items at `index` [I]; K is the largest of their counts, and there is no room for more tokens."""
        rows = super().select(index)
        if not self.is_ragged or not len(index):
            return rows
        most = int(rows.counts.max())
        held = ((name, getattr(rows, name)) for name in self.PER_TOKEN if rows.room is None or name != "source")
        cut = {name: tensor[:, :most] for name, tensor in held if tensor is not None}
        return replace(rows, **cut, budget=most, is_ragged=bool((rows.counts < most).any()), room=None)


def positions_of(indices: Tensor, side: int) -> Tensor:
    """(y, x) of patches on a grid of `side`: [B, K] -> [B, K, 2]."""
    return torch.stack((indices // side, indices % side), -1)


# ---- of several views -------------------------------------------------------------------------------------------


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

    def most_relevant(self) -> Tensor:
        """[I] the largest relevance of a slot's patches, in any of its views."""
        slots = self.seen.views.slots.to(self.view.device)
        return self.scores.new_zeros(len(self.scores)).scatter_reduce(0, slots, self.seen.relevance.amax(1), "amax")

    def among(self, whole: "JointFetch", slot: int) -> "JointFetch":
        """This fetch from one slot alone as one from `slot` among those of `whole`, whose others give no token."""
        count, views = len(whole.counts), self.seen.views
        at = torch.tensor([slot], device=self.view.device)

        def placed(own: Tensor) -> Tensor:
            return own.new_zeros(count, *own.shape[1:]).index_copy(0, at, own)

        def seen(name: str) -> Tensor:
            own, others = getattr(self.seen, name), getattr(whole.seen, name)[:count]
            return torch.cat((others.index_copy(0, at, own[:1]), own[1:]))

        windows = whole.seen.views.windows[:count].index_copy(0, at.cpu(), views.windows[:1])
        slots = torch.cat((torch.arange(count), torch.full_like(views.tile_rows, slot)))
        kept = replace(views, slots=slots, windows=torch.cat((windows, views.windows[1:])))
        own = {name: getattr(self, name) for name in (*self.PER_TOKEN, "counts", "wanted", "tokens", "room")}
        fields_of_slots: dict[str, Any] = {name: None if own[name] is None else placed(own[name]) for name in own}
        fields_of_slots["view"] = placed(torch.where(self.view == 0, slot, self.view - 1 + count))
        return replace(whole, **fields_of_slots, budget=self.budget, seen=Seen(kept, seen("relevance"), seen("hidden")))

    def boxes(self) -> Tensor:
        """[I, K, 4] x0, y0, x1, y1 of each fetched token in px of its source, as it was read."""
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
        views = self.seen.views
        (made,) = self.assembled(
            lambda own, indices, _, levels: [make(context_of(views, context, own), indices, levels)]
        )
        return made

    def assembled(self, make: Callable[[Tensor, Tensor, Tensor, Tensor | None], Sequence[Tensor]]) -> list[Tensor]:
        """Tensors [I, K, ...] of all fetched tokens, made for some views at a time; 0 on entries that fill a row.

        `make` gets numbers of views [n], the indices of their tokens [n, k], bool [n, k], False on padding, and their
        levels or None; it returns tensors [n, k, ...].
        """
        slots, places, view, indices, levels = self._listed()
        made: list[Tensor] = []
        for numbers in view.unique().split(VIEWS_AT_ONCE):
            own = [(view == number).nonzero()[:, 0] for number in numbers]
            at, used = pad_sequence(own, True), pad_sequence([torch.ones_like(each) for each in own], True).bool()
            detail = None if levels is None else levels[at].where(used, 0)
            parts = make(numbers.cpu(), indices[at].where(used, 0), used, detail)
            made = made or [part.new_zeros(*self.indices.shape, *part.shape[2:]) for part in parts]
            entries = (slots[at[used]], places[at[used]])
            made = [whole.index_put(entries, part[used]) for whole, part in zip(made, parts, strict=True)]
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


# ---- from patches of views to tokens ------------------------------------------------------------------------------


def bridge_over_views(model: Any, encoding: ImageEncoding, fetched: JointFetch) -> Bridged:
    """`ArrCocModel.bridge_fetched` for tokens from several views.

    Each fetched token attends to the base tokens of its own view and to the tokens fetched from it. With bridges that
    place tokens, the texts of a slot's views follow one another.
    """
    views, failed = fetched.seen.views, torch.zeros_like(fetched.counts, dtype=torch.bool)
    if model.bridge.places_tokens and not encoding.bypass:

        def read(numbers: Tensor, indices: Tensor, used: Tensor, levels: Tensor | None) -> Sequence[Tensor]:
            base = _bases(model, encoding, views, numbers)
            assert base.pieces is not None, "encodings for bridges that place tokens have wordpieces"
            both = model.vision_tower.fetched_states(base, indices, used, levels)
            return *both, base.pieces.take_along_dim(indices[..., None, None], 1)

        states, projected, pieces = fetched.assembled(read)
        return model.bridge_states(
            encoding, states, projected, fetched.used, pieces=pieces, indices=fetched.indices, rank=fetched.ranks(),
            relevance=fetched.predicted_relevance(), room=fetched.room, view=fetched.view,
        )  # fmt: skip

    def bridge(numbers: Tensor, indices: Tensor, used: Tensor, levels: Tensor | None) -> Sequence[Tensor]:
        bridged = model.bridge_fetched(_bases(model, encoding, views, numbers), indices, used, levels)
        if bridged.failed is not None:
            failed[views.slots[numbers].to(failed.device)[bridged.failed]] = True
        return [part for part in (bridged.tokens, bridged.quality) if part is not None]

    tokens, *quality = fetched.assembled(bridge)
    return Bridged(tokens, quality[0] if quality else None, failed=failed)


def _bases(model: Any, encoding: ImageEncoding, views: Views, numbers: Tensor) -> ImageEncoding:
    """The states that fetched tokens of some views attend to: kept for overviews, computed for tiles."""
    if views.whole and encoding.semantic_cache and encoding.pool == 1:
        return encoding.select(numbers)
    features = views.pick(encoding.features, "features", numbers)
    pieces = None if encoding.pieces is None else views.pick(encoding.pieces, "pieces", numbers)
    mask = views.pick(encoding.patch_mask, "patch_mask", numbers)
    return model.encode_base(features, mask, encoding.bypass, pieces)
