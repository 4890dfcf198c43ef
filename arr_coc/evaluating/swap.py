"""Is the base used? Questions about a page, answered with the base tokens of another page in place of its own.

A model that reads its base answers worse with a wrong one: without saccades it cannot answer at all, and with them the
difference says how much the base still contributes. A model that ignores its base answers the same.

Notation: n questions, P images, M base tokens, K saccades, D width of the language model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.collator import IGNORED, QuestionCollator
from ..data.records import Record
from ..modeling.fetcher import FetchChoices
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.vision_tower import ImageEncoding
from .prediction_loop import Item, by_image, new_tokens

PROMPT = ("input_ids", "attention_mask", "query_mask")
"""What the model is given of a batch, beside its images."""


@dataclass(frozen=True)
class Answered:
    """What came of n questions with one kind of base tokens.

    Attributes:
        answers: greedily decoded, in the order of the records.
        losses: float32 [n], of each first right answer: mean cross-entropy of its tokens and its end, nats.
    """

    answers: list[str]
    losses: Tensor


@dataclass(frozen=True)
class Swap:
    """Answers at one budget with each page's own base tokens and with another page's; the patches fetched are the same.

    Attributes:
        budget: as it was asked for.
        own, other: what came of each.
        images: int64 [n], the number of each question's image: questions about one belong together in statistics.
    """

    budget: int | str | None
    own: Answered
    other: Answered
    images: Tensor

    @property
    def changed(self) -> float:
        """Share of the answers that another page's base changes: 0 where the base is not used."""
        pairs = zip(self.own.answers, self.other.answers, strict=True)
        return sum(own != other for own, other in pairs) / len(self.own.answers)

    @property
    def harm(self) -> Tensor:
        """[n] how much another page's base adds to the loss of the right answer: 0 where the base is not used."""
        return self.other.losses - self.own.losses


def swap_base(encoding: ImageEncoding, donors: Tensor) -> ImageEncoding:
    """The encoding with base tokens, as the language model reads them, of the images `donors` [P] in place of its own.

    All else stays: what is fetched, and the saccades' tokens, which saw the base of their own page.
    """
    quality = encoding.quality
    return replace(
        encoding.without_prefix(),
        tokens=encoding.tokens[donors.to(encoding.tokens.device)],
        quality=None if quality is None else quality[donors.to(quality.device)],
    )


def swap_test(
    model: ArrCocForConditionalGeneration,
    records: Sequence[Record],
    *,
    budgets: Sequence[int | str | None] = (0, None),
    strategy: str | None = None,
    batch_size: int = 8,
) -> list[Swap]:
    """Answers every question with its page's own base tokens and with those of the next image of the data.

    Args:
        model: with a processor; set to evaluation meanwhile.
        records: questions about at least two images.
        budgets: of saccades, a `Swap` each; 0: from the base alone; None: as configured.
        strategy: how patches are fetched; None: as configured.
        batch_size: images at a time, with all of their questions.

    Raises:
        ValueError: records of fewer than two images, or one that cannot be read.
    """
    groups = by_image(records)
    if len(groups) < 2:
        raise ValueError(f"records: expected questions about at least 2 images; got {len(groups)}")
    was_training = model.training
    model.eval()
    try:
        return [_swap(model, groups, budget, strategy, batch_size) for budget in budgets]
    finally:
        model.train(was_training)


def _swap(
    model: ArrCocForConditionalGeneration,
    groups: Sequence[Sequence[Item]],
    budget: int | str | None,
    strategy: str | None,
    batch_size: int,
) -> Swap:
    """The test at one budget; `groups` are the questions of each image."""
    collate = QuestionCollator(model.processor, model.config, padding_side="left", budget=budget)
    places, images, sides = [], [], []
    for first, asked, donor in _parts(groups, batch_size):
        # The last row asks about the donor of the last image, and is only there to be encoded.
        batch = collate([*[item.record for item in asked], donor.record])
        slots = batch["image_index"][:-1]
        relevance = batch["relevance_targets"][:-1] if strategy == "oracle" else None
        choices = FetchChoices(strategy="none" if budget == 0 else strategy, budget=budget, relevance=relevance)
        encoding = _encode(model, batch)
        swapped = swap_base(encoding, (torch.arange(len(encoding)) + 1) % len(encoding))
        sides.append([_answer(model, seen.select(slots), asked, batch, choices) for seen in (encoding, swapped)])
        places += [item.place for item in asked]
        images.append(first + slots)
    order = torch.tensor(places).argsort()
    own, other = (_joined(parts, order) for parts in zip(*sides, strict=True))
    return Swap(budget, own, other, torch.cat(images)[order])


def _parts(groups: Sequence[Sequence[Item]], size: int) -> Iterator[tuple[int, list[Item], Item]]:
    """The number of a part's first image, the questions about its images, and one about the image behind them."""
    for first in range(0, len(groups), size):
        part = groups[first : first + size]
        yield first, [item for group in part for item in group], groups[(first + len(part)) % len(groups)][0]


@torch.no_grad()
def _encode(model: ArrCocForConditionalGeneration, batch: Mapping[str, Tensor]) -> ImageEncoding:
    device = model.model.input_device
    return model.model.encode_image(batch["pixel_values"].to(device), batch["patch_mask"].to(device))


@torch.no_grad()
def _answer(
    model: ArrCocForConditionalGeneration,
    encoding: ImageEncoding,
    asked: Sequence[Item],
    batch: Mapping[str, Tensor],
    choices: FetchChoices,
) -> Answered:
    """Answers to the questions that `batch` begins with; `encoding` holds an image for each."""
    questions, labels = [item.record.question for item in asked], batch["labels"][: len(asked)]
    settings: dict[str, Any] = {"do_sample": False, "num_beams": 1, "max_new_tokens": new_tokens(model)}
    answers = model.generate(encoding, questions, choices=choices, **settings)
    prompts = {name: batch[name][: len(asked)].to(model.model.input_device) for name in PROMPT}
    lengths = (labels != IGNORED).sum(1)
    longest = int(lengths.max())  # the answers are at the end of their rows
    output = model(**prompts, image_encoding=encoding, choices=choices, logits_to_keep=longest + 1, use_cache=False)
    predictions, targets = output.logits[:, :-1].float().cpu().transpose(1, 2), labels[:, -longest:]
    losses = F.cross_entropy(predictions, targets, ignore_index=IGNORED, reduction="none")
    return Answered(answers, losses.sum(1) / lengths)


def _joined(parts: Sequence[Answered], order: Tensor) -> Answered:
    """The parts as one, in the order that is given."""
    answers = [answer for part in parts for answer in part.answers]
    return Answered([answers[place] for place in order.tolist()], torch.cat([part.losses for part in parts])[order])
