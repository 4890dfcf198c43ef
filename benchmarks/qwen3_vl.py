"""How long is the time to the first token, compared with Qwen3-VL's architecture with the same language model?

    python -m benchmarks.qwen3_vl [CONFIG] [--dtype bfloat16] [--image-size 1024] [--rounds 3]
        [--clock wall]

Both have random weights and alternate in one process: `generate` of one token from pixels and a prompt of placeholders
and `--question-tokens` words. Sizes are those of Qwen3-VL-2B, with the language model of CONFIG. Images are
preprocessed before. A random scorer costs as much as a trained one. `--clock cpu` counts CPU seconds, for machines with
other load.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from arr_coc.files import run_module
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from .timing import CLOCKS, Seconds, alternate, argument_parser, table

QWEN3_VL_VISION: dict[str, Any] = (
    {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16}
    | {"spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304}
    | {"deepstack_visual_indexes": [5, 11, 17]}
)
"""The vision encoder of Qwen3-VL-2B, as in its config.json."""

_SHARED = tuple(
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size "
    "rms_norm_eps max_position_embeddings tie_word_embeddings".split()
)


def qwen3_vl_config(text: Any, vision: dict[str, Any] | None = None) -> Qwen3VLConfig:
    """Qwen3-VL around the language model of `text`, a Qwen3 config; placeholders have the vocabulary's last ids."""
    half = text.head_dim // 2
    sections = [half - 2 * (half * 5 // 16), half * 5 // 16, half * 5 // 16]  # [24, 20, 20] of 64, as published
    rotary = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": sections, "mrope_interleaved": True}
    last = text.vocab_size - 1
    tokens = {
        "image_token_id": last,
        "video_token_id": last - 1,
        "vision_start_token_id": last - 2,
        "vision_end_token_id": last - 3,
    }
    return Qwen3VLConfig(
        text_config={**{name: getattr(text, name) for name in _SHARED}, "rope_parameters": rotary},
        vision_config={**QWEN3_VL_VISION, **(vision or {}), "out_hidden_size": text.hidden_size},
        tie_word_embeddings=text.tie_word_embeddings,
        **tokens,
    )


def _prompt(image_token: int, count: int, question_tokens: int) -> dict[str, Any]:
    """`count` placeholders, then the question; [1, count + question_tokens] each."""
    question = torch.arange(1, question_tokens + 1)
    ids = torch.cat((torch.full((count,), image_token), question))[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def our_inputs(config: ArrCocConfig, image_size: int, question_tokens: int) -> dict[str, Any]:
    """Inputs of `generate` for a square image of noise of `image_size` px and a question, with the default budget."""
    base, fetched = config.vision_tokens(image_size)
    inputs = _prompt(config.image_token_id, base + fetched, question_tokens)
    patches = (image_size // config.vision_config.patch_size) ** 2
    return inputs | {
        "pixel_values": torch.randn(1, config.vision_config.num_channels, image_size, image_size),
        "patch_mask": torch.ones(1, patches, dtype=torch.bool),
        "query_mask": (inputs["input_ids"] != config.image_token_id).long(),
    }


def qwen3_vl_inputs(config: Qwen3VLConfig, image_size: int, question_tokens: int) -> dict[str, Any]:
    """The same inputs for Qwen3-VL, which takes pixels patch by patch."""
    vision: Any = config.vision_config
    side = image_size // vision.patch_size
    inputs = _prompt(config.image_token_id, (side // vision.spatial_merge_size) ** 2, question_tokens)
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return inputs | {
        "pixel_values": torch.randn(side**2, width),
        "image_grid_thw": torch.tensor([[1, side, side]]),
        "mm_token_type_ids": (inputs["input_ids"] == config.image_token_id).int(),
    }


def first_token(
    config: ArrCocConfig,
    rival: Qwen3VLConfig,
    dtype: torch.dtype,
    *,
    image_size: int | None = None,
    question_tokens: int = 16,
    rounds: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Seconds]:
    """Seconds to the first token of the alternating models, by name: "arr-coc" and "qwen3-vl"."""
    size = image_size or config.vision_config.image_size
    torch.manual_seed(0)
    models: dict[str, tuple[PreTrainedModel, dict[str, Any]]] = {
        "arr-coc": (
            ArrCocForConditionalGeneration._from_config(config, dtype=dtype),
            our_inputs(config, size, question_tokens),
        ),
        "qwen3-vl": (
            Qwen3VLForConditionalGeneration._from_config(rival, dtype=dtype),
            qwen3_vl_inputs(rival, size, question_tokens),
        ),
    }
    calls = {}
    for name, (model, inputs) in models.items():
        inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
        calls[name] = partial(model.eval().generate, **inputs, max_new_tokens=1, do_sample=False)
    return alternate(calls, rounds, clock)


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argument_parser(__doc__, "hub_configs/arr-coc-qwen3-1.7b", rounds=3, clock="wall", dtype="bfloat16")
    parser.add_argument("--image-size", type=int, help="side of the image, px (default: the config's)")
    parser.add_argument("--question-tokens", type=int, default=16)
    arguments = parser.parse_args()
    config = ArrCocConfig.from_pretrained(arguments.model)
    size = arguments.image_size or config.vision_config.image_size
    seconds = first_token(
        config,
        qwen3_vl_config(config.text_config),
        getattr(torch, arguments.dtype),
        image_size=size,
        question_tokens=arguments.question_tokens,
        rounds=arguments.rounds,
        clock=CLOCKS[arguments.clock],
    )
    print(
        f"{arguments.model}, {size} px, {arguments.question_tokens} question tokens, {arguments.dtype}, "
        f"{torch.get_num_threads()} threads, {arguments.rounds} rounds, {arguments.clock} seconds"
    )
    print(table(seconds, "arr-coc"))


if __name__ == "__main__":
    run_module(main)
