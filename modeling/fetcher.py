"""The running-back fetcher: scores the patches, allocates the budget and returns the fetched patches.

Notation: B batch, G side of the fine grid, N = G*G patches, K fetched tokens (the largest number of any item), T tiers.
Positions are (y, x).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .allocators import FetchResult, allocate, positions_of
from .checks import FETCHING, SEEDS, refusal
from .config_fields import Registry
from .configuration_arr_coc import AUTO, ArrCocFetcherConfig
from .detail_allocators import ALLOCATORS
from .scorers import SCORERS, FetchContext, Scorer, scored


@dataclass(frozen=True)
class FetchChoices:
    """How one call fetches. None leaves a choice to the configuration.

    Attributes:
        strategy: the name of the scorer.
        allocator: the name of the allocator, which chooses patches by relevance.
        budget: see `resolve_budget`. In `forward` it has to agree with the placeholders of the prompts.
        seed: of random relevance without a generator.
        generator: for strategy "random".
        overlap: "exclude" or "allow": whether patches that are base tokens already may be fetched again.
        bypass: whether the bridge uses its linear projection alone; None: as configured, or as encoded.
        patches: [I, K] patches to fetch for each image slot, whatever their relevance; no scorer runs.
        relevance: [I, N] given relevance, by which strategy "oracle" fetches.
        all_scores: whether all trained scorers run, not only the strategy's.
        num_passes: runs back for each question (default 1), or "auto": up to 4, while the answer is unsure.
        exploration: with several passes, the policy for the share of drawn patches: a name in `passes.EXPLORATION`.

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
        """`FetchChoices` from themselves, from a mapping of their fields, or from None: as configured.

        Raises:
            ValueError: an unknown field.
        """
        if type(choices).__name__ == cls.__name__:  # by name: remote code may load a class twice
            return choices  # type: ignore[return-value]
        if choices is None:
            return AS_CONFIGURED
        if not isinstance(choices, Mapping):
            raise refusal("choices", "FetchChoices, or a mapping of their names", choices)
        field_names = [*cls.__dataclass_fields__]
        if unknown := sorted(map(str, set(choices) - set(field_names))):
            raise ValueError(f"choices: expected names among {', '.join(field_names)}; got {', '.join(unknown)}")
        return cls(**choices)


AS_CONFIGURED = FetchChoices()

EXPLORATION: Registry[Callable[..., Any]] = Registry("exploration")
"""Policies: the passes so far, and the model -> the share of the next pass's patches that are drawn at random, 0..1.

"learned" is the class of a policy with weights (`RunningBackFetcher.tempering`). It is the default of checkpoints that
hold these weights, else "tempered".
"""


