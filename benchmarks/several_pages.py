"""What is lost where a page is one of several: documents of pages of one kind, each question about a field of one page.

    python -m benchmarks.several_pages MODEL --pages 2 3 10 30 --questions 50

Pages are drawn (split "validation"). The words by which a question names its field are on no other page together, and
its answer is on no other page. Each question is asked about its page alone, about the document, and about the document
with its pages in reverse order; seconds are those of encoded pages, side by side.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.loading import load_model
from arr_coc.pages.generator import draw_page
from arr_coc.pages.page import Question, plain, told_apart

KINDS = ("form", "invoice", "receipt", "table", "letter")


def ask(model: Any, encoding: Any, question: Question) -> tuple[bool, float]:
    """Whether the answer is right, and the CPU seconds."""
    began = time.process_time()
    text = model.generate(encoding, question.text)
    return plain(text) == plain(question.answers[0]), time.process_time() - began


def measure(model: Any, length: int, count: int) -> dict[str, Any]:
    """`count` questions about documents of `length` pages: the share right, and the median of ratios of seconds."""
    rows: list[tuple[bool, bool, bool, float]] = []
    for seed in range(10 * count):
        rng = np.random.default_rng((seed, length))
        pages = [draw_page(rng, "validation", KINDS[seed % len(KINDS)]) for _ in range(length)]
        asked = [*told_apart(pages)]
        asked = [asked[at] for at in rng.permutation(len(asked))[: max(4, length // 2)]]
        if not asked:
            continue
        images: list[Any] = [page.image for page in pages]
        document, reverse = model.encode_image([images]), model.encode_image([images[::-1]])
        single = {number: model.encode_image(images[number]) for number, _ in asked}
        for number, question in asked[: count - len(rows)]:
            alone, seconds = ask(model, single[number], question)
            (right, longer), (turned, _) = ask(model, document, question), ask(model, reverse, question)
            rows.append((alone, right, turned, longer / seconds))
        print(f"{length} pages, {len(rows)} questions", flush=True)
        if len(rows) == count:
            break
    of_pages, of_documents, of_reversed, ratio = zip(*rows, strict=True)
    shares = {"alone": np.mean(of_pages), "document": np.mean(of_documents), "reverse": np.mean(of_reversed)}
    kept = np.mean([(a and r) + (a and t) for a, r, t, _ in rows]) / (2 * np.mean(of_pages))
    numbers = {**shares, "kept": kept, "seconds": np.median(ratio)}
    return {"pages": length, "questions": len(rows), **{name: round(float(each), 3) for name, each in numbers.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="hub_configs/arr-coc-135m")
    parser.add_argument("--pages", type=int, nargs="+", default=[2, 3, 10, 30])
    parser.add_argument("--questions", type=int, default=50, help="of each length")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = load_model(args.model)
    results = []
    for length in args.pages:
        results.append(measure(model, length, args.questions))
        print(json.dumps(results[-1]), flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
