"""The engine: one thread embeds questions, and transformers' continuous batching answers them in one batch.

A question waits, is embedded (scored, fetched, placed: `AnswerGenerator.embed`) and runs. Its image tokens enter the
batch as ids of `TokenRows`. The base tokens of an image have the same ids for every question, so the batch caches
their keys and values once; fetched tokens have new ids.

Questions in several passes are answered outside the batch: each pass depends on the uncertainty of the answer before,
and the batch returns no distributions of its tokens.
"""

import itertools
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.generation.continuous_batching import ContinuousBatchingManager

from ..modeling.answers import FetchedWords, legibilities
from ..modeling.fetcher import FetchChoices, FetchResult, RunningBackFetcher
from ..modeling.generation import AnswerGenerator, QuestionBatch
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.prompt import EmbeddedPrompt
from .batched_model import PAGE, BatchedLanguageModel, TokenRows
from .protocol import ChatRequest
from .question_queue import EngineStopped, Page, Progress, QuestionQueue, ServedQuestion, Ticket, check_room
from .settings import ServerSettings

logger = logging.getLogger(__name__)

USABLE = 0.8
"""Share of the cache for questions. Below transformers' safety margin (0.85) the batch evicts no question."""


@dataclass
class _Running:
    """A question in the batch: its rows, the pages whose rows it reads, its cache positions."""

    ticket: Ticket
    manager: ContinuousBatchingManager
    rows: list[int]
    pages: list[Page]
    positions: int


@dataclass
class _Base:
    """Rows of an image's base tokens, and the number of running questions that read them."""

    ids: list[int]
    readers: int = 0


