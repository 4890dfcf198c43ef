"""The prompt: its image slots, the tokens of its images, their positions, and the tokens of its question.

Notation: B prompts, S their length (S' once trimmed), I image slots (the places of images in prompts), L question
tokens, G side of the fine grid, N = G*G patches, M = (G/4)^2 base tokens, K fetched tokens, D language-model
width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache
from transformers.configuration_utils import PretrainedConfig

from .bridges import Bridged
from .configuration_arr_coc import ArrCocConfig
from .fetcher import FetchResult
from .image_encoding import ImageEncoding
from .pretrained import CacheOutput
from .prompt_format import IMAGE_TOKEN, QUESTION_ROLE, TURN_END, TURN_START, VISION_END, VISION_START
from .scorers import SCORERS, FetchContext, depth_grids
from .views import JointFetch, Views
from .vision_tower import base_states, states_at


@dataclass
class EmbeddedPrompt:
    """Prompts as the language model reads them, and what was fetched for them."""

    embeds: Tensor  # [B, S, D]
    # [I, positions, D] the tokens of each slot: base tokens (and what the layout puts between and around them), then K
    # fetched tokens; 0 on entries that were not fetched (`FetchResult.used`) or that the bridge left empty
    # (`Bridged.source`).
    image_tokens: Tensor
    fetch: FetchResult  # the patches fetched for each image slot, and their scores
    context: FetchContext  # the scorer's inputs: features, question and masks
    # Input_ids, query_mask and the tensors aligned with them, [B, S], trimmed if placeholders were removed.
    inputs: dict[str, Tensor]
    # The arguments of `generate_tokens`, by the names in `READ`. With layouts of two-dimensional positions
    # `position_ids` are [3, B, S] (`spatial_positions`). `prompt_planes` [B, S, levels, D] are what the first layers
    # add to the embeddings (`DeepStack`), 0 on text.
    read: dict[str, Tensor]
    # Of the tokens that `read` begins with, see `behind_prefix`; None: the language model reads all.
    cache: Cache | None = None


@dataclass
class ArrCocOutput(CacheOutput):
    """Output of `ArrCocForConditionalGeneration.forward`, and without a head of `ArrCocModel.forward`.

    `loss`: answer loss plus weighted relevance loss, as far as labels and targets are given; `relevance_loss` alone;
    `logits` [B, S, vocabulary], S without the placeholders that an allocator removed, or `last_hidden_state`; `fetch`:
    the patches fetched for each image slot; `prompt`: the embedded prompts of a model without a head; `image_tokens`:
    see `EmbeddedPrompt`; `scores`: logits [I, N] of each trained scorer by name, if `FetchChoices.all_scores` is set.
    Fields about images are None without them.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    cache: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    relevance_loss: Tensor | None = None
    fetch: FetchResult | None = None
    prompt: EmbeddedPrompt | None = None
    image_tokens: Tensor | None = None
    scores: dict[str, Tensor] | None = None


READ = ("input_ids", "attention_mask", "position_ids", "prompt_embeds", "prompt_planes")
"""The arguments of `generate_tokens` that an embedded prompt holds."""


def find_slots(
    input_ids: Tensor, image_token_id: int, slots: int, base: int, *, budget: int | None = None
) -> tuple[Tensor, int]:
    """The prompt of each image slot [I], and K, from the placeholders alone.

    Args:
        input_ids: [B, S], with placeholders `image_token_id`.
        slots: I, the number of images.
        base: positions of an image without fetched tokens.
        budget: K if it is known; then no value of `input_ids` is read, so the function can be compiled.

    Raises:
        ValueError: the placeholders are not `slots` equal groups of at least `base`. Not checked with `budget`.
    """
    per_row = (input_ids == image_token_id).sum(1)
    if budget is None:
        total = int(per_row.sum())
        size = total // max(1, slots)  # 0: nothing shows an image
        if slots == 0 or size == 0 or total % slots or size < base or bool((per_row % size).any()):
            expected = f"{slots} images of {base} base tokens and equally many fetched tokens each"
            received = f"{per_row.tolist()} placeholders per prompt"
            raise ValueError(f"image placeholders: expected {expected}; got {received}")
    else:
        size = base + budget
    first = torch.arange(slots, device=input_ids.device) * size  # a slot's first placeholder among those of all prompts
    return torch.searchsorted(per_row.cumsum(0), first, right=True), size - base


