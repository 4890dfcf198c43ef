"""What a perfect patch token says: which characters stand there, which field's name they belong to, and where.

Notation: P pages, I image slots, G side of the grid, K patches fetched, M base tokens, D width of the language model.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.data import CHARSET, FIELDS
from arr_coc.modeling.configuration_arr_coc import COMPRESSION
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.scorers import position_code

from .questions import Batch
from .targets import SLOTS

POSITION_SIZE = 64
"""Channels of the fixed position code that perfect tokens carry."""


class PatchLanguage(nn.Module):
    """What a perfect patch token says, in the language model's embeddings."""

    def __init__(self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        size = model.config.text_config.hidden_size
        self.slots = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(SLOTS - 1))
        self.word = nn.Linear(size, size, bias=False)
        self.position = nn.Linear(POSITION_SIZE, size, bias=False)
        self.empty = nn.Parameter(torch.zeros(size))
        nn.init.normal_(self.position.weight, std=0.02)
        characters = [tokenizer(character, add_special_tokens=False).input_ids[0] for character in CHARSET]
        fields = [tokenizer(" " + field, add_special_tokens=False).input_ids[0] for field in FIELDS]
        self.characters: Tensor
        self.fields: Tensor
        self.register_buffer("characters", torch.tensor([0, *characters]))
        self.register_buffer("fields", torch.tensor([0, *fields]))

    def forward(self, glyphs: Tensor, words: Tensor, indices: Tensor, side: int, embed: nn.Module) -> Tensor:
        """Tokens [I, K, D] of patches at `indices` [I, K] with characters [I, K, SLOTS] and field names [I, K]."""
        spelt = embed(self.characters[glyphs]) * (glyphs > 0)[..., None]
        token = spelt[:, :, 0] + sum(part(spelt[:, :, 1 + slot]) for slot, part in enumerate(self.slots))
        word = words.clamp(min=0)
        token = token + self.word(embed(self.fields[word])) * (word > 0)[..., None]
        token = token + self.empty * (glyphs[..., 0] == 0)[..., None]
        return token + self.position(position_code(side, POSITION_SIZE, device=indices.device))[indices]

    def cells(self, batch: Batch, embed: nn.Module) -> Tensor:
        """Perfect base tokens [P, M, D]: the mean of the perfect tokens of each cell's 4x4 patches."""
        side = batch.glyphs.shape[1]
        patches = torch.arange(side * side, device=batch.glyphs.device).expand(len(batch.glyphs), -1)
        tokens = self(batch.glyphs.flatten(1, 2), batch.words.flatten(1), patches, side, embed)
        return F.avg_pool2d(tokens.transpose(1, 2).unflatten(2, (side, side)), COMPRESSION).flatten(2).transpose(1, 2)


def at_patches(batch: Batch, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Characters [I, K, SLOTS] and field names [I, K] of the patches at `indices` [I, K]."""
    pages = torch.arange(len(batch.glyphs), device=indices.device)
    pages = pages.repeat_interleave(len(indices) // len(batch.glyphs))
    glyphs = batch.glyphs.flatten(1, 2)[pages].gather(1, indices[..., None].expand(-1, -1, SLOTS))
    return glyphs, batch.words.flatten(1)[pages].gather(1, indices)
