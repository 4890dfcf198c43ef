"""A batch whose questions are answered several times, each time from other patches, and scored.

Notation: B prompts, I image slots, G draws, N patches, K saccades at most, S prompt length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..modeling.fetcher import FetchChoices, FetchResult
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration, ImageEncoding
from ..modeling.prompt import default_query_mask, trim_placeholders
from ..modeling.scorers import FetchContext
from .losses import answer_positions, token_losses
from .rewards import answer_correctness

_PROMPT = ("input_ids", "attention_mask", "labels", "query_mask")


@dataclass(frozen=True)
class AskedBatch:
    """Questions about encoded images, with room for K saccades per image.

    Attributes:
        model: that answers.
        batch: `_PROMPT` [B, S] and `image_index` [I].
        answers: for each prompt the texts that are right; None: what `labels` say.
        encoding: the images.
        context: what the scorers see of each slot.
        rows: [I] the prompt of each slot.
        mask: bool [I, N], True on patches that may be drawn.
        taken: [I, M] patches that are base tokens already, or None.
        budget: K.
    """

    model: ArrCocForConditionalGeneration
    batch: dict[str, Tensor]
    answers: Sequence[Sequence[str]] | None
    encoding: ImageEncoding
    context: FetchContext
    rows: Tensor
    mask: Tensor
    taken: Tensor | None
    budget: int

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
        core, ids, query, index = model.model, batch["input_ids"], batch.get("query_mask"), batch.get("image_index")
        if query is None:
            query = default_query_mask(ids, model.config.image_token_id, batch["attention_mask"], batch["labels"])
        if encoding is None:
            encoding = core.encode_image(batch["pixel_values"], batch.get("patch_mask"))
        if index is None:
            index = torch.arange(len(encoding), device=ids.device)
        look = core.look(ids, encoding, query_mask=query.bool(), image_index=index)
        if not look.budget:
            raise ValueError("batch: expected prompts with room for fetched patches; got a budget of 0")
        mask = look.context.patch_mask
        mask = mask if look.taken is None else mask.scatter(1, look.taken, False)
        kept = {**{name: batch[name] for name in _PROMPT[:3]}, "query_mask": query.bool(), "image_index": index}
        return cls(model, kept, answers, encoding, look.context, look.rows, mask, look.taken, look.budget)

    def fetch(self, strategy: str, allocator: str | None) -> FetchResult:
        """What the model itself would fetch, with the gradient of what chooses."""
        choices = FetchChoices(strategy=strategy, allocator=allocator)
        return self.model.model.fetcher(self.context, self.budget, choices, taken=self.taken)

    @torch.no_grad()
    def correctness(self, drawn: Tensor, sizes: Tensor, how: str) -> Tensor:
        """Correctness [B, G] of the answers from the first `sizes` [I, G] of the drawn patches [I, G, K].

        Raises:
            ValueError: images of one prompt with sets of different sizes.
        """
        correct = torch.zeros(len(self.batch["input_ids"]), drawn.shape[1], device=drawn.device)
        for g in range(drawn.shape[1]):
            wanted = sizes.new_full((len(correct),), int(sizes[0, g])).scatter(0, self.rows, sizes[:, g])
            if not torch.equal(wanted[self.rows], sizes[:, g]):
                received = "several, and an allocator that chooses for each how much it fetches"
                raise ValueError(f"batch: expected one image per prompt; got {received}")
            for size in wanted.unique().tolist():
                prompts = (wanted == size).nonzero()[:, 0]
                slots = torch.isin(self.rows, prompts)
                some = self._only(prompts, slots, size)
                correct[prompts, g] = some.answered(drawn[slots, g, :size], how).to(correct)
        return correct

    def _only(self, prompts: Tensor, slots: Tensor, saccades: int) -> "AskedBatch":
        """Some prompts [b] with their slots (bool [I]), with room for so many saccades."""
        if len(prompts) == len(self.batch["input_ids"]) and saccades == self.budget:
            return self
        config = self.model.config
        batch = trim_placeholders(
            counts=self.rows.new_full((int(slots.sum()),), saccades),
            image_token_id=config.image_token_id,
            base_positions=self.encoding.base_positions,
            pad_token_id=self._pad,
            **{name: self.batch[name][prompts] for name in _PROMPT},
        )
        batch["image_index"] = self.batch["image_index"][slots]
        answers = None if self.answers is None else [self.answers[i] for i in prompts.tolist()]
        return replace(self, batch=batch, answers=answers, budget=saccades)

    def answered(self, drawn: Tensor, how: str) -> Tensor:
        """Correctness [B] of the answers from exactly the drawn patches [I, K]; `how`: see `ReinforceSettings`."""
        given: dict[str, Any] = {"image_encoding": self.encoding, "image_index": self.batch["image_index"]}
        given["choices"] = FetchChoices(patches=drawn)
        return self._forced(given) if how == "forced" else self._generated(given)

    def _forced(self, given: dict[str, Any]) -> Tensor:
        """Share of the answer's tokens, its end included, that a greedy answer gets right before its first mistake.

        One pass tells, as greedy decoding up to there sees the same tokens. Tokens behind do not count: a model that
        sees nothing still guesses the ends of words.
        """
        labels = self.batch["labels"]
        prompts = {name: self.batch[name] for name in _PROMPT if name != "labels"}
        output = self.model(**prompts, **given, logits_to_keep=answer_positions(labels), use_cache=False)
        right = token_losses(output.logits, labels)[1]
        asked = labels[:, -right.shape[1] :] != -100
        return ((right.logical_not().cumsum(1) == 0) & asked).sum(1) / asked.sum(1).clamp(min=1)

    def _generated(self, given: dict[str, Any]) -> Tensor:
        """Greedy answers, scored as text."""
        prompts, room = self._prompts()
        given = {**prompts, **given, "max_new_tokens": room}
        output = self.model.generate(**given, do_sample=False, num_beams=1)
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
        return [text.strip() for text in texts]

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
        kept = before.gather(1, order)
        prompts = {
            "input_ids": ids.gather(1, order).masked_fill(~kept, self._pad),
            "attention_mask": kept.long(),
            "query_mask": self.batch["query_mask"].gather(1, order) & kept,
        }
        return prompts, int(asked.sum(1).max())
