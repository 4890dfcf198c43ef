"""How long does the next question about an image take, compared with the first?

    python -m benchmarks.second_question [MODEL] [--rounds 15] [--new-tokens 1]

First: `model.generate(image, question)`. Second: `model.generate(encoding, question)` with the result of
`encode_image`. The two alternate in one process; figures are medians, and the median of the ratios of pairs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from arr_coc.files import run_module
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from .timing import alternate, argument_parser

QUESTIONS = ("What is the total?", "What is the date?")


@dataclass(frozen=True)
class SecondQuestion:
    """Median seconds of a first and of a second question, and the median ratio second / first."""

    first: float
    second: float
    ratio: float


def second_question(
    model: ArrCocForConditionalGeneration,
    image: Image.Image,
    *,
    rounds: int = 15,
    new_tokens: int = 1,
    strategy: str | None = None,
) -> SecondQuestion:
    """Times both alternately, after a warm-up of each.

    Args:
        model: with its processor.
        image: the image.
        rounds: number of pairs.
        new_tokens: generated tokens; 1 gives the time to the first token.
        strategy: the scorer; None: the model's.
    """
    settings: dict[str, Any] = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "strategy": strategy}
    encoding = model.encode_image(image)
    seconds = alternate(
        {
            "first": lambda: model.generate(image, QUESTIONS[0], **settings),
            "second": lambda: model.generate(encoding, QUESTIONS[1], **settings),
        },
        rounds,
    )
    first, second = seconds["first"], seconds["second"]
    return SecondQuestion(first.median, second.median, second.times(first))


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argument_parser(__doc__, "hub_configs/arr-coc-tiny-2", rounds=15)
    parser.add_argument("--image", help="an image (default: grey noise of the model's side)")
    parser.add_argument("--new-tokens", type=int, default=1)
    parser.add_argument("--strategy", help="the scorer (default: the model's)")
    arguments = parser.parse_args()
    model = ArrCocForConditionalGeneration.from_pretrained(Path(arguments.model)).eval()
    side = model.config.vision_config.image_size
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    image = Image.open(arguments.image) if arguments.image else Image.fromarray(noise)
    settings = {"rounds": arguments.rounds, "new_tokens": arguments.new_tokens, "strategy": arguments.strategy}
    result = second_question(model, image, **settings)
    tokens = f"{arguments.new_tokens} new token" + ("s" if arguments.new_tokens > 1 else "")
    print(f"{arguments.model}, {side} px, {tokens}, {torch.get_num_threads()} threads, medians of {arguments.rounds}")
    print(f"first question   {1000 * result.first:8.1f} ms")
    print(f"second question  {1000 * result.second:8.1f} ms")
    print(f"second / first   {result.ratio:8.2f}")


if __name__ == "__main__":
    run_module(main)
