"""Oracle tokens: embeddings of the ground-truth characters of a patch, of its field's name, and of its place.

An oracle base token holds the contents of the sixteen patches of its cell, each bound to its place by a matrix of its
own, and summed: the content of each place can be recovered from the sum, while a mean would lose the order.

Notation: P pages, I image slots, G side of the grid, K patches fetched, M base tokens, D width of the language model.
"""

from collections.abc import Collection
from typing import Any, Literal, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from arr_coc.data import CHARSET, FIELDS
from arr_coc.modeling.bridges import CellBridge, WordpieceBridge
from arr_coc.modeling.configuration_arr_coc import COMPRESSION
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.scorers import position_code

from .questions import Batch
from .targets import SLOTS

logger = logging.get_logger(__name__)

PLACES = COMPRESSION**2
"""Patches of a cell, row by row."""
PLACE_WORDS = (*[1 + len(CHARSET)] * SLOTS, 1 + len(FIELDS))
"""Vocabularies of a place, for a `CellBridge` that uses this language: characters by slot, then field names."""
Read = Literal["patches", "base and patches", "base"]
"""The oracle tokens that the language model reads."""

POSITION_SIZE = 64
"""Channels of the fixed position code in oracle tokens."""


class PatchLanguage(nn.Module):
    """Oracle tokens of patches and base tokens, in the language model's embeddings."""

    def __init__(self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        speaks_words(model.model.bridge)  # raises a ValueError for other vocabularies, before any work is lost
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
        """The contents of patches with characters [..., SLOTS] and field names [...], without places: [..., D]."""
        spelt = embed(self.characters[glyphs]) * (glyphs > 0)[..., None]
        token = spelt[..., 0, :] + sum(part(spelt[..., 1 + slot, :]) for slot, part in enumerate(self.slots))
        word = words.clamp(min=0)
        return token + self.word(embed(self.fields[word])) * (word > 0)[..., None]

    def cells(self, glyphs: Tensor, words: Tensor, embed: nn.Module) -> Tensor:
        """Oracle base tokens [P, M, D] of pages with characters [P, G, G, SLOTS] and field names [P, G, G]."""
        side = glyphs.shape[1]
        content = in_cells(self.content(glyphs, words, embed))
        bound = torch.einsum("pmkd,kde->pme", content, self.places.to(content))
        return bound + in_cells(self._positions(side, content.device).unflatten(0, (side, side))[None]).mean(2)

    def tokens(self, batch: Batch, indices: Tensor, embed: nn.Module, *, read: Read) -> Tensor:
        """Oracle tokens [I, M + K, D] of base tokens (if they are read) and of patches [I, K]; of base tokens alone
        [P, M, D]."""
        if read == "base":
            return self.cells(batch.glyphs, batch.words, embed)
        patches: Tensor = self(*at_patches(batch, indices), indices, batch.glyphs.shape[1], embed)
        if read == "patches":
            return patches
        cells = self.cells(batch.glyphs, batch.words, embed)
        return torch.cat((cells.repeat_interleave(len(patches) // len(cells), 0), patches), 1)

    def token_loss(
        self, tokens: Tensor, glyphs: Tensor, words: Tensor, indices: Tensor, side: int, embed: nn.Module
    ) -> Tensor:
        """Squared distance of tokens [I, K, D] from oracle tokens (see `forward`), relative to their mean square."""
        with torch.no_grad():
            target = self(glyphs, words, indices, side, embed)
        return relative_error(tokens, target)

    def base_loss(self, tokens: Tensor, glyphs: Tensor, words: Tensor, embed: nn.Module) -> Tensor:
        """Log of 1 + the same for base tokens [P, M, D] (see `cells`), which start far away."""
        with torch.no_grad():
            target = self.cells(glyphs, words, embed)
        return relative_error(tokens, target).log1p()

    def rows(self, embed: nn.Module) -> Tensor:
        """The summands [16*W, D] of an oracle base token, without its position: one for each word at each place.

        They are in the order of a `CellBridge`'s table: by place, the characters of each slot, then field names; W for
        each place. No word, the first of each vocabulary, adds nothing.
        """
        words = self._words(embed)
        return torch.einsum("wd,kde->kwe", words, self.places.to(words)).flatten(0, 1)

    def patch_rows(self, embed: nn.Module) -> Tensor:
        """The same for an oracle patch token [W, D], for `FetchedWords`; no character: the patch is empty."""
        rows = self._words(embed)
        return torch.cat((self.empty[None], rows[1:]))

    def _words(self, embed: nn.Module) -> Tensor:
        """[W, D] the content of each word of each vocabulary, without its place."""
        characters, fields = embed(self.characters[1:]), embed(self.fields[1:])
        parts = [characters, *(part(characters) for part in self.slots), self.word(fields)]
        return torch.cat([F.pad(part, (0, 0, 1, 0)) for part in parts])

    def _positions(self, side: int, device: torch.device) -> Tensor:
        """Position codes of patches, [N, D]."""
        return self.position(position_code(side, POSITION_SIZE, device=device))


def speaks_words(bridge: nn.Module) -> TypeGuard[CellBridge]:
    """Whether a bridge has words for base tokens; if so, they have to be those of this language.

    Raises:
        ValueError: its places have other vocabularies, or its tokens are not those of one patch each.
    """
    if isinstance(bridge, WordpieceBridge):
        raise ValueError('bridge: expected one whose tokens tell of one patch each; got "wordpieces"')
    if not isinstance(bridge, CellBridge):
        return False
    if tuple(bridge.place_words) != PLACE_WORDS:
        raise ValueError(f"bridge_config.place_words: expected {list(PLACE_WORDS)}; got {bridge.place_words}")
    return True


def tables(bridge: nn.Module) -> list[nn.Parameter]:
    """The meanings of a bridge's words, a table for base tokens and one for fetched tokens, if it has them."""
    if not isinstance(bridge, CellBridge):
        return []
    named = [bridge.table] if bridge.fetched is None else [bridge.table, bridge.fetched.table]
    return [weight for table in named for weight in table.parameters()]


@torch.no_grad()
def teach_words(
    model: ArrCocForConditionalGeneration, language: PatchLanguage, new: Collection[str] | None = None
) -> None:
    """Sets the words of a bridge to their meanings in the language; a bridge without words does not change.

    `new`: the only names of the model's weights that may be set; None: all.
    """
    bridge, embed = model.model.bridge, model.get_input_embeddings()
    if not speaks_words(bridge):
        return
    if new is None or "model.bridge.table.weight" in new:
        bridge.table.weight.copy_(language.rows(embed))
    if bridge.fetched is not None and (new is None or "model.bridge.fetched.table.weight" in new):
        bridge.fetched.table.weight.copy_(language.patch_rows(embed))


def relative_error(tokens: Tensor, target: Tensor) -> Tensor:
    """Squared distance of `tokens` from `target`, as a share of the latter's mean square."""
    return (tokens.float() - target.float()).square().mean() / target.float().square().mean()


def in_cells(patches: Tensor) -> Tensor:
    """Values of the patches of a page [P, G, G, *], by cell and place in it: [P, M, 16, *]."""
    cells = patches.unflatten(2, (-1, COMPRESSION)).unflatten(1, (-1, COMPRESSION))  # [P, g, 4, g, 4, *]
    return cells.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def cell_of(patches: Tensor, side: int) -> Tensor:
    """The cell of each patch (a number in 0..G*G); negative numbers, which are not patches, do not change."""
    cell = patches // side // COMPRESSION * (side // COMPRESSION) + patches % side // COMPRESSION
    return torch.where(patches < 0, patches, cell)


def _add_places(language: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Weights of earlier versions, whose base tokens were means of their cell, have no matrices: these stay new."""
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
