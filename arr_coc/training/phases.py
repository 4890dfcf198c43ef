"""Phases: stages of a recipe that train some parts of a whole model on records; the other parts are frozen."""

import logging
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..adapters import check_parts
from ..data.collator import QuestionCollator
from ..data.formats import open_records
from ..files import disk_faults, replace_folder
from ..loading import refused
from ..modeling.bridges import BRIDGES
from ..modeling.configuration_arr_coc import GRADIENTS, ArrCocConfig
from ..modeling.processing_arr_coc import ArrCocProcessor
from ..modeling.scorers import SCORERS
from .cache import CachedEncoder
from .checkpoints import damage, mark_complete
from .losses import loss_weights
from .optimizers import base_model, train_only
from .reinforce import ReinforceSettings
from .stages import STAGES, Run, Stage, time_left
from .trainer import ArrCocTrainer

logger = logging.getLogger(__name__)

REINFORCEMENT = "reinforcement"
"""The gradient of a phase that rewards sampled sets of patches, which no configuration has, and its loss."""

MODEL = "model"
"""Folder of a phase's result, in the phase's own folder. It exists, complete, if and only if the phase is done."""

BEST = ("loss", "answer_loss", "exact", "recall")  # metrics that can decide which checkpoint is best


@dataclass(frozen=True)
class Phase(Stage):
    """Settings of a phase."""

    # Training data, see `arr_coc.data.formats.open_records`, with `on_error` and `max_errors`.
    data: Mapping[str, Any] = field(default_factory=lambda: {"format": "rendered"})
    # Evaluation data; None: no evaluation, and the last weights are kept instead of the best.
    held_out: Mapping[str, Any] | None = None
    # Trained parts, see `arr_coc.adapters.PARTS`, or single scorers as "scorer.experts"; the others are frozen.
    trained: tuple[str, ...] = ()
    steps: int = 5000  # of the optimiser
    warmup: int = 1000  # steps over which the learning rates rise to their full height
    batch_size: int = 8  # questions per device and forward pass
    accumulation: int = 1  # forward passes per step
    learning_rate: float = 1e-4  # of AdamW
    rates: Mapping[str, float] = field(default_factory=dict)  # learning rates of parts with another one
    weight_decay: float = 0.01  # of matrices
    # Their weights; each step draws one strategy (None: the model's own) and one budget.
    strategies: Mapping[str, float] | None = None
    budgets: Mapping[str | int, float] = field(default_factory=lambda: {"standard": 1.0})
    losses: Mapping[str, float] = field(default_factory=dict)  # weights that differ from `losses.WEIGHTS`
    # How the answer's loss reaches the scorer, see `fetcher_config.gradient`; "reinforcement": not at all, but answers
    # from drawn sets of patches are rewarded (with boxes also the relevance loss, unless `losses` has `relevance: 0`);
    # None: as configured.
    gradient: str | None = None
    reinforcement: Mapping[str, Any] = field(default_factory=dict)  # its settings, see `reinforce.ReinforceSettings`
    allocator: str | None = None  # its name; None: the model's
    # The mean of fetched tokens at which the efficiency loss is 0; None: the model's budget.
    target_tokens: float | None = None
    # Fetched tokens in distillation, the most salient first: all, or as many as the context holds.
    distillation_budget: int | str = "all"
    bf16: bool = False  # compute in bfloat16
    activation_checkpointing: bool = False  # trade time for memory
    evaluate_every: int = 500  # steps between evaluations, each with a checkpoint
    log_every: int = 50  # steps between lines of the log
    keep: int = 2  # checkpoints to keep, always with the best and the newest
    best: str = "loss"  # the metric of the best checkpoint, one of `BEST`
    # Folder of cached encoder outputs (see `cache`), relative to the recipe; None: images are encoded every time. For
    # phases that train no part that makes encodings: scorer, allocator or language model alone.
    cache: str | None = None
    workers: int = 0  # processes that prepare batches
    seed: int = 0  # of the order of records and of all draws
    report_to: str = "none"  # a place for metrics beside the log: "tensorboard" or "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self.trained, "trained", scorers=True)
        check_parts(self.rates, "rates")
        for name in ("strategies", "budgets"):
            weights = getattr(self, name)
            numbers = isinstance(weights, Mapping) and all(isinstance(w, int | float) for w in weights.values())
            if weights is not None and not (numbers and weights and min(weights.values()) >= 0 < sum(weights.values())):
                raise ValueError(f"{name}: expected a mapping of names to weights, one above 0; got {weights!r}")
        if self.best not in BEST:
            raise ValueError(f"best: expected one of {', '.join(BEST)}; got {self.best!r}")
        if self.report_to not in ("none", "tensorboard"):
            raise ValueError(f"report_to: expected tensorboard or none; got {self.report_to!r}")
        self._check_gradient()
        self.check_counts("steps", "batch_size", "accumulation", "evaluate_every", "log_every", "keep")

    def _check_gradient(self) -> None:
        reinforced = self.loss_weights()["reinforcement"] > 0
        if self.gradient not in (None, REINFORCEMENT, *GRADIENTS):
            expected = f"one of {', '.join(GRADIENTS)}, {REINFORCEMENT}"
            raise ValueError(f"gradient: expected {expected}; got {self.gradient!r}")
        ReinforceSettings.of(self.reinforcement)
        if self.reinforcement and not reinforced:
            raise ValueError(f"reinforcement: expected gradient: {REINFORCEMENT} beside it; got {self.gradient}")
        fixed = sorted(name for name in self.strategies or () if not SCORERS[name].trained)
        if reinforced and fixed:
            raise ValueError(f"strategies: expected scorers with weights, to be reinforced; got {', '.join(fixed)}")

    def draw(self, step: int, config: ArrCocConfig) -> tuple[str, int]:
        """How a step fetches: the strategy, and K, the fetched tokens of an image slot; drawn from seed and step."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + step) % 2**63)
        strategy = _drawn(self.strategies or {config.fetcher_config.strategy: 1.0}, generator)
        return strategy, config.vision_tokens(budget=_drawn(self.budgets, generator), strategy=strategy)[1]

    def loss_weights(self) -> dict[str, float]:
        """The weight of every loss."""
        return loss_weights({REINFORCEMENT: float(self.gradient == REINFORCEMENT), **self.losses})

    def run(self, run: Run, folder: Path) -> None:
        """The phase's model is a new object, loaded from the folder of its result."""
        trained = train_phase(run.model, run.processor, self, folder, device=run.device, root=run.root)
        with refused(str(trained)):
            run.model = type(run.model).from_pretrained(trained)


