"""Reinforcement: the scorer learns from answers alone which patches to fetch; no box is ever shown.

For each question G sets of K patches are drawn from the scorer (Plackett-Luce, `plackett_luce.py`), the model answers
from each, and sets that were answered better than the same question's other sets become more likely (REINFORCE,
Williams 1992, with a leave-one-out baseline, Kool et al. 2019). Only the scorer gets a gradient; an image is encoded
once.

Notation: B prompts, I image slots, G draws, N patches, K fetched, S prompt length.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from arr_coc.evaluating.metrics import exact_match, token_f1
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration, ImageEncoding
from arr_coc.modeling.prompting import find_slots
from arr_coc.modeling.realizing import FetchContext, Scorer
from arr_coc.training.plackett_luce import draw_orders, set_log_probability


@dataclass(frozen=True)
class RewardWeights:
    """What counts how much.

    Attributes:
        correctness: of the answer: 1 exact, the overlap of tokens where partial, 0 wrong.
        efficiency: of the share of the budget that was not fetched.
        passes: of 1 / how often the model ran back into the image before it answered.
    """

    correctness: float = 1.0
    efficiency: float = 0.01
    passes: float = 0.05


@dataclass(frozen=True)
class ReinforceSettings:
    """Settings of `reinforcement_loss`.

    Attributes:
        draws: G, sets drawn for each question.
        weights: of the reward's parts.
        normalise: divide advantages by their standard deviation within a question's draws.
        temperature: sets are drawn from logits / temperature.
        entropy_floor: nats, of one draw: a scorer surer than this is pulled back; log(8): as sure as between 8 patches.
        entropy_weight: of the shortfall.
        kl_weight: of the divergence from the starting scorer.
        answering: "generate": greedy answers, scored as text; "forced": one pass over the right answer, and the share
            of its tokens before the first mistake of a greedy answer is the overlap, which is a denser reward.
        strategy: the scorer; the config's by default.
    """

    draws: int = 8
    weights: RewardWeights = field(default_factory=RewardWeights)
    normalise: bool = False
    temperature: float = 1.0
    entropy_floor: float = 1.0
    entropy_weight: float = 0.1
    kl_weight: float = 0.01
    answering: Literal["generate", "forced"] = "generate"
    strategy: str | None = None

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise ValueError(f"draws: expected at least 2, to be compared with each other; got {self.draws}")
        if not self.temperature > 0:
            raise ValueError(f"temperature: expected a positive number; got {self.temperature}")
        if self.answering not in ("generate", "forced"):
            raise ValueError(f'answering: expected "generate" or "forced"; got {self.answering!r}')


@dataclass(frozen=True)
class Reinforcement:
    """What one step came to.

    Attributes:
        loss: to minimise.
        rewards: [B, G].
        correctness: [B, G] in 0..1.
        log_probability: [B, G] of the drawn sets.
        entropy: mean over slots, nats.
        divergence: mean over slots from the starting scorer, nats; 0 without one.
        sets: [I, G, K] the patches drawn.
    """

    loss: Tensor
    rewards: Tensor
    correctness: Tensor
    log_probability: Tensor
    entropy: Tensor
    divergence: Tensor
    sets: Tensor


# ---- pure functions -----------------------------------------------------------------------------------------------


def answer_correctness(text: str, answers: Sequence[str]) -> float:
    """1 for an exact match with any answer, else the best F1 of words, 0 where no word is shared."""
    return 1.0 if exact_match(text, answers) else float(token_f1(text, answers))


def reward(
    correctness: Tensor, *, fetched: Tensor | int, budget: int, passes: Tensor | int = 1, weights: RewardWeights
) -> Tensor:
    """correctness * w_c + (1 - fetched / budget) * w_e + w_p / passes, in the shape of `correctness`.

    With a fixed budget the last two are the same for all draws, and the baseline takes them out; they matter where
    draws of one question differ in them.

    Args:
        correctness: in 0..1.
        fetched: patches fetched.
        budget: patches that might have been fetched.
        passes: how often the model fetched; answering from the base tokens alone counts as one.
    """
    saved = 1 - torch.as_tensor(fetched).to(correctness) / max(1, budget)
    few = 1 / torch.as_tensor(passes).to(correctness).clamp(min=1)
    return weights.correctness * correctness + weights.efficiency * saved + weights.passes * few


def group_advantages(rewards: Tensor, *, normalise: bool = False) -> Tensor:
    """Rewards [B, G] less the mean of the same question's other draws: a draw is no part of its baseline.

    `normalise`: divided by the standard deviation within the group; zero where all draws fared alike.
    """
    draws = rewards.shape[1]
    advantages = (rewards - rewards.mean(1, keepdim=True)) * draws / (draws - 1)
    if normalise:
        spread = rewards.std(1, keepdim=True)
        advantages = torch.where(spread > 1e-6, advantages / spread.clamp(min=1e-6), 0.0)
    return advantages


def draw_entropy(logits: Tensor, mask: Tensor) -> Tensor:
    """Entropy in nats of one draw from logits [I, N] over the patches in `mask`: [I]."""
    log_p = _log_softmax(logits, mask)
    return -(log_p.exp() * log_p).sum(-1)


def draw_divergence(logits: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """KL divergence in nats of one draw from logits [I, N] from one draw from `reference` [I, N]: [I].

    Of a single draw, in closed form: that of whole sets has none, and its estimate from a few sets is mostly noise.
    """
    log_p, log_q = _log_softmax(logits, mask), _log_softmax(reference, mask)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def _log_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Finite outside the mask, so that products with the probabilities there are 0."""
    lowest = torch.finfo(torch.float32).min
    return logits.float().masked_fill(~mask, lowest).log_softmax(-1).clamp(min=-1e4)


