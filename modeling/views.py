"""The views that a question fetches from, its image slots, and what was fetched.

Notation: B prompts, S their length, I image slots, V views (the overviews of all slots, then their tiles), R tiles of
an encoding, G side of the fine grid, N = G*G patches, M base tokens, K fetched tokens (the largest number of any slot),
D language-model width. Windows are x0, y0, x1, y1 in px of the source, ends exclusive; positions are (y, x), row-major.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .bridges import FOREMOST
from .budgets import VIEWS_AT_ONCE, Window
from .checks import is_one
from .fetcher import FetchResult, GroupFetch, PatchesOf
from .grid_encoder import spread_regions
from .image_encoding import ImageEncoding, Tiles, Tiling
from .image_processing_arr_coc import Box, boxes_to_patches, square_of
from .prompt_format import NOT_ON_THE_PAGE
from .scorers import FetchContext


@dataclass(frozen=True)
class Views:
    """The views that each image slot of a question fetches from: the overview of each slot, then the tiles."""

    slots: Tensor  # [V] int64, the slot of each view
    windows: Tensor  # [V, 4] float32, the square of each view in px of its source; parts may lie outside the source
    tile_rows: Tensor  # [V - I] int64, the row of each tile among `tiles`
    tiles: Tiles | None  # those of the encoding, or None without tiles
    spread: str  # see `ViewOptions`

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

    def context_of(self, context: FetchContext, numbers: Tensor) -> FetchContext:
        """The scorer's inputs for the views `numbers` [n]; `context` is that of the overviews [I]."""
        of_slots = context.select(self.slots[numbers])
        picked: dict[str, Any] = {}
        for name in ("features", "textures", "patch_mask", "seeds", "depths", "pieces"):
            overviews = getattr(context, name)  # depths and pieces were not kept in encodings of earlier versions
            known = overviews is not None and (self.tiles is None or getattr(self.tiles, name) is not None)
            picked[name] = self.pick(overviews, name, numbers) if known else None
        seeds = picked["seeds"]
        tile = (numbers >= self.overviews).to(seeds.device)
        picked["seeds"] = torch.where(tile, (seeds * 1_000_003 + of_slots.seeds) % 2**31, seeds)
        picked["relevance"] = None if context.relevance is None else context.relevance[numbers]
        # The language model has not read tiles; scorers that need its attention raise an error.
        return replace(of_slots, **picked, attention=of_slots.attention if self.whole else None)

    def seen_before(self, evidence: Tensor, side: int) -> Tensor:
        """[V, N] bool: patches whose centre is in an earlier view of the same source. Tiles come before overviews,
        which are coarser; of tiles, those with more `evidence` [V], ties by number."""
        count, first = len(self.slots), self.overviews
        ranks = evidence.clone()
        ranks[:first] = float("-inf")
        order = ranks.sort(descending=True, stable=True).indices
        place = torch.empty_like(order)
        place[order] = torch.arange(count)
        centres, hidden = self.centres(side), torch.zeros(count, side * side, dtype=torch.bool)
        for view in range(first, count):
            later = ((self.slots == self.slots[view]) & (place > place[view])).nonzero()[:, 0]
            hidden[later] |= _within(centres[later], self.windows[view].tolist())
        return hidden

    def by_slot(
        self,
        groups: Sequence[GroupFetch],
        scores: Tensor,
        relevance: Tensor,
        hidden: Tensor,
        *,
        mask: Tensor,
        begun: Tensor | None,
        failed: Tensor,
    ) -> "JointFetch":
        """The result for each slot, from those of groups of slots over their views.

        `scores`, `relevance`, `hidden`, `mask`, `begun`: [V, N] of all views, see `RunningBackFetcher.choose`;
        `failed`: [V] bool, where a simpler scorer replaced the strategy's.
        """
        slots, patches = self.slots, scores.shape[1]
        parts: dict[int, dict[str, Tensor]] = {}
        rooms: dict[int, int] = {}
        ranks = [fetched.ranks()[0] for _, _, fetched in groups]
        for (group, numbers, fetched), rank in zip(groups, ranks, strict=True):
            flat = fetched.indices[0, : int(fetched.counts[0])]
            rows = {"view": numbers.to(flat.device)[flat // patches], "indices": flat % patches}
            rows["order"] = rank[: len(flat)]
            for name in ("weights", "levels"):
                if (row := getattr(fetched, name)) is not None:
                    rows[name] = row[0, : len(flat)]
            wanted: list[int] = []
            for slot in group:
                own = slots.to(flat.device)[rows["view"]] == slot
                part = parts[slot] = {name: row[own] for name, row in rows.items()}
                if begun is not None:
                    twice = 1 + (part["order"] < FOREMOST).long()
                    wanted.append(int((begun[part["view"], part["indices"]] * twice).sum()))
            if fetched.room is not None:
                rooms.update(zip(group, _shared(int(fetched.room[0]), wanted), strict=True))
        count = len(slots) - len(self.tile_rows)
        counts = torch.tensor([len(parts[slot]["view"]) for slot in range(count)], device=scores.device)
        room = torch.tensor([rooms[slot] for slot in range(count)], device=scores.device) if rooms else None
        budget = int((counts if room is None else torch.maximum(counts, room)).max())
        whole = dict[str, Any]()
        for name in parts[0]:
            own_rows = [parts[slot][name] for slot in range(count)]
            whole[name] = pad_sequence([F.pad(row, (0, budget - len(row))) for row in own_rows], True)
        used = torch.arange(budget, device=counts.device) < counts[:, None]
        whole["order"] = whole["order"].masked_fill(~used, budget)
        first = groups[0][2]
        return JointFetch(
            **whole,
            scores=scores[:count],
            relevance=relevance[:count],
            is_padding=~mask[whole["view"], whole["indices"]] & used,
            budget=budget,
            strategy=first.strategy,
            allocator=first.allocator,
            counts=counts,
            wanted=counts,
            tokens=counts,
            fell_back=failed[:count],
            bypassed=torch.zeros_like(counts, dtype=torch.bool),
            is_ragged=bool((counts < budget).any()),
            room=room,
            seen=Seen(self, relevance, hidden),
        )


def arrange(
    encoding: ImageEncoding, image_index: Tensor, rows: Sequence[Sequence[int]] | None, spread: str = "joint"
) -> Views:
    """The views of slots that show the images `image_index` [I] of an encoding. `rows`: the tiles of each slot, if a
    question chooses them; None: all tiles of its source."""
    tiles, shown = encoding.tiles, image_index.tolist()
    if rows is None:
        sources = [] if tiles is None else tiles.sources.tolist()
        rows = [[row for row, source in enumerate(sources) if source == number] for number in shown]
    slots = [*range(len(shown)), *(slot for slot, own in enumerate(rows) for _ in own)]
    flat = [row for own in rows for row in own]
    side = encoding.features.shape[-1]
    sizes = encoding.source_sizes or [(side, side)] * len(encoding.features)
    if encoding.sources is not None:  # turned upright
        sizes = [(source.height, source.width) for source in encoding.sources]
    windows: list[Any] = [(0, 0, sizes[number][1], sizes[number][0]) for number in shown]
    if tiles is not None:
        windows += [tuple(tiles.windows[row].tolist()) for row in flat]
    squares = torch.tensor([square_of(window) for window in windows])
    return Views(torch.tensor(slots), squares, torch.tensor(flat, dtype=torch.int64), tiles, spread)


def _ask_tiles(encoding: ImageEncoding, shown: Sequence[Sequence[int]], relevance: Tensor) -> list[list[int]]:
    """The tiles that questions ask for, encoded if they were not yet: rows of `encoding.tiles` for each slot. `shown`:
    the sources that each prompt shows; `relevance`: [I, N] of their overviews, 0 on padding."""
    tiling = encoding.tiling
    assert tiling is not None, "the encoding has tiles on demand"
    keys: list[list[tuple[int, Window]]] = []
    for sources in shown:
        keys += _most_relevant(encoding, tiling, sources, relevance[len(keys) : len(keys) + len(sources)])
    with tiling.turns.lock:
        missing = list(dict.fromkeys(key for own in keys for key in own if key not in tiling.rows))
        if missing:
            tiles = tiling.encode(missing)
            tiling.tiles = tiles if tiling.tiles is None else tiling.tiles.join(tiles)
            tiling.rows.update({key: len(tiling.rows) + number for number, key in enumerate(missing)})
        encoding.tiles = tiling.tiles
    return [[tiling.rows[key] for key in own] for own in keys]


def _most_relevant(
    encoding: ImageEncoding, tiling: Tiling, sources: Sequence[int], relevance: Tensor
) -> list[list[tuple[int, Window]]]:
    """The tiles that one question asks for of each source, in reading order, at most `asked_tiles` of all sources.

    Each step takes the window with the most `relevance` [sources, N] outside earlier windows, as long as it holds
    `asked_share` of all relevance.
    """
    remaining, inside = relevance.detach().float().cpu().clone(), []
    least = tiling.asked_share * float(remaining.sum())
    centres = arrange(encoding, torch.tensor(sources), [[] for _ in sources]).centres(encoding.side)
    for slot, number in enumerate(sources):
        for window in tiling.windows[number]:
            inside.append((slot, (number, window), _within(centres[slot], window)))
    taken: list[int] = []
    for _ in range(min(tiling.asked_tiles, len(inside))):
        held = [
            -1.0 if at in taken else float(remaining[slot][within].sum()) for at, (slot, _, within) in enumerate(inside)
        ]
        if taken and max(held) < least:
            break
        taken.append(held.index(max(held)))
        slot, _, within = inside[taken[-1]]
        remaining[slot][within] = 0.0
    return [[inside[at][1] for at in sorted(taken) if inside[at][0] == slot] for slot in range(len(sources))]


def _within(centres: Tensor, window: Sequence[float]) -> Tensor:
    """[..., N] bool: whether the `centres` [..., N, 2] (x, y) of patches are in a window of the source."""
    (x, y), (x0, y0, x1, y1) = centres.unbind(-1), window
    return (x >= x0) & (x < x1) & (y >= y0) & (y < y1)


@dataclass
class SelectedSlots:
    """The first step of a question: its image slots and the inputs of the scorers."""

    input_ids: Tensor  # [B, S], with placeholders for every image token
    query_mask: Tensor  # bool [B, S], True on the question
    embeds: Tensor  # [B, S, D] of the text; those of placeholders have no meaning
    encoding: ImageEncoding  # the image of each slot
    rows: Tensor  # [I] the prompt of each slot
    budget: int  # K, the number of placeholders for fetched tokens
    context: FetchContext  # the inputs of the scorers for each slot
    taken: Tensor | None  # [I, M] patches that are base tokens already and must not be fetched again, or None
    attention_mask: Tensor | None = None  # [B, S]; None: no padding
    # The encoded images with the language model's prefill of their base tokens, or None; image_index: [I] the number of
    # the image in each slot.
    prefix: ImageEncoding | None = None
    image_index: Tensor | None = None
    # The views that each slot fetches from: its overview, the grid of `encoding`, and tiles; None: only the overview.
    views: Views | None = None


def select_views(
    core: Any,
    selected: SelectedSlots,
    encoding: ImageEncoding,
    strategy: str | None,
    *,
    spread: str = "joint",
    boxes: Sequence[Sequence[Box]] | None = None,
) -> SelectedSlots:
    """Extends slots of overviews to all views; encodes tiles that the question asks for.

    Args:
        core: an `ArrCocModel`.
        encoding: of the sources, before slots were selected.
        strategy: the scorer that asks for tiles; None: as configured.
        spread: see `ViewOptions`.
        boxes: of each slot, for strategy "oracle", px of the source.
    """
    index = torch.arange(len(encoding.features)) if selected.image_index is None else selected.image_index.cpu()
    rows: list[list[int]] | None = None
    if encoding.tiling is not None:
        rows = [[] for _ in index]
        if selected.budget:
            counts = selected.rows.bincount(minlength=len(selected.input_ids)).tolist()
            shown = [sources.tolist() for sources in index.split(counts)]  # by each prompt
            scores = core.fetcher.scorer(strategy or core.config.fetcher_config.strategy)(selected.context)
            rows = _ask_tiles(encoding, shown, scores.sigmoid().masked_fill(~selected.context.patch_mask, 0.0))
    views = arrange(encoding, index, rows, spread)
    if boxes is None:
        return replace(selected, views=views)
    relevance = []  # [V, N]: 1 on the patches of each view under the boxes of its slot
    for slot, (x0, y0, x1, _) in zip(views.slots.tolist(), views.windows.tolist(), strict=True):
        unit = encoding.side / (x1 - x0)  # patches per px
        mapped = [((a - x0) * unit, (b - y0) * unit, (c - x0) * unit, (d - y0) * unit) for a, b, c, d in boxes[slot]]
        relevance.append(torch.from_numpy(boxes_to_patches(mapped, encoding.side, 1)).flatten())
    device = selected.context.features.device
    context = replace(selected.context, relevance=torch.stack(relevance).float().to(device))
    return replace(selected, views=views, context=context)


# ---- of several views -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """The views and their relevance."""

    views: Views  # all views
    relevance: Tensor  # [V, N] float32 in 0..1, of every view's patches
    hidden: Tensor  # [V, N] bool, True on patches whose place is in an earlier view


TokensOfViews = Callable[[Tensor, Tensor, Tensor, Tensor | None], Sequence[Tensor]]
"""Numbers of views [n], indices of tokens [n, k], bool [n, k], False on padding, levels or None -> [n, k, ...] each."""


@dataclass(kw_only=True)
class JointFetch(FetchResult):
    """The fetched patches of several views; `scores` and `relevance` are those of the overviews."""

    view: Tensor  # [I, K] int64, the view of each fetched token; its `indices` and `positions` are in that view's grid
    order: Tensor  # [I, K] int64, the rank of each token by relevance, from 0, among all that share the budget
    seen: Seen = field(metadata={"shared": True})  # the views

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
        tile_rows = views.tile_rows[numbers[len(slots) :] - first]
        kept = replace(views, slots=owners, windows=views.windows[numbers], tile_rows=tile_rows)
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

    def only(self, slot: int, count: Tensor, tokens: Tensor) -> "JointFetch":
        """The fetch in which all slots but one, of `count` [1] patches and as many `tokens`, give no token."""
        at = torch.tensor([slot], device=self.counts.device)
        counts, tokens = (torch.zeros_like(self.counts).index_copy(0, at, own.to(at.device)) for own in (count, tokens))
        kept = replace(self, counts=counts, wanted=counts, tokens=tokens, source=None, room=None, is_ragged=True)
        return kept.select(torch.arange(len(counts)))

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
        return self.assembled(lambda own, at, _, levels: [make(views.context_of(context, own), at, levels)])[0]

    def pieces(self, pieces: Tensor, used: Tensor | None = None) -> Tensor:
        """As `FetchResult.pieces`, each token in its own view; `used` [I, K]: True on fetched tokens, or None."""
        pick = partial(self.seen.views.pick, pieces, "pieces")
        return self.assembled(lambda own, at, *_: [pick(own).take_along_dim(at[..., None, None], 1)], used)[0]

    def placement(self) -> dict[str, Any]:
        return {**super().placement(), "view": self.view}

    def assembled(self, make: TokensOfViews, used: Tensor | None = None) -> list[Tensor]:
        """Tensors [I, K, ...] of all fetched tokens, made for some views at a time; 0 on entries that fill a row.
        `used` [I, K]: True on fetched tokens, if it is known."""
        slots, places, view, indices, levels = self._listed(used)
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

    def _listed(self, used: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Slot, place in its row, view, index and level (or None) of each of the n fetched tokens."""
        slots, places = (self.used if used is None else used).nonzero(as_tuple=True)
        levels = None if self.levels is None else self.levels[slots, places]
        return slots, places, self.view[slots, places], self.indices[slots, places], levels


def _shared(total: int, wanted: list[int]) -> list[int]:
    """`total` tokens among slots that want some; in proportion to what they want if that is more."""
    if sum(wanted) <= total:
        return wanted
    exact = [total * each / sum(wanted) for each in wanted]
    given = [math.floor(each) for each in exact]
    for slot in sorted(range(len(wanted)), key=lambda slot: given[slot] - exact[slot])[: total - sum(given)]:
        given[slot] += 1
    return given


# ---- page by page ---------------------------------------------------------------------------------------------------

PAGES_ALONE = 3  # the most pages of a prompt that are asked one by one

GREEDILY = {"do_sample": False, "streamer": None, "num_return_sequences": 1, "num_beams": 1}
"""What is off while pages are asked one by one: only the last answer is sampled, streamed, or one of several."""


def ask_pages(
    answer_generator: Any, batch: Any, return_fetch: bool, on_fetch: Callable[[FetchResult], Any] | None
) -> list[Any]:
    """The answer to each question from the most relevant page that has one, or from all pages if none has.
    `answer_generator`: a `generation.AnswerGenerator`; `batch`: a `generation.QuestionBatch`."""
    # 1. Each page is a prompt of its own, from which patches are fetched as if it were the only one.
    core, encoding = answer_generator.model.model, batch.encoding
    setting = partial(answer_generator.setting, batch.settings)
    owners = [number for number, images in enumerate(batch.images) for _ in images]
    with_views = replace(encoding, documents=encoding.documents or [0] * len(encoding.features))
    slots = [[page] for images in batch.images for page in images]
    pages = replace(batch.part(owners), encoding=with_views, images=slots)
    selected, choices = answer_generator.select_slots(pages)
    fetch: Any = core.fetch(selected, choices)
    if on_fetch is not None:
        on_fetch(fetch)
    rows, relevance = torch.arange(len(owners)).split([*map(len, batch.images)]), fetch.most_relevant().cpu()
    ranked = [own[relevance[own].argsort(descending=True, stable=True)].tolist() for own in rows]
    prompts = core.place(selected, replace(fetch), attention_mask=selected.attention_mask)

    def read(at: list[int], settings: dict[str, Any]) -> list[tuple[int, list[Any]]]:
        """The answers from pages."""
        if not at:
            return []
        asked = pages.part(at)
        asked = replace(asked, settings={**asked.settings, **settings})
        answers = answer_generator.answers(asked, prompts, True, torch.tensor(at))
        each = len(answers) // len(at)
        return [(row, answers[number * each : (number + 1) * each]) for number, row in enumerate(at)]

    # 2. The most relevant page answers; where it has no answer, the next one.
    found = dict[int, tuple[int, list[Any]]]()
    for rank in range(PAGES_ALONE):
        next_ones = [own[rank] for number, own in enumerate(ranked) if number not in found and rank < len(own)]
        for page, (answer,) in read(next_ones, GREEDILY):
            if answer.text.casefold() not in ("", NOT_ON_THE_PAGE):
                found[owners[page]] = page, [answer]
    outputs = len(batch.images) > 1 and setting("return_dict_in_generate")  # one for all questions
    if outputs or not all(is_one(setting(name)) for name in GREEDILY):
        again = read([page for _, (page, _) in sorted(found.items())], {})
        found = {owners[page]: (page, own) for page, own in again}
    # 3. All pages together, for questions that none of these answers.
    answers = list[Any]()
    for number, images in enumerate(batch.images):
        if number in found:
            page, own = found[number]
            seen, slot = fetch.select(rows[number]), page - int(rows[number][0])
            answers += [_of_document(answer, slot, seen, encoding, images) for answer in own]
        else:
            alone = batch.part([number])
            answers += answer_generator.answers(alone, answer_generator.embed(alone, cached=True), True)
    with_details = return_fetch or setting("return_dict_in_generate")
    return answers if with_details else [answer.text for answer in answers]


def _of_document(answer: Any, slot: int, fetch: JointFetch, encoding: ImageEncoding, images: Sequence[int]) -> Any:
    """An answer about one of a prompt's `images` as one about all of them. `slot`: the number of that image among them;
    `fetch`: from each of them alone."""
    sources, places = (tuple(replace(o, source=slot) for o in own) for own in (answer.sources, answer.places))
    turned, words = tuple(encoding.turned[row] for row in images), encoding.word_sources()
    own = tuple(words[row][0] for row in images) if answer.words else ()
    seen = fetch.only(slot, answer.fetch.counts, answer.fetch.tokens)
    return replace(answer, fetch=seen, sources=sources, places=places, turned=turned, words=own)
