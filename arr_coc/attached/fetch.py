"""What was fetched from the image tokens of a published model.

Notation: N image tokens of a prompt as the plain model has them, K fetched ones. Positions are (y, x).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..modeling.allocators import FetchResult
from ..modeling.answers import Origin
from .encoding import EncodedPrompt

ALL = "all"
"""The strategy of an answer for which all tokens were kept, each in its place, without a base."""


@dataclass
class AttachedFetch(FetchResult):
    """`FetchResult` of one prompt, with views of any shape: indices number the prompt's tokens, over all its views.

    Attributes:
        places: [N, 3] view, y, x of each token of the prompt.
        base: M, the base tokens beside those that were fetched.
    """

    places: Tensor = None  # type: ignore[assignment]  # always given
    base: int = 0

    def regions(self) -> Tensor:
        """[1, K, 4] y0, x0, y1, x1 of each token on the grid of its view, ends exclusive."""
        return torch.cat((self.positions, self.positions + 1), -1)

    def on_patches(self, values: Tensor) -> Tensor:
        """A value of each fetched token [1, K] on all tokens, 0 on others: [1, N]."""
        return torch.zeros_like(self.scores).scatter(1, self.indices, values.to(self.scores))


def fetch_result(
    prompt: EncodedPrompt, indices: Tensor, scores: Tensor, relevance: Tensor, strategy: str, failed: bool
) -> AttachedFetch:
    """What the tokens `indices` [K] of a prompt are, chosen by scores [N]; `failed`: saliency stood in."""
    places = prompt.places.to(indices.device)
    return AttachedFetch(
        indices=indices[None],
        positions=places[indices][None, :, 1:],
        scores=scores[None],
        relevance=relevance[None],
        is_padding=~prompt.is_place.to(indices.device)[indices][None],
        budget=len(indices),
        strategy=strategy,
        allocator="topk",
        fell_back=torch.tensor([failed]),
        places=places,
        base=0 if strategy == ALL else len(prompt.base),
    )


def origins(prompt: EncodedPrompt, indices: Tensor) -> tuple[Origin, ...]:
    """Where the tokens `indices` [K] of a prompt stand in its images; those that stand for no place have none."""
    numbers = indices.cpu()
    numbers = numbers[prompt.is_place[numbers]]
    owners = [prompt.views[view].image for view in prompt.places[numbers, 0].tolist()]
    found = []
    for image, (x0, y0, x1, y1) in zip(owners, prompt.boxes[numbers].tolist(), strict=True):
        source = prompt.sources[image]
        found.append(Origin(image, source.page, source.second, (x0, y0, x1, y1)))
    return tuple(found)
