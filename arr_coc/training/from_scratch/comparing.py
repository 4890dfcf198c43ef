"""Stage: the language model learns to compare amounts on two pages, from sketched pages and oracle tokens.

Comparing two amounts takes many examples to learn, and none of them needs an image. Pages are sketched; the language
model reads a few patches of each, now and then behind its base tokens. This stage makes the language model forget how
real pages are read, so the multi-view stage follows it.

Notation: P pages, two of each pair; I questions, N = G*G patches of a page, M base tokens, K patches fetched of both
pages together, numbered on over them; D width of the language model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.data.domains.document import Document, ask_about, draw_contents
from arr_coc.data.domains.page import Question
from arr_coc.data.glyphs import box_targets
from arr_coc.data.mixture import sketch_document
from arr_coc.modeling.allocators import best
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from ..stages import STAGES, Run
from .patch_language import PatchLanguage
from .questions import Prompts, Spelling, padded, places_of, spelling
from .shared_prefix import POINTER_WEIGHT, POINTING_LAYER, check_layer, pointer_loss, pointing, right_rows, shown_by
from .stage import Batches, ScratchStage, Task, uniform_like
from .targets import SLOTS, Shown, shown, word_targets

EVALUATED_BATCHES = 4
"""Batches of held-out pairs in a measurement."""


@STAGES.register("comparing")
@dataclass(frozen=True)
class ComparingStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        pairs: of pages, per step.
        budget: patches that are read of both pages together; both rows of a comparison take up to about a hundred.
        based: share of the steps with base tokens before each page's patches.
        pointing_layer: see the copying stage.
    """

    name: ClassVar[str] = "comparing"
    leaves_whole: ClassVar[bool] = False

    steps: int = 1500
    learning_rate: float = 5e-4
    pairs: int = 12
    budget: int = 112
    based: float = 0.2
    pointing_layer: int = POINTING_LAYER

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("pairs", "budget")
        self.check_shares("based")

    def task(self, run: Run) -> "ComparingTask":
        return ComparingTask(self, run)


@dataclass
class Pairs:
    """Questions about pairs of pages, the pages of a pair one after the other.

    Attributes:
        shown: the characters on the P pages.
        words: [P, G, G], see the reading stage.
        pair: [I] the pair of each question, from 0.
        before, between, after: [I, *] token ids around the two pages, the last padded on the right.
        answer: [I, *] True on the predicted tokens of `after`.
        spelt: [I, *] for each token of `after` the number of its character in `shown`, -1: it is on no page.
        needed: [I, 2N] patches of the answers and their labels.
        kinds: of each question.
    """

    shown: Shown
    words: Tensor
    pair: Tensor
    before: Tensor
    between: Tensor
    after: Tensor
    answer: Tensor
    spelt: Tensor
    needed: Tensor
    kinds: list[str]

    def to(self, device: torch.device) -> "Pairs":
        """The same with every tensor on `device`."""
        parts = [(part.name, getattr(self, part.name)) for part in fields(self)]
        moved: dict[str, Any] = {name: part if isinstance(part, list) else part.to(device) for name, part in parts}
        return Pairs(**moved)


