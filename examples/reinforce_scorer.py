"""Teach a scorer where to look from answers alone: no box is ever shown. Minutes on a CPU.

    python examples/reinforce_scorer.py [--steps 50]

The shipped scorer's last layer is drawn anew, so that it fetches no better than chance would; then sets of patches are
drawn from it, the frozen model answers from each, and what was answered better is made more likely. Printed before and
after, on pages that training did not show: exact match, and recall of the patches that hold the answer.
"""

import argparse
import tempfile

import numpy as np
import torch
from tqdm import tqdm

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.data import ask, render_document
from arr_coc.data.collating import QuestionCollator
from arr_coc.data.records import Record
from arr_coc.evaluating.evaluation import evaluate
from arr_coc.training.caching import CachedEncoder
from arr_coc.training.reinforce import ReinforceSettings, reinforcement_loss, starting_scorer

STRATEGY = "realizer"


def rendered(pages: int, *, seed: int, side: int) -> list[Record]:
    """Four questions about each page; the boxes serve to measure recall, training does not look at them."""
    records = []
    for page in range(pages):
        rng = np.random.default_rng((seed, page))
        document = render_document(rng, size=side, split="train")
        image = document.image.convert("RGB")
        for index in rng.permutation(len(document.entries))[:4]:
            entry = document.entries[int(index)]
            question, line = ask(rng, entry.field, split="train"), len(records) + 1
            records.append(Record(image, question, (entry.value,), (entry.value_box,), line))
    return records


def report(model: ArrCocForConditionalGeneration, records: list[Record], title: str) -> None:
    """Prints exact match and recall, with 95 % intervals."""
    result = evaluate(model, records, [STRATEGY])["strategies"][STRATEGY]
    for name in ("exact_match", "recall"):
        value, low, high = (100 * result[name][bound] for bound in ("value", "low", "high"))
        print(f"{title:6} {name:12} {value:5.1f} % [{low:.1f}, {high:.1f}]  n = {result['n']}", flush=True)


parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--model", default="hub_configs/arr-coc-tiny")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--questions", type=int, default=6, help="per step")
parser.add_argument("--draws", type=int, default=12, help="sets of patches per question")
parser.add_argument("--rate", type=float, default=0.02, help="AdamW's learning rate")
parser.add_argument("--pages", type=int, nargs=2, default=(30, 40), help="to learn from, to test on")
arguments = parser.parse_args()

model = ArrCocForConditionalGeneration.from_pretrained(arguments.model).eval().requires_grad_(False)
scorer = model.model.fetcher.scorer(STRATEGY)
generator = torch.Generator().manual_seed(0)
torch.nn.init.normal_(scorer.head.weight, std=0.05, generator=generator)
torch.nn.init.zeros_(scorer.head.bias)
scorer.head.requires_grad_(True)
side = model.config.vision_config.image_size
known, unseen = (rendered(pages, seed=seed, side=side) for seed, pages in enumerate(arguments.pages))
report(model, unseen, "before")

settings = ReinforceSettings(draws=arguments.draws, answering="forced", normalise=True, kl_weight=0.001)
collate, reference = QuestionCollator(model.processor, model.config), starting_scorer(model)
optimizer = torch.optim.AdamW(scorer.head.parameters(), lr=arguments.rate, weight_decay=0.0)
with tempfile.TemporaryDirectory() as scratch:
    encoder = CachedEncoder(model, scratch)
    for _ in (bar := tqdm(range(arguments.steps), desc="reinforcing", unit="step")):
        drawn = torch.randint(len(known), (arguments.questions,), generator=generator).tolist()
        batch = collate([known[index] for index in drawn])
        del batch["relevance_labels"]
        made = reinforcement_loss(
            model, batch, settings, generator=generator, reference=reference,
            encoding=encoder.encode(batch["pixel_values"], batch["patch_mask"]),
        )  # fmt: skip
        optimizer.zero_grad()
        made.loss.backward()
        torch.nn.utils.clip_grad_norm_(scorer.head.parameters(), 1.0)
        optimizer.step()
        bar.set_postfix(correct=f"{made.correctness.mean():.2f}", entropy=f"{made.entropy:.1f}")
report(model, unseen, "after")
