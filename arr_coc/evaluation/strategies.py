"""Asks a model every question with every strategy, and scores the answers and the fetched patches.

The model is one of our own, or a reader of a published one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from ..attached import AttachedReader
from ..attached.encoding import AttachedEncoding
from ..attached.reader import BUDGET
from ..attached.runner import count_fetched, share_or_number
from ..attached.scoring import STRATEGIES
from ..data.records import Record, opened
from ..modeling.allocators import ALLOCATORS
from ..modeling.answers import Answer, calibrated
from ..modeling.configuration_arr_coc import resolve_budget
from ..modeling.fetcher import FetchChoices, RunningBackFetcher
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.scorers import SCORERS
from .answers import all_boxes, check_record, digest_of
from .arms import Arm
from .calibration import calibration, fit_calibration
from .prediction_loop import Item, by_image, new_tokens, parts, predict_all
from .reporting import environment, p_value, percent, points, require_extra, shown
from .scores import Items, Prediction, Scored, check_answers, compare, distinct_items, prediction_in_views, score_arm
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
    strategies = list(dict.fromkeys(strategies))
    _check_sizes(records, strategies, batch_size)
    arms = []
    for name in strategies:
        strategy, plus, own = name.partition("+")
        choices = FetchChoices(strategy, own if plus else allocator, budget, seed, num_passes=num_passes)
        arms.append(_arm(model, name, choices))
    if any(arm.strategy == "oracle" for arm in arms):
        check_located(records)
    check_answers(records, metric)
    return score_arms(model, records, arms, metric, batch_size=batch_size, tiles=tiles, progress=progress)[0]


def _arm(model: ArrCocForConditionalGeneration, name: str, choices: FetchChoices) -> Arm:
    """The arm that equals `generate` with these choices of strategy, budget and allocator.

    Raises:
        ValueError: an unknown strategy, allocator or budget.
    """
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
    choices = FetchChoices(model.config.fetcher_config.strategy)
    _check_sizes(records, list(fetchers), 1)
    arms = [_arm(model, name, choices) for name in fetchers]
    return score_arms(model, records, arms, "exact_match", fetchers=fetchers)[0]


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


FIXED: Mapping[str, tuple[str, int | str]] = {"none": ("saliency", 0), "keep_all": ("saliency", "all")}
"""Names besides those of strategies: base tokens only, and all tokens, as in the plain model."""


@dataclass(frozen=True)
class AttachedArm(Arm):
    """A strategy and `spent`, the budget of `AttachedReader.generate`; `budget` is 0 if nothing is fetched."""

    spent: float | int | str = BUDGET

    @classmethod
    def of(cls, name: str, strategy: str, spent: float | int | str) -> "AttachedArm":
        """The arm; the size of the prompt depends on the question."""
        return cls(name, "ladder", strategy, int(spent != 0), "topk", side=0, tokens=0, spent=spent)


def attached_arms(
    reader: AttachedReader, names: Sequence[str], budget: float | int | str | None, records: Sequence[Record]
) -> list[AttachedArm]:
    """The arms called NAME or NAME@BUDGET; NAME is a strategy or one of `FIXED`.

    Raises:
        ValueError: an unknown name or budget, "realizer" without a trained scorer, or "oracle" with records without
            boxes.
    """
    arms = []
    for name in dict.fromkeys(names):
        rule, at, own = name.partition("@")
        if rule in FIXED:
            if at:
                raise ValueError(f"strategies: expected {rule} without a budget; got {name}")
            arms.append(AttachedArm.of(name, *FIXED[rule]))
            continue
        if rule not in STRATEGIES:
            raise ValueError(f"strategies: expected names among {', '.join([*STRATEGIES, *FIXED])}; got {rule!r}")
        reader.check_strategy(rule, () if rule == "oracle" else None)
        spent = share_or_number(own) if at else BUDGET if budget is None else budget
        count_fetched(spent, 2**30, 2**30, 1)
        arms.append(AttachedArm.of(name, rule, spent))
    if any(arm.strategy == "oracle" for arm in arms):
        check_located(records)
    return arms


def check_located(records: Sequence[Record]) -> None:
    """Raises a ValueError if strategy "oracle" does not know what to fetch for some records."""
    if bare := [record.line for record in records if not record.located]:
        expected = 'strategy "oracle": expected boxes in every record'
        raise ValueError(f"{expected}; got {len(bare)} without, e.g. line {bare[0]}")


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


def predict_attached(
    reader: AttachedReader,
    arms: Sequence[AttachedArm],
    records: Sequence[Record],
    *,
    batch_size: int,
    seed: int | None = None,
    progress: bool = True,
) -> Iterator[tuple[str, dict[int, Prediction]]]:
    """Yields parts of each arm's predictions by the record's number; the images of a question are encoded once.

    Arguments are as in `prediction_loop.predict_all`; "random" draws for each question alone.

    Raises:
        ValueError: an image that cannot be read, or boxes outside it; the message names the record's line.
    """
    with tqdm(total=len(arms) * len(records), unit="answer", disable=None if progress else True) as bar:
        for group in by_image(records):
            encoding = _encoded(reader, group)
            digest = digest_of(group[0].record.images)
            for arm, run, _, part in parts(arms, group, lambda arm: 1 if arm.strategy == "random" else batch_size):
                drawn = part[0].place if seed is None else seed * len(records) + part[0].place
                asked = zip(part, _ask(reader, arm, encoding, part, drawn), strict=True)
                yield run, {at: _prediction(own.line, said, encoding, digest) for (at, own), said in asked}
                bar.update(len(part))


def _encoded(reader: AttachedReader, group: Sequence[Item]) -> AttachedEncoding:
    """Encodes the images of a group of questions."""
    record = group[0].record
    try:
        encoding = reader.encode_image([[opened(image) for image in record.images]])
    except (ValueError, OSError) as error:
        raise ValueError(f"line {record.line}: {error}") from error
    sizes = [(source.height, source.width) for source in encoding.prompts[0].sources]
    for item in group:
        check_record(item.record, sizes)
    return encoding


def _ask(
    reader: AttachedReader, arm: AttachedArm, encoding: AttachedEncoding, part: Sequence[Item], seed: int
) -> list[Answer]:
    records, sources = [item.record for item in part], range(len(encoding.prompts[0].sources))
    fetching: dict[str, Any] = {"strategy": arm.strategy, "budget": arm.spent, "seed": seed}
    if arm.strategy == "oracle":
        fetching["boxes"] = [all_boxes(record, source) for record in records for source in sources]
    decoding: dict[str, Any] = {"do_sample": False, "max_new_tokens": new_tokens(reader.model), "return_fetch": True}
    questions, history = [record.question for record in records], [list(record.history) for record in records]
    return reader.generate(encoding, questions, history=history, **fetching, **decoding)


def _prediction(line: int, answer: Answer, encoding: AttachedEncoding, digest: str) -> Prediction:
    """The prediction for an answer, as over views."""
    (prompt,) = encoding.prompts
    fetch: Any = answer.fetch
    indices = fetch.indices[0].cpu()
    indices, tokens = indices[prompt.is_place[indices]], len(indices) + fetch.base
    best = -1
    if len(indices):
        first = indices[int(fetch.relevance[0].cpu()[indices].argmax())]
        best = prompt.views[int(prompt.places[first, 0])].image
    sizes = [(source.height, source.width) for source in prompt.sources]
    return prediction_in_views(line, answer, tokens, sizes, digest, best=best)
