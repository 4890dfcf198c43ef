"""Prompts on the model's side: where images stand in them, what of them is the question, what they become.

Notation: B prompts, S their length, I image slots (places in prompts where an image stands), L question tokens, M base
tokens, K saccades, D language-model width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from .fetching import FetchResult
from .realizing import FetchContext


@dataclass
class EmbeddedPrompt:
    """Prompts as the language model reads them, and how their images came about.

    Attributes:
        embeds: [B, S, D].
        image_tokens: [I, positions, D] what stands in each slot: base tokens (and what the layout puts between and
            around them), then K saccades.
        token_quality: [I, M + K] from bridges that score tokens, else None.
        fetch: what was fetched.
        context: what the scorer saw.
    """

    embeds: Tensor
    image_tokens: Tensor
    token_quality: Tensor | None
    fetch: FetchResult
    context: FetchContext


def find_slots(input_ids: Tensor, image_token_id: int, slots: int, base: int) -> tuple[Tensor, int]:
    """Which prompt each image slot stands in [I], and K: from the placeholders alone.

    Args:
        input_ids: [B, S].
        image_token_id: the placeholder.
        slots: I, the number of images.
        base: positions that an image takes when nothing is fetched.

    Raises:
        ValueError: the placeholders are no `slots` images of equally many, at least `base`.
    """
    per_row = (input_ids == image_token_id).sum(1)
    total = int(per_row.sum())
    size = total // max(1, slots)
    if slots == 0 or total % slots or size < base or bool((per_row % max(1, size)).any()):
        raise ValueError(
            f"image placeholders: expected {slots} images of {base} base tokens and equally many saccades each; "
            f"got {per_row.tolist()} placeholders per prompt"
        )
    rows = torch.arange(len(per_row), device=per_row.device).repeat_interleave(per_row // size)
    return rows, size - base


def refuse_placeholders(input_ids: Tensor, image_token_id: int) -> None:
    """Raises a ValueError where there are placeholders: no images came with these prompts [B, S]."""
    count = int((input_ids == image_token_id).sum())
    if count:
        raise ValueError(f"image placeholders: expected images for them; got {count} placeholders and no pixel_values")


def pack_questions(embeds: Tensor, query_mask: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The question of each slot, packed to the left, whatever the padding: [I, L, D] and mask [I, L].

    Args:
        embeds: [B, S, D].
        query_mask: bool [B, S].
        rows: [I] the prompt of each slot.
    """
    longest = max(1, int(query_mask.sum(1).max()))
    order = query_mask.int().sort(dim=1, descending=True, stable=True).indices[:, :longest]
    packed = embeds.gather(1, order[..., None].expand(-1, -1, embeds.shape[-1]))
    return packed[rows], query_mask.gather(1, order)[rows]


def begins_with(prefix: Tensor, input_ids: Tensor, attention_mask: Tensor) -> bool:
    """Whether every left-padded prompt [B, S] begins with the tokens `prefix` [p]."""
    pads = (attention_mask == 0).sum(1, keepdim=True)
    at = pads + torch.arange(len(prefix), device=input_ids.device)
    if int(at.max()) >= input_ids.shape[1]:
        return False
    return bool((input_ids.gather(1, at) == prefix.to(input_ids.device)).all())


def pad_after_prefix(inputs: dict[str, Tensor], prefix: int) -> dict[str, Tensor]:
    """[pad][prefix][rest] -> [prefix][pad][rest], so that one cached prefix serves prompts of any length."""
    pads = (inputs["attention_mask"] == 0).sum(1).tolist()

    def move(rows: Tensor) -> Tensor:
        return torch.stack(
            [
                torch.cat((row[pad : pad + prefix], row[:pad], row[pad + prefix :]))
                for row, pad in zip(rows, pads, strict=True)
            ]
        )

    return {name: move(tensor) for name, tensor in inputs.items()}
