"""Where a floor begins to forget: how many characters of a base token's cell are still told apart, and by whom.

python examples/experiments/lab-density/cells.py runs/lab/floor-0/model runs/lab/floor-1/model --size 256

Asked about validation pages, by how many characters the cell holds that shows a character:
named     the character at its place, by the words of its bridge, or a linear head trained beside one without words
spelt     the language model, reading base tokens alone, spells it next, the answer before it given
perfect   the same from the perfect tokens that the base tokens were taught to be
Shares of characters, with 95 % intervals over pages; `named` is of all characters of the pages, the others of those of
the answers.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from arr_coc.data.mixture import Mixture
from arr_coc.evaluation.statistics import score_interval
from arr_coc.loading import load_model
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.training.checkpoints import load_learner
from arr_coc.training.from_scratch.answering import AnsweringStage
from arr_coc.training.from_scratch.learner import Learner
from arr_coc.training.from_scratch.patch_language import cell_of, in_cells
from arr_coc.training.from_scratch.questions import Batch, Prompts, QuestionPages
from arr_coc.training.from_scratch.shared_prefix import read_prompts
from arr_coc.training.from_scratch.visual_pretraining import name_cells

Told = tuple[str, int, int, bool]
"""Who tells it, characters in the cell, number of the page, and whether it is right: of one character."""

WIDEST = 6
"""Cells of so many characters and more are counted together."""


class Asked:
    """Validation pages, as a trained floor sees them.

    Args:
        folder: of its model, with what only training used.
        size: side of the square that pages are fitted into, px; None: the model's.
        pages: how many.
    """

    def __init__(self, folder: Path, size: int | None, pages: int) -> None:
        self.model: ArrCocForConditionalGeneration = load_model(str(folder), "cpu")
        tokenizer = self.model.processor.tokenizer
        self.learner = Learner(self.model, tokenizer).eval()
        for part, state in load_learner(folder).items():
            self.learner.get_submodule(part).load_state_dict(state)
        stage = AnsweringStage(pages=pages, questions=3, kinds={"density": 1.0}, image_size=size)
        prompts = Prompts(tokenizer, self.model.config.image_token_id)
        drawn = QuestionPages(
            stage, self.model.config, prompts, split="validation", transcript_budget=0, mixture=Mixture(stage.kinds),
            held_out=True,
        )  # fmt: skip
        self.batch = drawn.batch(0)

    @torch.no_grad()
    def told(self) -> Iterator[Told]:
        """Every character that is told, by each of those who tell it."""
        learner, core = self.learner, self.model.model
        features = learner.features(self.batch, frozen=True)
        batch, _ = learner.read(features, self.batch)
        encoding = core.encode_features(features, batch.pixel_values)
        real = encoding.tokens
        perfect = learner.language.cells(batch.glyphs, batch.words, self.model.get_input_embeddings())
        held = (in_cells(batch.glyphs) > 0).sum((2, 3))  # [P, M] characters of each cell
        yield from self._named(batch, encoding, held)
        for teller, tokens in (("spelt", real), ("perfect", perfect)):
            yield from self._spelt(batch, tokens, held, teller)

    def _named(self, batch: Batch, encoding: ImageEncoding, held: Tensor) -> Iterator[Told]:
        shown = in_cells(batch.glyphs)  # [P, M, places, SLOTS]
        named = name_cells(self.learner.visual_pretraining, self.model.model, encoding)[0]
        right = in_cells(named.argmax(-1)) == shown
        for page, cell, place, slot in shown.nonzero().tolist():
            yield "named", int(held[page, cell]), page, bool(right[page, cell, place, slot])

    def _spelt(self, batch: Batch, tokens: Tensor, held: Tensor, teller: str) -> Iterator[Told]:
        states = read_prompts(self.model, batch.before, tokens, batch.after, layer=None).states
        right = self.model.lm_head(states).argmax(-1) == batch.after[:, 1:]
        cells = cell_of(batch.places[:, 1:], batch.glyphs.shape[1])
        questions = len(batch.after) // len(tokens)
        for slot, step in (batch.answer[:, 1:] & (cells >= 0)).nonzero().tolist():
            page = slot // questions
            yield teller, int(held[page, cells[slot, step]]), page, bool(right[slot, step])


def table(told: Sequence[Told]) -> str:
    """Shares of characters that are told right, by how many their cell holds."""
    by_cell: defaultdict[tuple[str, int], list[tuple[int, bool]]] = defaultdict(list)
    for teller, held, page, right in told:
        by_cell[teller, min(held, WIDEST)].append((page, right))
    tellers = ("named", "spelt", "perfect")
    lines = ["| characters in the cell | " + " | ".join(tellers) + " | of the answers |", "|---|" + "---|" * 4]
    for held in range(1, WIDEST + 1):
        shares = [_share(by_cell[teller, held]) for teller in tellers]
        label = f"{held} and more" if held == WIDEST else str(held)
        lines.append(f"| {label} | {' | '.join(shares)} | {len(by_cell['spelt', held])} |")
    return "\n".join(lines)


def _share(told: Sequence[tuple[int, bool]]) -> str:
    if not told:
        return "-"
    pages, right = zip(*told, strict=True)
    interval = score_interval([float(each) for each in right], pages)
    return f"{interval.value:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def main() -> int:
    """Prints the table of the trainings that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="MODEL", nargs="+", type=Path, help="trainings of one arm")
    parser.add_argument("--size", type=int, help="side at which the arm sees a page, px (default: the model's)")
    parser.add_argument("--pages", type=int, default=60, help="validation pages, the same for each (default: 60)")
    options = parser.parse_args()
    print(table([told for folder in options.folders for told in Asked(folder, options.size, options.pages).told()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
