"""Is a part of a model without effect? Each part in turn gets noise, and the questions are asked again.

    python -m benchmarks.parts MODEL DATA.jsonl [--limit 200]

A part is the weights of one name, over all layers. The noise has the scale of the weights that it is added to. A
part has an effect if its noise changes 5 % of all answers, and is asked no further from then on; one that changes none
may go.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from arr_coc import load_model
from arr_coc.data.records import Record, read_records
from arr_coc.files import run_module

from .timing import argument_parser

LONGEST = 12
"""New tokens of an answer, as noise in a language model makes it never end."""
ENOUGH = 0.05
"""The share of all answers that a part with an effect changes."""
ENCODING = ("vision_tower", "bridge", "language_model.embed_tokens")
"""How the names of parts begin that an encoded page depends on."""


def parts_of(model: torch.nn.Module) -> dict[str, list[torch.nn.Parameter]]:
    """The weights of each part, by its name without numbers of layers."""
    parts = defaultdict[str, list[torch.nn.Parameter]](list)
    for name, weight in model.named_parameters():
        words = re.sub(r"\.\d+\b|\.(weight|bias)$", "", name).split(".")
        parts[".".join(words[1:4] if "language_model" in words else words[1:5])].append(weight)
    return dict(parts)


@torch.no_grad()
def add_noise(weights: Sequence[torch.nn.Parameter], seed: int = 0) -> None:
    """Adds noise to each of the weights whose standard deviation is the root mean square of the weight."""
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        spread = weight.float().square().mean().sqrt()
        weight.add_((torch.randn(weight.shape, generator=generator) * spread.cpu()).to(weight))


def answers(model: Any, page: Any, records: Sequence[Record]) -> list[str]:
    """The answers to the questions about a page or its encoding, in one batch."""
    return model.generate(page, [record.question for record in records], max_new_tokens=LONGEST)


def main() -> None:
    """Measures from the command line."""
    parser = argument_parser(__doc__, None)
    parser.add_argument("data", type=Path, help="questions, in a format of arr-coc evaluate")
    parser.add_argument("--limit", type=int, default=200, help="questions (default: 200)")
    args = parser.parse_args()
    model, records = load_model(args.model), read_records(args.data)[: args.limit]
    pages = [(model.encode_image(page), list(own)) for page, own in groupby(records, key=lambda each: each.image)]
    expected = [answers(model, encoding, own) for encoding, own in pages]
    for name, weights in tqdm(parts_of(model).items()):
        kept = [weight.detach().clone() for weight in weights]
        add_noise(weights)
        asked = changed = 0
        for (encoding, own), before in zip(pages, expected, strict=True):
            found = answers(model, own[0].image if name.startswith(ENCODING) else encoding, own)
            asked += len(own)
            changed += sum(one != other for one, other in zip(found, before, strict=True))
            if changed >= ENOUGH * len(records):
                break
        tqdm.write(f"{name:60} {changed:4} of the first {asked} answers changed")
        with torch.no_grad():
            for weight, old in zip(weights, kept, strict=True):
                weight.copy_(old)


if __name__ == "__main__":
    run_module(main)
