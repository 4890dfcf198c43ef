"""The experiment: every arm answers the same questions; predictions first, then numbers.

OUT/plan.yaml           arms, data and decision rules, written before the first answer
OUT/predictions/        JSONL, one file per run and process
OUT/costs.json          operations, time to the first token, memory of each arm
OUT/result.json         the numbers
OUT/report.html, .md    the report
"""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, TypedDict

import yaml
from tqdm import tqdm
from transformers.utils import logging

from ..data.formats import Format
from ..data.records import Record
from ..evaluation.answers import check_arms, needs_views, question_room
from ..evaluation.arms import Arm, make_arms
from ..evaluation.prediction_loop import OtherPages, by_image, hash_images, model_identity, new_tokens, predict_all
from ..evaluation.predictions import append, mend, read_run
from ..evaluation.reporting import environment, require_extra, shown
from ..evaluation.scores import check_answers, read_scored
from ..files import check_entries, check_types, read_json, read_yaml, write_json, write_text
from ..modeling.allocators import ALLOCATORS
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .costs import ArmCost, Asked, Costs, Percentiles, measure_costs
from .scoring import Entry, check_rules, default_rules, missing_arms, score_experiment

logger = logging.get_logger(__name__)


class Planned(TypedDict):
    """The part of a plan that scoring and reports need."""

    model: str
    data: str
    data_sha256: str
    questions: int
    metric: str
    patch_size: int
    arms: list[dict[str, Any]]
    command: str
    environment: dict[str, Any]


ESTIMATED = 8
"""From this number of images on, the expected time is printed first."""

UNPLANNED = ("command", "environment")
"""Keys of a plan that can differ between runs into one folder."""


@dataclass(frozen=True)
class Settings:
    """The settings of an experiment.

    Attributes:
        metric: a name of `METRICS`.
        arms: names (see `make_arms`); None: all.
        budget, allocator: the checkpoint's by default.
        seeds: seeds of random relevance.
        limit: the most records, from the first on; None: all.
        rules: see `scoring`; None: `default_rules` for the model's strategy.
        trained_on: names of `TRAINABLE` on whose prompts the weights were also trained; shown in the report.
        contest, reference, tolerance: arms with their own weights, see `scoring`.
        tiles: see `views.ViewOptions`; None: one view per image, but views of documents and of several images.
        batch_size: questions per batch, at the usual number of tokens.
        timed: number of records that are timed.
        rounds: number of timings per record.

    Raises:
        ValueError: a value has the wrong type.
    """

    metric: str = "exact_match"
    arms: tuple[str, ...] | None = None
    budget: int | str | None = None
    allocator: str | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    limit: int | None = None
    rules: dict[str, Any] | None = None
    trained_on: tuple[str, ...] = ()
    contest: tuple[Entry, ...] | None = None
    reference: str | None = None
    tolerance: float = 0.1
    tiles: str | int | None = None
    batch_size: int = 32
    timed: int = 4
    rounds: int = 3

    def __post_init__(self) -> None:
        check_types(self)


# ---- the plan -----------------------------------------------------------------------------------------------------


def make_plan(
    model: ArrCocForConditionalGeneration, source: Format, records: Sequence[Record], settings: Settings, command: str
) -> dict[str, Any]:
    """The plan with decision rules, as written to plan.yaml.

    Raises:
        ValueError: bad settings, rules about missing arms, or a metric that cannot score the answers.
    """
    rules = default_rules(model.config.fetcher_config.strategy) if settings.rules is None else settings.rules
    check_rules(rules)
    plan = plan_run(model, source, records, settings, command)
    return judged(plan, rules)


def judged(plan: dict[str, Any], rules: dict[str, Any]) -> dict[str, Any]:
    """The plan with the rules.

    Raises:
        ValueError: rules name missing arms.
    """
    names = [arm["name"] for arm in plan["arms"]]
    missing = missing_arms(rules, names)
    if missing:
        raise ValueError(f"rules: expected rules about arms of this experiment; got {', '.join(missing)} in them")
    return {**plan, "rules": rules}


def plan_run(
    model: ArrCocForConditionalGeneration, source: Format, records: Sequence[Record], settings: Settings, command: str
) -> dict[str, Any]:
    """The plan without rules: everything that determines the experiment's answers.

    Raises:
        ValueError: bad settings, or a metric that cannot score the answers.
    """
    check_settings(source, records, settings)
    arms = arms_of(model, settings.arms, records, settings)
    return {
        "model": shown(model.config._name_or_path),
        **model_identity(model),
        **facts(source, records, settings, arms, command),
        "patch_size": model.config.vision_config.patch_size,
        "environment": environment(model.device),
    }


