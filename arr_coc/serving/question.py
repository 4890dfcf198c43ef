"""A question in the engine, its progress, and its record after it has ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

from ..modeling.allocators import FetchResult
from ..modeling.answers import Pass
from ..modeling.fetcher import AS_CONFIGURED, FetchChoices
from ..modeling.image_encoding import ImageEncoding
from ..modeling.processing_arr_coc import Turn
from .encodings import HeldEncoding


@dataclass(frozen=True)
class AttachedChoices:
    """How tokens of a published model are fetched: see `AttachedReader.generate`."""

    strategy: str
    budget: float | int | str


Page = tuple[bytes, int]
"""An image's or document's key, and the row of the page in its encoding."""


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        text: the question.
        images: the prompt's images, in order.
        history: earlier questions and answers.
        choices: how patches are fetched.
        max_tokens: of the answer.
        temperature: 0: the likeliest token; else tokens are drawn.
        top_p: tokens are drawn from the likeliest with this total probability.
    """

    text: str
    images: tuple[HeldEncoding, ...]
    history: tuple[Turn, ...] = ()
    choices: FetchChoices | AttachedChoices = AS_CONFIGURED
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0

    def goes_with(self, other: "Question") -> bool:
        """Whether both can be embedded in one batch: single images stay apart from views, which share a budget."""
        alike = self.choices == other.choices and self.max_tokens == other.max_tokens
        return alike and (self.joint, self.pools) == (other.joint, other.pools)

    @property
    def joint(self) -> bool:
        """Whether several views share one budget."""
        return len(self.images) > 1 or any(image.encoding.documents is not None for image in self.images)

    @property
    def pools(self) -> set[int]:
        """The pooling of base tokens, the same for all images of a question."""
        return {image.encoding.pool for image in self.images}

    @property
    def pages(self) -> list[tuple[Page, ImageEncoding]]:
        """The page in each slot of the prompt, and its encoding."""
        return [((image.key, row), image.encoding) for image in self.images for row in range(len(image.encoding))]

    @property
    def in_passes(self) -> bool:
        """Whether it may have more than one pass."""
        return isinstance(self.choices, FetchChoices) and self.choices.num_passes not in (None, 1)


@dataclass(frozen=True)
class Progress:
    """All tokens of an answer so far, their log-probabilities, and whether it has ended."""

    tokens: list[int]
    logprobs: list[float]
    finished: bool


class EngineStopped(Exception):
    """The engine does not answer any more."""


class EngineBusy(Exception):
    """Too many questions wait. `seconds`: after which the client may try again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many questions wait; try again in {seconds} s")
        self.seconds = seconds


@dataclass(eq=False)
class Ticket:
    """A question in the engine. Threads push progress, the event loop reads it.

    Attributes:
        question: the question.
        number: its name in the batch.
        fetch: the fetched patches, a row per image; known with the first `Progress`.
        prompt_tokens: known with the first `Progress`.
        cancelled: the client does not wait for the answer any more.
        version: of the scorer that fetched.
        passes: the passes, if there were several.
        legibility: of the fetched patches, see `Answer.fetched_legibility`.
    """

    question: Question
    number: str
    loop: asyncio.AbstractEventLoop
    fetch: FetchResult | None = None
    prompt_tokens: int = 0
    cancelled: bool = False
    version: str = ""
    passes: tuple[Pass, ...] = ()
    legibility: float | None = None
    _arrived: "asyncio.Queue[Progress | Exception]" = field(default_factory=asyncio.Queue)

    def push(self, news: Progress | Exception) -> None:
        """Called by any thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self.loop.call_soon_threadsafe(self._arrived.put_nowait, news)

    async def progress(self) -> AsyncIterator[Progress]:
        """The answer as it grows; the last one is finished.

        Raises:
            ValueError: the question was refused.
            EngineStopped: the engine ended before the answer.
        """
        while True:
            news = await self._arrived.get()
            while not self._arrived.empty() and isinstance(news, Progress) and not news.finished:
                news = self._arrived.get_nowait()  # each holds all before it
            if isinstance(news, Exception):
                raise news
            yield news
            if news.finished:
                return


FAILED = ("failed", "late")
"""Ends that are the server's doing."""


@dataclass(frozen=True)
class Ended:
    """An answer that has ended.

    Attributes:
        number: of the completion, without "chatcmpl-".
        ticket: with the question and, if it came so far, the fetched patches.
        stops: strings that end the answer.
        finish: "stop", "length", "cancelled" (the client disconnected), "refused", "failed", "late" (it took too long).
        answer: its text and the probability of its tokens, or None without any.
    """

    number: str
    ticket: Ticket
    stops: tuple[str, ...]
    finish: str
    answer: tuple[str, float] | None
