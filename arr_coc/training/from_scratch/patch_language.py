"""What a perfect token says: which characters stand there, which field's name they belong to, and where.

A perfect base token holds what the sixteen patches of its cell say, each bound to its place there by a matrix of its
own, and summed: what stands at a place can be unbound again, while a mean would forget the order.

Notation: P pages, I image slots, G side of the grid, K patches fetched, M base tokens, D width of the language model.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from arr_coc.data import CHARSET, FIELDS
from arr_coc.modeling.configuration_arr_coc import COMPRESSION
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.scorers import position_code

from .questions import Batch
from .targets import SLOTS

logger = logging.get_logger(__name__)

PLACES = COMPRESSION**2
"""Patches of a cell, row by row."""
POSITION_SIZE = 64
"""Channels of the fixed position code that perfect tokens carry."""


class PatchLanguage(nn.Module):
    """What perfect patch and base tokens say, in the language model's embeddings."""

    def __init__(self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        size = model.config.text_config.hidden_size
        self.slots = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(SLOTS - 1))
        self.word = nn.Linear(size, size, bias=False)
        self.position = nn.Linear(POSITION_SIZE, size, bias=False)
        self.empty = nn.Parameter(torch.zeros(size))
        self.places = nn.Parameter(torch.stack([nn.init.orthogonal_(torch.empty(size, size)) for _ in range(PLACES)]))
        self.register_load_state_dict_pre_hook(_add_places)
        nn.init.normal_(self.position.weight, std=0.02)
        characters = [tokenizer(character, add_special_tokens=False).input_ids[0] for character in CHARSET]
        fields = [tokenizer(" " + field, add_special_tokens=False).input_ids[0] for field in FIELDS]
        self.characters: Tensor
        self.fields: Tensor
        self.register_buffer("characters", torch.tensor([0, *characters]))
        self.register_buffer("fields", torch.tensor([0, *fields]))

    def forward(self, glyphs: Tensor, words: Tensor, indices: Tensor, side: int, embed: nn.Module) -> Tensor:
        """Tokens [I, K, D] of patches at `indices` [I, K] with characters [I, K, SLOTS] and field names [I, K]."""
        token = self.content(glyphs, words, embed) + self.empty * (glyphs[..., 0] == 0)[..., None]
        return token + self._positions(side, indices.device)[indices]

    def content(self, glyphs: Tensor, words: Tensor, embed: nn.Module) -> Tensor:
        """What patches with characters [..., SLOTS] and field names [...] say, wherever they are: [..., D]."""
        spelt = embed(self.characters[glyphs]) * (glyphs > 0)[..., None]
        token = spelt[..., 0, :] + sum(part(spelt[..., 1 + slot, :]) for slot, part in enumerate(self.slots))
        word = words.clamp(min=0)
        return token + self.word(embed(self.fields[word])) * (word > 0)[..., None]

    def cells(self, glyphs: Tensor, words: Tensor, embed: nn.Module) -> Tensor:
        """Perfect base tokens [P, M, D] of pages with characters [P, G, G, SLOTS] and field names [P, G, G]."""
        side = glyphs.shape[1]
        said = in_cells(self.content(glyphs, words, embed))
        bound = torch.einsum("pmkd,kde->pme", said, self.places.to(said))
        return bound + in_cells(self._positions(side, said.device).unflatten(0, (side, side))[None]).mean(2)

    def _positions(self, side: int, device: torch.device) -> Tensor:
        """Where each patch is, [N, D]."""
        return self.position(position_code(side, POSITION_SIZE, device=device))


def in_cells(patches: Tensor) -> Tensor:
    """What the patches of a page hold, [P, G, G, *], by cell and place there: [P, M, 16, *]."""
    cells = patches.unflatten(2, (-1, COMPRESSION)).unflatten(1, (-1, COMPRESSION))  # [P, g, 4, g, 4, *]
    return cells.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def cell_of(patches: Tensor, side: int) -> Tensor:
    """The cell that each patch (a number in 0..G*G) is in; negative numbers, which are no patch, stay so."""
    cell = patches // side // COMPRESSION * (side // COMPRESSION) + patches % side // COMPRESSION
    return torch.where(patches < 0, patches, cell)


def _add_places(language: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Weights of earlier versions, whose base tokens were means of their cell, have no matrices: new ones stay."""
    assert isinstance(language, PatchLanguage)
    if f"{prefix}empty" in state and f"{prefix}places" not in state:
        logger.warning("learner: language.places is missing (weights of an earlier version): it begins new")
        state[f"{prefix}places"] = language.places.detach().clone()


def at_patches(batch: Batch, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Characters [I, K, SLOTS] and field names [I, K] of the patches at `indices` [I, K]."""
    pages = torch.arange(len(batch.glyphs), device=indices.device)
    pages = pages.repeat_interleave(len(indices) // len(batch.glyphs))
    glyphs = batch.glyphs.flatten(1, 2)[pages].gather(1, indices[..., None].expand(-1, -1, SLOTS))
    return glyphs, batch.words.flatten(1)[pages].gather(1, indices)
