"""Stage: the whole model learns to find, fetch and answer, on rendered documents.

A batch is some pages with several questions each, encoded once. At first there are no answers: fetched tokens learn to
be the oracle tokens of the copying stage, and the scorers learn relevance from the boxes of the answer and its label.
Then strategy and budget are drawn per batch: at first mostly oracle boxes, so that the language model gets readable
patches, then more and more the trained scorers. So one set of weights serves every strategy. Oracle batches also
transcribe, in a second turn, all lines that they fetched: many more characters than an answer has. Batches without
fetched tokens transcribe the whole page, as text in base tokens is not learned from patches that show it better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from arr_coc.data import Split
from arr_coc.data.mixture import Mixture, check_asked
from arr_coc.modeling.configuration_arr_coc import grid_size, resolve_budget

from ..stages import STAGES, Run
from .learner import LEARNT, Learner
from .questions import Batch, Prompts, QuestionPages
from .shared_prefix import POINTING_LAYER
from .stage import ScratchStage, Task


@STAGES.register("answering")
@dataclass(frozen=True)
class AnsweringStage(ScratchStage):
    """Settings of the stage.

    By default one set of weights learns to serve every strategy. For a comparison of strategies at their best, train
    for
    one strategy alone: `start_mix` and `end_mix` with its strategy, `budgets` with its budget, `reads_base`.

    Attributes:
        pages, questions: pages per step, and questions about each.
        sorted_steps: steps whose pages are drawn together and sorted by length, which saves padding; each worker draws
            them all.
        kinds, photo, reused: of the pages, as in the reading stage.
        absent, unheard, turns: shares of the questions, as in the copying stage.
        learning_rate: of all but the grid encoder (encoder_rate) and the language model (language_rate).
        aligned_steps: steps at the start without answers: fetched tokens learn to be oracle tokens, and the scorers
            learn relevance.
        frozen_steps: steps at the start in which the grid encoder is not trained.
        start_mix, end_mix: how often each strategy is drawn at the first step and from half of the steps on.
        budgets: how often each budget is drawn, by name or number.
        reads_base: whether the language model reads base tokens.
        transcribed: share of the batches of the oracle, and of those that see the whole page (by its base alone or by
            all of its patches), that also transcribe.
        transcript_budget: the oracle's fetched tokens then; lines are fetched and transcribed as long as they fit.
        dropped: share of the oracle's questions without some of the patches, which base tokens then have to replace.
        relevance_share: share of the questions that train the scorers in a step without a trained scorer's fetch.
        relevance_weight, token_weight, base_weight, visual_weight, reading_weight: of the losses beside the
            answer's.
        pointing_layer: layer of the language model with the pointing heads, as in the copying stage.
        evaluate_questions: questions in a measurement about pages of each kind.
        evaluate_split: split of measurements: "validation" has held-out fonts and words, for decisions.
        evaluate_strategies, evaluate_budget: strategies and budget of measurements.

    Raises:
        ValueError: pages that cannot be asked about, or steps that read neither base nor patches.
    """

    name: ClassVar[str] = "answering"

    pages: int = 12
    questions: int = 4
    sorted_steps: int = 1
    kinds: Mapping[str, float] = field(default_factory=lambda: {"document": 1.0})
    photo: float = 0.0
    reused: int = 1
    absent: float = 0.0
    unheard: float = 0.0
    turns: float = 0.0
    learning_rate: float = 1.5e-3
    encoder_rate: float = 3e-4
    language_rate: float = 5e-4
    aligned_steps: int = 300
    frozen_steps: int = 600
    start_mix: Mapping[str, float] = field(
        default_factory=lambda: {"oracle": 0.55, "realizer": 0.05, "none": 0.35, "saliency": 0.05}
    )
    end_mix: Mapping[str, float] = field(
        default_factory=lambda: {
            "oracle": 0.15,
            "realizer": 0.35,
            "none": 0.35,
            "saliency": 0.05,
            "random": 0.04,
            "clip_query": 0.04,
            "variance": 0.02,
        }  # fmt: skip
    )
    budgets: Mapping[str | int, float] = field(
        default_factory=lambda: {"standard": 0.6, "balanced": 0.2, "fast": 0.1, "accurate": 0.1}
    )
    reads_base: bool = True
    transcribed: float = 0.8
    transcript_budget: int = 112
    dropped: float = 0.3
    relevance_share: float = 0.34
    relevance_weight: float = 2.0
    token_weight: float = 0.3
    base_weight: float = 0.1
    visual_weight: float = 0.3
    reading_weight: float = 0.3
    pointing_layer: int = POINTING_LAYER
    evaluate_questions: int = 192
    evaluate_split: Split = "validation"
    evaluate_strategies: Sequence[str] = ("oracle", "realizer", "none")
    evaluate_budget: str | int = "standard"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("pages", "questions", "sorted_steps", "reused")
        self.check_shares("absent", "unheard", "turns")
        strategies = {*self.start_mix, *self.end_mix, *self.evaluate_strategies}
        if not self.reads_base and "none" in strategies:
            raise ValueError(
                "reads_base: expected true where strategy none, which fetches nothing, is in a mix; got false"
            )
        check_asked(self.kinds)

    def task(self, run: Run) -> "Answering":
        return Answering(self, run)

    def mix(self, step: int) -> dict[str, float]:
        """The probability of each strategy at `step`: linear from the start's to the end's over half of the steps."""
        progress = min(1.0, 2 * step / self.steps)
        names = {**self.start_mix, **self.end_mix}
        return {n: (1 - progress) * self.start_mix.get(n, 0.0) + progress * self.end_mix.get(n, 0.0) for n in names}

    def weights(self) -> dict[str, float]:
        """The weight of each loss."""
        return {
            "answer": 1.0,
            "relevance": self.relevance_weight,
            "token": self.token_weight,
            "base": self.base_weight,
            "visual_pretraining": self.visual_weight,
            "reading": self.reading_weight,
            "pointer": POINTER_WEIGHT,
        }


POINTER_WEIGHT = 0.3
"""Weight of the pointing loss, beside the answer's."""

