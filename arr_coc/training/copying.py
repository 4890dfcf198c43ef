"""Stage: the language model learns to read patch tokens that are perfect, before any vision is in the loop.

A patch token is perfect if it says, in the language model's own embeddings, which characters stand in the patch, which
field's name they belong to, and where the patch is. Pages are sketched, not rendered, and no image is encoded, so steps
are cheap, and copying (find the label, go along the row, spell what stands there) is learnt in minutes. The answering
stage then has a target for every fetched token: the perfect one.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.data import CHARSET, FIELDS
from arr_coc.modeling.allocators import best
from arr_coc.modeling.configuration_arr_coc import COMPRESSION
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.scorers import position_code
from arr_coc.training.checkpointing import load_weights, part_of
from arr_coc.training.loop import Loop, adamw
from arr_coc.training.questions import Batch, Prompts, QuestionPages
from arr_coc.training.reading import SLOTS
from arr_coc.training.streaming import prefetched

COPIED = "copying.pt"
"""Name of the stage's checkpoint, which the next copying stage goes on from."""

POINTING_LAYER, POINTING_HEADS = -2, 2
"""Where the language model is taught to look: the first heads of its last layer but one."""

SPOKEN = "model.model.language_model."
"""Where a checkpoint's weights of the language model are."""

POSITION_SIZE = 64
"""Channels of the fixed position code that perfect tokens carry."""


@dataclass(frozen=True)
class CopyingStage:
    """Settings of the stage.

    Attributes:
        steps: optimiser steps.
        pages, questions: sketched pages per step, and questions about each.
        budget: patch tokens per question; lines are taken along and transcribed as long as they fit.
        pointer_weight: of the loss that tells where to look for each character.
        base_steps: steps at the end in which perfect base tokens stand before the patches, as in the whole model.
        learning_rate, weight_decay, warmup: AdamW; warm-up in steps.
        evaluate_every: steps between measurements and checkpoints.
        bf16: compute in bfloat16.
    """

    steps: int = 1200
    pages: int = 16
    questions: int = 2
    budget: int = 64
    pointer_weight: float = 0.5
    base_steps: int = 1500
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    warmup: int = 100
    evaluate_every: int = 200
    bf16: bool = True
    seed: int = 0
    workers: int = 1


class PatchLanguage(nn.Module):
    """What a perfect patch token says, in the language model's embeddings."""

    def __init__(self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        size = model.config.text_config.hidden_size
        self.slots = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(SLOTS - 1))
        self.word = nn.Linear(size, size, bias=False)
        self.position = nn.Linear(POSITION_SIZE, size, bias=False)
        self.empty = nn.Parameter(torch.zeros(size))
        nn.init.normal_(self.position.weight, std=0.02)
        characters = [tokenizer(character, add_special_tokens=False).input_ids[0] for character in CHARSET]
        fields = [tokenizer(" " + field, add_special_tokens=False).input_ids[0] for field in FIELDS]
        self.characters: Tensor
        self.fields: Tensor
        self.register_buffer("characters", torch.tensor([0, *characters]))
        self.register_buffer("fields", torch.tensor([0, *fields]))

    def forward(self, glyphs: Tensor, words: Tensor, indices: Tensor, side: int, embed: nn.Module) -> Tensor:
        """Tokens [I, K, D] of patches at `indices` [I, K] with characters [I, K, SLOTS] and field names [I, K]."""
        spelt = embed(self.characters[glyphs]) * (glyphs > 0)[..., None]
        token = spelt[:, :, 0] + sum(part(spelt[:, :, 1 + slot]) for slot, part in enumerate(self.slots))
        word = words.clamp(min=0)
        token = token + self.word(embed(self.fields[word])) * (word > 0)[..., None]
        token = token + self.empty * (glyphs[..., 0] == 0)[..., None]
        return token + self.position(position_code(side, POSITION_SIZE, device=indices.device))[indices]

    def cells(self, batch: Batch, embed: nn.Module) -> Tensor:
        """Perfect base tokens [P, M, D]: the mean of the perfect tokens of each cell's 4x4 patches."""
        side = batch.glyphs.shape[1]
        patches = torch.arange(side * side, device=batch.glyphs.device).expand(len(batch.glyphs), -1)
        tokens = self(batch.glyphs.flatten(1, 2), batch.words.flatten(1), patches, side, embed)
        return F.avg_pool2d(tokens.transpose(1, 2).unflatten(2, (side, side)), COMPRESSION).flatten(2).transpose(1, 2)


def drawn_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform numbers in 0..1 of the tensor's shape, the same on every device."""
    return torch.rand(tensor.shape, generator=generator).to(tensor.device)


