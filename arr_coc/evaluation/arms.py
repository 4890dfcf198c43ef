"""Arms: an arm is one way to turn an image and a question into tokens of the language model.

All arms answer the same questions, with the same weights. Notation: M base tokens,
K fetched tokens, N patches, G side of the fine grid. Positions are (y, x).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..modeling.allocators import ALLOCATORS
from ..modeling.configuration_arr_coc import COMPRESSION, ArrCocConfig
from ..modeling.fetcher import RunningBackFetcher
from ..modeling.scorers import SCORERS
from .peers import PEERS

LADDER = ("none", "random", "saliency", "clip_query", "realizer")
"""Strategies, and the model's own if it is another trained one."""
BASELINES = {
    "uniform": "patches on a regular lattice, as many",
    "larger": "a larger image, base tokens only",
    "smaller": "a smaller image, all of its patches",
}
HALVES = {
    "patches_only": "the same patches, and no base tokens for the language model to read",
    "other_base": "the same patches beside the base tokens of another page of the data",
}
BOUNDS = {"oracle": "the patches under the known boxes", "keep_all": "all patches"}
GROUPS = {
    "ladder": LADDER,
    "baselines": tuple(BASELINES),
    "halves": (*HALVES, "other_base@0"),
    "bounds": tuple(BOUNDS),
    "peers": tuple(PEERS),
}
"""Names of groups of arms."""

_RESIZED = {"larger": ("none", "fast"), "smaller": ("saliency", "all")}
"""Strategy and budget of the arms that resize the image."""
TRAINABLE = ("larger", "smaller", "patches_only", "keep_all")
"""Arms that are fair only if the model was trained on their prompts: another image size, no base tokens, all patches
at once."""
_FAIR = "fair only if the weights were trained on"
_ROLES = {"uniform": "baseline", **dict.fromkeys(BOUNDS, "bound")}

CHANGES: dict[str, dict[str, Any]] = {
    "allow": {"overlap": "allow"},
    "exclude": {"overlap": "exclude"},
    **{f"passes{passes}": {"passes": passes} for passes in (2, 3, 4)},
}
"""The settings of each CHANGE in RULE+CHANGE. "allow", "exclude": whether patches that are base tokens can be fetched
again. "passesP": the budget is shared by P passes."""


@dataclass(frozen=True)
class Arm:
    """One way to fill the language model's prompt."""

    # Unique; a strategy, a peer, a name of `BASELINES`, `HALVES` or `BOUNDS`, or RULE+CHANGE@K, see `make_arms`.
    name: str
    role: str  # "ladder", "baseline", "half", "bound", "peer" or "ablation"
    # Arguments of `generate`. `budget` is K of each pass, or its maximum if K depends on the item; of a reader, the
    # argument of its `generate`.
    strategy: str
    budget: Any
    allocator: str
    side: int  # side of the square that the image is fitted into, px
    tokens: int  # positions of the image in the prompt: M + K, and those of the layout
    # Seeds of random relevance, one run each. Other arms run once, with the config's seed.
    seeds: tuple[int, ...] = ()
    note: str = ""  # a remark for the report
    overlap: str = ""  # "allow", "exclude", or "" for the configured value, see `ArrCocFetcherConfig`
    rule: str = ""  # the strategy, peer, baseline, half or bound without changes; by default the start of the name
    # `num_passes` of `generate`. FLOPs count one pass with the patches of all passes.
    passes: int | str = 1
    fetcher: RunningBackFetcher | None = None  # chooses the patches in place of the model's own

    def __post_init__(self) -> None:
        if not self.rule:
            object.__setattr__(self, "rule", re.split(r"[+@]", self.name)[0])

    @property
    def runs(self) -> dict[str, int | None]:
        """The seed of each run, by the run's name."""
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
    several: bool = True,
) -> list[Arm]:
    """Makes the arms called `names`, in that order.

    Args:
        names: strategies, peers, and names of `BASELINES`, `HALVES` and `BOUNDS`. RULE@K sets the budget of all passes
            together; K is a value of `budget`, or "all" for as many as the context holds. RULE+ALLOCATOR and
            RULE+CHANGE (of `CHANGES`) can be combined: realizer+window@64. larger@TOKENS and smaller@TOKENS resize the
            image so that it gives at least TOKENS. A name of `GROUPS` stands for the arms of the group that this
            checkpoint and these records can run. None: all groups but "peers".
        budget: see `resolve_budget`; the config's by default.
        allocator: the config's by default.
        seeds: seeds of "random".
        room: the most image tokens that fit into the language model's context with the longest question; None: no
            limit.
        boxed: whether every record has boxes.
        several: whether the records are about more than one page.

    Raises:
        ValueError: an unknown name, "oracle" without boxes, "other_base" without another page, no arms.
    """
    names = tuple(group for group in GROUPS if group != "peers") if names is None else names
    expanded = [_members(config, name, boxed, several) if name in GROUPS else [name] for name in names]
    parsed = {name: _parse(name) for group in expanded for name in group}
    unknown = [name for name, parts in parsed.items() if parts is None]
    if unknown or not parsed:
        known = ", ".join([*SCORERS, *PEERS, *BASELINES, *HALVES, "keep_all", *GROUPS])
        raise ValueError(f"arms: expected names among {known}, or STRATEGY@BUDGET; got {unknown or 'none'}")
    rules = [parts[0] for parts in parsed.values() if parts is not None]
    if "oracle" in rules and not boxed:
        raise ValueError('arms: expected boxes in every record for "oracle"; got records without')
    if "other_base" in rules and not several:
        raise ValueError('arms: expected more than one page for "other_base"; got one')
    if "random" in rules and not seeds:
        raise ValueError('seeds: expected at least one for "random"; got none')
    make = _Maker(config, budget, config.fetcher_config.allocator if allocator is None else allocator, room)
    made = [make.arm(name, *parts, tuple(seeds)) for name, parts in parsed.items() if parts is not None]
    return [arm for arm in made if arm is not None]


