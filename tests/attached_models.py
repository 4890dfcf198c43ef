"""A tiny model with random weights of each family that `arr_coc.attach` knows, and its processor, made offline.

The processors are transformers' own, with image processors that need no torchvision and a tokenizer of single
characters; what two test files ask of such models.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.ovis2.image_processing_pil_ovis2 import Ovis2ImageProcessorPil
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from benchmarks.attached import NoVideos, bare_processor, character_tokenizer, qwen_processor, qwen_tokenizer

PAD, END = 0, 1
TEXT = {
    **{"vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096},
    **{"pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": END},
}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def qwen(name: str, patch: int, **vision: Any) -> tuple[Any, Any]:
    tokenizer, ids = qwen_tokenizer()
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    if name != "Qwen2_5_VL":
        rope["mrope_interleaved"] = True
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16} if "moe" in name else {}
    config = getattr(transformers, f"{name}Config")(
        text_config={**TEXT, **experts, "rope_parameters": rope},
        vision_config=(
            {"depth": 4, "num_heads": 4, "hidden_size": 32, "intermediate_size": 48, "patch_size": patch}
            | {"out_hidden_size": 32, **vision}
        ),
        **ids,
    )
    kind = transformers.Qwen2_5_VLProcessor if name == "Qwen2_5_VL" else transformers.Qwen3VLProcessor
    return config, qwen_processor(kind, tokenizer, patch, min_pixels=64**2, max_pixels=512**2)


def qwen3_vl(name: str = "Qwen3VL") -> tuple[Any, Any]:
    return qwen(name, 16, deepstack_visual_indexes=[0, 1, 2], num_position_embeddings=64)


def internvl() -> tuple[Any, Any]:
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    words: Any = character_tokenizer({**names, "video_token": "<video>"})
    config = transformers.InternVLConfig(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config={**VISION, "image_size": [56, 56], "patch_size": [7, 7]},
        image_token_id=words.context_image_token_id,
    )
    images = GotOcr2ImageProcessorPil(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4)
    kind = transformers.InternVLProcessor
    return config, bare_processor(kind, images, words, "<IMG_CONTEXT>", NoVideos(), image_seq_length=16)


def idefics(kind: str, images: Any, *videos: Any) -> tuple[Any, Any]:
    places = [f"<row_{row}_col_{col}>" for row in range(1, 5) for col in range(1, 5)]
    words: Any = character_tokenizer(
        {}, ["<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *places]
    )
    config = getattr(transformers, f"{kind}Config")(
        text_config={"model_type": "llama", **TEXT},
        vision_config={**VISION, "image_size": 64, "patch_size": 8},
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=PAD,
    )
    cut = images(size={"longest_edge": 128}, max_image_size={"longest_edge": 64})
    made = bare_processor(getattr(transformers, f"{kind}Processor"), cut, words, "<image>", *videos, image_seq_len=16)
    return config, made


def smolvlm() -> tuple[Any, Any]:
    processing_smolvlm.num2words = processing_smolvlm.num2words or str  # which writes numbers for videos
    return idefics("SmolVLM", SmolVLMImageProcessorPil, NoVideos())


def ovis2() -> tuple[Any, Any]:
    marks = ["<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"]
    words: Any = character_tokenizer({}, [*marks, "<image>"])
    ids = [words.convert_tokens_to_ids(mark) for mark in marks]
    config = transformers.Ovis2Config(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config=(
            {**VISION, "image_size": 56, "patch_size": 7, "vocab_size": 48, "hidden_stride": 2}
            | {"num_visual_indicator_tokens": 5}
        ),
        image_token_id=ids[0],
        visual_indicator_token_ids=ids[1:],
        vocab_size=256,
        hidden_size=32,
    )
    images = Ovis2ImageProcessorPil(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4)
    return config, bare_processor(transformers.Ovis2Processor, images, words, "<image>", image_seq_length=16)


def gemma3() -> tuple[Any, Any]:
    names = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    words: Any = character_tokenizer(names)
    config = transformers.Gemma3Config(
        text_config={
            **TEXT,
            "sliding_window": 24,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        vision_config={**VISION, "image_size": 56, "patch_size": 7},
        mm_tokens_per_image=16,
        image_token_id=words.image_token_id,
        boi_token_id=words.boi_token_id,
        eoi_token_id=words.eoi_token_id,
    )
    images = Gemma3ImageProcessorPil(size={"height": 56, "width": 56})
    return config, bare_processor(transformers.Gemma3Processor, images, words, "<start_of_image>", image_seq_length=16)


def llava_onevision() -> tuple[Any, Any]:
    words: Any = character_tokenizer({"image_token": "<image>", "video_token": "<video>"})
    vision = {"image_size": 28, "patch_size": 7, "vision_use_head": False}
    pinpoints = [[28, 28], [28, 56], [56, 28], [56, 56], [84, 28]]
    config = transformers.LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **TEXT},
        vision_config={"model_type": "siglip_vision_model", **VISION, **vision},
        image_token_id=words.image_token_id,
        image_token_index=words.image_token_id,
        video_token_id=words.video_token_id,
        image_grid_pinpoints=pinpoints,
        vision_feature_layer=-1,
    )
    images = LlavaOnevisionImageProcessorPil(size={"height": 28, "width": 28}, image_grid_pinpoints=pinpoints)
    kind, settings = transformers.LlavaOnevisionProcessor, {"vision_feature_select_strategy": "full"}
    return config, bare_processor(kind, images, words, "<image>", NoVideos(), num_image_tokens=16, **settings)


BUILDERS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": lambda: qwen3_vl("Qwen3VLMoe"),
    "qwen2_5_vl": lambda: qwen("Qwen2_5_VL", 14, window_size=56, fullatt_block_indexes=[1, 3]),
    "internvl": internvl,
    "idefics3": lambda: idefics("Idefics3", Idefics3ImageProcessorPil),
    "smolvlm": smolvlm,
    "ovis2": ovis2,
    "gemma3": gemma3,
    "llava_onevision": llava_onevision,
}


@cache
def published(family: str) -> tuple[Any, Any]:
    """The tiny model of a family, in float32, and its processor."""
    config, made = BUILDERS[family]()
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:  # far enough from zero that every image token matters
            torch.nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[-1]))
    model.generation_config.update(pad_token_id=PAD, eos_token_id=None, do_sample=False, max_new_tokens=6)
    return model, made


def picture(height: int, width: int, seed: int = 0) -> Image.Image:
    """Coloured blocks, no two alike."""
    blocks = np.random.RandomState(seed).randint(0, 255, (height // 10, width // 10, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST)


WIDE, TALL = picture(150, 220), picture(200, 120, seed=1)
QUESTIONS = ["What?", "How much is it?"]
WHOLE = {"return_fetch": True, "return_dict_in_generate": True}
"""Of `AttachedReader.generate`, for answers with all logits."""


def plain(family: str, images: list[list[Any]], questions: list[str], **kwargs: Any) -> Any:
    """What the model itself says, asked by transformers' own ways."""
    model, made = published(family)
    chats = [
        [{"role": "user", "content": [{"type": "image"}] * len(shown) + [{"type": "text", "text": question}]}]
        for shown, question in zip(images, questions, strict=True)
    ]
    texts = [made.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    shown = images if any(images) else None
    inputs = made(text=texts, images=shown, padding=True, padding_side="left", return_tensors="pt")
    return model.generate(**inputs, return_dict_in_generate=True, output_logits=True, **kwargs)


def logits_of(answers: Any) -> Tensor:
    """[B, T, vocabulary] of answers of one call, asked with `WHOLE`."""
    return torch.stack(list(answers[0].output.logits), 1)
