"""What asking begins with: questions, boxes and prompts in one form; devices; and the checkpoint's processor."""

from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer

from .image_processing_arr_coc import ArrCocImageProcessor
from .processing_arr_coc import ArrCocProcessor


def is_encoding(value: Any) -> bool:
    """Whether `value` is what `encode_image` returns (by name: remote code may load a class twice)."""
    return type(value).__name__ == "ImageEncoding"


def prompt_messages(question: str, images: int) -> list[dict[str, Any]]:
    """The chat that asks a question about `images` images."""
    return [{"role": "user", "content": [{"type": "image"}] * images + [{"type": "text", "text": question}]}]


def checked_questions(question: Any, image_token: str) -> list[str]:
    """A question or several -> a list of them.

    Raises:
        ValueError: none, an empty one, or one that holds the placeholder.
    """
    questions = list(question) if isinstance(question, list | tuple) else [question]
    if not questions:
        raise ValueError("question: expected at least one; got an empty list")
    for one in questions:
        if not isinstance(one, str) or not one.strip():
            raise ValueError(f"question: expected a non-empty string; got {one!r}")
        if image_token in one:
            raise ValueError(f"question: expected text without the placeholder {image_token}; got {one!r}")
    return questions


def boxes_per_slot(boxes: Any) -> list[Any]:
    """A list of boxes for one slot, or a list of such lists -> one list of boxes per slot."""
    rows = list(boxes)
    single = not rows or any(len(row) and not hasattr(row[0], "__len__") for row in rows)
    return [rows] if single else rows


def device_of(module: nn.Module) -> torch.device:
    """Where inputs of `module` go. Offloaded weights are on "meta" between calls: then where accelerate runs it."""
    device = next(module.parameters()).device
    if device.type != "meta":
        return device
    for part in module.modules():
        hook = getattr(part, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):
            if getattr(one, "execution_device", None) is not None:
                return torch.device(one.execution_device)  # type: ignore[union-attr]
    return torch.device("cpu")


def load_processor(config: Any) -> ArrCocProcessor:
    """The processor of the checkpoint that `config` was loaded from, put together from its parts.

    `ArrCocProcessor.from_pretrained` would ask again whether remote code may run, to look up the image processor's
    class by name; here the classes beside this file are taken. `config` is passed on for the same reason.
    """
    source = config._name_or_path
    try:
        if not source:
            raise ValueError("a model that was not loaded from a checkpoint")
        image_processor = ArrCocImageProcessor.from_pretrained(source)
        tokenizer = AutoTokenizer.from_pretrained(source, config=config)
        settings, _ = ArrCocProcessor.get_processor_dict(source)
        processor = ArrCocProcessor.from_args_and_dict([image_processor, tokenizer], settings)
    except (OSError, ValueError, TypeError) as error:
        cause = str(error).strip().split("\n")[0]
        raise ValueError(
            f"processor: expected {source or 'the checkpoint'!r} to hold one (save it beside the model with "
            f"processor.save_pretrained, or set model.processor); got {cause}"
        ) from error
    if __name__.startswith("transformers_modules."):  # remote code: `save_pretrained` is to copy it
        ArrCocProcessor.register_for_auto_class()
        ArrCocImageProcessor.register_for_auto_class()
    return processor
