"""Stage: the language model learns to answer from tokens of several views: pages, tiles, images, frames.

Earlier stages use single pages. Here a prompt has all sources of a document, their base tokens pooled if there are
many, and fetched tokens from any of them; the prompts are those of `generate`. The grid encoder is frozen, and no
document comes twice. Comparing needs many more amounts than can be read from pages in a run, so it is also trained on
text. Recipes call the stage "multi_view".

Notation: Q questions about a document, I image slots, S prompt length, A tokens of the longest answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from arr_coc.data import Split
from arr_coc.data.domains import Page, Question
from arr_coc.data.domains.document import draw_comparison
from arr_coc.data.domains.variations import with_absent, with_turns
from arr_coc.modeling.answers import THINKS, THOUGHT
from arr_coc.modeling.bridges import CellBridge
from arr_coc.modeling.fetcher import FetchChoices
from arr_coc.modeling.generation import AnswerGenerator, QuestionBatch
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.image_loading import Source
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor, take_view_options
from arr_coc.modeling.prompt import positions
from arr_coc.modeling.view_encoding import encode_sources

from ..stages import STAGES, Run
from .finding import boxes_of, check_domains, draw_document
from .questions import TRANSCRIBE
from .shared_prefix import right_rows
from .stage import Batches, ScratchStage, Task


@STAGES.register("multi_view")
@dataclass(frozen=True)
class MultiViewStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        learning_rate: of language model and bridge, except for the bridge's choice of words.
        domains, sources: as in the finding stage.
        documents, questions: documents per step, and questions about each.
        absent: share of the questions about single pages that ask for absent fields.
        unheard: share of these that ask for fields of no page.
        turns: share of the questions that come second in a chat.
        unfetched: share of the small single pages, which fit into the model's square, without fetched tokens.
        oracle: share of the other pages with the answers' patches in place of those that the model fetches.
        transcribed: share of the pages without fetched tokens that are transcribed in place of further questions, if
            their text is known: answers alone have too few characters to keep the reading of base tokens.
        decided: comparisons per step without an image, behind a thought with both amounts: only the answer is
            learned.
        budget: patches fetched for a question, by name or number.
        tiles: see `ViewOptions`.
        evaluate_documents: documents of each domain in a measurement, drawn from `evaluate_split`.
    """

    name: ClassVar[str] = "multi_view"

    steps: int = 600
    learning_rate: float = 3e-4
    warmup: int = 30
    evaluate_every: int = 100
    domains: Mapping[str, float] = field(
        default_factory=lambda: {"invoice": 0.25, "pages": 0.3, "pair": 0.3, "clip": 0.15}
    )
    sources: int = 4
    documents: int = 3
    questions: int = 4
    absent: float = 0.0
    unheard: float = 0.0
    turns: float = 0.0
    unfetched: float = 0.0
    transcribed: float = 0.0
    oracle: float = 0.5
    decided: int = 0
    budget: str | int = "standard"
    tiles: str = "asked"
    evaluate_documents: int = 8
    evaluate_split: Split = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_domains(self.domains, self.sources)
        self.check_counts("documents", "questions", "evaluate_documents")
        self.check_shares("absent", "unheard", "turns", "unfetched", "transcribed", "oracle")
        if self.decided < 0:
            raise ValueError(f"decided: expected at least 0; got {self.decided}")

    def task(self, run: Run) -> "MultiView":
        return MultiView(self, run)


class DrawnDocuments(Batches[list[Page]]):
    """The documents of each step; a function of (seed, split, step).

    Args:
        stage: its settings.
        side: of the model's square, px.
        split: of fonts, words and layouts.
        start: the first step.
        held_out: documents that training never shows.
    """

    def __init__(
        self, stage: MultiViewStage, side: int, *, split: Split, start: int = 0, held_out: bool = False
    ) -> None:
        self.stage, self.side, self.split, self.start = stage, side, split, start
        self.purpose = 9 if held_out else 8

    def batch(self, step: int) -> list[Page]:
        """The documents of one step."""
        first = step * self.stage.documents
        return [self.document(first + number) for number in range(self.stage.documents)]

    def document(self, number: int, domain: str | None = None) -> Page:
        """One document, of any domain or the given one."""
        rng = np.random.default_rng((self.stage.seed, self.purpose, number))
        domains = self.stage.domains if domain is None else {domain: 1.0}
        page = draw_document(rng, domains, self.stage.sources, self.side, self.split)
        return with_turns(
            rng, with_absent(rng, page, self.stage.absent, self.split, self.stage.unheard), self.stage.turns
        )


