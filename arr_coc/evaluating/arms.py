"""The arms of an experiment: one way each of turning an image and a question into the language model's tokens.

All arms use the same weights and answer the same questions. Notation: M base tokens, K saccades, N patches, G side of
the fine grid. Positions are (y, x).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..modeling.allocators import ALLOCATORS
from ..modeling.configuration_arr_coc import COMPRESSION, ArrCocConfig
from ..modeling.scorers import SCORERS
from .peers import PEERS

LADDER = ("none", "random", "saliency", "clip_query", "realizer")
BASELINES = {
    "uniform": "patches on a regular lattice, as many",
    "larger": "a larger image, base tokens only",
    "smaller": "a smaller image, all of its patches",
}
BOUNDS = {"oracle": "the patches under the known boxes", "keep_all": "all patches"}
GROUPS = {"ladder": LADDER, "baselines": tuple(BASELINES), "bounds": tuple(BOUNDS), "peers": tuple(PEERS)}
"""Names that stand for several arms."""

CHANGES: dict[str, dict[str, Any]] = {
    "allow": {"overlap": "allow"},
    "exclude": {"overlap": "exclude"},
    "bypass": {"bypass": True},
}
"""What RULE+CHANGE means: patches that are base tokens may be fetched again, or not; the bridge gives way to its linear
projection."""


@dataclass(frozen=True)
class Arm:
    """One way to fill the language model's prompt.

    Attributes:
        name: unique; that of the strategy, the peer, of `BASELINES` or of `BOUNDS`; or RULE+CHANGE@K, see `make_arms`.
        role: "ladder", "baseline", "bound", "peer" or "ablation".
        strategy, budget, allocator: what `generate` is asked for; budget is K, or the most where K depends on the item.
        side: px of the square that the image is fitted into.
        tokens: positions that the image takes in the prompt, M + K (and those of the layout).
        seeds: of random relevance; one run each. Other arms run once, with the config's own seed.
        note: for the report.
        overlap: "allow", "exclude" or "" as configured, see `ArrCocFetcherConfig`.
        bypass: the bridge gives way to its linear projection.
    """

    name: str
    role: str
    strategy: str
    budget: int
    allocator: str
    side: int
    tokens: int
    seeds: tuple[int, ...] = ()
    note: str = ""
    overlap: str = ""
    bypass: bool = False

    @property
    def rule(self) -> str:
        """The strategy, peer, baseline or bound, without what changes it."""
        return re.split(r"[+@]", self.name)[0]

    @property
    def runs(self) -> dict[str, int | None]:
        """Name and seed of each run."""
        return {f"{self.name}.{seed}": seed for seed in self.seeds} if self.seeds else {self.name: None}


def make_arms(
    config: ArrCocConfig,
    names: Sequence[str] | None = None,
    *,
    budget: int | str | None = None,
    allocator: str | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    room: int | None = None,
    boxed: bool = True,
) -> list[Arm]:
    """The arms called `names`, in that order.

    Args:
        config: of the model.
        names: strategies, peers, `BASELINES`, `BOUNDS`; RULE@K with K as for `budget` ("all": what the context holds);
            RULE+ALLOCATOR and RULE+CHANGE of `CHANGES`, also together: realizer+window@64. A name of `GROUPS`: those of
            the group that this checkpoint and these records can run. None: all groups but "peers".
        budget: see `resolve_budget`; the config's by default.
        allocator: the config's by default.
        seeds: of "random".
        room: image tokens that the language model's context holds beside the longest question; None: any number.
        boxed: whether every record has boxes.

    Raises:
        ValueError: an unknown name, "oracle" without boxes, no arms.
    """
    names = ("ladder", "baselines", "bounds") if names is None else names
    expanded = [_members(config, name, boxed) if name in GROUPS else [name] for name in names]
    parsed = {name: _parse(name) for group in expanded for name in group}
    unknown = [name for name, parts in parsed.items() if parts is None]
    if unknown or not parsed:
        known = ", ".join([*SCORERS, *PEERS, *BASELINES, "keep_all", *GROUPS])
        raise ValueError(f"arms: expected names among {known}, or STRATEGY@BUDGET; got {unknown or 'none'}")
    rules = [parts[0] for parts in parsed.values() if parts is not None]
    if "oracle" in rules and not boxed:
        raise ValueError('arms: expected boxes in every record for "oracle"; got records without')
    if "random" in rules and not seeds:
        raise ValueError('seeds: expected at least one for "random"; got none')
    make = _Maker(config, budget, config.fetcher_config.allocator if allocator is None else allocator, room)
    arms = [make.arm(name, *parts, tuple(seeds)) for name, parts in parsed.items() if parts is not None]
    return [arm for arm in arms if arm is not None]


def _members(config: ArrCocConfig, group: str, boxed: bool) -> list[str]:
    """Those of a group that can run."""
    held = config.fetcher_config.scorers
    fit = [name for name in GROUPS[group] if name not in SCORERS or not SCORERS[name].trained or name in held]
    return [name for name in fit if boxed or name != "oracle"]


def _parse(name: str) -> tuple[str, list[str], str] | None:
    """RULE+CHANGE+CHANGE@BUDGET -> (rule, changes, budget or ""); None where that means nothing."""
    head, at, budget = name.partition("@")
    rule, *changes = head.split("+")
    changed = bool(at or changes)
    known = {*SCORERS, *PEERS} if changed else {*SCORERS, *PEERS, *BASELINES, "keep_all"}
    if rule not in known or bool(at) != bool(budget) or not {*changes} <= {*ALLOCATORS, *CHANGES}:
        return None
    return rule, changes, budget


class _Maker:
    """What the arms of one experiment share."""

    def __init__(self, config: ArrCocConfig, budget: int | str | None, allocator: str, room: int | None) -> None:
        self.config, self.wanted, self.allocator = config, budget, allocator
        self.side = config.vision_config.image_size
        self.unit = COMPRESSION * config.vision_config.patch_size
        self.base, self.budget = config.vision_tokens(budget=budget, strategy="oracle")
        self.room = room
        self.most = self._most()

    def _most(self, overlap: str | None = None) -> int:
        """Positions of an image with all its patches, as far as the context holds them."""
        everything = sum(self.config.vision_tokens(budget="all", strategy="oracle", overlap=overlap))
        return everything if self.room is None else min(everything, self.room)

    def arm(self, name: str, rule: str, changes: list[str], budget: str, seeds: tuple[int, ...]) -> Arm | None:
        """The arm of a parsed name; None for a resized image that the budget, of nearly all patches, leaves no size."""
        if changes or budget:
            return self._ablation(name, rule, changes, budget, seeds)
        tokens = self.base + self.budget
        plain = Arm(name, "ladder", name, self.budget, self.allocator, self.side, tokens)
        if name == "random":
            return replace(plain, seeds=seeds)
        if name in SCORERS and not SCORERS[name].fetches:
            return replace(plain, budget=0, tokens=self.base)
        if name == "uniform":
            return replace(plain, role="baseline", strategy="oracle", allocator="topk", note=BASELINES[name])
        if name == "larger":
            return self._resized(plain, "none", "fast", tokens)
        if name == "smaller":
            return self._resized(plain, "saliency", "all", tokens)
        if name in PEERS:
            return replace(plain, role="peer", strategy="oracle", allocator="topk", note=PEERS[name].note)
        if name == "oracle":
            return replace(plain, role="bound", note=BOUNDS[name])
        if name == "keep_all":
            room = self.most - self.base
            patches = self.config.vision_config.num_patches
            cut = "" if room >= patches else f"; the context holds {room} of {patches}"
            strategy = self.config.fetcher_config.strategy
            strategy = strategy if SCORERS[strategy].fetches else "saliency"
            return replace(
                plain, role="bound", strategy=strategy, budget=room, allocator="topk", tokens=self.most,
                note=BOUNDS[name] + cut,
            )  # fmt: skip
        return plain

    def _ablation(self, name: str, rule: str, changes: list[str], budget_name: str, seeds: tuple[int, ...]) -> Arm:
        strategy = "oracle" if rule in PEERS else rule
        fields = {key: value for change in changes for key, value in CHANGES.get(change, {}).items()}
        overlap, wanted = fields.get("overlap"), budget_name or self.wanted
        asked = self.config.vision_tokens(budget=wanted, strategy=strategy, overlap=overlap)[1]
        held = self._most(overlap) - self.base
        budget = min(asked, held)
        cut = f"the context holds {held} of {asked} patches" if asked > held else ""
        allocator = next((change for change in reversed(changes) if change in ALLOCATORS), self.allocator)
        return Arm(
            name, "ablation", strategy, budget, "topk" if rule in PEERS else allocator, self.side, self.base + budget,
            seeds if rule == "random" else (), PEERS[rule].note if rule in PEERS else cut, **fields,
        )  # fmt: skip

    def _resized(self, plain: Arm, strategy: str, budget: str, wanted: int) -> Arm | None:
        """The smallest image that gives at least `wanted` tokens: a baseline never gets fewer."""
        side = self.unit
        while sum(self.config.vision_tokens(side, budget, strategy=strategy)) < wanted:
            side += self.unit
        base, fetched = self.config.vision_tokens(side, budget, strategy=strategy)
        if side == self.side or base + fetched > self.most:
            return None
        note = f"{BASELINES[plain.name]}: {side} px; the weights were not trained at this size"
        return replace(
            plain, role="baseline", strategy=strategy, budget=fetched, allocator="topk", side=side,
            tokens=base + fetched, note=note,
        )  # fmt: skip
