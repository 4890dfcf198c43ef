"""Several questions about one image, one after the other."""

from typing import Any

from .asker import Answer, Asker, is_encoding
from .processing_arr_coc import Turn
from .vision_tower import ImageEncoding


class Conversation:
    """Questions about one image, which is encoded once.

    Args:
        asker: that asks.
        image: see `Asker.encode`, or what that returned.
        keep_history: whether the language model reads earlier questions and answers before the present one. What is
            fetched follows the present question alone. Off by default: weights that were trained on single questions
            answer better when they are asked afresh.

    Attributes:
        turns: the questions asked so far, with their answers.
    """

    def __init__(self, asker: Asker, image: Any, *, keep_history: bool = False) -> None:
        self.asker, self.keep_history = asker, keep_history
        self.encoding: ImageEncoding = image if is_encoding(image) else asker.encode(image)
        self.turns: list[Turn] = []

    def ask(self, question: str, **kwargs: Any) -> Any:
        """The answer, as from `generate(image, question, **kwargs)`."""
        answer = self.asker.ask(self.encoding, question, history=self.turns if self.keep_history else (), **kwargs)
        self.turns.append((question, answer.text if isinstance(answer, Answer) else answer))
        return answer
