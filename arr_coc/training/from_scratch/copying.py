"""Stage: the language model learns to read oracle tokens, before any vision is trained with it.

No image is encoded, and pages are sketched unless they are rendered for their layouts, so steps are cheap, and copying
(find the label, go along the row, spell the text there) is learned in minutes. The answering stage then has a target
for every token: its oracle token (see `PatchLanguage`). At first prompts have patch tokens only, later base tokens
before them, and in a share of the steps base tokens only. In training, characters near an edge are on both sides of it,
with weights: an encoder that cannot tell the side predicts both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from arr_coc.data import Split
from arr_coc.data.mixture import Mixture, check_asked
from arr_coc.modeling.allocators import best
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration

from ..stages import STAGES, Run
from .patch_language import PatchLanguage, Read, tables, teach_words
from .questions import Batch, Prompts, QuestionPages
from .shared_prefix import POINTER_WEIGHT, POINTING_LAYER, check_layer, pointer_loss, read_prompts, right_rows, shown_by
from .stage import ScratchStage, Task, uniform_like

EVALUATED_BATCHES = 4
"""Batches of held-out pages in a measurement."""
READS: tuple[Read, ...] = ("patches", "base and patches", "base")
"""The combinations of oracle tokens that a measurement uses."""


@STAGES.register("copying")
@dataclass(frozen=True)
class CopyingStage(ScratchStage):
    """Settings of the stage.

    Attributes:
        pages, questions: pages per step, and questions about each.
        sorted_steps: steps whose pages are drawn together and sorted by length, which saves padding; each worker draws
            them all.
        budget: patch tokens per question; further lines are fetched and transcribed as long as they fit.
        pointing_layer: layer of the language model with the pointing heads; negative numbers count from the last. Later
            layers have to decode the content of base tokens.
        base_steps: steps at the end with oracle base tokens before the patches, as in the whole model.
        alone: share of the steps that read base tokens alone, and transcribe whole pages.
        transcribed: share of the steps that transcribe, evenly spread; the others answer questions.
        scattered: share of these in which there is, beside the patches that the answer needs, text from all over the
            page in place of whole lines: what a scorer fetches is so, and one value has to be told from the others.
        learns_language: whether the oracle tokens are learned as well: not if a vision tower already predicts them. As
            they are sums of the embeddings of characters, these are then frozen, too.
        absent: share of the questions about absent fields.
        unheard: share of these about fields of no page.
        turns: share of the questions that come second in a chat.
        rendered, photo, reused: how often each kind of rendered pages is read in place of sketched ones, the share of
            them that is photographed, and how often each comes up, as in the reading stage; none: pages are sketched.
        evaluate_split: of the rendered pages that are measured on; sketched ones have the words of training.

    Raises:
        ValueError: pages that cannot be asked about.
    """

    name: ClassVar[str] = "copying"
    leaves_whole: ClassVar[bool] = False

    steps: int = 1200
    pages: int = 16
    questions: int = 2
    sorted_steps: int = 1
    budget: int = 64
    pointing_layer: int = POINTING_LAYER
    base_steps: int = 1500
    alone: float = 0.4
    transcribed: float = 0.75
    scattered: float = 0.0
    learns_language: bool = True
    absent: float = 0.0
    unheard: float = 0.0
    turns: float = 0.0
    rendered: Mapping[str, float] = field(default_factory=dict)
    photo: float = 0.0
    reused: int = 1
    evaluate_split: Split = "validation"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts("pages", "questions", "sorted_steps", "reused")
        self.check_shares("alone", "transcribed", "scattered", "absent", "unheard", "turns")
        check_asked(self.rendered)

    def task(self, run: Run) -> "CopyingTask":
        return CopyingTask(self, run)


class Copying(nn.Module):
    """The language model reading oracle tokens: base tokens, patches, or base tokens before patches."""

    def __init__(
        self, model: ArrCocForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, layer: int = POINTING_LAYER
    ) -> None:
        super().__init__()
        check_layer(layer, model.config.text_config)
        self.model, self.layer = model, layer
        self.language = PatchLanguage(model, tokenizer)

    def forward(
        self, batch: Batch, budget: int, generator: torch.Generator, *, read: Read, blurred: bool = False,
        scattered: bool = False,
    ) -> dict[str, Tensor]:  # fmt: skip
        """The losses of predicted tokens and of pointing heads; and the teacher-forced scores.

        Args:
            batch: questions about pages.
            budget: patch tokens per question, where patches are read.
            generator: of what is fetched beside the oracle's patches.
            read: see `Read`.
            blurred: whether tokens are the means of two drawn versions with each line shifted a little.
            scattered: whether the patches beside the answer's are any of text, not those of the oracle's lines.

        Returns:
            "answer", "pointer": losses; "right" [I]: rows predicted right; "tokens": share of tokens predicted right.
        """
        indices = fetched(batch, budget if "patches" in read else 0, generator, scattered=scattered)
        say = partial(self.language.tokens, indices=indices, embed=self.model.get_input_embeddings(), read=read)
        if blurred:
            tokens, other = (say(_moved(batch, generator)) for _ in range(2))
            tokens = tokens + float(torch.rand((), generator=generator)) * (other - tokens)
        else:
            tokens = say(batch)
        states, attention = read_prompts(self.model, batch.before, tokens, batch.after, layer=self.layer)
        asked = batch.answer[:, 1:]
        logits, targets = self.model.lm_head(states[asked]), batch.after[:, 1:][asked]
        base = tokens.shape[1] - indices.shape[1]
        match = shown_by(batch.places[:, 1:], indices, side=batch.glyphs.shape[1], base=base)
        return {
            "answer": F.cross_entropy(logits.float(), targets),
            "pointer": pointer_loss(attention, match),
            "right": right_rows(logits, targets, asked),
            "tokens": (logits.argmax(-1) == targets).float().mean(),
        }


def fetched(batch: Batch, budget: int, generator: torch.Generator, *, scattered: bool) -> Tensor:
    """[I, K] patches: those of the oracle's lines, or of the answer and of text anywhere, and others to fill K."""
    drawn = uniform_like(batch.oracle, generator)
    return best(batch.relevance + drawn * batch.text if scattered else batch.oracle + 0.5 * drawn, budget)


