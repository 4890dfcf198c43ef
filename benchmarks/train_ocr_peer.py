"""Trains a LoRA for the language model of the OCR pipeline, as for our model, on the plain text of the same pages.

    python -m benchmarks.train_ocr_peer OUT [--pages laid_out=1] [--steps 400] [--pages-per-step 4] [--rank 32]

Pages, questions, adapter and learning rate are those of the stage `question_answering`. A page is represented by the
text of its lines in reading order, as in `ocr_pipeline`. The questions about a page share its tokens; each attends to
the page and itself. `ocr_pipeline --adapter OUT` uses the result.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from arr_coc.files import check_free
from arr_coc.loading import find_device
from arr_coc.pages.page import TextPage
from arr_coc.training.optimizers import warmup_cosine
from arr_coc.training.reader.language_model import Adapter, Prompting
from arr_coc.training.reader.pages import Sources
from arr_coc.training.reader.question_answering import QuestionAnsweringStage

from .ocr_pipeline import TRAINED, in_reading_order
from .smollm2 import smollm2_folder

MOST_TOKENS = 1500
"""The most tokens of a page's text; questions about the text after them are skipped."""

_SHOWN = 20
"""Steps between two lines of progress."""


def text_of(page: TextPage) -> str:
    """The text of a page, as from OCR without errors."""
    boxes = []
    for line in page.lines:
        (x0, y0), (x1, y1) = line.boxes[:, :2].min(0), line.boxes[:, 2:].max(0)
        boxes.append([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    return in_reading_order(boxes, [line.text for line in page.lines])


class Batch(NamedTuple):
    """P pages, each followed by its questions, S tokens each, padded at the end.

    Attributes:
        ids: [P, S].
        positions: [P, S], from 0; each question continues from the end of the page.
        question: [P, S], index of the question, -1 on the page, -2 on padding.
        answer: [P, S] bool, True where the next token is part of an answer.
    """

    ids: Tensor
    positions: Tensor
    question: Tensor
    answer: Tensor

    @property
    def seen(self) -> Tensor:
        """bool [P, 1, S, S]: a token attends to earlier tokens of the page and of its question."""
        own = (self.question[:, :, None] == self.question[:, None]) | (self.question[:, None] == -1)
        return own.tril()[:, None]


def row_of(prompting: Prompting, text: str, asked: Sequence[tuple[str, str]]) -> Batch:
    """A page with questions and answers, as a batch without its first dimension."""
    before, behind = TRAINED
    page = [*prompting.ids(before), *prompting.ids(text)[:MOST_TOKENS], *prompting.ids("\n")]
    parts = [(page, list(range(len(page))), [-1] * len(page), [False] * len(page))]
    for number, (question, answer) in enumerate(asked):
        prompt, said = prompting.ids(behind.format(question=question)), prompting.answer(answer)
        count = len(prompt) + len(said)
        tells = [False] * (len(prompt) - 1) + [True] * len(said) + [False]
        parts.append(([*prompt, *said], list(range(len(page), len(page) + count)), [number] * count, tells))
    return Batch(*(torch.tensor(sum(column, start=[])) for column in zip(*parts, strict=True)))


def drawn(sources: Sources, prompting: Prompting, stage: QuestionAnsweringStage, rng: np.random.Generator) -> Batch:
    """A batch of pages of the sources."""
    rows: list[Batch] = []
    while len(rows) < stage.pages_per_step:
        page = sources.page(rng)
        shown = prompting.tokenizer.decode(prompting.ids(text := text_of(page))[:MOST_TOKENS])
        asked = [
            (question.text, question.answers[0])
            for question in page.questions
            if not question.boxes or question.answers[0] in shown
        ]
        order = rng.permutation(len(asked))[: stage.questions]
        if len(order):
            rows.append(row_of(prompting, text, [asked[int(number)] for number in order]))
    return stacked(rows)


def stacked(rows: Sequence[Batch]) -> Batch:
    """Rows of different lengths as one batch."""
    fills = {"question": -2}
    columns = {name: [getattr(row, name) for row in rows] for name in Batch._fields}
    return Batch(
        *(pad_sequence(of, batch_first=True, padding_value=fills.get(name, 0)) for name, of in columns.items())
    )


def train(model: Any, sources: Sources, prompting: Prompting, stage: QuestionAnsweringStage, steps: int) -> Any:
    """The model with a trained adapter (PEFT)."""
    lora = LoraConfig(r=stage.rank, lora_alpha=stage.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    adapter, began, losses = Adapter(model, model.dtype), time.perf_counter(), list[float]()
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=stage.learning_rate, weight_decay=stage.weight_decay)
    schedule = warmup_cosine(optimizer, steps=steps, warmup=min(stage.warmup, steps - 1))
    for step in range(steps):
        batch = drawn(sources, prompting, stage, np.random.default_rng((stage.seed, step)))
        batch = Batch(*(each.to(model.device) for each in batch))
        adapter.write()
        core = model.get_base_model()
        hidden = core.model(
            input_ids=batch.ids, attention_mask=batch.seen, position_ids=batch.positions, use_cache=False
        ).last_hidden_state
        logits = core.lm_head(hidden[batch.answer]).float()
        loss = F.cross_entropy(logits, batch.ids.roll(-1, 1)[batch.answer])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adapter.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % _SHOWN == 0:
            mean, taken = np.mean(losses[-_SHOWN:]), time.perf_counter() - began
            print(f"step {step + 1}: loss {mean:.3f}, {taken:.0f} s", flush=True)
    adapter.write()
    return model


def main(arguments: list[str] | None = None) -> None:
    """Trains from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train_ocr_peer", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="a new folder for the adapter")
    pages = "how often each source of pages comes up, as NAME=SHARE (default: laid_out=1)"
    parser.add_argument("--pages", metavar="P", nargs="+", default=["laid_out=1"], help=pages)
    parser.add_argument("--pdf-folder", metavar="DIR", type=Path, help='pages of the source "pdf"')
    parser.add_argument("--steps", metavar="N", type=int, default=400, help="training steps (default: 400)")
    parser.add_argument("--pages-per-step", metavar="N", type=int, default=4, help="pages per step (default: 4)")
    parser.add_argument("--rank", metavar="R", type=int, default=32, help="rank of the LoRA (default: 32)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of pages and weights (default: 0)")
    parser.add_argument("--device", metavar="D", help="cpu, cuda, ... (default: cuda if available)")
    parser.add_argument("--threads", metavar="N", type=int, help="threads of PyTorch (default: PyTorch's)")
    args = parser.parse_args(arguments)
    try:
        run(args)
    except ValueError as error:
        sys.exit(f"{parser.prog}: {error}")


def run(args: argparse.Namespace) -> None:
    """Trains and saves an adapter.

    Raises:
        ValueError: the folder exists, there is no such device, sources are invalid, or there are fewer than one step.
    """
    check_free(args.out)
    device = find_device(args.device)
    if args.steps < 1:
        raise ValueError(f"--steps: expected at least 1; got {args.steps}")
    shares = shares_of(args.pages)
    stage = QuestionAnsweringStage(pages_per_step=args.pages_per_step, rank=args.rank, seed=args.seed, pages=shares)
    sources = Sources(shares, "train", args.pdf_folder, 0.0)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    folder = smollm2_folder()
    torch.manual_seed(args.seed)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map=device)
    train(model, sources, Prompting(AutoTokenizer.from_pretrained(folder)), stage, args.steps).save_pretrained(args.out)


def shares_of(texts: Sequence[str]) -> dict[str, float]:
    """Parses texts NAME=SHARE into shares by name.

    Raises:
        ValueError: a text of another form, or a share that is not above 0.
    """
    shares = {}
    for text in texts:
        name, _, share = text.partition("=")
        try:
            shares[name] = float(share)
        except ValueError:
            shares[name] = 0.0
        if not name or not 0 < shares[name] < float("inf"):
            raise ValueError(f"--pages: expected NAME=SHARE with a share above 0; got {text!r}")
    return shares


if __name__ == "__main__":
    main()
