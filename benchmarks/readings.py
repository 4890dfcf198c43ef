"""What do further readings of a page cost? The first question and the next one, with one, two and three readings; and
the first question where no words are read again.

    python -m benchmarks.readings MODEL [--image examples/images/receipt.png] [--rounds 3]

Every reading is asked, as if no answer were sure. Calls alternate in one process; seconds are those of whole answers.
"""

from functools import partial
from pathlib import Path
from typing import Any

from arr_coc.files import run_module
from arr_coc.loading import load_model
from arr_coc.modeling import generation
from arr_coc.modeling.answers import surest
from arr_coc.modeling.rereading import READINGS

from .second_question import QUESTIONS
from .timing import Seconds, alternate, argument_parser, table


def reading_costs(model: Any, image: Path, rounds: int) -> dict[str, Seconds]:
    """Seconds of the first and the next question about a page, by number of readings."""
    pages = {count: model.encode_image(image, readings=count) for count in range(1, READINGS + 1)}
    calls: dict[str, Any] = {
        f"first, {count} reading(s)": partial(model.generate, image, QUESTIONS[0], readings=count) for count in pages
    }
    calls["first, unsure words again"] = partial(model.generate, image, QUESTIONS[0], reread=True)
    calls |= {f"next, {count} reading(s)": partial(model.generate, pages[count], QUESTIONS[1]) for count in pages}
    kept = generation.surest
    generation.surest = partial(surest, least=2.0)  # no probability is as high
    try:
        return alternate(calls, rounds)
    finally:
        generation.surest = kept


def main() -> None:
    """Measures from the command line."""
    parser = argument_parser(__doc__, None, rounds=3)
    parser.add_argument("--image", type=Path, default=Path("examples/images/receipt.png"), help="of the page")
    args = parser.parse_args()
    print(table(reading_costs(load_model(args.model), args.image, args.rounds), "first, 1 reading(s)"))


if __name__ == "__main__":
    run_module(main)
