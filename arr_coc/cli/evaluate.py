"""`arr-coc evaluate`: what a model answers on a data set, on several (a suite), or on a bench of real pages."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import DATA, METRICS, add_options, announce, check_arguments, command, find_source, split_names, writable

if TYPE_CHECKING:
    from arr_coc.attached import AttachedReader
    from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    form = (
        'JSONL file with {"image": path, "question": str, "answers": [str], "boxes": [[x0, y0, x1, y1]]} per line, '
        "boxes optional; or a file in --format; or a YAML file with format, path and other settings; or a YAML file "
        "with sets: a suite of data sets, their arms, and tags to report by"
    )
    add("data", metavar="DATA", nargs="?", help=form)
    add_options(parser, *DATA, "model")
    strategies = "strategies, comma-separated, or all: also oracle if every record has boxes (default: the model's own)"
    add("--strategies", metavar="A,B", help=strategies)
    allocators = "allocators, comma-separated, or all: each strategy runs with each of them (default: --allocator)"
    add("--allocators", metavar="A,B", help=allocators)
    add_options(parser, "budget", "allocator", "passes")
    metrics = f"metric of the answers: {METRICS} (default: the format's; exact_match for JSONL)"
    add("--metric", metavar="M", help=metrics)
    add_options(parser, "tiles")
    add("--batch-size", metavar="N", type=int, default=32, help="questions per batch (default: 32)")
    add("--limit", metavar="N", type=int, help="ask only the first N questions (default: all)")
    add("--seed", metavar="N", type=int, help="seed of random relevance (default: one per question)")
    arms = (
        "instead of --strategies, ways to fill the prompt, which are compared: strategies, uniform, larger, smaller, "
        "patches_only, other_base, oracle, keep_all, peers; STRATEGY@K; STRATEGY+ALLOCATOR; or groups: ladder, "
        "baselines, halves, bounds, peers"
    )
    add("--arms", metavar="A,B", help=arms)
    add("--rules", metavar="RULES.yaml", help="with --arms, criteria that decide (default: those of the ladder)")
    add("--seeds", metavar="N,N", help="with --arms, seeds of random relevance (default: 0,1,2)")
    splits = "with a suite, split of rendered pages: validation to decide, test to report (default: the suite's)"
    add("--split", choices=("train", "validation", "test"), help=splits)
    add("--sets", metavar="A,B", help="with a suite, names of its sets (default: all)")
    bench = "instead of DATA: a folder of sources of real pages, each a folder with data.jsonl and its images"
    add("--bench", metavar="DIR", help=bench)
    add("--sources", metavar="NAME", nargs="+", help="with --bench, names of sources in DIR (default: all)")
    add("--strategy", metavar="S", help="with --bench, what decides what is fetched (default: the model's)")
    add_options(parser, "readings", "words", "reread")
    answers = "with --bench, JSONL file of the answers; a run resumes after those that it holds (default: none)"
    add("--predictions", metavar="FILE", help=answers)
    fit = (
        "fit the probability of answers to how many are right, and write the weights into config.json of --model; DATA "
        "has to be a validation set"
    )
    add("--fit-calibration", action="store_true", help=fit)
    add("--json", metavar="FILE", help="file for the results and all answers (default: none)")
    add_options(parser, "device")


OPTIONS = {
    "--bench DIR": ("sources", "readings", "words", "reread", "strategy", "predictions"),
    "a suite": ("split", "sets"),
    "--arms": ("rules", "seeds"),
}
"""Options that only one kind of evaluation has."""


def kind_of(args: argparse.Namespace) -> str | None:
    """The kind of evaluation, a name of `OPTIONS`; None: strategies on one data set."""
    if args.bench is not None:
        return "--bench DIR"
    if args.data is not None and Path(args.data).suffix in (".yaml", ".yml") and Path(args.data).is_file():
        from arr_coc.files import read_yaml

        content = read_yaml(Path(args.data))
        if isinstance(content, dict) and "sets" in content:
            return "a suite"
    return None if args.arms is None else "--arms"


def check(args: argparse.Namespace) -> None:
    """Refuses options that do not go together."""
    if args.bench is not None and args.data is not None:
        raise ValueError(f"--bench: expected it without DATA; got {args.data}")
    check_arguments(args)
    own = kind_of(args)
    for kind, names in OPTIONS.items():
        for name in names if kind != own else ():
            if getattr(args, name) is not None:
                raise ValueError(f"--{name}: expected it with {kind}; got it without")


@command("evaluate", "measure accuracy and recall on questions with known answers", add_arguments, check)
def evaluate_command(args: argparse.Namespace) -> None:
    """Ask every question of a data set with the model's strategy, or with each of --strategies, and print the
    metric, recall of the patches under the boxes, and image tokens per question, with 95 % intervals. Exact
    match ignores white space, not case. If the data set has questions about absent fields, the table also has
    precision and recall of "not on the page".
    A question may have several images, or a PDF or video: one budget covers all of them. If the page of the
    answer is known, the last columns give the share of questions whose most relevant patch came from it, and
    of those with most patches from it; intervals are then over documents. A second table compares the mean
    probability of answers with how many are right, in five bins, with the expected calibration error (ECE).
    With a published model of another family (Qwen3-VL, InternVL, ...) --budget may be a share of its image
    tokens, a strategy may be STRATEGY@BUDGET, and keep_all is the plain model; --allocator, --allocators,
    --passes and --tiles are not available.
    With --arms, ways to fill the prompt with as many tokens are compared, paired by question, and rules that
    are written down before decide (see docs/measuring.md). DATA may be a suite: one table of all its sets,
    tables by tags, the effect of another page's base tokens, and the calibration. With --bench, pages are asked
    about as a user would, and for each source and on average it prints exact match (by each record's `match`:
    alnum, relaxed, or ignoring case), ANLS, seconds, how well the confidence predicts right answers, and its
    calibration.

    Examples:
        arr-coc evaluate held_out.jsonl --strategies none,random,words
        arr-coc evaluate held_out.jsonl --strategies all --allocators all --limit 100
        arr-coc evaluate held_out.jsonl --model ./my-model --limit 100 --metric anls --json results.json
        arr-coc evaluate out/documents/data.jsonl --strategies none,words --tiles asked
        arr-coc evaluate my.jsonl --model Qwen/Qwen3-VL-2B-Instruct --strategies keep_all,attention@0.25,none
        arr-coc evaluate val.json --format textvqa --with images=train_images --with ocr=rosetta.json
        arr-coc evaluate validation.jsonl --model ./my-model --fit-calibration
        arr-coc evaluate held_out.jsonl --arms ladder,baselines,halves --json arms.json
        arr-coc evaluate examples/measured_135m.yaml --split validation --limit 60
        arr-coc evaluate --bench ../bench --sources sroie funsd --limit 20 --predictions answers.jsonl
    """
    from arr_coc.files import write_json

    kinds = {None: _of_strategies, "--bench DIR": _of_bench, "a suite": _of_suite, "--arms": _of_arms}
    result, text = kinds[kind_of(args)](args)
    print(text)
    if args.json is not None:
        write_json(Path(args.json).expanduser(), result)


def _of_strategies(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from arr_coc.attached import AttachedReader
    from arr_coc.attached.reader import load_model_or_reader
    from arr_coc.attached.runner import share_or_number
    from arr_coc.evaluation import evaluate
    from arr_coc.evaluation.strategies import usable_strategies, with_allocators
    from arr_coc.metrics import METRICS
    from arr_coc.modeling.allocators import ALLOCATORS
    from arr_coc.publishing.building import whole_model

    source = find_source(args.data, args.format, args.fields)
    metric = source.metric if args.metric is None else args.metric
    METRICS[metric]  # a ValueError before records and model are loaded
    if args.allocators is not None and args.allocator is not None:
        raise ValueError("--allocators: expected it without --allocator; got both")
    if args.fit_calibration:
        _check_fit(args)
    records = list(source.read(limit=args.limit, on_error=args.on_error, max_errors=args.max_errors))
    announce(f"Loading the model, then asking {len(records):,} questions")
    model = load_model_or_reader(whole_model(args.model), args.device)
    same = {name: getattr(args, name) for name in ("batch_size", "budget", "allocator", "seed", "tiles")}
    options: dict[str, Any] = {**same, "num_passes": args.passes}
    if args.fit_calibration:
        if isinstance(model, AttachedReader):
            raise ValueError(f"--fit-calibration: expected an ARR-COC model; got {model.model.config.model_type}")
        return _fit(args, model, records, metric, options)
    if isinstance(model, AttachedReader):
        if args.allocators is not None:
            kind = model.model.config.model_type
            raise ValueError(f"--allocators: expected none with a {kind} model; got {args.allocators}")
        options["budget"] = None if args.budget is None else share_or_number(args.budget)
    if args.strategies == "all":
        strategies = usable_strategies(model, oracle=all(record.located for record in records))
    else:
        strategies = split_names(_own_strategy(args, model), "--strategies")
    if args.allocators is not None:
        named = [*ALLOCATORS] if args.allocators == "all" else split_names(args.allocators, "--allocators")
        strategies = with_allocators(strategies, named)
    result = evaluate(model, records, strategies, metric=metric, data=source.title, **options)
    return result, table(result["strategies"], metric)


def _check_fit(args: argparse.Namespace) -> None:
    """Refuses what there is nothing to fit for, or nowhere to write to."""
    if args.model is None or not Path(args.model, "config.json").is_file():
        raise ValueError(f"--fit-calibration: expected --model FOLDER, which it is written into; got {args.model}")
    if "," in (args.strategies or "") or args.allocators is not None:
        got = args.strategies if args.allocators is None else f"--allocators {args.allocators}"
        raise ValueError(f"--fit-calibration: expected one strategy, that of users; got {got}")
    writable(str(Path(args.model, "config.json")), "--fit-calibration")


def _fit(
    args: argparse.Namespace,
    model: ArrCocForConditionalGeneration,
    records: list[Any],
    metric: str,
    options: dict[str, Any],
) -> tuple[dict[str, Any], str]:
    """Fits the calibration, writes it into the model's folder, and says how far confidence was off before and after."""
    from arr_coc.evaluation.calibration import calibration_text
    from arr_coc.evaluation.strategies import fit_to_records
    from arr_coc.files import read_json, write_json

    result = fit_to_records(model, records, _own_strategy(args, model), metric, **options)
    path = Path(args.model, "config.json")
    write_json(path, {**read_json(path), "calibration": result["weights"]})
    table = calibration_text([([name], result[name]) for name in ("before", "after")], [""])
    weights = ", ".join(f"{name} {weight:.3f}" for name, weight in result["weights"].items())
    return result, f"{table}\nWritten to {path}: {weights}."


