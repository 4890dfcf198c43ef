"""How long is the time to the first token for one A4 page, compared with alternatives?

    python -m benchmarks.first_token [MODEL] [--image PAGE] [--rounds 3] [--threads 2] [--peers ocr smolvlm donut]

All calls alternate in one process, and run from the page's pixels in memory to the first token, preprocessing included:
our model (a folder without weights gets random ones) with a new page, and with the same page again; OCR with
SmolLM2-135M-Instruct likewise; the architectures of SmolVLM-256M and Donut-base with random weights and their own
preprocessing. Each runs in the faster of bfloat16 and float32.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    DonutSwinConfig,
    MBartConfig,
    PreTrainedModel,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
)
from transformers.models.donut.image_processing_pil_donut import DonutImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from arr_coc.evaluation.reporting import environment
from arr_coc.loading import find_model, load_model
from arr_coc.modeling.pretrained import WEIGHTS, WEIGHTS_INDEX
from benchmarks.timing import CLOCKS, alternate, table
from benchmarks.views import random_model

QUESTIONS = ("What is the total?", "What is the date?")
QUESTION_TOKENS = 16
"""Tokens of the peers with random weights: the question and the words of the chat template."""

Call = Callable[[], object]
Peer = Callable[[Image.Image, torch.dtype], dict[str, Call]]
"""Maps an image and a dtype to the timed calls by name; the first call is for a new page."""


def ours(model: str, tiles: str | int | None, image: Image.Image, dtype: torch.dtype) -> dict[str, Call]:
    """A folder's model, with random weights if it has none."""
    folder = Path(model)
    whole = any((folder / name).is_file() for name in (WEIGHTS, WEIGHTS_INDEX))
    asked: Any = load_model(model, "cpu") if whole else random_model(folder)
    asked = asked.to(dtype).eval()
    one: dict[str, Any] = {"max_new_tokens": 1, "min_new_tokens": 1, "do_sample": False}
    views: dict[str, Any] = {} if tiles is None else {"tiles": tiles}
    encoding = asked.encode_image(image, **views)
    calls: dict[str, Call] = {
        "arr-coc": lambda: asked.generate(image, QUESTIONS[0], **one, **views),
        "arr-coc, next question": lambda: asked.generate(encoding, QUESTIONS[1], **one),
    }
    if asked.model.vision_tower.text_reader is not None:
        for name, source in (("OCR's words", {"words": "ocr"}), ("read once", {"reread": False})):
            calls[f"arr-coc, {name}"] = partial(asked.generate, image, QUESTIONS[0], **source, **one, **views)
    return calls


def ocr(image: Image.Image, dtype: torch.dtype) -> dict[str, Call]:
    """OCR and a language model that reads its text."""
    from . import ocr_pipeline

    pipeline = ocr_pipeline.OcrPipeline(dtype=dtype)
    page = pipeline.read(image)
    return {
        "OCR": lambda: pipeline.ask(pipeline.read(image), QUESTIONS[0], most=1),
        "OCR, next question": lambda: pipeline.ask(page, QUESTIONS[1], most=1),
    }


def smolvlm_config() -> SmolVLMConfig:
    """SmolVLM-256M (Marafioti et al., "SmolVLM", 2025), as in its config.json."""
    text = (
        {"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
        | {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "vocab_size": 49280}
        | {"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "pad_token_id": 2, "bos_token_id": 1}
        | {"eos_token_id": 2}
    )
    vision = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12} | {
        "image_size": 512,
        "patch_size": 16,
    }
    return SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=4, image_token_id=49190)


def smolvlm(image: Image.Image, dtype: torch.dtype) -> dict[str, Call]:
    """SmolVLM-256M: tiles of 512 px of an image of 2048 px, and the whole image; 64 tokens each."""
    model = _random(SmolVLMForConditionalGeneration, smolvlm_config(), dtype)
    sizes: dict[str, Any] = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    processor: Any = SmolVLMImageProcessorPil(**sizes)

    def first() -> object:
        inputs = processor(image, return_tensors="pt", return_row_col_info=True)
        ids = smolvlm_prompt(inputs.pop("rows")[0][0], inputs.pop("cols")[0][0])
        pixels = inputs["pixel_values"].to(dtype)
        mask = inputs["pixel_attention_mask"]
        return _first_token(model, input_ids=ids, pixel_values=pixels, pixel_attention_mask=mask)

    return {"SmolVLM-256M": first}


def smolvlm_prompt(rows: int, columns: int, *, image_token: int = 49190) -> torch.Tensor:
    """[1, n]: the tokens of rows x columns tiles, of the whole image and of a question; all words cost the same."""
    tile = [1, 2, *[image_token] * 64]  # <fake_token_around_image><row_1_col_1>
    row = [*tile * columns, 3]  # a line break
    return torch.tensor([[*row * rows, 3, *tile, 1, *range(10, 10 + QUESTION_TOKENS)]])


