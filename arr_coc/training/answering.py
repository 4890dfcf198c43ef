"""Stage: the whole model learns to find, fetch and answer, on rendered documents.

A batch is some pages with several questions each, encoded once. At first no answers are asked for: fetched tokens learn
to be the perfect ones of the copying stage, and the scorers learn relevance from the boxes of the answer and its label.
Then strategy and budget are drawn per batch, oracle boxes mostly at first (so that the reader sees what it is to read),
the trained scorers more and more; so one set of weights serves every strategy. Oracle batches also transcribe, in a
second turn, all lines that they fetched: many more characters than an answer has.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.data import Split
from arr_coc.modeling.allocators import best
from arr_coc.modeling.configuration_arr_coc import resolve_budget
from arr_coc.modeling.fetcher import FetchChoices, FetchResult
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.scorers import FetchContext
from arr_coc.training.checkpointing import load_weights, part_of
from arr_coc.training.copying import SPOKEN, PatchLanguage, at_patches, drawn_like, pointer_loss, pointing, right_rows
from arr_coc.training.loop import Loop, adamw
from arr_coc.training.questions import Batch, Prompts, QuestionPages
from arr_coc.training.reading import ReadingHead, reading_loss, word_loss
from arr_coc.training.streaming import prefetched

ANSWERED = "answering.pt"
"""Name of the stage's checkpoint."""


@dataclass(frozen=True)
class AnsweringStage:
    """Settings of the stage.

    Attributes:
        steps: optimiser steps.
        pages, questions: pages per step, and questions about each.
        learning_rate: of all but the grid encoder (encoder_rate) and the language model (language_rate).
        aligned_steps: steps at the start in which no answers are asked for: fetched tokens learn to be perfect ones,
            and the scorers relevance.
        frozen_steps: steps at the start in which the grid encoder is not trained.
        start_mix, end_mix: how often each strategy is drawn at the first step and from half of the steps on.
        budgets: how often each budget is drawn.
        transcribed: share of the oracle batches that also transcribe.
        transcript_budget: their number of saccades; lines are fetched and transcribed as long as they fit.
        relevance_share: share of the questions that the scorers are trained on in a step that does not fetch by one.
        relevance_weight, token_weight, base_weight, reading_weight, pointer_weight: of the losses beside the answer's.
        evaluate_every: steps between measurements and checkpoints.
        evaluate_questions: questions asked in a measurement.
        evaluate_split: what is measured on: "test" has held-out fonts and layouts.
        bf16: compute in bfloat16.
    """

    steps: int = 3000
    pages: int = 12
    questions: int = 4
    learning_rate: float = 1.5e-3
    encoder_rate: float = 3e-4
    language_rate: float = 5e-4
    aligned_steps: int = 300
    frozen_steps: int = 600
    weight_decay: float = 0.02
    warmup: int = 100
    start_mix: Mapping[str, float] = field(
        default_factory=lambda: {"oracle": 0.85, "realizer": 0.05, "none": 0.05, "saliency": 0.05}
    )
    end_mix: Mapping[str, float] = field(
        default_factory=lambda: {
            "oracle": 0.2,
            "realizer": 0.5,
            "none": 0.1,
            "saliency": 0.1,
            "random": 0.04,
            "clip_query": 0.04,
            "variance": 0.02,
        }  # fmt: skip
    )
    budgets: Mapping[str, float] = field(
        default_factory=lambda: {"standard": 0.6, "balanced": 0.2, "fast": 0.1, "accurate": 0.1}
    )
    transcribed: float = 0.8
    transcript_budget: int = 112
    relevance_share: float = 0.34
    relevance_weight: float = 2.0
    token_weight: float = 0.3
    base_weight: float = 0.1
    reading_weight: float = 0.3
    pointer_weight: float = 0.3
    evaluate_every: int = 200
    evaluate_questions: int = 192
    evaluate_split: Split = "test"
    bf16: bool = True
    seed: int = 0
    workers: int = 1


