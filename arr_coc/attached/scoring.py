"""Scorers of image tokens for published models, the result of a fetch, and the trained scorer's file and loss.

The scorers are those of our own models, applied view by view. The published model's weights do not change. Positions
are (y, x).

Notation: N image tokens of a prompt, V views of one size, G the longer side of their grid, D width of the language
model, L question tokens, M base tokens, K fetched tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..modeling.answers import Origin
from ..modeling.configuration_arr_coc import ArrCocFetcherConfig
from ..modeling.fetcher import FetchResult
from ..modeling.image_processing_arr_coc import Box
from ..modeling.modeling_arr_coc import relevance_loss
from ..modeling.patch_scorers import AttentionScorer, Realizer
from ..modeling.printed_lines import UNKNOWN, around, readable
from ..modeling.processing_arr_coc import Turn
from ..modeling.scorers import (
    SCORERS,
    FetchContext,
    Scorer,
    is_uninformative,
    masked_mean,
    spelling_match,
    topk,
    unit_range,
    warn_of_fallback,
)
from ..modeling.wordpieces import CHARACTERS, SPACE
from .encoding import AttachedEncoding, EncodedPrompt

if TYPE_CHECKING:
    from .reader import AttachedReader


class SimilarityScorer(Scorer):
    """The largest cosine of an image token, less the mean of all, with an embedding of the question's tokens. It needs
    no training: in these models image tokens and embeddings share the language model's space."""

    def forward(self, context: FetchContext) -> Tensor:
        tokens = context.features.flatten(2).transpose(1, 2).float()
        tokens = F.normalize(tokens - masked_mean(tokens, context.patch_mask)[:, None], dim=-1)
        alike = tokens @ F.normalize(context.query.float(), dim=-1).transpose(1, 2)
        return alike.masked_fill(~context.query_mask[:, None], -1.0).amax(-1)


class TrainedScorer(Realizer):
    """Our models' trained scorer for the image tokens of a published model; its weights start at random.

    Attributes:
        config: its sizes.
        width: D.
    """

    def __init__(self, config: ArrCocFetcherConfig, *, feature_size: int, text_size: int) -> None:
        super().__init__(config, feature_size=feature_size, text_size=text_size)
        self.config, self.width = config, feature_size
        for module in self.modules():
            if start := getattr(module, "start_weights", None):
                start(config.initializer_range)


STRATEGIES: dict[str, type[Scorer]] = {
    "attention": AttentionScorer,
    "similarity": SimilarityScorer,
    **{name: SCORERS[name] for name in ("saliency", "random", "oracle")},
    "words": SCORERS["oracle"],  # fetches by `relevance_of_words`
    "realizer": TrainedScorer,
}
"""The names are those of our own models."""


def contexts(
    prompt: EncodedPrompt,
    query: Tensor,
    *,
    attention: Tensor | None = None,
    relevance: Tensor | None = None,
    seed: int = 0,
) -> Iterator[tuple[Tensor, FetchContext]]:
    """The scorers' inputs for a prompt, for all views of one size at a time.

    Args:
        query: [L, D] embeddings of the question.
        attention, relevance: [N] each, or None.
        seed: of random relevance.

    Yields:
        [V, G * G] the number of the token at each place, -1 outside the grid; and the context.
    """
    sides = [max(view.rows, view.cols) for view in prompt.views]
    starts = torch.tensor([0, *map(len, prompt.views)]).cumsum(0).tolist()
    for side in sorted(set(sides)):
        numbers = [number for number, own in enumerate(sides) if own == side]
        at = torch.full((len(numbers), side, side), -1)
        for row, number in enumerate(numbers):
            view = prompt.views[number]
            at[row, : view.rows, : view.cols] = view.numbers() + starts[number]
        at = at.flatten(1)
        mask = (at >= 0).to(prompt.seen.device)

        def on_grid(values: Tensor, at: Tensor = at, mask: Tensor = mask) -> Tensor:
            there = values.to(mask.device)[at.clamp(min=0).to(mask.device)]
            return there.masked_fill(~mask.view(*mask.shape, *[1] * (there.ndim - 2)), 0.0)

        edges = on_grid(prompt.saliency)
        yield (
            at,
            FetchContext(
                features=on_grid(prompt.seen.float()).transpose(1, 2).unflatten(2, (side, side)),
                textures=torch.stack((torch.zeros_like(edges), edges), 1).unflatten(2, (side, side)),
                patch_mask=mask,
                query=query.float().expand(len(at), -1, -1),
                query_mask=mask.new_ones(len(at), len(query)),
                seeds=torch.tensor([seed * len(prompt.views) + number for number in numbers]),
                relevance=None if relevance is None else on_grid(relevance),
                attention=None if attention is None else on_grid(attention),
            ),
        )


