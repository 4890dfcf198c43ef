"""Train a scorer from answers only, without boxes; takes minutes on a CPU.

    python examples/reinforce_scorer.py [--steps 50]

The last layer of the shipped scorer is re-initialised, so that it fetches at random. Then sets of patches are sampled
from it, the frozen model answers with each set, and sets with better answers become more likely. The script prints
exact match and recall of the patches with the answer before and after training, on held-out pages.

To train a whole scorer from the command line: arr-coc train examples/reinforce.yaml --out runs/reinforced
"""

import argparse
import logging
import tempfile
from pathlib import Path

import torch

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.data.formats import open_records
from arr_coc.evaluation.strategies import describe, describe_change, score_strategies
from arr_coc.training.phases import AllocatorPhase, make_trainer

STRATEGY = "realizer"

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--model", default="hub_configs/arr-coc-tiny-2")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--questions", type=int, default=6, help="questions per step")
parser.add_argument("--draws", type=int, default=12, help="sets of patches per question")
parser.add_argument("--rate", type=float, default=0.03, help="AdamW's learning rate")
parser.add_argument("--pages", type=int, nargs=2, default=(30, 40), help="pages to train on and to test on")
arguments = parser.parse_args()
logging.basicConfig(level=logging.INFO, format="%(message)s")

model = ArrCocForConditionalGeneration.from_pretrained(arguments.model)
head = model.model.fetcher.scorer(STRATEGY).head
torch.nn.init.normal_(head.weight, std=0.05, generator=torch.Generator().manual_seed(0))
torch.nn.init.zeros_(head.bias)

side = model.config.vision_config.image_size
known, unseen = (
    {"format": "rendered", "pages": pages, "questions": 4, "size": side, "split": "train", "seed": seed}
    for seed, pages in enumerate(arguments.pages)
)
phase = AllocatorPhase(
    data=known,
    steps=arguments.steps,
    warmup=1,
    batch_size=arguments.questions,
    learning_rate=arguments.rate,
    weight_decay=0.0,
    evaluate_every=arguments.steps,
    log_every=5,
    losses={"answer": 0.0, "relevance": 0.0},
    gradient="reinforcement",
    strategies={STRATEGY: 1.0},
    cache="encoded",
    reinforcement={"draws": arguments.draws, "normalise": True, "kl_weight": 0.001},
)

records = open_records(unseen)
before = score_strategies(model, records, [STRATEGY])[STRATEGY]
print("before:", describe(before), flush=True)
with tempfile.TemporaryDirectory() as scratch:
    folder = Path(scratch)
    trainer = make_trainer(model, model.processor, phase, folder, device=torch.device("cpu"), root=folder)
    model.requires_grad_(False)
    head.requires_grad_(True)
    trainer.train()
after = score_strategies(model, records, [STRATEGY])[STRATEGY]
print("after: ", describe(after))
print("change:", describe_change(before, after))