class Learner(nn.Module):
    """The model with what only training uses: the reading stage's head, and the perfect tokens of the copying stage."""

    def __init__(self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.model = model
        self.reading = ReadingHead(model.config.vision_config.out_channels)
        self.language = PatchLanguage(model, tokenizer).requires_grad_(False)

    def reading_loss(self, features: Tensor, batch: Batch) -> Tensor:
        """What the reading stage minimised, on this batch's pages."""
        characters, fields = self.reading(features)
        return reading_loss(characters, batch.glyphs) + word_loss(fields, batch.words)

    def token_loss(self, tokens: Tensor, batch: Batch, indices: Tensor) -> Tensor:
        """Squared distance of fetched tokens [I, K, D] to the perfect ones, as a share of the latter's mean square."""
        with torch.no_grad():
            embed = self.model.get_input_embeddings()
            perfect = self.language(*at_patches(batch, indices), indices, batch.glyphs.shape[1], embed)
        return _relative_error(tokens, perfect)

    def base_loss(self, tokens: Tensor, batch: Batch) -> Tensor:
        """Log of 1 + the same for base tokens [P, M, D]: perfect is the mean of their cell's perfect patch tokens."""
        with torch.no_grad():
            perfect = self.language.cells(batch, self.model.get_input_embeddings())
        return _relative_error(tokens, perfect).log1p()  # they begin far off the scale

    def features(self, batch: Batch, *, frozen: bool) -> Tensor:
        """The grid encoder's output [P, C, G, G]."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not frozen):
            return self.model.model.vision_tower.grid_encoder(batch.pixel_values)

    def prompt(self, batch: Batch, vision_tokens: int) -> tuple[Tensor, Tensor, int]:
        """Ids [I, S] with placeholders, the question's mask [I, S], and where the text after the image begins."""
        vision = torch.full(
            (len(batch.after), vision_tokens), self.model.config.image_token_id, device=batch.after.device
        )
        ids = torch.cat((batch.before, vision, batch.after), 1)
        lead = batch.before.shape[1] + vision_tokens
        return ids, F.pad(batch.query, (lead, 0)), lead

    def relevance_loss(self, context: FetchContext, labels: Tensor, fetched: FetchResult | None = None) -> Tensor:
        """Of all scorers; the one that led to `fetched` does not run again."""
        scores = self.model.model.fetcher.all_scores(context, fetched)
        return self.model.relevance_loss(scores, labels, context.patch_mask)

    def align(self, batch: Batch, budget: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Losses that need no language model in the loop, and leave it as it is: perfect tokens, relevance."""
        core = self.model.model
        features = self.features(batch, frozen=True)
        encoding = core.encode_features(features, batch.pixel_values)
        base_loss = self.base_loss(encoding.tokens, batch)
        pages = _pages(features, len(batch.after))
        encoding = encoding.select(pages)
        ids, query, _ = self.prompt(batch, encoding.base_positions)
        with torch.no_grad():
            context = core.look(ids, encoding, query_mask=query).context
        indices = best(batch.oracle + 0.5 * drawn_like(batch.oracle, generator), budget)
        tokens = core.bridge_saccades(encoding, indices).tokens
        return {
            "token": self.token_loss(tokens, batch, indices),
            "base": base_loss,
            "relevance": self.relevance_loss(context, batch.relevance),
        }

    def forward(
        self,
        batch: Batch,
        *,
        strategy: str,
        budget: int,
        stage: AnsweringStage,
        generator: torch.Generator,
        frozen: bool,
    ) -> dict[str, Tensor]:
        """Losses, and (under "right") whether each question was answered exactly, teacher-forced."""
        model, count = self.model, len(batch.after)
        features = self.features(batch, frozen=frozen)
        encoding = model.model.encode_features(features, batch.pixel_values)
        pages = _pages(features, count)
        base = encoding.tokens.shape[1]
        ids, query, lead = self.prompt(batch, base + budget)
        noise = drawn_like(batch.oracle, generator)  # the rest of an oracle's budget is drawn,
        noise *= drawn_like(noise[:, :1], generator) < 0.5  # or is the page's first patches
        choices = FetchChoices(strategy=strategy, relevance=batch.oracle + 0.5 * noise, generator=generator)
        made = model.model.embed_images(ids, encoding, query_mask=query, image_index=pages, choices=choices)
        fetched, context = made.fetch, made.context
        output = model.model(inputs_embeds=made.embeds, use_cache=False, output_attentions=self.training)
        hidden = output.last_hidden_state[:, lead - 1 : -1]
        chosen = batch.answer
        logits, targets = model.lm_head(hidden[chosen]), batch.after[chosen]
        losses = {"answer": F.cross_entropy(logits.float(), targets), "right": right_rows(logits, targets, chosen)}
        if self.training:
            if strategy in model.model.fetcher.scorers:
                losses["relevance"] = self.relevance_loss(context, batch.relevance, fetched)
            else:
                kept = torch.randperm(count, generator=generator)[: max(1, round(stage.relevance_share * count))]
                kept = kept.to(features.device)
                losses["relevance"] = self.relevance_loss(context.select(kept), batch.relevance[kept])
            losses["base"] = self.base_loss(encoding.tokens, batch)
            if not frozen:
                losses["reading"] = self.reading_loss(features, batch)
            if budget:
                losses["token"] = self.token_loss(made.image_tokens[:, base:], batch, fetched.indices)
                attention = pointing(output.attentions, steps=slice(lead - 1, -1), patches=slice(lead - budget, lead))
                losses["pointer"] = pointer_loss(attention, fetched.indices, batch.places)
        hit = batch.relevance.gather(1, fetched.indices).sum(1) / batch.relevance.sum(1)
        losses["recall"] = hit.mean()
        return losses


def _pages(features: Tensor, count: int) -> Tensor:
    """[I] the page of each of `count` image slots, equally many each."""
    return torch.arange(len(features), device=features.device).repeat_interleave(count // len(features))


def _relative_error(tokens: Tensor, perfect: Tensor) -> Tensor:
    return (tokens.float() - perfect.float()).square().mean() / perfect.float().square().mean()


def _mix(stage: AnsweringStage, step: int) -> dict[str, float]:
    """How often each strategy is drawn at `step`: linear from the start's mix to the end's over half of the steps."""
    progress = min(1.0, 2 * step / stage.steps)
    names = {**stage.start_mix, **stage.end_mix}
    return {n: (1 - progress) * stage.start_mix.get(n, 0.0) + progress * stage.end_mix.get(n, 0.0) for n in names}


def _draw(generator: torch.Generator, weights: Mapping[str, float]) -> str:
    chosen = torch.multinomial(torch.tensor(list(weights.values())), 1, generator=generator)
    return list(weights)[int(chosen)]


@torch.no_grad()
def measure(
    learner: Learner, batches: list[Batch], stage: AnsweringStage, strategies: tuple[str, ...]
) -> dict[str, tuple[float, float]]:
    """Exact match and recall per strategy at the standard budget, on batches of held-out fonts and layouts."""
    learner.eval()
    budget = resolve_budget("standard", learner.model.config.vision_config.num_patches)
    scores = {}
    for strategy in strategies:
        generator = torch.Generator().manual_seed(0)
        count = 0 if strategy == "none" else budget
        outputs = [
            learner(batch, strategy=strategy, budget=count, stage=stage, generator=generator, frozen=True)
            for batch in batches
        ]
        right = torch.cat([output["right"] for output in outputs]).float().mean().item()
        recall = torch.stack([output["recall"] for output in outputs]).mean().item() if count else 0.0
        scores[strategy] = (right, recall)
    learner.train()
    return scores


def _optimizer(learner: Learner, stage: AnsweringStage) -> torch.optim.Optimizer:
    core = learner.model.model
    slow = [*core.vision_tower.grid_encoder.parameters(), *learner.reading.parameters()]
    spoken = list(core.language_model.parameters())
    known = {id(parameter) for parameter in [*slow, *spoken, *learner.language.parameters()]}
    fast = [parameter for parameter in learner.parameters() if id(parameter) not in known]
    rates = [(slow, stage.encoder_rate), (spoken, stage.language_rate), (fast, stage.learning_rate)]
    return adamw(rates, stage.weight_decay)


def _begin_with(learner: Learner, weights: dict[str, Tensor]) -> None:
    """Takes over what an earlier stage trained: a reading, a copying or an answering stage, or a whole model."""
    core = learner.model.model
    parts: dict[str, nn.Module] = {SPOKEN: core.language_model, "language.": learner.language}
    if any(name.startswith("encoder.") for name in weights):
        parts = {"encoder.": core.vision_tower.grid_encoder, "head.": learner.reading}
    elif any(name.startswith("reading.") for name in weights):
        parts = {"model.model.": core, "reading.": learner.reading, "language.": learner.language}
    for prefix, part in parts.items():
        part.load_state_dict(part_of(weights, prefix))
    learner.model.tie_weights()


def train_answering(
    model: ArrCocForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    stage: AnsweringStage,
    out: Path,
    start: Sequence[Path] = (),
) -> ArrCocForConditionalGeneration:
    """Runs (or resumes) the stage and returns the trained model.

    Args:
        model: freshly initialised, or trained before.
        tokenizer: its tokenizer.
        stage: settings.
        out: folder for `answering.pt`, from which a killed run goes on.
        start: checkpoints of the stages before, or a trained model's folder, taken over in this order.
    """
    torch.manual_seed(stage.seed)
    learner = Learner(model, tokenizer).to(model.device).train()
    optimizer = _optimizer(learner, stage)
    path = out / ANSWERED
    loop = Loop("answering", learner, optimizer, path, stage.steps, stage.warmup, stage.evaluate_every, stage.bf16)
    first = loop.resume()
    if first is None:
        for path in start:
            _begin_with(learner, load_weights(path))
    first = first or 0
    prompts = Prompts(tokenizer, model.config.image_token_id)
    make = partial(QuestionPages, stage, model.config, prompts, transcript_budget=stage.transcript_budget)
    held_out = make(split=stage.evaluate_split, held_out=True)
    test = [
        held_out.batch(i).to(model.device)
        for i in range(-(-stage.evaluate_questions // (stage.pages * stage.questions)))
    ]
    pages = make(split="train", start=first)
    loader = prefetched(pages, stage.workers)
    patches = model.config.vision_config.num_patches

    def losses(step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(stage.seed * 1_000_003 + step)
        strategy = _draw(generator, _mix(stage, step))
        budget = 0 if strategy == "none" else resolve_budget(_draw(generator, stage.budgets), patches)
        batch, name = next(loader).to(model.device), f"answer/{strategy}"
        if step < stage.aligned_steps:
            found = learner.align(batch.transcript or batch, stage.transcript_budget, generator)
            logged = {part: value.detach() for part, value in found.items()}
            return {"loss": found["token"] + found["base"] + stage.relevance_weight * found["relevance"], **logged}
        if strategy == "oracle" and torch.rand((), generator=generator) < stage.transcribed:
            batch, budget, name = batch.transcript, stage.transcript_budget, "transcript"
        frozen = step < stage.frozen_steps
        found = learner(batch, strategy=strategy, budget=budget, stage=stage, generator=generator, frozen=frozen)
        weights = {"answer": 1.0, "relevance": stage.relevance_weight, "token": stage.token_weight}
        weights |= {"base": stage.base_weight, "reading": stage.reading_weight, "pointer": stage.pointer_weight}
        parts = {part: found[part] for part in weights if part in found}
        total = torch.stack([weights[part] * value for part, value in parts.items()]).sum()
        logged = {part: value.detach() for part, value in parts.items() if part != "answer"}
        return {"loss": total, name: found["answer"].detach(), **logged}

    def evaluate() -> str:
        scores = measure(learner, test, stage, ("oracle", "realizer", "none"))
        return ", ".join(f"{name} {right:.3f} (recall {recall:.3f})" for name, (right, recall) in scores.items())

    # Written out: the language model's attention is looked at, and the others' trains faster in bfloat16 on a CPU.
    configs = (model.config.vision_config, model.config.semantic_config)
    model.model.language_model.set_attn_implementation("eager")
    for config in configs:
        config._attn_implementation = "eager"
    loop.run(first, losses, evaluate)
    model.model.language_model.set_attn_implementation("sdpa")
    for config in configs:
        config._attn_implementation = "sdpa"
    return model
