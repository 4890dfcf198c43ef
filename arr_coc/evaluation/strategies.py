"""Asks a model every question with every strategy, and scores the answers and the fetched patches.

The model is one of our own, or a reader of a published one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..attached import AttachedReader
from ..attached.reader import BUDGET
from ..attached.runner import count_fetched, share_or_number
from ..attached.scoring import STRATEGIES
from ..data.records import Record
from ..modeling.allocators import ALLOCATORS
from ..modeling.answers import calibrated
from ..modeling.configuration_arr_coc import resolve_budget
from ..modeling.fetcher import FetchChoices, RunningBackFetcher
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.scorers import SCORERS
from .arms import Arm
from .calibration import calibration, fit_calibration
from .prediction_loop import predict_all
from .reporting import environment, p_value, percent, points, require_extra, shown
from .scores import Items, Prediction, Scored, check_answers, compare, distinct_items, score_arm


def evaluate(
    model: ArrCocForConditionalGeneration | AttachedReader,
    records: Sequence[Record],
    strategies: Sequence[str],
    *,
    data: str | Path | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Answers all questions greedily with each strategy, and scores the answers.

    Args:
        model: a model with a processor, or a reader of a published model. Readers have no allocators, passes or tiles;
            their strategies are STRATEGY or STRATEGY@BUDGET, of `attached.scoring.STRATEGIES`, and `FIXED`.
        records: the questions. "oracle" needs boxes in all of them; it fetches the patches under these and the labels'
            boxes.
        strategies: names of scorers, or STRATEGY+ALLOCATOR; see `with_allocators`.
        data: the origin of the records, for the report.
        **settings: see `score_strategies`.

    Returns:
        {"strategies": {name: {metric: {"value", "low", "high"}, "recall": likewise or None, "tokens": mean image tokens
        per question, "n": questions, "answers": see `Scored.told`}, and more, see `Scored.measures`}, "metric",
        "model", "data", "budget", "allocator", "seed", "num_passes", "date", "versions", "machine"}. Intervals are
        95 %, by a bootstrap over whole images or documents; if no answer or every answer is right, Wilson's interval
        for the number of images. A copy of a question (same pixels, question, answers and history) is asked, but does
        not count.

    Raises:
        ValueError: no records, an unknown strategy, metric, allocator or budget, "oracle" without boxes, an unreadable
            image, or answers that the metric cannot score.

    Example:
        >>> report = evaluate(model, read_records(Path("data.jsonl")), ["none", "realizer"])
        >>> report["strategies"]["realizer"]["exact_match"]["value"]
    """
    scored = score_strategies(model, records, strategies, **settings)
    told: dict[str, Any] = {"metric": settings.get("metric", "exact_match"), "seed": settings.get("seed")}
    budget, network = settings.get("budget"), model.model if isinstance(model, AttachedReader) else model
    if isinstance(model, AttachedReader):
        told["budget"] = BUDGET if budget is None else budget
    else:
        fetcher, passes, tiles = model.config.fetcher_config, settings.get("num_passes", 1), settings.get("tiles")
        told["budget"] = resolve_budget(budget, model.config.vision_config.num_patches, fetcher.budget)
        told |= {"allocator": settings.get("allocator") or fetcher.allocator, "num_passes": passes}
        told |= {} if tiles is None else {"tiles": tiles}
    return {
        "strategies": {name: {**own.measures(), "answers": own.told} for name, own in scored.items()},
        **told,
        "model": shown(network.config._name_or_path),
        "data": None if data is None else str(data),
        **environment(network.device),
    }


