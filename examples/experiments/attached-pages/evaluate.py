"""Asks the small model of train.py about unseen pages at several shares of image tokens, and stores all predictions.

    python examples/experiments/attached-pages/evaluate.py --model runs/attached-pages

First it trains a scorer for strategy "realizer" on training pages, if the folder has none. Each question is asked of
the plain model, of every strategy with and without base tokens, of re-created pruning rules, and of the plain model on
smaller images. `predictions.csv` has a line for each answer.
"""

import argparse
import csv
import json
import logging
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from small_qwen import ASKED, GRID, POOL, QUESTION, UNIT, draw_page, load_reader, new_page
from torch import Tensor
from tqdm import tqdm

from arr_coc.attached import AttachedReader
from arr_coc.attached.encoding import EncodedPrompt
from arr_coc.attached.runner import PreparedPrompt
from arr_coc.attached.scoring import between_cells, fetch_result, most_relevant, relevance_of_boxes
from arr_coc.data.records import Record, read_records
from arr_coc.evaluation.answers import all_boxes
from arr_coc.evaluation.peers import LAYER, PEERS, EarlyStates, first_layers
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.pages.splits import Split
from arr_coc.training.attached import AttachedScorerStage

HERE = Path(__file__).parent
SHARE, SHARES = 0.25, (0.5, 0.25, 0.125)
ARMS = [
    *((name, share) for name in ("oracle", "realizer", "attention") for share in SHARES),
    *((f"{name}, no base", share) for name in ("oracle", "realizer", "attention") for share in SHARES),
    *((name, SHARE) for name in ("similarity", "saliency", "random")),
]
"""Strategies, and shares of the image tokens; rules are compared at one share."""
RULES = ("fastv", "fastv_last", "sparsevlm", "dart", "cdpruner", "cdpruner_unturned")
"""The rules that need neither a CLS token nor our own model."""
BATCH = 64
COLUMNS = ("arm", "share", "page", "field", "answer", "said", "tokens", "kept")
Row = dict[str, Any]


