"""Stage: the scorers alone learn one relevance over all views of a prompt: pages, tiles of pages, several images.

A scorer trained on single pages finds something in each view. Here most views do not show the answer, and all are
scored together, as joint allocation compares them: by the cross-entropy of each patch, and by that of the patches of
all views as one distribution. The grid encoder is frozen: documents are encoded once and kept for many steps.

Notation: V views of a document, Q questions about it, N patches of a view, L tokens of a question.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from arr_coc.data import Split
from arr_coc.data.domains import DOMAINS, Page, Question
from arr_coc.data.domains.invoice import PAGE
from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor, Box
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.scorers import FetchContext
from arr_coc.modeling.views import VIEWS_AT_ONCE, ViewOptions, Views, Window, plan_tiles, relevance_of, square_of

from ..stages import STAGES, Run
from .questions import Prompts
from .stage import Batches, ScratchStage, Task

LISTWISE_WEIGHT = 0.3
"""Weight of the loss over the patches of all views as one distribution, beside that over each patch alone."""


@STAGES.register("finding")
@dataclass(frozen=True)
class FindingStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        learning_rate: of the scorers, all else stays as it is.
        domains: how often a document is drawn of each domain, A4 pages as wide as 150 dpi are to a model of 320 px.
        sources: pages or images of a document at most, where a domain has several.
        views: of a document that are encoded: overviews, for each question a tile that shows most of what it needs, and
            others by chance.
        questions: about a document, of which each step asks `asked`.
        seen: views that a question is scored over: those that show its answer, others by chance.
        kept: documents that are kept encoded.
        reused: steps from one new document to the next.
        documents: of those kept that a step asks about.
        evaluate_documents: that a measurement asks about, drawn from `evaluate_split`.
    """

    name: ClassVar[str] = "finding"

    steps: int = 600
    learning_rate: float = 5e-4
    warmup: int = 20
    evaluate_every: int = 100
    domains: Mapping[str, float] = field(default_factory=lambda: {"invoice": 0.4, "pages": 0.4, "pair": 0.2})
    sources: int = 4
    views: int = 16
    questions: int = 6
    asked: int = 2
    seen: int = 8
    kept: int = 24
    reused: int = 2
    documents: int = 2
    evaluate_documents: int = 12
    evaluate_split: Split = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_domains(self.domains, self.sources)
        self.check_counts("views", "questions", "asked", "seen", "kept", "reused", "documents", "evaluate_documents")

    def task(self, run: Run) -> "Finding":
        return Finding(self, run)


@dataclass(frozen=True)
class FoundDocument:
    """Views of a document, and the patches of the answers to questions.

    Attributes:
        pixel_values: [V, 3, S, S].
        patch_mask: bool [V, N].
        sources: [V] the source of each view, from 0.
        relevance: bool [Q, V, N], on the answer and its label.
        query: [Q, L] ids, and query_mask: bool [Q, L].
    """

    pixel_values: Tensor
    patch_mask: Tensor
    sources: Tensor
    relevance: Tensor
    query: Tensor
    query_mask: Tensor


