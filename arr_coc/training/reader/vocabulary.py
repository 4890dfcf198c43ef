"""What stands under a patch: characters, and wordpieces of the language model's vocabulary that begin there."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from arr_coc.modeling.wordpieces import POSITIONS, SPELLED

CHARACTERS = (
    "".join(map(chr, range(33, 127)))
    + "£€¥§°·•–—‘’“”ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝßàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿŒœŠšŽž©®™½²³µ×±…«»¿¡"
)
"""Characters that the encoder names, by their class less 1; class 0 is no character, and the last any other one."""

CLASSES = len(CHARACTERS) + 2
"""Classes of a character slot."""

_CLASS_OF = {character: number + 1 for number, character in enumerate(CHARACTERS)}


def class_of(character: str) -> int:
    """The class of a visible character."""
    return _CLASS_OF.get(character, CLASSES - 1)


@dataclass(frozen=True)
class Piece:
    """A wordpiece of a word: its id in the vocabulary, and its characters [start, end) in the word."""

    id: int
    start: int
    end: int


class Wordpieces:
    """The wordpieces of words, as the language model's tokenizer cuts them behind a space.

    Args:
        tokenizer: a fast tokenizer, whose pieces know their characters.

    Raises:
        ValueError: a slow tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if not tokenizer.is_fast:
            raise ValueError(f"tokenizer: expected a fast one; got {type(tokenizer).__name__}")
        self.tokenizer = tokenizer
        self._cut = lru_cache(maxsize=2**16)(self._pieces)

    def __call__(self, word: str) -> tuple[Piece, ...]:
        """The pieces of a word without spaces, in order; bytes of one character count as pieces of it."""
        return self._cut(word)

    def _pieces(self, word: str) -> tuple[Piece, ...]:
        encoded = self.tokenizer(" " + word, add_special_tokens=False, return_offsets_mapping=True)
        pieces = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        # The space is part of the first piece or, as before digits, a piece of its own where the word begins.
        return tuple(Piece(i, max(0, start - 1), max(1, end - 1)) for i, (start, end) in pieces)


def spelled(tokenizer: PreTrainedTokenizerBase, rows: int) -> Tensor:
    """uint8 [rows, P]: how each wordpiece is spelled, see `arr_coc.modeling.wordpieces.Spelling`.

    At position 0 stands 2 behind a space, else 1; at the last the number of characters, at most one more than fit.
    Special tokens and rows that the tokenizer lacks have no spelling.
    """
    letters = torch.zeros(rows, POSITIONS, dtype=torch.uint8)
    special = set(tokenizer.all_special_ids)
    ids = [token for token in range(min(rows, len(tokenizer))) if token not in special]
    for token, text in zip(ids, tokenizer.batch_decode([[token] for token in ids]), strict=True):
        word = text.removeprefix(" ")
        classes = [class_of(character) for character in word[:SPELLED]]
        letters[token, 0] = 2 if word != text else 1
        letters[token, 1 : 1 + len(classes)] = torch.tensor(classes, dtype=torch.uint8)
        letters[token, -1] = 1 + min(len(word), SPELLED + 1)
    return letters
