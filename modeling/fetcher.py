"""The running-back fetcher: score the patches, allocate the budget; and say what was done.

Notation: B batch, G side of the fine grid, N = G*G patches, K fetched tokens (where items get different numbers: the
most of any), T tiers. Positions are (y, x).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import initialization

from .allocators import FetchResult, allocate, positions_of
from .checks import FETCHING, SEEDS, refusal
from .configuration_arr_coc import AUTO, ArrCocFetcherConfig
from .detail_allocators import ALLOCATORS
from .relevance_maps import SCORERS
from .scorers import FetchContext, Scorer, scored


@dataclass(frozen=True)
class FetchChoices:
    """How one call fetches. None leaves a choice to the configuration.

    Attributes:
        strategy: which scorer says what is relevant.
        allocator: what turns relevance into patches.
        budget: see `resolve_budget`. In `forward` the prompts' placeholders say how many, and this has to agree.
        seed: of random relevance where there is no generator.
        generator: for strategy "random".
        overlap: "exclude" or "allow": whether patches that are base tokens already may be fetched again.
        bypass: whether the bridge gives way to its linear projection; None: as configured, or as encoded.
        patches: [I, K] patches to fetch of each image slot, whatever their relevance; no scorer runs.
        relevance: [I, N] relevance that is known beforehand, which strategy "oracle" fetches.
        all_scores: whether every trained scorer runs, not only the strategy's.
        num_passes: runs back for each question, or "auto": up to 4, while the answer is unsure. 1 where not given.
        exploration: of several passes, what says how much of each is drawn: a name in `passes.EXPLORATION`.

    Example:
        >>> model.generate("receipt.png", "What is the total?", choices=FetchChoices(strategy="saliency", budget=64))
    """

    strategy: str | None = None
    allocator: str | None = None
    budget: int | str | None = None
    seed: int | None = None
    generator: torch.Generator | None = None
    overlap: str | None = None
    bypass: bool | None = None
    patches: Tensor | None = None
    relevance: Tensor | None = None
    all_scores: bool = False
    num_passes: int | str | None = None
    exploration: str | None = None

    def __post_init__(self) -> None:
        for name, (kinds, expected) in FETCHING.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool)):
                raise refusal(name, expected, value)
        if self.seed is not None and not -SEEDS <= self.seed <= SEEDS:
            raise refusal("seed", FETCHING["seed"][1], self.seed)
        for name in ("patches", "relevance"):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.ndim != 2 or tensor.layout != torch.strided or tensor.is_quantized):
                raise refusal(name, FETCHING[name][1], tensor)

    @classmethod
    def of(cls, choices: "FetchChoices | Mapping[str, Any] | None") -> "FetchChoices":
        """Choices as they are, by name, or none.

        Raises:
            ValueError: a name that is no choice.
        """
        if type(choices).__name__ == cls.__name__:  # by name: remote code may load a class twice
            return choices  # type: ignore[return-value]
        if choices is None:
            return AS_CONFIGURED
        if not isinstance(choices, Mapping):
            raise refusal("choices", "FetchChoices, or a mapping of their names", choices)
        known = [*cls.__dataclass_fields__]
        if unknown := sorted(map(str, set(choices) - set(known))):
            raise ValueError(f"choices: expected names among {', '.join(known)}; got {', '.join(unknown)}")
        return cls(**choices)


AS_CONFIGURED = FetchChoices()


SHARES = (0.0, 0.05, 0.1, 0.3, 0.5)
"""What may be drawn of a pass, the rule's values (`passes.tempered`) among them."""

FIRST = 2
"""Which of `SHARES` an untrained policy prefers, in every pass: a tenth."""

FURTHER_PASSES = 3.0
"""Passes behind the first, by which their number is scaled to 0..1."""


class Judged(Protocol):
    """What the policy reads of a pass (`answers.Pass`)."""

    @property
    def uncertainty(self) -> float: ...


