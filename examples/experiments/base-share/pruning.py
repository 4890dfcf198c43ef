"""Published pruning rules on arm keep_all, at as many tokens as the splits have; stores all predictions.

    python examples/experiments/base-share/pruning.py --model MODEL    # pruning.csv beside the pages

The language model of `keep_all` has learned from all of a page's wordpieces. For each question a rule keeps as many of
them as are left of the total beside the base tokens, and the language model reads these alone. Rules: those of
`arr_coc.evaluation.peers` that need nothing but the language model; the scorer's most relevant wordpieces; random
ones. Whatever is kept is read with the scorer's marks on the most relevant words. What pruning.csv holds already is not
asked again.
"""

import logging
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from arms import ArmTask, StoredPage, most, questions_of
from evaluate import ask, asked_about, fastest_attention, load
from predictions import Column, add, check_questions, columns, read
from torch import Tensor
from train import chosen, options

from arr_coc.evaluation.peers import LAYER, PEERS, EarlyStates, PeerQuestion, read_prompt
from arr_coc.training.reader.language_model import stacked

ARM = "keep_all"
RULES = ("scorer", "random", "fastv", "fastv_last", "sparsevlm", "dart", "cdpruner", "cdpruner_unturned")


class Asked(PeerQuestion):
    """A question about a stored page, with what rules read of it: all wordpieces are in the prompt.

    Args:
        task: of the arm.
        page: the page.
        number: of the question.
    """

    def __init__(self, task: ArmTask, page: StoredPage, number: int) -> None:
        self.task, self.text = task, questions_of(page)[number].text
        batch = stacked([task.maker.row(page, task.arm, [number], np.random.default_rng(0))]).to(task.run.device)
        self.length = int(batch.answer[0].nonzero()[0]) + 1  # what follows is the answer
        self.fetched, self._embeds = batch.fetched[0], task.embedded(batch)[0]

    @cached_property
    def embeds(self) -> Tensor:
        return self._embeds[: self.length]

    @property
    def places(self) -> Tensor:
        return self.fetched.nonzero()[:, 0]

    @property
    def behind(self) -> Tensor:
        return torch.arange(int(self.places[-1]) + 1, self.length, device=self.fetched.device)

    @property
    def asked(self) -> Tensor:
        return self.behind[: len(self.task.prompting.ids(self.text))]

    @cached_property
    def reading(self) -> EarlyStates:
        language = self.task.language
        return read_prompt(language.model.get_base_model(), self.embeds.to(language.dtype), LAYER)


@torch.no_grad()
def keep(task: ArmTask, page: StoredPage, rules: tuple[str, ...], count: int) -> dict[str, dict[int, np.ndarray]]:
    """The numbers of the wordpieces that each rule keeps, by rule and by the question's number."""
    rng, found = np.random.default_rng((11, page["page"])), {rule: dict[int, np.ndarray]() for rule in rules}
    for number in task.asked(page):
        relevance = page["relevance"][number].astype(float)
        own = {"scorer": relevance, "random": rng.random(len(relevance))}
        question = Asked(task, page, number)
        for rule in rules:
            if rule in own:
                found[rule][number] = most(own[rule], count)
            else:
                places = PEERS[rule].rule(question, min(count, len(relevance)))
                found[rule][number] = places.sort().values.cpu().numpy()
    return found


def main() -> None:
    """Asks test pages from the command line."""
    parser = options((__doc__ or "").split("\n")[0])
    parser.add_argument("--predictions", type=Path, help="(pruning.csv beside the pages)")
    args = parser.parse_args()
    args.predictions = args.predictions or args.pages / "pruning.csv"
    args.arms = ARM
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    asked = set(columns(read(args.predictions)))
    for _, seed in chosen(args):
        rules = tuple(rule for rule in RULES if Column(rule, str(seed)) not in asked)
        task = load(args, ARM, seed) if rules else None
        if task is None:
            continue
        with fastest_attention(task):
            pages, count = task.read("test"), task.total - task.arm.base
            check_questions(args.predictions, asked_about(task, pages))
            kept = [keep(task, page, rules, count) for page in pages]
            for rule in rules:
                of_rule = partial(_of_page, {page["page"]: each[rule] for page, each in zip(pages, kept, strict=True)})
                add(args.predictions, ask(task, pages, Column(rule, str(seed)), of_rule))


def _of_page(kept: Mapping[int, Mapping[int, np.ndarray]], page: StoredPage) -> Mapping[int, np.ndarray]:
    return kept[page["page"]]


if __name__ == "__main__":
    main()
