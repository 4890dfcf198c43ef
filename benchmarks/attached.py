"""How much sooner does a published architecture generate its first token with running back attached?

    python -m benchmarks.attached [qwen3-vl-2b] [--sides 1024 2048] [--budgets 0.25 0.1] [--rounds 1] [--threads 2]

It uses random weights in the sizes of a published model, and one A4 page. All calls alternate in one process, and run
from the page's pixels in memory to the first token, preprocessing included: the plain model; the reader in each of its
ways and budgets; and the next question about the same page. It also prints the peak memory of tensors in another run of
each, without weights. On a slow machine, `--ways pixels --warm-up 256 --no-memory` runs each call once.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import arr_coc
from arr_coc.attached import AttachedReader
from arr_coc.attached.reader import WAYS
from arr_coc.evaluation.reporting import environment
from benchmarks.timing import CLOCKS, Seconds, alternate, table

from .costs import LiveTensors

QUESTIONS = ("What is the total?", "What is the date?")

CHAT = (
    "{% for message in messages %}<user>{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)
"""A chat template; IMAGE is replaced by the family's placeholder."""


# ---- processors of transformers' classes, without files --------------------------------------------------------------


def character_tokenizer(named: dict[str, str], others: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of single characters and special tokens; `named` ones become attributes."""
    characters = ["<pad>", "</s>", "<s>", "<unk>", "\n", *map(chr, range(32, 127))]
    inner = Tokenizer(models.BPE({text: at for at, text in enumerate(characters)}, [], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", extra_special_tokens=named
    )
    tokenizer.add_special_tokens({"extra_special_tokens": list(others)}, replace_extra_special_tokens=False)
    return tokenizer


class NoVideos:
    """Replaces a video processor, which needs torchvision."""

    model_input_names: Sequence[str] = ()
    num_frames = fps = merge_size = 1


def bare_processor(kind: type, images: Any, tokenizer: Any, placeholder: str, *videos: Any, **settings: Any) -> Any:
    """A processor of transformers' class `kind` that does not check the types of its parts.

    Args:
        kind: the family's class of processors.
        images: its image processor, without torchvision.
        tokenizer: with the family's special tokens.
        placeholder: the text in place of an image in the chat.
        videos: `NoVideos()`, if the family has a video processor.
        settings: further arguments of `kind`.
    """
    bare = type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda self, name, part: None})
    return bare(images, tokenizer, *videos, chat_template=CHAT.replace("IMAGE", placeholder), **settings)


def qwen_tokenizer() -> tuple[PreTrainedTokenizerFast, dict[str, Any]]:
    """A tokenizer with Qwen-VL's special tokens, and their ids by their names in its config."""
    names = ("image", "video", "vision_start", "vision_end")
    texts = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    tokenizer = character_tokenizer({}, texts)
    ids: dict[str, Any] = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(text) for name, text in zip(names, texts, strict=True)
    }
    return tokenizer, ids


def qwen_processor(kind: type, tokenizer: Any, patch: int, **sizes: Any) -> Any:
    """A processor of Qwen-VL; `sizes`: min_pixels and max_pixels."""
    images = Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, **sizes)
    return bare_processor(kind, images, tokenizer, "<|vision_start|><|image_pad|><|vision_end|>", NoVideos())


# ---- published sizes -------------------------------------------------------------------------------------------------


def qwen3_vl_2b(layers: int = 28, depth: int = 24, width: int = 2048, vision: int = 1024) -> tuple[Any, Any]:
    """Qwen3-VL-2B-Instruct (Bai et al., "Qwen3-VL Technical Report", 2025), as in its config.json."""
    tokenizer, ids = qwen_tokenizer()
    text = (
        {"vocab_size": 151936, "hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
        | {"num_attention_heads": width // 128, "num_key_value_heads": width // 256, "head_dim": 128}
        | {"max_position_embeddings": 262144, "tie_word_embeddings": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20]}}
    )
    taps = [depth * 5 // 24, depth * 11 // 24, depth * 17 // 24]
    tower = {"depth": depth, "hidden_size": vision, "intermediate_size": 4 * vision, "num_heads": vision // 64} | {
        "patch_size": 16,
        "out_hidden_size": width,
        "deepstack_visual_indexes": taps,
    }
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=tower, tie_word_embeddings=True, **ids)
    sizes: dict[str, Any] = {"min_pixels": 256**2, "max_pixels": 4096**2}
    return config, qwen_processor(transformers.Qwen3VLProcessor, tokenizer, 16, **sizes)


