"""Asks trained arms about test pages; stores all predictions.

    python examples/experiments/base-share/evaluate.py --model MODEL    # predictions.csv, costs.json beside the pages

With `--split validation` it asks about the pages that the best split is chosen on, into validation.csv; `--swapped`
asks with the base tokens of another page, for the swap test. What a file holds already is not asked again, and
processes for different arms may write to it side by side.
"""

import json
import logging
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from arms import ArmTask, Asking, StoredPage, questions_of
from predictions import QUESTION, SEVERAL, Column, Row, add, check_questions, columns, read
from tqdm import tqdm
from train import chosen, new_run, options, stage_of

from arr_coc.files import sole_writer
from arr_coc.pages.page import Question
from arr_coc.training.attention import eager_attention
from arr_coc.training.checkpoints import load_state
from arr_coc.training.reader.language_model import stacked

TIMED = 12
"""Pages whose first question is timed."""


def ask(
    task: ArmTask,
    pages: list[StoredPage],
    column: Column,
    kept: Callable[[StoredPage], Mapping[int, np.ndarray]] | None = None,
) -> list[Row]:
    """The answers about all pages, as rows of `predictions.add`.

    Args:
        task: of the arm.
        pages: of which all questions are asked.
        column: of the answers; "swapped": with the base tokens of the page before of the same source.
        kept: what a rule keeps of a page, see `Asking`.
    """
    askings, rows = list[Asking](), []
    for number, page in enumerate(pages):
        others = [other for other in pages[number - 1 :: -1] + pages[:number:-1] if other["source"] == page["source"]]
        other = next((other for other in others if other is not page), pages[number - 1]) if column.what else None
        askings.append(Asking(page, other, kept(page) if kept else None))
    for page, question, arm, told in task.answers(tqdm(askings, desc=str(column))):
        row = {**described(page, question), str(column): told}
        rows.append(row if arm is task.arm else {**row, str(column._replace(what="split")): arm.name})
    return rows


def described(page: StoredPage, question: Question) -> Row:
    """A question's row of a table, without answers."""
    asked = (str(page["page"]), page["source"], question.kind, question.text, SEVERAL.join(question.answers))
    return dict(zip(QUESTION, asked, strict=True))


def asked_about(task: ArmTask, pages: Sequence[StoredPage]) -> list[Row]:
    """The rows of all questions that `ask` would ask."""
    return [described(page, questions_of(page)[number]) for page in pages for number in task.asked(page)]


@torch.no_grad()
def costs(task: ArmTask, pages: list[StoredPage]) -> dict[str, float]:
    """Of one question: image tokens; median milliseconds of the language model to the answer; GFLOP (2 per weight and
    image token; where a scorer chooses, also 2 per weight of it and wordpiece of the page); and MB of keys and values.
    The encoder is the same for all arms but `smaller`."""
    config, device = task.run.model.config.text_config, task.run.device
    fetcher = task.run.model.model.fetcher
    scorer = _weights(fetcher.scorer(task.run.model.config.fetcher_config.strategy))
    language = _weights(task.run.model.model.language_model)
    times, tokens, gflop = list[float](), list[int](), list[float]()
    for page in pages[:1] + pages[:TIMED]:  # the first warms up
        (arm,) = task.chosen(page, [0])
        batch = stacked([task.maker.row(page, arm, [0], np.random.default_rng(0))]).to(device)
        embeds = task.embedded(batch)
        began = time.perf_counter()
        task.language.answers(embeds, batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
        tokens.append(int((batch.fetched | batch.base).sum()))
        scored = len(page["tokens"]["pieces"]) if arm.budget and task.arm.fetched in ("scorer", "auto") else 0
        gflop.append(2 * (language * tokens[-1] + scorer * scored) / 1e9)
    kept = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2 / 1e6
    return {
        "tokens": mean(tokens[1:]),
        "first_token_ms": median(times[1:]),
        "gflop": mean(gflop[1:]),
        "mb": kept * mean(tokens[1:]),
    }


def _weights(module: torch.nn.Module) -> int:
    """Of its layers, without embeddings and adapters."""
    return sum(each.numel() for name, each in module.named_parameters() if "embed" not in name and "lora" not in name)


def load(args: Namespace, arm: str, seed: int) -> ArmTask | None:
    """A trained arm; None, and a line of the log, where it has not been trained."""
    folder = args.out / f"{arm}-{seed}"
    state = load_state(folder / "question_answering") if (folder / "done").exists() else None
    if state is None:
        logging.info(f"{arm}-{seed}: not trained to its end")
        return None
    task = stage_of(arm, seed, args).task(new_run(args.model, args.device))
    task.module.load_state_dict(state["weights"])
    return task


def fastest_attention(task: ArmTask) -> AbstractContextManager[None]:
    """As in training: explicit attention where pages are computed one by one, PyTorch's own elsewhere."""
    return eager_attention(task.run.model.model.language_model) if task.stage.writes_out else nullcontext()


def main() -> None:
    """Evaluates from the command line."""
    parser = options((__doc__ or "").split("\n")[0])
    parser.add_argument("--split", default="test", choices=("validation", "test", "bench"), help="of the pages (test)")
    parser.add_argument("--predictions", type=Path, help="(predictions.csv beside the pages; of others SPLIT.csv)")
    parser.add_argument("--swapped", action="store_true", help="with another page's base tokens")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    name = "predictions" if args.split == "test" else args.split
    args.predictions = args.predictions or args.pages / f"{name}.csv"
    kept = args.predictions.with_name("costs.json")
    asked = set(columns(read(args.predictions)))
    for arm, seed in chosen(args):
        column = Column(arm, str(seed), "swapped" if args.swapped else "")
        if column in asked:
            logging.info(f"{column}: asked before")
            continue
        task = load(args, arm, seed)
        if task is None or (args.swapped and not task.arm.base):
            continue
        pages = task.read(args.split)
        check_questions(args.predictions, asked_about(task, pages))
        with fastest_attention(task):
            add(args.predictions, ask(task, pages, column))
            known = json.loads(kept.read_text()) if kept.exists() else {}
            measured = {} if arm in known or args.swapped else {arm: costs(task, pages)}
        with sole_writer(kept, patience=60):
            known = json.loads(kept.read_text()) if kept.exists() else {}
            kept.write_text(json.dumps({**measured, **known}, indent=1) + "\n")


if __name__ == "__main__":
    main()
