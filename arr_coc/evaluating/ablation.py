"""Ablations: which parts of a model can be changed one at a time, and the arms that do it.

Notation: K saccades, N patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..modeling.allocators import ALLOCATORS, chooses_counts
from ..modeling.bridges import BRIDGES, LinearBridge
from ..modeling.compressors import COMPRESSORS
from ..modeling.configuration_arr_coc import ArrCocConfig, scaled_budget
from ..modeling.scorers import SCORERS
from .peers import PEERS

BUDGETS = (0, 64, 100, 150, 200, 273, 400, "all")
"""Saccades at `REFERENCE_PATCHES` patches; scaled with N on other grids."""

ABSENT = "not in this checkpoint"


@dataclass(frozen=True)
class Trial:
    """One value of one factor.

    Attributes:
        factor: "budget", "scorer", "peer", "allocator", "overlap", "compressor" or "bridge".
        value: of it.
        arm: name of the arm that runs it (see `make_arms`); "" where this checkpoint cannot.
        note: why not, or what the value means here; that of the arm is reported beside it.
    """

    factor: str
    value: str
    arm: str = ""
    note: str = ""


def make_trials(config: ArrCocConfig, *, peers: bool = False, boxed: bool = True) -> list[Trial]:
    """Every budget and every registered scorer, allocator, compressor and bridge, each beside the config's own choices.

    Args:
        config: of the model.
        peers: also the published rules.
        boxed: whether every record has boxes, which "oracle" needs.
    """
    subject, patches = config.fetcher_config.strategy, config.vision_config.num_patches
    trials = []
    for budget in BUDGETS:
        scaled = budget if isinstance(budget, str) or not budget else scaled_budget(budget, patches)
        note = "" if scaled == budget else f"{scaled} of {patches} patches here"
        trials.append(Trial("budget", str(budget), f"{subject}@{scaled}", note))
    for name, kind in SCORERS.items():
        if kind.trained and name not in config.fetcher_config.scorers:
            trials.append(Trial("scorer", name, note=ABSENT))
        elif name == "oracle" and not boxed:
            trials.append(Trial("scorer", name, note="not every question has boxes"))
        else:
            trials.append(Trial("scorer", name, name))
    trials += [Trial("peer", name, name) for name in PEERS if peers]
    for name in ALLOCATORS:
        free = "chooses how many, up to the largest tier" if chooses_counts(name) else ""
        trials.append(Trial("allocator", name, f"{subject}+{name}{'@auto' if free else ''}", free))
    return trials + _structure(config, subject)


def _structure(config: ArrCocConfig, subject: str) -> list[Trial]:
    """What the weights were made for: little of it can be changed afterwards."""
    compressor, bridge = config.vision_config.compressor, config.bridge_config.kind
    trials = [
        Trial("overlap", value, f"{subject}+{value}" if compressor == "mask" else "", "" if compressor == "mask" else
              "base tokens are no patches here")
        for value in ("exclude", "allow")
    ]  # fmt: skip
    for name in COMPRESSORS:
        own = name == compressor
        trials.append(Trial("compressor", name, subject if own else "", "" if own else ABSENT))
    for name in BRIDGES:
        own = name == bridge
        trials.append(Trial("bridge", name, subject if own else "", "" if own else ABSENT))
    if bridge in BRIDGES and issubclass(BRIDGES[bridge], LinearBridge) and BRIDGES[bridge] is not LinearBridge:
        trials.append(Trial("bridge", f"{bridge}, bypassed", f"{subject}+bypass", "its linear projection alone"))
    return trials


def trial_arms(config: ArrCocConfig, trials: Sequence[Trial]) -> list[str]:
    """The arms that the trials need, each once; first the one that all are compared with: the config's own choices."""
    return list(dict.fromkeys([config.fetcher_config.strategy, *(trial.arm for trial in trials if trial.arm)]))
