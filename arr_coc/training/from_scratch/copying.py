"""Stage: the language model learns to read patch tokens that are perfect, before any vision is in the loop.

Pages are sketched, not rendered, and no image is encoded, so steps are cheap, and copying (find the label, go along the
row, spell what stands there) is learnt in minutes. The answering stage then has a target for every fetched token: the
perfect one (see `PatchLanguage`).
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.modeling.allocators import best
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from ..draws import uniform_like
from ..stages import STAGES, Run
from .patch_language import PatchLanguage, at_patches
from .pointing import pointer_loss, pointing, right_rows
from .questions import Batch, Prompts, QuestionPages
from .stage import ScratchStage, Task

EVALUATED_BATCHES = 4
"""Batches of pages not trained on that a measurement reads."""
TRANSCRIBED = 4
"""Of so many steps all but one transcribe; that one answers questions."""


@STAGES.register("copying")
@dataclass(frozen=True)
class CopyingStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        pages, questions: sketched pages per step, and questions about each.
        budget: patch tokens per question; lines are taken along and transcribed as long as they fit.
        pointer_weight: of the loss that tells where to look for each character.
        base_steps: steps at the end in which perfect base tokens stand before the patches, as in the whole model.
    """

    name: ClassVar[str] = "copying"
    leaves_whole: ClassVar[bool] = False

    steps: int = 1200
    pages: int = 16
    questions: int = 2
    budget: int = 64
    pointer_weight: float = 0.5
    base_steps: int = 1500

    def task(self, run: Run) -> "CopyingTask":
        return CopyingTask(self, run)


class Copying(nn.Module):
    """The language model reading perfect tokens: base tokens or not, then patches."""

    def __init__(self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__()
        self.model = model
        self.language = PatchLanguage(model, tokenizer)

    def forward(self, batch: Batch, budget: int, generator: torch.Generator, *, base: bool) -> dict[str, Tensor]:
        """Loss of what is to be predicted, of where to look for it, and whether each row was right, teacher-forced."""
        embed = self.model.get_input_embeddings()
        side = batch.glyphs.shape[1]
        indices = best(batch.oracle + 0.5 * uniform_like(batch.oracle, generator), budget)
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


class CopyingTask(Task):
    """The run's language model, in place, and a patch language."""

    def __init__(self, stage: CopyingStage, run: Run) -> None:
        self.stage = stage
        self.copying = Copying(run.model, run.processor.tokenizer).to(run.device).train()
        if "language" in run.learner:
            self.copying.language.load_state_dict(run.learner["language"])
        core = run.model.model
        self.module = nn.ModuleDict({"language_model": core.language_model, "language": self.copying.language})
        prompts = Prompts(run.processor.tokenizer, run.model.config.image_token_id)
        self.sketches = partial(
            QuestionPages, stage, run.model.config, prompts, split="train", transcript_budget=stage.budget,
            sketched=True,
        )  # fmt: skip

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        return [(list(self.module.parameters()), self.stage.learning_rate)]

    def pages(self, start: int) -> QuestionPages:
        return self.sketches(start=start)

    def losses(self, step: int, batch: Batch) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.stage.seed * 1_000_003 + step)
        batch = batch.to(self.copying.model.device)
        transcribing = step % TRANSCRIBED != TRANSCRIBED - 1
        asked = batch.transcript if transcribing else batch
        base = step >= self.stage.steps - self.stage.base_steps
        losses = self.copying(asked, self.stage.budget, generator, base=base)
        answer, pointer = losses["answer"], losses["pointer"]
        name = "transcript" if transcribing else "answer"
        loss = answer + self.stage.pointer_weight * pointer
        return {"loss": loss, name: answer.detach(), "pointer": pointer.detach()}

    @cached_property
    def _test(self) -> list[Batch]:
        unseen = self.sketches(held_out=True)
        return [unseen.batch(number).to(self.copying.model.device) for number in range(EVALUATED_BATCHES)]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Exact match and the answer's loss, from patches alone and with base tokens before them."""
        scores = {}
        for name, base in (("patches", False), ("base and patches", True)):
            outputs = [
                self.copying(batch, self.stage.budget, torch.Generator().manual_seed(0), base=base)
                for batch in self._test
            ]
            scores[f"{name}: exact"] = torch.cat([output["right"] for output in outputs]).float().mean().item()
            scores[f"{name}: loss"] = torch.stack([output["answer"] for output in outputs]).mean().item()
        return scores

    def finish(self, run: Run) -> None:
        run.learner["language"] = self.copying.language.state_dict()
