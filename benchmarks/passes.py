"""What does a further pass cost, compared with asking again with as many patches?

    python -m benchmarks.passes [MODEL] [--rounds 15] [--budget 53] [--clock cpu]

It compares four calls. One: `generate(encoding, question)` with the budget. Two: with `num_passes=2`, without
exploration. All: with twice the budget in one pass. Fresh: as all, but with the image itself; the others use an encoded
image. The further pass costs two - one. The calls alternate in one process; figures are medians.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from arr_coc.files import run_module
from arr_coc.model_summary import QUESTION, generated_image
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from .timing import CLOCKS, alternate, argument_parser


@dataclass(frozen=True)
class PassCost:
    """Median seconds of one pass, of two, of one with the patches of both, and of the last including the encoder."""

    one: float
    two: float
    all: float
    fresh: float

    @property
    def further(self) -> float:
        """Seconds of the second pass."""
        return self.two - self.one


def cost_of_a_pass(
    model: ArrCocForConditionalGeneration,
    image: Image.Image,
    *,
    budget: int,
    rounds: int = 15,
    clock: Callable[[], float] = time.perf_counter,
) -> PassCost:
    """Times the four calls with one token each.

    Args:
        model: with its processor.
        image: the image.
        budget: patches per pass.
        rounds: number of timed rounds.
        clock: see `alternate`.
    """
    seen = model.encode_image(image, tiles="never")
    settings: dict[str, Any] = {"max_new_tokens": 1, "min_new_tokens": 1, "return_fetch": True}
    seconds = alternate(
        {
            "one": lambda: model.generate(seen, QUESTION, budget=budget, **settings),
            "two": lambda: model.generate(seen, QUESTION, budget=budget, num_passes=2, exploration="none", **settings),
            "all": lambda: model.generate(seen, QUESTION, budget=2 * budget, **settings),
            "fresh": lambda: model.generate(image, QUESTION, budget=2 * budget, tiles="never", **settings),
        },
        rounds,
        clock=clock,
    )
    return PassCost(*(seconds[name].median for name in ("one", "two", "all", "fresh")))


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argument_parser(__doc__, "hub_configs/arr-coc-tiny-2", rounds=15, clock="wall")
    parser.add_argument("--budget", type=int, default=53)
    arguments = parser.parse_args()
    model = ArrCocForConditionalGeneration.from_pretrained(arguments.model).eval()
    side = model.config.vision_config.image_size
    cost = cost_of_a_pass(
        model, generated_image(side), budget=arguments.budget, rounds=arguments.rounds, clock=CLOCKS[arguments.clock]
    )
    print(f"{arguments.model}, {side} px, 1 token, {torch.get_num_threads()} threads, medians of {arguments.rounds}")
    print(f"one pass of {arguments.budget} patches    {1000 * cost.one:8.1f} ms")
    print(f"two passes              {1000 * cost.two:8.1f} ms")
    print(f"one pass of all patches {1000 * cost.all:8.1f} ms")
    print(f"from the image on       {1000 * cost.fresh:8.1f} ms")
    print(f"further pass / question about an encoded image {cost.further / cost.all:.2f}")
    print(f"further pass / question from the image on      {cost.further / cost.fresh:.2f}")


if __name__ == "__main__":
    run_module(main)
