"""The prompt: which questions are asked of which images, where images stand in it, which of its tokens are a question.

Notation: B prompts, S their length (S' once trimmed), I image slots (places in prompts where an image stands), L
question tokens, G side of the fine grid, N = G*G patches, M = (G/4)^2 base tokens, K fetched tokens, D language-model
width.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import PreTrainedModel

from .allocators import FetchResult
from .bridges import Bridge, Bridged, DeepStack
from .configuration_arr_coc import ArrCocConfig
from .fetcher import RunningBackFetcher
from .image_encoding import ImageEncoding
from .prompt_format import Layout
from .scorers import SCORERS, FetchContext, depth_grids
from .views import Views
from .vision_tower import ArrCocVisionTower, base_states, states_at


class Core(Protocol):
    """The model without its head, `ArrCocModel`, as the steps of a question see it that stand in files of their own."""

    config: ArrCocConfig
    vision_tower: ArrCocVisionTower
    fetcher: RunningBackFetcher
    bridge: Bridge
    layout: Layout
    deepstack: DeepStack | None
    language_model: PreTrainedModel

    @property
    def input_device(self) -> torch.device: ...

    def get_input_embeddings(self) -> nn.Module: ...

    def encode_image(
        self, pixel_values: Tensor, patch_mask: Tensor | None = None, *, pool: int = 1
    ) -> ImageEncoding: ...

    def encode_base(
        self, features: Tensor, patch_mask: Tensor, bypass: bool, pieces: Tensor | None = None
    ) -> ImageEncoding: ...

    def bridge_saccades(
        self,
        encoding: ImageEncoding,
        indices: Tensor,
        used: Tensor | None = None,
        levels: Tensor | None = None,
        rank: Tensor | None = None,
        relevance: Tensor | None = None,
    ) -> Bridged: ...

    def place(self, look: "Look", fetched: FetchResult, **aligned: Tensor | None) -> "EmbeddedPrompt": ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@dataclass
class Look:
    """The first step of a question: what it sees before anything is fetched.

    Attributes:
        input_ids: [B, S], with placeholders for every image token.
        query_mask: bool [B, S], True on the question.
        embeds: [B, S, D] of the text; a placeholder's are of no meaning.
        encoding: the image of each slot.
        rows: [I] the prompt of each slot.
        budget: K, the fetched tokens that there are placeholders for.
        context: what the scorers see of each slot.
        taken: [I, M] patches that are base tokens already and must not be fetched again, or None.
        attention_mask: [B, S], or None: no padding.
        prefix: the encoded images with the language model's reading of them, or None; image_index: [I] which of them
            stands in each slot.
        views: what each slot is fetched from beside its overview, the grid of `encoding`; None: from that alone.
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


@dataclass
class EmbeddedPrompt:
    """Prompts as the language model reads them, and how their images came about.

    Attributes:
        embeds: [B, S, D].
        image_tokens: [I, positions, D] what stands in each slot: base tokens (and what the layout puts between and
            around them), then K fetched tokens; 0 on those that were not fetched (`FetchResult.used`), or that the
            bridge left empty (`Bridged.source`).
        token_quality: [I, M + K] from bridges that score tokens, else None.
        fetch: the patches fetched of each image slot, and their scores.
        context: features, question and masks that the scorer saw.
        inputs: input_ids, query_mask and what else goes with them, [B, S]: the prompt as it was, or trimmed.
        read: what `generate_tokens` takes of it all, by the names `READ`.
        positions: [3, B, S] from layouts whose tokens stand at places (`spatial_positions`), else None.
        planes: [B, S, levels, D] what the first layers add to the embeddings (`DeepStack`), 0 on text; or None.
    """

    embeds: Tensor
    image_tokens: Tensor
    token_quality: Tensor | None
    fetch: FetchResult
    context: FetchContext
    inputs: dict[str, Tensor]
    read: dict[str, Tensor]
    positions: Tensor | None = None
    planes: Tensor | None = None


