"""Reinforcement: the scorer learns from answers alone which patches to fetch; no box is ever shown.

For each question G sets of patches are drawn from the scorer (Plackett-Luce, `plackett_luce.py`), the model answers
from each, and sets that were answered better than the same question's other sets become more likely (REINFORCE,
Williams 1992, with a leave-one-out baseline, Kool et al. 2019). With an allocator that chooses how much it fetches, the
sizes of the sets are drawn too (`set_sizes.py`), and what decides them learns as well. An image is encoded once.

Notation: B prompts, I image slots, G draws, N patches, K saccades at most.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..modeling.allocators import FetchResult
from ..modeling.modeling_arr_coc import ImageEncoding
from ..modeling.scorers import Scorer
from .asked_batch import AskedBatch
from .parts import base_model
from .plackett_luce import draw_orders, set_log_probability
from .rewards import RewardWeights, group_advantages, reward
from .set_sizes import draw_sizes, size_log_probability


@dataclass(frozen=True)
class ReinforceSettings:
    """Settings of `reinforcement_loss`.

    Attributes:
        draws: G, sets drawn for each question.
        weights: of the reward's parts.
        normalise: divide advantages by their standard deviation within a question's draws.
        temperature: sets are drawn from logits / temperature.
        entropy_floor: nats, of one draw: a scorer surer than this is pulled back; log(8): as sure as between 8 patches.
        entropy_weight: of the shortfall.
        kl_weight: of the divergence from the starting scorer.
        answering: "generate": greedy answers, scored as text; "forced": one pass over the right answer, and the share
            of its tokens before the first mistake of a greedy answer is the overlap, which is a denser reward.
    """

    draws: int = 8
    weights: RewardWeights = field(default_factory=RewardWeights)
    normalise: bool = False
    temperature: float = 1.0
    entropy_floor: float = 1.0
    entropy_weight: float = 0.1
    kl_weight: float = 0.01
    answering: Literal["generate", "forced"] = "generate"

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise ValueError(f"draws: expected at least 2, to be compared with each other; got {self.draws}")
        if not self.temperature > 0:
            raise ValueError(f"temperature: expected a positive number; got {self.temperature}")
        if self.answering not in ("generate", "forced"):
            raise ValueError(f'answering: expected "generate" or "forced"; got {self.answering!r}')

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "ReinforceSettings":
        """Settings by name, `weights` as a mapping too.

        Raises:
            ValueError: an unknown setting, or a bad one.
        """
        _check_names(cls, settings, "reinforcement")
        weights = settings.get("weights", {})
        _check_names(RewardWeights, weights, "reinforcement.weights")
        return cls(**{**settings, "weights": RewardWeights(**weights)})


def _check_names(kind: type, settings: Any, what: str) -> None:
    known = [setting.name for setting in fields(kind)]
    if not isinstance(settings, Mapping) or set(settings) - set(known):
        received = sorted(set(settings) - set(known)) if isinstance(settings, Mapping) else settings
        raise ValueError(f"{what}: expected settings among {', '.join(known)}; got {received}")


@dataclass(frozen=True)
class Reinforcement:
    """Loss and measurements of one step of reinforcement.

    Attributes:
        loss: to minimise.
        rewards: [B, G].
        correctness: [B, G] in 0..1.
        log_probability: [B, G] of the drawn sets.
        entropy: mean over slots, nats.
        divergence: mean over slots from the starting scorer, nats; 0 without one.
        sets: [I, G, K] the patches drawn, those of a set in front.
        sizes: [I, G] how many of them are the set.
    """

    loss: Tensor
    rewards: Tensor
    correctness: Tensor
    log_probability: Tensor
    entropy: Tensor
    divergence: Tensor
    sets: Tensor
    sizes: Tensor

    def measures(self) -> dict[str, Tensor]:
        """Name in the log -> the tensor whose mean a run logs."""
        names = ("rewards", "correctness", "entropy", "divergence", "sizes")
        return {f"reinforcement/{name}": getattr(self, name) for name in names}


def draw_entropy(logits: Tensor, mask: Tensor) -> Tensor:
    """Entropy in nats of one draw from logits [I, N] over the patches in `mask`: [I]."""
    log_p = _log_softmax(logits, mask)
    return -(log_p.exp() * log_p).sum(-1)


def draw_divergence(logits: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """KL divergence in nats of one draw from logits [I, N] from one draw from `reference` [I, N]: [I].

    Of a single draw, in closed form: that of whole sets has none, and its estimate from a few sets is mostly noise.
    """
    log_p, log_q = _log_softmax(logits, mask), _log_softmax(reference, mask)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Finite outside the mask, so that products with the probabilities there are 0."""
    lowest = torch.finfo(torch.float32).min
    return logits.float().masked_fill(~mask, lowest).log_softmax(-1).clamp(min=-1e4)


def starting_scorer(model: nn.Module, strategy: str | None = None) -> Scorer:
    """A frozen copy of the scorer as it is now: the `reference` of `reinforcement_loss`."""
    base = base_model(model)
    name = base.config.fetcher_config.strategy if strategy is None else strategy
    return deepcopy(base.model.fetcher.scorer(name)).requires_grad_(False)


