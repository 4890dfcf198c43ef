"""A suite: several data sets that measure a checkpoint in one run, for its card.

A YAML file names them:

sets:
  documents:
    data: {format: rendered, domains: document, pages: 200, questions: 3, size: 320, seed: 2000}
    arms: [oracle, realizer, none]   # see `arms.make_arms`
    by: [turn]                       # tables by these tags of the records
    tiles: auto                      # as in `arr-coc evaluate`
    metric: exact_match              # by default the format's own
    rules: {rules: [...], otherwise: ...}   # criteria that decide between the arms, see `deciding`
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ..data.formats import Format, open_source
from ..data.formats.own import Mixed, Rendered
from ..data.records import Record
from ..files import read_yaml
from ..metrics import METRICS
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..pages.splits import Split
from .answers import question_room
from .arms import Arm, make_arms
from .calibration import calibration_text
from .deciding import Rules, default_rules, judge, read_rules
from .prediction_loop import new_tokens
from .reporting import environment, p_value, percent, points, shown, to_text
from .scores import check_answers, compare, kinds_table, swapped_pairs
from .statistics import score_interval
from .strategies import score_arms

_SETTINGS = ("data", "arms", "by", "tiles", "metric", "rules")
_EXTRA = {
    "precision": "not there: precision, %",
    "recall": "not there: recall, %",
    "best": "right page, %",
    "most": "by most patches, %",
}
"""Columns that only some sets have."""


@dataclass(frozen=True)
class DataSet:
    """One data set of a suite."""

    name: str
    source: Format
    arms: tuple[str, ...]  # names, see `make_arms`
    by: tuple[str, ...] = ()  # tags of the records; each gives a table by kind of question
    # See `evaluate`.
    tiles: str | int | None = None
    metric: str = "exact_match"
    # Criteria that decide between the arms, see `deciding`; "default": those of the model's strategy where all arms
    # that they name are asked, else comparisons without a decision; None: no comparisons.
    rules: dict[str, Any] | Literal["default"] | None = None
    # See `make_arms`.
    budget: int | str | None = None
    allocator: str | None = None
    seeds: tuple[int, ...] = (0,)


def read_suite(path: Path, split: Split | None = None) -> list[DataSet]:
    """Reads the data sets of a YAML file.

    Args:
        path: path of the file; paths in the file are relative to it.
        split: split of rendered pages, in place of the file's: "validation" to decide, "test" to report.

    Raises:
        ValueError: no sets, unknown settings, data that cannot be opened, or `split` without rendered pages.
    """
    content = read_yaml(path)
    sets = content.get("sets") if isinstance(content, Mapping) else None
    if not isinstance(sets, Mapping) or not sets or set(content) != {"sets"}:
        raise ValueError(f"{path}: expected a mapping with sets, by name; got {type(content).__name__}")
    read = [_data_set(path, str(name), spec) for name, spec in sets.items()]
    if split is None:
        return read
    moved = [replace(each, source=_of_split(each.source, split)) for each in read]
    if all(one.source is other.source for one, other in zip(read, moved, strict=True)):
        raise ValueError(f"split: expected sets of rendered pages in {path}; got none")
    return moved


def _data_set(path: Path, name: str, spec: Any) -> DataSet:
    where = f"{path}, {name}"
    if not isinstance(spec, Mapping) or not {"data", "arms"} <= set(spec) <= set(_SETTINGS):
        received = sorted(map(str, spec)) if isinstance(spec, Mapping) else spec
        raise ValueError(f"{where}: expected data, arms and perhaps {', '.join(_SETTINGS[2:])}; got {received}")
    for field in ("arms", "by"):
        if not isinstance(spec.get(field, []), list):
            raise ValueError(f"{where}: expected {field} as a list; got {spec[field]!r}")
    if not isinstance(spec["data"], Mapping):
        raise ValueError(f"{where}: expected data as a mapping; got {spec['data']!r}")
    source = open_source(spec["data"], folder=path.parent)
    metric = spec.get("metric", source.metric)
    METRICS[metric]  # raises ValueError if unknown
    arms, by = (tuple(map(str, spec.get(field, ()))) for field in ("arms", "by"))
    return DataSet(name, source, arms, by, spec.get("tiles"), metric, spec.get("rules"))


def _of_split(source: Format, split: Split) -> Format:
    """A source with the rendered pages of another split; the source itself where it has none."""
    if isinstance(source, Mixed):
        moved = tuple(_of_split(each, split) for each in source.sources)
        same = all(one is other for one, other in zip(source.sources, moved, strict=True))
        return source if same else replace(source, sources=moved)
    return replace(source, split=split) if isinstance(source, Rendered) else source


def measure_suite(
    model: ArrCocForConditionalGeneration,
    sets: Sequence[DataSet],
    *,
    limit: int | None = None,
    batch_size: int = 32,
    progress: bool = True,
    **errors: Any,
) -> dict[str, Any]:
    """Asks all questions of all sets.

    Args:
        model: with a processor.
        sets: from `read_suite`.
        limit: the most questions per set, from the first on; None: all.
        batch_size, progress: see `evaluate`.
        **errors: what to do about bad records, see `Format.read`.

    Returns:
        {"sets": {name: {"data", "metric", "images", "arms": {arm: see `Scored.measures`}, "by": [see `kinds_table`],
        "swaps": [{"arm", "changed", "difference"}], and with rules what `judge` returns}}, "model", "date", "versions",
        "machine"}. A swap compares an arm
        with its own base tokens and with those of another page ("other_base"): the share of changed answers and the
        difference of the scores.

    Raises:
        ValueError: before the first question: see `make_arms` and `evaluate`; or `batch_size` is below 1, a set cannot
            be asked, or a tag in `by` is in none of its records.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1; got {batch_size}")
    ready = []
    for each in sets:
        try:
            ready.append(_prepared(model, each, limit, errors))
        except ValueError as error:
            raise ValueError(f"{each.name}: {error}") from error
    settings: dict[str, Any] = {"batch_size": batch_size, "progress": progress}
    results = {each.name: _measured(model, (each, *own), **settings) for each, *own in ready}
    return {"sets": results, "model": shown(model.config._name_or_path), **environment(model.device)}