def _members(config: ArrCocConfig, group: str, boxed: bool, several: bool) -> list[str]:
    """The names of a group's arms that can run."""
    held = config.fetcher_config.scorers
    fit = [name for name in GROUPS[group] if name not in SCORERS or not SCORERS[name].trained or name in held]
    if group == "ladder" and SCORERS[own := config.fetcher_config.strategy].trained and own not in fit:
        fit.append(own)
    exchanged = several and config.vision_tokens()[0] > 0
    fit = [name for name in fit if exchanged or not name.startswith("other_base")]
    return [name for name in fit if boxed or name != "oracle"]


def _parse(name: str) -> tuple[str, list[str], str] | None:
    """RULE+CHANGE+CHANGE@BUDGET -> (rule, changes, budget or ""); None for other text."""
    head, at, budget = name.partition("@")
    rule, *changes = head.split("+")
    changed = bool(at or changes)
    known = {*SCORERS, *PEERS} if changed else {*SCORERS, *PEERS, *BASELINES, "keep_all"}
    if not changes:  # these rules change other parts of the prompt, or the size of the image
        known |= {*HALVES, *_RESIZED}
        if head in _RESIZED and at and not budget.isdecimal():
            return None
    if rule not in known or bool(at) != bool(budget) or not {*changes} <= {*ALLOCATORS, *CHANGES}:
        return None
    if rule in PEERS and any("passes" in CHANGES.get(change, {}) for change in changes):  # peers choose patches once
        return None
    return rule, changes, budget


class _Maker:
    """Makes arms from the settings of one evaluation."""

    def __init__(self, config: ArrCocConfig, budget: int | str | None, allocator: str, room: int | None) -> None:
        self.config, self.wanted, self.allocator, self.room = config, budget, allocator, room
        self.side = config.vision_config.image_size
        self.base, self.budget = config.vision_tokens(budget=budget, strategy="oracle")
        strategy = config.fetcher_config.strategy
        self.fetching = strategy if SCORERS[strategy].fetches else "saliency"

    def _most(self, overlap: str | None = None) -> int:
        """Positions of an image with all its patches, or with as many as the context holds."""
        everything = sum(self.config.vision_tokens(budget="all", strategy="oracle", overlap=overlap))
        return everything if self.room is None else min(everything, self.room)

    def arm(self, name: str, rule: str, changes: list[str], at: str, seeds: tuple[int, ...]) -> Arm | None:
        """The arm of a parsed name. None if no image size is possible, as at a budget of nearly all patches."""
        if rule in _RESIZED:
            return self._resized(name, rule, int(at) if at else self.base + self.budget)
        peer = PEERS.get(rule)
        fields = {key: value for change in changes for key, value in CHANGES.get(change, {}).items()}
        strategy = rule if rule in SCORERS else "oracle" if peer or rule == "uniform" else self.fetching
        wanted, overlap = "all" if rule == "keep_all" else at or self.wanted, fields.get("overlap")
        asked = self.config.vision_tokens(budget=wanted, strategy=strategy, overlap=overlap)[1]
        held, passes = self._most(overlap) - self.base, fields.get("passes", 1)
        each = min(asked, held) // passes
        base = 0 if rule == "patches_only" else self.base
        if not base + each and rule in HALVES:
            raise ValueError(f"arms: expected a budget of at least 1 for patches_only; got {name}")
        changed = "ablation" if changes or at else ""
        role = "half" if rule in HALVES else changed or ("peer" if peer else _ROLES.get(rule, "ladder"))
        allocator = next((change for change in reversed(changes) if change in ALLOCATORS), self.allocator)
        if peer or rule in ("uniform", "keep_all"):
            allocator = "topk"
        if rule in HALVES and not each:
            strategy, notes = "none", ["the base tokens of another page of the data, no patches"]
        else:
            notes = [peer.note if peer else {**BASELINES, **HALVES, **BOUNDS}.get(rule, "")]
        if asked > held and not peer and rule not in HALVES:
            notes.append(f"the context holds {held} of {asked} patches")
        if peer and peer.reads_all:
            notes.append(f"{_FAIR} all patches at once, as the rule needs")
        elif rule in TRAINABLE:
            notes.append(f"{_FAIR} such prompts")
        note, own = "; ".join(filter(None, notes)), seeds if rule == "random" else ()
        tokens = base + passes * each
        return Arm(name, role, strategy, each, allocator, self.side, tokens, own, note, **fields)

    def _resized(self, name: str, rule: str, wanted: int) -> Arm | None:
        """The arm with the smallest image that has at least `wanted` tokens, so that a baseline never gets fewer."""
        strategy, budget = _RESIZED[rule]
        if rule == "larger" and not self.base:
            return None  # no image of base tokens alone has any
        unit = COMPRESSION * self.config.vision_config.patch_size
        side = unit
        while sum(self.config.vision_tokens(side, budget, strategy=strategy)) < wanted:
            side += unit
        base, fetched = self.config.vision_tokens(side, budget, strategy=strategy)
        if side == self.side or base + fetched > self._most():
            return None
        note = f"{BASELINES[rule]}: {side} px; {_FAIR} such prompts"
        return Arm(name, "baseline", strategy, fetched, "topk", side, base + fetched, note=note)
