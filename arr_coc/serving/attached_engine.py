"""The engine of a published model: answers the waiting questions in one call of transformers' `generate`.

Its prompts have positions and DeepStack features besides ids (see `docs/published-models.md`). Continuous batching
takes ids only, so it cannot run them: a question that arrives during a batch waits for the end of the batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import StoppingCriteria

from ..attached import AttachedReader
from ..attached.reader import BUDGET
from ..attached.runner import PreparedPrompt, count_fetched
from .batched_model import LatestLogits
from .protocol import ChatRequest
from .question_queue import EngineStopped, Progress, QuestionQueue, ServedQuestion, Ticket, check_room
from .settings import ServerSettings


class AttachedEngine(QuestionQueue):
    """Answers questions about images that a reader encoded.

    Args:
        settings: the engine uses `cache_tokens`, `max_running` and `max_waiting`. `cache_tokens` counts the prompts and
            answers of a batch, padding included.
    """

    def __init__(
        self, reader: AttachedReader, settings: ServerSettings, on_alone: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(settings, reader.model.device, on_alone)
        self.reader = reader
        self.tokenizer, self.generation_config = reader.processor.tokenizer, reader.model.generation_config
        self.control_tokens = [reader.family.image_token, reader.processor.image_token]
        context = getattr(reader.model.config.get_text_config(), "max_position_embeddings", None)
        self.longest = min(context or settings.cache_tokens, settings.cache_tokens)
        self._running: list[Ticket] = []
        ends = self.generation_config.eos_token_id
        self._ends = {*(ends if isinstance(ends, list) else [ends])}

    def choices(self, request: ChatRequest) -> dict[str, Any]:
        for name in ("allocator", "num_passes"):
            if (value := getattr(request, name)) not in (None, 1):  # a published model has one pass
                kind = self.reader.model.config.model_type
                raise ValueError(f"{name}: expected none with a {kind} model; got {value}")
        budget = BUDGET if request.budget is None else request.budget
        count_fetched(budget, 2**30, 2**30, 1)  # refuses requests that are invalid for every image
        return {"strategy": self.reader.check_strategy(request.strategy), "budget": budget}

    @property
    def _room(self) -> int:
        return self._max_running

    def _go_together(self, first: ServedQuestion, other: ServedQuestion) -> bool:
        return first.sampling == other.sampling

    def _under_way(self) -> list[Ticket]:
        return self._running

    def _answer(self, batch: list[Ticket]) -> None:
        """Fetches for each question separately, and answers as many at once as the cache holds."""
        prepared: dict[Ticket, PreparedPrompt] = {}
        for ticket in batch:
            if not ticket.cancelled:
                self._try([ticket], lambda own: prepared.update({own[0]: self._prepared(own[0])}))
        left = [*prepared]
        while left:
            longest, fit = 0, 0
            for ticket in left:
                longest = max(longest, ticket.prompt_tokens + ticket.question.max_tokens)
                fit += longest * (fit + 1) <= self.settings.cache_tokens
            group, left = left[:fit], left[fit:]
            self._try(group, lambda tickets: self._generate(tickets, [prepared[ticket] for ticket in tickets]))

    def _prepared(self, ticket: Ticket) -> PreparedPrompt:
        question = ticket.question
        choices: Any = question.choices  # from `choices`
        (image,) = question.images
        (prompt,) = image.encoding.prompts
        self.reader.check_questions(question.text, [question.history])
        prepared = self.reader.ask(image.encoding, prompt, question.text, question.history, **choices)
        ticket.fetch, ticket.version, ticket.prompt_tokens = prepared.fetch, self.version, len(prepared.placed.ids)
        check_room(ticket.prompt_tokens, question.max_tokens, self.longest)
        return prepared

    def _generate(self, tickets: Sequence[Ticket], prepared: Sequence[PreparedPrompt]) -> None:
        question, logits = tickets[0].question, LatestLogits()
        with self._changed:
            if not self.alive:
                raise EngineStopped
            self._running = [*tickets]
        try:
            settings: dict[str, Any] = {
                "do_sample": bool(question.sampling),
                "max_new_tokens": max(ticket.question.max_tokens for ticket in tickets),
                "num_beams": 1,
                "num_return_sequences": 1,
                "logits_processor": [logits],
                "stopping_criteria": [TellTickets(tickets, logits, self._ends, lambda: self.alive)],
            }
            if question.sampling:
                settings |= {**question.sampling, "top_k": self.generation_config.top_k or 0}
            self.reader.runner.answers(prepared, settings, False)
        finally:
            with self._changed:
                self._running = []
        if not self.alive:
            raise EngineStopped  # the rows ended before their answers did


class TellTickets(StoppingCriteria):
    """Passes new tokens, chosen from `latest`, to the tickets of B rows, and ends each row [B] with its answer. `ends`:
    ids of tokens that end an answer; `alive` returns whether the engine still answers."""

    def __init__(
        self, tickets: Sequence[Ticket], latest: LatestLogits, ends: set[int | None], alive: Callable[[], bool]
    ) -> None:
        self.latest, self.ends, self.alive = latest, ends, alive
        self.rows = [(ticket, list[int](), list[float]()) for ticket in tickets]
        self.done = [False] * len(tickets)

    def __call__(self, input_ids: Tensor, scores: tuple[Tensor, ...] | None, **kwargs: object) -> Tensor:
        chosen = input_ids[:, -1:]
        told = self.latest.logits.float().log_softmax(-1).gather(1, chosen.to(self.latest.logits.device))[:, 0]
        steps = zip(self.rows, chosen[:, 0].tolist(), told.tolist(), strict=True)
        for row, ((ticket, tokens, logprobs), token, logprob) in enumerate(steps):
            if self.done[row]:
                continue
            tokens.append(token)
            logprobs.append(logprob)
            finished = token in self.ends or len(tokens) == ticket.question.max_tokens
            ticket.push(Progress([*tokens], [*logprobs], finished))
            self.done[row] = finished or ticket.cancelled or not self.alive()
        return torch.tensor(self.done, device=input_ids.device)
