"""A contest: each arm has its own weights, trained for its way to fill the prompt. All answer the same questions.

Models are loaded one at a time. Only for costs, which are measured side by side, are several in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..data.formats import Format
from ..data.records import Record
from ..evaluation.arms import TRAINABLE, Arm
from ..evaluation.prediction_loop import model_identity
from ..evaluation.predictions import read_run
from ..evaluation.reporting import environment, shown
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .costs import Asked
from .experiment import Settings, arms_of, check_settings, facts, judged, predict
from .scoring import Entry, check_rules

Load = Callable[[str], ArrCocForConditionalGeneration]
"""Loads the model in a folder, with its processor, onto its device."""


# ---- the plan -----------------------------------------------------------------------------------------------------


def plan_contest(
    load: Load, entries: Sequence[Entry], source: Format, records: Sequence[Record], settings: Settings, command: str
) -> dict[str, Any]:
    """The plan and the rules, as from `make_plan`, with the identity of every model.

    Raises:
        ValueError: bad settings; no rules, or rules about other arms; models of one arm that run it differently or have
            the same weights; arms that read too many or too few tokens.
    """
    if settings.arms is not None or settings.trained_on:
        raise ValueError("arms, trained_on: expected none beside a contest, whose arms say so themselves; got some")
    if settings.rules is None:
        raise ValueError("rules: expected rules about the arms of the contest; got none")
    check_rules(settings.rules)
    check_settings(source, records, settings)
    reference = entries[0].name if settings.reference is None else settings.reference
    arms: list[Arm] = []
    identities: dict[str, list[dict[str, str]]] = {}
    sizes: dict[str, int] = {}
    for entry in entries:
        resolved: list[Arm] = []
        identities[entry.name] = []
        for folder in entry.weights:
            model = load(folder)
            resolved.append(_resolved(model, entry, records, settings))
            identities[entry.name].append({"folder": shown(folder), **model_identity(model)})
            sizes[folder], device = model.config.vision_config.patch_size, model.device
        _check_alike(entry, resolved, [identity["weights_sha256"] for identity in identities[entry.name]])
        arms.append(resolved[0])
    if len(set(sizes.values())) > 1:
        raise ValueError(f"contest: expected models with patches of one size; got {sorted(set(sizes.values()))} px")
    check_tokens(arms, reference, settings.tolerance)
    plan = {
        "model": f"{len(arms)} arms with weights of their own",
        "weights": identities,
        **facts(source, records, settings, arms, command),
        "patch_size": next(iter(sizes.values())),
        "reference": reference,
        "tolerance": settings.tolerance,
        "environment": environment(device),
    }
    return judged(plan, settings.rules)


def _resolved(
    model: ArrCocForConditionalGeneration, entry: Entry, records: Sequence[Record], settings: Settings
) -> Arm:
    """The entry's arm as this model runs it, under the entry's name."""
    own = [name for name in TRAINABLE if entry.arm.partition("@")[0] == name]
    trained_on = tuple(dict.fromkeys((*own, *entry.trained_on)))
    arms = arms_of(model, [entry.arm], records, settings, seeds=(0,), trained_on=trained_on)
    if len(arms) != 1:
        raise ValueError(f"contest.{entry.name}: expected one arm; got {entry.arm!r}, which is {len(arms)} here")
    trainings = f"{len(entry.weights)} training{'s' if len(entry.weights) > 1 else ''} of its own"
    note = "; ".join(part for part in (entry.arm, arms[0].note, f"{arms[0].tokens} tokens", trainings) if part)
    return replace(
        arms[0], name=entry.name, role="bound" if entry.bound else "contest", seeds=(), note=note,
        weights=tuple(shown(folder) for folder in entry.weights),
    )  # fmt: skip


def _check_alike(entry: Entry, arms: Sequence[Arm], hashes: Sequence[str]) -> None:
    """Refuses models that run an arm differently, or that have the same weights."""
    for folder, arm in zip(entry.weights, arms, strict=True):
        if arm != arms[0]:
            raise ValueError(f"contest.{entry.name}: expected models that run it alike; got another way in {folder}")
    if len(set(hashes)) < len(hashes):
        raise ValueError(f"contest.{entry.name}: expected weights that differ; got the same twice")


def check_tokens(arms: Sequence[Arm], reference: str, tolerance: float) -> None:
    """Refuses arms, except bounds, whose number of tokens differs from the reference's by more than the tolerance.

    Raises:
        ValueError: no such reference, a tolerance outside 0..1, or an arm that differs by more.
    """
    tokens = {arm.name: arm.tokens for arm in arms}
    if reference not in tokens:
        raise ValueError(f"reference: expected an arm among {', '.join(tokens)}; got {reference!r}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance: expected a share from 0 to 1; got {tolerance!r}")
    for arm in arms:
        if arm.role != "bound" and abs(arm.tokens - tokens[reference]) > tolerance * tokens[reference]:
            expected = f"{tokens[reference]} tokens, up to {100 * tolerance:g} % more or fewer, or bound: true"
            raise ValueError(f"contest.{arm.name}: expected {expected}; got {arm.tokens}")


# ---- predicting ---------------------------------------------------------------------------------------------------


def predict_contest(
    load: Load,
    entries: Sequence[Entry],
    arms: Sequence[Arm],
    records: Sequence[Record],
    folder: Path,
    **options: Any,
) -> int:
    """Answers the open questions, one model after the other; see `predict`."""
    lines, count = {record.line for record in records}, 0
    for weights, run in _runs(entries, arms):
        if not lines <= set(read_run(folder, next(iter(run.runs)))):
            count += predict(load(weights), [run], records, folder, **options)
    return count


def _runs(entries: Sequence[Entry], arms: Sequence[Arm]) -> Iterator[tuple[str, Arm]]:
    """Every folder of weights and its run."""
    for entry, arm in zip(entries, arms, strict=True):
        for number, weights in enumerate(entry.weights):
            yield weights, arm.of_model(number)


def first_models(load: Load, entries: Sequence[Entry], arms: Sequence[Arm]) -> list[Asked]:
    """Loads one model of each arm into memory, to measure costs side by side."""
    return [(load(entry.weights[0]), replace(arm, weights=())) for entry, arm in zip(entries, arms, strict=True)]
