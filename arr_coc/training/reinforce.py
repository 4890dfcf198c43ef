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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
from .optimizers import base_model
from .stages import STAGES, Run, ScratchStage, Task, check_names

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
    """Log-probability of drawing these patches in this order: logits [..., N], drawn [..., K] -> [...]. Drawn patches
    outside `mask` [..., N] only fill up (see `draw_orders`) and count as certain."""
    logits = logits.float() if mask is None else torch.where(mask, logits.float(), _EXCLUDED)
    others = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, drawn, True)
    rest = logits.masked_fill(others, _EXCLUDED).logsumexp(-1, keepdim=True)
    members = logits.gather(-1, drawn)
    left = torch.logaddexp(members.flip(-1).logcumsumexp(-1).flip(-1), rest)  # [..., K], of what each is drawn from
    return torch.where(members > _EXCLUDED / 2, members - left, 0.0).sum(-1)


REWARDS = {"correctness": 1.0, "efficiency": 0.01, "passes": 0.05}
"""Weights of the terms of the reward of an answer in several passes. correctness: 1 exact, the overlap of tokens if
partial, 0 wrong; efficiency: the share of the tokens of `AUTO_PASSES` passes that was not fetched; passes: 1 / number
of passes before the answer."""


def answer_correctness(text: str, answers: Sequence[str]) -> float:
    """1 for an exact match with any answer, else the best F1 of words, 0 without a common word."""
    return 1.0 if exact_match(text, answers) else float(token_f1(text, answers))


def group_advantages(rewards: Tensor, *, normalise: bool = False) -> Tensor:
    """Rewards [B, G] less the mean of the same question's other draws (leave-one-out). `normalise`: divided by the
    standard deviation within the group; zero if all rewards are equal."""
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
        ValueError: prompts without room for fetched tokens.
    """

    @torch.no_grad()
    def __init__(
        self, model: ArrCocForConditionalGeneration, batch: Mapping[str, Tensor], encoding: ImageEncoding | None = None
    ) -> None:
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
    """Settings of `reinforcement_loss`."""

    draws: int = 8  # G, sets drawn for each question
    normalise: bool = False  # divide advantages by their standard deviation within a question's draws
    kl_weight: float = 0.01  # of the divergence from the starting scorer

    def __post_init__(self) -> None:
        if self.draws < 2:
            raise ValueError(f"draws: expected at least 2, to be compared with each other; got {self.draws}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "ReinforceSettings":
        """Settings by name. Raises ValueError: an unknown setting, or a bad one."""
        check_names(cls.__dataclass_fields__, settings, "reinforcement")
        return cls(**settings)


@dataclass(frozen=True)
class Reinforcement:
    """Loss and measurements of one step of reinforcement."""

    loss: Tensor
    correctness: Tensor  # [B, G] in 0..1, the rewards
    entropy: Tensor  # mean over slots, nats
    divergence: Tensor  # mean over slots from the starting scorer, nats; 0 without one
    sets: Tensor  # [I, G, K] the patches drawn


def one_draw(logits: Tensor, mask: Tensor) -> Categorical:
    """The distribution of a single draw from logits [I, N] over the patches in `mask`. Its divergence has a closed
    form; that of whole sets has none, and its estimate from a few sets is mostly noise."""
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
        ValueError: a scorer without weights, an allocator that chooses the number of patches, or a prompt without room
            for fetched patches.
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
class Tempering(ScratchStage):
    """Settings of the stage."""

    name: ClassVar[str] = "tempering"
    writes_out: ClassVar[bool] = False

    # A source of records, see `open_records`, each about one image.
    data: Mapping[str, Any] = field(default_factory=lambda: {"format": "rendered"})
    steps: int = 100
    batch_size: int = 4  # B
    draws: int = 4  # G
    learning_rate: float = 0.02
    weight_decay: float = 0.0
    warmup: int = 0
    evaluate_every: int = 25
    bf16: bool = False
    workers: int = 0
    budget: int | str = "fast"  # tokens of each pass
    new_tokens: int = 32  # the most tokens of an answer, thinking included
    rewards: Mapping[str, float] = field(default_factory=dict)  # weights that differ from `REWARDS`

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("steps", "batch_size", "new_tokens", "evaluate_every")
        self.check_counts("draws", least=2)
        check_names(REWARDS, self.rewards, "rewards")

    def task(self, run: Run) -> "TemperingTask":
        return TemperingTask(self, run)


class TemperingTask(Task):
    """The policy of exploration "learned"; all else stays as it is."""

    stage: Tempering

    def __init__(self, stage: Tempering, run: Run) -> None:
        self.stage, self.model = stage, run.model.eval()
        self.policy: Any = run.model.model.fetcher.tempering
        if self.policy is None:
            raise ValueError("stage tempering: expected fetcher_config.learned_exploration: true; got false")
        self.module, run.model.processor = self.policy, run.processor
        self.records = open_records(stage.data, folder=run.root)

    def losses(self, step: int, batch: int) -> dict[str, Tensor]:
        stage, generator = self.stage, torch.Generator().manual_seed(self.stage.seed * 1_000_003 + step)
        rewards, log_p = [], []
        for number in torch.randint(len(self.records), (stage.batch_size,), generator=generator).tolist():
            encoding = self.model.encode_image(self.records[number].picture)
            for draw in range(stage.draws):
                with self.policy.drawing(generator) as drawn:
                    rewards.append(self._play(encoding, self.records[number], step * stage.draws + draw))
                log_p.append(self.policy.log_probability(drawn))
        gained = torch.tensor(rewards).view(stage.batch_size, stage.draws)
        likely = torch.stack(log_p).view(stage.batch_size, stage.draws)
        loss = -(group_advantages(gained).to(likely) * likely).mean()
        return {"loss": loss, "reward": gained.mean()}

    def measure(self) -> dict[str, float]:
        """Nothing: the log has the rewards."""
        return {}

    def _play(self, encoding: ImageEncoding, record: Record, seed: int) -> float:
        """The reward of one answer; its draws depend on question and seed."""
        passes: dict[str, Any] = {"num_passes": "auto", "exploration": "learned", "seed": seed}
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": self.stage.new_tokens, "return_fetch": True}
        settings |= {"budget": self.stage.budget, "history": record.history}
        answer = self.model.generate(encoding, record.question, **passes, **settings)
        terms = {
            "correctness": answer_correctness(answer.text, record.answers),
            "efficiency": 1 - answer.fetch.budget / max(1, AUTO_PASSES * answer.passes[0].fetch.budget),
            "passes": 1 / len(answer.passes),
        }
        return sum({**REWARDS, **self.stage.rewards}[name] * term for name, term in terms.items())