def internvl3_5_1b() -> tuple[Any, Any]:
    """InternVL3.5-1B (Wang et al., "InternVL3.5", 2025): InternViT-300M and Qwen3-0.6B, up to 12 tiles of 448 px."""
    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    tokenizer: Any = character_tokenizer({**names, "video_token": "<video>"})
    text = (
        {"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072}
        | {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
        | {"max_position_embeddings": 40960, "tie_word_embeddings": False}
    )
    tower = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    config = transformers.InternVLConfig(
        text_config=text,
        vision_config={**tower, "image_size": [448, 448], "patch_size": [14, 14]},
        image_token_id=tokenizer.context_image_token_id,
        tie_word_embeddings=False,
    )
    images = GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, crop_to_patches=True, max_patches=12)
    kind = transformers.InternVLProcessor
    return config, bare_processor(kind, images, tokenizer, "<IMG_CONTEXT>", NoVideos(), image_seq_length=256)


SIZES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "qwen3-vl-2b": qwen3_vl_2b,
    "internvl3.5-1b": internvl3_5_1b,
    "small": lambda: qwen3_vl_2b(layers=2, depth=3, width=256, vision=64),  # to try the script
}


def random_reader(name: str, dtype: torch.dtype) -> AttachedReader:
    """A reader attached to a model of the sizes called `name`, with random weights."""
    config, processor = SIZES[name]()
    torch.manual_seed(0)
    model: Any = transformers.AutoModelForImageTextToText.from_config(config, dtype=dtype)
    model.generation_config.update(pad_token_id=0, eos_token_id=None)
    return arr_coc.attach(model.eval(), processor)


# ---- timed calls -----------------------------------------------------------------------------------------------------


def calls(
    reader: AttachedReader, image: Image.Image, budgets: Sequence[float], strategy: str, ways: Sequence[str] = WAYS
) -> dict[str, Callable[[], object]]:
    """The timed calls by name; the first is the plain model."""
    one: dict[str, Any] = {"max_new_tokens": 1, "do_sample": False}
    asked: dict[str, Any] = {"strategy": strategy, **one}
    timed: dict[str, Callable[[], object]] = {"plain": partial(plain, reader, image, **one)}
    for way in ways:
        if way == "pixels" and not reader.family.encodes_cells:
            continue
        page = reader.encode_image(image, way=way)
        for budget in budgets:
            name = f"{way}, {budget:.0%}"
            timed[name] = partial(reader.generate, image, QUESTIONS[0], way=way, budget=budget, **asked)
            timed[f"{name}, next question"] = partial(reader.generate, page, QUESTIONS[1], budget=budget, **asked)
    return timed


@torch.no_grad()
def plain(reader: AttachedReader, image: Image.Image, **settings: Any) -> object:
    """Generates the first token of the plain model, with its own processor."""
    text = reader.runner.chat(1, QUESTIONS[0])
    inputs = reader.processor(text=[text], images=[[image]], return_tensors="pt")
    return reader.model.generate(**inputs, **settings)


def peaks(timed: dict[str, Callable[[], object]]) -> dict[str, int]:
    """Peak bytes of the tensors that each call creates."""
    found = {}
    for name, call in timed.items():
        with LiveTensors() as live:
            call()
        found[name] = live.peak
    return found


def with_memory(seconds: dict[str, Seconds], memory: dict[str, int]) -> str:
    """The table of seconds, with peak MB at the end of each line."""
    head, *lines = table(seconds, next(iter(seconds))).splitlines()
    sizes = [f"{memory[name] / 1e6:>9.0f} MB" for name in seconds]
    return "\n".join([f"{head}{'tensors':>12}", *(line + size for line, size in zip(lines, sizes, strict=True))])