def token_scores(scorer: Scorer, prompt: EncodedPrompt, query: Tensor, **given: Any) -> Tensor:
    """Scores [N] in float32 of every token, 0 for tokens without a place; `given`: the arguments of `contexts`."""
    scores = torch.zeros(len(prompt), device=prompt.seen.device)
    for at, context in contexts(prompt, query, **given):
        inside = context.patch_mask
        scores[at.to(inside.device)[inside]] = scorer(context).float().to(inside.device)[inside]
    return scores


def score(scorer: Scorer, prompt: EncodedPrompt, query: Tensor, **given: Any) -> tuple[Tensor, Tensor, bool]:
    """Scores [N] and relevance [N] in 0..1 of every token; and whether saliency replaced the scorer. Saliency replaces
    a map that is flat or not finite. For the arguments see `token_scores`."""
    scores = token_scores(scorer, prompt, query, **given)
    places = prompt.is_place.to(scores.device)
    failed = bool(is_uninformative(scores[None], places[None]))
    if failed:
        warn_of_fallback(scorer)
        scores = prompt.saliency.to(scores.device)
    if scorer.trained and not failed:
        relevance = scores.sigmoid()
    else:
        relevance = unit_range(scores.masked_fill(~places, float(scores[places].min())))
    return scores, relevance.masked_fill(~places, 0.0), failed


def most_relevant(scores: Tensor, is_place: Tensor, count: int) -> Tensor:
    """[count] the tokens with the highest scores [N], ascending; ties break by lower index."""
    return topk(scores.masked_fill(~is_place.to(scores.device), float("-inf"))[None], count)[0]


def relevance_of_boxes(prompt: EncodedPrompt, boxes: Sequence[Sequence[Box]]) -> Tensor:
    """[N] the share of each token inside boxes of its image, px: a list of boxes for each image of the prompt.

    A box thinner than a pixel counts as one pixel thick.

    Raises:
        ValueError: not one list for each image, or a box that ends before it starts.
    """
    images = 1 + max(prompt.owners)
    if len(boxes) != images:
        raise ValueError(f"boxes: expected one list per image of a prompt ({images}); got {len(boxes)}")
    owner = torch.tensor(prompt.owners)[prompt.places[:, 0].clamp(min=0)]
    x0, y0, x1, y1 = prompt.boxes.unbind(-1)
    covered = torch.zeros(len(prompt))
    for image, listed in enumerate(boxes):
        for left, top, right, bottom in listed:
            if right < left or bottom < top:
                raise ValueError(f"boxes: expected x0 <= x1 and y0 <= y1; got {(left, top, right, bottom)}")
            right, bottom = max(right, left + 1), max(bottom, top + 1)
            across = (x1.clamp(max=right) - x0.clamp(min=left)).clamp(min=0)
            down = (y1.clamp(max=bottom) - y0.clamp(min=top)).clamp(min=0)
            share = across * down / ((x1 - x0) * (y1 - y0)).clamp(min=1e-6)
            covered = torch.where(owner == image, torch.maximum(covered, share), covered)
    return covered.masked_fill(~prompt.is_place, 0.0)


RIGHT, LEFT, ABOVE, BELOW = 0.02, 0.3, 1.0, 0.3
"""What a distance of one line height from a word of the question costs, in the direction in which an answer is looked
for; chosen on drawn pages of the training split."""


