"""Which files does a question visit, in the order of the calls?

    python -m benchmarks.path [MODEL] [--calls]

A reader follows the code in the order of the calls, so fewer files and fewer changes of file are easier to read. It
traces `generate(IMAGE, question, max_new_tokens=1)` through `modeling/` and `arr_coc/` up to the first token: about an
image, a PDF, and a further question about the encoded image.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import arr_coc
from arr_coc.files import run_module
from arr_coc.modeling import modeling_arr_coc
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from .second_question import QUESTIONS
from .timing import argument_parser

IMAGES = Path(__file__).parents[1] / "examples" / "images"
SHOWN = {"image": IMAGES / "manual_page.jpg", "PDF": IMAGES / "invoices.pdf"}


@dataclass(frozen=True)
class Trace:
    """Calls into the project's files, in order: (file, function)."""

    calls: list[tuple[str, str]]

    @property
    def visits(self) -> list[str]:
        """The files in the order of the calls, without direct repetitions."""
        return [file for file, _ in groupby(file for file, _ in self.calls)]

    @property
    def files(self) -> list[str]:
        """The distinct files in the order of their first call."""
        return list(dict.fromkeys(self.visits))

    @property
    def changes(self) -> int:
        """The number of calls into another file than the call before."""
        return max(0, len(self.visits) - 1)


def trace(call: Callable[[], object]) -> Trace:
    """Runs `call` and records every call of a Python function of modeling/ and arr_coc/, up to the first token."""
    folders = tuple(str(Path(module.__file__ or "").parent) for module in (modeling_arr_coc, arr_coc))
    calls: list[tuple[str, str]] = []

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        if not frame.f_code.co_filename.startswith(folders):
            return
        if event == "call":
            calls.append((Path(frame.f_code.co_filename).name, frame.f_code.co_qualname))
        elif event == "return" and frame.f_code.co_name == ArrCocForConditionalGeneration.generate_tokens.__name__:
            sys.setprofile(None)

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Trace(calls)


def question_traces(model: ArrCocForConditionalGeneration) -> dict[str, Trace]:
    """Traces the first question about an image and about a PDF, and a further one about the encoded image."""
    traces = {}
    for name, path in SHOWN.items():
        ask = partial(model.generate, path, QUESTIONS[0], max_new_tokens=1)
        ask()  # warm-up: one-time work is not part of the path
        traces[name] = trace(ask)
    encoding = model.encode_image(SHOWN["image"])
    further = trace(lambda: model.generate(encoding, QUESTIONS[1], max_new_tokens=1))
    return {**traces, "further question": further}


def main() -> None:
    parser = argument_parser(__doc__, "hub_configs/arr-coc-135m")
    parser.add_argument("--calls", action="store_true", help="print every call too")
    arguments = parser.parse_args()
    model = arr_coc.load_model(arguments.model)
    for name, traced in question_traces(model).items():
        print(f"{name}: {len(traced.files)} files, {traced.changes} changes of file")
        print("  " + " -> ".join(traced.visits))
        if arguments.calls:
            print("\n".join(f"    {file:28} {function}" for file, function in traced.calls))


if __name__ == "__main__":
    run_module(main)
