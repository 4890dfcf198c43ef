"""Encode an image once, then ask many questions, with several strategies and budgets.

python examples/many_questions.py [IMAGE] [--model hub_configs/arr-coc-tiny-2]
"""

import argparse

from transformers import AutoModel

import arr_coc  # noqa: F401 (registers the Auto classes)

QUESTIONS = ["What is the total?", "What is the tax?", "What is the date?"]

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("image", nargs="?", default="examples/images/receipt.png")
parser.add_argument("--model", default="hub_configs/arr-coc-tiny-2")
arguments = parser.parse_args()

model = AutoModel.from_pretrained(arguments.model)
seen = model.encode_image(arguments.image)
for strategy in ("realizer", "saliency", "none"):
    print(strategy, model.generate(seen, QUESTIONS, strategy=strategy))
for budget in ("fast", "standard", "accurate"):
    answers = model.generate(seen, QUESTIONS, budget=budget, return_fetch=True)
    print(budget, [(answer.text, round(answer.probability, 2), answer.fetch.budget) for answer in answers])
