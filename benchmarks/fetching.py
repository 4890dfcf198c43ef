"""What do textures, each scorer and each allocator cost, compared with the time to the first token?

    python -m benchmarks.fetching [MODEL] [--dtype bfloat16] [--question-tokens 16] [--rounds 5] [--clock cpu]

It uses one image and one question, and every scorer at the model's sizes. Scorers that the checkpoint lacks have random
weights, which cost the same; a folder with only a config gets random weights for all parts. Times are medians of rounds
in which everything runs once, so that shares hold on a busy machine too; `--clock cpu` counts CPU time of all threads.
Fetching is scoring, allocating and gathering, and for "attention" also the language model's prefill of the question:
each scorer with allocator "topk", each allocator with the model's scorer. Textures are computed once per image.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import process_time

import torch
from transformers.cache_utils import DynamicCache
from transformers.utils import logging

from arr_coc.files import run_module
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.grid_encoder import pool_regions
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.pretrained import WEIGHTS, WEIGHTS_INDEX
from arr_coc.modeling.scorers import SCORERS
from arr_coc.modeling.vision_tower import TEXTURE_SETS, gather_patches, textures

from .qwen3_vl import our_inputs
from .timing import CLOCKS, Seconds, alternate, argument_parser

FIRST, ENCODER = "first token", "grid encoder"
"""References of the shares: the first token of an answer, from pixels and a prompt, and the grid encoder in it."""


def with_all_scorers(folder: Path, dtype: torch.dtype = torch.float32) -> ArrCocForConditionalGeneration:
    """The checkpoint, with random weights for scorers that it lacks; all weights are random if it has none.

    Scorers that read text are left out unless the checkpoint holds them.
    """
    config = ArrCocConfig.from_pretrained(folder)
    held = config.fetcher_config.scorers
    kinds = {name: kind for name, kind in SCORERS.items() if not kind.reads_text or name in held}
    config.fetcher_config.scorers = [name for name, kind in kinds.items() if kind.trained]
    kind = ArrCocForConditionalGeneration
    if any((folder / name).is_file() for name in (WEIGHTS, WEIGHTS_INDEX)):
        return kind.from_pretrained(folder, config=config, strict=False, dtype=dtype).eval()
    torch.manual_seed(0)
    return kind._from_config(config, dtype=dtype).eval()


def _with_base_read(model: ArrCocForConditionalGeneration, encoding: ImageEncoding) -> ImageEncoding:
    """The encoding with the language model's prefill of the base tokens, for prompts of `our_inputs`."""
    cache, base = DynamicCache(config=model.config.text_config), encoding.tokens.to(model.dtype)
    model.model(inputs_embeds=base, cache=cache, use_cache=True)
    ids = torch.full((base.shape[1],), model.config.image_token_id)
    layers = [(layer.keys, layer.values) for layer in cache.layers]  # type: ignore[union-attr]
    return replace(encoding, prefix_ids=ids, prefix_cache=layers)  # type: ignore[arg-type]


@torch.no_grad()
def fetching_costs(
    model: ArrCocForConditionalGeneration,
    *,
    question_tokens: int = 16,
    rounds: int = 5,
    clock: Callable[[], float] = process_time,
) -> dict[str, Seconds]:
    """Seconds of `FIRST`, `ENCODER`, each texture set, strategy that `model` can run, and allocator."""
    core, config = model.model, model.config
    usable = [name for name, kind in SCORERS.items() if not kind.trained or name in config.fetcher_config.scorers]
    inputs = our_inputs(config, config.vision_config.image_size, question_tokens)
    inputs["pixel_values"] = pixels = inputs["pixel_values"].to(model.dtype)
    encoding = _with_base_read(model, core.encode_image(pixels, inputs["patch_mask"]))
    selected = core.select_slots(
        inputs["input_ids"],
        encoding,
        query_mask=inputs["query_mask"].bool(),
        image_index=torch.zeros(1).long(),
        choices=FetchChoices(relevance=torch.rand(1, encoding.side**2)),
    )

    def fetch(strategy: str, allocator: str) -> None:
        own = selected if SCORERS[strategy].fetches else replace(selected, budget=0)
        fetched = core.fetch(own, FetchChoices(strategy=strategy, allocator=allocator))
        if fetched.levels is None:
            gather_patches(encoding.features, fetched.indices)
        else:
            pool_regions(encoding.features, fetched.indices, fetched.levels)

    calls: dict[str, Callable[[], object]] = {
        FIRST: partial(model.generate, **inputs, max_new_tokens=1, do_sample=False),
        ENCODER: lambda: core.vision_tower.encode_grid(pixels),
        **{f"textures {kind}": partial(textures, pixels, encoding.side, kind) for kind in TEXTURE_SETS},
        **{f"fetching {name}": partial(fetch, name, "topk") for name in usable},
        **{f"allocator {name}": partial(fetch, config.fetcher_config.strategy, name) for name in ALLOCATORS},
    }
    return alternate(calls, rounds, clock)


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argument_parser(__doc__, "hub_configs/arr-coc-tiny-2", rounds=5, clock="cpu", dtype="float32")
    parser.add_argument("--question-tokens", type=int, default=16)
    arguments = parser.parse_args()
    logging.set_verbosity_error()  # missing weights are expected
    logging.disable_progress_bar()
    model = with_all_scorers(Path(arguments.model), getattr(torch, arguments.dtype))
    costs = fetching_costs(
        model, question_tokens=arguments.question_tokens, rounds=arguments.rounds, clock=CLOCKS[arguments.clock]
    )
    print(
        f"{arguments.model}, {model.config.vision_config.image_size} px, {arguments.question_tokens} question tokens, "
        f"{arguments.dtype}, {arguments.clock} seconds, medians of {arguments.rounds}, "
        f"{torch.get_num_threads()} threads"
    )
    for name, seconds in costs.items():
        whole = ENCODER if name.startswith("textures") else FIRST
        share = 100 * seconds.times(costs[whole])
        print(f"{name:<32}{1000 * seconds.median:10.1f} ms {share:8.2f} % of the {whole}'s")


if __name__ == "__main__":
    run_module(main)
