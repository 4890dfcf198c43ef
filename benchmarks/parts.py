"""Is a part of a model without effect? Each part in turn gets noise, and the questions are asked again.

    python -m benchmarks.parts MODEL DATA.jsonl [--limit 200]

A part is the weights of one name, over all layers. The noise has the spread of the weights that it is added to. The
table says how many answers it changes; a part that changes none may go.
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


def parts_of(model: torch.nn.Module) -> dict[str, list[torch.nn.Parameter]]:
    """The weights of each part, by its name without numbers of layers."""
    parts = defaultdict[str, list[torch.nn.Parameter]](list)
    for name, weight in model.named_parameters():
        words = re.sub(r"\.\d+\b|\.(weight|bias)$", "", name).split(".")
        parts[".".join(words[1:4] if "language_model" in words else words[1:5])].append(weight)
    return dict(parts)


@torch.no_grad()
def add_noise(weights: Sequence[torch.nn.Parameter], seed: int = 0) -> None:
    """Adds noise of its own standard deviation to each of the weights, or of its size to a single number."""
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        spread = weight.float().std() if weight.numel() > 1 else weight.float().abs().mean()
        weight.add_((torch.randn(weight.shape, generator=generator) * spread.cpu()).to(weight))


def encoded(model: Any, records: Sequence[Record]) -> list[tuple[Any, list[str]]]:
    """Each page and its questions."""
    pages = groupby(records, key=lambda record: record.image)
    return [(model.encode_image(page), [record.question for record in own]) for page, own in pages]


def answers(model: Any, pages: Sequence[tuple[Any, list[str]]]) -> list[str]:
    """The answers to all questions, those of a page in one batch."""
    return [text for page, questions in pages for text in model.generate(page, questions, max_new_tokens=LONGEST)]


def main() -> None:
    """Measures from the command line."""
    parser = argument_parser(__doc__, None)
    parser.add_argument("data", type=Path, help="questions, in a format of arr-coc evaluate")
    parser.add_argument("--limit", type=int, default=200, help="questions (default: 200)")
    args = parser.parse_args()
    model, records = load_model(args.model), read_records(args.data)[: args.limit]
    pages = encoded(model, records)
    expected = answers(model, pages)
    for name, weights in tqdm(parts_of(model).items()):
        kept = [weight.detach().clone() for weight in weights]
        add_noise(weights)
        found = answers(model, encoded(model, records) if name.startswith("vision_tower") else pages)
        changed = sum(one != other for one, other in zip(found, expected, strict=True))
        tqdm.write(f"{name:60} {changed:4} of {len(records)} answers changed ({changed / len(records):.0%})")
        with torch.no_grad():
            for weight, old in zip(weights, kept, strict=True):
                weight.copy_(old)


if __name__ == "__main__":
    run_module(main)
