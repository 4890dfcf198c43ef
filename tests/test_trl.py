"""TRL's SFTTrainer, where it is installed (`pip install "arr-coc[trl]"`): it sees images and trains the scorer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from helpers import CARD, PAGE, refuses, tiny_model, with_markers
from peft import LoraConfig
from torch import Tensor

trl = pytest.importorskip("trl")

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's own, of what transformers has renamed since

ROWS = [(PAGE, "What is it?", "a page"), (CARD, "Who is that?", "an unknown person")]
LORA = {"r": 2, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def chats(kind: str) -> Dataset:
    """Questions and answers in a form that TRL knows."""
    rows = []
    for image, question, answer in ROWS:
        asked, answered = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
        turns = {"messages": [asked, answered]} if kind == "messages" else {"prompt": [asked], "completion": [answered]}
        rows.append({"image": image, **turns})
    return Dataset.from_list(rows)


def make_trainer(model: Any, kind: str, out: Path, lora: bool) -> Any:
    sizes = {"max_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1}
    told = {"report_to": [], "save_strategy": "no", "assistant_only_loss": kind == "messages"}
    settings = trl.SFTConfig(str(out), use_cpu=True, bf16=False, **sizes, **told)
    peft_config = LoraConfig(**LORA) if lora else None  # type: ignore[arg-type]
    return trl.SFTTrainer(
        model, settings, train_dataset=chats(kind), processing_class=model.processor, peft_config=peft_config
    )


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
@pytest.mark.parametrize("kind", ["messages", "prompt and completion"])
def test_sft_sees_the_image_and_trains_the_scorer(kind: str, lora: bool, tmp_path: Path) -> None:
    model = with_markers()
    trainer = make_trainer(model, kind, tmp_path, lora)
    batch = next(iter(trainer.get_train_dataloader()))
    black = {**batch, "pixel_values": torch.full_like(batch["pixel_values"], -1.0)}
    trainer.model.train()
    assert abs(trainer.compute_loss(trainer.model, dict(batch)) - trainer.compute_loss(trainer.model, black)) > 1e-3
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    scorer = {name for name in before if "fetcher.scorers.realizer" in name}
    changed = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert changed & scorer and all(("lora_" in name) == lora for name in changed)
    assert len(changed) > 50 or lora


@pytest.mark.parametrize("kind", ["messages", "prompt and completion"])
@pytest.mark.versions
def test_the_scorer_reads_the_question_and_nothing_of_the_answer(kind: str, tmp_path: Path) -> None:
    model = with_markers()
    trainer = make_trainer(model, kind, tmp_path, lora=False)
    batch = trainer.data_collator([dict(row) for row in chats(kind)])
    read: list[Tensor] = []
    find, core = model.model.select_slots, model.model
    core.select_slots = lambda *args, **kwargs: read.append(kwargs["query_mask"]) or find(*args, **kwargs)
    trainer.compute_loss(trainer.model, dict(batch))
    texts = [model.processor.tokenizer.decode(ids[mask]) for ids, mask in zip(batch["input_ids"], read[0], strict=True)]
    assert texts == [question for _, question, _ in ROWS]


def test_a_model_without_markers_refuses_masks_of_the_prompts_alone(tmp_path: Path) -> None:
    trainer = make_trainer(tiny_model(), "prompt and completion", tmp_path, lora=False)
    batch = next(iter(trainer.get_train_dataloader()))
    refuses("query_mask: expected shape", trainer.compute_loss, trainer.model, batch)