class FoundDocuments(Batches[list[FoundDocument]]):
    """The documents that each step adds to those of earlier steps; a function of (seed, split, step).

    Args:
        stage: its settings.
        processor: makes squares of views.
        prompts: find the question's tokens in a prompt.
        split: of fonts, words and layouts.
        start: the first step, which gets all documents that are kept by then.
        held_out: documents that training never shows.
    """

    def __init__(
        self, stage: FindingStage, processor: ArrCocImageProcessor, prompts: Prompts, *, split: Split, start: int = 0,
        held_out: bool = False,
    ) -> None:  # fmt: skip
        self.stage, self.processor, self.prompts, self.split, self.start = stage, processor, prompts, split, start
        self.purpose = 6 if held_out else 5
        self.side, self.patch = processor.size["height"], processor.patch_size

    def batch(self, step: int) -> list[FoundDocument]:
        """The documents of a step."""
        newest = step // self.stage.reused
        if step == self.start:
            return [self.document(number) for number in range(max(0, newest - self.stage.kept + 1), newest + 1)]
        return [self.document(newest)] if step % self.stage.reused == 0 else []

    def document(self, number: int) -> FoundDocument:
        """One document with questions about it."""
        rng = np.random.default_rng((self.stage.seed, self.purpose, number))
        page = draw_document(rng, self.stage.domains, self.stage.sources, self.side, self.split)
        order = rng.permutation(len(page.questions))[: self.stage.questions]
        questions = [page.questions[int(index)] for index in order]
        sources, windows = self._views(rng, page, questions)
        squares = [page.sources[s].convert("RGB").crop(own) for s, own in zip(sources, windows, strict=True)]
        inputs = self.processor(squares, return_tensors="pt", readable_px=None)
        shown = Views(
            torch.tensor(sources), torch.tensor([square_of(own) for own in windows]), torch.zeros(0), None, "joint"
        )
        relevance = [
            relevance_of(shown, boxes_of(one, len(page.sources)), self.side // self.patch) for one in questions
        ]
        texts = [self.prompts(question.text, []) for question in questions]
        ids = [[i for i, asks in zip(text.after, text.query, strict=True) if asks] for text in texts]
        longest = max(map(len, ids))
        return FoundDocument(
            inputs["pixel_values"], inputs["patch_mask"].bool(), shown.slots, torch.stack(relevance) > 0,
            torch.tensor([own + [self.prompts.pad] * (longest - len(own)) for own in ids]),
            torch.tensor([[place < len(own) for place in range(longest)] for own in ids]),
        )  # fmt: skip

    def _views(self, rng: np.random.Generator, page: Page, questions: list[Question]) -> tuple[list[int], list[Window]]:
        """The source and the window of each encoded view: overviews, then tiles."""
        tiles: list[tuple[int, Window]] = []
        for number, source in enumerate(page.sources):
            planned = plan_tiles(
                source.height, source.width, grid=self.side // self.patch, patch_size=self.patch,
                scale=ViewOptions.tile_scale,
            )  # fmt: skip
            tiles += [(number, window) for window in planned]
        tiles = [tiles[i] for i in rng.permutation(len(tiles))]
        needs = [list(enumerate(boxes_of(question, len(page.sources)))) for question in questions]
        best = [max(tiles, key=partial(_shown, need)) for need in needs if tiles]
        tiles = list(dict.fromkeys([*best, *tiles]))
        room = max(0, self.stage.views - len(page.sources))
        views = [(n, (0, 0, image.width, image.height)) for n, image in enumerate(page.sources)] + tiles[:room]
        return [number for number, _ in views], [window for _, window in views]


def check_domains(domains: Mapping[str, float], sources: int) -> None:
    """Raises a ValueError for unknown domains, and for fewer sources than a document has."""
    unknown = sorted(set(domains) - set(DOMAINS))
    if unknown or not domains or min(domains.values()) < 0 or not sum(domains.values()):
        raise ValueError(f"domains: expected weights of {', '.join(DOMAINS)}; got {dict(domains)}")
    if sources < 2:
        raise ValueError(f"sources: expected at least 2; got {sources}")


def draw_document(
    rng: np.random.Generator, domains: Mapping[str, float], sources: int, side: int, split: Split
) -> Page:
    """A document of one of the domains, drawn by their weights.

    Args:
        rng: the only source of randomness.
        domains: weights.
        sources: the most pages, images or frames of a document.
        side: of the model's square, px; for a model of 320 px, A4 pages are as wide as at 150 dpi.
        split: of fonts, words and layouts.
    """
    names, weights = list(domains), np.array(list(domains.values()), float)
    domain = DOMAINS[names[int(rng.choice(len(names), p=weights / weights.sum()))]]
    a4 = not domain.square and (domain.draw_sources is None or domain.paged)
    size = round(PAGE * side) if a4 else side
    if domain.draw_sources is None:
        return domain.draw(rng, size, split)
    least = 2 if domain.paged or domain is DOMAINS["pair"] else 4
    most = 2 if domain is DOMAINS["pair"] else max(least, sources)
    return domain.draw_sources(rng, size, split, int(rng.integers(least, most + 1)))


def boxes_of(question: Question, sources: int) -> list[list[Box]]:
    """The boxes that a question needs, by source."""
    boxes: list[list[Box]] = [[] for _ in range(sources)]
    for own, numbers in ((question.boxes, question.box_sources), (question.label_boxes, question.label_sources)):
        for box, number in zip(own, numbers or (0,) * len(own), strict=True):
            boxes[number].append(box)
    return boxes


def _shown(needs: list[tuple[int, list[Box]]], tile: tuple[int, Window]) -> int:
    """The number of a question's boxes, by source, inside a tile."""
    number, (x0, y0, x1, y1) = tile
    boxes = [box for source, own in needs if source == number for box in own]
    return sum(x0 <= box[0] and y0 <= box[1] and box[2] <= x1 and box[3] <= y1 for box in boxes)


@dataclass(frozen=True)
class Kept:
    """An encoded document: the scorers' inputs for its V views, and its questions."""

    features: Tensor
    textures: Tensor
    seeds: Tensor
    document: FoundDocument

    def context(self, model: ArrCocForConditionalGeneration, question: int, views: Tensor) -> FetchContext:
        """The scorers' inputs for some views [v] and one question."""
        dtype, count = model.dtype, len(views)
        query = model.get_input_embeddings()(self.document.query[question][None].to(self.features.device))
        return FetchContext(
            features=self.features[views].to(dtype), textures=self.textures[views].to(dtype),
            patch_mask=self.document.patch_mask[views].to(self.features.device),
            query=query.expand(count, -1, -1), seeds=self.seeds[views],
            query_mask=self.document.query_mask[question].expand(count, -1).to(self.features.device),
        )  # fmt: skip


def listwise_loss(scores: Tensor, targets: Tensor, patch_mask: Tensor) -> Tensor:
    """Minus the log of the share of relevant patches in one distribution over all views' patches; mean over scorers.

    Args:
        scores: logits [scorers, V, N].
        targets: [V, N], above 0 on relevant patches, at least one.
        patch_mask: bool [V, N], False on padding patches.
    """
    logits = scores.float().masked_fill(~patch_mask, float("-inf")).flatten(1)
    relevant = logits.masked_fill(~(targets > 0).flatten(), float("-inf"))
    return (logits.logsumexp(1) - relevant.logsumexp(1)).mean()


class Finding(Task):
    """The run's trained scorers, in place."""

    def __init__(self, stage: FindingStage, run: Run) -> None:
        self.stage, self.model, self.processor = stage, run.model, run.processor
        scorers = run.model.model.fetcher.scorers
        deep = [name for name, scorer in scorers.items() if scorer.reads_depths or scorer.reads_attention]
        if not len(scorers) or deep:
            expected = "a model with trained scorers, which see single views"
            raise ValueError(f"finding: expected {expected}; got {', '.join(deep) or 'none'}")
        self.module = scorers.to(run.device).train()
        self.prompts = Prompts(run.processor.tokenizer, run.model.config.image_token_id)
        self.kept: deque[Kept] = deque(maxlen=stage.kept)

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.module.parameters()), self.stage.learning_rate)]

    def pages(self, start: int) -> FoundDocuments:
        return FoundDocuments(self.stage, self.processor.image_processor, self.prompts, split="train", start=start)

    @torch.no_grad()
    def encode(self, document: FoundDocument) -> Kept:
        """The document's views, encoded in chunks of bounded memory."""
        tower = self.model.model.vision_tower
        parts = [tower.tile_features(some.to(self.model.device)) for some in document.pixel_values.split(VIEWS_AT_ONCE)]
        features, textures, seeds = (
            torch.cat([part[name] for part in parts]) for name in ("features", "textures", "seeds")
        )
        return Kept(features, textures, seeds, document)

    def losses(self, step: int, batch: list[FoundDocument]) -> dict[str, Tensor]:
        self.kept.extend(self.encode(document) for document in batch)
        rng = np.random.default_rng((self.stage.seed, 7, step))
        pointwise, listwise = [], []
        for _ in range(self.stage.documents):
            kept = self.kept[int(rng.integers(len(self.kept)))]
            asked = rng.permutation(len(kept.document.relevance))[: self.stage.asked]
            for question in asked.tolist():
                each, together = self._question(kept, question, self._seen(rng, kept, question))
                pointwise.append(each)
                listwise.append(together)
        found, told = torch.stack(pointwise).mean(), torch.stack(listwise).mean()
        return {"loss": found + LISTWISE_WEIGHT * told, "relevance": found.detach(), "listwise": told.detach()}

    def _seen(self, rng: np.random.Generator, kept: Kept, question: int) -> Tensor:
        """Numbers of the views over which a question is scored."""
        shows = kept.document.relevance[question].any(1).tolist()
        order = sorted(rng.permutation(len(shows)).tolist(), key=lambda view: not shows[view])  # stable sort
        return torch.tensor(sorted(order[: self.stage.seen]))

    def _question(self, kept: Kept, question: int, views: Tensor) -> tuple[Tensor, Tensor]:
        """Both losses of one question over some views."""
        context = kept.context(self.model, question, views)
        targets = kept.document.relevance[question, views].to(context.features.device)
        scores = self.model.model.fetcher.all_scores(context)
        found = self.model.relevance_loss(scores, targets.float(), context.patch_mask)
        if not bool(targets.any()):
            return found, found.detach() * 0
        return found, listwise_loss(torch.stack(list(scores.values())), targets, context.patch_mask)

    @cached_property
    def _unseen(self) -> list[Kept]:
        documents = FoundDocuments(
            self.stage, self.processor.image_processor, self.prompts, split=self.stage.evaluate_split, held_out=True
        )
        return [self.encode(documents.document(number)) for number in range(self.stage.evaluate_documents)]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """By scorer, for the patch with the highest score of all views: the share of questions for which it is
        relevant ("found"), and, for documents with several sources, for which its source has the answer ("source")."""
        self.module.eval()
        right: dict[str, list[float]] = {}
        for kept in self._unseen:
            targets, sources = kept.document.relevance, kept.document.sources
            everything = torch.arange(len(sources))
            for question in range(len(targets)):
                context = kept.context(self.model, question, everything)
                for name, scores in self.model.model.fetcher.all_scores(context).items():
                    best = int(scores.masked_fill(~context.patch_mask, float("-inf")).argmax())
                    view, patch = divmod(best, scores.shape[1])
                    right.setdefault(f"{name}: found", []).append(float(targets[question, view, patch]))
                    if len(sources.unique()) > 1:
                        showing = sources[targets[question].any(1)].tolist()
                        right.setdefault(f"{name}: source", []).append(float(int(sources[view]) in showing))
        self.module.train()
        return {name: sum(values) / len(values) for name, values in right.items()}

    def finish(self, run: Run) -> None:
        """The scorers were trained in place."""
