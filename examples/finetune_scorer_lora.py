"""Fine-tune only the scorer with LoRA on your own questions; takes minutes on a CPU.

    python examples/finetune_scorer_lora.py --data my.jsonl --held-out held.jsonl --out adapter

my.jsonl holds one JSON object per line: {"image": path, "question": str, "answers": [str], "boxes": [[x0, y0, x1, y1]],
"label_box": [x0, y0, x1, y1]}. Boxes are in px and optional: without them only the answers train the scorer. The
model's weights do not change; the adapter loads with `PeftModel.from_pretrained(model, "adapter")`.

To try it on pages whose field names the model does not know, with 200 pages to train on and 60 to test on:

    python examples/finetune_scorer_lora.py --render vendor,balance,deposit,branch,refund,mileage --out adapter
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from tqdm import tqdm

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.adapters import adapt, save_adapter
from arr_coc.data.collator import QuestionCollator
from arr_coc.data.formats import open_records
from arr_coc.data.records import Record
from arr_coc.evaluation.strategies import describe, describe_change, score_strategies
from arr_coc.training.cache import CachedEncoder
from arr_coc.training.optimizers import warmup_cosine


def train(adapted: PeftModel, records: Sequence[Record], arguments: argparse.Namespace, cache: Path) -> None:
    """Minimises the model's loss: of the answer, through the fetched patches, and of relevance if there are boxes."""
    model, steps = adapted.get_base_model(), arguments.steps
    collate, encoder = QuestionCollator(model.processor, model.config), CachedEncoder(model, cache)
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=arguments.rate, weight_decay=0.0)
    schedule = warmup_cosine(optimizer, steps=steps, warmup=max(1, steps // 10))
    generator = torch.Generator().manual_seed(0)
    adapted.train()
    for _ in (bar := tqdm(range(steps), desc="training", unit="step", disable=None)):
        drawn = torch.randint(len(records), (arguments.batch_size,), generator=generator)
        batch = collate([records[index] for index in drawn.tolist()])
        encoding = encoder.encode(batch.pop("pixel_values"), batch.pop("patch_mask"))
        output = adapted(**batch, image_encoding=encoding, use_cache=False)
        optimizer.zero_grad()
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{output.loss.item():.3f}", relevance=f"{output.relevance_loss.item():.3f}")
    adapted.eval()


parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
source = parser.add_mutually_exclusive_group(required=True)
source.add_argument("--data", help="questions to train on, JSONL")
source.add_argument(
    "--render", metavar="FIELDS", help="render pages with these field names: at least four, comma-separated"
)
parser.add_argument("--held-out", help="questions to test on before and after, JSONL")
parser.add_argument("--pages", type=int, nargs=2, default=(200, 60), help="rendered pages to train on and to test on")
parser.add_argument("--out", default="adapter", help="folder of the adapter")
parser.add_argument("--model", default="hub_configs/arr-coc-tiny-2")
parser.add_argument("--rank", type=int, default=8)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--rate", type=float, default=3e-3, help="AdamW's learning rate")
parser.add_argument("--cache", help="folder that keeps encoded images for the next run (default: temporary)")
arguments = parser.parse_args()

model = ArrCocForConditionalGeneration.from_pretrained(arguments.model).eval()
strategy = model.config.fetcher_config.strategy
if arguments.render:
    side, fields = model.config.vision_config.image_size, arguments.render.split(",")
    page = {"format": "rendered", "questions": 4, "size": side, "split": "train", "fields": fields}
    known, unseen = (open_records({**page, "pages": pages, "seed": seed}) for seed, pages in enumerate(arguments.pages))
else:
    known = open_records({"path": arguments.data})
    unseen = open_records({"path": arguments.held_out}) if arguments.held_out else []
if unseen:
    before = score_strategies(model, unseen, [strategy])[strategy]
    print("before:", describe(before), flush=True)
weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
adapted = adapt(model, ("scorer",), r=arguments.rank)
adapted.print_trainable_parameters()
with tempfile.TemporaryDirectory() as scratch:
    train(adapted, known, arguments, Path(arguments.cache or scratch))
if unseen:
    after = score_strategies(model, unseen, [strategy])[strategy]
    print("after: ", describe(after))
    print("change:", describe_change(before, after))
print(f"{arguments.out}: {save_adapter(adapted, arguments.out) / 1000:.0f} KB")
base = dict(adapted.unload().named_parameters())
changed = [name for name, weight in weights.items() if not torch.equal(weight, base[name])]
print(f"base weights changed: {len(changed)} of {len(weights)}")
