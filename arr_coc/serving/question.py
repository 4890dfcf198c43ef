"""A question in the engine, its progress, and its record after the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

from ..modeling.answers import Pass
from ..modeling.fetcher import AS_CONFIGURED, FetchChoices, FetchResult
from ..modeling.image_encoding import ImageEncoding
from ..modeling.processing_arr_coc import Turn
from .encodings import HeldEncoding


@dataclass(frozen=True)
class AttachedChoices:
    """How tokens of a published model are fetched: see `AttachedReader.generate`."""

    strategy: str
    budget: float | int | str


Page = tuple[bytes, int]
"""The key of an image or document, and the row of the page in its encoding."""


@dataclass(frozen=True)
class ServedQuestion:
    """A question.

    Attributes:
        images: the prompt's images, in order.
        history: earlier questions and answers.
        temperature: of sampling; 0: greedy decoding.
        top_p: sampling uses the likeliest tokens up to this total probability.
    """

    text: str
    images: tuple[HeldEncoding, ...]
    history: tuple[Turn, ...] = ()
    choices: FetchChoices | AttachedChoices = AS_CONFIGURED
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0

    @property
    def joint(self) -> bool:
        """Whether several views share one budget."""
        return len(self.images) > 1 or any(image.encoding.documents is not None for image in self.images)

    @property
    def pools(self) -> set[int]:
        """The pooling factors of the base tokens; all images of a question have the same one."""
        return {image.encoding.pool for image in self.images}

    @property
    def pages(self) -> list[tuple[Page, ImageEncoding]]:
        """The page in each slot of the prompt, and its encoding."""
        return [((image.key, row), image.encoding) for image in self.images for row in range(len(image.encoding))]


@dataclass(frozen=True)
class Progress:
    """All tokens of an answer so far, their log-probabilities, and whether it has ended."""

    tokens: list[int]
    logprobs: list[float]
    finished: bool


class EngineStopped(Exception):
    """The engine has stopped answering."""


class EngineBusy(Exception):
    """Too many questions are waiting. `seconds`: when the client can try again."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many questions wait; try again in {seconds} s")
        self.seconds = seconds


@dataclass(eq=False)
class Ticket:
    """A question in the engine. Threads push progress, the event loop reads it.

    Attributes:
        number: its name in the batch.
        fetch: the fetched patches, a row per image; known from the first `Progress` on.
        prompt_tokens: the number of prompt tokens; known from the first `Progress` on.
        cancelled: whether the client has stopped waiting for the answer.
        version: version of the scorer.
        legibility: legibility of the fetched patches, see `Answer.fetched_legibility`.
    """

    question: ServedQuestion
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
        """Adds progress or an error; can be called from any thread."""
        with suppress(RuntimeError):  # if the loop is closed, nobody waits
            self.loop.call_soon_threadsafe(self._arrived.put_nowait, news)

    async def progress(self) -> AsyncIterator[Progress]:
        """Yields the growing answer; the last item is the finished answer.

        Raises:
            ValueError: the question was refused.
            EngineStopped: the engine ended before the answer.
        """
        while True:
            news = await self._arrived.get()
            while not self._arrived.empty() and isinstance(news, Progress) and not news.finished:
                news = self._arrived.get_nowait()  # each item includes the ones before
            if isinstance(news, Exception):
                raise news
            yield news
            if news.finished:
                return


FAILED = ("failed", "late")  # kinds of end that the server causes


@dataclass(frozen=True)
class Ended:
    """An answer that has ended.

    Attributes:
        number: id of the completion, without "chatcmpl-".
        ticket: holds the question and, if they are known, the fetched patches.
        stops: strings that end the answer.
        finish: "stop", "length", "cancelled" (the client disconnected), "refused", "failed", "late" (time ran out).
        answer: the text and the probability of its tokens; None without tokens.
    """

    number: str
    ticket: Ticket
    stops: tuple[str, ...]
    finish: str
    answer: tuple[str, float] | None