def score_strategies(
    model: ArrCocForConditionalGeneration | AttachedReader,
    records: Sequence[Record],
    strategies: Sequence[str],
    *,
    batch_size: int = 32,
    budget: float | int | str | None = None,
    allocator: str | None = None,
    seed: int | None = None,
    num_passes: int | str = 1,
    metric: str = "exact_match",
    tiles: str | int | None = None,
    progress: bool = True,
) -> dict[str, Scored]:
    """Each strategy's answers and scores, question by question. Other arguments and errors are those of `evaluate`.

    Args:
        batch_size: questions answered at a time, and images encoded at a time.
        budget, allocator: defaults for strategies that name none; the checkpoint's by default.
        seed: seed of "random", which draws for each image and question independently of the batch; the config's by
            default.
        num_passes: passes per question, each with the whole budget; "auto": while the answer is uncertain.
        tiles: see `views.ViewOptions`; None: one view per image, but views of documents and of several images.
    """
    strategies = list(dict.fromkeys(strategies))
    _check_sizes(records, strategies, batch_size)
    arms, settings = list[Arm](), dict[str, Any](batch_size=batch_size, progress=progress)
    if isinstance(model, AttachedReader):
        own = {"allocator": allocator, "num_passes": None if num_passes == 1 else num_passes, "tiles": tiles}
        for name, value in own.items():
            if value is not None:
                raise ValueError(f"{name}: expected none with a {model.model.config.model_type} model; got {value}")
        seeds = () if seed is None else (seed,)
        arms = [_attached_arm(model, name, BUDGET if budget is None else budget, seeds) for name in strategies]
    else:
        for name in strategies:
            strategy, plus, named = name.partition("+")
            spent: Any = budget
            choices = FetchChoices(strategy, named if plus else allocator, spent, seed, num_passes=num_passes)
            arms.append(_arm(model, name, choices))
        settings["tiles"] = tiles
    bare = [record.line for record in records if not record.located]
    if bare and any(arm.strategy == "oracle" for arm in arms):
        expected = 'strategy "oracle": expected boxes in every record'
        raise ValueError(f"{expected}; got {len(bare)} without, e.g. line {bare[0]}")
    check_answers(records, metric)
    return score_arms(model, records, arms, metric, **settings)[0]


def _arm(model: ArrCocForConditionalGeneration, name: str, choices: FetchChoices) -> Arm:
    """The arm that equals `generate` with these choices of strategy, budget and allocator. Raises ValueError: an
    unknown strategy, allocator or budget."""
    config = model.config
    resolve_budget(choices.budget, config.vision_config.num_patches, config.fetcher_config.budget)
    chosen = model.model.fetcher.resolve(choices)
    strategy, allocator = choices.strategy or "", chosen.allocator or config.fetcher_config.allocator
    base, count = config.vision_tokens(budget=chosen.budget, strategy=strategy)
    arm = Arm(name, "ladder", strategy, count, allocator, config.vision_config.image_size, base + count, rule=strategy)
    return replace(arm, seeds=() if chosen.seed is None else (chosen.seed,), passes=chosen.num_passes or 1)


def fit_to_records(
    model: ArrCocForConditionalGeneration, records: Sequence[Record], strategy: str, metric: str, **settings: Any
) -> dict[str, Any]:
    """Fits `config.calibration` to the model's answers to a validation set; settings are as in `evaluate`.

    Returns:
        {"weights": see `calibration.fit_calibration`, "n": answers, "before", "after": their `calibration`}.

    Raises:
        ValueError: see `evaluate` and `fit_calibration`.
    """
    model.config.calibration = None
    scored = score_strategies(model, records, [strategy], metric=metric, **settings)[strategy]
    said, right, refused = scored.predictions[0], scored.scores[0], scored.refused[0]
    weights = fit_calibration([each.evidence for each in said], right)
    model.config.calibration = weights
    fitted = [calibrated(each.probability, weights, each.evidence) for each in said]
    after = calibration(np.array(fitted), right, refused)
    return {"weights": weights, "n": len(said), "before": scored.calibration, "after": after}


def score_fetchers(
    model: ArrCocForConditionalGeneration, records: Sequence[Record], fetchers: Mapping[str, RunningBackFetcher]
) -> dict[str, Scored]:
    """The configured model's answers and exact matches with each fetcher in place of its own, question by question.
    Every image is drawn and encoded once for all fetchers. Errors are those of `evaluate`."""
    choices = FetchChoices(model.config.fetcher_config.strategy)
    _check_sizes(records, list(fetchers), 1)
    arms = [replace(_arm(model, name, choices), fetcher=fetcher) for name, fetcher in fetchers.items()]
    return score_arms(model, records, arms, "exact_match")[0]


