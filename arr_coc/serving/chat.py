"""Chat completions: from a request to the engine and back, whole or as a stream of events."""

import asyncio
import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..attached.scoring import AttachedFetch
from ..modeling.answers import budget_warning, calibrated
from ..modeling.processing_arr_coc import checked_questions
from .answers import AnswerText, SchemaField, as_object, fields_of, misfit
from .encodings import EncodingStore
from .metrics import Metrics, length_label, tier_label
from .protocol import ChatRequest, error_body
from .question_queue import Ended, EngineStopped, Progress, QuestionQueue, ServedQuestion, Ticket
from .settings import ServerSettings

MAX_IMAGES = 8  # the most images of one request


class Chat:
    """Answers chat requests: the store encodes images, the engine answers questions. `name`: the model's name for
    clients; `on_end` is called with every answer that was started, however it ended."""

    def __init__(
        self,
        engine: QuestionQueue,
        store: EncodingStore,
        settings: ServerSettings,
        metrics: Metrics,
        name: str,
        on_end: Callable[[Ended], None] = lambda ended: None,
    ) -> None:
        self.engine, self.store, self.settings, self.metrics = engine, store, settings, metrics
        self.name, self.on_end = name, on_end
        config = engine.generation_config
        ends = config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [] if ends is None else [ends])
        self._max_tokens = config.max_new_tokens or 64
        self._temperature = float(config.temperature or 1.0) if config.do_sample else 0.0
        self._top_p = float(config.top_p or 1.0)

    async def begin(self, request: ChatRequest) -> "RunningAnswer | JsonAnswering":
        """The answer to a request, after its first token; for a schema, the answers to all fields.

        Raises:
            ValueError: the request is refused.
            EngineBusy, EngineStopped: the engine accepts no questions.
            TimeoutError: the first token took too long.
        """
        images, history, text = request.turns()
        if len(images) > MAX_IMAGES:
            raise ValueError(f"messages: expected at most {MAX_IMAGES} images; got {len(images)}")
        asked, most = request.most_tokens, self.settings.max_tokens
        if asked is not None and asked > most:
            why = "the server's --max-tokens: an answer keeps its place in the batch until it ends"
            raise ValueError(f"max_tokens: expected at most {most} ({why}); got {asked}")
        temperature = self._temperature if request.temperature is None else request.temperature
        if request.seed is not None and temperature > 0:
            why = "sampled answers share a batch; at 0 the same request has the same answer"
            raise ValueError(f"seed: expected temperature 0 with it ({why}); got {temperature:g}")
        schema, engine = request.answer_schema, self.engine
        fields = [] if schema is None else fields_of(schema)
        texts = [field.question for field in fields] or [text]
        checked_questions(texts, engine.control_tokens, engine.count_tokens)
        choices = engine.choices(request)
        stops, began, answers = request.stops, asyncio.get_running_loop().time(), list[RunningAnswer]()
        async with asyncio.timeout_at(began + self.settings.answer_seconds):
            held = await self.store.get_all(images, request.words)
            question = ServedQuestion(
                text,
                tuple(held),
                tuple(history),
                choices,
                asked or min(self._max_tokens, most),
                temperature,
                self._top_p if request.top_p is None else request.top_p,
            )
            try:
                for own in texts:
                    ticket = engine.submit(replace(question, text=own))
                    answers.append(RunningAnswer(self, request, stops, ticket, began))
                for answer in answers:
                    await answer.start()
            except BaseException:
                for answer in answers:
                    answer.end()
                raise
        return answers[0] if schema is None else JsonAnswering(fields, schema, answers)

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether the last of these tokens ends an answer."""
        return bool(tokens) and tokens[-1] in self._ends


class RunningAnswer:
    """The running answer to `ticket`. The code that starts it must call `end`, also after errors. `stops`: strings that
    end it; `began`: when the request was complete, by the clock of the event loop."""

    def __init__(self, chat: Chat, request: ChatRequest, stops: list[str], ticket: Ticket, began: float) -> None:
        self.chat, self.request, self.stops, self.began = chat, request, stops, began
        self.number = secrets.token_hex(12)  # unique, also across runs of the server
        self._head = {"id": f"chatcmpl-{self.number}", "created": int(time.time()), "model": chat.name}
        self.deadline, self._clock = began + chat.settings.answer_seconds, asyncio.get_running_loop().time
        self._text = AnswerText(chat.engine.tokenizer, stops)
        self._ticket, self._progress = ticket, ticket.progress()
        self._latest = Progress([], [], False)
        self._length = ""
        self._finish = "cancelled"
        self._ended = False

    async def start(self) -> None:
        """Waits for the first token."""
        try:
            self._latest = await anext(self._progress)
        except BaseException as error:
            if isinstance(error, Exception):  # else the client disconnected, or time ran out
                self._finish = "refused" if isinstance(error, ValueError) else "failed"
            self.end()
            raise
        self._length = length_label(self._ticket.prompt_tokens)
        self.chat.metrics.first_token.labels(self._length).observe(self._clock() - self.began)

    def end(self) -> None:
        """Frees the answer's resources and reports its end."""
        if self._ended:
            return
        self._ended, ticket = True, self._ticket
        self.chat.engine.cancel(ticket)
        if self._finish == "cancelled" and self._clock() >= self.deadline:
            self._finish = "late"
        self._count()
        text = self._text.text(self._latest.tokens)
        answer = (text, self._probability()) if self._latest.tokens else None
        self.chat.on_end(Ended(self.number, ticket, tuple(self.stops), self._finish, answer))

    def _probability(self) -> float:
        """The probability of all tokens so far, calibrated like that of an `Answer`."""
        text, raw = self._text.text(self._latest.tokens), math.exp(sum(self._latest.logprobs))
        words = self._ticket.words
        return calibrated(raw, self.chat.engine.calibration, {} if words is None else words.evidence(raw, text))

    def _count(self) -> None:
        metrics, ticket = self.chat.metrics, self._ticket
        metrics.answers.labels(self._finish).inc()
        if ticket.fetch is not None and self._latest.tokens:
            metrics.prompt_tokens.inc(ticket.prompt_tokens)
            metrics.answer_tokens.inc(len(self._latest.tokens))
            metrics.answer.labels(self._length).observe(self._clock() - self.began)
            for count in ticket.fetch.counts.tolist():
                metrics.patches.labels(ticket.fetch.strategy).observe(count)
                metrics.fetched_tokens.labels(tier_label(count, ticket.fetch.relevance.shape[1])).inc(count)
            for reason, count in ticket.fetch.fallbacks.items():
                metrics.fallbacks.labels(reason).inc(count)

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        async for _ in self._steps():
            pass
        text = self._text.text(self._latest.tokens)
        logprobs = self._logprobs(self._text.thought(self._latest.tokens)) if self.request.logprobs else None
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": self._finish, "logprobs": logprobs}
        told = {"choices": [choice], "usage": self._usage(), "arr_coc": self._fetched()}
        return {**self._head, "object": "chat.completion", **told}

    def event(
        self, delta: dict[str, Any], finish: str | None = None, logprobs: dict[str, Any] | None = None, **more: Any
    ) -> str:
        """One event of a streamed answer."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return _event({**self._head, "object": "chat.completion.chunk", "choices": [choice], **more})

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events; calls `end` after the last one, or when the client disconnects."""
        seen = 0
        try:
            yield self.event({"role": "assistant", "content": ""})
            async for progress in self._steps():
                more = self._text.more(progress.tokens, progress.finished)
                if more:
                    seen = seen or self._text.thought(progress.tokens)
                    logprobs = self._logprobs(seen) if self.request.logprobs else None
                    seen = len(progress.tokens)
                    yield self.event({"content": more}, logprobs=logprobs)
            for event in self.last_events(self._finish, self._fetched(), self._usage()):
                yield event
        except TimeoutError:
            self.chat.metrics.refused.labels("deadline").inc()
            yield _event(error_body("the answer took too long", "server_error", code="deadline"))
        except EngineStopped:
            self._finish = "failed"
            yield _event(error_body("the server ended before the answer did", "server_error", code="stopped"))
        finally:
            self.end()

    async def _steps(self) -> AsyncIterator[Progress]:
        """Progress until the end of the answer or a stop string."""
        while True:
            self._text.text(self._latest.tokens, self._latest.finished)
            if self._latest.finished or self._text.stopped:
                count = self._text.ended(self._latest.tokens)  # the engine may be ahead of a stop string
                self._latest = Progress(self._latest.tokens[:count], self._latest.logprobs[:count], True)
                self._finish = "stop" if self._text.stopped or self.chat.ends(self._latest.tokens) else "length"
                yield self._latest
                return
            yield self._latest
            async with asyncio.timeout_at(self.deadline):
                self._latest = await anext(self._progress)

    def _logprobs(self, start: int) -> dict[str, Any]:
        """Text tokens from index `start` on, and their log-probabilities."""
        tokens = self._latest.tokens
        shown = slice(start, -1 if self.chat.ends(tokens[start:]) else None)
        content = []
        for token, logprob in zip(tokens[shown], self._latest.logprobs[shown], strict=True):
            text = self.chat.engine.tokenizer.decode([token])
            content.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
        return {"content": content, "refusal": None}

    def last_events(self, finish: str, fetched: dict[str, Any], used: dict[str, int]) -> Iterator[str]:
        """The events behind the text: the reason of its end, and, if the client requests it, the numbers of tokens."""
        yield self.event({}, finish, arr_coc=fetched)
        if self.request.stream_options is not None and self.request.stream_options.include_usage:
            yield self.event({}, choices=[], usage=used)
        yield "data: [DONE]\n\n"

    def _usage(self) -> dict[str, int]:
        prompt, answer = self._ticket.prompt_tokens, len(self._latest.tokens)  # the prompt's with images
        return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}

    def _fetched(self) -> dict[str, Any]:
        """The field `arr_coc` of an answer."""
        ticket, fetch = self._ticket, self._ticket.fetch
        assert fetch is not None
        patches = fetch.by_image() if isinstance(fetch, AttachedFetch) else fetch.counts.tolist()
        told: dict[str, Any] = {"strategy": fetch.strategy, "allocator": fetch.allocator, "patches": patches}
        told["images"] = [page for image in ticket.question.images for page in image.seen]
        if not isinstance(fetch, AttachedFetch) and (warning := budget_warning(fetch)):
            told["warning"] = warning
        if ticket.passes:
            told["passes"] = [
                {"text": own.text, "uncertainty": own.uncertainty, "explored": own.share, "patches": own.fetch.budget}
                for own in ticket.passes
            ]
        return {**told, "probability": self._probability()}


