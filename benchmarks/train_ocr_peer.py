"""Trains a LoRA for the language model of the OCR pipeline, as for our model, on the plain text of the same pages.

    python -m benchmarks.train_ocr_peer OUT [--recipe FILE] [STAGE.SETTING=VALUE ...]

Each stage `question_answering` of the recipe is run in order, with its pages, questions, steps, rank and learning rate.
A page is represented by the text of its lines in reading order, as in `ocr_pipeline`. The questions about a page share
its tokens; each attends to the page and itself. A killed run continues. `ocr_pipeline --adapter OUT` uses the result.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from arr_coc.loading import find_device
from arr_coc.pages.page import TextPage
from arr_coc.training.reader.asking import QuestionAnsweringStage
from arr_coc.training.reader.language_model import Prompting
from arr_coc.training.reader.pages import Sources
from arr_coc.training.recipe import load_recipe

from .ocr_pipeline import TRAINED, in_reading_order
from .smollm2 import smollm2_folder

RECIPE = Path(__file__).parents[1] / "hub_configs" / "arr-coc-135m" / "train.yaml"

MOST_TOKENS = 1500
"""The most tokens of a page's text; questions about the text after them are skipped."""


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


class AskedTexts(Dataset[Batch]):
    """Pages of the sources with questions; each is a function of the stage's seed and its number."""

    def __init__(self, sources: Sources, prompting: Prompting, stage: QuestionAnsweringStage) -> None:
        self.sources, self.prompting, self.stage = sources, prompting, stage

    def __len__(self) -> int:
        return self.stage.steps * self.stage.pages_per_step

    def __getitem__(self, number: int) -> Batch:
        rng, stage = np.random.default_rng((self.stage.seed, number)), self.stage
        while True:
            page = self.sources.page(rng)
            shown = self.prompting.tokenizer.decode(self.prompting.ids(text := text_of(page))[:MOST_TOKENS])
            asked = [
                (question.text, question.answers[0])
                for question in page.questions
                if (not question.boxes or question.answers[0] in shown)
                and (not stage.kinds or question.kind in stage.kinds)
            ]
            if asked:
                order = rng.permutation(len(asked))[: stage.questions]
                return row_of(self.prompting, text, [asked[int(n)] for n in order])


def stacked(rows: Sequence[Batch]) -> dict[str, Tensor]:
    """Rows of different lengths as what `AnswerTrainer` takes."""
    fills = {"question": -2}
    columns = {name: [getattr(row, name) for row in rows] for name in Batch._fields}
    batch = Batch(
        *(pad_sequence(of, batch_first=True, padding_value=fills.get(name, 0)) for name, of in columns.items())
    )
    told = {"input_ids": batch.ids, "position_ids": batch.positions, "attention_mask": batch.seen}
    return {**told, "answer": batch.answer}


class AnswerTrainer(Trainer):
    """Trainer with the loss of the answers' tokens, whose logits alone are computed."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        assert isinstance(model, PeftModel)
        answer, core = inputs.pop("answer"), cast(Any, model.get_base_model())
        hidden = []
        for ids, places, seen, told in zip(*inputs.values(), answer, strict=True):  # without padding
            n = int(told.nonzero()[-1]) + 1
            row = {
                "input_ids": ids[None, :n],
                "position_ids": places[None, :n],
                "attention_mask": seen[None, :, :n, :n],
            }
            hidden.append(core.model(**row, use_cache=False).last_hidden_state[0][told[:n]])
        logits = core.lm_head(torch.cat(hidden)).float()
        loss = F.cross_entropy(logits, inputs["input_ids"].roll(-1, 1)[answer])
        return (loss, logits) if return_outputs else loss


def train(model: Any, sources: Sources, prompting: Prompting, stage: QuestionAnsweringStage, out: Path) -> Any:
    """The model with a trained adapter (PEFT, float32), whose checkpoints lie in `out`; goes on from the newest."""
    if not isinstance(model, PeftModel):
        lora = LoraConfig(r=stage.rank, lora_alpha=stage.rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    settings = TrainingArguments(
        output_dir=str(out),
        per_device_train_batch_size=stage.pages_per_step,
        max_steps=stage.steps,
        learning_rate=stage.learning_rate,
        weight_decay=stage.weight_decay,
        lr_scheduler_type="cosine",
        warmup_steps=min(stage.warmup, stage.steps - 1),
        logging_steps=20,
        save_steps=20,
        save_total_limit=2,
        seed=stage.seed,
        use_cpu=model.device.type == "cpu",
        disable_tqdm=True,
        remove_unused_columns=False,
        report_to="none",
    )
    trainer = AnswerTrainer(model, settings, stacked, AskedTexts(sources, prompting, stage))
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(out)) if out.is_dir() else None)
    return trainer.model


def main(arguments: list[str] | None = None) -> None:
    """Trains from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train_ocr_peer", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for the adapter and its checkpoints")
    parser.add_argument("settings", metavar="STAGE.SETTING=VALUE", nargs="*", help="override the recipe's")
    parser.add_argument("--recipe", metavar="FILE", type=Path, default=RECIPE, help="(default: arr-coc-135m's first)")
    parser.add_argument("--device", metavar="D", help="cpu, cuda, ... (default: cuda if available)")
    parser.add_argument("--threads", metavar="N", type=int, help="threads of PyTorch (default: PyTorch's)")
    args = parser.parse_intermixed_args(arguments)
    try:
        run(args)
    except ValueError as error:
        sys.exit(f"{parser.prog}: {error}")


def run(args: argparse.Namespace) -> None:
    """Trains and saves an adapter.

    Raises:
        ValueError: there is no such device, no such recipe, it has no such stage, or its sources are invalid.
    """
    device = find_device(args.device)
    recipe = load_recipe(args.recipe, args.settings)
    stages = [stage for stage in recipe.stages if isinstance(stage, QuestionAnsweringStage)]
    if not stages:
        raise ValueError(f"{args.recipe}: expected a stage question_answering; got none")
    folders = [None if stage.real_folder is None else recipe.root / stage.real_folder for stage in stages]
    sources = [Sources(stage.pages, "train", None, 0.0, folder) for stage, folder in zip(stages, folders, strict=True)]
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    torch.manual_seed(recipe.seed)
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2_folder(), dtype=torch.bfloat16, device_map=device)
    prompting = Prompting(AutoTokenizer.from_pretrained(smollm2_folder()))
    for number, (stage, source) in enumerate(zip(stages, sources, strict=True)):
        model = train(model, source, prompting, stage, args.out / f"stage{number}")
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()
