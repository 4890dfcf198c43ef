"""The language model's tokenizer with the tokens that images need; processor and generation settings around it."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers import AddedToken, GenerationConfig, PreTrainedTokenizerFast

from ..files import read_json
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.image_processing_arr_coc import ArrCocImageProcessor
from ..modeling.processing_arr_coc import ArrCocProcessor
from ..modeling.scorers import SCORERS
from .families import Prompting
from .sources import Source

FILES = ("tokenizer_config.json", "special_tokens_map.json")
"""Read beside tokenizer.json where they are."""

ANSWER_TOKENS = 512
"""Tokens of an answer where a call does not say: a dense paragraph of a document."""


def load_tokenizer(source: Source, prompting: Prompting) -> PreTrainedTokenizerFast:
    """The tokenizer of `source`, with `prompting.added` in it.

    Raises:
        ValueError: `source` has no tokenizer, or one that cannot be read or lacks a token that prompts need.
    """
    with tempfile.TemporaryDirectory() as folder:  # apart from a config.json that names classes of its own
        shutil.copyfile(source.file("tokenizer.json"), Path(folder) / "tokenizer.json")
        for name in FILES:
            path = source.optional(name)
            if path is not None:
                shutil.copyfile(path, Path(folder) / name)
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception as error:  # the tokenizers library raises bare Exceptions
            reason = " ".join(str(error).split())
            raise ValueError(f"{source}: expected a tokenizer that can be read; got {reason}") from error
    tokenizer.name_or_path = ""
    for name in ("is_local", "local_files_only"):  # how it was read, which transformers would save
        tokenizer.init_kwargs.pop(name, None)
    known = tokenizer.get_vocab()
    missing = [token for token in prompting.needed if token not in known]
    if tokenizer.eos_token is None:
        missing.append("eos_token")
    if prompting.chat_template is not None and tokenizer.bos_token is None:
        missing.append("bos_token")
    if missing:
        needed = ", ".join([*prompting.needed, "an eos_token"])
        raise ValueError(f"{source}: expected a tokenizer with {needed}; got no {', '.join(missing)}")
    lacking = [AddedToken(token, special=True, normalized=False) for token in prompting.added if token not in known]
    tokenizer.add_tokens(lacking, special_tokens=True)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def make_processor(config: ArrCocConfig, tokenizer: PreTrainedTokenizerFast, prompting: Prompting) -> ArrCocProcessor:
    """The processor that goes with `config`."""
    vision = config.vision_config
    size = {"height": vision.image_size, "width": vision.image_size}
    tokenizer.model_max_length = min(tokenizer.model_max_length, config.text_config.max_position_embeddings)
    return ArrCocProcessor(
        ArrCocImageProcessor(size=size, patch_size=vision.patch_size),
        tokenizer,
        chat_template=prompting.chat_template,
        budget=config.fetcher_config.budget if SCORERS[config.fetcher_config.strategy].fetches else 0,
        image_token=prompting.image_token,
        excludes_base=config.excludes_base,
        layout=config.bridge_config.layout,
    )


def make_generation_config(source: Source, tokenizer: PreTrainedTokenizerFast) -> GenerationConfig:
    """Greedy answers; where they end is the language model's own business."""
    path = source.optional("generation_config.json")
    published: dict[str, Any] = {} if path is None else read_json(path)
    names = ("eos_token_id", "bos_token_id", "pad_token_id")
    own = {name: getattr(tokenizer, name) for name in names}
    ids = {name: own[name] if published.get(name) is None else published[name] for name in names}
    return GenerationConfig(do_sample=False, max_new_tokens=ANSWER_TOKENS, **ids)
