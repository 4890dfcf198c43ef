"""The processor of a checkpoint whose model was loaded."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transformers import AutoTokenizer

from .configuration_arr_coc import ArrCocConfig
from .image_processing_arr_coc import ArrCocImageProcessor
from .processing_arr_coc import ArrCocProcessor


def load_processor(config: ArrCocConfig, found: Mapping[str, Any] = MappingProxyType({})) -> ArrCocProcessor:
    """The processor of the checkpoint that `config` was loaded from, put together from its parts.

    `found`: what `from_pretrained` was told of where its files are, so that the processor beside them comes.

    `ArrCocProcessor.from_pretrained` would ask again whether remote code may run, to look up the image processor's
    class by name; here the classes beside this file are taken. `config` is passed on for the same reason.
    """
    source = config._name_or_path
    try:
        if not source:
            raise ValueError("a model that was not loaded from a checkpoint")
        image_processor = ArrCocImageProcessor.from_pretrained(source, **found)
        tokenizer = AutoTokenizer.from_pretrained(source, config=config, **found)
        settings, _ = ArrCocProcessor.get_processor_dict(source, **found)
        processor = ArrCocProcessor.from_args_and_dict([image_processor, tokenizer], settings)
    except Exception as error:  # the readers of tokenizers and settings raise what they like
        cause = str(error).strip().split("\n")[0] or type(error).__name__
        raise ValueError(
            f"processor: expected {source or 'the checkpoint'!r} to hold one (save it beside the model with "
            f"processor.save_pretrained, or set model.processor); got {cause}"
        ) from error
    return processor