def _prepared(
    model: ArrCocForConditionalGeneration, each: DataSet, limit: int | None, errors: Mapping[str, Any]
) -> tuple[DataSet, list[Record], list[Arm], Rules | None]:
    """A set with its records, arms and rules; refuses sets that cannot be asked or reported."""
    records = list(each.source.read(limit=limit, **errors))  # rendered pages are drawn at every access
    if not isinstance(each.source, Rendered):  # drawn pages are valid, and checking them costs time
        check_answers(records, each.metric)
    boxed, tags, images = True, set[str](), set[Any]()
    for record in records:
        boxed &= record.located
        tags |= dict(record.tags).keys()
        images.add(record.images)
    if unknown := sorted(set(each.by) - tags):
        raise ValueError(f"by: expected tags among {', '.join(sorted(tags)) or 'none'}; got {', '.join(unknown)}")
    room = None if each.rules is None else question_room(model, records, new_tokens(model))
    chosen: dict[str, Any] = {"budget": each.budget, "allocator": each.allocator, "seeds": each.seeds}
    arms = make_arms(model.config, each.arms, **chosen, room=room, boxed=boxed, several=len(images) > 1)
    rules: Any = each.rules
    names = [arm.name for arm in arms]
    if rules == "default":
        usual = default_rules(model.config.fetcher_config.strategy)
        rules = Rules() if usual.missing(names) else usual
    elif rules is not None:
        rules = read_rules(rules)
        if missing := rules.missing(names):
            raise ValueError(f"rules: expected rules about arms that are asked; got {', '.join(missing)} in them")
    for arm in arms:
        model.model.fetcher.check_strategy(arm.strategy)
    return each, records, arms, rules


