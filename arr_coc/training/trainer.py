"""Training with transformers' Trainer: ARR-COC's losses, learning rates per part, measurements and whole checkpoints.

The order of records, and the strategy and budget of each step, are functions of seed and step alone: a resumed run, any
number of processes and any way of accumulating gradients draw the same.

Notation: B prompts, S their length, I image slots (one per prompt here), N patches, K fetched tokens.
"""

import logging
import os
import shutil
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints

from ..files import disk_faults
from ..loading import refused
from ..modeling.allocators import tier_sizes
from ..modeling.fetcher import FetchChoices
from ..modeling.image_encoding import ImageEncoding
from ..modeling.modeling_arr_coc import ArrCocOutput
from ..modeling.prompt import trim_placeholders
from .attention import answer_attention, patch_attention
from .cache import CachedEncoder
from .checkpoints import discard_incomplete, mark_complete, newest_complete
from .losses import (
    COUNTED,
    Averages,
    Term,
    answer_positions,
    counted,
    fetch_measures,
    item_measures,
    loss_terms,
    summary,
    token_losses,
)
from .optimizers import base_model, parameter_groups
from .reinforce import ReinforceSettings, reinforcement_loss

if TYPE_CHECKING:
    from .phases import Phase

logger = logging.getLogger(__name__)


_ALIGNED = ("attention_mask", "query_mask", "position_ids", "labels")
"""Tensors of a batch that are aligned with `input_ids`."""
_TAUGHT = ("labels", "relevance_targets", "retained")  # tensors of a batch that the model does not take