def main(arguments: list[str] | None = None) -> None:
    """Runs the measurement from the command line."""
    summary = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attached", description=summary)
    parser.add_argument(
        "sizes", nargs="?", default="qwen3-vl-2b", choices=SIZES, help="sizes of the model (default: qwen3-vl-2b)"
    )
    parser.add_argument("--image", default="examples/images/invoice.jpg", help="a page (default: an A4 page)")
    parser.add_argument(
        "--sides", nargs="+", type=int, default=[1024, 2048], help="longer sides, px (default: 1024 2048)"
    )
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.25, 0.1], help="shares of tokens (0.25 0.1)")
    parser.add_argument("--strategy", default="attention", help="strategy of fetching (default: attention)")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS, help="of the reader (default: both)")
    warm = "longer side in the warm-up round, px, for machines that are slow (default: as timed)"
    parser.add_argument("--warm-up", type=int, default=None, help=warm)
    parser.add_argument("--no-memory", action="store_true", help="do not run all once more to measure memory")
    parser.add_argument("--rounds", type=int, default=1, help="timed rounds, after a warm-up (default: 1)")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (default: 2)")
    parser.add_argument(
        "--dtype", default="bfloat16", choices=("bfloat16", "float32"), help="dtype of the weights (default: bfloat16)"
    )
    clock = "wall, or cpu where other programs share the cores: seconds of all threads (default: wall)"
    parser.add_argument("--clock", default="wall", choices=CLOCKS, help=clock)
    args = parser.parse_args(arguments)
    try:
        run(args)
    except (ValueError, FileNotFoundError) as error:
        sys.exit(f"{parser.prog}: {error}")


def run(args: argparse.Namespace) -> None:
    """Times all calls for each side and prints seconds, ratios and memory.

    Raises:
        ValueError: fewer than one round, thread or px, or the reader refuses the arguments.
    """
    for name in ("rounds", "threads"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name}: expected at least 1; got {getattr(args, name)}")
    for name, sides in (("sides", args.sides), ("warm-up", [args.warm_up or 64])):
        if min(sides) < 64:
            raise ValueError(f"--{name}: expected at least 64 px; got {min(sides)}")
    torch.set_num_threads(args.threads)
    reader = random_reader(args.sizes, getattr(torch, args.dtype))
    page, where = Image.open(args.image).convert("RGB"), environment(torch.device("cpu"))
    parameters = sum(weight.numel() for weight in reader.model.parameters()) / 1e6
    print(f"{args.sizes}, {parameters:.0f} M parameters, {args.dtype}, strategy {args.strategy}, {args.clock} seconds")
    machine = where["machine"]
    print(f"{machine['device']}, {machine['cpus']} cores, {args.threads} threads, {where['date']}")
    resized = partial(_resized, page)
    if args.warm_up:
        alternate(calls(reader, resized(args.warm_up), args.budgets, args.strategy, args.ways), 1, warm_up=False)
    for side in args.sides:
        image = resized(side)
        timed = calls(reader, image, args.budgets, args.strategy, args.ways)
        grid = reader.processor(text=[reader.runner.chat(1, "?")], images=[[image]], return_tensors="pt")["input_ids"]
        tokens = int((grid == reader.model.config.image_token_id).sum())
        seconds = alternate(timed, args.rounds, CLOCKS[args.clock], warm_up=not args.warm_up)
        print(f"\n{image.width} x {image.height} px, {tokens} image tokens, {args.rounds} rounds")
        plain = next(iter(seconds))
        print(table(seconds, plain) if args.no_memory else with_memory(seconds, peaks(timed)), flush=True)


def _resized(page: Image.Image, side: int) -> Image.Image:
    scale = side / max(page.size)
    return page.resize((round(page.width * scale), round(page.height * scale)))


if __name__ == "__main__":
    main()