READ = ("input_ids", "attention_mask", "position_ids", "prompt_embeds", "prompt_planes")
"""Names of what `generate_tokens` takes of an embedded prompt."""


def find_slots(
    input_ids: Tensor, image_token_id: int, slots: int, base: int, *, budget: int | None = None
) -> tuple[Tensor, int]:
    """Which prompt each image slot stands in [I], and K: from the placeholders alone.

    Args:
        input_ids: [B, S].
        image_token_id: the placeholder.
        slots: I, the number of images.
        base: positions that an image takes when nothing is fetched.
        budget: K, where it is known: then nothing is looked up in `input_ids`, so that a compiler can follow.

    Raises:
        ValueError: the placeholders are no `slots` images of equally many, at least `base`; not with `budget`.
    """
    per_row = (input_ids == image_token_id).sum(1)
    size = _slot_size(per_row, slots, base) if budget is None else base + budget
    first = torch.arange(slots, device=input_ids.device) * size  # a slot's first placeholder among those of all prompts
    return torch.searchsorted(per_row.cumsum(0), first, right=True), size - base


def _slot_size(per_row: Tensor, slots: int, base: int) -> int:
    """Placeholders per image slot, of prompts with `per_row` [B] of them."""
    total = int(per_row.sum())
    size = total // max(1, slots)
    if slots == 0 or total % slots or size < base or bool((per_row % max(1, size)).any()):
        raise ValueError(
            f"image placeholders: expected {slots} images of {base} base tokens and equally many fetched tokens each; "
            f"got {per_row.tolist()} placeholders per prompt"
        )
    return size


_FILL = {"labels": -100}
"""What stands on padding in tensors aligned with the prompt; 0 in all others."""