def trim_placeholders(
    input_ids: Tensor,
    counts: Tensor,
    *,
    image_token_id: int,
    base_positions: int,
    pad_token_id: int = 0,
    **aligned: Tensor | None,
) -> dict[str, Tensor]:
    """Removes surplus placeholders: the returned prompts have room for `counts` fetched tokens per image.

    The rows are padded to the longest of them, on the side that was padded before (left if none was). The positions of
    base tokens always stay.

    Args:
        input_ids: [B, S] with equally many placeholders for each of I image slots.
        counts: [I] fetched tokens to keep of each slot, 0 to K.
        image_token_id: the placeholder.
        base_positions: positions of an image without fetched tokens.
        pad_token_id: the id of padding in `input_ids`.
        **aligned: tensors [B, S] aligned with `input_ids`: attention_mask (default: all ones), labels, query_mask and
            others (0 on padding). position_ids continue without a gap. None is left out.

    Returns:
        input_ids, attention_mask and the tensors of `aligned`, by name, each [B, S'].

    Raises:
        ValueError: placeholders that are not those of I images, a count outside 0..K, or a shape other than [B, S].
    """
    tensors = {name: tensor for name, tensor in aligned.items() if tensor is not None}
    for name, tensor in tensors.items():
        if tensor.shape != input_ids.shape:
            expected = f"shape {list(input_ids.shape)}, that of input_ids"
            raise ValueError(f"{name}: expected {expected}; got {list(tensor.shape)}")
    _, most = find_slots(input_ids, image_token_id, len(counts), base_positions)
    if int(counts.min()) < 0 or int(counts.max()) > most:
        raise ValueError(f"counts: expected 0 to {most} fetched tokens per image; got {counts.tolist()}")
    placeholder = input_ids == image_token_id
    number = (placeholder.flatten().cumsum(0) - 1).view_as(input_ids)  # placeholders of all prompts, in order
    size = base_positions + most
    allowed = base_positions + counts.to(input_ids.device)[(number // size).clamp(0, len(counts) - 1)]
    surplus = placeholder & (number % size >= allowed)
    mask = tensors.setdefault("attention_mask", torch.ones_like(input_ids)) != 0
    inside = (mask.cumsum(1) > 0) & (mask.flip(1).cumsum(1).flip(1) > 0)  # from the first token of a row to its last
    left = bool(inside[:, -1].all())
    if "position_ids" in tensors:
        tensors["position_ids"] = tensors["position_ids"] - surplus.cumsum(1)
    stays = (inside | placeholder) & ~surplus
    longest = int(stays.sum(1).max())
    order = (stays if left else ~stays).int().sort(dim=1, stable=True).indices
    order = order[:, -longest:] if left else order[:, :longest]
    padding, fill = ~stays.gather(1, order), {"input_ids": pad_token_id, "labels": -100}
    tensors = {"input_ids": input_ids, **tensors}
    packed = {name: tensor.gather(1, order) for name, tensor in tensors.items()}
    return {name: tensor.masked_fill(padding, fill.get(name, 0)) for name, tensor in packed.items()}


def in_columns(states: Tensor, columns: Tensor, length: int) -> Tensor:
    """States [B, S', D] of shortened prompts -> [B, length, D], where a removed column has the state before it.
    `columns`: [B, S'] those of the tokens that stayed, from 1; 0 on padding. `length`: of the prompts before."""
    numbers = torch.arange(columns.shape[1], device=columns.device).expand_as(columns)
    place = columns.new_zeros(len(columns), length + 1).scatter(1, columns, numbers)
    place[:, 0] = 0
    return states.take_along_dim(place.cummax(1).values[:, 1:, None], 1)


def hide_placeholders(
    placed: Tensor,
    input_ids: Tensor,
    *,
    image_token_id: int,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    **aligned: Tensor,
) -> dict[str, Tensor]:
    """`trim_placeholders` for compiled graphs: surplus placeholders stay, and no token attends to them.

    `placed`: bool [I, positions], False on the positions to hide. Tensors `aligned` [B, S] do not change; position_ids
    skip hidden positions.
    """
    placeholder = input_ids == image_token_id
    hidden = torch.zeros_like(placeholder).masked_scatter(placeholder, ~placed)
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    mask = mask.masked_fill(hidden, 0)
    place = positions(mask) if position_ids is None else position_ids - hidden.cumsum(1)
    return {"input_ids": input_ids, "attention_mask": mask, "position_ids": place, **aligned}


def positions(attention_mask: Tensor) -> Tensor:
    """[B, S] int64: each token's position in its prompt without padding; padding has that of the nearest token."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


# ---- the language model's cache of the prompt before the question ---------------------------------------------------


def keeps_every_position(cache: Cache) -> bool:
    """Whether a cache keeps the keys and values of all positions, as that of full attention does."""
    return all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)


def behind_prefix(
    config: PretrainedConfig, encoding: ImageEncoding, inputs: dict[str, Tensor], rows: Tensor
) -> tuple[dict[str, Tensor], DynamicCache | None]:
    """Prompts about the encoded images `rows` [B], and the language model's cache of the prefix that they begin with.

    [pad][prefix][rest] becomes [prefix][pad][rest], so that one cached prefix fits prompts of any length. It is that of
    `ImageEncoding.page_cache` for prompts that go on with all words of the page. Prompts that begin with something else
    do not change, and have no cache.

    `config`: the language model's; `inputs`: of left-padded prompts: input_ids and attention_mask [B, S], and others.
    """
    prefix, input_ids = encoding.prefix_ids, inputs["input_ids"]
    if prefix is None or encoding.prefix_cache is None:
        return inputs, None
    pads = (inputs["attention_mask"] == 0).sum(1)
    at = pads[:, None] + torch.arange(len(prefix), device=input_ids.device)
    if int(at.max()) >= input_ids.shape[1] or not (input_ids.gather(1, at) == prefix.to(input_ids.device)).all():
        return inputs, None
    layers, length = encoding.prefix_cache, len(prefix)
    if encoding.page_cache is not None and "prompt_embeds" in inputs:
        words, longer = encoding.page_cache
        behind = at[:, -1:] + 1 + torch.arange(len(words), device=at.device)
        if int(behind.max()) + 1 < input_ids.shape[1]:
            read = inputs["prompt_embeds"].take_along_dim(behind[..., None].to(words.device), 1)
            if (read == words).all():
                layers, length = longer, length + len(words)
    cache = DynamicCache(config=config)
    for layer, (key, value) in enumerate(layers):
        own = rows.to(key.device)
        cache.update(key[own], value[own], layer)

    return {
        # [3, B, S]: time, row, column
        name: torch.stack([_pads_behind(axis, pads, length) for axis in values])
        if name == "position_ids" and values.ndim == 3
        else _pads_behind(values, pads, length)
        for name, values in inputs.items()
    }, cache


def _pads_behind(values: Tensor, pads: Tensor, length: int) -> Tensor:
    """[pad][`length`][rest] -> [`length`][pad][rest], values [B, S, ...]."""
    moved = []
    for row, pad in zip(values, pads.tolist(), strict=True):
        padding, part, rest = row.split((pad, length, len(row) - pad - length))
        moved.append(torch.cat((part, padding, rest)))
    return torch.stack(moved)


# ---- from patches of views to tokens ------------------------------------------------------------------------------


def bridge_states(model: Any, encoding: ImageEncoding, fetched: FetchResult, used: Tensor | None) -> Bridged:
    """Fetched patches -> tokens for the language model, by a bridge from states.

    Each token attends to the base tokens of its own view and to the tokens fetched from it. `used` [I, K]: False on
    entries that only fill the rectangle: no token attends to them; None: all are used.
    """

    def bridge(of: ImageEncoding, indices: Tensor, used: Tensor | None, levels: Tensor | None) -> Bridged:
        states, projected = model.vision_tower.fetched_states(of, indices, used, levels)
        bridged: Bridged = model.bridge(states, projected, base=of.bridge_cache or [], bypass=of.bypass, used=used)
        return bridged

    if not isinstance(fetched, JointFetch):
        return bridge(encoding, fetched.indices, used, fetched.levels)
    views, failed = fetched.seen.views, torch.zeros_like(fetched.counts, dtype=torch.bool)

    def bridge_views(numbers: Tensor, indices: Tensor, used: Tensor, levels: Tensor | None) -> Sequence[Tensor]:
        bridged = bridge(_bases(model, encoding, views, numbers), indices, used, levels)
        if bridged.failed is not None:
            failed[views.slots[numbers].to(failed.device)[bridged.failed]] = True
        return [bridged.tokens]

    (tokens,) = fetched.assembled(bridge_views, used)
    return Bridged(tokens, failed=failed)


def _bases(model: Any, encoding: ImageEncoding, views: Views, numbers: Tensor) -> ImageEncoding:
    """The states that fetched tokens of some views attend to: kept for overviews, computed for tiles."""
    if views.whole and encoding.semantic_cache and encoding.pool == 1:
        return encoding.select(numbers)
    features, mask = (views.pick(getattr(encoding, name), name, numbers) for name in ("features", "patch_mask"))
    unread = {"textures": features[:, :0], "seeds": mask.new_zeros(len(features), dtype=torch.int64)}
    bases: ImageEncoding = model.encode_image(None, mask, features=features, **unread, bypass=encoding.bypass)
    return bases


# ---- positions and planes, beside embeddings ------------------------------------------------------------------------


def positions_and_planes(
    core: Any,
    input_ids: Tensor,
    encoding: ImageEncoding,
    fetched: FetchResult | None = None,
    context: FetchContext | None = None,
    *,
    placed: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """`position_ids` and `prompt_planes` (`EmbeddedPrompt.read`) of prompts [B, S]; None for models without them.

    `encoding`: the image of each slot; `fetched`: from `image_tokens`, None: the prompts hold base tokens alone;
    `context`: the inputs of its scorer; `placed`, `attention_mask`: see `spatial_positions`.
    """
    image_token, places, planes = core.config.image_token_id, None, None
    if core.layout.spatial:
        places = spatial_positions(
            input_ids, image_places(encoding, fetched), image_token_id=image_token, side=encoding.side,
            placed=placed, attention_mask=attention_mask,
        )  # fmt: skip
    if core.deepstack is not None:
        added = image_planes(core, encoding, fetched, context)
        flat = (added if placed is None else added[placed]).to(input_ids.device)
        planes = flat.new_zeros(*input_ids.shape, *added.shape[2:])
        planes = planes.masked_scatter((input_ids == image_token)[..., None, None], flat)
    return places, planes


def image_places(encoding: ImageEncoding, fetched: FetchResult | None = None) -> Tensor:
    """[I, positions, 2] float32: (y, x) of each image's tokens in patches of the fine grid, for spatial layouts.
    `fetched` comes from `image_tokens`; None: base tokens alone."""
    places = encoding.centres()[:, : encoding.tokens.shape[1]]
    if fetched is None or not fetched.budget:
        return places
    centres = fetched.centres()
    if fetched.source is not None:
        centres = centres.take_along_dim(fetched.source.clamp(min=0)[..., None], 1)
    return torch.cat((places, centres.to(places.device)), 1)


def image_planes(
    core: Any, encoding: ImageEncoding, fetched: FetchResult | None = None, context: FetchContext | None = None
) -> Tensor:
    """[I, positions, 3, D]: the states that the language model's first layers add to each image's tokens (`DeepStack`).

    A fetched token gets the depths whose score is at least the mean of its three. The arguments are those of
    `positions_and_planes`.
    """
    assert core.deepstack is not None
    grids, tokens = depth_grids(encoding), encoding.tokens.shape[1]
    base = core.deepstack([base_states(grid, encoding.base_indices, encoding.pool) for grid in grids])
    planes = base.new_zeros(len(base), tokens, *base.shape[2:])
    if tokens:
        planes = planes.index_copy(1, core.layout.base_places(base.shape[1]).to(base.device), base)
    if fetched is not None and context is not None and fetched.budget:
        planes = torch.cat((planes, _fetched_planes(core, context, fetched).to(planes.device)), 1)
    if encoding.closing is not None:
        planes = torch.cat((planes, base.new_zeros(len(base), encoding.closing.shape[1], *base.shape[2:])), 1)
    return planes


def _fetched_planes(core: Any, context: FetchContext, fetched: FetchResult) -> Tensor:
    """[I, K, 3, D]: the planes of fetched tokens, see `image_planes`."""
    scorer = core.fetcher.scorer(fetched.strategy) if fetched.strategy in SCORERS else None  # none for "given" patches
    stack = core.deepstack
    assert stack is not None

    def planes_of(view_context: FetchContext, indices: Tensor, levels: Tensor | None) -> Tensor:
        planes: Tensor = stack([states_at(grid, indices, levels) for grid in depth_grids(view_context)])
        maps = None if scorer is None else scorer.depth_maps(view_context)
        if maps is None:
            return planes
        share = states_at(maps.unflatten(2, (view_context.side, view_context.side)), indices, levels)  # [I, K, 3]
        unchosen = share < share.mean(-1, keepdim=True)  # NaN chooses every depth
        return planes.masked_fill(unchosen[..., None].to(planes.device), 0.0)

    planes = fetched.of_patches(planes_of, context)
    if fetched.weights is not None:
        planes = planes * fetched.weights[..., None, None].to(planes)
    if fetched.source is not None:
        planes = planes.take_along_dim(fetched.source.clamp(min=0)[..., None, None], 1)
    return planes


def spatial_positions(
    input_ids: Tensor,
    places: Tensor,
    *,
    image_token_id: int,
    side: int,
    placed: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """[3, B, S] float32: time, row and column of each token, as Qwen3-VL's `get_rope_index` counts them.

    Text advances along all three. An image starts at s, the end of the text before it: its token at (y, x) has
    (s, s + y, s + x), and the text behind it continues at s + G, whatever the number of tokens.

    Args:
        input_ids: [B, S].
        places: [I, positions, 2] (y, x) of each slot's tokens, in patches of the fine grid; may be fractions.
        image_token_id: the placeholder.
        side: G.
        placed: bool [I, positions], True on tokens that go into the prompt; None: all.
        attention_mask: [B, S], 0 on padding; None or another shape: there is no padding.
    """
    placeholder = input_ids == image_token_id
    shown = places.new_ones(places.shape[:2], dtype=torch.bool) if placed is None else placed.to(places.device)
    last = shown & (shown.flip(1).cumsum(1).flip(1) == 1)
    marked = torch.cat((last[..., None] * float(side), places.float()), -1).to(input_ids.device)
    marked = marked if placed is None else marked[placed.to(marked.device)]
    steps = torch.zeros(*input_ids.shape, 3, device=input_ids.device).masked_scatter(placeholder[..., None], marked)
    real = torch.ones_like(input_ids) if attention_mask is None or attention_mask.ndim != 2 else attention_mask
    advance = torch.where(placeholder, steps[..., 0], real[:, -input_ids.shape[1] :].float())
    start = advance.cumsum(1) - advance
    return torch.stack((start, start + steps[..., 1], start + steps[..., 2]))


def deepstack_arguments(planes: Tensor | None) -> dict[str, Any]:
    """Arguments of Qwen3-VL's text model for planes [B, S, levels, D]; the mask covers all tokens: text has zeros."""
    if planes is None:
        return {}
    everywhere = planes.new_ones(planes.shape[:2], dtype=torch.bool)
    return {"visual_pos_masks": everywhere, "deepstack_visual_embeds": [*planes.flatten(0, 1).unbind(1)]}


# ---- the question's tokens ------------------------------------------------------------------------------------------


def find_query_tokens(
    input_ids: Tensor,
    *,
    start_id: int | None,
    end_id: int | None,
    role_ids: Sequence[int],
    newline_ids: Sequence[int],
    ignored_ids: Sequence[int],
) -> Tensor:
    """The mask of the question that decides what is fetched.

    In a chat it covers the tokens between `<|im_start|>user\\n` and `<|im_end|>` of the last user turn with text. In a
    row without any `<|im_start|>` it covers all tokens. `ignored_ids` (vision, padding, all special tokens) are never
    part of it. Nothing is copied from the device.

    Args:
        input_ids: int64 [B, L], as the result, which is bool.
        start_id, end_id: ids of `<|im_start|>` and `<|im_end|>`; None if the tokenizer has none.
        role_ids, newline_ids: the ids of "user" and of its newline. A newline in one token with the question's first
            characters counts as question.
        ignored_ids: ids of special tokens.
    """
    ignored = torch.isin(input_ids, torch.tensor(list(ignored_ids), dtype=input_ids.dtype, device=input_ids.device))
    if start_id is None or end_id is None:
        return ~ignored
    length = input_ids.shape[1]
    position = torch.arange(length, device=input_ids.device).expand_as(input_ids)
    starts = input_ids == start_id
    last_start = torch.where(starts, position, -1).cummax(dim=1).values  # [B, L]; -1 before the first turn
    last_end = torch.where(input_ids == end_id, position, -1).cummax(dim=1).values

    short, full = [start_id, *role_ids], [start_id, *role_ids, *newline_ids]
    header = torch.where(_begins_with(input_ids, short), len(short), 0)
    header = torch.where(_begins_with(input_ids, full), len(full), header)  # [B, L]; its length where one begins
    turn_header = header.gather(1, last_start.clamp(min=0))
    in_question = (last_start >= 0) & (turn_header > 0)
    in_question &= (position >= last_start + turn_header) & (last_end < last_start) & ~ignored
    last_question = torch.where(in_question, last_start, -1).amax(dim=1, keepdim=True)
    no_chat = ~starts.any(dim=1, keepdim=True)
    return (in_question & (last_start == last_question)) | (no_chat & ~ignored)


def _begins_with(input_ids: Tensor, pattern: Sequence[int]) -> Tensor:
    """bool [B, L]: True at each position where `pattern` begins."""
    begins = torch.ones_like(input_ids, dtype=torch.bool)
    for offset, token in enumerate(pattern):
        hit = torch.zeros_like(begins)
        hit[:, : max(0, input_ids.shape[1] - offset)] = input_ids[:, offset:] == token
        begins &= hit
    return begins


def query_markers(tokenizer: Any, image_token: str = IMAGE_TOKEN) -> dict[str, Any]:
    """The keyword arguments of `find_query_tokens` for a tokenizer; plain numbers, for a config."""
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    special.update(tokenizer.all_special_ids)
    named = [token_id(tokenizer, token) for token in (image_token, VISION_START, VISION_END, TURN_START, TURN_END)]
    special.update(index for index in named if index is not None)
    return {
        "start_id": token_id(tokenizer, TURN_START),
        "end_id": token_id(tokenizer, TURN_END),
        "role_ids": tokenizer.encode(QUESTION_ROLE, add_special_tokens=False),
        "newline_ids": tokenizer.encode("\n", add_special_tokens=False),
        "ignored_ids": sorted(special),
    }


def token_id(tokenizer: Any, token: str) -> int | None:
    """The id of `token`, or None if the tokenizer splits it."""
    ids = tokenizer.encode(token, add_special_tokens=False)
    whole = len(ids) == 1 and tokenizer.convert_ids_to_tokens(ids[0]) == token
    return ids[0] if whole else None


def refuse_placeholders(input_ids: Tensor, image_token_id: int, cache: Cache | None = None) -> None:
    """Raises a ValueError if prompts [B, S] without images hold placeholders. Skipped when the `cache` holds tokens."""
    if torch.compiler.is_compiling() or (cache is not None and cache.get_seq_length() > 0):
        return
    count = int((input_ids == image_token_id).sum())
    if count:
        raise ValueError(f"image placeholders: expected images for them; got {count} placeholders and no pixel_values")


def default_query_mask(
    input_ids: Tensor,
    image_token_id: int,
    attention_mask: Tensor | None = None,
    labels: Tensor | None = None,
    question: Tensor | None = None,
) -> Tensor:
    """[B, S], True on the text of the prompt: not on placeholders, padding or (with labels) answers.

    If chat markers give the `question` [B, S] (see `ArrCocConfig.query_markers`), it is True on that alone. Labels that
    cover the whole question, because every token is learned, are ignored then.
    """
    mask = input_ids != image_token_id
    if question is not None:
        mask = mask & question
    if attention_mask is not None and attention_mask.ndim == 2:
        mask = mask & attention_mask[:, -input_ids.shape[1] :].bool()
    if labels is None:
        return mask
    unlearned = mask & (labels == -100)
    return unlearned if question is None else torch.where(unlearned.any(1, keepdim=True), unlearned, mask)


def whole_query_mask(
    config: ArrCocConfig, input_ids: Tensor, query_mask: Tensor | None, aligned: Mapping[str, Tensor | None]
) -> Tensor:
    """`query_mask` if it covers the prompts [B, S], else what `config.query_markers` find, or `default_query_mask`. A
    mask [B, S'] covers only the prompts to which a trainer has added answers. `check_inputs` refuses any other."""
    markers = config.query_markers
    if isinstance(query_mask, Tensor) and query_mask.ndim == 2 and markers is not None:
        lacks_answers = len(query_mask) == len(input_ids) and query_mask.shape[1] < input_ids.shape[1]
        query_mask = None if lacks_answers else query_mask
    if query_mask is not None:
        return query_mask
    question = None if markers is None else find_query_tokens(input_ids, **markers)
    return default_query_mask(
        input_ids, config.image_token_id, aligned.get("attention_mask"), aligned.get("labels"), question
    )
