"""Learned tempering: the share of drawn patches in each pass, learned from the answers and the number of passes.

For each question G episodes are played: the model runs back again while its answer is unsure, and the policy
(`families/tempering.py`) draws the share of each pass. Episodes with a better end than the question's others make their
decisions more likely (REINFORCE, Williams 1992, with a leave-one-out baseline). Only the policy learns.

Notation: B questions, G episodes of each.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor

from ..data.formats import open_records
from ..data.records import Record
from ..families.tempering import TemperingPolicy
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration, ImageEncoding
from ..modeling.passes import AUTO_PASSES
from .checkpoints import load_state, save_state
from .reinforce import RewardWeights, answer_correctness, group_advantages, reward
from .stages import STAGES, Run, Stage, check_names

logger = logging.getLogger(__name__)

STATE = "tempering.pt"
"""In a stage's folder: step, policy and optimiser, replaced in one move."""

Episode = Callable[[int], float]
"""The number of an episode of its question -> its reward; the policy draws at least one share in it."""


def tempering_loss(
    policy: TemperingPolicy, questions: Sequence[Episode], *, draws: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Plays G = `draws` episodes of each question; returns the loss to minimise, and the rewards [B, G]."""
    rewards, log_p = [], []
    for play in questions:
        for number in range(draws):
            with policy.drawing(generator) as drawn:
                rewards.append(play(number))
            log_p.append(policy.log_probability(drawn))
    gained = torch.tensor(rewards).view(len(questions), draws)
    likely = torch.stack(log_p).view(len(questions), draws)
    return -(group_advantages(gained).to(likely) * likely).mean(), gained


@STAGES.register("tempering")
@dataclass(frozen=True)
class Tempering(Stage):
    """Settings of the stage, and the stage.

    Attributes:
        data: a source of records, see `open_records`, each about one image.
        steps: of AdamW.
        batch_size: B.
        draws: G.
        learning_rate: of AdamW.
        budget: tokens of each pass.
        new_tokens: the most tokens of an answer, thinking included.
        rewards: weights of its parts, see `RewardWeights`; efficiency is of the tokens of `AUTO_PASSES` passes.
        log_every: steps.
        save_every: steps.
        seed: of questions and draws.
    """

    data: Mapping[str, Any]
    steps: int = 100
    batch_size: int = 4
    draws: int = 4
    learning_rate: float = 0.02
    budget: int | str = "fast"
    new_tokens: int = 32
    rewards: Mapping[str, float] = field(default_factory=dict)
    log_every: int = 10
    save_every: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("steps", "batch_size", "new_tokens", "log_every", "save_every")
        self.check_counts("draws", least=2)
        check_names(RewardWeights.__dataclass_fields__, self.rewards, "rewards")

    def run(self, run: Run, folder: Path) -> None:
        if (processes := PartialState().num_processes) > 1:
            raise ValueError(f"stage tempering: expected one process; got {processes}")
        model: Any = run.model
        model = model.to(run.device).eval()
        policy = model.model.fetcher.tempering
        if policy is None:
            raise ValueError("stage tempering: expected fetcher_config.learned_exploration: true; got false")
        model.processor = run.processor
        records = open_records(self.data, folder=run.root)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=self.learning_rate, weight_decay=0.0)
        if state := load_state(folder / STATE):
            policy.load_state_dict(state["policy"])
            optimizer.load_state_dict(state["optimizer"])
        for step in range(int(state["step"]) if state else 0, self.steps):
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            chosen = torch.randint(len(records), (self.batch_size,), generator=generator).tolist()
            asked = [(model.encode_image(records[number].picture), records[number]) for number in chosen]
            questions = [partial(self._play, model, *each, step) for each in asked]
            loss, rewards = tempering_loss(policy, questions, draws=self.draws, generator=generator)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (step + 1) % self.log_every == 0:
                logger.info(f"tempering step {step + 1}/{self.steps}: reward {rewards.mean():.3f}")
            if (step + 1) % self.save_every == 0 or step + 1 == self.steps:
                state = {"step": step + 1, "policy": policy.state_dict(), "optimizer": optimizer.state_dict()}
                save_state(folder / STATE, state)

    def _play(
        self, model: ArrCocForConditionalGeneration, encoding: ImageEncoding, record: Record, step: int, number: int
    ) -> float:
        """The reward of one episode; its draws depend on question, step and number."""
        passes: dict[str, Any] = {"num_passes": "auto", "exploration": "learned", "seed": step * self.draws + number}
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": self.new_tokens, "return_fetch": True}
        settings |= {"budget": self.budget, "history": record.history}
        answer = model.generate(encoding, record.question, **passes, **settings)
        gained = reward(
            torch.tensor(answer_correctness(answer.text, record.answers)),
            fetched=answer.fetch.budget,
            budget=AUTO_PASSES * answer.passes[0].fetch.budget,
            passes=len(answer.passes),
            weights=RewardWeights(**self.rewards),
        )
        return float(gained)