def _own_strategy(args: argparse.Namespace, model: ArrCocForConditionalGeneration | AttachedReader) -> str:
    """--strategies, or the strategy that the model answers users with."""
    from arr_coc.attached import AttachedReader

    if args.strategies is not None:
        return str(args.strategies)
    return model.check_strategy(None) if isinstance(model, AttachedReader) else model.config.fetcher_config.strategy


def table(strategies: dict[str, dict[str, Any]], metric: str = "exact_match") -> str:
    """The results as aligned text, with intervals in brackets."""
    from arr_coc.evaluation.calibration import calibration_text
    from arr_coc.evaluation.reporting import to_text
    from arr_coc.metrics import METRICS

    head = ["strategy", METRICS[metric].title, "recall of boxed patches", "tokens", "n"]
    rows = [
        [name, _share(row[metric]), _share(row["recall"]), f"{row['tokens']:g}", str(row["n"])]
        for name, row in strategies.items()
    ]
    if any("not_on_the_page" in row for row in strategies.values()):
        head += ["precision of not on the page", "recall of not on the page"]
        for cells, row in zip(rows, strategies.values(), strict=True):
            cells += [_share(row["not_on_the_page"][name]) for name in ("precision", "recall")]
    if any("pages" in row for row in strategies.values()):
        head += ["right page: best patch", "right page: most patches"]
        for cells, row in zip(rows, strategies.values(), strict=True):
            cells += [_share(row.get("pages", {}).get(name)) for name in ("best", "most")]
    lines = [to_text(head, rows), "In brackets: 95 % intervals."]
    if known := [([name], row["calibration"]) for name, row in strategies.items() if "calibration" in row]:
        lines += ["", calibration_text(known, ["strategy"])]
    return "\n".join(lines)