def check_settings(source: Format, records: Sequence[Record], settings: Settings) -> None:
    """Refuses settings that are invalid for every model.

    Raises:
        ValueError: bad settings, a metric that cannot score the answers, or scipy is not installed.
    """
    require_extra("scipy.stats", "intervals")
    try:
        check_answers(records, settings.metric)
    except ValueError as error:
        raise ValueError(f"{source.title}, {error}") from error
    if settings.allocator is not None:
        ALLOCATORS[settings.allocator]  # raises ValueError if unknown
    for name in ("batch_size", "timed", "rounds"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name}: expected at least 1; got {getattr(settings, name)}")


def arms_of(
    model: ArrCocForConditionalGeneration, names: Sequence[str] | None, records: Sequence[Record], settings: Settings,
    **changes: Any,
) -> list[Arm]:  # fmt: skip
    """The arms called `names` for this model and these records; `changes` override arguments of `make_arms`.

    Raises:
        ValueError: see `make_arms`; or this model cannot run an arm.
    """
    in_views = needs_views(records, settings.tiles)
    boxed = all(record.located for record in records)
    if in_views and names is None:
        names = ("ladder", "oracle") if boxed else ("ladder",)
    asked: dict[str, Any] = {"seeds": settings.seeds, "trained_on": settings.trained_on, **changes}
    arms = make_arms(
        model.config, names, budget=settings.budget, allocator=settings.allocator,
        room=question_room(model, records, new_tokens(model)), boxed=boxed,
        several=not in_views and _are_several(model, records), **asked,
    )  # fmt: skip
    if in_views:
        check_arms(arms, model.config.vision_config.image_size)
    for arm in arms:
        model.model.fetcher.check_strategy(arm.strategy)
    return arms


def _are_several(model: ArrCocForConditionalGeneration, records: Sequence[Record]) -> bool:
    """Whether the records are about more than one page."""
    return OtherPages(model, [record.image for record in records]).after(records[0].image) is not None


def facts(
    source: Format, records: Sequence[Record], settings: Settings, arms: Sequence[Arm], command: str
) -> dict[str, Any]:
    """The part of a plan that does not depend on models."""
    return {
        "data": shown(source.title),
        "data_sha256": source.digest(records),
        "images_sha256": hash_images(records),
        "questions": len(records),
        "metric": settings.metric,
        **({} if settings.tiles is None else {"tiles": settings.tiles}),
        "arms": [{**asdict(arm), "seeds": list(arm.seeds), "weights": list(arm.weights)} for arm in arms],
        "command": command,
    }


def plan_arms(plan: dict[str, Any]) -> list[Arm]:
    """The arms of a plan."""
    return [
        Arm(**{**arm, "seeds": tuple(arm["seeds"]), "weights": tuple(arm.get("weights", ()))}) for arm in plan["arms"]
    ]


