"""`arr-coc replay`: asks a server's log of examples again."""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

from .common import Command, add_device_argument, add_model_argument, writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="folder that arr-coc serve --examples wrote")
    add_model_argument(parser)
    parser.add_argument("--versions", metavar="DIR", help="folder of the scorer's versions, if the server had one")
    parser.add_argument("--json", metavar="FILE", help="file for every outcome, without images (default: none)")
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    target = None if args.json is None else writable(args.json, "--json")
    from arr_coc.files import write_json
    from arr_coc.journal import journal_files
    from arr_coc.learning.versions import Versions
    from arr_coc.loading import load_model
    from arr_coc.serving.example import JOURNAL
    from arr_coc.serving.replay import SAME, Replay

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
    if target is not None:
        write_json(target, rows)
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))


COMMAND = Command(
    name="replay",
    summary="ask a server's log of examples again, and print which answers differ",
    description=(
        "Ask every example of a log that `arr-coc serve --examples` wrote, and print those whose answer or patches\n"
        "differ from the log. Redacted examples and those with sampled tokens are not asked."
    ),
    examples=("arr-coc replay log --json outcomes.json", "arr-coc replay log --model ./my-model --versions scorers"),
    add_arguments=add_arguments,
    run=run,
)
