"""Where does a model trained from scratch lose answers: in its encoder, its bridge or its language model?

    python -m benchmarks.lost_answers MODEL [--kinds document browser] [--questions 96] [--split validation]
        [--strategies oracle realizer none] [--seed 0]

It asks the same questions with the same patches in three kinds of tokens: those of the bridge; oracle tokens of the
text that the grid encoder recognizes; oracle tokens of the ground-truth text. Answers lost between the first and the
second are errors of the bridge, or of the language model's use of it; between the second and the third, of the encoder;
in the third, of the language model. Answers are teacher-forced. MODEL is a folder with `learner.safetensors`, which
training writes beside the weights.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import torch

from arr_coc.data.mixture import KINDS, UNASKED
from arr_coc.data.splits import SPLITS
from arr_coc.evaluation.reporting import percent
from arr_coc.evaluation.statistics import Interval, score_interval
from arr_coc.files import run_module
from arr_coc.modeling.configuration_arr_coc import resolve_budget
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor
from arr_coc.training.checkpoints import load_learner
from arr_coc.training.from_scratch.answering import Answering, AnsweringStage
from arr_coc.training.from_scratch.learner import TokenSource
from arr_coc.training.stages import Run

WAYS: tuple[TokenSource, ...] = get_args(TokenSource)
"""The kinds of tokens that the language model reads."""


@dataclass(frozen=True)
class Lost:
    """The accuracy of one strategy on one kind of page, by kind of tokens.

    Attributes:
        kind: kind of page.
        strategy: strategy of the fetch.
        questions: number of questions about fields on the pages.
        exact: shares of exact answers by `WAYS`; intervals draw whole pages.
    """

    kind: str
    strategy: str
    questions: int
    exact: dict[TokenSource, Interval]

    def __str__(self) -> str:
        return f"{self.kind:10} {self.strategy:10} {self.questions:9}  " + "  ".join(
            f"{percent(asdict(self.exact[way])):>20}" for way in WAYS
        )


_COLUMNS = ("read as it is, %", "encoder names it, %", "oracle, %")
HEADER = f"{'pages':10} {'strategy':10} {'questions':>9}  " + "  ".join(f"{name:>20}" for name in _COLUMNS)


@torch.no_grad()
def lost_answers(task: Answering) -> Iterator[Lost]:
    """Measures the answers on the stage's held-out pages, kind by kind.

    Raises:
        ValueError: the bridge puts layout tokens around an image's tokens, which oracle tokens lack.
    """
    learner, stage = task.module, task.stage
    layout = learner.model.config.bridge_config.layout
    if layout != "plain":
        raise ValueError(f"bridge_config.layout: expected plain, as oracle tokens have no others around; got {layout}")
    learner.eval()
    budget = resolve_budget(stage.evaluate_budget, task.patches)
    for kind, batches in task.unseen.items():
        shown = torch.cat([batch.relevance.any(1) for batch in batches])
        pages = torch.arange(len(shown)) // stage.questions
        for strategy in stage.evaluate_strategies:
            exact: dict[TokenSource, Interval] = {}
            for way in WAYS:
                generator = torch.Generator().manual_seed(stage.seed)  # the same patches for all kinds of tokens
                num_fetched = 0 if strategy == "none" else budget
                right = torch.cat(
                    [
                        learner(
                            batch,
                            strategy=strategy,
                            budget=num_fetched,
                            generator=generator,
                            frozen=True,
                            token_source=way,
                        )["right"]
                        for batch in batches
                    ]
                )
                exact[way] = score_interval(right[shown].float().tolist(), groups=pages[shown].tolist())
            yield Lost(kind, strategy, int(shown.sum()), exact)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", type=Path)
    asked = [kind for kind in KINDS if kind not in UNASKED]
    parser.add_argument("--kinds", nargs="+", choices=asked, default=["document", "browser", "stacked", "tile"])
    parser.add_argument("--questions", type=int, default=96, help="questions per kind, rounded up to batches of 24")
    parser.add_argument(
        "--split", choices=SPLITS, default="validation", help="split of the pages; use test only to report"
    )
    parser.add_argument("--strategies", nargs="+", default=["oracle", "realizer", "none"])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    if given.questions < 1:
        parser.error(f"--questions: expected at least 1; got {given.questions}")
    stage = AnsweringStage(
        seed=given.seed,
        pages=8,
        questions=3,
        kinds=dict.fromkeys(given.kinds, 1.0),
        evaluate_questions=given.questions,
        evaluate_split=given.split,
        evaluate_strategies=tuple(given.strategies),
    )
    try:
        learner = load_learner(given.model)
        model = ArrCocForConditionalGeneration.from_pretrained(given.model, dtype=torch.float32)
        task = stage.task(Run(model, ArrCocProcessor.from_pretrained(given.model), learner=learner))
        print(f"{given.model}, {given.split} split, seed {given.seed}\n{HEADER}")
        for lost in lost_answers(task):
            print(lost, flush=True)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    run_module(main)
