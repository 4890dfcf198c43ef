"""Ask one question about one image, and save a picture of the fetched patches.

python examples/ask.py [IMAGE] [QUESTION] [--model hub_configs/arr-coc-tiny-2] [--picture fetched.png]
"""

import argparse

from transformers import AutoModel

import arr_coc  # noqa: F401 (registers the Auto classes)
from arr_coc.viewing import draw_answer

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("image", nargs="?", default="examples/images/receipt.png")
parser.add_argument("question", nargs="?", default="What is the total?")
parser.add_argument("--model", default="hub_configs/arr-coc-tiny-2")
parser.add_argument("--picture", default="fetched.png")
arguments = parser.parse_args()

model = AutoModel.from_pretrained(arguments.model)
answer = model.generate(arguments.image, arguments.question, return_fetch=True)
print(f"{answer.text}  (probability {answer.probability:.2f}, {answer.fetch.budget} patches fetched)")
draw_answer(arguments.image, answer, question=arguments.question).save(arguments.picture)
