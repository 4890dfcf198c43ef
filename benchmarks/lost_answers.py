"""Where a model trained from scratch loses answers: in its encoder, in its bridge, or in its language model?

    python -m benchmarks.lost_answers MODEL [--kinds document browser] [--questions 96] [--split validation]
        [--strategies oracle realizer none] [--seed 0]

The same questions are asked with the same patches, read in three ways: as the bridge says them; in oracle tokens of
what the grid encoder names there; in oracle tokens of the ground-truth text. What the second reads better than the
first the bridge loses, or the language model does not follow it; what the third reads better than the second the
encoder misreads; what the third does not read the language model cannot. Answers are teacher-forced. MODEL is a folder
with what training left beside the weights, `learner.safetensors`.
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
"""In which tokens the language model reads."""


@dataclass(frozen=True)
class Lost:
    """How often one strategy's answers about one kind of page are exact, by the tokens that are read.

    Attributes:
        kind, strategy: of pages, and of what was fetched.
        questions: about what the pages show.
        exact: by `WAYS`, with intervals that draw whole pages.
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
    """What the stage's held-out pages are answered, kind by kind.

    Raises:
        ValueError: a bridge that puts tokens of its own around an image's, which oracle tokens lack.
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
                generator = torch.Generator().manual_seed(stage.seed)  # the same patches whichever way they are read
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
    parser.add_argument("--questions", type=int, default=96, help="about each kind, rounded up to whole batches of 24")
    parser.add_argument("--split", choices=SPLITS, default="validation", help="decide nothing on test")
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