def relevance_of_words(prompt: EncodedPrompt, question: str) -> Tensor:
    """[N] how much a token's words, or words from which they are near, are spelled as in a question, 0..1.

    A value stands right of its label, in the same line, or below it: other directions cost more.

    Raises:
        ValueError: no words of the prompt's images are known.
    """
    if not any(page.lines for page in prompt.words):
        expected = (
            'a PDF with a text layer, or words= of encode_image: [(text, (x0, y0, x1, y1)), ...], "ocr" or a file'
        )
        received = "; ".join(page.warning for page in prompt.words if page.warning) or "images without words"
        raise ValueError(f'strategy "words": expected {expected}; got {received}')
    owner = torch.tensor(prompt.owners)[prompt.places[:, 0].clamp(min=0)]
    relevance = torch.zeros(len(prompt))
    for image, page in enumerate(prompt.words):
        runs = (run for line in page.lines or () for run in line.words())
        words = [(text, around(boxes)) for text, boxes in runs if text.strip(UNKNOWN)]
        if not words:
            continue
        x0, y0, x1, y1 = torch.tensor([box for _, box in words]).unbind(-1)
        across, back = (x0 - x1[:, None]).clamp(min=0), (x0[:, None] - x1).clamp(min=0)
        down = (y0 + y1) / 2 - (y0 + y1)[:, None] / 2
        cost = across * RIGHT + back * LEFT + torch.where(down > 0, down * BELOW, -down * ABOVE)
        near = (1 + cost / (y1 - y0)[:, None]).rsqrt()
        said = (spelled_alike([text for text, _ in words], question)[:, None] * near).amax(0)
        left, top, right, bottom = prompt.boxes[:, :, None].unbind(1)
        touched = (left < x1) & (right > x0) & (top < y1) & (bottom > y0) & (owner == image)[:, None]
        relevance = torch.maximum(relevance, (touched * said).amax(1))
    return relevance.masked_fill(~prompt.is_place, 0.0)


def spelled_alike(words: Sequence[str], question: str) -> Tensor:
    """[n] how much of each of n words in reading order is spelled as in a question, 0..1, see `spelling_match`."""
    spoken = [*words, *question.split()]
    classes = [[SPACE, *(CHARACTERS.index(each) + 1 for each in "".join(map(readable, word)))] for word in spoken]
    spellings = torch.nn.utils.rnn.pad_sequence([torch.tensor(word) for word in classes], batch_first=True)
    pieces = torch.full((1, (isqrt(len(words)) + 1) ** 2, 2, 1), -1)
    pieces[0, : len(words), 0, 0] = torch.arange(len(words))
    asked = torch.arange(len(words), len(spoken))[None]
    return spelling_match(pieces, asked, torch.ones_like(asked), spellings)[0, : len(words), 1]


def with_neighbours(values: Tensor, prompt: EncodedPrompt) -> Tensor:
    """Values [N] of all tokens, to each of which the mean of the 3 x 3 tokens around it is added, view by view. A word
    has several tokens, and its name is beside it. Outside the view all values are 0."""
    parts = values.split([len(view) for view in prompt.views])
    grids = [own[view.numbers().to(own.device)] for view, own in zip(prompt.views, parts, strict=True)]
    means = [F.avg_pool2d(grid[None], 3, stride=1, padding=1).flatten() for grid in grids]
    return values + torch.cat([view.spread(own) for view, own in zip(prompt.views, means, strict=True)])


def between_cells(values: Tensor, prompt: EncodedPrompt) -> Tensor:
    """Values of base tokens [M] on all tokens [N], interpolated between the cells' centres, view by view. The result is
    relative to the maximum, rounded to four digits, so that rounding errors do not order equal tokens."""
    values = values.float() / values.max().clamp(min=1e-12)
    parts, spread = values.split([rows * cols for rows, cols in prompt.base_grids]), []
    for view, grid, own in zip(prompt.views, prompt.base_grids, parts, strict=True):
        fine = F.interpolate(own.view(1, 1, *grid), (view.rows, view.cols), mode="bilinear", align_corners=False)
        spread.append(view.spread(fine.flatten().round(decimals=4)))
    return torch.cat(spread)


ALL = "all"  # the strategy of an answer with all tokens kept, each in its place, without base tokens