class TemperingPolicy(nn.Module):
    """From the last answer's uncertainty and how many passes there were to one of `SHARES`.

    The most likely one; where the decisions are recorded (`drawing`), one that is drawn.
    """

    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(2, size)
        self.head = nn.Linear(size, len(SHARES))
        self._drawn: list[tuple[Tensor, int]] | None = None
        self._generator: torch.Generator | None = None

    def start_weights(self, std: float) -> None:
        """Nothing depends on the answers yet, and `FIRST` is e times as likely as each of the others."""
        preferred = torch.zeros_like(self.head.bias)
        preferred[FIRST] = 1.0
        initialization.zeros_(self.head.weight)
        initialization.copy_(self.head.bias, preferred)
        initialization.normal_(self.hidden.weight, std=1.0)

    def forward(self, states: Tensor) -> Tensor:
        """Logits [B, S] for states [B, 2], see `state_of`."""
        return self.head(torch.tanh(self.hidden(states.to(self.hidden.weight))))

    @torch.no_grad()
    def share(self, passes: Sequence[Judged]) -> float:
        """Of the next pass, given those so far."""
        state = state_of(passes)
        probabilities = self(state[None])[0].float().softmax(-1)
        if self._drawn is None:
            return SHARES[int(probabilities.argmax())]
        number = int(torch.multinomial(probabilities.cpu(), 1, generator=self._generator))
        self._drawn.append((state, number))
        return SHARES[number]

    @contextmanager
    def drawing(self, generator: torch.Generator) -> Iterator[list[tuple[Tensor, int]]]:
        """Within it shares are drawn, and each decision is in the list: its state [2], and which share it was.

        For one thread at a time.
        """
        self._drawn, self._generator = [], generator
        try:
            yield self._drawn
        finally:
            self._drawn = self._generator = None

    def log_probability(self, drawn: Sequence[tuple[Tensor, int]]) -> Tensor:
        """Of all decisions of an episode together, differentiable; a scalar."""
        states = torch.stack([state for state, _ in drawn])
        numbers = torch.tensor([number for _, number in drawn], device=self.head.weight.device)
        return self(states).float().log_softmax(-1).gather(1, numbers[:, None]).sum()


def state_of(passes: Sequence[Judged]) -> Tensor:
    """[2] float32: the last answer's uncertainty (1 before there is one), and how many passes there were."""
    uncertainty = passes[-1].uncertainty if passes else 1.0
    return torch.tensor([uncertainty, len(passes) / FURTHER_PASSES])