class SketchedPairs(Batches[Pairs]):
    """Endless batches; a function of (seed, step).

    Args:
        stage: its settings.
        config: of the model.
        prompts: the tokeniser of prompts.
        start: the first step.
        held_out: pages that training never shows.
    """

    def __init__(
        self, stage: ComparingStage, config: ArrCocConfig, prompts: Prompts, *, start: int = 0, held_out: bool = False
    ) -> None:
        self.stage, self.prompts, self.start = stage, prompts, start
        self.size, self.grid = config.vision_config.image_size, config.vision_config.grid_size
        self.purpose = 13 if held_out else 12

    def batch(self, step: int) -> Pairs:
        """The batch of one step."""
        rng = np.random.default_rng((self.stage.seed, self.purpose, step))
        glyphs, words, texts, needed, kinds, owners = [], [], [], [], [], []
        first = 0  # number of the page's first character among those of all
        for pair in range(self.stage.pairs):
            documents, questions = self._drawn(rng)
            starts = [first]
            for document in documents:
                glyphs.append(document.glyphs)
                words.append(word_targets(document.entries, size=self.size, grid=self.grid))
                starts.append(starts[-1] + len(document.glyphs))
            first = starts.pop()
            for question in questions:
                answer = _spelt(question, documents, starts)
                texts.append(self.prompts(question.text, answer, images=len(documents)))
                needed.append([self._patches(question, page) for page in range(len(documents))])
                kinds.append(question.kind)
                owners.append(pair)
        rows = padded(texts, self.prompts.pad)
        return Pairs(
            shown(glyphs, self.size / self.grid), torch.from_numpy(np.stack(words)), torch.tensor(owners),
            rows["before"], torch.tensor([text.between for text in texts]), rows["after"], rows["answer"],
            rows["spelt"], torch.from_numpy(np.stack(needed)).flatten(1), kinds,
        )  # fmt: skip

    def _drawn(self, rng: np.random.Generator) -> tuple[list[Document], list[Question]]:
        """Two pages with all fields for comparisons, and questions about them."""
        compared, contents = draw_contents(rng, "train", 2)
        documents = []
        for pairs in contents:
            entries, glyphs = sketch_document(rng, size=self.size, pairs=pairs)
            documents.append(Document(Image.new("RGB", (1, 1)), entries, glyphs, "sketch", ""))
        on_both = [f for f in compared if all(f in {entry.field for entry in page.entries} for page in documents)]
        return (documents, ask_about(rng, documents, on_both, "train")) if on_both else self._drawn(rng)

    def _patches(self, question: Question, page: int) -> np.ndarray:
        """[N] 1 on a page's patches of the answers and their labels."""
        boxes = zip(
            (*question.boxes, *question.label_boxes), (*question.box_sources, *question.label_sources), strict=True
        )
        own = [box for box, source in boxes if source == page]
        return box_targets(own, size=self.size, grid=self.grid).reshape(-1)


def _spelt(question: Question, documents: Sequence[Document], starts: Sequence[int]) -> Spelling:
    """The texts, with the characters that show them: those of thinking are on the pages, those of the answer are not.

    `starts`: the number of each page's first character.
    """
    read = [
        spelling(entry.value, entry.value_box, documents[page].glyphs, starts[page])
        for box, page in zip(question.boxes, question.box_sources, strict=True)
        for entry in documents[page].entries
        if entry.value_box == box
    ]
    spelt: Spelling = []
    rest = question.written
    for own in read:
        text = "".join(char for char, _ in own)
        before, _, rest = rest.partition(text)
        spelt += [*((char, -1) for char in before), *own]
    return [*spelt, *((char, -1) for char in rest)]