class ArrCocTrainer(Trainer):
    """Trainer for an ARR-COC model, or a PEFT model around one.

    Batches are those of `QuestionCollator`, with placeholders for all budgets that may be drawn or, with distillation,
    for all patches; `args.max_steps` is the length of a run. All draws are functions of seed and step, so a resumed run
    ends with the same weights as an uninterrupted one.
    """

    model: Any

    def __init__(self, *args: Any, phase: "Phase", cached: CachedEncoder | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weights = phase.loss_weights()
        self.compute_metrics = lambda rows: summary(torch.from_numpy(rows.predictions), self.weights)
        self.cached = cached
        self.phase = phase
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            for name, used in (("cache", cached is not None), ("reinforcement", self.weights["reinforcement"] > 0)):
                if used:
                    raise ValueError(f"{name}: expected every process to hold whole weights; got FSDP or DeepSpeed")
        self.loss_is_scaled_for_ga = True  # every loss is divided by the counts of the whole step
        self.model_accepts_loss_kwargs = True  # so that these counts are taken
        self.averages = Averages(self.accelerator)
        if self.weights["retention"] and not hasattr(self.model, "disable_adapter"):
            raise ValueError("retention: expected an adapter to be trained, beside what shall stay; got a whole model")
        self.references: dict[str, Any] = {}  # the scorers as the phase begins with them
        if self.weights["reinforcement"]:
            scorers = base_model(self.model).model.fetcher.scorers
            self.references = {name: deepcopy(own).requires_grad_(False) for name, own in scorers.items()}
        self.text_statistics = self._text_statistics() if self.weights["distribution"] else None
        wrapped = {type(module).__name__ for module in self.model.modules()}  # FSDP refuses names of missing modules
        self.model._no_split_modules = sorted(wrapped & set(base_model(self.model)._no_split_modules or ()))

    # ---- data and optimiser

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Numbers of records for a whole run: epoch after epoch, each in an order drawn from (seed, epoch).

        Trainer sees a run as one epoch of this length, so the place in the data follows from the step alone, and
        processes that share these numbers take the same records per step as a single process.
        """
        data: Any = self.train_dataset if train_dataset is None else train_dataset
        if not len(data):
            raise ValueError("data: expected at least 1 record to train on; got 0")
        per_step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        draws, numbers = per_step * self.args.max_steps, list[int]()
        for epoch in range(-(-draws // len(data))):
            generator = torch.Generator().manual_seed((self.args.seed * 1_000_003 + epoch) % 2**63)
            numbers += torch.randperm(len(data), generator=generator).tolist()
        return numbers[:draws]

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The configured optimiser over one group per trained part: see `optimizers.parameter_groups`."""
        if self.optimizer is None:
            trained: Any = self.model if model is None else model
            kind, settings = self.get_optimizer_cls_and_kwargs(self.args, trained)
            groups = parameter_groups(
                trained,
                learning_rate=self.args.learning_rate,
                rates=self.phase.rates,
                weight_decay=self.args.weight_decay,
            )
            self.optimizer = kind(groups, **settings)
        return self.optimizer

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Tensor:
        """The divisors of a step's losses (`COUNTED`), over all its batches and processes."""
        totals = sum(counted(batch, device) for batch in batch_samples)
        assert isinstance(totals, Tensor), "Trainer asks for a step that has batches"
        return self.accelerator.reduce(totals, "sum")

    # ---- one step

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The weighted sum of the losses, each divided by its count over the whole step."""
        config = base_model(self.model).config
        strategy, num_fetched = self.phase.draw(self.state.global_step, config)
        learns = any(parameter.requires_grad for parameter in base_model(self.model).model.fetcher.scorers.parameters())
        attended = self._attended(model, inputs) if learns and self.weights["distillation"] else None
        batch = self._trimmed(inputs, num_fetched)
        before = self._before(model, batch, strategy) if learns and self.weights["retention"] else None
        compared = learns and any(self.weights[name] for name in ("relevance", "distillation", "retention"))
        output = self._run(model, batch, strategy, self.phase.allocator, scores=compared)
        terms = loss_terms(
            output,
            batch,
            self.weights,
            config=config,
            target_tokens=config.vision_tokens()[1] if self.phase.target_tokens is None else self.phase.target_tokens,
            text_statistics=self.text_statistics,
            attended=attended,
            by_tier=self._answer_by_tier(model, inputs, strategy, num_fetched) if self.weights["tiers"] else None,
            before=before,
        )
        if self.weights["reinforcement"]:
            terms["reinforcement"] = self._reinforced(batch, output)
        totals = counted(batch, self.args.device) if num_items_in_batch is None else num_items_in_batch
        loss = self._weighed(terms, totals)
        if not loss.requires_grad:  # what was drawn reaches no trained part: the step learns nothing
            loss = loss + 0.0 * next(each for each in model.parameters() if each.requires_grad).sum()
        self.averages.add(fetch_measures(output, batch))
        return (loss, output) if return_outputs else loss

    def _weighed(self, terms: Mapping[str, Term], totals: Tensor) -> Tensor:
        """The loss to minimise. Gradients are averaged over processes, so it is multiplied by their number."""
        loss: Tensor = torch.zeros((), device=self.args.device)
        for name, term in terms.items():
            mean = term.total / totals[COUNTED.index(term.per)].clamp(min=1) * self.accelerator.num_processes
            self.averages.add({f"loss/{name}": mean * self.args.gradient_accumulation_steps})
            loss = loss + self.weights[name] * mean
        return loss

    def _reinforced(self, batch: Mapping[str, Any], output: ArrCocOutput) -> Term:
        """The loss of answers from drawn sets of patches; the draws depend on the batch, too."""
        assert output.fetch is not None
        fetch, settings, seed = output.fetch, ReinforceSettings.of(self.phase.reinforcement), 0
        for number in (self.args.seed, self.state.global_step, int(batch["input_ids"].sum())):
            seed = (seed * 1_000_003 + number) % 2**63
        draws, known = torch.Generator().manual_seed(seed), self.references[fetch.strategy]
        given: dict[str, Any] = {"fetch": fetch, "encoding": self._encoded(batch), "reference": known}
        reinforcement = reinforcement_loss(self.model, batch, settings, generator=draws, **given)
        measures = ("correctness", "entropy", "divergence")
        self.averages.add({f"reinforcement/{name}": getattr(reinforcement, name) for name in measures})
        return Term(reinforcement.loss * len(fetch.scores), "slots")

    def _encoded(self, batch: Mapping[str, Any]) -> ImageEncoding | None:
        """The batch's images from the cache; None without a cache."""
        return None if self.cached is None else self.cached.encode(batch["pixel_values"], batch.get("patch_mask"))

    def _run(
        self, model: nn.Module, batch: Mapping[str, Any], strategy: str, allocator: str | None, *, scores: bool = True
    ) -> ArrCocOutput:
        """A forward pass with logits of the answers' positions alone, and those of every trained scorer."""
        inputs = {name: tensor for name, tensor in batch.items() if name not in _TAUGHT}
        known = batch.get("relevance_targets")
        encoding = self._encoded(batch)
        if encoding is not None:
            inputs = {n: t for n, t in inputs.items() if n not in ("pixel_values", "patch_mask")}
            inputs["image_encoding"] = encoding
        relevance = None if known is None else known.clamp(min=0)
        choices = FetchChoices(strategy=strategy, allocator=allocator, relevance=relevance, all_scores=scores)
        return model(**inputs, choices=choices, logits_to_keep=answer_positions(batch["labels"]), use_cache=False)

    def _trimmed(self, inputs: Mapping[str, Any], num_fetched: int) -> dict[str, Any]:
        """The batch with placeholders for `num_fetched` fetched tokens per image."""
        config = base_model(self.model).config
        base = config.vision_tokens(inputs["pixel_values"].shape[-1], budget=0)[0]
        aligned = {name: inputs[name] for name in _ALIGNED if inputs.get(name) is not None}
        counts = torch.full((len(inputs["input_ids"]),), num_fetched, device=inputs["input_ids"].device)
        tokens: dict[str, Any] = {"image_token_id": config.image_token_id, "pad_token_id": config.padding_id}
        return {**inputs, **trim_placeholders(inputs["input_ids"], counts, base_positions=base, **tokens, **aligned)}

    @torch.no_grad()
    def _attended(self, model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """[I, N] the attention of the model with all patches fetched, when it predicts the answer."""
        inner = base_model(self.model)
        predicting = nn.functional.pad(inputs["labels"][:, 1:] != -100, (0, 1))
        with answer_attention(inner.model.language_model, predicting) as collected:
            # all patches are fetched, whatever the scores
            output = self._run(model, inputs, "saliency", "topk", scores=False)
        assert output.fetch is not None
        return patch_attention(collected, inputs["input_ids"], output.fetch, inner.config)

    @torch.no_grad()
    def _before(self, model: nn.Module, batch: Mapping[str, Any], strategy: str) -> Mapping[str, Tensor] | None:
        """The scorers' logits without the adapter; None without retained records."""
        if batch.get("retained") is None:
            return None
        with self.model.disable_adapter():
            return self._run(model, batch, strategy, self.phase.allocator).scores

    @torch.no_grad()
    def _answer_by_tier(self, model: nn.Module, inputs: Mapping[str, Any], strategy: str, num_fetched: int) -> Tensor:
        """[I, T] summed cross-entropy of each answer with the fetched tokens of each tier, none more than drawn."""
        sizes = tier_sizes(base_model(self.model).config.vision_config.num_patches, num_fetched).tolist()
        losses = {}
        for size in sorted(set(sizes)):
            batch = self._trimmed(inputs, size)
            output = self._run(model, batch, strategy, "topk", scores=False)
            assert output.logits is not None
            losses[size] = token_losses(output.logits, batch["labels"])[0].sum(1)
        return torch.stack([losses[size] for size in sizes], 1)

    def _text_statistics(self) -> tuple[float, float]:
        """Mean and standard deviation over all weights of the text embeddings, before training."""
        model = base_model(self.model)
        bridge = model.config.bridge_config
        if bridge.text_embedding_std is not None:
            return bridge.text_embedding_mean, bridge.text_embedding_std
        embeddings: Any = model.get_input_embeddings()
        std, mean = torch.std_mean(embeddings.weight.detach().float(), correction=0)
        return mean.item(), std.item()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the means of all measurements since the last log to the training log."""
        if "loss" in logs:
            if logs.get("grad_norm") == 0:
                logger.warning(
                    f"step {self.state.global_step}: no trained part has a gradient, so nothing was learned (losses "
                    'without what they need, such as boxes; strategy "none"; a budget of 0)'
                )
            logs = {**logs, **self.averages.drain()}
        super().log(logs, start_time)

    # ---- evaluation

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[None, Tensor, Tensor]:
        """The measurements of each item of a batch, in place of logits: see `losses.item_measures`."""
        config, inputs = base_model(self.model).config, self._prepare_inputs(inputs)
        batch = self._trimmed(inputs, config.vision_tokens()[1])  # strategy and budget are the model's own
        with torch.no_grad(), self.compute_loss_context_manager():
            output = self._run(model, batch, config.fetcher_config.strategy, self.phase.allocator)
            measures = item_measures(output, batch, positive_weight=config.relevance_positive_weight)
        return None, measures, measures[:, 0]

    # ---- checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Writes a checkpoint, declares it complete, and only then deletes old ones. Raises OSError: it cannot be
        written; none of it stays."""
        folder = self._get_output_dir(trial)
        written = Path(folder) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with disk_faults(written):
                super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                mark_complete(written)
        except OSError:
            if self.args.should_save:
                shutil.rmtree(written, ignore_errors=True)
            raise
        finally:
            self.args.save_total_limit = limit
        if self.args.should_save:
            rotate_checkpoints(folder, limit, self.state.best_model_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with refused(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def train(self, resume_from_checkpoint: str | bool | None = True, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trains, from the newest complete checkpoint in `args.output_dir` if there is one and `resume_from_checkpoint`
        is True. Raises ValueError: there are checkpoints, and all are damaged."""
        if resume_from_checkpoint is True:
            folder = Path(str(self.args.output_dir))
            if self.args.should_save:
                discard_incomplete(folder)
            self.accelerator.wait_for_everyone()
            newest = newest_complete(folder)
            resume_from_checkpoint = None if newest is None else os.fspath(newest)
        return super().train(resume_from_checkpoint, *args, **kwargs)
