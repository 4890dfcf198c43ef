"""What do textures, each scorer and each allocator cost beside all that a question waits for?

    python -m arr_coc.profiling.fetching [MODEL] [--rounds 5]

One image and one question, every scorer at the model's sizes; those that the checkpoint does not hold have random
weights, which cost the same. In processor time (all threads together), medians of rounds in which everything runs once:
so that shares hold on a busy machine too. Fetching is scoring, allocating and gathering, and for "glance" the language
model's reading of the question: by each scorer with allocator "topk", by each allocator with the model's own scorer.
Textures are made once per image.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.regions import pool_regions
from arr_coc.modeling.scorers import SCORERS
from arr_coc.modeling.textures import TEXTURE_SETS, textures
from arr_coc.modeling.vision_tower import gather_patches

from .stages import QUESTION, generated_image
from .timing import Seconds, alternate

FIRST, ENCODER = "first token", "grid encoder"
"""What the others are shares of: an answer's first token with strategy "saliency", and the grid encoder in it."""


def with_all_scorers(folder: Path) -> ArrCocForConditionalGeneration:
    """The checkpoint, and random weights for the scorers that it does not hold."""
    config = ArrCocConfig.from_pretrained(folder)
    config.fetcher_config.scorers = [name for name, kind in SCORERS.items() if kind.trained]
    return ArrCocForConditionalGeneration.from_pretrained(folder, config=config, strict=False).eval()


@torch.no_grad()
def fetching_costs(model: ArrCocForConditionalGeneration, *, rounds: int = 5) -> dict[str, Seconds]:
    """Of `FIRST`, `ENCODER`, each texture set, strategy and allocator; `model` holds every scorer, has a processor."""
    core, image = model.model, generated_image(model.config.vision_config.image_size)
    pixels = model.processor.image_processor([image], return_tensors="pt")["pixel_values"].to(model.device)
    encoding = model.encode_image(image)
    budget = model.config.vision_tokens(strategy="saliency")[1]
    inputs = model.processor.prompts([QUESTION], images=[1], placeholders=encoding.base_positions + budget)
    look = core.look(
        inputs["input_ids"], encoding, query_mask=inputs["query_mask"].bool(), image_index=torch.zeros(1).long(),
        choices=FetchChoices(relevance=torch.rand(1, encoding.side**2)),
    )  # fmt: skip

    def fetch(strategy: str, allocator: str) -> None:
        own = look if SCORERS[strategy].fetches else replace(look, budget=0)
        fetched = core.fetch(own, FetchChoices(strategy=strategy, allocator=allocator))
        if fetched.levels is None:
            gather_patches(encoding.features, fetched.indices)
        else:
            pool_regions(encoding.features, fetched.indices, fetched.levels)

    calls: dict[str, Callable[[], object]] = {
        FIRST: lambda: model.generate(image, QUESTION, strategy="saliency", max_new_tokens=1),
        ENCODER: lambda: core.vision_tower.encode_grid(pixels),
        **{f"textures {kind}": partial(textures, pixels, encoding.side, kind) for kind in TEXTURE_SETS},
        **{f"fetching {name}": partial(fetch, name, "topk") for name in SCORERS},
        **{f"allocator {name}": partial(fetch, model.config.fetcher_config.strategy, name) for name in ALLOCATORS},
    }
    return alternate(calls, rounds, time.process_time)


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", metavar="MODEL", nargs="?", type=Path, default=Path("hub_configs/arr-coc-tiny"))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    costs = fetching_costs(with_all_scorers(arguments.model), rounds=arguments.rounds)
    print(f"{arguments.model}, processor time, medians of {arguments.rounds}, {torch.get_num_threads()} threads")
    for name, seconds in costs.items():
        whole = ENCODER if name.startswith("textures") else FIRST
        share = 100 * seconds.times(costs[whole])
        print(f"{name:<32}{1000 * seconds.median:10.1f} ms {share:8.2f} % of the {whole}'s")


if __name__ == "__main__":
    main()
