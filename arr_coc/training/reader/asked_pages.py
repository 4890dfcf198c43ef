"""Whole pages with questions, as the model sees them.

Notation: Q questions, S side of the square, px, G side of the grid, N patches, L tokens of a question, C channels of
the features, M base tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from arr_coc.data.domains.page import Line, Question, TextPage
from arr_coc.modeling.image_processing_arr_coc import Box, boxes_to_patches, fit_square, map_boxes, patches_of_placement
from arr_coc.modeling.modeling_arr_coc import relevance_loss
from arr_coc.modeling.scorers import FetchContext

from ..from_scratch.streaming import Batches
from ..from_scratch.targets import pixels
from ..stages import Run
from .pages import Sources, square
from .prompting import Prompting
from .sketch import base_mixture, sketch
from .targets import Print, printed
from .vocabulary import Wordpieces


@dataclass(frozen=True)
class AskedPage:
    """One page and Q questions about it.

    Attributes:
        pixels: [1, 3, S, S].
        patch_mask: bool [N], True on patches that hold some of the page.
        text: on the page.
        cells: [n] the base token's cell of each wordpiece; `held` [n] its id, `weights` [n] its share of the cell.
        questions: Q of them.
        ids: [Q, L] tokens of the questions; `mask` [Q, L] where there are any.
        relevance: [Q, N], 1 on the patches of the answer and of what leads to it; -1 where nobody knows.
        answer: bool [Q, N], those of the answer alone.
    """

    pixels: Tensor
    patch_mask: Tensor
    text: Print
    cells: Tensor
    held: Tensor
    weights: Tensor
    questions: tuple[Question, ...]
    ids: Tensor
    mask: Tensor
    relevance: Tensor
    answer: Tensor

    def context(self, features: Tensor, embed: nn.Module) -> FetchContext:
        """What a scorer sees of the questions, given features [1, C, G, G] and the language model's embeddings."""
        device, count = features.device, len(self.questions)
        return FetchContext(
            features=features.expand(count, -1, -1, -1),
            textures=features[:, :0].expand(count, -1, -1, -1),
            patch_mask=self.patch_mask.to(device).expand(count, -1),
            query=embed(self.ids.to(device)).float(),
            query_mask=self.mask.to(device),
            seeds=torch.zeros(count, dtype=torch.long, device=device),
        )

    def relevance_loss(self, scores: Tensor, positive_weight: float) -> Tensor:
        """Of scores [scorers, Q, N], over the questions whose answer stands on the page."""
        mask = self.patch_mask.to(scores.device).expand(len(self.questions), -1)
        return relevance_loss(scores, self.relevance.to(scores.device), mask, positive_weight)

    def recall(self, scores: Tensor, budget: int) -> dict[str, Tensor]:
        """Recall of the answer's patches and of all relevant ones among the `budget` best, of questions that have some.

        Args:
            scores: [Q, N].
            budget: patches that are fetched.
        """
        ranked = scores.masked_fill(~self.patch_mask.to(scores.device), -torch.inf)
        fetched = torch.zeros_like(ranked).scatter_(1, ranked.topk(budget).indices, 1.0)
        recalls = {}
        for what, asked in (("answer", self.answer), ("relevant", self.relevance > 0)):
            wanted = asked.to(fetched)
            found = (fetched * wanted).sum(1) / wanted.sum(1).clamp(min=1)
            recalls[what] = found[wanted.any(1)]
        return recalls


class AskedPages(Batches[AskedPage]):
    """Endless pages with questions, a function of (seed, step).

    Args:
        sources: of pages.
        seed: of everything that is drawn.
        run: whose model and tokenizer read them.
        questions: most questions about a page.
        located: only questions whose answer stands on the page.
        start: the first step.
    """

    def __init__(
        self, sources: Sources, seed: tuple[int, ...], run: Run, questions: int, *, located: bool = True, start: int = 0
    ) -> None:
        self.sources, self.seed, self.questions, self.located, self.start = sources, seed, questions, located, start
        self.tokenizer, config = run.processor.tokenizer, run.model.config.vision_config
        self.side, self.patch, self.grid = config.image_size, config.patch_size, config.grid_size
        self.prompting, self.cut = Prompting(self.tokenizer), Wordpieces(self.tokenizer)

    def batch(self, step: int) -> AskedPage:
        return self.page(np.random.default_rng((*self.seed, step)))

    def page(self, rng: np.random.Generator) -> AskedPage:
        """The next page that has questions."""
        while True:
            page = self.sources.page(rng)
            known = [each for each in page.questions if self.prompting.short(each) and (each.boxes or not self.located)]
            if known:
                break
        asked = tuple(known[int(n)] for n in rng.permutation(len(known))[: self.questions])
        return self._asked(page, asked)

    def _asked(self, page: TextPage, asked: tuple[Question, ...]) -> AskedPage:
        assert page.image is not None
        wide, tall = page.size
        placed = fit_square(tall, wide, self.side)
        answer = np.stack([self._patches(question.boxes, tall, wide) for question in asked])
        leads = np.stack([self._patches(question.label_boxes, tall, wide) for question in asked])
        relevance = np.where(answer.any(1, keepdims=True), answer | leads, -1.0).astype(np.float32)
        tokens = self.tokenizer(
            [question.text for question in asked], add_special_tokens=False, padding=True, return_tensors="pt"
        )
        scale = np.array([placed.size[1] / wide, placed.size[0] / tall] * 2, np.float32)
        shift = np.array([placed.offset[1], placed.offset[0]] * 2, np.float32)
        lines = [Line(line.text, line.boxes * scale + shift) for line in page.lines]
        whole = sketch(page, [], self.grid, self.cut)
        cells, weights = base_mixture(whole)
        return AskedPage(
            torch.from_numpy(pixels(square(page.image, self.side)))[None],
            torch.from_numpy(patches_of_placement(placed, self.grid, self.patch).ravel()),
            printed([lines], self.side, self.patch, self.cut),
            torch.from_numpy(cells), torch.from_numpy(whole.pieces), torch.from_numpy(weights).float(),
            asked, tokens["input_ids"], tokens["attention_mask"].bool(),
            torch.from_numpy(relevance), torch.from_numpy(answer),
        )  # fmt: skip

    def _patches(self, boxes: Sequence[Box], tall: int, wide: int) -> np.ndarray:
        """bool [N], True on patches that boxes on a page of that size touch."""
        return boxes_to_patches(map_boxes(boxes, tall, wide, self.side), self.grid, self.patch).ravel()