def _measured(model: ArrCocForConditionalGeneration, ready: Any, **settings: Any) -> dict[str, Any]:
    """The results of a set that `_prepared` made ready."""
    each, records, arms, rules = ready
    scored, items = score_arms(model, records, arms, each.metric, tiles=each.tiles, **settings)
    tags, rows = [dict(record.tags) for record in items.records], list(scored.values())
    judged, swaps = {} if rules is None else judge(rows, items, rules), []
    for own, other in ((scored[own.name], scored[other.name]) for own, other in swapped_pairs(arms)):
        pairs = zip(own.predictions[0], other.predictions[0], strict=True)
        changed = score_interval([float(first.answer != second.answer) for first, second in pairs], own.images)
        told = {"changed": asdict(changed), "difference": compare(own, other)["difference"]}
        swaps.append({"arm": own.arm.name, "other": other.arm.name, **told})
    return {
        "data": each.source.title,
        "metric": each.metric,
        "images": items.number_of_images,
        "arms": {name: of_arm.measures() for name, of_arm in scored.items()},
        "by": [kinds_table(by, [tag.get(by, "") for tag in tags], rows) for by in each.by],
        "swaps": swaps,
        **judged,
    }


def suite_text(result: Mapping[str, Any]) -> str:
    """Formats the result of `measure_suite` as tables: sets and arms, kinds of questions, base tokens of other pages,
    comparisons, confidence; then decisions, with the notes that hold, and notes about arms."""
    overall, kinds, swaps, compared = (list[list[str]]() for _ in range(4))
    confidence, decisions, notes = list[tuple[list[str], Any]](), list[str](), dict[str, str]()
    for name, of in result["sets"].items():
        for arm, row in of["arms"].items():
            found = {**row.get("not_on_the_page", {}), **row.get("pages", {})}
            cells = [name, arm, percent(row[of["metric"]]), percent(row["recall"]), f"{row['tokens']:g}"]
            overall.append([*cells, str(row["n"]), str(of["images"]), *(percent(found.get(key)) for key in _EXTRA)])
            confidence.append(([name, arm], row["calibration"]))
        for by, row in ((table["by"], row) for table in of["by"] for row in table["rows"]):
            tokens = {arm: f"{mean:.0f}" for arm, mean in row.get("tokens", {}).items()}  # that depend on the question
            for arm, score in row["scores"].items():
                kinds.append([name, by, row["bucket"], arm, percent(score), tokens.get(arm, "-"), str(row["n"])])
        for row in of["swaps"]:
            swaps.append([name, row["arm"], percent(row["changed"]), points(row["difference"])])
        for row in of.get("comparisons", ()):
            difference = points(row["difference"]) + ("*" if row["significant"] else "")
            compared.append([name, f"{row['first']} - {row['second']}", difference, p_value(row["p_holm"])])
        if decided := of.get("decision"):
            decisions.append(" ".join([f"{name}: {decided['decision']}.", decided["text"], *decided["notes"]]))
        notes |= {arm: note for arm, note in of.get("notes", {}).items() if note}
    head = ["data", "arm", "right, %", "recall, %", "tokens", "questions", "images", *_EXTRA.values()]
    first = len(head) - len(_EXTRA)
    kept = [at for at in range(len(head)) if at < first or any(row[at] != "-" for row in overall)]
    tables = (
        ([head[at] for at in kept], [[row[at] for at in kept] for row in overall]),
        (["data", "by", "kind", "arm", "right, %", "tokens", "questions"], kinds),
        (["base of another page", "arm", "answers changed, %", "own base ahead by, points"], swaps),
        (["data", "difference", "points (* significant)", "p (Holm)"], compared),
    )
    texts = [to_text(titles, rows) for titles, rows in tables if rows]
    texts += ["In brackets: 95 % intervals.", calibration_text(confidence, ["data", "arm"]), *decisions]
    return "\n\n".join([*texts, "\n".join(f"{arm}: {note}." for arm, note in notes.items())] if notes else texts)
