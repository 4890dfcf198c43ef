"""Reinforcement: the scorer learns which patches to fetch from answers alone, without boxes.

For each question G sets of patches are drawn from the scorer, the model answers from each, and sets with better answers
than the same question's other sets become more likely (REINFORCE, Williams 1992, with a leave-one-out baseline, Kool et
al. 2019). An image is encoded once. Sets are drawn without replacement (Plackett-Luce): one patch after the other, each
with probability softmax(logits) among those that are left. Adding Gumbel noise to the logits and taking the K largest
draws exactly so (Yellott 1977; Kool et al. 2019, "Stochastic Beams").

This file has, in order: the drawing of sets, the reward of an answer, a batch whose questions are answered several
times, the loss, and a stage that learns tempering in the same way.

Notation: B prompts, I image slots, G draws, N patches, K of them drawn, S prompt length; `...` leading dimensions
(items, draws), the same everywhere in one call.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, kl_divergence

from ..data.formats import open_records
from ..data.records import Record
from ..metrics import exact_match, token_f1
from ..modeling.fetcher import FetchChoices, FetchResult
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration, ImageEncoding
from ..modeling.passes import AUTO_PASSES
from ..modeling.prompt import default_query_mask
from ..modeling.scorers import Scorer
from .losses import answer_positions, token_losses
from .optimizers import adamw, base_model
from .stages import STAGES, Loop, Run, Stage, check_names

_EXCLUDED = -1e30
"""Logit of what cannot be drawn: finite, because the gradient of logsumexp over nothing but -inf is not a number."""


def draw_orders(logits: Tensor, count: int, *, mask: Tensor | None = None, generator: torch.Generator) -> Tensor:
    """Draws `count` distinct patches: logits [..., N] -> indices [..., K], int64, in the order drawn.

    Args:
        logits: any scale; no gradient flows.
        count: K.
        mask: bool [..., N], True on what may be drawn; where that is fewer than K, others fill up, lower index first.
        generator: decides; on the generator's own device, so that a seed gives the same sets on every machine.

    Raises:
        ValueError: K above N, or below 1.
    """
    patches = logits.shape[-1]
    if not 1 <= count <= patches:
        raise ValueError(f"count: expected 1 to {patches} patches; got {count}")
    waits = torch.empty(logits.shape, device=generator.device).exponential_(generator=generator)
    keys = logits.detach().float() - waits.clamp(min=torch.finfo(torch.float32).tiny).log().to(logits.device)
    if mask is not None:
        filling = _EXCLUDED * (1 + torch.arange(patches, device=keys.device) / patches)
        keys = torch.where(mask, keys, filling)
    return keys.topk(count, dim=-1).indices


def draw_log_probability(logits: Tensor, drawn: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-probability of drawing these patches in this order: logits [..., N], drawn [..., K] -> [...].

    Drawn patches outside `mask` [..., N] only fill up (see `draw_orders`) and count as certain.
    """
    logits = logits.float() if mask is None else torch.where(mask, logits.float(), _EXCLUDED)
    others = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, drawn, True)
    rest = logits.masked_fill(others, _EXCLUDED).logsumexp(-1, keepdim=True)
    members = logits.gather(-1, drawn)
    left = torch.logaddexp(members.flip(-1).logcumsumexp(-1).flip(-1), rest)  # [..., K], of what each is drawn from
    return torch.where(members > _EXCLUDED / 2, members - left, 0.0).sum(-1)


@dataclass(frozen=True)
class RewardWeights:
    """Weights of the three terms of the reward of an answer in several passes.

    Attributes:
        correctness: of the answer: 1 exact, the overlap of tokens if partial, 0 wrong.
        efficiency: of the share of the tokens of `AUTO_PASSES` passes that was not fetched.
        passes: of 1 / number of passes before the answer.
    """

    correctness: float = 1.0
    efficiency: float = 0.01
    passes: float = 0.05


def answer_correctness(text: str, answers: Sequence[str]) -> float:
    """1 for an exact match with any answer, else the best F1 of words, 0 without a common word."""
    return 1.0 if exact_match(text, answers) else float(token_f1(text, answers))


def group_advantages(rewards: Tensor, *, normalise: bool = False) -> Tensor:
    """Rewards [B, G] less the mean of the same question's other draws (leave-one-out).

    `normalise`: divided by the standard deviation within the group; zero if all rewards are equal.
    """
    draws = rewards.shape[1]
    advantages = (rewards - rewards.mean(1, keepdim=True)) * draws / (draws - 1)
    if normalise:
        spread = rewards.std(1, keepdim=True)
        advantages = torch.where(spread > 1e-6, advantages / spread.clamp(min=1e-6), 0.0)
    return advantages