Name = TypeVar("Name", str, str | int)


def _draw(generator: torch.Generator, weights: Mapping[Name, float]) -> Name:
    number = torch.multinomial(torch.tensor(list(weights.values())), 1, generator=generator)
    return list(weights)[int(number)]


@torch.no_grad()
def measure(learner: Learner, batches: list[Batch], strategies: Sequence[str], budget: int) -> dict[str, float]:
    """The scores of each strategy at a number of patches, on batches of held-out pages.

    Returns:
        By strategy "exact", of questions with an answer on the page; "absent", of the others, if there are any; "loss"
            of
        all; "recall" of the patches that show the answer.
    """
    learner.eval()
    scores = {}
    for strategy in strategies:
        generator = torch.Generator().manual_seed(0)
        num_fetched = 0 if strategy == "none" else budget
        outputs = [
            learner(batch, strategy=strategy, budget=num_fetched, generator=generator, frozen=True) for batch in batches
        ]
        right = torch.cat([output["right"] for output in outputs]).float()
        shown = torch.cat([batch.relevance.any(1) for batch in batches])
        for name, asked in (("exact", shown), ("absent", ~shown)):
            if asked.any():
                scores[f"{strategy}: {name}"] = right[asked].mean().item()
        scores[f"{strategy}: loss"] = torch.stack([output["answer"] for output in outputs]).mean().item()
        if num_fetched:
            scores[f"{strategy}: recall"] = torch.stack([output["recall"] for output in outputs]).mean().item()
    learner.train()
    return scores