@dataclass
class JsonAnswering:
    """The answers to all fields of a schema as one. The code that starts it must call `end`, also after errors."""

    fields: Sequence[SchemaField]
    schema: Mapping[str, Any]
    answers: Sequence[RunningAnswer]

    def end(self) -> None:
        """Frees the answers' resources."""
        for answer in self.answers:
            answer.end()

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed: a refusal, if a field has no value and needs one."""
        bodies = [await answer.whole() for answer in self.answers]
        values, refusals = list[Any](), list[str]()
        told = dict[str, dict[str, Any]]()
        for field, body in zip(self.fields, bodies, strict=True):
            choice, value, error = body["choices"][0], None, None
            text = choice["message"]["content"]
            try:
                value = field.value(text, cut=choice["finish_reason"] == "length")
            except ValueError as problem:
                error = str(problem)
                refusals += [error] if field.needed else []
            values.append(value)
            own = {"question": field.question, "text": text, "value": value, "error": error}
            told[".".join(field.path)] = {**own, "probability": body["arr_coc"]["probability"]}
        ends = {body["choices"][0]["finish_reason"] for body in bodies}
        first = bodies[0]
        choice = first["choices"][0]
        made = as_object(self.fields, values)
        refusals = refusals or list(filter(None, [misfit(made, self.schema)]))
        choice["message"]["content"] = None if refusals else json.dumps(made, ensure_ascii=False)
        choice["message"]["refusal"] = "; ".join(refusals) or None
        choice["finish_reason"] = "length" if "length" in ends else "stop"
        first["usage"] = {name: sum(body["usage"][name] for body in bodies) for name in first["usage"]}
        del first["arr_coc"]["probability"]  # of the first field alone
        first["arr_coc"]["fields"] = told
        return first

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events, all at once; calls `end` after the last one, or when the client disconnects."""
        first = self.answers[0]
        try:
            body = await self.whole()
            choice = body["choices"][0]
            yield first.event(choice["message"])
            for event in first.last_events(choice["finish_reason"], body["arr_coc"], body["usage"]):
                yield event
        except (TimeoutError, EngineStopped):
            yield _event(error_body("the server ended before the answer did", "server_error", code="stopped"))
        finally:
            self.end()


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
