"""A processor of small pages, and the pictures and chats that the tests of prompts give it."""

from typing import Any

from helpers import noise, tiny_tokenizer
from PIL import Image

from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor

SIDE, PATCH, GRID = 64, 4, 16
PLACE = "<|vision_start|><|image_pad|><|vision_end|>"


def image_processor(**kwargs: Any) -> Any:
    return ArrCocImageProcessor(**{"size": {"height": SIDE, "width": SIDE}, "patch_size": PATCH, **kwargs})


def make_processor(tokenizer: Any = None, **kwargs: Any) -> Any:
    return ArrCocProcessor(image_processor(), tiny_tokenizer() if tokenizer is None else tokenizer, **kwargs)


def picture(height: int = 20, width: int = 30) -> Image.Image:
    return noise(height, width, seed=height)


def chat(question: str = "What is it?", images: int = 1) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [{"type": "image", "image": picture(20 + i)} for i in range(images)]
    return [{"role": "user", "content": [*blocks, {"type": "text", "text": question}]}]


def encode(processor: ArrCocProcessor, messages: Any, **kwargs: Any) -> Any:
    defaults = {"tokenize": True, "return_dict": True, "add_generation_prompt": True, "return_tensors": "pt"}
    return processor.apply_chat_template(messages, **{**defaults, **kwargs})


def questions(processor: ArrCocProcessor, out: Any) -> list[str]:
    rows = zip(out["input_ids"], out["query_mask"], strict=True)
    return [processor.tokenizer.decode(ids[mask.bool()]) for ids, mask in rows]


WRITTEN = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}


def shown(image: Any) -> dict[str, Any]:
    return {"type": "image", "image": image}


def turn(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(content)}