@dataclass(frozen=True)
class Encoded:
    """A document, encoded as `generate` encodes it."""

    encoding: ImageEncoding
    page: Page


class Reader(nn.Module):
    """Answers questions about an encoded document, teacher-forced, in the prompts of `generate`."""

    def __init__(self, model: ArrCocForConditionalGeneration, processor: ArrCocProcessor) -> None:
        super().__init__()
        self.model, self.processor = model, processor
        self.answer_generator = AnswerGenerator(model, processor)

    @torch.no_grad()
    def encode(self, page: Page, tiles: str) -> Encoded:
        """All sources of a document, for one prompt."""
        sources = [Source(image.height, image.width, partial(_itself, image)) for image in page.sources]
        processor = self.processor.image_processor
        options, _ = take_view_options({**processor.views, "tiles": tiles})
        return Encoded(encode_sources(self.model.model, processor, [sources], options), page)

    def forward(
        self, document: Encoded, questions: Sequence[Question], strategy: str, budget: str | int
    ) -> dict[str, Tensor]:
        """The answers' loss, and "right" [Q]: which answers would be exact."""
        core = self.model.model
        encoding = core.bridge_again(
            document.encoding, document.encoding.bypass
        )  # the bridge gets gradients from base tokens, too
        numbers = list(range(len(encoding)))
        boxes = [own for question in questions for own in boxes_of(question, len(encoding))]
        asked = QuestionBatch(
            encoding, [numbers] * len(questions), [question.text for question in questions], boxes=boxes
        )
        history = [question.history for question in questions]
        selected, choices = self.answer_generator.select_slots(
            asked, FetchChoices(strategy=strategy, budget=budget), history, {}
        )
        prompt = core.place(selected, core.fetch(selected, choices), attention_mask=selected.attention_mask)
        return self._answered(
            prompt.embeds, prompt.inputs["attention_mask"], [question.written for question in questions]
        )

    def decide(self, questions: Sequence[Question]) -> dict[str, Tensor]:
        """`forward` without an image: the thinking is given, and the answers behind it are predicted."""
        thoughts = [f"{THINKS}{question.thinking}{THOUGHT}" for question in questions]
        prompts = self.processor.tokenizer(
            [self.processor.prompt(q.text, images=0) + thought for q, thought in zip(questions, thoughts, strict=True)],
            add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt",
        ).to(self.model.device)  # fmt: skip
        embeds = self.model.get_input_embeddings()(prompts.input_ids)
        return self._answered(embeds, prompts.attention_mask, [question.answers[0] for question in questions])

    def _answered(self, prompts: Tensor, mask: Tensor, answers: Sequence[str]) -> dict[str, Tensor]:
        """The outputs of `forward` for prompts [Q, S, D] that are padded on the left, and their mask [Q, S]."""
        ids, is_answer = (part.to(prompts.device) for part in self._answers(answers))
        embeds = torch.cat((prompts, self.model.get_input_embeddings()(ids).to(prompts)), 1)
        mask = torch.cat((mask, is_answer.to(mask)), 1)
        output = self.model.model(
            inputs_embeds=embeds, attention_mask=mask, position_ids=positions(mask), use_cache=False
        )
        logits = self.model.lm_head(output.last_hidden_state[:, prompts.shape[1] - 1 : -1][is_answer])
        return {
            "answer": F.cross_entropy(logits.float(), ids[is_answer]),
            "right": right_rows(logits, ids[is_answer], is_answer),
        }

    def _answers(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """The answers' tokens with their end [Q, A], and a mask of those that are not padding."""
        tokenizer = self.processor.tokenizer
        rows = [
            torch.tensor([*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id])
            for text in texts
        ]
        lengths = torch.tensor([len(row) for row in rows])
        ids = pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
        return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def read_out(page: Page, behind: Question) -> Question:
    """The second turn, which asks for the whole text of a page."""
    history = (*behind.history, (behind.text, behind.answers[0]))
    return Question(TRANSCRIBE, (page.text,), (), (), "transcript", history=history)


def _itself(image: Image.Image) -> Image.Image:
    return image


class MultiView(Task):
    """The run's language model and bridge, in place.

    Raises:
        ValueError: a model whose strategy does not support tiles.
    """

    def __init__(self, stage: MultiViewStage, run: Run) -> None:
        self.stage, self.reader = stage, Reader(run.model, run.processor).train()
        core = run.model.model
        self.strategy = run.model.config.fetcher_config.strategy
        scorer = core.fetcher.scorer(self.strategy)
        if scorer.reads_depths or scorer.reads_attention:
            raise ValueError(f"multi_view: expected a strategy that supports tiles; got {self.strategy!r}")
        untrained = [*core.vision_tower.parameters(), *core.fetcher.parameters()]
        if isinstance(core.bridge, CellBridge):  # the words of the bridge stay; the language model learns their use
            untrained += [*core.bridge.norm.parameters(), *core.bridge.head.parameters()]
            if core.bridge.fetched is not None:
                untrained += [*core.bridge.fetched.norm.parameters(), *core.bridge.fetched.head.parameters()]
        self.frozen = [weight for weight in untrained if weight.requires_grad]
        for weight in self.frozen:  # tiles are encoded, and kept, in the step that needs them
            weight.requires_grad_(False)
        self.side = run.processor.image_processor.size["height"]
        self.module = nn.ModuleDict({"language_model": core.language_model, "bridge": core.bridge})

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        return [(trained, self.stage.learning_rate)]

    def pages(self, start: int) -> DrawnDocuments:
        return DrawnDocuments(self.stage, self.side, split="train", start=start)

    def losses(self, step: int, batch: list[Page]) -> dict[str, Tensor]:
        rng = np.random.default_rng((self.stage.seed, 10, step))
        by_name: dict[str, list[Tensor]] = {}
        for page in batch:
            asked = rng.permutation(len(page.questions))[: self.stage.questions]
            strategy = self._strategy(page, rng)
            questions, name = [page.questions[int(number)] for number in asked], f"answer/{strategy}"
            if strategy == "none" and page.text and self.stage.transcribed and rng.random() < self.stage.transcribed:
                questions, name = [read_out(page, behind=questions[0])], f"transcript/{strategy}"
            answered = self.reader(self.reader.encode(page, self.stage.tiles), questions, strategy, self.stage.budget)
            by_name.setdefault(name, []).append(answered["answer"])
        logged = {name: torch.stack(losses).mean().detach() for name, losses in by_name.items()}
        loss = torch.stack([loss for losses in by_name.values() for loss in losses]).mean()
        if self.stage.decided:
            decided = self.reader.decide(self._comparisons(step))["answer"]
            loss, logged["decided"] = loss + decided, decided.detach()
        return {"loss": loss, **logged}

    def _comparisons(self, step: int, purpose: int = 14, split: Split = "train") -> list[Question]:
        rng = np.random.default_rng((self.stage.seed, purpose, step))
        return [draw_comparison(rng, split) for _ in range(self.stage.decided)]

    def _strategy(self, page: Page, rng: np.random.Generator) -> str:
        """How a document is encoded."""
        if self._is_readable(page) and rng.random() < self.stage.unfetched:
            return "none"
        return "oracle" if rng.random() < self.stage.oracle else self.strategy

    def _is_readable(self, page: Page) -> bool:
        """Whether its prompt may have base tokens only."""
        return len(page.sources) == 1 and max(page.image.size) <= self.side

    @cached_property
    def _unseen(self) -> dict[str, list[Encoded]]:
        drawn = DrawnDocuments(self.stage, self.side, split=self.stage.evaluate_split, held_out=True)
        return {
            domain: [
                self.reader.encode(drawn.document(number, domain), self.stage.tiles)
                for number in range(self.stage.evaluate_documents)
            ]
            for domain in self.stage.domains
        }

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Exact answers by domain and kind of question, from the answers' patches and from the patches that the model
        fetches.

        If training has pages without fetched tokens, also from their base tokens.
        """
        self.reader.eval()
        right: dict[str, list[float]] = {}
        for domain, documents in self._unseen.items():
            for document, strategy in product(documents, ("oracle", self.strategy, "none")):
                if strategy == "none" and not (self.stage.unfetched and self._is_readable(document.page)):
                    continue
                questions = document.page.questions
                answered = self.reader(document, questions, strategy, self.stage.budget)["right"].tolist()
                for question, exact in zip(questions, answered, strict=True):
                    right.setdefault(f"{domain}, {question.kind}, {strategy}: exact", []).append(exact)
        if self.stage.decided:
            unseen = self._comparisons(0, purpose=15, split=self.stage.evaluate_split)
            right["decided: exact"] = self.reader.decide(unseen)["right"].tolist()
        self.reader.train()
        return {name: float(np.mean(answers)) for name, answers in right.items()}

    def finish(self, run: Run) -> None:
        """The model was trained in place."""
        for weight in self.frozen:
            weight.requires_grad_(True)
