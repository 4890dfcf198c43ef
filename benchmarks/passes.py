"""What does a further pass cost, against asking the question afresh with as many patches?

    python -m benchmarks.passes [MODEL] [--rounds 15] [--budget 53] [--clock cpu]

One: `generate(encoding, question)` with the budget; two: with `num_passes=2`, without exploration; all: with twice the
budget in one pass; all on an image that is encoded already; fresh: the last with the image itself. The further pass is
two - one. The four alternate in one process; the figures are medians.
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
    """Median seconds of one pass, of two, of one with the patches of both, and of that from the image on."""

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
    """Times the four, the first three on an encoded image, one token each.

    Args:
        model: with its processor.
        image: to ask about.
        budget: patches of a pass.
        rounds: of all three.
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
