"""Fine-tune with TRL's SFTTrainer and LoRA on all linear layers, on chats; takes minutes on a CPU.

    pip install "arr-coc[trl]"
    python examples/sft_trl.py --out adapter

It trains the shipped checkpoint to answer "it says 12.50" instead of "12.50", on rendered pages. A chat is a list of
TRL's "messages" (the question is the user's turn, the answer the assistant's) and an image. The adapter loads with
`PeftModel.from_pretrained(model, "adapter")`.
"""

import argparse
from dataclasses import replace

import torch
from datasets import Dataset
from peft import LoraConfig
from torch import Tensor
from trl import SFTConfig, SFTTrainer

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.data.formats import open_records
from arr_coc.data.records import Record
from arr_coc.evaluation.strategies import describe, describe_change, score_strategies


def in_words(record: Record) -> Record:
    """The record with the answer to learn."""
    return replace(record, answers=tuple(f"it says {answer}" for answer in record.answers))


def chat(record: Record) -> dict[str, object]:
    """A question and its answer as a row of TRL's data."""
    turns = (("user", record.question), ("assistant", record.answers[0]))
    return {"image": record.picture, "messages": [{"role": role, "content": text} for role, text in turns]}


@torch.no_grad()
def batch_loss(trainer: SFTTrainer, batch: dict[str, Tensor]) -> float:
    """TRL's loss of a batch; computed on a copy, as TRL changes the batch."""
    return trainer.compute_loss(trainer.model.eval(), dict(batch)).item()


parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--model", default="hub_configs/arr-coc-tiny-2")
parser.add_argument("--pages", type=int, nargs=2, default=(60, 10), help="rendered pages to train on and to test on")
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--rate", type=float, default=5e-3, help="AdamW's learning rate")
parser.add_argument("--rank", type=int, default=8)
parser.add_argument("--out", default="adapter", help="folder of the adapter")
arguments = parser.parse_args()

model = ArrCocForConditionalGeneration.from_pretrained(arguments.model)
strategy, side = model.config.fetcher_config.strategy, model.config.vision_config.image_size
page = {"format": "rendered", "questions": 4, "size": side, "split": "train"}
known, unseen = (
    [in_words(record) for record in open_records({**page, "pages": pages, "seed": seed})]
    for seed, pages in enumerate(arguments.pages)
)
before = score_strategies(model, unseen, [strategy])[strategy]
print("before:", describe(before), flush=True)

settings = SFTConfig(
    arguments.out,
    max_steps=arguments.steps,
    per_device_train_batch_size=arguments.batch_size,
    learning_rate=arguments.rate,
    assistant_only_loss=True,
    gradient_checkpointing=False,
    bf16=torch.cuda.is_available(),
    dataloader_pin_memory=torch.cuda.is_available(),
    logging_steps=10,
    save_strategy="no",
    report_to=[],
)
trainer = SFTTrainer(
    model,
    settings,
    train_dataset=Dataset.from_list([chat(record) for record in known]),
    processing_class=model.processor,
    peft_config=LoraConfig(r=arguments.rank, target_modules="all-linear", task_type="CAUSAL_LM"),
)
batch = next(iter(trainer.get_train_dataloader()))
black = {**batch, "pixel_values": torch.full_like(batch["pixel_values"], -1.0)}
print(
    f"loss of a batch: {batch_loss(trainer, batch):.3f}, of black images: {batch_loss(trainer, black):.3f}", flush=True
)
trainer.train()
print(
    f"loss of a batch: {batch_loss(trainer, batch):.3f}, of black images: {batch_loss(trainer, black):.3f}", flush=True
)
after = score_strategies(model.eval(), unseen, [strategy])[strategy]
print("after: ", describe(after))
print("change:", describe_change(before, after))
trainer.save_model()