class DrawnQuestions:
    """Prompts about encoded images with their right answers, and the inputs for drawing their patches.

    Args:
        model: answers them.
        batch: of `QuestionCollator`, with as many placeholders for fetched tokens as patches are drawn.
        encoding: the batch's images; None: they are encoded.

    Attributes:
        selected: the image slots of the questions.
        mask: bool [I, N], True on patches that may be drawn.

    Raises:
        ValueError: no labels, or prompts without room for fetched tokens.
    """

    @torch.no_grad()
    def __init__(
        self, model: ArrCocForConditionalGeneration, batch: Mapping[str, Tensor], encoding: ImageEncoding | None = None
    ) -> None:
        needed = ("input_ids", "attention_mask", "labels")
        if missing := [name for name in needed if batch.get(name) is None]:
            raise ValueError(f"batch: expected input_ids, attention_mask and labels; got none of {', '.join(missing)}")
        ids, query, index = batch["input_ids"], batch.get("query_mask"), batch.get("image_index")
        if query is None:
            query = default_query_mask(ids, model.config.image_token_id, batch["attention_mask"], batch["labels"])
        if encoding is None:
            encoding = model.model.encode_image(batch["pixel_values"], batch.get("patch_mask"))
        if index is None:
            index = torch.arange(len(encoding), device=ids.device)
        self.selected = model.model.select_slots(ids, encoding, query_mask=query.bool(), image_index=index)
        if not self.selected.budget:
            raise ValueError("batch: expected prompts with room for fetched patches; got a budget of 0")
        mask, taken = self.selected.context.patch_mask, self.selected.taken
        self.mask = mask if taken is None else mask.scatter(1, taken, False)
        self.model, self.labels = model, batch["labels"]
        self.prompts: dict[str, Any] = {name: batch[name] for name in ("input_ids", "attention_mask")}
        self.prompts |= {"query_mask": query.bool(), "image_index": index, "image_encoding": encoding}

    @torch.no_grad()
    def correctness(self, drawn: Tensor) -> Tensor:
        """Correctness [B, G] of the answers from exactly the drawn patches [I, G, K].

        It is the share of the answer's tokens, its end included, that a greedy answer gets right before its first
        mistake. One pass suffices, as greedy decoding sees the same tokens up to there. Later tokens do not count: even
        without relevant patches a model guesses the ends of words.
        """
        labels, correct = self.labels, []
        for patches in drawn.unbind(1):
            kept, choices = answer_positions(labels), FetchChoices(patches=patches)
            output = self.model(**self.prompts, choices=choices, logits_to_keep=kept, use_cache=False)
            right = token_losses(output.logits, labels)[1]
            asked = labels[:, -right.shape[1] :] != -100
            correct.append(((right.logical_not().cumsum(1) == 0) & asked).sum(1) / asked.sum(1).clamp(min=1))
        return torch.stack(correct, 1)


ENTROPY_FLOOR, ENTROPY_WEIGHT = 1.0, 0.1
"""The least entropy of one draw from the scorer, nats (log(8) is that of 8 equal patches); weight of the shortfall."""