class Comparing(nn.Module):
    """The language model reading oracle tokens of two pages."""

    def __init__(
        self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, layer: int = POINTING_LAYER
    ) -> None:
        super().__init__()
        check_layer(layer, model.config.text_config)
        self.model, self.layer, self.side = model, layer, model.config.vision_config.grid_size
        self.language = PatchLanguage(model, tokenizer)

    def forward(
        self, batch: Pairs, budget: int, generator: torch.Generator, *, based: bool, blurred: bool = False
    ) -> dict[str, Tensor]:
        """The losses of the answers and of pointing heads; and the teacher-forced scores.

        Args:
            batch: questions about pairs of pages.
            budget: patches per question, of both pages.
            generator: of what is fetched beside the patches that are needed.
            based: whether each page's base tokens are before its patches.
            blurred: whether lines of the pages are shifted a little.

        Returns:
            "answer", "pointer": losses; "right" [I]: rows predicted right; "shown": share of what is needed
            that is read, below 1 where the budget does not hold it.
        """
        embed, patches = self.model.get_input_embeddings(), self.side**2
        put = batch.shown.put_anywhere(self.side, generator) if blurred else batch.shown.nearby(self.side)[:, 0]
        indices = best(batch.needed + 0.5 * uniform_like(batch.needed, generator), budget)
        tokens, page = self._tokens(batch, put, indices, based)
        # Texts, base tokens and patches, sorted within each group, are put into the prompt's order.
        texts = (batch.before, batch.between, batch.after)
        places = [torch.full_like(ids, place) for ids, place in zip(texts, (0, 4, 8), strict=True)]
        order = torch.cat((*places, page), 1).argsort(dim=1, stable=True)
        embeds = torch.cat((*(embed(ids) for ids in texts), tokens), 1)
        embeds = embeds.gather(1, order[..., None].expand(-1, -1, embeds.shape[-1]))
        output = self.model.model(inputs_embeds=embeds, use_cache=False, output_attentions=True)
        steps = slice(-batch.after.shape[1] - 1, -1)  # the position before each token of `after`, which predicts it
        logits = self.model.lm_head(output.last_hidden_state[:, steps][batch.answer])
        targets = batch.after[batch.answer]
        attention = pointing(output.attentions, self.layer, steps=steps, tokens=slice(None))
        columns = order.argsort(dim=1)[:, -budget:]  # the position of each patch in the prompt
        attention = attention.gather(2, columns[:, None].expand(-1, attention.shape[1], -1))
        own = places_of(batch.spelt, put % (2 * patches))
        return {
            "answer": F.cross_entropy(logits.float(), targets),
            "pointer": pointer_loss(attention, shown_by(own, indices, side=self.side, base=0)),
            "right": right_rows(logits, targets, batch.answer),
            "shown": batch.needed.gather(1, indices).sum() / batch.needed.sum(),
        }

    def _tokens(self, batch: Pairs, put: Tensor, indices: Tensor, based: bool) -> tuple[Tensor, Tensor]:
        """Oracle tokens [I, (2M) + K, D], and the place in the prompt of each one's group [I, (2M) + K].

        Args:
            batch: questions about pairs of pages.
            put: [n] the patch of each character, numbered on over all pages.
            indices: [I, K] patches fetched.
            based: whether base tokens are read.
        """
        embed, patches = self.model.get_input_embeddings(), self.side**2
        glyphs = batch.shown.targets(len(batch.words), self.side, put)
        at = glyphs.view(-1, 2 * patches, SLOTS)[batch.pair].gather(1, indices[..., None].expand(-1, -1, SLOTS))
        words = batch.words.view(-1, 2 * patches)[batch.pair].gather(1, indices)
        tokens = self.language(at, words, indices % patches, self.side, embed)
        page = torch.where(indices < patches, 2, 6)
        if not based:
            return tokens, page
        cells = self.language.cells(glyphs, batch.words, embed)
        cells = cells.view(len(cells) // 2, -1, cells.shape[-1])[batch.pair]
        of_cells = torch.tensor([1, 5], device=page.device).repeat_interleave(cells.shape[1] // 2)
        return torch.cat((cells, tokens), 1), torch.cat((of_cells.expand(len(page), -1), page), 1)


class ComparingTask(Task):
    """The run's language model, in place; the language of oracle tokens is frozen, as bridges have learned it.

    Raises:
        ValueError: no copying stage trained the language model; a budget above the patches of two pages.
    """

    def __init__(self, stage: ComparingStage, run: Run) -> None:
        self.stage, self.config = stage, run.model.config
        patches = 2 * self.config.vision_config.grid_size**2
        if stage.budget > patches:
            raise ValueError(f"budget: expected at most the {patches} patches of two pages; got {stage.budget}")
        if "language" not in run.learner:
            raise ValueError("comparing: expected weights that a copying stage trained; got none of a patch language")
        self.comparing = Comparing(run.model, run.processor.tokenizer, stage.pointing_layer).to(run.device).train()
        self.comparing.language.load_state_dict(run.learner["language"])
        self.comparing.language.requires_grad_(False)
        self.module = nn.ModuleDict({"language_model": run.model.model.language_model})
        self.prompts = Prompts(run.processor.tokenizer, self.config.image_token_id)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.module.parameters()), self.stage.learning_rate)]

    def pages(self, start: int) -> SketchedPairs:
        return SketchedPairs(self.stage, self.config, self.prompts, start=start)

    def losses(self, step: int, batch: Pairs) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.stage.seed * 1_000_003 + step)
        based = bool(torch.rand((), generator=generator) < self.stage.based)
        batch = batch.to(self.comparing.model.device)
        losses = self.comparing(batch, self.stage.budget, generator, based=based, blurred=True)
        loss = losses["answer"] + POINTER_WEIGHT * losses["pointer"]
        return {"loss": loss, **{name: losses[name].detach() for name in ("answer", "pointer", "shown")}}

    @cached_property
    def _unseen(self) -> list[Pairs]:
        unseen = SketchedPairs(self.stage, self.config, self.prompts, held_out=True)
        return [unseen.batch(number).to(self.comparing.model.device) for number in range(EVALUATED_BATCHES)]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Exact answers by kind of question, from patches alone and behind base tokens."""
        right: dict[str, list[float]] = {}
        for batch in self._unseen:
            for name, based in (("patches", False), ("base and patches", True)):
                generator = torch.Generator().manual_seed(0)
                answered = self.comparing(batch, self.stage.budget, generator, based=based)["right"]
                for kind, exact in zip(batch.kinds, answered.tolist(), strict=True):
                    right.setdefault(f"{name}, {kind}: exact", []).append(exact)
        return {name: float(np.mean(answers)) for name, answers in right.items()}

    def finish(self, run: Run) -> None:
        """The model was trained in place."""