def _share(interval: dict[str, float] | None) -> str:
    from arr_coc.evaluation.reporting import percent

    return percent(interval).replace(" ", " % ", 1)


def _of_suite(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from arr_coc.evaluation.suite import measure_suite, read_suite, suite_text
    from arr_coc.publishing.building import load_model

    sets = read_suite(Path(args.data), args.split)
    if args.sets is not None:
        wanted = [name.strip() for name in args.sets.split(",")]
        known = {each.name: each for each in sets}
        if unknown := sorted(set(wanted) - set(known)):
            raise ValueError(f"--sets: expected names among {', '.join(known)}; got {', '.join(unknown)}")
        sets = [known[name] for name in wanted]
    announce(f"Loading the model, then asking the questions of {len(sets)} data sets")
    model = load_model(args.model, args.device)
    result = measure_suite(model, sets, limit=args.limit, batch_size=args.batch_size)
    return result, suite_text(result)


def _of_arms(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Arms on one data set, as a suite of one."""
    from arr_coc.evaluation.deciding import read_rules
    from arr_coc.evaluation.reporting import require_extra
    from arr_coc.evaluation.suite import DataSet, measure_suite, suite_text
    from arr_coc.files import read_yaml
    from arr_coc.publishing.building import load_model

    require_extra("scipy.stats", "intervals")
    source = find_source(args.data, args.format, args.fields)
    seeds = split_names(args.seeds or "0,1,2", "--seeds")
    if others := [part for part in seeds if not part.isdecimal()]:
        raise ValueError(f"--seeds: expected whole numbers with commas between them; got {others[0]!r}")
    rules: Any = "default"
    if args.rules is not None:
        rules = read_yaml(Path(args.rules))
        read_rules(rules)  # a ValueError before the model is loaded
    announce("Loading the model, then asking every arm")
    model = load_model(args.model, args.device)
    arms = tuple(split_names(args.arms, "--arms"))
    same = {name: getattr(args, name) for name in ("tiles", "budget", "allocator")}
    same |= {"metric": source.metric if args.metric is None else args.metric, "seeds": tuple(map(int, seeds))}
    data = DataSet("data", source, arms, rules=rules, **same)
    same = {name: getattr(args, name) for name in ("limit", "batch_size", "on_error", "max_errors")}
    result = measure_suite(model, [data], **same)
    return result, suite_text(result)


def _of_bench(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from arr_coc.attached.reader import load_reader
    from arr_coc.attached.runner import share_or_number
    from arr_coc.evaluation.bench import ModelReader, ask_bench, bench_text, read_bench, score_bench
    from arr_coc.evaluation.prediction_loop import answering_hash
    from arr_coc.evaluation.reporting import environment, require_extra, shown
    from arr_coc.publishing.building import load_model

    require_extra("scipy.stats", "intervals")
    bench = read_bench(Path(args.bench), args.sources, limit=args.limit)
    predictions = None if args.predictions is None else writable(args.predictions, "--predictions")
    announce(f"Loading the model, then asking {sum(map(len, bench.values())):,} questions")
    reader = load_reader(args.model, args.device)
    model: Any = load_model(args.model, args.device) if reader is None else reader.model
    views = {
        name: value for name in ("tiles", "readings", "words", "reread") if (value := getattr(args, name)) is not None
    }
    if reader is not None and (own := {name: value for name, value in views.items() if name != "words"}):
        name, value = next(iter(own.items()))
        raise ValueError(f"--{name}: expected none with a {model.config.model_type} model; got {value}")
    named = {"strategy": args.strategy, "budget": args.budget}
    choices: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    if reader is not None and args.budget is not None:
        choices["budget"] = share_or_number(args.budget)
    settings = [f"{name}={value}" for name, value in {**views, **choices}.items()]
    name = ", ".join([shown(model.config._name_or_path if reader is None else args.model), *settings])
    asked, saved_as = ModelReader(reader or model, views, **choices), name
    if predictions is not None:  # folders of other weights may have the same name
        saved_as += f", {answering_hash(model, args.model)[:12]}"
    answers = ask_bench(asked, saved_as, bench, predictions=predictions)
    result = {**score_bench(bench, answers), "model": name, **environment(model.device)}
    return result, bench_text(result)