@dataclass(kw_only=True)
class AttachedFetch(FetchResult):
    """`FetchResult` of one prompt, with views of any shape: indices number the prompt's tokens, over all its views."""

    places: Tensor  # [N, 3] view, y, x of each token of the prompt
    owners: tuple[int, ...]  # the number of each view's image in the prompt
    base: int  # M, the base tokens beside the fetched tokens

    @property
    def positions(self) -> Tensor:
        """[1, K, 2] (y, x) of each token on the grid of its view."""
        return self.places[self.indices, 1:]

    def by_image(self) -> list[int]:
        """The number of fetched tokens with a place in each image of the prompt."""
        views = self.places[self.indices[0], 0]
        images = torch.tensor(self.owners, device=views.device)[views[views >= 0]]
        return torch.bincount(images, minlength=1 + max(self.owners)).tolist()

    def regions(self) -> Tensor:
        """[1, K, 4] y0, x0, y1, x1 of each token on the grid of its view, ends exclusive."""
        return torch.cat((self.positions, self.positions + 1), -1)

    def on_patches(self, values: Tensor) -> Tensor:
        """Values of fetched tokens [1, K] on all tokens, 0 on others: [1, N]."""
        return torch.zeros_like(self.scores).scatter(1, self.indices, values.to(self.scores))


def fetch_result(
    prompt: EncodedPrompt, indices: Tensor, scores: Tensor, relevance: Tensor, strategy: str, failed: bool
) -> AttachedFetch:
    """The result for the tokens `indices` [K] of a prompt, chosen by scores [N]; `failed`: saliency replaced the
    scorer."""
    places = prompt.places.to(indices.device)
    return AttachedFetch.of(
        indices.new_full((1,), len(indices)),
        indices=indices[None],
        scores=scores[None],
        relevance=relevance[None],
        is_padding=~prompt.is_place.to(indices.device)[indices][None],
        budget=len(indices),
        strategy=strategy,
        allocator="topk",
        fell_back=torch.tensor([failed]),
        places=places,
        owners=prompt.owners,
        base=0 if strategy == ALL else len(prompt.base),
    )


def origins(prompt: EncodedPrompt, indices: Tensor) -> tuple[Origin, ...]:
    """The places of the tokens `indices` [K] of a prompt in its images; none for tokens without a place."""
    numbers = indices.cpu()
    numbers = numbers[prompt.is_place[numbers]]
    owners = [prompt.owners[view] for view in prompt.places[numbers, 0].tolist()]
    placed = zip(owners, map(tuple, prompt.boxes[numbers].tolist()), strict=True)
    return tuple(Origin(at, prompt.sources[at].page, prompt.sources[at].second, box) for at, box in placed)


POSITIVE_WEIGHT = 4.0
"""Weight of a token under a box in the loss, relative to another token: the default of our own models."""


def read_scorer(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """What `AttachedReader.save_adapter` wrote about a scorer ("model_type", "width", "config" as JSON, and "base", the
    model that it was trained on), and its weights. Another kind of file is a ValueError."""
    try:
        with safe_open(path, framework="pt") as opened:
            about = opened.metadata() or {}
            weights = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no mapping)
    except SafetensorError as error:
        raise ValueError(f"{path}: expected a scorer in a safetensors file; got {error}") from error
    if "config" not in about:
        raise ValueError(f"{path}: expected a scorer that save_adapter wrote; got {len(weights)} other tensors")
    return about, weights


def new_scorer(config: ArrCocFetcherConfig, width: int, seed: int) -> TrainedScorer:
    """A scorer with random weights, for tokens `width` wide."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TrainedScorer(config, feature_size=width, text_size=width)


def scorer_loss(
    reader: "AttachedReader",
    scorer: Scorer,
    encoding: AttachedEncoding,
    question: str,
    boxes: Sequence[Sequence[Box]] | None,
    history: Sequence[Turn] = (),
) -> Tensor:
    """Loss of a scorer's map of one prompt: binary cross-entropy with boxes, a list for each image; or, with None,
    divergence from the model's own attention to all tokens."""
    (prompt,) = encoding.prompts
    scores = token_scores(scorer, prompt, reader.query(question))
    places = prompt.is_place.to(scores.device)
    if boxes is None:  # divergence of softmax(scores) from attention over the places
        paid = reader.runner.attention(encoding, prompt, question, history, to_all=True)[places]
        target = paid / paid.sum().clamp(min=1e-12)
        return F.kl_div(scores[places].log_softmax(-1), target, reduction="sum")
    target = relevance_of_boxes(prompt, boxes).to(scores.device)
    return relevance_loss(scores[None, None], target[None], places[None], POSITIVE_WEIGHT)