class RunningBackFetcher(nn.Module):
    """Holds the trained scorers; makes the fixed ones on demand."""

    def __init__(
        self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int, depth_size: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.sizes = {"feature_size": feature_size, "text_size": text_size}
        self.depth_size = depth_size
        self.check_strategy(config.strategy)
        self.scorers = nn.ModuleDict({name: self._build(SCORERS[name]) for name in config.scorers})
        # Of the allocators that choose how many: checkpoints hold their weights under this name.
        budgeters = {name: allocator.budgeter for name, allocator in ALLOCATORS.items()}
        choosing = {name: kind(config, **self.sizes) for name, kind in budgeters.items() if kind is not None}
        self.budgeters = nn.ModuleDict(choosing)
        self.tempering = TemperingPolicy() if config.learned_exploration else None
        self.temperature = config.temperature
        """Of gradient "soft", in units of the score; the trainer's to lower."""

    def check_strategy(self, strategy: str) -> type[Scorer]:
        """The scorer class called `strategy`, if this checkpoint can run it.

        Raises:
            ValueError: unknown, or a trained scorer whose weights this checkpoint does not hold.
        """
        kind = SCORERS[strategy]
        if kind.trained and strategy not in self.config.scorers:
            usable = [n for n, k in SCORERS.items() if not k.trained or n in self.config.scorers]
            raise ValueError(f"strategy: expected one of {', '.join(sorted(usable))} (held here); got {strategy!r}")
        return kind

    def resolve(self, choices: FetchChoices) -> FetchChoices:
        """The choices with the most an item may take, and who chooses: a stated budget is exact unless they name one.

        Raises:
            ValueError: an unknown strategy or allocator, or "auto" beside an allocator that fetches exactly the budget.
        """
        if choices.strategy is not None:
            self.check_strategy(choices.strategy)
        budget, allocator = choices.budget, choices.allocator
        chooses = ALLOCATORS[self.config.allocator].budgeter is not None
        if allocator is not None and ALLOCATORS[allocator].budgeter is not None:
            return replace(choices, budget=AUTO if budget is None else budget)
        if budget == AUTO:
            if allocator is not None:
                expected = f"a number or a name beside allocator {allocator!r}, which fetches exactly that"
                raise ValueError(f"budget: expected {expected}; got {budget!r}")
            return replace(choices, allocator=None if chooses else "tiers")
        exact = chooses and allocator is None and budget is not None
        return replace(choices, allocator="topk") if exact else choices

    def scorer(self, strategy: str) -> Scorer:
        """The scorer itself: this checkpoint's weights, or a fixed rule."""
        kind = self.check_strategy(strategy)
        held: Any = self.scorers
        return held[strategy] if kind.trained else self._build(kind)

    def _build(self, kind: type[Scorer]) -> Scorer:
        depth: dict[str, Any] = {"depth_size": self.depth_size} if kind.reads_depths else {}
        return kind(self.config, **self.sizes, **depth)

    def reads_attention(self, choices: FetchChoices) -> bool:
        """Whether the scorer of these choices needs the language model to read base and question first."""
        strategy = choices.strategy or self.config.strategy
        return choices.patches is None and self.check_strategy(strategy).reads_attention

    def all_scores(self, context: FetchContext, fetched: FetchResult | None = None) -> dict[str, Tensor]:
        """Logits [B, N] of every trained scorer; the one that led to `fetched` does not run again."""
        done = {} if fetched is None else {fetched.strategy: fetched.scores}
        return {name: done[name] if name in done else scorer(context) for name, scorer in self.scorers.items()}

    def forward(
        self, context: FetchContext, budget: int, choices: FetchChoices = AS_CONFIGURED, *, taken: Tensor | None = None
    ) -> FetchResult:
        """Chooses exactly `budget` distinct patches per item, or up to as many with an allocator that chooses it.

        In training mode with a gradient, allocators that choose fetch all that they ever would, each weighted by the
        probability that it is fetched: what is missing could not say that it is.

        Args:
            context: what the scorer sees.
            budget: K.
            choices: strategy and allocator, or the patches themselves.
            taken: [B, M] patches that are base tokens already and must not be fetched again, or None.

        Raises:
            ValueError: unknown names, K above the number of candidates, any K for a strategy that fetches nothing, or
                given patches that are not K distinct ones of each item.
        """
        if choices.patches is not None:
            return _given(context, budget, choices.patches)
        if choices.overlap not in (None, "exclude", "allow"):
            raise ValueError(f'overlap: expected "exclude" or "allow"; got {choices.overlap!r}')
        settings = self._settings(choices)
        scorer = self.scorer(settings["strategy"])
        _check_budget(context, budget, scorer, settings["strategy"], taken)
        scores, relevance, fell_back = scored(scorer, context, fall_back=not self.training)
        hidden = None if taken is None else torch.zeros_like(context.patch_mask).scatter(1, taken, True)
        fetched = allocate(context, scores, relevance, context.patch_mask, budget, hidden=hidden, **settings)
        fetched.fell_back = fell_back
        return fetched

    def choose(
        self,
        context: FetchContext,
        scores: Tensor,
        relevance: Tensor,
        patch_mask: Tensor,
        budget: int,
        choices: FetchChoices = AS_CONFIGURED,
        *,
        hidden: Tensor | None = None,
    ) -> FetchResult:
        """The allocator's half of `forward`: see `allocate`."""
        return allocate(context, scores, relevance, patch_mask, budget, hidden=hidden, **self._settings(choices))

    def _settings(self, choices: FetchChoices) -> dict[str, Any]:
        """What `allocate` is told of the choices and this model; the answer's loss is to reach what chooses, or not."""
        allocator = choices.allocator or self.config.allocator
        return {
            "config": self.config,
            "strategy": choices.strategy or self.config.strategy,
            "allocator": allocator,
            "budgeter": None if ALLOCATORS[allocator].budgeter is None else self.budgeters[allocator],
            "learns": self.training and torch.is_grad_enabled() and self.config.gradient != "none",
            "temperature": self.temperature if self.config.gradient == "soft" else None,
        }


def _check_budget(context: FetchContext, budget: int, scorer: Scorer, strategy: str, taken: Tensor | None) -> None:
    if budget and not scorer.fetches:
        expected = (
            "prompts without placeholders for fetched tokens (a processor makes them when given the strategy too)"
        )
        raise ValueError(f'strategy "{strategy}": expected {expected}; got room for {budget} per image')
    candidates = context.patch_mask.shape[1] - (0 if taken is None else taken.shape[1])
    if budget > candidates:
        raise ValueError(f"budget: expected at most {candidates} patches that are not base tokens; got {budget}")


def _given(context: FetchContext, budget: int, patches: Tensor) -> FetchResult:
    """The patches [B, K] that a call asks for: relevant are they alone."""
    items, total = context.patch_mask.shape
    if patches.is_floating_point() or patches.is_complex() or patches.is_meta:
        raise refusal("patches", FETCHING["patches"][1], patches)
    indices = patches.to(context.patch_mask.device).long().sort(-1).values
    if list(indices.shape) != [items, budget]:
        raise ValueError(f"patches: expected shape {[items, budget]} (image slots, K); got {list(indices.shape)}")
    distinct = bool((indices[:, 1:] > indices[:, :-1]).all())
    if indices.numel() and not (distinct and int(indices.min()) >= 0 and int(indices.max()) < total):
        raise ValueError(f"patches: expected distinct numbers of {total} patches, from 0; got {patches.tolist()}")
    relevance = torch.zeros(items, total, device=indices.device).scatter(1, indices, 1.0)
    return FetchResult(
        indices=indices,
        positions=positions_of(indices, context.features.shape[-1]),
        scores=relevance,
        relevance=relevance,
        is_padding=~context.patch_mask.gather(1, indices),
        budget=budget,
        strategy="given",
        allocator="given",
    )
