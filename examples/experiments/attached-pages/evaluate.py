"""Asks the small model of train.py about unseen pages at several shares of image tokens, and stores all predictions.

    python examples/experiments/attached-pages/evaluate.py --model runs/attached-pages    # 2 CPU cores: some minutes

First it trains a scorer for strategy "realizer" on training pages, if the folder has none. Each question is asked of
the plain model, of every strategy with and without base tokens, of re-created pruning rules, and of the plain model on
smaller images. `predictions.csv` has a line for each answer.
"""

import argparse
import csv
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from small_qwen import MERGE, PATCH, SIDE, OracleTower, draw_page, load_reader
from torch import Tensor
from tqdm import tqdm
from train import KINDS, QUESTION

from arr_coc.attached import AttachedReader
from arr_coc.attached.encoding import EncodedPrompt
from arr_coc.attached.runner import PreparedPrompt
from arr_coc.attached.scoring import fetch_result, most_relevant, relevance_of_boxes
from arr_coc.data import Split
from arr_coc.data.records import Record, read_records
from arr_coc.evaluation.peer_rules import PEERS
from arr_coc.evaluation.peers import LAYER, Reading, _Read, _recording, _stopping
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.training.attached import AttachedScorerStage

HERE = Path(__file__).parent
SHARE, SHARES = 0.25, (0.5, 0.25, 0.125)
ARMS = [
    *((name, share) for name in ("attention", "oracle", "realizer") for share in SHARES),
    *((name, SHARE) for name in ("similarity", "saliency", "random")),
    *((f"{name}, no base", share) for name in ("oracle", "realizer") for share in SHARES[1:]),
]  # fmt: skip
"""Strategies, and shares of the image tokens; rules are compared at one share."""
RULES = ("fastv", "fastv_last", "sparsevlm", "dart", "cdpruner", "cdpruner_unturned")
"""The rules that need neither a CLS token nor our own model."""
POOL, BATCH = 4, 64
FIELDS = ("arm", "share", "page", "question", "answer", "said", "tokens", "recall")


def write_pages(reader: AttachedReader, folder: Path, split: Split, seed: int, count: int) -> Path:
    """Draws pages into a folder, and their questions into its `data.jsonl`; an oracle tower sees them."""
    tower = reader.model.model.visual
    folder.mkdir(parents=True, exist_ok=True)
    rng, lines = np.random.default_rng((seed, 5)), list[str]()
    for number in range(count):
        page = draw_page(rng, split, **KINDS["answers"])
        if isinstance(tower, OracleTower):
            tower.learn(page)
        page.image.convert("RGB").save(folder / f"{number:04}.png")
        for entry in page.entries:
            lines.append(json.dumps({
                "image": f"{number:04}.png", "question": QUESTION.format(field=entry.field), "answers": [entry.value],
                "boxes": [entry.value_box], "label_box": entry.label_box,
            }))  # fmt: skip
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "data.jsonl"


