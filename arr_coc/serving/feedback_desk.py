"""Feedback on answers: matches it with an answer and keeps it in a journal."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from ..data.feedback import JOURNAL, Feedback
from ..data.records import boxes_of
from ..journal import Journal
from ..modeling.image_processing_arr_coc import Box
from .encodings import EncodingStore, HeldEncoding
from .examples import Hook
from .protocol import Strict
from .question_queue import Ended

_ID = "chatcmpl-"


class FeedbackRequest(Strict):
    """The body of /v1/feedback: about the answer with an `id`, or about an `image` and a `question`.

    `answer` is the right answer; `boxes` are the places of it and of its label, px of the image as sent.
    """

    right: bool
    id: str | None = None
    image: str | None = None
    question: str | None = None
    answer: str | None = Field(None, max_length=10_000)
    boxes: list[list[float]] = Field(default_factory=list, max_length=100)


class UnknownAnswer(ValueError):
    """No recent answer has this id."""


About = tuple[Feedback, tuple[int, int]]
"""An answer that feedback is about, and the (height, width) of its image, px."""


class FeedbackDesk:
    """Accepts feedback, and remembers the latest answers for it.

    Args:
        journal: durable, so that acknowledged feedback is kept.
        store: encodes images that are sent with feedback.
        remembered_bytes: bytes of images whose answers are remembered.
        hook: see `examples`.
        version: returns the version of the scorer in use, for feedback without an answer's id.
    """

    def __init__(
        self, journal: Journal, store: EncodingStore, remembered_bytes: int, hook: Hook, version: Callable[[], str]
    ) -> None:
        assert journal.name == JOURNAL and journal.durable
        self.journal, self.store, self.hook, self.version = journal, store, hook, version
        self.limit, self.bytes = remembered_bytes, 0
        self._remembered: OrderedDict[str, About] = OrderedDict()

    def watch(self, ended: Ended) -> None:
        """Remembers an answer about one image; called by the event loop."""
        question = ended.ticket.question
        if ended.finish not in ("stop", "length") or ended.answer is None or len(question.images) != 1:
            return
        if len(question.images[0].contents) != 1:  # several images share their base tokens
            return
        image, said = question.images[0], ended.answer[0] or None
        own = {"said": said, "history": question.history, "version": ended.ticket.version}
        self._remembered[_ID + ended.number] = _about(image, question.text, **own)
        self.bytes += len(image.contents[0])
        while self.bytes > self.limit:
            _, oldest = self._remembered.popitem(last=False)
            self.bytes -= len(oldest[0].image)

    async def take(self, request: FeedbackRequest) -> None:
        """Keeps feedback; it is on disk when this returns.

        Raises:
            UnknownAnswer: no recent answer has the id.
            ValueError: the feedback names no answer, or is invalid.
            JournalFull, OSError: the feedback cannot be kept.
        """
        about, size = await self._find(request)
        feedback = replace(
            about,
            right=request.right,
            answer=_answer(request, about.said),
            boxes=_boxes(request, size),
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        await asyncio.to_thread(self._keep, feedback)

    def _keep(self, feedback: Feedback) -> None:
        redacted = self.hook(feedback)
        if redacted is not None:
            self.journal.append(redacted.content())

    def stop(self) -> None:
        """Closes the journal."""
        self.journal.close()

    async def _find(self, request: FeedbackRequest) -> About:
        asked = request.image is not None and request.question is not None
        if (request.id is None) is not asked:
            raise ValueError("id: expected the id of an answer, or image and question; got both, or neither")
        if request.id is not None:
            if request.id not in self._remembered:
                raise UnknownAnswer("id: expected an answer that is remembered; got another: send image and question")
            return self._remembered[request.id]
        assert request.image is not None and request.question is not None
        if not request.question.strip():
            raise ValueError("question: expected one; got an empty one")
        return _about(await self.store.get(request.image), request.question, version=self.version())


def _about(image: HeldEncoding, question: str, **others: Any) -> About:
    """What feedback on an answer begins with; `others`: fields of `Feedback`."""
    size = image.seen[0]["height"], image.seen[0]["width"]
    return Feedback(image.contents[0], question, right=False, **others), size


def _answer(request: FeedbackRequest, said: str | None) -> str | None:
    answer = request.answer.strip() if request.answer is not None else None
    if answer == "" or (request.right and not (answer or said)):
        raise ValueError("answer: expected one that is not blank; got none")
    if request.right and said and answer not in (None, said):
        raise ValueError("answer: expected none beside an answer that is right; got another one")
    return answer


def _boxes(request: FeedbackRequest, size: tuple[int, int]) -> tuple[Box, ...]:
    boxes = boxes_of(request.boxes)
    height, width = size
    for x0, y0, x1, y1 in boxes:
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            raise ValueError(f"boxes: expected boxes inside {width} x {height} px; got {[x0, y0, x1, y1]}")
    return boxes
