"""Trains a small Qwen3-VL model to read pages of fields.

    python examples/experiments/attached-pages/train.py --out runs/attached-pages

Four stages: the language model (that of arr-coc-tiny-2) answers from its own embeddings of what image tokens show; the
vision tower learns to make these embeddings from pixels; then all is trained together on all image tokens; last, with
most steps' image tokens dropped but for a random choice. A stage that is done is skipped; a killed one goes on from its
last checkpoint. Measurements are those of the validation split.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from small_qwen import GRID, POOL, QUESTION, UNIT, WORDS, Page, asked, draw_page, new_model, new_page, new_processor
from torch import Tensor, nn

from arr_coc.pages.splits import Split
from arr_coc.training.stages import Loop, Task

STAGES = {"language": (400, 1e-3), "tower": (700, 2e-3), "together": (180, 5e-4), "fewer": (300, 1e-3)}
"""Steps and learning rate of the stages."""
TRAINED = {"language": "language_model", "tower": "visual", "together": "", "fewer": ""}
"""Which weights a stage trains, by a part of their names."""
ALL, LEAST, WITH_BASE = 0.25, 18, 0.5
"""Of stage `fewer`: the share of steps with all image tokens; the fewest tokens; the share with base tokens too."""


class Kept(NamedTuple):
    """The image tokens that the language model reads: their numbers [P, K], ascending, and whether base tokens too."""

    numbers: Tensor
    base: bool = False

    def of(self, values: Tensor) -> Tensor:
        """Values [P, N, D] of all image tokens -> those of base tokens (the means of squares) and of tokens kept."""
        own = values.gather(1, self.numbers[..., None].expand(-1, -1, values.shape[-1]))
        if not self.base:
            return own
        squares = values.unflatten(1, (GRID // POOL, POOL, GRID // POOL, POOL))
        return torch.cat((squares.mean((2, 4)).flatten(1, 2), own), 1)


def some_tokens(
    rng: np.random.Generator, pages: Sequence[Page], count: int, beside: int = 0, base: bool = False
) -> Kept:
    """The tokens under the boxes of fields asked for; `beside` them print (1), tokens without it (-1), or any (0)."""
    shown = np.stack([page.words for page in pages])
    boxes = np.zeros(shown.shape)
    for number, page in enumerate(pages):
        for field in page.fields[: asked(count)]:
            left, y, right = (int(edge) // UNIT for edge in (*field.label_box[:2], field.value_box[2]))
            boxes[number, y, left:right] = 1
    order = torch.from_numpy(8 * boxes + 2 * beside * (shown > 0) + rng.random(shown.shape)).flatten(1)
    return Kept(order.topk(count).indices.sort().values, base)


class Student(nn.Module):
    """The model, and its losses on pages."""

    def __init__(self) -> None:
        super().__init__()
        self.processor = new_processor()
        self.model = new_model(self.processor)
        self.ids = torch.tensor([self.processor.tokenizer(word).input_ids for word in WORDS])[:, 0]

    def losses(self, stage: str, pages: Sequence[Page], images: Sequence[Any], kept: Kept) -> dict[str, Tensor]:
        """A stage's loss, and the shares of image tokens and of answers that are right."""
        shown = torch.from_numpy(np.stack([page.words for page in pages])).flatten(1)  # [P, N]
        table = self.model.get_input_embeddings()(self.ids)
        if stage == "language":
            loss, exact = self.answer(table[shown], [], pages, kept)
            return {"loss": loss, "exact": exact}
        inputs = self.processor.image_processor(images, return_tensors="pt")
        seen = self.model.model.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
        tokens, *planes = (
            part.float().view(*shown.shape, -1) for part in (seen.pooler_output, *seen.deepstack_features)
        )
        error = (tokens - table.detach()[shown]).square().mean() / table.detach().square().mean()
        nearest = torch.cdist(tokens.detach().flatten(0, 1), table.detach()).argmin(-1).view_as(shown)
        found = {"loss": error, "read": (nearest == shown)[shown > 0].float().mean()}
        if stage != "tower":
            loss, found["exact"] = self.answer(tokens, planes, pages, kept)
            found["loss"] = loss + error
        return found

    def answer(
        self, tokens: Tensor, planes: Sequence[Tensor], pages: Sequence[Page], kept: Kept
    ) -> tuple[Tensor, Tensor]:
        """The loss of the answers about pages with image tokens [P, N, D], and the share that is right."""
        ids, targets, is_image, positions, mask = self.prompts(pages, kept)
        embeds = self.model.get_input_embeddings()(ids).masked_scatter(is_image[..., None], kept.of(tokens))
        states = self.model.model.language_model(
            inputs_embeds=embeds,
            position_ids=positions,
            attention_mask=mask,
            use_cache=False,
            visual_pos_masks=is_image,
            deepstack_visual_embeds=[kept.of(plane).flatten(0, 1) for plane in planes],
        ).last_hidden_state[:, -targets[0].numel() :]
        logits, said = self.model.lm_head(states).float().view(*targets.shape, -1), targets >= 0
        right = (logits.argmax(-1) == targets) | ~said  # teacher-forced: all tokens right is an exact greedy answer
        return F.cross_entropy(logits[said], targets[said]), right.all(-1).float().mean()

    def prompts(self, pages: Sequence[Page], kept: Kept) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The first questions about each page in one prompt [P, S], behind the image tokens, which they share.

        A question attends to the image and to itself. All tokens have the positions that they have alone.

        Returns:
            The ids; targets [P, Q, T] of the last Q * T tokens, -100 for none; which tokens are the image's; positions
            [3, P, S]; the mask [1, 1, S, S], added to attention.
        """
        tokenizer, questions = self.processor.tokenizer, asked(kept.numbers.shape[1])
        content: Any = [{"type": "image"}, {"type": "text", "text": "?"}]
        chat = self.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        before, behind = chat.split("<|image_pad|>")
        start, end = behind.split("?")
        opening = torch.tensor(tokenizer(before).input_ids)
        fields = [field for page in pages for field in page.fields[:questions]]
        prompts = [f"{start}{QUESTION.format(field=field.name)}{end}" for field in fields]
        texts = [f"{prompt}{field.value}<|im_end|>" for prompt, field in zip(prompts, fields, strict=True)]
        whole = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt").input_ids
        text, targets, length = whole[:, :-1], whole[:, 1:].clone(), whole.shape[1] - 1
        targets[:, : len(tokenizer(prompts[0]).input_ids) - 1] = -100  # all questions have the same number of tokens
        targets[targets == tokenizer.pad_token_id] = -100
        at = torch.arange(GRID**2)
        grid = len(opening) + torch.stack((0 * at, at // GRID, at % GRID), -1).float()
        places = kept.of(grid.expand(len(pages), -1, -1))
        image = torch.full(places.shape[:2], self.model.config.image_token_id)
        ids = torch.cat((opening.expand(len(pages), -1), image, text.reshape(len(pages), -1)), 1)
        behind_image = (len(opening) + GRID + torch.arange(length)).repeat(questions)
        texts_at = [line.expand(3, len(pages), -1) for line in (torch.arange(len(opening)), behind_image)]
        positions = torch.cat((texts_at[0], places.permute(2, 0, 1), texts_at[1]), -1)
        first = torch.zeros(len(opening) + image.shape[1])
        owner = torch.cat((first, 1 + torch.arange(questions).repeat_interleave(length)))
        sees = ((owner[:, None] == owner) | (owner == 0)).tril()
        mask = torch.zeros(sees.shape).masked_fill(~sees, -1e4)[None, None]
        is_image = ids == self.model.config.image_token_id
        return ids, targets.view(len(pages), questions, -1), is_image, positions, mask


def batch(stage: str, split: Split, size: int, seed: tuple[int, int]) -> tuple[list[Page], list[Any], Kept]:
    """New pages, drawn where the stage needs pixels, and the image tokens that are kept."""
    rng = np.random.default_rng(seed)
    pages = [new_page(rng) for _ in range(size)]
    images = [] if stage == "language" else [draw_page(rng, page, split) for page in pages]
    if stage != "fewer" or rng.random() < ALL:
        return pages, images, some_tokens(rng, pages, GRID**2)
    count, beside, base = int(rng.integers(LEAST, GRID**2)), int(rng.integers(-1, 2)), rng.random() < WITH_BASE
    return pages, images, some_tokens(rng, pages, count, beside, base)


class Lesson(Task):
    """One of the `STAGES`, of `size` pages a step."""

    module: Student

    def __init__(self, student: Student, name: str, steps: int, rate: float, size: int, held_out: int) -> None:
        self.module, self.size, self.rate = student, size, rate
        settings: dict[str, Any] = {"optimizer": "muon", "weight_decay": 0.01, "bf16": True, "workers": 0}
        every = max(1, min(100, steps // 3))
        self.stage: Any = SimpleNamespace(name=name, steps=steps, warmup=30, evaluate_every=every, **settings)
        self.pages_seen, self.images, _ = batch(name, "validation", held_out, (2, 0))
        counts = (GRID**2, GRID**2 // 4)
        self.kept = [some_tokens(np.random.default_rng(0), self.pages_seen, count, 1) for count in counts]

    def groups(self) -> list[tuple[list[nn.Parameter], float]]:
        trained = [each for name, each in self.module.named_parameters() if TRAINED[self.stage.name] in name]
        return [(trained, self.rate)]

    def losses(self, step: int, number: int) -> dict[str, Tensor]:
        return self.module.losses(self.stage.name, *batch(self.stage.name, "train", self.size, (1, step)))

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        every, fewer = self.kept
        found = self.module.losses(self.stage.name, self.pages_seen, self.images, every)
        if self.stage.name == "fewer":
            found["exact, fewer"] = self.module.losses(self.stage.name, self.pages_seen, self.images, fewer)["exact"]
        return {name: float(value) for name, value in found.items()}


def main() -> None:
    """Trains from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/attached-pages"), help="folder (runs/attached-pages)")
    steps = [steps for steps, _ in STAGES.values()]
    parser.add_argument("--steps", nargs=4, type=int, default=steps, help=f"steps of the stages ({steps})")
    parser.add_argument("--batch", type=int, default=8, help="pages in a step (8)")
    parser.add_argument("--held-out", type=int, default=32, help="pages of the measurements (32)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    student = Student()
    for (stage, (_, rate)), count in zip(STAGES.items(), args.steps, strict=True):
        lesson = Lesson(student, stage, count, rate, args.batch, args.held_out)
        Loop(lesson.stage, lesson, args.out / stage).run()
    student.model.save_pretrained(args.out / "model")


if __name__ == "__main__":
    main()
