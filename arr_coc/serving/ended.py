"""What is left of an answer when it has ended, for whoever keeps logs."""

from dataclasses import dataclass

from .question import Ticket

FAILED = ("failed", "late")
"""Ends that are the server's doing."""


@dataclass(frozen=True)
class Ended:
    """One answer, however it ended.

    Attributes:
        number: of the completion, without "chatcmpl-".
        ticket: with the question and, where it came so far, what was fetched.
        stops: strings that end the answer.
        finish: "stop", "length", "cancelled" (the client went), "refused", "failed", "late" (it took too long).
        answer: its text and the probability of its tokens, or None where there are none.
    """

    number: str
    ticket: Ticket
    stops: tuple[str, ...]
    finish: str
    answer: tuple[str, float] | None
