"""`arr-coc learn`, `replay` and `reference`: from feedback and logs of a server to a better scorer."""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

from .common import DATA, add_options, command, find_source, read_source, training_log


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("log", metavar="LOG", nargs="?", help="folder that arr-coc serve --feedback wrote")
    add_options(parser, "model")
    add("--versions", metavar="DIR", required=True, help="folder of the versions of the scorer")
    original = "YAML file (format, path, ...) of questions on which the scorer's relevance is kept by distillation"
    add("--original", metavar="DATA.yaml", help=original)
    add("--rest", metavar="DATA.yaml", help="regression set: YAML file, as --original")
    add("--back", action="store_true", help="go back to the previous version, and exit")
    add("--steps", metavar="N", type=int, help="training steps (default: 400)")
    add("--rank", metavar="R", type=int, help="rank of the LoRA adapter (default: 8)")
    margin = "points that the regression set may lose; the interval must exclude a larger loss (default: 1)"
    add("--margin", metavar="POINTS", type=float, help=margin)
    add_options(parser, "device")


@command("learn", "train the scorer on feedback, and promote it if it is better", add_arguments)
def learn_command(args: argparse.Namespace) -> None:
    """Train an adapter of the scorer on feedback (two images in three). Every second question is an original one,
    on which the scorer's relevance is kept. Then compare the adapter with the scorer in use, on the other
    feedback and on a regression set. It is promoted if it is better on the feedback and loses no more than the
    margin on the regression set. Servers with --versions DIR load it at once. A killed run resumes.

    Examples:
        arr-coc learn said --original original.yaml --rest rest.yaml --versions scorers
        arr-coc learn --versions scorers --back
    """
    from arr_coc.learning.versions import Versions

    versions = Versions(Path(args.versions).expanduser())
    if args.back:
        print(f"in use: {versions.step_back()}")
        return
    missing = [name for name in ("log", "original", "rest") if getattr(args, name) is None]
    if missing:
        raise ValueError(f"learn: expected LOG, --original and --rest (or --back); got no {', '.join(missing)}")
    from arr_coc.learning.learn import Lesson, learn
    from arr_coc.loading import find_device
    from arr_coc.publishing.building import whole_model

    margin = None if args.margin is None else args.margin / 100
    given = {"steps": args.steps, "rank": args.rank, "margin": margin}
    lesson = Lesson(
        feedback=Path(args.log).expanduser(),
        original=read_source(Path(args.original).expanduser()),
        rest=read_source(Path(args.rest).expanduser()),
        model=whole_model(args.model),
        **{name: value for name, value in given.items() if value is not None},
    )
    with training_log():
        decision = learn(lesson, versions, find_device(args.device))
    print("\n".join(decision.lines()))
    print(f"in use: {versions.current().version}")


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="folder that arr-coc serve --examples wrote")
    add_options(parser, "model")
    parser.add_argument("--versions", metavar="DIR", help="folder of the scorer's versions, if the server had one")
    parser.add_argument("--json", metavar="FILE", help="file for every outcome, without images (default: none)")
    add_options(parser, "device")


@command("replay", "ask a server's log of examples again, and print which answers differ", add_replay_arguments)
def replay_command(args: argparse.Namespace) -> None:
    """Ask every example of a log that `arr-coc serve --examples` wrote, and print those whose answer or patches
    differ from the log. Redacted examples and those with sampled tokens are not asked.

    Examples:
        arr-coc replay log --json outcomes.json
        arr-coc replay log --model ./my-model --versions scorers
    """
    from arr_coc.files import write_json
    from arr_coc.journal import journal_files
    from arr_coc.learning.versions import Versions
    from arr_coc.publishing.building import load_model
    from arr_coc.serving.examples import JOURNAL, SAME, Replay

    log = Path(args.log).expanduser()
    if not journal_files(log, JOURNAL):
        raise ValueError(f"{log}: expected a log of examples; got none")
    versions = None if args.versions is None else Versions(Path(args.versions).expanduser())
    replay = Replay(load_model(args.model, args.device), versions)
    outcomes, rows = Counter[str](), []
    for replayed in replay.run(log):
        example = replayed.example
        outcomes[replayed.outcome] += 1
        if replayed.outcome != SAME:
            note = f" ({replayed.note})" if replayed.note else ""
            answers = f"{example.answer!r} then, {replayed.answer!r} now"
            print(f"{example.id} {example.time}: {replayed.outcome}{note}: {answers}")
        asked = replace(example, images=()).content()
        rows.append({**asked, "outcome": replayed.outcome, "now": replayed.answer, "note": replayed.note})
    if args.json is not None:
        write_json(Path(args.json).expanduser(), rows)
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))


def add_reference_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="folder of the model; the file is written into it")
    parser.add_argument("data", metavar="DATA", nargs="?", help="typical questions, as for arr-coc evaluate")
    add_options(parser, *DATA)
    first = "ask only the first N questions (default: 500)"
    parser.add_argument("--limit", metavar="N", type=int, default=500, help=first)
    add_options(parser, "device")


@command(
    "reference",
    "save what a model fetches on typical questions, to monitor drift in arr-coc serve",
    add_reference_arguments,
)
def reference_command(args: argparse.Namespace) -> None:
    """Ask typical questions without generating answers, and save the distributions of relevance and of the
    bridge's tokens beside the weights. arr-coc serve compares its traffic with them: metric arr_coc_drift.

    Examples:
        arr-coc reference hub_configs/arr-coc-tiny-2 examples/held_out/data.jsonl
        arr-coc reference MODEL --format rendered --with pages=100 --limit 1000
    """
    from arr_coc.evaluation.fetch_reference import REFERENCE, measure_reference
    from arr_coc.publishing.building import load_model

    folder = Path(args.model).expanduser()
    if not folder.is_dir():
        raise ValueError(f"model: expected a folder, to write {REFERENCE} into; got {args.model!r}")
    source = find_source(args.data, args.format, args.fields)
    records = list(source.read(limit=args.limit, on_error=args.on_error, max_errors=args.max_errors))
    reference = measure_reference(load_model(args.model, args.device), records)
    reference.save(folder / REFERENCE)
    for name, own in reference.statistics.items():
        print(f"{name:18} {own.mean:8.4f}")
    print(f"{folder / REFERENCE}: {reference.questions} images of questions, strategy {reference.strategy}")
