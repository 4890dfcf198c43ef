"""The tokenizer of checkpoints trained from scratch: bytes, and the words of the questions as single tokens.

Answers are spelt: a value is read off the page character by character, so characters are its tokens. Question words are
single tokens, so that a scorer can match them. A byte-level BPE does both: every merge begins with the space in front
of a word, so only words after a space, in lower case, are merged.
"""

import re
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .questions import QUESTION_TEMPLATES_TRAIN, Wordings
from .values import FIELDS

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
ROLES = ("system", "user", "assistant")
_SPACE = "Ġ"  # byte-level BPE's sign for a space


def question_words(wordings: Iterable[Wordings] = ()) -> list[str]:
    """Lower-case words that training questions about documents are made of, fields included, sorted.

    Args:
        wordings: of domains, see `arr_coc.data.domains.WORDINGS`.
    """
    templates = [*QUESTION_TEMPLATES_TRAIN, *(template for wording in wordings for template in wording.train)]
    text = re.sub(r"{\w+}", " ", " ".join(templates)).lower()
    return sorted({*FIELDS, *(word for word in re.findall(r"[a-z]+", text) if len(word) > 1)})


def build_tokenizer(model_max_length: int = 1024, wordings: Iterable[Wordings] = ()) -> PreTrainedTokenizerFast:
    """Byte-level BPE over 256 bytes, role names, ChatML's and the image's special tokens, and `question_words`."""
    merges: dict[tuple[str, str], None] = {}
    for word in question_words(wordings):
        for end in range(len(word)):
            merges[(_SPACE + word[:end], word[end])] = None
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *(left + right for left, right in merges)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(role, normalized=False) for role in ROLES])
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
        model_max_length=model_max_length,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