# ---- the driver ---------------------------------------------------------------------------------------------------


def starting_scorer(model: nn.Module, strategy: str | None = None) -> Scorer:
    """A frozen copy of the scorer as it is now: the `reference` of `reinforcement_loss`."""
    base = _base(model)
    name = base.config.fetcher_config.strategy if strategy is None else strategy
    return deepcopy(base.model.fetcher.scorer(name)).requires_grad_(False)


def reinforcement_loss(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    settings: ReinforceSettings,
    *,
    generator: torch.Generator,
    answers: Sequence[Sequence[str]] | None = None,
    encoding: ImageEncoding | None = None,
    reference: Scorer | None = None,
) -> Reinforcement:
    """Draws G sets for each question, answers from each, and returns the loss whose gradient trains the scorer.

    Args:
        model: an ARR-COC model with its processor, wrapped by PEFT or not.
        batch: what `QuestionCollator` gives, boxes unused: `input_ids`, `labels`, `attention_mask` [B, S];
            `query_mask`, `image_index` where there are any; `pixel_values` and `patch_mask` unless `encoding` is given.
        settings: see there.
        generator: of the draws.
        answers: for each prompt the texts that are right; by default what `labels` say.
        encoding: the images, encoded.
        reference: the starting scorer, see `starting_scorer`; None: no divergence.

    Raises:
        ValueError: a scorer without weights, no labels, a prompt without room for fetched patches.
    """
    base = _base(model)
    strategy = base.config.fetcher_config.strategy if settings.strategy is None else settings.strategy
    scorer = base.model.fetcher.scorer(strategy)
    if not scorer.trained:
        raise ValueError(f"strategy: expected a scorer with weights, to be trained; got {strategy!r}")
    group = _Group.of(base, batch, encoding, answers)
    logits = scorer(group.context) / settings.temperature
    sets = draw_orders(
        logits[:, None].expand(-1, settings.draws, -1), group.budget, mask=group.mask[:, None], generator=generator
    )
    with torch.no_grad():
        correct = torch.stack([group.answered(sets[:, g], settings.answering) for g in range(settings.draws)], 1)
    rewards = reward(correct, fetched=group.budget, budget=group.budget, weights=settings.weights)
    log_p = set_log_probability(
        logits[:, None].expand(-1, settings.draws, -1), sets, group.mask[:, None].expand(-1, settings.draws, -1)
    )
    log_p = torch.zeros_like(rewards).index_add(0, group.rows, log_p)  # several images in a prompt: drawn independently
    advantages = group_advantages(rewards, normalise=settings.normalise)
    entropy, divergence = draw_entropy(logits, group.mask), logits.new_zeros(())
    loss = -(advantages * log_p).mean() + settings.entropy_weight * (settings.entropy_floor - entropy).relu().mean()
    if reference is not None:
        with torch.no_grad():
            before = reference(group.context) / settings.temperature
        divergence = draw_divergence(logits, before, group.mask).mean()
        loss = loss + settings.kl_weight * divergence
    return Reinforcement(loss, rewards, correct, log_p.detach(), entropy.detach().mean(), divergence.detach(), sets)


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@dataclass
class _Group:
    """A batch whose questions are answered several times, each time from other patches.

    `rows` [I] is the prompt of each slot, `mask` [I, N] which patches may be drawn, `budget` K.
    """

    model: ArrCocForConditionalGeneration
    batch: dict[str, Tensor]
    answers: Sequence[Sequence[str]] | None
    encoding: ImageEncoding
    context: FetchContext
    rows: Tensor
    mask: Tensor
    budget: int

    @classmethod
    def of(
        cls,
        model: ArrCocForConditionalGeneration,
        batch: Mapping[str, Tensor],
        encoding: ImageEncoding | None,
        answers: Sequence[Sequence[str]] | None,
    ) -> "_Group":
        missing = [name for name in ("input_ids", "attention_mask", "labels") if batch.get(name) is None]
        if missing:
            raise ValueError(f"batch: expected input_ids, attention_mask and labels; got none of {', '.join(missing)}")
        core, ids = model.model, batch["input_ids"]
        query = batch.get("query_mask")
        if query is None:
            query = model.default_query_mask(ids, batch["attention_mask"], batch["labels"])
        query = query.bool()
        with torch.no_grad():
            if encoding is None:
                encoding = core.encode_image(batch["pixel_values"], batch.get("patch_mask"))
            index = batch.get("image_index")
            shown = encoding if index is None else encoding.select(index)
            rows, budget = find_slots(ids, model.config.image_token_id, len(shown), encoding.base_positions)
            embeds = model.get_input_embeddings()(ids.masked_fill(ids == model.config.image_token_id, 0))
            context = core.fetch_context(shown, ids, embeds, rows, query, None, None)
        if not budget:
            raise ValueError("batch: expected prompts with room for fetched patches; got a budget of 0")
        mask = shown.patch_mask
        if shown.base_indices is not None and model.config.fetcher_config.overlap == "exclude":
            mask = mask.scatter(1, shown.base_indices, False)
        kept = {**{n: batch[n] for n in ("input_ids", "attention_mask", "labels")}, "query_mask": query}
        if index is not None:
            kept["image_index"] = index
        return cls(model, kept, answers, encoding, context, rows, mask, budget)

    def answered(self, drawn: Tensor, how: str) -> Tensor:
        """Correctness [B] of the answers from the drawn patches [I, K]."""
        oracle = torch.zeros(self.mask.shape, device=drawn.device).scatter(1, drawn, 1.0)
        fetch = {"strategy": "oracle", "allocator": "topk", "oracle_relevance": oracle}
        return self._forced(fetch) if how == "forced" else self._generated(fetch)

    def _forced(self, fetch: dict[str, Any]) -> Tensor:
        """Share of the answer's tokens, its end included, that a greedy answer gets right before its first mistake.

        One pass tells, as greedy decoding up to there sees the same tokens. Tokens behind do not count: a model that
        sees nothing still guesses the ends of words.
        """
        inputs = {name: value for name, value in self.batch.items() if name != "labels"}
        given: dict[str, Any] = {**inputs, **fetch, "image_encoding": self.encoding}
        output = self.model(**given, use_cache=False)
        labels = self.batch["labels"][:, 1:]
        asked = labels != -100
        wrong = (output.logits[:, :-1].argmax(-1) != labels) & asked
        return ((wrong.cumsum(1) == 0) & asked).sum(1) / asked.sum(1).clamp(min=1)

    def _generated(self, fetch: dict[str, Any]) -> Tensor:
        """Greedy answers, scored as text."""
        prompts, room = self._prompts()
        given: dict[str, Any] = {**prompts, **fetch, "image_encoding": self.encoding}
        if "image_index" in self.batch:
            given["image_index"] = self.batch["image_index"]
        output = self.model.generate(**given, max_new_tokens=room, do_sample=False, num_beams=1)
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