class Answering(Task):
    """The run's model, in place, with its training-only parts."""

    module: Learner

    def __init__(self, stage: AnsweringStage, run: Run) -> None:
        self.stage, config = stage, run.model.config
        learner = Learner(run.model, run.processor.tokenizer, stage.pointing_layer, reads_base=stage.reads_base)
        self.module = learner.to(run.device).train()
        for part, state in run.learner.items():
            self.module.get_submodule(part).load_state_dict(state)
        prompts = Prompts(run.processor.tokenizer, config.image_token_id)
        self.asked = partial(QuestionPages, stage, config, prompts, transcript_budget=stage.transcript_budget)
        side = stage.image_size or config.vision_config.image_size
        self.patches = grid_size(side, config.vision_config.patch_size) ** 2
        for budget in (*stage.budgets, stage.evaluate_budget, stage.transcript_budget):
            resolve_budget(budget, self.patches)  # raises a ValueError if there are too few, before any work is lost
        for strategy in (*stage.start_mix, *stage.end_mix, *stage.evaluate_strategies):
            run.model.model.fetcher.check_strategy(strategy)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        core, stage = self.module.model.model, self.stage
        slow = [*core.vision_tower.grid_encoder.parameters(), *self.module.reading.parameters()]
        spoken = list(core.language_model.parameters())
        known = {id(parameter) for parameter in [*slow, *spoken, *self.module.language.parameters()]}
        fast = [parameter for parameter in self.module.parameters() if id(parameter) not in known]
        return [(slow, stage.encoder_rate), (spoken, stage.language_rate), (fast, stage.learning_rate)]

    def pages(self, start: int) -> QuestionPages:
        return self.asked(split="train", mixture=Mixture(self.stage.kinds, self.stage.photo), start=start)

    def losses(self, step: int, batch: Batch) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.stage.seed * 1_000_003 + step)
        strategy = _draw(generator, self.stage.mix(step))
        budget = 0 if strategy == "none" else resolve_budget(_draw(generator, self.stage.budgets), self.patches)
        batch = batch.to(self.module.model.device)
        if step < self.stage.aligned_steps:
            return self._aligning(batch, generator)
        name = f"answer/{strategy}"
        whole = budget in (0, self.patches)
        if (whole or strategy == "oracle") and torch.rand((), generator=generator) < self.stage.transcribed:
            batch, name = batch.read_from(whole=whole), f"transcript/{strategy}"
            budget = budget if whole else self.stage.transcript_budget
        losses = self.module(
            batch, strategy=strategy, budget=budget, generator=generator, frozen=step < self.stage.frozen_steps,
            relevance_share=self.stage.relevance_share, dropped=self.stage.dropped if self.stage.reads_base else 0.0,
        )  # fmt: skip
        weights = {part: weight for part, weight in self.stage.weights().items() if part in losses}
        total = torch.stack([weight * losses[part] for part, weight in weights.items()]).sum()
        logged = {part: losses[part].detach() for part in weights if part != "answer"}
        return {"loss": total, name: losses["answer"].detach(), **logged}

    def _aligning(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The losses of a step without answers."""
        losses = self.module.align(batch.transcript or batch, self.stage.transcript_budget, generator)
        visual = self.stage.visual_weight * (losses["visual_pretraining"] + losses.get("naming", 0.0))
        total = losses["token"] + losses["base"] + visual + self.stage.relevance_weight * losses["relevance"]
        return {"loss": total, **{part: loss.detach() for part, loss in losses.items()}}

    @cached_property
    def unseen(self) -> dict[str, list[Batch]]:
        """Batches of each kind of held-out page."""
        batches = -(-self.stage.evaluate_questions // (self.stage.pages * self.stage.questions))
        return {kind: [self._unseen_batch(kind, number) for number in range(batches)] for kind in self.stage.kinds}

    def _unseen_batch(self, kind: str, number: int) -> Batch:
        pages = self.asked(split=self.stage.evaluate_split, mixture=Mixture({kind: 1.0}), held_out=True)
        return pages.batch(number).to(self.module.model.device)

    def measure(self) -> dict[str, float]:
        scores: dict[str, float] = {}
        for kind, batches in self.unseen.items():
            budget = resolve_budget(self.stage.evaluate_budget, self.patches)
            measured = measure(self.module, batches, self.stage.evaluate_strategies, budget)
            scores |= {f"{kind}, {name}": score for name, score in measured.items()}
        return scores

    def finish(self, run: Run) -> None:
        run.model.tie_weights()
        run.learner |= {part: self.module.get_submodule(part).state_dict() for part in LEARNT}
