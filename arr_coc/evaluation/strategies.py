"""Asks a model every question with every strategy, and scores the answers and the fetched patches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..attached import AttachedReader
from ..attached.reader import BUDGET
from ..data.records import Record
from ..modeling.allocators import ALLOCATORS
from ..modeling.answers import calibrated
from ..modeling.configuration_arr_coc import resolve_budget
from ..modeling.fetcher import FetchChoices, RunningBackFetcher
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.scorers import SCORERS
from .arms import Arm
from .attached import attached_arms, check_located, predict_attached
from .calibration import calibration, fit_calibration
from .prediction_loop import predict_all
from .predictions import Prediction
from .reporting import environment, p_value, percent, points, require_extra, shown
from .scores import Items, Scored, check_answers, compare, distinct_items, score_arm
from .statistics import Interval


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
            their strategies are in `attached.attached_arms`.
        records: the questions. "oracle" needs boxes in all of them; it fetches the patches under these and the labels'
            boxes.
        strategies: names of scorers, or STRATEGY+ALLOCATOR; see `with_allocators`.
        data: the origin of the records, for the report.
        **settings: see `score_strategies`; for readers `score_attached`.

    Returns:
        {"strategies": {name: {metric: {"value", "low", "high"}, "recall": likewise or None, "tokens": mean image tokens
        per question, "n": questions, "answers": see `Scored.told`}, and more, see `measures`}, "metric",
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
    told: dict[str, Any] = {"metric": settings.get("metric", "exact_match"), "seed": settings.get("seed")}
    budget = settings.get("budget")
    if isinstance(model, AttachedReader):
        without = {"allocator": None, "num_passes": 1, "tiles": None}
        for name, plain in without.items():
            if (value := settings.pop(name, plain)) != plain:
                raise ValueError(f"{name}: expected none with a {model.model.config.model_type} model; got {value}")
        scored, network = score_attached(model, records, strategies, **settings), model.model
        told["budget"] = BUDGET if budget is None else budget
    else:
        scored, network = score_strategies(model, records, strategies, **settings), model
        fetcher, passes, tiles = model.config.fetcher_config, settings.get("num_passes", 1), settings.get("tiles")
        told["budget"] = resolve_budget(budget, model.config.vision_config.num_patches, fetcher.budget)
        told |= {"allocator": settings.get("allocator") or fetcher.allocator, "num_passes": passes}
        told |= {} if tiles is None else {"tiles": tiles}
    return {
        "strategies": {name: {**measures(own), "answers": own.told} for name, own in scored.items()},
        **told,
        "model": shown(network.config._name_or_path),
        "data": None if data is None else str(data),
        **environment(network.device),
    }


def score_strategies(
    model: ArrCocForConditionalGeneration,
    records: Sequence[Record],
    strategies: Sequence[str],
    *,
    batch_size: int = 32,
    budget: int | str | None = None,
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
    if isinstance(budget, float):
        raise ValueError(f"budget: expected a number of tokens or a name; got {budget}")
    strategies = list(dict.fromkeys(strategies))
    check_request(model, records, strategies, batch_size, budget, allocator, metric)
    arms = []
    for name in strategies:
        strategy, own = _parts(name)
        choices = FetchChoices(strategy, own or allocator, budget, seed, num_passes=num_passes)
        arms.append(replace(strategy_arm(model, choices), name=name))
    return score_arms(model, records, arms, metric, batch_size=batch_size, tiles=tiles, progress=progress)[0]


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
    told, read = [each.probability for each in said], [each.legibility for each in said]
    weights = fit_calibration(told, right, [each.answer for each in said], read)
    model.config.calibration = weights
    fitted = [calibrated(each.probability, weights, text=each.answer, legibility=each.legibility) for each in said]
    after = calibration(np.array(fitted), right, refused)
    return {"weights": weights, "n": len(said), "before": scored.calibration, "after": after}


def score_attached(
    reader: AttachedReader,
    records: Sequence[Record],
    strategies: Sequence[str],
    *,
    batch_size: int = 32,
    budget: float | int | str | None = None,
    seed: int | None = None,
    metric: str = "exact_match",
    progress: bool = True,
) -> dict[str, Scored]:
    """`score_strategies` for a reader of a published model. Arguments and errors are those of `evaluate`."""
    _check_sizes(records, strategies, batch_size)
    arms = attached_arms(reader, strategies, budget, records)
    check_answers(records, metric)
    predictions = predict_attached(reader, arms, records, batch_size=batch_size, seed=seed, progress=progress)
    return _scored(arms, records, predictions, metric, 0)[0]


def score_fetchers(
    model: ArrCocForConditionalGeneration, records: Sequence[Record], fetchers: Mapping[str, RunningBackFetcher]
) -> dict[str, Scored]:
    """The configured model's answers and exact matches with each fetcher in place of its own, question by question.

    Every image is drawn and encoded once for all fetchers. Errors are those of `evaluate`.
    """
    strategy, metric = model.config.fetcher_config.strategy, "exact_match"
    check_request(model, records, [strategy], 1, None, None, metric)
    arm = strategy_arm(model, FetchChoices(strategy=strategy))
    return score_arms(model, records, [replace(arm, name=name) for name in fetchers], metric, fetchers=fetchers)[0]


def score_arms(
    model: ArrCocForConditionalGeneration, records: Sequence[Record], arms: Sequence[Arm], metric: str, **settings: Any
) -> tuple[dict[str, Scored], Items]:
    """Each arm's answers and scores by its name, and the questions that count. Settings are as in `predict_all`."""
    patch = model.config.vision_config.patch_size
    return _scored(arms, records, predict_all(model, arms, records, **settings), metric, patch)


