"""What do more views of an image cost? Encoder, scoring with joint allocation, prefill, memory; and the next question.

    python -m benchmarks.views [MODEL] [--views 1 4 16 64] [--rounds 3] [--random]

The image is noise of the size that its tiles need: no tiles for one view, else k * k tiles and the overview. Seconds
are medians of one run. Memory is counted tensor by tensor: the size of the encoding (features and rest), and the peak
while encoding.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer

from arr_coc.files import run_module
from arr_coc.modeling.budgets import AS_SEEN
from arr_coc.modeling.configuration_arr_coc import COMPRESSION, ArrCocConfig
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor
from arr_coc.modeling.prompt import query_markers

from .costs import LiveTensors
from .second_question import QUESTIONS
from .timing import argument_parser


@dataclass(frozen=True)
class ViewCosts:
    """The costs of one image: number of encoded `views`, `tokens` of the language model, seconds and bytes.

    `fetch`: scoring and joint allocation; `prefill`: placing the fetched patches and the language model's prefill;
    `first`: encoding and the time to the first token; `second`: the time to the first token of another question.
    """

    views: int
    tokens: int
    encoder: float
    fetch: float
    prefill: float
    first: float
    second: float
    held: int
    peak: int


def random_model(folder: Path) -> ArrCocForConditionalGeneration:
    """A model of a folder's configuration with random weights in bfloat16, and the tokenizer of arr-coc-tiny-2."""
    config = ArrCocConfig.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parents[1] / "hub_configs" / "arr-coc-tiny-2")
    config.image_token_id = tokenizer.get_vocab()["<|image_pad|>"]
    config.query_markers = query_markers(tokenizer)
    vision = config.vision_config
    size = {"height": vision.image_size, "width": vision.image_size}
    model = ArrCocForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    model.processor = ArrCocProcessor(ArrCocImageProcessor(size=size, patch_size=vision.patch_size), tokenizer)
    return model


def image_of(model: ArrCocForConditionalGeneration, columns: int) -> Image.Image:
    """Noise that needs `columns` x `columns` tiles; with one column, none."""
    config = model.config.vision_config
    step = math.floor(config.patch_size / AS_SEEN.tile_scale)
    window, overlap = step * config.grid_size, step * COMPRESSION
    side = config.image_size if columns == 1 else window + (columns - 1) * (window - overlap)
    small = np.random.default_rng(0).integers(0, 256, (side // 8 + 1, side // 8 + 1, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((side, side))


def held_bytes(encoding: ImageEncoding) -> int:
    """Bytes of all tensors of an encoding except the language model's prefix cache."""

    def size(value: Any) -> int:
        if isinstance(value, Tensor):
            return value.nbytes
        if isinstance(value, list | tuple):
            return sum(map(size, value))
        return sum(size(getattr(value, part.name)) for part in fields(value)) if hasattr(value, "windows") else 0

    return sum(size(getattr(encoding, part.name)) for part in fields(encoding) if "prefix" not in part.name)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


@torch.no_grad()
def view_costs(model: ArrCocForConditionalGeneration, views: int, *, rounds: int = 3) -> ViewCosts:
    """Measures an image of `views` views, a square number.

    Raises:
        ValueError: `views` is not a square number.
    """
    columns = math.isqrt(views)
    if views < 1 or columns**2 != views:
        raise ValueError(f"views: expected square numbers; got {views}")
    image, core = image_of(model, columns), model.model
    options: dict[str, Any] = {"tiles": "never" if columns == 1 else "all", "max_tiles": views}
    counter = LiveTensors()
    with counter:
        encoding = model.encode_image(image, **options)
    times: dict[str, list[float]] = {"encoder": [], "fetch": [], "prefill": [], "second": [], "first": []}
    fetch, spent = core.fetch, list[float]()

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        fetched = fetch(*args, **kwargs)
        spent.append(time.perf_counter() - began)
        return fetched

    core.fetch = timed
    try:
        for _ in range(rounds + 1):
            times["encoder"].append(_seconds(lambda: model.encode_image(image, **options)))
            times["second"].append(_seconds(lambda: model.generate(encoding, QUESTIONS[1], max_new_tokens=1)))
            times["first"].append(times["encoder"][-1] + times["second"][-1])
            times["fetch"].append(spent[-1])
            times["prefill"].append(times["second"][-1] - spent[-1])
    finally:
        del core.fetch
    answer = model.generate(encoding, QUESTIONS[0], max_new_tokens=1, return_fetch=True)
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}  # without the warm-up round
    tokens = encoding.base_positions + int(answer.fetch.tokens.sum())
    count = 1 + (0 if encoding.tiles is None else len(encoding.tiles))
    return ViewCosts(views=count, tokens=tokens, held=held_bytes(encoding), peak=counter.peak, **medians)


def main() -> None:
    parser = argument_parser(__doc__, "hub_configs/arr-coc-tiny-2", rounds=3)
    parser.add_argument("--views", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--random", action="store_true", help="use random weights, for a MODEL that has only a config")
    arguments = parser.parse_args()
    make = random_model if arguments.random else ArrCocForConditionalGeneration.from_pretrained
    model = make(Path(arguments.model)).eval()
    print(f"{arguments.model}, {torch.get_num_threads()} threads, medians of {arguments.rounds}")
    print("views tokens  encoder s  fetch s  of first prefill s  second s  of first  held MB  peak MB")
    for views in arguments.views:
        costs = view_costs(model, views, rounds=arguments.rounds)
        fetch = f"{costs.fetch:8.4f} {costs.fetch / costs.first:9.1%}"
        second = f"{costs.second:9.3f} {costs.second / costs.first:9.1%}"
        memory = f"{costs.held / 1e6:8.1f} {costs.peak / 1e6:8.1f}"
        print(f"{costs.views:5} {costs.tokens:6} {costs.encoder:10.3f} {fetch} {costs.prefill:9.3f} {second} {memory}")


if __name__ == "__main__":
    run_module(main)