def write_pages(folder: Path, split: Split, seed: int, count: int) -> Path:
    """Draws pages into a folder, and their questions into its `data.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, lines = np.random.default_rng((seed, 5)), list[str]()
    for number in range(count):
        page = new_page(rng)
        draw_page(rng, page, split).save(folder / f"{number:04}.png")
        for field in page.fields[:ASKED]:
            lines.append(
                json.dumps(
                    {
                        "image": f"{number:04}.png",
                        "question": QUESTION.format(field=field.name),
                        "answers": [field.value],
                        "boxes": [field.value_box],
                        "label_box": field.label_box,
                    }
                )
            )
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "data.jsonl"


def train_scorer(reader: AttachedReader, folder: Path, steps: int, pages: int) -> None:
    """Loads the folder's scorer, or trains one on pages of the training split."""
    file = folder / "scorer.safetensors"
    if not file.exists():
        data = write_pages(folder / "train", "train", 3, pages)
        held = write_pages(folder / "validation", "validation", 4, 20)
        stage = AttachedScorerStage(
            data={"format": "jsonl", "path": str(data)},
            held_out={"format": "jsonl", "path": str(held)},
            steps=steps,
            warmup=min(50, steps - 1),
            batch_size=16,
            evaluate_every=max(1, steps // 6),
            kept=pages + 20,
        )
        stage.train(reader, folder / "scorer", config=ArrCocFetcherConfig(hidden_size=64, num_heads=4, num_layers=2))
        reader.save_adapter(file)
    reader.load_adapter(file)


# ---- one question ----------------------------------------------------------------------------------------------------


def _find(ids: Tensor, words: Tensor) -> Tensor:
    """The last position of each of the question's tokens behind the images; all positions if they are not found.

    A tokenizer may join the first or last letters of a question with the text around it.
    """
    if 0 < len(words) <= len(ids):
        hits = (ids.unfold(0, len(words), 1) == words).all(-1).nonzero().flatten()
        if len(hits):
            return hits[-1] + torch.arange(len(words), device=ids.device)
    return torch.arange(len(ids), device=ids.device)


def read_all(reader: AttachedReader, encoding: Any, prompt: EncodedPrompt, question: str) -> Any:
    """The language model's first layers on the prompt with all image tokens, in their M-RoPE places, as the re-created
    rules see it: see `arr_coc.evaluation.peers.Question`."""
    runner, language_model = reader.runner, reader.model.model.language_model
    placed = runner.place(prompt, reader.runner.plain(prompt, question), None)
    image = placed.ids == reader.model.config.image_token_id
    places, text = image.nonzero()[:, 0], (~image).nonzero()[:, 0]
    embeds = reader.model.get_input_embeddings()(placed.ids).clone()
    embeds[places] = placed.tokens.to(embeds)
    behind = text[text > places[-1]]
    asked = behind[0] + _find(placed.ids[behind], reader.runner.words(question))
    with first_layers(language_model, LAYER) as tensors:
        reader.model.base_model(**runner._inputs(encoding, [placed]), use_cache=False)
    hidden = tensors["hidden"]
    reading = EarlyStates(tensors["attention"], tensors["keys"], hidden[0], language_model.norm(hidden)[0])
    return SimpleNamespace(embeds=embeds, places=places, asked=asked, behind=behind, reading=reading)


def chosen_otherwise(
    reader: AttachedReader, encodings: dict[int, Any], record: Record
) -> Iterator[tuple[str, Any, Tensor]]:
    """Tokens chosen by attention of a language model that reads base tokens alone; by each rule; and by boxes, with
    the strongest edges, or the most attention, beside them. Each with the encoding that they belong to."""
    based, bare, count = encodings[POOL], encodings[0], round(SHARE * GRID**2)
    (prompt,) = based.prompts
    paid = between_cells(reader.runner.attention(based, prompt, record.question), prompt)
    yield "attention to base", based, most_relevant(paid, prompt.is_place, count - len(prompt.base))
    asked = read_all(reader, bare, bare.prompts[0], record.question)
    for name in RULES:
        yield name, bare, PEERS[name].rule(asked, count).sort().values
    boxes = relevance_of_boxes(prompt, [all_boxes(record, 0)])
    paid = reader.runner.attention(bare, bare.prompts[0], record.question, to_all=True)
    for name, others in (("saliency", prompt.saliency), ("attention", paid)):
        chosen = most_relevant(boxes * (1 + others.max()) + others, prompt.is_place, count)
        yield f"oracle and {name}", bare, chosen


def arms(
    reader: AttachedReader, encodings: dict[int, Any], small: list[Any], record: Record
) -> Iterator[tuple[str, float, PreparedPrompt]]:
    """Name, share of the image tokens, and prompt of each arm for a question.

    Args:
        reader: of the model.
        encodings: the page without base tokens and with them, by pool.
        small: smaller copies of the page.
        record: the question.
    """

    def ask(own: Any, budget: Any, strategy: str = "saliency", **given: Any) -> PreparedPrompt:
        return reader.ask(own, own.prompts[0], record.question, budget=budget, strategy=strategy, **given)

    yield "keep all", 1.0, ask(encodings[0], "all")
    for name, share in ARMS:
        strategy, _, without = name.partition(", ")
        given: Any = {"boxes": [all_boxes(record, 0)]} if strategy == "oracle" else {"seed": record.line}
        yield name, share, ask(encodings[0 if without else POOL], share, strategy, **given)
    for own in small:
        yield "smaller image", len(own.prompts[0]) / GRID**2, ask(own, "all")
    for name, own, chosen in chosen_otherwise(reader, encodings, record):
        (prompt,) = own.prompts
        fetch = fetch_result(prompt, chosen, *[torch.zeros(GRID**2)] * 2, name, failed=False)
        placed = reader.runner.place(prompt, reader.runner.plain(prompt, record.question), chosen)
        yield name, SHARE, PreparedPrompt(own, prompt, placed, fetch)


@torch.no_grad()
def predict(reader: AttachedReader, records: list[Record]) -> list[Row]:
    """All answers to all questions, arm by arm."""
    rows, sides = list[Row](), [UNIT * round(GRID * share**0.5) for share in SHARES[:2]]
    for path, group in groupby(tqdm(records, unit="question"), lambda record: record.image):
        page, asked = Image.open(path), list[tuple[Row, PreparedPrompt]]()
        encodings = {pool: reader.encode_image(page, pool=pool) for pool in (0, POOL)}
        small = [reader.encode_image(page.resize((side, side), Image.Resampling.BICUBIC), pool=0) for side in sides]
        for record in group:
            known = {"page": int(Path(str(path)).stem), "field": record.question.split()[-1].rstrip("?")}
            for arm, share, own in arms(reader, encodings, small, record):
                relevant, chosen = relevance_of_boxes(own.prompt, [all_boxes(record, 0)]), own.fetch.indices[0]
                row = {
                    **known,
                    "arm": arm,
                    "share": round(share, 4),
                    "answer": record.answers[0],
                    "tokens": len(chosen) + own.fetch.base,
                    "kept": f"{float(relevant[chosen].sum() / relevant.sum()):.2g}",
                }
                asked.append((row, own))
        order = sorted(range(len(asked)), key=lambda at: len(asked[at][1].placed.ids))  # little padding
        for start in range(0, len(order), BATCH):
            part = [asked[at] for at in order[start : start + BATCH]]
            said = reader._answers([own for _, own in part], {"do_sample": False, "max_new_tokens": 6}, False)
            for (row, _), text in zip(part, said, strict=True):
                row["said"] = text
        rows += [row for row, _ in asked]
    names = list(dict.fromkeys((row["arm"], row["share"]) for row in rows))
    return sorted(rows, key=lambda row: names.index((row["arm"], row["share"])))


def main() -> None:
    """Evaluates from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("runs/attached-pages"), help="train.py's --out")
    parser.add_argument("--split", default="test", choices=("validation", "test"), help="of the pages (test)")
    parser.add_argument("--pages", type=int, default=50, help=f"number of pages, each with {ASKED} questions (50)")
    parser.add_argument("--scorer", nargs=2, type=int, default=[400, 200], help="steps and pages of its training")
    parser.add_argument("--out", type=Path, default=HERE / "predictions.csv", help="file of the predictions")
    args = parser.parse_args()
    torch.manual_seed(0)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    reader = load_reader(args.model)
    train_scorer(reader, args.model, *args.scorer)
    records = list(read_records(write_pages(args.model / args.split, args.split, 6, args.pages)))
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(predict(reader, records))


if __name__ == "__main__":
    main()