def donut_config() -> Any:
    """Donut-base (Kim et al., "OCR-free Document Understanding Transformer", 2022), as in its config.json."""
    encoder = DonutSwinConfig(
        image_size=[2560, 1920], embed_dim=128, depths=[2, 2, 14, 2], num_heads=[4, 8, 16, 32], window_size=10
    )
    decoder = MBartConfig(
        vocab_size=57525,
        d_model=1024,
        decoder_layers=4,
        decoder_ffn_dim=4096,
        decoder_attention_heads=16,
        max_position_embeddings=1536,
        is_encoder_decoder=False,
        scale_embedding=True,
    )
    return VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)


def donut(image: Image.Image, dtype: torch.dtype) -> dict[str, Call]:
    """Donut-base: a Swin encoder for 2560 x 1920 px, and four layers of mBART's decoder, which read all features."""
    model = _random(VisionEncoderDecoderModel, donut_config(), dtype)
    model.generation_config.pad_token_id, model.generation_config.decoder_start_token_id = 1, 0
    processor = DonutImageProcessorPil()
    prompt = torch.arange(10, 10 + QUESTION_TOKENS)[None]

    def first() -> object:
        pixels = processor(image, return_tensors="pt")["pixel_values"].to(dtype)
        return _first_token(model, pixel_values=pixels, decoder_input_ids=prompt)

    return {"Donut-base": first}


PEERS: dict[str, Peer] = {"ocr": ocr, "smolvlm": smolvlm, "donut": donut}


def _random(kind: type[PreTrainedModel], config: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return kind._from_config(config, dtype=dtype).eval()


@torch.no_grad()
def _first_token(model: Any, **inputs: Any) -> object:
    return model.generate(**inputs, max_new_tokens=1, min_new_tokens=1, do_sample=False)


def faster(peer: Peer, image: Image.Image, clock: Callable[[], float]) -> tuple[str, dict[str, Call]]:
    """The name of the dtype in which a new page is faster, and its timed calls; each dtype runs twice."""
    tried = {}
    for dtype in (torch.bfloat16, torch.float32):
        calls = peer(image, dtype)
        first = next(iter(calls.values()))
        first()
        began = clock()
        first()
        tried[clock() - began] = (str(dtype).removeprefix("torch."), calls)
    return tried[min(tried)]


def main(arguments: list[str] | None = None) -> None:
    """Runs the measurement from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.first_token", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "model", nargs="?", default="hub_configs/arr-coc-tiny-2", help="folder of a checkpoint or config"
    )
    parser.add_argument(
        "--image", default="examples/images/invoice.jpg", help="a page (default: an A4 page at 150 dpi)"
    )
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=list(PEERS), help="alternatives to time (default: all)"
    )
    tiles = "of our model: auto, all, asked, never, or a number (default: the model's)"
    parser.add_argument("--tiles", metavar="T", type=lambda text: int(text) if text.isdecimal() else text, help=tiles)
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch and of the OCR (default: 2)")
    clock = "wall, or cpu where other programs share the cores: seconds of all threads (default: wall)"
    parser.add_argument("--clock", default="wall", choices=CLOCKS, help=clock)
    args = parser.parse_args(arguments)
    try:
        run(args)
    except ValueError as error:
        sys.exit(f"{parser.prog}: {error}")


def run(args: argparse.Namespace) -> None:
    """Times all calls and prints seconds and ratios.

    Raises:
        ValueError: no such model or page, or fewer than one round or thread.
    """
    for name in ("rounds", "threads"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name}: expected at least 1; got {getattr(args, name)}")
    if not Path(args.image).is_file():
        raise ValueError(f"--image: expected a file; got {args.image!r}")
    model = find_model(args.model)
    torch.set_num_threads(args.threads)
    image, clock = Image.open(args.image).convert("RGB"), CLOCKS[args.clock]
    calls: dict[str, Call] = {}
    dtypes = []
    peers: list[Peer] = [partial(ours, model, args.tiles), *(PEERS[name] for name in args.peers)]
    for peer in peers:
        dtype, own = faster(peer, image, clock)
        dtypes.append(f"{next(iter(own))} in {dtype}")
        calls |= own
    seconds = alternate(calls, args.rounds, clock)
    where = environment(torch.device("cpu"))
    machine = f"{where['machine']['device']}, {where['machine']['cpus']} cores, {args.threads} threads"
    page = f"{args.image} ({image.width} x {image.height} px)"
    print(f"{args.model}, {page}, {args.rounds} rounds, {args.clock} seconds")
    print(f"{machine}, {where['date']}\n{', '.join(dtypes)}")
    print(table(seconds, next(iter(calls))))


if __name__ == "__main__":
    main()