def at_patches(batch: Batch, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Characters [I, K, SLOTS] and field names [I, K] of the patches at `indices` [I, K]."""
    pages = torch.arange(len(batch.glyphs), device=indices.device)
    pages = pages.repeat_interleave(len(indices) // len(batch.glyphs))
    glyphs = batch.glyphs.flatten(1, 2)[pages].gather(1, indices[..., None].expand(-1, -1, SLOTS))
    return glyphs, batch.words.flatten(1)[pages].gather(1, indices)


def right_rows(logits: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """[I] True where every predicted token of a row is right: teacher-forced, the same as an exact greedy answer.

    `logits` [T, vocabulary] and `targets` [T] of the T places where `chosen` [I, S] is True.
    """
    rows = torch.arange(len(chosen), device=chosen.device)[:, None].expand_as(chosen)[chosen]
    wrong = (logits.argmax(-1) != targets).float()
    return torch.zeros(len(chosen), device=chosen.device).index_add_(0, rows, wrong) == 0


def pointing(attentions: tuple[Tensor, ...], *, steps: slice, patches: slice) -> Tensor:
    """The attention [I, S, K] that the pointing heads pay to patch tokens at the steps that predict."""
    return attentions[POINTING_LAYER][:, :POINTING_HEADS, steps, patches].mean(1)


def pointer_loss(attention: Tensor, indices: Tensor, places: Tensor) -> Tensor:
    """Minus the log of the attention that each step pays to the patch which shows its character.

    Args:
        attention: [I, S, K] of steps to patch tokens.
        indices: [I, K] their patches.
        places: [I, S] the patch to look at; steps without one, or whose patch was not fetched, do not count.
    """
    match = (indices[:, None] == places[..., None]) & (places >= 0)[..., None]
    known = match.any(-1)
    paid = (attention.float() * match).sum(-1)[known]
    return -paid.clamp(min=1e-6).log().mean() if len(paid) else attention.sum() * 0


class Copying(nn.Module):
    """The language model reading perfect tokens: base tokens or not, then patches."""

    def __init__(self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.model = model
        self.language = PatchLanguage(model, tokenizer)

    def trained(self) -> list[nn.Parameter]:
        """Language model and patch language; nothing of the vision."""
        return [*self.model.model.language_model.parameters(), *self.language.parameters()]

    def forward(self, batch: Batch, budget: int, generator: torch.Generator, *, base: bool) -> dict[str, Tensor]:
        """Loss of what is to be predicted, of where to look for it, and whether each row was right, teacher-forced."""
        embed = self.model.get_input_embeddings()
        side = batch.glyphs.shape[1]
        indices = best(batch.oracle + 0.5 * drawn_like(batch.oracle, generator), budget)
        tokens = self.language(*at_patches(batch, indices), indices, side, embed)
        if base:
            cells = self.language.cells(batch, embed)
            tokens = torch.cat((cells.repeat_interleave(len(tokens) // len(cells), 0), tokens), 1)
        start = batch.before.shape[1] + tokens.shape[1] - budget
        embeds = torch.cat((embed(batch.before), tokens, embed(batch.after)), 1)
        output = self.model.model(inputs_embeds=embeds, use_cache=False, output_attentions=True)
        steps = slice(start + budget - 1, -1)  # the position before each token of `after`, which predicts it
        logits = self.model.lm_head(output.last_hidden_state[:, steps][batch.answer])
        targets = batch.after[batch.answer]
        attention = pointing(output.attentions, steps=steps, patches=slice(start, start + budget))
        return {
            "answer": F.cross_entropy(logits.float(), targets),
            "pointer": pointer_loss(attention, indices, batch.places),
            "right": right_rows(logits, targets, batch.answer),
        }


def train_copying(
    model: ArrCocForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    stage: CopyingStage,
    out: Path,
    start: Path | None = None,
) -> Copying:
    """Runs (or resumes) the stage; its checkpoint is `out/copying.pt`.

    Args:
        model: whose language model is trained, in place.
        tokenizer: its tokenizer.
        stage: settings.
        out: folder of the checkpoint.
        start: `copying.pt` of an earlier stage, or a trained model's folder, to begin with; or None.
    """
    torch.manual_seed(stage.seed)
    copying = Copying(model, tokenizer).to(model.device).train()
    model.model.language_model.set_attn_implementation("eager")  # the only one that shows its attention
    optimizer = adamw([(copying.trained(), stage.learning_rate)], stage.weight_decay)
    path = out / COPIED
    loop = Loop("copying", copying, optimizer, path, stage.steps, stage.warmup, stage.evaluate_every, stage.bf16)
    first = loop.resume()
    if first is None and start is not None:
        weights = load_weights(start)
        model.model.language_model.load_state_dict(part_of(weights, SPOKEN))
        copying.language.load_state_dict(part_of(weights, "language."))
    first = first or 0
    prompts = Prompts(tokenizer, model.config.image_token_id)
    make = partial(
        QuestionPages, stage, model.config, prompts, split="train", transcript_budget=stage.budget, sketched=True
    )
    pages, unseen = make(start=first), make(held_out=True)
    test = [unseen.batch(step).to(model.device) for step in range(4)]
    loader = prefetched(pages, stage.workers)

    def losses(step: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(stage.seed * 1_000_003 + step)
        batch = next(loader).to(model.device)
        transcribing = step % 4 != 3
        base = step >= stage.steps - stage.base_steps
        found = copying(batch.transcript if transcribing else batch, stage.budget, generator, base=base)
        name = "transcript" if transcribing else "answer"
        pointer = found["pointer"]
        loss = found["answer"] + stage.pointer_weight * pointer
        return {"loss": loss, name: found["answer"].detach(), "pointer": pointer.detach()}

    @torch.no_grad()
    def evaluate() -> str:
        scores = {}
        for name, base in (("patches", False), ("base and patches", True)):
            found = [copying(batch, stage.budget, torch.Generator().manual_seed(0), base=base) for batch in test]
            scores[name] = torch.cat([one["right"] for one in found]).float().mean().item()
        return "exact match, " + ", ".join(f"{name} {score:.3f}" for name, score in scores.items())

    loop.run(first, losses, evaluate)
    model.model.language_model.set_attn_implementation("sdpa")
    return copying