def _scored(
    arms: Sequence[Arm],
    records: Sequence[Record],
    predictions: Iterable[tuple[str, dict[int, Prediction]]],
    metric: str,
    patch: int,
) -> tuple[dict[str, Scored], Items]:
    answers: dict[str, dict[int, Prediction]] = {run: {} for arm in arms for run in arm.runs}
    for run, part in predictions:
        answers[run].update(part)
    rows = {arm.name: [[answers[run][place] for place in range(len(records))] for run in arm.runs] for arm in arms}
    items = distinct_items(records, rows[arms[0].name][0])
    return {arm.name: score_arm(arm, rows[arm.name], items, metric, patch) for arm in arms}, items


def with_allocators(strategies: Sequence[str], allocators: Sequence[str]) -> list[str]:
    """Every strategy with every allocator, as STRATEGY+ALLOCATOR; strategies that fetch nothing only once, alone.

    Raises:
        ValueError: an unknown name.
    """
    for allocator in allocators:
        ALLOCATORS[allocator]
    pairs = [[f"{name}+{own}" for own in allocators] if SCORERS[name].fetches else [name] for name in strategies]
    return [name for own in pairs for name in own]


def _parts(name: str) -> tuple[str, str | None]:
    """The strategy and the allocator of STRATEGY or STRATEGY+ALLOCATOR; None without an allocator."""
    strategy, plus, allocator = name.partition("+")
    return strategy, allocator if plus else None


def strategy_arm(model: ArrCocForConditionalGeneration, choices: FetchChoices) -> Arm:
    """The arm that equals `generate` with these choices of strategy, budget and allocator."""
    config, chosen = model.config, model.model.fetcher.resolve(choices)
    strategy, side = chosen.strategy or config.fetcher_config.strategy, config.vision_config.image_size
    base, num_fetched = config.vision_tokens(budget=chosen.budget, strategy=strategy)
    allocator = chosen.allocator or config.fetcher_config.allocator
    seeds = () if chosen.seed is None else (chosen.seed,)
    passes = chosen.num_passes or 1
    return Arm(strategy, "ladder", strategy, num_fetched, allocator, side, base + num_fetched, seeds, passes=passes)


def measures(scored: Scored) -> dict[str, Any]:
    """{metric: interval, "recall": interval or None without boxes, "tokens", "n", "calibration": see
    `calibration.calibration`}.

    With questions about absent fields also "not_on_the_page": {"precision", "recall"}, see `Scored.refusals`. With
    questions whose source of the answer is known also "pages": {"best", "most"}, see `Scored.right_pages`.
    """
    recall, refusals, pages = scored.recall, scored.refusals, scored.right_pages
    return {
        scored.metric: asdict(scored.score),
        "recall": None if recall is None else asdict(recall),
        "tokens": float(scored.tokens.mean()),
        "n": scored.scores.shape[1],
        "calibration": scored.calibration,
        **({} if refusals is None else {"not_on_the_page": _listed(refusals)}),
        **({} if pages is None else {"pages": _listed(pages)}),
    }


def _listed(intervals: Mapping[str, Interval | None]) -> dict[str, Any]:
    return {name: None if interval is None else asdict(interval) for name, interval in intervals.items()}


def check_request(
    model: ArrCocForConditionalGeneration,
    records: Sequence[Record],
    strategies: list[str],
    batch_size: int,
    budget: int | str | None,
    allocator: str | None,
    metric: str,
) -> None:
    """Raises ValueError for settings that would otherwise fail only after the first strategies have run."""
    _check_sizes(records, strategies, batch_size)
    named = [_parts(name) for name in strategies]
    for strategy, own in named:
        model.model.fetcher.check_strategy(strategy)
        if own is not None:
            ALLOCATORS[own]  # raises ValueError if unknown
    if allocator is not None:
        ALLOCATORS[allocator]
    resolve_budget(budget, model.config.vision_config.num_patches, model.config.fetcher_config.budget)
    if any(strategy == "oracle" for strategy, _ in named):
        check_located(records)
    check_answers(records, metric)


def _check_sizes(records: Sequence[Record], strategies: Sequence[str], batch_size: int) -> None:
    require_extra("scipy.stats", "intervals")
    if not records or not strategies:
        raise ValueError(f"expected records and strategies; got {len(records)} records, {len(strategies)} strategies")
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1; got {batch_size}")


def describe(scored: Scored) -> str:
    """ "exact match 43.1 [40.2, 46.0] %, recall 61.0 [58.1, 63.9] %, 107.0 tokens, n = 160"."""
    measured = measures(scored)
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