def trim_placeholders(
    input_ids: Tensor,
    counts: Tensor,
    *,
    image_token_id: int,
    base_positions: int,
    pad_token_id: int = 0,
    **aligned: Tensor | None,
) -> dict[str, Tensor]:
    """Prompts with `counts` fetched tokens per image, cut from prompts that hold placeholders for more.

    The rows are padded anew to the shortest rectangle that holds them, on the side that was padded (left where none
    was). What an image takes when nothing is fetched is never dropped.

    Args:
        input_ids: [B, S] with equally many placeholders for each of I image slots.
        counts: [I] fetched tokens to keep of each slot, 0 to K.
        image_token_id: the placeholder.
        base_positions: positions that an image takes when nothing is fetched.
        pad_token_id: what new padding is in `input_ids`.
        **aligned: tensors [B, S] that go with `input_ids`: attention_mask (absent: all ones), labels, query_mask, and
            any other (0 on padding). position_ids count on without a gap. None stays out.

    Returns:
        input_ids, attention_mask and the `aligned` that were given, by name, each [B, S'].

    Raises:
        ValueError: the placeholders are not those of I images, a count is not in 0..K, or another shape than [B, S].
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
    tensors.setdefault("attention_mask", torch.ones_like(input_ids))
    inside = _inside(tensors["attention_mask"] != 0)
    left = bool(inside[:, -1].all())
    if "position_ids" in tensors:
        tensors["position_ids"] = tensors["position_ids"] - surplus.cumsum(1)
    stays = (inside | placeholder) & ~surplus
    fill = {"input_ids": pad_token_id, **_FILL}
    tensors = {"input_ids": input_ids, **tensors}
    return {name: _pack(tensor, stays, left, fill.get(name, 0)) for name, tensor in tensors.items()}


def hide_placeholders(
    standing: Tensor,
    input_ids: Tensor,
    *,
    image_token_id: int,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    **aligned: Tensor,
) -> dict[str, Tensor]:
    """What `trim_placeholders` is for, where no shape may depend on data: placeholders stay, and none attends to them.

    Args:
        standing: bool [I, positions], False on what is to be hidden of each slot.
        input_ids: [B, S].
        image_token_id: the placeholder.
        attention_mask, position_ids: [B, S], or None.
        **aligned: other tensors [B, S], which stay as they are.

    Returns:
        All of them by name; position_ids [B, S] leave out what is hidden.
    """
    placeholder = input_ids == image_token_id
    hidden = torch.zeros_like(placeholder).masked_scatter(placeholder, ~standing)
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    mask = mask.masked_fill(hidden, 0)
    place = positions(mask) if position_ids is None else position_ids - hidden.cumsum(1)
    return {"input_ids": input_ids, "attention_mask": mask, "position_ids": place, **aligned}


def _inside(mask: Tensor) -> Tensor:
    """bool [B, S]: from the first True of each row to its last."""
    return (mask.cumsum(1) > 0) & (mask.flip(1).cumsum(1).flip(1) > 0)


def _pack(tensor: Tensor, stays: Tensor, left: bool, fill: int) -> Tensor:
    """The entries of [B, S] that stay, in order, padded with `fill` to the longest row, on the left or right."""
    longest = int(stays.sum(1).max())
    order = (stays if left else ~stays).int().sort(dim=1, stable=True).indices
    order = order[:, -longest:] if left else order[:, :longest]
    return tensor.gather(1, order).masked_fill(~stays.gather(1, order), fill)


def positions(attention_mask: Tensor) -> Tensor:
    """[B, S] int64: each token's place in its prompt, whatever the padding, of which all have the nearest token's."""
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)


# ---- what the language model reads beside embeddings ----------------------------------------------------------------


def beside_embeds(
    core: Core,
    input_ids: Tensor,
    encoding: ImageEncoding,
    fetched: FetchResult | None = None,
    context: FetchContext | None = None,
    *,
    standing: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """`EmbeddedPrompt.positions` and `EmbeddedPrompt.planes`, each None from models without them.

    Args:
        core: the model without its head.
        input_ids: [B, S].
        encoding: the image of each slot.
        fetched: from `image_tokens`; None: the prompts hold base tokens alone.
        context: what its scorer saw.
        standing, attention_mask: see `spatial_positions`.
    """
    image_token, places, planes = core.config.image_token_id, None, None
    if core.layout.spatial:
        places = spatial_positions(
            input_ids, image_places(encoding, fetched), image_token_id=image_token, side=encoding.side,
            standing=standing, attention_mask=attention_mask,
        )  # fmt: skip
    if core.deepstack is not None:
        added = image_planes(core, encoding, fetched, context)
        flat = (added if standing is None else added[standing]).to(input_ids.device)
        planes = flat.new_zeros(*input_ids.shape, *added.shape[2:])
        planes = planes.masked_scatter((input_ids == image_token)[..., None, None], flat)
    return places, planes


def image_places(encoding: ImageEncoding, fetched: FetchResult | None = None) -> Tensor:
    """[I, positions, 2] float32, (y, x) of each image's tokens in patches of the fine grid, for spatial layouts.

    `fetched` comes from `image_tokens`; None: of the base tokens alone.
    """
    places = encoding.centres()[:, : encoding.tokens.shape[1]]
    if fetched is None or not fetched.budget:
        return places
    centres = fetched.centres()
    if fetched.source is not None:
        centres = centres.take_along_dim(fetched.source.clamp(min=0)[..., None], 1)
    return torch.cat((places, centres.to(places.device)), 1)


def image_planes(
    core: Core, encoding: ImageEncoding, fetched: FetchResult | None = None, context: FetchContext | None = None
) -> Tensor:
    """[I, positions, 3, D] what the language model's first layers add to each image's tokens; see `DeepStack`.

    To a fetched token those depths are added that its scorer makes at least as much of as of the mean depth.
    Arguments as those of `beside_embeds`.
    """
    assert core.deepstack is not None
    grids, tokens = depth_grids(encoding), encoding.tokens.shape[1]
    base = core.deepstack([base_states(grid, encoding.base_indices, encoding.pool) for grid in grids])
    planes = base.new_zeros(len(base), tokens, *base.shape[2:])
    if tokens:
        planes = planes.index_copy(1, core.layout.base_places(base.shape[1]).to(base.device), base)
    if fetched is not None and context is not None and fetched.budget:
        planes = torch.cat((planes, _saccade_planes(core, context, fetched).to(planes.device)), 1)
    if encoding.closing is not None:
        planes = torch.cat((planes, base.new_zeros(len(base), encoding.closing.shape[1], *base.shape[2:])), 1)
    return planes


def _saccade_planes(core: Core, context: FetchContext, fetched: FetchResult) -> Tensor:
    """[I, K, 3, D], as `image_planes` says."""
    scorer = core.fetcher.scorer(fetched.strategy) if fetched.strategy in SCORERS else None  # not of "given" patches
    stack = core.deepstack
    assert stack is not None

    def planes_of(seen: FetchContext, indices: Tensor, levels: Tensor | None) -> Tensor:
        planes: Tensor = stack([states_at(grid, indices, levels) for grid in depth_grids(seen)])
        maps = None if scorer is None else scorer.depth_maps(seen)
        if maps is None:
            return planes
        share = states_at(maps.unflatten(2, (seen.side, seen.side)), indices, levels)  # [I, K, 3]
        unchosen = share < share.mean(-1, keepdim=True)  # where a map is no number, every depth is chosen
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
    standing: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """[3, B, S] float32: time, row and column of each token, as Qwen3-VL's `get_rope_index` counts them.

    Text counts on along all three. An image begins where the text before it ends, at s: its token at the place (y, x)
    has (s, s + y, s + x), and text goes on at s + G behind it, however many tokens it has.

    Args:
        input_ids: [B, S].
        places: [I, positions, 2] (y, x) of each slot's tokens, in patches of the fine grid; may be fractions.
        image_token_id: the placeholder.
        side: G.
        standing: bool [I, positions], True on tokens that have a place in the prompt; None: all.
        attention_mask: [B, S], 0 on padding; of another kind, or None: there is none.
    """
    placeholder = input_ids == image_token_id
    shown = places.new_ones(places.shape[:2], dtype=torch.bool) if standing is None else standing.to(places.device)
    last = shown & (shown.flip(1).cumsum(1).flip(1) == 1)
    marked = torch.cat((last[..., None] * float(side), places.float()), -1).to(input_ids.device)
    marked = marked if standing is None else marked[standing.to(marked.device)]
    steps = torch.zeros(*input_ids.shape, 3, device=input_ids.device).masked_scatter(placeholder[..., None], marked)
    real = torch.ones_like(input_ids) if attention_mask is None or attention_mask.ndim != 2 else attention_mask
    advance = torch.where(placeholder, steps[..., 0], real[:, -input_ids.shape[1] :].float())
    start = advance.cumsum(1) - advance
    return torch.stack((start, start + steps[..., 1], start + steps[..., 2]))


def deepstack_arguments(planes: Tensor | None) -> dict[str, Any]:
    """What Qwen3-VL's text model takes of planes [B, S, levels, D]: the mask is of all tokens, as text has zeros."""
    if planes is None:
        return {}
    everywhere = planes.new_ones(planes.shape[:2], dtype=torch.bool)
    return {"visual_pos_masks": everywhere, "deepstack_visual_embeds": [*planes.flatten(0, 1).unbind(1)]}


# ---- which tokens are a question ------------------------------------------------------------------------------------


def refuse_placeholders(input_ids: Tensor, image_token_id: int, cache: Cache | None = None) -> None:
    """Raises a ValueError where there are placeholders: no images came with these prompts [B, S], of which the `cache`
    holds nothing yet."""
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
    """[B, S] True on text of the prompt: not on placeholders, padding, or (where labels exist) answers.

    Where a chat shows its `question` [B, S] (see `ArrCocConfig.query_markers`), True on that alone. Labels need not
    tell it from the answer there: those that leave nothing of it, because every token is learned, say nothing.
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


def lacks_answers(query_mask: Tensor, input_ids: Tensor) -> bool:
    """Whether a mask [B, S'] is of the prompts alone, to which a trainer has since added answers: [B, S]."""
    return len(query_mask) == len(input_ids) and query_mask.shape[1] < input_ids.shape[1]