def _moved(batch: Batch, generator: torch.Generator) -> Batch:
    """The batch with each line of its pages shifted a little."""
    return batch.put(batch.shown.put_anywhere(batch.glyphs.shape[1], generator))


class CopyingTask(Task):
    """The run's language model, in place, and a language of oracle tokens."""

    def __init__(self, stage: CopyingStage, run: Run) -> None:
        self.stage = stage
        self.copying = Copying(run.model, run.processor.tokenizer, stage.pointing_layer).to(run.device).train()
        if "language" in run.learner:
            self.copying.language.load_state_dict(run.learner["language"])
        spoken = [*self.copying.language.parameters(), *run.model.get_input_embeddings().parameters()]
        spoken += tables(run.model.model.bridge)  # which have the same meanings
        self.held = [] if stage.learns_language else spoken
        for weight in self.held:
            weight.requires_grad_(False)
        core = run.model.model
        self.module = nn.ModuleDict({"language_model": core.language_model, "language": self.copying.language})
        prompts = Prompts(run.processor.tokenizer, run.model.config.image_token_id)
        mixture = Mixture(stage.rendered, stage.photo) if stage.rendered else None
        self.asked = partial(
            QuestionPages, stage, run.model.config, prompts, transcript_budget=stage.budget, mixture=mixture
        )

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        trained = [weight for weight in self.module.parameters() if weight.requires_grad]
        return [(trained, self.stage.learning_rate)]

    def pages(self, start: int) -> QuestionPages:
        return self.asked(split="train", start=start)

    def losses(self, step: int, batch: Batch) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(self.stage.seed * 1_000_003 + step)
        batch = batch.to(self.copying.model.device)
        read: Read = "base and patches" if step >= self.stage.steps - self.stage.base_steps else "patches"
        if torch.rand((), generator=generator) < self.stage.alone:
            read = "base"
        asked, name = batch, "answer"
        asking = 1 - self.stage.transcribed
        if math.floor((step + 1) * asking) == math.floor(step * asking):
            asked, name = batch.read_from(whole=read == "base"), "transcript"
        scattered = name == "answer" and bool(torch.rand((), generator=generator) < self.stage.scattered)
        losses = self.copying(asked, self.stage.budget, generator, read=read, blurred=True, scattered=scattered)
        answer, pointer = losses["answer"], losses["pointer"]
        loss = answer + POINTER_WEIGHT * pointer
        return {"loss": loss, f"{read}: {name}": answer.detach(), f"{read}: pointer": pointer.detach()}

    @cached_property
    def _test(self) -> list[Batch]:
        unseen = self.asked(split=self.stage.evaluate_split if self.stage.rendered else "train", held_out=True)
        return [unseen.batch(number).to(self.copying.model.device) for number in range(EVALUATED_BATCHES)]

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Exact match, right tokens and the answer's loss, for all combinations of tokens."""
        scores = {}
        for read in READS:
            outputs = [
                self.copying(batch, self.stage.budget, torch.Generator().manual_seed(0), read=read)
                for batch in self._test
            ]
            scores[f"{read}: exact"] = torch.cat([output["right"] for output in outputs]).float().mean().item()
            scores[f"{read}: tokens"] = torch.stack([output["tokens"] for output in outputs]).mean().item()
            scores[f"{read}: loss"] = torch.stack([output["answer"] for output in outputs]).mean().item()
        return scores

    def finish(self, run: Run) -> None:
        for weight in self.held:
            weight.requires_grad_(True)
        teach_words(run.model, self.copying.language)
        run.learner["language"] = self.copying.language.state_dict()
