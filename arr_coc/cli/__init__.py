"""The command line: `arr-coc COMMAND ...`. Related commands share a module; `COMMANDS` lists all.

A command's `run` imports its modules, so that `--version`, `--help` and what `check` refuses do not wait for torch.

Exit codes: 0 done, 1 a bug (with a traceback), 2 a user's mistake (one line on standard error), 130 interrupted.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import NoReturn

from . import ask, evaluate, explain, extract, learn, publish, serve, train
from .common import Command, quiet

COMMANDS: tuple[Command, ...] = (
    ask.ask_command,
    extract.extract_command,
    explain.look_command,
    serve.demo_command,
    evaluate.evaluate_command,
    replace(evaluate.evaluate_command, name="measure", summary="another name of evaluate"),
    explain.info_command,
    publish.assemble_command,
    publish.build_command,
    publish.push_command,
    train.render_command,
    train.train_command,
    serve.serve_command,
    learn.replay_command,
    learn.learn_command,
    publish.export_language_model_command,
    learn.reference_command,
)

SETTING = re.compile(r"[^-=][^=]*=.*", re.DOTALL)  # NAME=VALUE, for commands with settings
DESCRIPTION = "Ask a vision-language model that fetches the image patches that a question needs (running back)."


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"arr-coc: error: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    listed = "\n".join(f"  {command.examples[0]}" for command in COMMANDS)
    top = Parser(
        prog="arr-coc",
        description=DESCRIPTION,
        epilog=f"examples:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"arr-coc {version('arr-coc')}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog="\n".join(("examples:", *(f"  {example}" for example in command.examples))),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(sub)
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        sub.set_defaults(check=command.check, run=command.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    with suppress(AttributeError):  # an answer is printed whatever the terminal's encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # no text stream, perhaps
    try:
        args, rest = parser().parse_known_args(argv)
        # argparse takes no positional arguments behind an option among them.
        if rest and (not hasattr(args, "settings") or not all(SETTING.fullmatch(part) for part in rest)):
            parser().error(f"unrecognized arguments: {' '.join(rest)}")
        if rest:
            args.settings += rest
    except SystemExit as stop:  # argparse has printed its message
        return int(stop.code or 0)
    try:
        args.check(args)
        with quiet():
            args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has closed it; nothing may be written at exit either
        with suppress(OSError):  # standard output is not a file
            output = sys.stdout.fileno()
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        return 1
    except Exception as error:
        from ..files import fault_of_input

        message = fault_of_input(error)
        if message is None or args.debug:
            raise
        shown = message.encode(errors="backslashreplace").decode()  # half a surrogate cannot be written
        print(f"arr-coc: error: {shown}", file=sys.stderr)
        return 2
    return 0
