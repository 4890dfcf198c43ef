"""What prompts begin with: the tokens that a language model has read of an image before a question came.

Notation: B prompts, S their length, p tokens of the prefix.
"""

import torch
from torch import Tensor


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
