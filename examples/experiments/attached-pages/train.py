"""Trains a small Qwen3-VL model to read pages of fields.

    python examples/experiments/attached-pages/train.py --out runs/attached-pages

Three stages: the language model (that of arr-coc-tiny-2) answers from its own embeddings of what image tokens show; the
vision tower learns to make these embeddings from pixels; then all is trained together, on all image tokens. A stage
that is done is skipped; a killed one goes on from its last checkpoint. Measurements are those of the validation split.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from small_qwen import ASKED, GRID, QUESTION, WORDS, Page, draw_page, new_model, new_page, new_processor
from torch import Tensor, nn

from arr_coc.data import Split
from arr_coc.training.from_scratch.optimizers import muon
from arr_coc.training.from_scratch.stage import Loop

STAGES = {"language": (400, 1e-3), "tower": (700, 2e-3), "together": (180, 5e-4)}
"""Steps and learning rate of the stages."""
TRAINED = {"language": "language_model", "tower": "visual", "together": ""}
"""Which weights a stage trains, by a part of their names."""


class Student(nn.Module):
    """The model, and its losses on pages."""

    def __init__(self) -> None:
        super().__init__()
        self.processor = new_processor()
        self.model = new_model(self.processor)
        self.ids = torch.tensor([self.processor.tokenizer(word).input_ids for word in WORDS])[:, 0]

    def losses(self, stage: str, pages: Sequence[Page], images: Sequence[Any]) -> dict[str, Tensor]:
        """The loss of a stage, and the shares of image tokens and of answers that are right."""
        shown = torch.from_numpy(np.stack([page.words for page in pages])).flatten(1)  # [P, N]
        table = self.model.get_input_embeddings()(self.ids)
        if stage == "language":
            loss, exact = self.answer(table[shown], None, pages)
            return {"loss": loss, "exact": exact}
        inputs = self.processor.image_processor(images, return_tensors="pt")
        seen = self.model.model.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
        tokens = seen.pooler_output.view(*shown.shape, -1).float()
        error = (tokens - table.detach()[shown]).square().mean() / table.detach().square().mean()
        nearest = torch.cdist(tokens.detach().flatten(0, 1), table.detach()).argmin(-1).view_as(shown)
        found = {"loss": error, "read": (nearest == shown)[shown > 0].float().mean()}
        if stage == "together":
            loss, found["exact"] = self.answer(tokens, seen.deepstack_features, pages)
            found["loss"] = loss + error
        return found

    def answer(self, tokens: Tensor, planes: Sequence[Tensor] | None, pages: Sequence[Page]) -> tuple[Tensor, Tensor]:
        """The loss of the answers about pages with image tokens [P, N, D], and the share that is right."""
        ids, targets, is_image, positions, mask = self.prompts(pages)
        embeds = self.model.get_input_embeddings()(ids).masked_scatter(is_image[..., None], tokens.float())
        states = self.model.model.language_model(
            inputs_embeds=embeds, position_ids=positions, attention_mask=mask, use_cache=False,
            visual_pos_masks=is_image,
            deepstack_visual_embeds=None if planes is None else [plane.float() for plane in planes],
        ).last_hidden_state[:, -targets[0].numel() :]  # fmt: skip
        logits, said = self.model.lm_head(states).float().view(*targets.shape, -1), targets >= 0
        right = (logits.argmax(-1) == targets) | ~said  # teacher-forced: all tokens right is an exact greedy answer
        return F.cross_entropy(logits[said], targets[said]), right.all(-1).float().mean()

    def prompts(self, pages: Sequence[Page]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The first questions about each page in one prompt [P, S], behind the image tokens, which they share.

        A question attends to the image and to itself, and has the positions that it has alone.

        Returns:
            The ids; targets [P, Q, T] of the last Q * T tokens, -100 for none; which tokens are the image's; positions
            [3, P, S]; the mask [1, 1, S, S], added to attention.
        """
        tokenizer, count = self.processor.tokenizer, GRID**2
        content: Any = [{"type": "image"}, {"type": "text", "text": "?"}]
        chat = self.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        before, behind = chat.split("<|image_pad|>")
        start, end = behind.split("?")
        opening = torch.tensor(tokenizer(before).input_ids)
        asked = [f"{start}{QUESTION.format(field=field.name)}{end}" for page in pages for field in page.fields[:ASKED]]
        said = [f"{field.value}<|im_end|>" for page in pages for field in page.fields[:ASKED]]
        texts = [question + answer for question, answer in zip(asked, said, strict=True)]
        whole = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt").input_ids
        text, targets, length = whole[:, :-1], whole[:, 1:].clone(), whole.shape[1] - 1
        targets[:, : len(tokenizer(asked[0]).input_ids) - 1] = -100  # all questions have the same number of tokens
        targets[targets == tokenizer.pad_token_id] = -100
        image = torch.full((len(pages), count), self.model.config.image_token_id)
        ids = torch.cat((opening.expand(len(pages), -1), image, text.reshape(len(pages), -1)), 1)
        at, first = torch.arange(count), len(opening) + count
        places = len(opening) + torch.stack((0 * at, at // GRID, at % GRID))
        behind_image = (len(opening) + GRID + torch.arange(length)).repeat(ASKED)
        line = torch.cat((torch.arange(len(opening)).expand(3, -1), places, behind_image.expand(3, -1)), 1)
        owner = torch.cat((torch.zeros(first), 1 + torch.arange(ASKED).repeat_interleave(length)))
        sees = ((owner[:, None] == owner) | (owner == 0)).tril()
        mask = torch.zeros(sees.shape).masked_fill(~sees, -1e4)[None, None]
        is_image = ids == self.model.config.image_token_id
        return ids, targets.view(len(pages), ASKED, -1), is_image, line[:, None].expand(-1, len(pages), -1), mask


def batch(stage: str, split: Split, size: int, seed: tuple[int, int]) -> tuple[list[Page], list[Any]]:
    """New pages, drawn where the stage needs pixels."""
    rng = np.random.default_rng(seed)
    pages = [new_page(rng) for _ in range(size)]
    return pages, [] if stage == "language" else [draw_page(rng, page, split) for page in pages]


def train(student: Student, stage: str, steps: int, rate: float, size: int, out: Path, held_out: int) -> None:
    """Trains a stage, or resumes it."""
    weights = [weight for name, weight in student.named_parameters() if TRAINED[stage] in name]
    optimizer, warmup, every = muon([(weights, rate)], 0.01, student), min(30, steps - 1), max(1, min(100, steps // 3))
    loop = Loop(stage, student, optimizer, out / f"{stage}.pt", steps, warmup, every, bf16=True)
    if (first := loop.resume()) == steps:
        return
    held = batch(stage, "validation", held_out, (2, 0))

    @torch.no_grad()
    def measure() -> dict[str, float]:
        return {name: float(value) for name, value in student.losses(stage, *held).items()}

    loop.run(first, lambda step: iter([student.losses(stage, *batch(stage, "train", size, (1, step)))]), measure)


def main() -> None:
    """Trains from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/attached-pages"), help="folder (runs/attached-pages)")
    steps = [steps for steps, _ in STAGES.values()]
    parser.add_argument("--steps", nargs=3, type=int, default=steps, help=f"steps of the stages ({steps})")
    parser.add_argument("--batch", type=int, default=8, help="pages in a step (8)")
    parser.add_argument("--held-out", type=int, default=32, help="pages of the measurements (32)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    student = Student()
    for (stage, (_, rate)), count in zip(STAGES.items(), args.steps, strict=True):
        train(student, stage, count, rate, args.batch, args.out, args.held_out)
    student.model.save_pretrained(args.out / "model")


if __name__ == "__main__":
    main()
