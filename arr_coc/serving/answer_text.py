"""From the tokens of an answer to the text that a client may already see."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from ..modeling.answers import THINKS, THOUGHT, split_thinking

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer writes for a character of which some bytes are still to come."""


class AnswerText:
    """The text of one answer, as `generate` gives it, cut before the first stop string.

    Args:
        tokenizer: that reads the tokens.
        stop: strings that end the answer.

    Attributes:
        stopped: whether one of them came.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.stopped = False
        self._shown = ""

    def text(self, tokens: Sequence[int], finished: bool = True) -> str:
        """The text of an answer's tokens; of one that is not finished, without what may begin a thought."""
        written = self._written(tokens)
        if not finished and THINKS.startswith(written.lstrip()):
            return self.cut("")
        return self.cut(split_thinking(written)[1])

    def thought(self, tokens: Sequence[int]) -> int:
        """How many of the tokens were thought before the answer."""
        if not self._written(tokens).lstrip().startswith(THINKS):
            return 0
        counts = range(1, len(tokens) + 1)
        ended = bisect_left(counts, True, key=lambda count: THOUGHT in self._written(tokens[:count]))
        return min(ended + 1, len(tokens))

    def _written(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def cut(self, text: str) -> str:
        """A finished answer's text as it is shown."""
        ends = [place for string in self.stop if (place := text.find(string)) >= 0]
        self.stopped = bool(ends)
        return (text[: min(ends)] if ends else text).strip()

    def more(self, tokens: Sequence[int], finished: bool) -> str:
        """What may be shown beyond what was: nothing that later tokens could change or a stop string could take back.

        What is thought before an answer is not shown.

        Args:
            tokens: all so far.
            finished: whether no more will come.
        """
        text = self.text(tokens, finished)
        if not finished and not self.stopped:
            text = text.rstrip(UNFINISHED)
            held = max((_overlap(text, string) for string in self.stop), default=0)
            text = text[: len(text) - held].rstrip()
        more = text[len(self._shown) :]
        self._shown = text if more else self._shown
        return more


def _overlap(text: str, string: str) -> int:
    """Characters at the end of `text` with which `string` could begin."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)
