"""Which files of the model does a question visit, in the order of the calls?

    python -m benchmarks.path [MODEL] [--calls]

A reader follows the code in the order of the calls, so fewer files and fewer changes of file are easier to read. It
traces `generate(image, question, max_new_tokens=1)`, and a further question about the encoded image.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import arr_coc.modeling
from arr_coc.files import run_module
from arr_coc.model_summary import generated_image
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from .second_question import QUESTIONS
from .timing import argument_parser


@dataclass(frozen=True)
class Trace:
    """Calls into files of modeling/, in order: (file, function)."""

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
    """Runs `call` and records every call of a Python function of modeling/."""
    folder, calls = str(Path(arr_coc.modeling.__file__ or "").parent), []

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and str(path.parent) == folder:
            calls.append((path.name, frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Trace(calls)


def question_traces(model: ArrCocForConditionalGeneration) -> dict[str, Trace]:
    """Traces the first question about an image file, and a further one about its encoding; `model` has a processor."""
    with TemporaryDirectory() as folder:
        image = Path(folder, "page.png")
        generated_image(model.config.vision_config.image_size).save(image)
        return _traces(model, image)


def _traces(model: ArrCocForConditionalGeneration, image: Path) -> dict[str, Trace]:
    model.generate(image, QUESTIONS[0], max_new_tokens=1)  # warm-up: one-time work is not part of the path
    encoding = model.encode_image(image)
    return {
        "first question": trace(lambda: model.generate(image, QUESTIONS[0], max_new_tokens=1)),
        "further question": trace(lambda: model.generate(encoding, QUESTIONS[1], max_new_tokens=1)),
    }


def main() -> None:
    parser = argument_parser(__doc__, "hub_configs/arr-coc-tiny-2")
    parser.add_argument("--calls", action="store_true", help="print every call too")
    arguments = parser.parse_args()
    model = ArrCocForConditionalGeneration.from_pretrained(arguments.model).eval()
    for name, traced in question_traces(model).items():
        print(f"{name}: {len(traced.files)} files of modeling/, {traced.changes} changes of file")
        print("  " + " -> ".join(traced.visits))
        if arguments.calls:
            print("\n".join(f"    {file:28} {function}" for file, function in traced.calls))


if __name__ == "__main__":
    run_module(main)
