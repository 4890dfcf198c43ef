"""A batch whose questions are answered several times, each time from other patches, and scored.

Notation: B prompts, I image slots, G draws, N patches, K saccades at most, S prompt length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..modeling.allocators import FetchResult
from ..modeling.answers import split_thinking
from ..modeling.fetcher import FetchChoices
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration, ImageEncoding
from ..modeling.prompt import Look, default_query_mask, trim_placeholders
from .losses import answer_positions, token_losses
from .rewards import answer_correctness

_PROMPT = ("input_ids", "attention_mask", "labels", "query_mask")


@dataclass(frozen=True)
class AnsweredPrompts:
    """Prompts about encoded images, and their right answers.

    Attributes:
        model: that answers.
        batch: `_PROMPT` [B, S], the ids with placeholders for as many saccades as patches are to be drawn, and
            `image_index` [I].
        answers: for each prompt the texts that are right; None: what `labels` say.
        encoding: the images.
    """

    model: ArrCocForConditionalGeneration
    batch: dict[str, Tensor]
    answers: Sequence[Sequence[str]] | None
    encoding: ImageEncoding

    def select(self, prompts: Tensor, slots: Tensor, saccades: int) -> "AnsweredPrompts":
        """Some prompts, by number [b], with their slots (bool [I]), and placeholders for so many saccades per image."""
        batch = trim_placeholders(
            counts=torch.full((int(slots.sum()),), saccades, device=slots.device),
            image_token_id=self.model.config.image_token_id,
            base_positions=self.encoding.base_positions,
            pad_token_id=self._pad,
            **{name: self.batch[name][prompts] for name in _PROMPT},
        )
        batch["image_index"] = self.batch["image_index"][slots]
        answers = None if self.answers is None else [self.answers[i] for i in prompts.tolist()]
        return replace(self, batch=batch, answers=answers)

    def answered(self, drawn: Tensor, how: str) -> Tensor:
        """Correctness [B] of the answers from exactly the drawn patches [I, K]; `how`: see `ReinforceSettings`."""
        images: dict[str, Any] = {"image_encoding": self.encoding, "image_index": self.batch["image_index"]}
        images["choices"] = FetchChoices(patches=drawn)
        return self._forced(images) if how == "forced" else self._generated(images)

    def _forced(self, images: dict[str, Any]) -> Tensor:
        """Share of the answer's tokens, its end included, that a greedy answer gets right before its first mistake.

        One pass tells, as greedy decoding up to there sees the same tokens. Tokens behind do not count: a model that
        sees nothing still guesses the ends of words.
        """
        labels = self.batch["labels"]
        prompts = {name: self.batch[name] for name in _PROMPT if name != "labels"}
        output = self.model(**prompts, **images, logits_to_keep=answer_positions(labels), use_cache=False)
        right = token_losses(output.logits, labels)[1]
        asked = labels[:, -right.shape[1] :] != -100
        return ((right.logical_not().cumsum(1) == 0) & asked).sum(1) / asked.sum(1).clamp(min=1)

    def _generated(self, images: dict[str, Any]) -> Tensor:
        """Greedy answers, scored as text, with room for what is thought before them."""
        prompts, room = self._prompts()
        room = max(room, self.model.generation_config.max_new_tokens or 0)
        settings: dict[str, Any] = {**prompts, **images, "max_new_tokens": room}
        output = self.model.generate(**settings, do_sample=False, num_beams=1)
        texts = self._decoded(output[:, prompts["input_ids"].shape[1] :])
        wanted = self.answers
        if wanted is None:
            labels = self.batch["labels"]
            wanted = [[text] for text in self._decoded(labels.masked_fill(labels == -100, self._pad))]
        scores = [answer_correctness(text, right) for text, right in zip(texts, wanted, strict=True)]
        return torch.tensor(scores, device=output.device)

    @property
    def _pad(self) -> int:
        return self.model.processor.tokenizer.pad_token_id

    def _decoded(self, ids: Tensor) -> list[str]:
        texts = self.model.processor.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [split_thinking(text.strip())[1] for text in texts]

    def _prompts(self) -> tuple[dict[str, Tensor], int]:
        """The prompts up to their answers, padded on the left, and tokens of the longest answer."""
        labels, ids = self.batch["labels"], self.batch["input_ids"]
        asked = labels != -100
        if not bool(asked.any(1).all()):
            raise ValueError("labels: expected an answer in every row; got rows without")
        position = torch.arange(ids.shape[1], device=ids.device)
        before = (position < asked.int().argmax(1, keepdim=True)) & self.batch["attention_mask"].bool()
        width = int(before.sum(1).max())
        order = before.int().argsort(dim=1, stable=True)[:, -width:]  # what is kept, at the end, in its order
        inside = before.gather(1, order)
        prompts = {
            "input_ids": ids.gather(1, order).masked_fill(~inside, self._pad),
            "attention_mask": inside.long(),
            "query_mask": self.batch["query_mask"].gather(1, order) & inside,
        }
        return prompts, int(asked.sum(1).max())


@dataclass(frozen=True)
class AskedBatch:
    """Questions whose patches are to be drawn.

    Attributes:
        prompts: with room for K saccades per image.
        look: what the questions see before anything is fetched.
        mask: bool [I, N], True on patches that may be drawn.
    """

    prompts: AnsweredPrompts
    look: Look
    mask: Tensor

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: ArrCocForConditionalGeneration,
        batch: Mapping[str, Tensor],
        *,
        encoding: ImageEncoding | None = None,
        answers: Sequence[Sequence[str]] | None = None,
    ) -> "AskedBatch":
        """What `QuestionCollator` gives, its images encoded unless `encoding` is given.

        Raises:
            ValueError: no labels, or prompts without room for saccades.
        """
        missing = [name for name in ("input_ids", "attention_mask", "labels") if batch.get(name) is None]
        if missing:
            raise ValueError(f"batch: expected input_ids, attention_mask and labels; got none of {', '.join(missing)}")
        ids, query, index = batch["input_ids"], batch.get("query_mask"), batch.get("image_index")
        if query is None:
            query = default_query_mask(ids, model.config.image_token_id, batch["attention_mask"], batch["labels"])
        if encoding is None:
            encoding = model.model.encode_image(batch["pixel_values"], batch.get("patch_mask"))
        if index is None:
            index = torch.arange(len(encoding), device=ids.device)
        look = model.model.look(ids, encoding, query_mask=query.bool(), image_index=index)
        if not look.budget:
            raise ValueError("batch: expected prompts with room for fetched patches; got a budget of 0")
        mask = look.context.patch_mask
        mask = mask if look.taken is None else mask.scatter(1, look.taken, False)
        own = {**{name: batch[name] for name in _PROMPT[:3]}, "query_mask": query.bool(), "image_index": index}
        return cls(AnsweredPrompts(model, own, answers, encoding), look, mask)

    def fetch(self, strategy: str, allocator: str | None) -> FetchResult:
        """What the model itself would fetch, with the gradient of what chooses."""
        return self.prompts.model.model.fetch(self.look, FetchChoices(strategy=strategy, allocator=allocator))

    @torch.no_grad()
    def correctness(self, drawn: Tensor, sizes: Tensor, how: str) -> Tensor:
        """Correctness [B, G] of the answers from the first `sizes` [I, G] of the drawn patches [I, G, K].

        Raises:
            ValueError: images of one prompt with sets of different sizes.
        """
        rows = self.look.rows
        correct = torch.zeros(len(self.look.input_ids), drawn.shape[1], device=drawn.device)
        for g in range(drawn.shape[1]):
            wanted = sizes.new_full((len(correct),), int(sizes[0, g])).scatter(0, rows, sizes[:, g])
            if not torch.equal(wanted[rows], sizes[:, g]):
                received = "several, and an allocator that chooses for each how much it fetches"
                raise ValueError(f"batch: expected one image per prompt; got {received}")
            for size in wanted.unique().tolist():
                prompts = (wanted == size).nonzero()[:, 0]
                slots = torch.isin(rows, prompts)
                asked = self.prompts
                if len(prompts) < len(correct) or size < self.look.budget:
                    asked = asked.select(prompts, slots, size)
                correct[prompts, g] = asked.answered(drawn[slots, g, :size], how).to(correct)
        return correct
