"""Small stand-ins that several test files share."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]


def tiny_tokenizer(
    *, merged: bool = True, without: tuple[str, ...] = (), model_max_length: int = 4096
) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the 256 bytes, built in-process: encodes any text, decodes it back exactly.

    Args:
        merged: with merges that make "user", " the" and a double newline one token each, as in Qwen's vocabulary.
        without: special tokens to leave out.
        model_max_length: tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("u", "s"), ("e", "r"), ("us", "er"), ("h", "e"), ("t", "he"), ("Ġ", "the"), ("Ċ", "Ċ")] if merged else []
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, *(a + b for a, b in merges)])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    kept = [token for token in SPECIAL_TOKENS if token not in without]
    backend.add_special_tokens(kept)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>" if "<|im_end|>" in kept else None,
        pad_token="<|endoftext|>",
        additional_special_tokens=kept,
        model_max_length=model_max_length,
    )