class Engine(QuestionQueue):
    """Answers questions about encoded images.

    Args:
        settings: the engine uses `cache_tokens`, `batch_tokens`, `max_running`, `max_waiting` and `embed_batch`.
        on_embedded: called with the prompts of each batch of questions.

    Raises:
        ValueError: the model's prompts are more than embeddings, which the batch does not support.
    """

    def __init__(
        self,
        model: ArrCocForConditionalGeneration,
        settings: ServerSettings,
        on_embedded: Callable[[EmbeddedPrompt], None] = lambda prompt: None,
        on_alone: Callable[[], None] = lambda: None,
    ) -> None:
        model.config.require_embeds_alone("serve")
        super().__init__(settings, model.device, on_alone)
        self.model, self.on_embedded = model, on_embedded
        self.answer_generator = AnswerGenerator(model, model.processor)
        self.tokenizer, self.control_tokens = model.processor.tokenizer, model.processor.control_tokens
        self.count_tokens = model.processor.count_tokens
        self.generation_config, self.calibration = model.generation_config, model.config.calibration
        text = model.config.text_config
        self.positions = int(settings.cache_tokens * USABLE) // PAGE * PAGE
        self.longest = min(getattr(text, "max_position_embeddings", None) or self.positions, self.positions)
        self.rows = TokenRows(model.get_input_embeddings(), text.vocab_size, 2 * settings.cache_tokens)
        self.batched = BatchedLanguageModel(model, self.rows)
        self._fetching, self._passing = threading.Lock(), threading.Lock()
        self._embed_batch = settings.embed_batch or (4 if self.device.type == "cpu" else 8)
        self._waiting_for_passes = deque[Ticket]()
        self._queues.append(self._waiting_for_passes)
        self._running: dict[str, _Running] = {}
        self._bases: OrderedDict[Page, _Base] = OrderedDict()
        self._managers: dict[bool, ContinuousBatchingManager] = {}

    # ---- called by the event loop

    def start(self) -> None:
        """Starts the batch, the thread that embeds, and the thread of questions in several passes."""
        self._manager(sampling=False)
        super().start()
        passes = partial(self._take_questions, self._waiting_for_passes, self._answer_in_passes, lambda: 1)
        self._begin(passes, "passes")

    def _stop_batches(self) -> None:
        for manager in self._managers.values():
            manager.stop(block=True, hard_stop=True)

    def choices(self, request: ChatRequest) -> FetchChoices:
        budget: Any = request.budget  # FetchChoices refuses a share
        choices = FetchChoices(request.strategy, request.allocator, budget, num_passes=request.num_passes)
        self.answer_generator.resolved(choices)  # refused before an image is encoded
        return choices

    def swap(self, fetcher: RunningBackFetcher, version: str) -> None:
        """Uses another fetcher from the next question on; questions that have started keep the old one. Encodings stay
        valid, as they do not depend on scorers."""
        with self._passing, self._fetching:
            self.answer_generator.model.model.fetcher, self.version = fetcher, version

    def cancel(self, ticket: Ticket) -> None:
        super().cancel(ticket)
        running = self._end(ticket.number)
        if running is not None:
            running.manager.cancel_request(ticket.number)

    def _queue_of(self, question: ServedQuestion) -> deque[Ticket]:
        wanted: Any = question.choices  # from `choices`
        ranked = len(question.pages) > 1 and self.answer_generator.reads_text(wanted)
        return self._waiting_for_passes if ranked or wanted.num_passes not in (None, 1) else self._waiting

    # ---- the thread that embeds

    @property
    def _room(self) -> int:
        return min(self._embed_batch, self._max_running - len(self._running))

    def _go_together(self, first: ServedQuestion, other: ServedQuestion) -> bool:
        # Single images and views, which share a budget, cannot be embedded in one batch.
        alike = first.choices == other.choices and first.max_tokens == other.max_tokens
        return alike and (first.joint, first.pools) == (other.joint, other.pools)

    @torch.no_grad()
    def _answer(self, batch: list[Ticket]) -> None:
        """Scores, fetches and places for all questions of the batch, and passes them to the language model."""
        questions = [ticket.question for ticket in batch]
        wanted: Any = questions[0].choices  # from `choices`
        held = {image.handle: image for question in questions for image in question.images}
        first, *others = encodings = [image.encoding for image in held.values()]
        starts = itertools.accumulate(map(len, encodings), initial=0)
        rows = {name: range(at, at + len(held[name].encoding)) for name, at in zip(held, starts, strict=False)}
        shown = [[row for image in question.images for row in rows[image.handle]] for question in questions]
        encoding, texts = first.join(*others), [question.text for question in questions]
        history = [list(question.history) for question in questions]
        settings = {"max_new_tokens": questions[0].max_tokens}
        with self._fetching:
            choices, version = self.answer_generator.model.model.fetcher.resolve(wanted), self.version
            asked = QuestionBatch(encoding, shown, texts, choices, history, settings)
            prompt = self.answer_generator.embed(asked)
        self.on_embedded(prompt)
        slots = torch.arange(len(asked.slots)).split([len(images) for images in shown])
        read = legibilities(prompt.fetch, asked.encoding, shown)
        for row, ticket in enumerate(batch):
            ticket.fetch, ticket.version = prompt.fetch.select(slots[row]), version
            fetched = ticket.fetch, (read[row] or (None, None))[1], encoding, shown[row]
            ticket.words = FetchedWords.of(*fetched, self.answer_generator.decode)
            try:
                self._hand_on(ticket, prompt, row)
            except Exception as error:  # the others were cancelled
                self._refuse(ticket, error)

    def _hand_on(self, ticket: Ticket, prompt: EmbeddedPrompt, row: int) -> None:
        """Adds one embedded prompt to the batch as soon as the cache has room."""
        inside = prompt.inputs["attention_mask"][row].bool()
        ids, embeds = prompt.inputs["input_ids"][row][inside], prompt.embeds[row][inside]
        ticket.prompt_tokens = len(ids)
        positions = len(ids) + ticket.question.max_tokens
        check_room(len(ids), ticket.question.max_tokens, self.longest)

        def may_begin() -> bool:
            used = sum(running.positions for running in self._running.values())
            return not self.alive or ticket.cancelled or used + positions <= self.positions

        with self._changed:
            self._changed.wait_for(may_begin)
            if not self.alive:
                raise EngineStopped
            if ticket.cancelled:
                return
            tokens, own = self._as_ids(ticket, ids, embeds)
            pages = [page for page, _ in ticket.question.pages]
            manager = self._manager(sampling=bool(ticket.question.sampling))
            self._running[ticket.number] = _Running(ticket, manager, own, pages, positions)
        most, drawn = ticket.question.max_tokens, ticket.question.sampling
        manager.add_request(tokens, request_id=ticket.number, max_new_tokens=most, streaming=True, **drawn)

    def _as_ids(self, ticket: Ticket, ids: Tensor, embeds: Tensor) -> tuple[list[int], list[int]]:
        """A prompt [S] with ids of `TokenRows` for its image tokens, and the ids that the question owns."""
        assert ticket.fetch is not None
        places = (ids == self.answer_generator.model.config.image_token_id).nonzero()[:, 0]
        tokens, own, start = ids.clone(), [], 0
        for (page, encoding), count in zip(ticket.question.pages, ticket.fetch.tokens.tolist(), strict=True):
            base = encoding.tokens.shape[1]
            slot = places[start : start + encoding.base_positions + count]
            start += len(slot)
            tokens[slot[:base]] = ids.new_tensor(self._base_ids(page, embeds[slot[:base]]))
            fetched = self._take(embeds[slot[base:]])
            tokens[slot[base:]] = ids.new_tensor(fetched)
            own += fetched
        return tokens.tolist(), own

    def _base_ids(self, key: Page, embeds: Tensor) -> list[int]:
        """The ids of an image's base tokens; adds one to the questions that read them."""
        if key not in self._bases:
            self._bases[key] = _Base(self._take(embeds))
        self._bases.move_to_end(key)
        self._bases[key].readers += 1
        return self._bases[key].ids

    def _take(self, embeds: Tensor) -> list[int]:
        """Takes rows for embeddings; if too few are free, frees those of images without running questions."""
        idle = (key for key, base in [*self._bases.items()] if not base.readers)
        while self.rows.free < len(embeds):
            self.rows.release(self._bases.pop(next(idle)).ids)
        return self.rows.take(embeds)

    # ---- the thread of questions in several passes

    def _answer_in_passes(self, batch: list[Ticket]) -> None:
        """Answers one question, whole; `batch` has no others.

        Raises:
            ValueError: several pages in several passes, or more passes than the context holds.
            EngineStopped: the question was cancelled.
        """
        (ticket,) = batch
        question = ticket.question
        first, *others = (image.encoding for image in question.images)
        encoding = first.join(*others) if others else first

        def go_on(fetched: FetchResult) -> None:
            if ticket.cancelled:
                raise EngineStopped

        choices: Any = question.choices  # from `choices`
        drawn = {"do_sample": True, "top_k": 0, **question.sampling} if question.sampling else {"do_sample": False}
        with self._passing:
            ticket.version = self.version
            answer = self.answer_generator.ask(
                encoding,
                question.text,
                history=list(question.history),
                choices=choices,
                on_fetch=go_on,
                max_new_tokens=question.max_tokens,
                return_dict_in_generate=True,
                **drawn,
            )
        output = answer.output
        ticket.prompt_tokens = output.sequences.shape[1] - len(output.logits)
        ticket.fetch, ticket.passes = answer.fetch, answer.passes
        fetched = answer.fetch, answer.fetched_legibility, encoding, range(len(encoding))
        ticket.words = FetchedWords.of(*fetched, self.answer_generator.decode)
        tokens = output.sequences[0, ticket.prompt_tokens :]
        logprobs = torch.cat(list(output.logits)).float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        ticket.push(Progress(tokens.tolist(), logprobs.tolist(), finished=True))

    # ---- the batch, and the threads that read its answers

    def _manager(self, *, sampling: bool) -> ContinuousBatchingManager:
        """The batch with sampled or with greedy tokens; each starts on first use."""
        if sampling not in self._managers:
            tokens, settings = self.answer_generator.model.generation_config, self.settings
            sizes = {"cache_tokens": settings.cache_tokens, "batch_tokens": settings.batch_tokens}
            manager = self.batched.manager(tokens, sampling=sampling, **sizes)
            manager.start()
            self._managers[sampling] = manager
            self._begin(lambda: self._collect(manager), "collector")
        return self._managers[sampling]

    def _collect(self, manager: ContinuousBatchingManager) -> None:
        """Passes every output of a batch to its question; when the batch fails, its questions fail."""
        for output in manager:
            running = self._running.get(output.request_id)
            if running is None:
                continue  # cancelled
            if output.error is not None:
                logger.error("a question failed in the batch: %s", output.error)
                running.ticket.push(EngineStopped())
            else:
                running.ticket.push(Progress(output.generated_tokens, output.logprobs, output.is_finished()))
            if output.is_finished():
                self._end(output.request_id)
        if self.alive:
            logger.error("the batch ended by itself; the engine stops")
            with self._changed:
                self.alive = False
                self._changed.notify_all()
            self._fail_all()

    def _end(self, number: str) -> _Running | None:
        """Removes the question from the batch and frees its resources."""
        with self._changed:
            running = self._running.pop(number, None)
            if running is not None:
                self.rows.release(running.rows)
                for key in running.pages:
                    self._bases[key].readers -= 1
                self._changed.notify_all()
        return running

    def _under_way(self) -> list[Ticket]:
        return [running.ticket for running in self._running.values()]
