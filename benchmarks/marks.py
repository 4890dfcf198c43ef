"""How well are questions answered about what is drawn beside words, and not printed?

    python -m benchmarks.marks MODEL [--each 50] [--seed 1] [--ocr]

MODEL has `vision_config.marks`. It is asked about drawn pages of the test split, whose fonts, words, wordings, layouts
and looks of marks training never had: as it is, without its mark head, so that it knows words alone, and with `--ocr`
also with OCR's words (`words="ocr"`). An answer is right if it is the expected one but for case and white space.
Corrected accuracy is (accuracy - chance) / (1 - chance), where chance is that of guessing among the items that a
question is about.
"""

from collections import Counter, defaultdict

import numpy as np

from arr_coc.files import run_module
from arr_coc.metrics import METRICS
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.pages.generator import draw_page
from arr_coc.pages.marked import KINDS
from arr_coc.pages.page import Question, TextPage
from arr_coc.pages.splits import Split

from .timing import argument_parser

Results = dict[str, list[tuple[Question, str]]]


def asked_pages(each: int, seed: int, split: Split) -> list[tuple[TextPage, list[Question]]]:
    """Pages with the questions that are asked about them: `each` of every kind of question."""
    rng, count, pages = np.random.default_rng(seed), Counter[str](), []
    while any(count[kind] < each for kind in KINDS):
        page = draw_page(rng, split, "marked page")
        asked = []
        for question in page.questions:
            if question.kind in KINDS and count[question.kind] < each:
                count[question.kind] += 1
                asked.append(question)
        if asked:
            pages.append((page, asked))
    return pages


def answered(
    model: ArrCocForConditionalGeneration, pages: list[tuple[TextPage, list[Question]]], words: str = "network"
) -> Results:
    """Questions with the model's answers, by kind."""
    results: Results = defaultdict(list)
    for page, questions in pages:
        encoding = model.encode_image(page.image, words=words)
        for question in questions:
            answer = model.generate(encoding, question.text, max_new_tokens=24)
            results[question.kind].append((question, answer))
    return results


def accuracy(results: list[tuple[Question, str]]) -> tuple[float, float]:
    """The share of right answers, and that of guesses that would be."""
    match = METRICS["caseless_match"].score
    right = [match(answer, question.answers) for question, answer in results]
    return float(np.mean(right)), float(np.mean([1 / question.choices for question, _ in results]))


def main() -> None:
    """Runs the measurement from the command line."""
    parser = argument_parser(__doc__, "hub_configs/arr-coc-135m", rounds=1)
    parser.add_argument("--each", type=int, default=50, help="questions of a kind (50)")
    parser.add_argument("--seed", type=int, default=1, help="of the pages (1)")
    parser.add_argument("--ocr", action="store_true", help="also ask with OCR's words")
    parser.add_argument("--split", default="test", help="of the pages (test)")
    arguments = parser.parse_args()
    model = ArrCocForConditionalGeneration.from_pretrained(arguments.model).eval()
    reader = model.model.vision_tower.text_reader
    if reader is None or reader.mark_head is None:
        raise ValueError(f"{arguments.model}: expected a model with vision_config.marks; got one without")
    pages = asked_pages(arguments.each, arguments.seed, arguments.split)
    results = {"marks": answered(model, pages)}
    reader.mark_head = None
    results["words alone"] = answered(model, pages)
    if arguments.ocr:
        results["OCR's words"] = answered(model, pages, words="ocr")
    print(
        f"{len(pages)} {arguments.split} pages, {arguments.each} questions of a kind: accuracy (corrected for chance)"
    )
    print(f"{'kind':14}{'chance':>8}" + "".join(f"{name:>20}" for name in results))
    corrected: dict[str, list[float]] = defaultdict(list)
    for kind in KINDS:
        line = f"{kind:14}{accuracy(results['marks'][kind])[1]:8.2f}"
        for name, by_kind in results.items():
            share, chance = accuracy(by_kind[kind])
            corrected[name].append((share - chance) / (1 - chance))
            line += f"{share:12.2f} ({corrected[name][-1]:5.2f})"
        print(line)
    print(f"{'mean':22}" + "".join(f"{'':12}({np.mean(values):5.2f})" for values in corrected.values()))


if __name__ == "__main__":
    run_module(main)