@dataclass(frozen=True)
class ReinforceSettings:
    """Settings of `reinforcement_loss`.

    Attributes:
        draws: G, sets drawn for each question.
        normalise: divide advantages by their standard deviation within a question's draws.
        kl_weight: of the divergence from the starting scorer.
    """

    draws: int = 8
    normalise: bool = False
    kl_weight: float = 0.01

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise ValueError(f"draws: expected at least 2, to be compared with each other; got {self.draws}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "ReinforceSettings":
        """Settings by name.

        Raises:
            ValueError: an unknown setting, or a bad one.
        """
        check_names(cls.__dataclass_fields__, settings, "reinforcement")
        return cls(**settings)


@dataclass(frozen=True)
class Reinforcement:
    """Loss and measurements of one step of reinforcement.

    Attributes:
        correctness: [B, G] in 0..1, the rewards.
        entropy: mean over slots, nats.
        divergence: mean over slots from the starting scorer, nats; 0 without one.
        sets: [I, G, K] the patches drawn.
    """

    loss: Tensor
    correctness: Tensor
    entropy: Tensor
    divergence: Tensor
    sets: Tensor

    def measures(self) -> dict[str, Tensor]:
        """Name in the log -> the tensor whose mean a run logs."""
        names = ("correctness", "entropy", "divergence")
        return {f"reinforcement/{name}": getattr(self, name) for name in names}


def one_draw(logits: Tensor, mask: Tensor) -> Categorical:
    """The distribution of a single draw from logits [I, N] over the patches in `mask`.

    Its divergence has a closed form; that of whole sets has none, and its estimate from a few sets is mostly noise.
    """
    return Categorical(logits=logits.float().masked_fill(~mask, torch.finfo(torch.float32).min), validate_args=False)


def reinforcement_loss(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    settings: ReinforceSettings,
    *,
    generator: torch.Generator,
    fetch: FetchResult | None = None,
    encoding: ImageEncoding | None = None,
    reference: Scorer | None = None,
) -> Reinforcement:
    """Draws G sets for each question, answers from each, and returns the loss that trains the scorer.

    Args:
        model: an ARR-COC model with its processor, wrapped by PEFT or not.
        batch: from `QuestionCollator`, without its boxes: `input_ids`, `labels`, `attention_mask` [B, S];
            `query_mask`, `image_index` where there are any; `pixel_values` and `patch_mask` unless `encoding` is given.
        fetch: of a forward pass on this batch: its scores get the gradient, through whatever wraps the model (DDP);
            None: the model's own scorer runs here.
        reference: the scorer as it was at the start, see `Reinforcement.divergence`; None: no divergence.

    Raises:
        ValueError: a scorer without weights, an allocator that chooses the number of patches, no labels, a prompt
            without room for fetched patches.
    """
    base = base_model(model)
    strategy = base.config.fetcher_config.strategy if fetch is None else fetch.strategy
    if not base.model.fetcher.check_strategy(strategy).trained:
        raise ValueError(f"strategy: expected a scorer with weights, to be trained; got {strategy!r}")
    asked = DrawnQuestions(base, batch, encoding)
    if fetch is None:
        fetch = base.model.fetch(asked.selected, FetchChoices(strategy=strategy))
    if fetch.survival is not None:
        raise ValueError(f"allocator: expected one that fetches exactly the budget; got {fetch.allocator!r}")
    logits, budget = fetch.scores, asked.selected.budget
    copies, mask = (each[:, None].expand(-1, settings.draws, -1) for each in (logits, asked.mask))
    sets = draw_orders(copies, budget, mask=mask, generator=generator)
    correct = asked.correctness(sets)
    log_p = torch.zeros_like(correct)  # several images in a prompt: drawn independently
    log_p = log_p.index_add(0, asked.selected.rows, draw_log_probability(copies, sets, mask))
    advantages = group_advantages(correct, normalise=settings.normalise)
    draw, divergence = one_draw(logits, asked.mask), logits.new_zeros(())
    entropy = draw.entropy()
    loss = -(advantages * log_p).mean() + ENTROPY_WEIGHT * (ENTROPY_FLOOR - entropy).relu().mean()
    if reference is not None:
        with torch.no_grad():
            before = reference(asked.selected.context)
        divergence = kl_divergence(draw, one_draw(before, asked.mask)).mean()
        loss = loss + settings.kl_weight * divergence
    return Reinforcement(loss, correct, entropy.detach().mean(), divergence.detach(), sets)


@STAGES.register("tempering")
@dataclass(frozen=True)
class Tempering(Stage):
    """Settings of the stage, and the stage.

    Attributes:
        data: a source of records, see `open_records`, each about one image.
        steps: of AdamW.
        batch_size: B.
        draws: G.
        learning_rate: of AdamW.
        budget: tokens of each pass.
        new_tokens: the most tokens of an answer, thinking included.
        rewards: weights of its parts, see `RewardWeights`.
        save_every: steps between checkpoints.
        seed: of questions and draws.
    """

    from_scratch: ClassVar[bool] = True

    data: Mapping[str, Any]
    steps: int = 100
    batch_size: int = 4
    draws: int = 4
    learning_rate: float = 0.02
    budget: int | str = "fast"
    new_tokens: int = 32
    rewards: Mapping[str, float] = field(default_factory=dict)
    save_every: int = 25
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("steps", "batch_size", "new_tokens", "save_every")
        self.check_counts("draws", least=2)
        check_names(RewardWeights.__dataclass_fields__, self.rewards, "rewards")

    def run(self, run: Run, folder: Path) -> None:
        model: Any = run.model
        model = model.to(run.device).eval()
        policy = model.model.fetcher.tempering
        if policy is None:
            raise ValueError("stage tempering: expected fetcher_config.learned_exploration: true; got false")
        model.processor = run.processor
        records = open_records(self.data, folder=run.root)

        def losses(step: int) -> Iterator[dict[str, Tensor]]:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
            rewards, log_p = [], []
            for number in torch.randint(len(records), (self.batch_size,), generator=generator).tolist():
                encoding = model.encode_image(records[number].picture)
                for draw in range(self.draws):
                    with policy.drawing(generator) as drawn:
                        rewards.append(self._play(model, encoding, records[number], step * self.draws + draw))
                    log_p.append(policy.log_probability(drawn))
            gained = torch.tensor(rewards).view(self.batch_size, self.draws)
            likely = torch.stack(log_p).view(self.batch_size, self.draws)
            loss = -(group_advantages(gained).to(likely) * likely).mean()
            yield {"loss": loss, "reward": gained.mean()}

        optimizer = adamw([([*policy.parameters()], self.learning_rate)], 0.0, policy)
        loop = Loop("tempering", policy, optimizer, folder / "tempering", self.steps, 0, self.save_every)
        loop.run(loop.resume(), losses, dict)

    def _play(self, model: ArrCocForConditionalGeneration, encoding: ImageEncoding, record: Record, seed: int) -> float:
        """The reward of one answer; its draws depend on question and seed."""
        passes: dict[str, Any] = {"num_passes": "auto", "exploration": "learned", "seed": seed}
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": self.new_tokens, "return_fetch": True}
        settings |= {"budget": self.budget, "history": record.history}
        answer = model.generate(encoding, record.question, **passes, **settings)
        weights, budget = RewardWeights(**self.rewards), AUTO_PASSES * answer.passes[0].fetch.budget
        correctness = answer_correctness(answer.text, record.answers)
        saved = 1 - answer.fetch.budget / max(1, budget)
        return weights.correctness * correctness + weights.efficiency * saved + weights.passes / len(answer.passes)
