"""Embeddings under token ids of their own, above the vocabulary: how image tokens go through an engine that takes ids.

An engine that keeps keys and values by the ids of a prompt shares those of equal ids. So equal embeddings get equal ids
only where that is meant (an image's base tokens), and an id is not given again while anything of it may be kept.

Notation: V vocabulary size, n tokens, D language-model width.
"""

import threading
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor, nn

LARGEST_ID = 2**31 - 1
"""Engines keep ids in 32 bits."""


class TokenRows(nn.Module):
    """A pool of `capacity` rows [D]; row r has ids V + r, V + r + capacity, ... in turn.

    An id comes again after `LARGEST_ID - V` others, when no cache holds anything of its first use.

    Args:
        embedding: the language model's own, for ids below V.
        vocabulary: V.
        capacity: rows.
    """

    rows: Tensor

    def __init__(self, embedding: nn.Module, vocabulary: int, capacity: int) -> None:
        super().__init__()
        self.embedding, self.vocabulary, self.capacity = embedding, vocabulary, capacity
        weight = next(embedding.parameters())
        self.register_buffer("rows", weight.new_zeros(capacity, weight.shape[1]), persistent=False)
        self._free = deque(range(capacity))
        self._uses = [0] * capacity
        self._rounds = (LARGEST_ID - vocabulary) // capacity
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """Rows that nobody has."""
        return len(self._free)

    @torch.no_grad()
    def take(self, embeds: Tensor) -> list[int]:
        """Ids of the rows [n, D], which are copied.

        Raises:
            ValueError: fewer than n rows are free.
        """
        with self._lock:
            if len(embeds) > len(self._free):
                raise ValueError(f"rows: expected at most {len(self._free)} tokens, which are free; got {len(embeds)}")
            numbers = [self._free.popleft() for _ in range(len(embeds))]
        self.rows[torch.tensor(numbers, dtype=torch.long, device=self.rows.device)] = embeds.to(self.rows)
        if self.rows.is_cuda:  # the engine reads on a stream of its own
            torch.cuda.current_stream(self.rows.device).synchronize()
        return [self.vocabulary + number + self.capacity * (self._uses[number] % self._rounds) for number in numbers]

    def release(self, ids: Sequence[int]) -> None:
        """Gives rows back; their ids mean nothing from now on."""
        numbers = [(token - self.vocabulary) % self.capacity for token in ids]
        with self._lock:
            for number in numbers:
                self._uses[number] += 1
            self._free.extend(numbers)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[..., D] of ids [...], of the vocabulary or given by `take`."""
        virtual = input_ids >= self.vocabulary
        embeds = self.embedding(input_ids.masked_fill(virtual, 0))
        return torch.where(virtual[..., None], self.rows[(input_ids - self.vocabulary) % self.capacity], embeds)
