"""Questions that are answered in several passes, one after the other: what a pass fetches depends on the answer before.

They stay out of the batch, whose tokens come without the distributions that say how unsure an answer is.
"""

from typing import Any

import torch

from ..modeling.allocators import FetchResult
from ..modeling.generation import Answer, Asker
from .question import Progress, Ticket


class NobodyWaits(Exception):
    """The question was cancelled."""


def answer_in_passes(asker: Asker, ticket: Ticket) -> Progress:
    """The whole answer; what was fetched, and the passes, are the ticket's.

    Raises:
        ValueError: several images, or passes that the context does not hold.
        NobodyWaits: the question was cancelled meanwhile.
    """
    question = ticket.question
    if len(question.images) != 1:
        raise ValueError(f"num_passes: expected one image beside several passes; got {len(question.images)}")

    def go_on(fetched: FetchResult) -> None:
        if ticket.cancelled:
            raise NobodyWaits

    drawn: dict[str, Any] = {"do_sample": question.temperature > 0}
    if question.temperature > 0:
        drawn |= {"temperature": question.temperature, "top_p": question.top_p, "top_k": 0}
    answer: Answer = asker.ask(
        question.images[0].encoding,
        question.text,
        history=list(question.history),
        choices=question.choices,
        on_fetch=go_on,
        max_new_tokens=question.max_tokens,
        return_dict_in_generate=True,
        **drawn,
    )
    output = answer.output
    ticket.prompt_tokens = output.sequences.shape[1] - len(output.logits)
    ticket.fetch, ticket.passes = answer.fetch, answer.passes
    tokens = output.sequences[0, ticket.prompt_tokens :]
    logprobs = torch.cat(list(output.logits)).float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    return Progress(tokens.tolist(), logprobs.tolist(), finished=True)