def score_arms(
    model: ArrCocForConditionalGeneration | AttachedReader,
    records: Sequence[Record],
    arms: Sequence[Arm],
    metric: str,
    **settings: Any,
) -> tuple[dict[str, Scored], Items]:
    """Each arm's answers and scores by its name, and the questions that count. Settings are as in `predict_all`."""
    patch = 0 if isinstance(model, AttachedReader) else model.config.vision_config.patch_size
    answers: dict[str, dict[int, Prediction]] = {run: {} for arm in arms for run in arm.runs}
    for run, part in predict_all(model, arms, records, **settings):
        answers[run].update(part)
    rows = {arm.name: [[answers[run][place] for place in range(len(records))] for run in arm.runs] for arm in arms}
    items = distinct_items(records, rows[arms[0].name][0])
    return {arm.name: score_arm(arm, rows[arm.name], items, metric, patch) for arm in arms}, items


def with_allocators(strategies: Sequence[str], allocators: Sequence[str]) -> list[str]:
    """Every strategy with every allocator, as STRATEGY+ALLOCATOR; strategies that fetch nothing only once, alone.
    Raises ValueError: an unknown name."""
    for allocator in allocators:
        ALLOCATORS[allocator]
    pairs = [[f"{name}+{own}" for own in allocators] if SCORERS[name].fetches else [name] for name in strategies]
    return [name for own in pairs for name in own]


def _check_sizes(records: Sequence[Record], strategies: Sequence[str], batch_size: int) -> None:
    require_extra("scipy.stats", "intervals")
    if not records or not strategies:
        raise ValueError(f"expected records and strategies; got {len(records)} records, {len(strategies)} strategies")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1; got {batch_size}")


def describe(scored: Scored) -> str:
    """ "exact match 43.1 [40.2, 46.0] %, recall 61.0 [58.1, 63.9] %, 107.0 tokens, n = 160"."""
    measured = scored.measures()
    text = f"{scored.metric.replace('_', ' ')} {percent(measured[scored.metric])} %"
    if measured["recall"] is not None:
        text += f", recall {percent(measured['recall'])} %"
    return f"{text}, {measured['tokens']:.1f} tokens, n = {measured['n']}"


def describe_change(before: Scored, after: Scored) -> str:
    """ "+4.3 [+3.2, +5.5] points, 12 gained, 3 lost, p 0.035", for answers to the same questions.

    Interval and p are by whole images: by a bootstrap and by sign flips.

    Raises:
        ValueError: unequal numbers of questions.
    """
    change = compare(after, before)
    difference = points(change["difference"])
    return f"{difference} points, {change['gained']} gained, {change['lost']} lost, p {p_value(change['p'])}"


FIXED: Mapping[str, tuple[str, int | str]] = {"none": ("saliency", 0), "keep_all": ("saliency", "all")}
"""Names besides those of strategies: base tokens only, and all tokens, as in the plain model."""


def _attached_arm(reader: AttachedReader, name: str, budget: float | int | str, seeds: tuple[int, ...]) -> Arm:
    """The arm called NAME or NAME@BUDGET; NAME is a strategy or one of `FIXED`. Its prompts' size is the question's.
    Raises ValueError: an unknown name or budget, or "realizer" without a trained scorer."""
    rule, at, own = name.partition("@")
    if rule in FIXED:
        if at:
            raise ValueError(f"strategies: expected {rule} without a budget; got {name}")
        rule, budget = FIXED[rule]
    elif rule not in STRATEGIES:
        raise ValueError(f"strategies: expected names among {', '.join([*STRATEGIES, *FIXED])}; got {rule!r}")
    else:
        reader.check_strategy(rule, () if rule == "oracle" else None)
        budget = share_or_number(own) if at else budget
        count_fetched(budget, 2**30, 2**30, 1)
    return Arm(name, "ladder", rule, budget, "topk", side=0, tokens=0, seeds=seeds)


def usable_strategies(model: ArrCocForConditionalGeneration | AttachedReader, *, oracle: bool) -> list[str]:
    """The strategies that a model can run, in the registry's order; of a reader without "words", which not every page
    has."""
    if isinstance(model, AttachedReader):
        usable = {"realizer": model.scorer is not None, "oracle": oracle, "words": False}
        return [name for name in (*STRATEGIES, *FIXED) if usable.get(name, True)]
    held = model.config.fetcher_config.scorers
    return [
        name for name, kind in SCORERS.items() if (name in held or not kind.trained) and (oracle or name != "oracle")
    ]