class RunningBackFetcher(nn.Module):
    """Holds the trained scorers and budgeters; creates scorers without weights on demand."""

    def __init__(
        self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int, depth_size: int | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.sizes = {"feature_size": feature_size, "text_size": text_size}
        self.depth_size = depth_size
        self.check_strategy(config.strategy)
        self.scorers = nn.ModuleDict({name: self._build(SCORERS[name]) for name in config.scorers})
        # Checkpoints hold the weights of allocators that choose the number of patches under this name.
        budgeters = {name: allocator.budgeter for name, allocator in ALLOCATORS.items()}
        choosing = {name: kind(config, **self.sizes) for name, kind in budgeters.items() if kind is not None}
        self.budgeters = nn.ModuleDict(choosing)
        self.tempering = EXPLORATION["learned"]() if config.learned_exploration else None
        self.temperature = config.temperature
        """For gradient "soft", in units of the score; a trainer may lower it."""

    def check_strategy(self, strategy: str) -> type[Scorer]:
        """The scorer class registered as `strategy`.

        Raises:
            ValueError: an unknown name, or a trained scorer without weights in this checkpoint.
        """
        usable = {name: kind for name, kind in SCORERS.items() if not kind.trained or name in self.config.scorers}
        if strategy not in usable:
            raise ValueError(f"strategy: expected one of {', '.join(sorted(usable))} (held here); got {strategy!r}")
        return usable[strategy]

    def resolve(self, choices: FetchChoices) -> FetchChoices:
        """The choices with budget and allocator resolved.

        A given budget is exact unless the choices also name an allocator that chooses the number of patches.

        Raises:
            ValueError: an unknown strategy or allocator, or "auto" with an allocator that fetches exactly the budget.
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
        """The scorer: with this checkpoint's weights, or without weights."""
        kind = self.check_strategy(strategy)
        held: Any = self.scorers
        return held[strategy] if kind.trained else self._build(kind)

    def _build(self, kind: type[Scorer]) -> Scorer:
        depth: dict[str, Any] = {"depth_size": self.depth_size} if kind.reads_depths else {}
        return kind(self.config, **self.sizes, **depth)

    def reads_attention(self, choices: FetchChoices) -> bool:
        """Whether the scorer needs the language model's attention from the question to the base tokens."""
        strategy = choices.strategy or self.config.strategy
        return choices.patches is None and self.check_strategy(strategy).reads_attention

    def all_scores(self, context: FetchContext, fetched: FetchResult | None = None) -> dict[str, Tensor]:
        """Logits [B, N] of each trained scorer; the one that chose `fetched` does not run again."""
        done = {} if fetched is None else {fetched.strategy: fetched.scores}
        return {name: done[name] if name in done else scorer(context) for name, scorer in self.scorers.items()}

    def forward(
        self, context: FetchContext, budget: int, choices: FetchChoices = AS_CONFIGURED, *, taken: Tensor | None = None
    ) -> FetchResult:
        """Chooses `budget` distinct patches per item, or at most as many with an allocator that chooses their number.

        In training mode with a gradient, such an allocator fetches all patches that it could ever fetch, each weighted
        by its probability: patches that are not fetched would have no gradient.

        Args:
            context: the inputs of the scorer.
            budget: K.
            choices: strategy and allocator, or the patches themselves.
            taken: [B, M] patches that are base tokens already and must not be fetched again, or None.

        Raises:
            ValueError: an unknown name, K above the number of candidates, K above 0 for strategy "none", or given
                patches that are not K distinct patches of each item.
        """
        if choices.patches is not None:
            return _given(context, budget, choices.patches)
        if choices.overlap not in (None, "exclude", "allow"):
            raise ValueError(f'overlap: expected "exclude" or "allow"; got {choices.overlap!r}')
        settings = self._settings(choices)
        scorer = self.scorer(settings["strategy"])
        _check_budget(context, budget, scorer, settings["strategy"], taken)
        begun = self.begun(context, choices)
        scores, relevance, fell_back = scored(scorer, context, fall_back=not self.training)
        hidden = None if taken is None else torch.zeros_like(context.patch_mask).scatter(1, taken, True)
        fetched = allocate(
            context, scores, relevance, context.patch_mask, budget, hidden=hidden, begun=begun, **settings
        )
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
        begun: Tensor | None = None,
    ) -> FetchResult:
        """The second half of `forward`: see `allocate`."""
        settings = self._settings(choices)
        return allocate(context, scores, relevance, patch_mask, budget, hidden=hidden, begun=begun, **settings)

    def begun(self, context: FetchContext, choices: FetchChoices) -> Tensor | None:
        """[B, N] number of wordpieces that begin in each patch, if the scorer reads text."""
        if context.pieces is None or not self.scorer(choices.strategy or self.config.strategy).reads_text:
            return None
        return (context.pieces >= 0).flatten(2).sum(2)

    def _settings(self, choices: FetchChoices) -> dict[str, Any]:
        """Arguments of `allocate` from the choices and the configuration."""
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
    """The result for the patches [B, K] that a call gives; their relevance is 1, that of all others 0."""
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
