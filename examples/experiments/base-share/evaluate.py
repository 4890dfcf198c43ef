"""Asks trained arms about test pages; stores all predictions.

    python examples/experiments/base-share/evaluate.py --model MODEL    # OUT: predictions.csv, costs.json

With `--split validation --predictions FILE` it asks about the pages that the best split is chosen on; `--swapped` asks
with the base tokens of another page, for the swap test. What predictions.csv holds already is not asked again, and
processes for different arms may write to it side by side. `said` is what the model writes greedily, up to its first
token that is not the answer's.
"""

import csv
import json
import logging
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from arms import ArmTask, StoredPage, is_right
from tqdm import tqdm
from train import chosen, new_run, options, stage_of

from arr_coc.training.attention import all_eager_attention
from arr_coc.training.reader.language_model import stacked

HERE = Path(__file__).parent
COLUMNS = ("arm", "seed", "swapped", "page", "source", "kind", "question", "answer", "said", "right", "tokens", "split")
TIMED = 12
"""Pages whose first question is timed."""
Row = dict[str, Any]


Kept = Mapping[int, np.ndarray]


def ask(
    task: ArmTask, pages: list[StoredPage], swapped: bool = False, kept: Callable[[StoredPage], Kept] | None = None
) -> list[Row]:
    """The answers about all pages.

    Args:
        task: of the arm.
        pages: of which all questions are asked.
        swapped: with the base tokens of the page before of the same source.
        kept: what a rule keeps of a page, see `ArmTask.answers`.
    """
    rows = []
    for number, page in enumerate(tqdm(pages, desc=f"{task.arm.name}{', swapped' if swapped else ''}")):
        others = [other for other in pages[number - 1 :: -1] + pages[:number:-1] if other["source"] == page["source"]]
        other = next((other for other in others if other is not page), pages[number - 1]) if swapped else None
        for question, arm, text, tokens in task.answers(page, other, kept(page) if kept else None):
            rows.append({
                "page": page["page"], "source": page["source"], "kind": question.kind, "question": question.text,
                "answer": question.answers[0], "said": text, "right": int(is_right(text, question)),
                "tokens": tokens, "split": arm.name, "swapped": int(swapped),
            })  # fmt: skip
    return rows


@torch.no_grad()
def costs(task: ArmTask, pages: list[StoredPage]) -> dict[str, float]:
    """Of one question: image tokens; median milliseconds of the language model to the first token; its GFLOP (2 per
    weight and image token), and MB of their keys and values. The encoder is the same for all arms but `smaller`."""
    config, device = task.run.model.config.text_config, task.run.device
    times, tokens = list[float](), list[int]()
    for page in pages[:TIMED]:
        (arm,) = task.chosen(page, [0])
        batch = stacked([task.maker.row(page, arm, [0], np.random.default_rng(0))]).to(device)
        embeds = task.embedded(batch)
        began = time.perf_counter()
        task.language.answers(embeds, batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
        tokens.append(int((batch.fetched | batch.base).sum()))
    named = task.run.model.model.language_model.named_parameters()
    weights = sum(each.numel() for name, each in named if "embed" not in name and "lora" not in name)
    kept = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2 / 1e6
    mean = sum(tokens) / len(tokens)
    return {"tokens": mean, "first_token_ms": median(times), "gflop": 2 * weights * mean / 1e9, "mb": kept * mean}


def load(args: Namespace, arm: str, seed: int) -> ArmTask | None:
    """A trained arm; None, and a line of the log, where it has not been trained."""
    checkpoint = args.out / f"{arm}-{seed}" / "question_answering.pt"
    if not (checkpoint.parent / "done").exists():
        logging.info(f"{arm}-{seed}: not trained to its end")
        return None
    task = stage_of(arm, seed, args).task(new_run(args.model, args.device))
    task.module.load_state_dict(torch.load(checkpoint, map_location=task.run.device, weights_only=True)["weights"])
    task.language.adapter.write()
    return task


def stored(path: Path) -> list[Row]:
    """The predictions of a table; none where there is none."""
    if not path.exists():
        return []
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def write(rows: Sequence[Row], path: Path) -> None:
    """Predictions as a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Evaluates from the command line."""
    parser = options((__doc__ or "").split("\n")[0])
    parser.add_argument("--split", default="test", choices=("validation", "test", "bench"), help="of the pages (test)")
    parser.add_argument("--predictions", type=Path, default=HERE / "predictions.csv", help="(beside this file)")
    parser.add_argument("--swapped", action="store_true", help="with another page's base tokens")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    kept = args.predictions.with_name("costs.json")
    for arm, seed in chosen(args):
        if (arm, str(seed), str(int(args.swapped))) in {
            (row["arm"], row["seed"], row["swapped"]) for row in stored(args.predictions)
        }:
            logging.info(f"{arm}-{seed}: asked before")
            continue
        task = load(args, arm, seed)
        if task is None or (args.swapped and not task.arm.base):
            continue
        pages = task.read(args.split)
        with all_eager_attention(task.run.model):  # the fastest on a CPU
            rows = [{"arm": arm, "seed": seed, **row} for row in ask(task, pages, args.swapped)]
        cost = costs(task, pages)
        write([*stored(args.predictions), *rows], args.predictions)
        known = json.loads(kept.read_text()) if kept.exists() else {}
        kept.write_text(json.dumps({arm: cost, **known}, indent=1) + "\n")


if __name__ == "__main__":
    main()