def train_scorer(reader: AttachedReader, folder: Path, steps: int, pages: int) -> None:
    """Loads the folder's scorer, or trains one on pages of the training split."""
    file = folder / "scorer.safetensors"
    if not file.exists():
        data = write_pages(reader, folder / "train", "train", 3, pages)
        held = write_pages(reader, folder / "validation", "validation", 4, 10)
        stage = AttachedScorerStage(
            data={"format": "jsonl", "path": str(data)}, held_out={"format": "jsonl", "path": str(held)},
            steps=steps, warmup=min(50, steps - 1), batch_size=16, evaluate_every=max(1, steps // 3),
            kept=pages + 20,
        )  # fmt: skip
        stage.train(reader, folder / "scorer", config=ArrCocFetcherConfig(hidden_size=64, num_heads=4, num_layers=2))
        reader.save_adapter(file)
    reader.load_adapter(file)


# ---- one question ----------------------------------------------------------------------------------------------------


@dataclass
class Asked:
    """A question with all image tokens, as the re-created rules see it: see `arr_coc.evaluation.peers.Question`."""

    embeds: Tensor
    places: Tensor
    asked: Tensor
    behind: Tensor
    reading: Reading


def read_all(reader: AttachedReader, encoding: Any, prompt: EncodedPrompt, question: str) -> Asked:
    """The language model's first layers on the prompt with all image tokens, in their M-RoPE places."""
    runner, language_model = reader.runner, reader.model.model.language_model
    placed = runner.place(prompt, reader.writer.plain(prompt, question), None)
    image = placed.ids == reader.model.config.image_token_id
    places, text = image.nonzero()[:, 0], (~image).nonzero()[:, 0]
    embeds = reader.model.get_input_embeddings()(placed.ids).clone()
    embeds[places] = placed.tokens.to(embeds)
    behind = text[text > places[-1]]
    length, words = int(places[-1]) + 1, reader.writer.words(question)
    starts = [
        at for at in range(length, len(placed.ids) - len(words) + 1) if placed.ids[at : at + len(words)].equal(words)
    ]
    tensors: dict[str, Tensor] = {}
    layers = language_model.layers
    with (
        _recording(language_model, LAYER - 1, tensors),
        _stopping(layers[LAYER] if len(layers) > LAYER else language_model.norm, tensors),
        suppress(_Read),
    ):
        reader.model.base_model(**runner._inputs(encoding, runner._batch([placed], 0), start=0), use_cache=False)
    hidden = tensors["hidden"]
    reading = Reading(tensors["attention"], tensors["keys"], hidden[0], language_model.norm(hidden)[0])
    return Asked(embeds, places, starts[0] + torch.arange(len(words)), behind, reading)


def chosen_by_rules(reader: AttachedReader, encoding: Any, record: Record) -> Iterator[tuple[str, Tensor]]:
    """The tokens that each rule keeps, and those with the most attention of the middle layers, which have read all
    tokens."""
    (prompt,) = encoding.prompts
    asked: Any = read_all(reader, encoding, prompt, record.question)
    count = round(SHARE * len(prompt))
    for name in RULES:
        yield name, PEERS[name].rule(asked, count).places.sort().values
    paid = reader.runner.attention(encoding, prompt, record.question, to_all=True)
    yield "attention to all", most_relevant(paid, prompt.is_place, count)


Row = dict[str, Any]


def prompts(reader: AttachedReader, encodings: dict[int, Any], record: Record) -> Iterator[tuple[Row, PreparedPrompt]]:
    """The prompts of all arms for one question; `encodings`: the page with base tokens and without, by pool."""
    boxes = [[*record.boxes, *record.label_boxes]]

    def row(arm: str, share: float, prepared: PreparedPrompt) -> tuple[Row, PreparedPrompt]:
        relevant, kept = relevance_of_boxes(prepared.prompt, boxes), prepared.fetch.indices[0]
        recall = float(relevant[kept].sum() / relevant.sum())
        tokens = len(kept) + prepared.fetch.base
        return {"arm": arm, "share": share, "tokens": tokens, "recall": round(recall, 3)}, prepared

    based, bare = encodings[POOL], encodings[0]
    for name, share in ARMS:
        own = bare if name.endswith(", no base") else based
        given: Any = {"strategy": name.split(",")[0], "seed": record.line}
        given["boxes"] = boxes if given["strategy"] == "oracle" else None
        yield row(name, share, reader.ask(own, own.prompts[0], record.question, budget=share, **given))
    (prompt,) = bare.prompts
    count, plain = len(based.prompts[0].base), {"strategy": "saliency"}
    yield row("base only", count / len(prompt), reader.ask(based, based.prompts[0], record.question, budget=0, **plain))
    yield row("keep all", 1.0, reader.ask(bare, prompt, record.question, budget="all", **plain))
    for name, kept in chosen_by_rules(reader, bare, record):
        fetch = fetch_result(prompt, kept, *[torch.zeros(len(prompt))] * 2, name, failed=False)
        placed = reader.runner.place(prompt, reader.writer.plain(prompt, record.question), kept)
        yield row(name, SHARE, PreparedPrompt(bare, prompt, placed, fetch))


@torch.no_grad()
def predict(reader: AttachedReader, records: Sequence[Record]) -> Iterator[Row]:
    """All answers to all questions, page by page; those of one arm come in the order of the questions."""
    unit = PATCH * MERGE
    sides = sorted({max(unit, unit * round(SIDE / unit * share**0.5)) for share in SHARES})
    sides = [] if isinstance(reader.model.model.visual, OracleTower) else sides  # oracle tokens have one size
    for path, group in groupby(tqdm(records, unit="question"), lambda record: record.image):
        image, asked = Image.open(path), list[tuple[Row, PreparedPrompt]]()
        encodings = {size: reader.encode_image(image, pool=size) for size in (POOL, 0)}
        small = [reader.encode_image(image.resize((side, side), Image.Resampling.BICUBIC), pool=0) for side in sides]
        for record in group:
            known = {"page": int(Path(str(path)).stem), "question": record.question, "answer": record.answers[0]}
            asked += [({**known, **row}, prepared) for row, prepared in prompts(reader, encodings, record)]
            for own in small:
                prepared = reader.ask(own, own.prompts[0], record.question, budget="all", strategy="saliency")
                tokens = len(own.prompts[0])
                row = {"arm": "smaller image", "share": tokens / (SIDE // unit) ** 2, "tokens": tokens}
                asked.append(({**known, **row}, prepared))
        asked.sort(key=lambda one: len(one[1].placed.ids))  # little padding
        for start in range(0, len(asked), BATCH):
            part = asked[start : start + BATCH]
            said = reader._answers([prepared for _, prepared in part], {"do_sample": False, "max_new_tokens": 6}, False)
            yield from ({**row, "said": text} for (row, _), text in zip(part, said, strict=True))


def main() -> None:
    """Evaluates from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, default=Path("runs/attached-pages"), help="train.py's --out")
    parser.add_argument(
        "--tokens", default="tower", choices=("tower", "oracle"),
        help="image tokens of the vision tower, or oracle tokens, as train.py taught the language model (tower)",
    )  # fmt: skip
    parser.add_argument("--split", default="test", choices=("validation", "test"), help="of the pages (test)")
    parser.add_argument("--pages", type=int, default=70, help="number of pages, each with 4 or 5 questions (70)")
    parser.add_argument("--scorer", nargs=2, type=int, default=[300, 200], help="steps and pages of its training")
    parser.add_argument("--out", type=Path, default=HERE / "predictions.csv", help="file of the predictions")
    args = parser.parse_args()
    torch.manual_seed(0)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    reader, folder = load_reader(args.model, oracle=args.tokens == "oracle"), args.model / args.tokens
    train_scorer(reader, folder, *args.scorer)
    records = read_records(write_pages(reader, folder / args.split, args.split, 6, args.pages))
    rows = sorted(predict(reader, records), key=_order)
    with args.out.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _order(row: Row) -> tuple[Any, ...]:
    """Rows are sorted by arm, the plain model first, then by share, page and question."""
    names = (
        "keep all",
        "oracle",
        "realizer",
        "attention",
        "attention to all",
        "similarity",
        "saliency",
        "random",
        "base only",
    )
    name = row["arm"].split(",")[0]
    rank = names.index(name) if name in names else len(names)
    return rank, row["arm"], -row["share"], row["page"], row["question"]


if __name__ == "__main__":
    main()