def reinforcement_loss(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    settings: ReinforceSettings,
    *,
    generator: torch.Generator,
    strategy: str | None = None,
    allocator: str | None = None,
    fetch: FetchResult | None = None,
    answers: Sequence[Sequence[str]] | None = None,
    encoding: ImageEncoding | None = None,
    reference: Scorer | None = None,
) -> Reinforcement:
    """Draws G sets for each question, answers from each, and returns the loss whose gradient trains what chooses.

    Args:
        model: an ARR-COC model with its processor, wrapped by PEFT or not.
        batch: what `QuestionCollator` gives, boxes unused: `input_ids`, `labels`, `attention_mask` [B, S];
            `query_mask`, `image_index` where there are any; `pixel_values` and `patch_mask` unless `encoding` is given.
        settings: see there.
        generator: of the draws.
        strategy, allocator: names; the config's by default.
        fetch: of a forward pass on this batch with `strategy` and `allocator`: its scores get the gradient, through
            whatever wraps the model (DDP); None: the scorer runs here.
        answers: for each prompt the texts that are right; by default what `labels` say.
        encoding: the images, encoded.
        reference: the starting scorer, see `starting_scorer`; None: no divergence.

    Raises:
        ValueError: a scorer without weights, no labels, a prompt without room for fetched patches; prompts with several
            images and an allocator that chooses how much it fetches.
    """
    base = base_model(model)
    strategy = base.config.fetcher_config.strategy if strategy is None else strategy
    if not base.model.fetcher.check_strategy(strategy).trained:
        raise ValueError(f"strategy: expected a scorer with weights, to be trained; got {strategy!r}")
    asked = AskedBatch.of(base, batch, encoding=encoding, answers=answers)
    fetch = asked.fetch(strategy, allocator) if fetch is None else fetch
    logits = fetch.scores / settings.temperature
    sets, sizes, log_p = _draw(logits, fetch.survival, asked, settings.draws, generator)
    correct = asked.correctness(sets, sizes, settings.answering)
    rows = asked.look.rows
    slots = torch.zeros_like(correct).index_add(0, rows, torch.ones_like(log_p))
    fetched = torch.zeros_like(correct).index_add(0, rows, sizes.to(correct)) / slots.clamp(min=1)
    rewards = reward(correct, fetched=fetched, budget=asked.look.budget, weights=settings.weights)
    log_p = torch.zeros_like(rewards).index_add(0, rows, log_p)  # several images in a prompt: drawn independently
    advantages = group_advantages(rewards, normalise=settings.normalise)
    entropy, divergence = draw_entropy(logits, asked.mask), logits.new_zeros(())
    loss = -(advantages * log_p).mean() + settings.entropy_weight * (settings.entropy_floor - entropy).relu().mean()
    if reference is not None:
        with torch.no_grad():
            before = reference(asked.look.context) / settings.temperature
        divergence = draw_divergence(logits, before, asked.mask).mean()
        loss = loss + settings.kl_weight * divergence
    return Reinforcement(
        loss, rewards, correct, log_p.detach(), entropy.detach().mean(), divergence.detach(), sets, sizes
    )


def _draw(
    logits: Tensor, survival: Tensor | None, asked: AskedBatch, draws: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Patches [I, G, K], how many of them are the set [I, G], and the log-probability of set and size [I, G]."""
    logits = logits[:, None].expand(-1, draws, -1)
    mask = asked.mask[:, None].expand(-1, draws, -1)
    sizes = torch.full(logits.shape[:2], asked.look.budget, device=logits.device)
    log_p = logits.new_zeros(logits.shape[:2])
    if survival is not None:
        sizes = draw_sizes(survival, draws, generator=generator)
        log_p = size_log_probability(survival, sizes)
    sets = draw_orders(logits, asked.look.budget, mask=mask, generator=generator)
    return sets, sizes, log_p + set_log_probability(logits, sets, mask, sizes=sizes)


class Reinforcer:
    """Reinforcement over a run: what it needs beside a batch, as functions of seed and step.

    Args:
        model: as the run begins, before any checkpoint is loaded into it: its scorers are the references.
        settings: see there.
        seed: of the draws.
    """

    def __init__(self, model: nn.Module, settings: ReinforceSettings, *, seed: int) -> None:
        self.model, self.settings, self.seed = model, settings, seed
        self.references = {name: starting_scorer(model, name) for name in base_model(model).model.fetcher.scorers}

    def loss(
        self, batch: Mapping[str, Tensor], fetch: FetchResult, *, step: int, encoding: ImageEncoding | None = None
    ) -> Reinforcement:
        """`reinforcement_loss` of a batch that was run through the model; what is drawn depends on the batch too."""
        numbers = (self.seed, step, int(batch["input_ids"].sum()))
        seed = 0
        for number in numbers:
            seed = (seed * 1_000_003 + number) % 2**63
        return reinforcement_loss(
            self.model, batch, self.settings, generator=torch.Generator().manual_seed(seed), strategy=fetch.strategy,
            allocator=fetch.allocator, fetch=fetch, encoding=encoding, reference=self.references[fetch.strategy],
        )  # fmt: skip