def keep_plan(out: Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Writes the plan, or reads the existing one, which must be the same; returns the plan on disk.

    Raises:
        ValueError: the folder holds another experiment.
    """
    path = out / "plan.yaml"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, yaml.safe_dump(plan, sort_keys=False, allow_unicode=True, width=100))
        return plan
    on_disk = read_plan(out)
    changed = [name for name in {**plan, **on_disk} if name not in UNPLANNED and plan.get(name) != on_disk.get(name)]
    if changed:
        raise ValueError(f"{out}: expected an empty folder or the same experiment's; got other {', '.join(changed)}")
    return on_disk


def read_plan(out: Path) -> dict[str, Any]:
    """Reads the plan in an experiment's folder.

    Raises:
        ValueError: the folder has no plan.yaml, or it is not a plan.
    """
    path = out / "plan.yaml"
    if not path.is_file():
        raise ValueError(f"{out}: expected the folder of an experiment (with plan.yaml); got none")
    plan = read_yaml(path)
    check_entries(plan, Planned, str(path))
    try:
        for arm in plan_arms(plan):
            check_types(arm)
        if "trials" not in plan:
            check_rules(plan["rules"])
    except (TypeError, KeyError, ValueError) as error:
        received = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path}: expected arms and rules as an experiment writes them; got {received}") from error
    return plan


def check_data(plan: dict[str, Any], source: Format, records: Sequence[Record]) -> None:
    """Refuses other data than the plan's.

    Raises:
        ValueError: the file, the images or the number of records differ.
    """
    if source.digest(records) != plan["data_sha256"] or len(records) != plan["questions"]:
        raise ValueError(f"{source.title}: expected the data of the plan ({plan['questions']} records); got other data")


# ---- predicting ---------------------------------------------------------------------------------------------------


def predict(
    model: ArrCocForConditionalGeneration,
    arms: Sequence[Arm],
    records: Sequence[Record],
    folder: Path,
    *,
    batch_size: int = 32,
    shard: tuple[int, int] = (0, 1),
    tiles: str | int | None = None,
    progress: bool = True,
) -> int:
    """Answers the open questions and appends the answers to the files of this process; returns their number.

    Args:
        model: with a processor.
        arms, records: arms and records of the plan.
        folder: folder of predictions; questions answered in its files, also by other processes, are skipped.
        batch_size, shard, tiles, progress: see `predict_all`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    process, _ = shard
    runs = [run for arm in arms for run in arm.runs]
    for run in runs:
        mend(folder / f"{run}-{process}.jsonl")
    lines = [record.line for record in records]
    answered: dict[str, list[int]] = {}
    for run in runs:
        on_disk = read_run(folder, run)
        answered[run] = [place for place, line in enumerate(lines) if line in on_disk]
    how: dict[str, Any] = {"batch_size": batch_size, "shard": shard, "tiles": tiles}

    def keep(places: Collection[int], progress: bool) -> int:
        """Answers the questions at these places; returns their number."""
        done = {run: {*own, *range(len(records))} - ({*places} - {*own}) for run, own in answered.items()}
        count = 0
        for run, predictions in predict_all(model, arms, records, answered=done, progress=progress, **how):
            append(folder / f"{run}-{process}.jsonl", predictions.values())
            count += len(predictions)
            answered[run] += predictions
        return count

    images = [[item.place for item in group] for group in by_image(records)[process :: shard[1]]]
    places, first, began = {place for group in images for place in group}, 0, monotonic()
    if progress and len(images) >= ESTIMATED:
        first = keep(images[0], progress=False)
        left = sum(len(places - {*own}) for own in answered.values())
        if first:
            minutes = (monotonic() - began) / first * left / 60
            tqdm.write(f"{left} answers to go, in about {minutes:.0f} min by the first {first}", file=sys.stderr)
    return first + keep(places, progress)


# ---- costs and scores ---------------------------------------------------------------------------------------------


def keep_costs(
    out: Path, asked: Callable[[], Sequence[Asked]], records: Sequence[Record], settings: Settings
) -> dict[str, Any] | None:
    """The costs of the arms and models from `asked`, measured once per folder.

    Arms over several views have no costs here; `benchmarks.views` measures views.
    """
    measured = read_costs(out)
    if needs_views(records, settings.tiles):
        return measured
    first = [group[0].record for group in by_image(records)[: settings.timed]]
    if measured is not None:
        kept, wanted = (measured["images"], measured["rounds"]), (len(first), settings.rounds)
        if kept != wanted:
            said = f"{kept[0]} questions in {kept[1]} rounds, not {wanted[0]} in {wanted[1]}"
            logger.warning(f"{out / 'costs.json'}: kept from before, of {said}; without that file it is made anew")
        return measured
    arms = asked()
    costs = {
        "arms": measure_costs(arms, first, rounds=settings.rounds),
        "images": len(first),
        "rounds": settings.rounds,
        "environment": environment(arms[0][0].device),
    }
    write_json(out / "costs.json", costs)
    return costs


def rescore(out: Path, records: Sequence[Record], *, metric: str | None = None) -> dict[str, Any]:
    """Computes the numbers from the predictions in a folder, without the model; writes result.json.

    Args:
        out: the experiment's folder.
        records: of the plan.
        metric: a metric in place of the plan's; the result records this.

    Raises:
        ValueError: the folder holds an ablation, or predictions are missing.
    """
    plan = read_plan(out)
    if "rules" not in plan:
        raise ValueError(f"{out}: expected the folder of an experiment; got an ablation's")
    used = plan["metric"] if metric is None else metric
    scored, items = read_scored(out / "predictions", plan_arms(plan), records, used, plan["patch_size"])
    result = score_experiment(scored, items, plan["rules"], plan["patch_size"], reference=plan.get("reference"))
    result = {"metric": used, "planned_metric": plan["metric"], **result, "costs": read_costs(out)}
    write_json(out / "result.json", result)
    return result


def read_costs(out: Path) -> dict[str, Any] | None:
    """The costs that `keep_costs` measured, or None.

    Raises:
        ValueError: the file holds something else.
    """
    path = out / "costs.json"
    if not path.is_file():
        return None
    costs = read_json(path)
    check_entries(costs, Costs, str(path))
    for name, cost in costs["arms"].items():
        check_entries(cost, ArmCost, f"{path}: {name}")
        check_entries(cost["first_token_ms"], Percentiles, f"{path}: {name}")
    return costs