def _drawn(weights: Mapping[Any, float], generator: torch.Generator) -> Any:
    """A key, drawn by weight, from the sorted keys, so that the mapping's order has no effect."""
    names = sorted(weights, key=str)
    shares = torch.tensor([float(weights[name]) for name in names])
    return names[int(torch.multinomial(shares, 1, generator=generator))]


@STAGES.register("allocator")
@dataclass(frozen=True)
class AllocatorPhase(Phase):
    """Trains the parts that choose patches: scorer, allocator and bridge."""

    trained: tuple[str, ...] = ("scorer", "allocator", "bridge")


@STAGES.register("semantic")
@dataclass(frozen=True)
class SemanticPhase(Phase):
    """Trains the parts that encode them: the semantic encoder and the bridge."""

    trained: tuple[str, ...] = ("semantic", "bridge")


@STAGES.register("joint")
@dataclass(frozen=True)
class JointPhase(Phase):
    """Trains every part at once."""

    trained: tuple[str, ...] = ("scorer", "allocator", "bridge", "semantic", "encoder", "language")


class PhaseCallback(TrainerCallback):
    """Writes Trainer's metrics to this package's log, and the time that is left, once the first step is done."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        self._began, self._first = time.monotonic(), state.global_step
        # Only the older, reentrant form of activation checkpointing needs the gradient that it gives to the text
        # embeddings; with it, a frozen scorer would keep a graph over every patch.
        base_model(model).disable_input_require_grads()
        if state.best_metric is not None and state.best_model_checkpoint is None:  # it was damaged and discarded
            best = f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}"
            logger.warning(f"expected {best}, the best checkpoint so far; got none: the best of those to come is kept")
            state.best_metric = state.best_global_step = None

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step, last = state.global_step, state.max_steps
        done = step - self._first
        if state.is_world_process_zero and (done == 1 or step % args.logging_steps == 0):
            logger.info(f"step {step}/{last}: {time_left(time.monotonic() - self._began, done, last - step)}")

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in kwargs["logs"].items())
            logger.info(f"step {state.global_step}/{state.max_steps}: {numbers}")


def training_arguments(phase: Phase, folder: Path, device: torch.device) -> TrainingArguments:
    """The phase's settings as transformers' `TrainingArguments`. Raises ValueError: a GPU other than the first one that
    is visible, which Trainer uses."""
    if device.index:
        raise ValueError(f"device: expected cpu or cuda (CUDA_VISIBLE_DEVICES says which one); got {device}")
    evaluated = "no" if phase.held_out is None else "steps"
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=phase.steps,
        per_device_train_batch_size=phase.batch_size,
        per_device_eval_batch_size=phase.batch_size,
        gradient_accumulation_steps=phase.accumulation,
        optim="adamw_torch",
        learning_rate=phase.learning_rate,
        weight_decay=phase.weight_decay,
        warmup_steps=min(phase.warmup, phase.steps - 1),
        lr_scheduler_type="cosine",
        bf16=phase.bf16,
        activation_checkpointing=phase.activation_checkpointing,
        eval_strategy=evaluated,
        eval_steps=phase.evaluate_every,
        save_strategy="steps",
        save_steps=phase.evaluate_every,
        save_total_limit=phase.keep,
        load_best_model_at_end=phase.held_out is not None,
        metric_for_best_model=phase.best,
        greater_is_better="loss" not in phase.best,
        logging_steps=phase.log_every,
        report_to=phase.report_to,
        disable_tqdm=not sys.stderr.isatty(),
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_num_workers=phase.workers,
        ddp_find_unused_parameters=True,  # a step's strategy does not use all scorers
        use_cpu=device.type == "cpu",
        seed=phase.seed,
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # several GPUs need accelerate launch, not DataParallel
    return arguments


def make_trainer(
    model: Any, processor: ArrCocProcessor, phase: Phase, folder: Path, *, device: torch.device, root: Path
) -> ArrCocTrainer:
    """The trainer of a phase, its data opened and its frozen parts frozen.

    Args:
        model: an ARR-COC model, or a PEFT model around one (PEFT then decides the trained parameters, not
            `phase.trained`).
        folder: of the phase's checkpoints.
        root: the folder that paths in `phase.data` are relative to.
    """
    config = model.config
    base_model(model).processor = processor
    if not hasattr(model, "peft_config"):
        train_only(model, phase.trained)
    if phase.gradient is not None:
        config.fetcher_config.gradient = "none" if phase.gradient == REINFORCEMENT else phase.gradient
    budget = max(config.vision_tokens(budget=each, strategy="random")[1] for each in phase.budgets)
    if phase.held_out is not None:
        budget = max(budget, config.vision_tokens()[1])  # evaluation fetches as the model does, without draws
    if phase.loss_weights()["distillation"]:
        if BRIDGES[config.bridge_config.kind].places_tokens:
            expected = "a bridge whose tokens tell of one patch each"
            raise ValueError(f'distillation: expected {expected}; got "{config.bridge_config.kind}"')
        budget = max(budget, config.vision_tokens(budget=phase.distillation_budget, strategy="saliency")[1])
    collator = QuestionCollator(processor, config, budget=budget)
    records = open_records(phase.data, folder=root)
    held_out = None if phase.held_out is None else open_records(phase.held_out, folder=root)
    for opened in (records, held_out):
        if isinstance(opened, list):  # others are drawn on demand
            collator.check(opened)
    if phase.best == "recall" and isinstance(held_out, list) and not any(record.boxes for record in held_out):
        raise ValueError("best: expected held_out with boxes, of whose patches recall is; got none with any")
    trainer = ArrCocTrainer(
        model,
        training_arguments(phase, folder, device),
        phase=phase,
        data_collator=collator,
        train_dataset=records,
        eval_dataset=held_out,
        callbacks=[PhaseCallback()],
        cached=None if phase.cache is None else CachedEncoder(model, root / phase.cache),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def train_phase(
    model: Any, processor: ArrCocProcessor, phase: Phase, folder: Path, *, device: torch.device, root: Path
) -> Path:
    """Runs a phase, or resumes a killed one (see `make_trainer`); returns the folder with model and processor."""
    finished = folder / MODEL
    if finished.is_dir() and (fault := damage(finished)) is None:
        return finished
    if finished.is_dir():
        logger.warning(f"{finished}: expected what this phase made; got {fault}: making it again from the checkpoints")
    folder.mkdir(parents=True, exist_ok=True)
    configured = model.config.fetcher_config.gradient
    try:
        trainer = make_trainer(model, processor, phase, folder, device=device, root=root)
        trainer.train()
    finally:
        model.config.fetcher_config.gradient = configured  # the phase's gradient is not part of the resulting model
    _keep_model(trainer, processor, finished)
    return finished


def _keep_model(trainer: ArrCocTrainer, processor: ArrCocProcessor, finished: Path) -> None:
    """Writes the trained model to `finished` in one step; all processes take part."""
    beside = finished.with_name(f"{finished.name}.tmp")
    main = trainer.is_world_process_zero()
    if main:
        shutil.rmtree(beside, ignore_errors=True)  # remains of a killed run
    trainer.accelerator.wait_for_everyone()
    try:
        with disk_faults(finished):
            trainer.save_model(str(beside))
            if main:
                processor.save_pretrained(beside)
                mark_complete(beside)
                replace_folder(beside, finished)
    finally:
        if main:
            shutil.rmtree(beside, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
