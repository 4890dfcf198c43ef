"""Trains a small Qwen3-VL model to read pages that this package draws.

    python examples/experiments/attached-pages/train.py --out runs/attached-pages    # not yet run to its end

Four stages: the vision tower names the digits, and the fields of labels, that each patch of a page shows; the language
model (that of arr-coc-tiny-2) answers from oracle tokens, sums of the embeddings of what an image token's patches show;
the tower learns to make such tokens; then all is trained together, and the language model reads the tower's tokens, all
of them. A stage that is done is skipped; a killed one goes on from its last checkpoint. Measurements are those of the
validation split.
"""

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from small_qwen import (
    WORDS,
    Shown,
    draw_page,
    new_model,
    new_processor,
    oracle_tokens,
    shown,
    tiny_words,
)
from torch import Tensor, nn

from arr_coc.data import CHARSET, Split
from arr_coc.data.domains.document import Document
from arr_coc.data.questions import SHARED_TEMPLATE
from arr_coc.training.from_scratch.optimizers import muon
from arr_coc.training.from_scratch.reading import reading_loss
from arr_coc.training.from_scratch.stage import Loop
from arr_coc.training.from_scratch.targets import SLOTS

QUESTION = SHARED_TEMPLATE
NONE = 0.1
"""Weight of the class that most patches have, nothing."""
SHIFT = 3
"""Most pixels by which a page is shifted."""
KINDS: dict[str, dict[str, tuple[int, int]]] = {
    "characters": {"lines": (5, 8), "digits": (3, 8)}, "answers": {"lines": (4, 5), "digits": (2, 4)}
}  # fmt: skip
RATES = {"characters": 3e-3, "language": 1e-3, "tokens": 1.5e-3, "answers": 7e-4}
STEPS = [6000, 1000, 1000, 3000]
"""Learning rates and steps of the stages."""
CHARACTERS = SLOTS * (1 + len(CHARSET))


Questions = list[tuple[str, str]]
"""The questions about a page, with answers."""


class Student(nn.Module):
    """The model, a head that names what each patch shows, and the embeddings of these words for oracle tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.processor = new_processor()
        self.model = new_model(self.processor)
        self.norm = nn.LayerNorm(self.model.config.vision_config.hidden_size)
        self.head = nn.Linear(self.model.config.vision_config.hidden_size, WORDS)
        self.words = nn.Parameter(tiny_words())

    def see(self, page: Shown) -> tuple[Any, Tensor, Tensor]:
        """The tower's output, logits of characters [P, N, 4, SLOTS, *] and of fields [P, N, 4, *]."""
        seen = self.model.model.visual(page.patches, grid_thw=page.grid)
        logits = self.head(self.norm(seen.last_hidden_state)).view(*page.words.shape[:3], -1)
        return seen, logits[..., :CHARACTERS].unflatten(-1, (SLOTS, -1)), logits[..., CHARACTERS:]

    def oracle(self, words: Tensor) -> Tensor:
        """Oracle tokens [P, N, D], see `oracle_tokens`."""
        return oracle_tokens(self.words, words)

    def answer(
        self, tokens: Tensor, planes: Sequence[Tensor] | None, asked: Sequence[Questions]
    ) -> tuple[Tensor, list[bool]]:
        """The loss of the answers, and which are right, for image tokens [P, N, D] and questions of each page."""
        prompts = self.packed(tokens.shape[1], asked)
        embeds = self.model.get_input_embeddings()(prompts.ids)
        states = self.model.model.language_model(
            inputs_embeds=embeds.masked_scatter(prompts.image[..., None], tokens.float()),
            position_ids=prompts.places, attention_mask=prompts.mask, use_cache=False, visual_pos_masks=prompts.image,
            deepstack_visual_embeds=None if planes is None else [plane.float() for plane in planes],
        ).last_hidden_state  # fmt: skip
        said = prompts.targets >= 0
        logits, targets = self.model.lm_head(states[said]).float(), prompts.targets[said]
        most = 1 + int(prompts.owner.max())
        owner = (prompts.owner + most * torch.arange(len(asked))[:, None])[said]
        wrong = torch.zeros(most * len(asked)).index_add_(0, owner, (logits.argmax(-1) != targets).float())
        right = [
            not wrong[most * row + number] for row, own in enumerate(asked) for number in range(1, len(own) + 1)
        ]  # teacher-forced: the same as an exact greedy answer
        return F.cross_entropy(logits, targets), right

    def packed(self, count: int, asked: Sequence[Questions]) -> "Packed":
        """The questions of each page behind `count` image tokens, which they share, in one sequence for a page.

        A question attends to the image and to itself, and has the positions that it has alone.
        """
        tokenizer, side = self.processor.tokenizer, round(count**0.5)
        content: Any = [{"type": "image"}, {"type": "text", "text": "?"}]
        chat = self.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        before, behind = chat.split("<|image_pad|>")
        opening, (start, end) = tokenizer(before).input_ids, behind.split("?")
        texts = [
            [(tokenizer(f"{start}{q}{end}").input_ids, tokenizer(f"{a}<|im_end|>").input_ids) for q, a in own]
            for own in asked
        ]
        first = len(opening) + count
        length = first + max(sum(len(q) + len(a) - 1 for q, a in own) for own in texts)
        ids = torch.full((len(asked), length), tokenizer.pad_token_id)
        targets, owner = torch.full_like(ids, -100), torch.full_like(ids, -1)
        places = torch.zeros(3, *ids.shape, dtype=torch.long)
        ids[:, : len(opening)], owner[:, :first] = torch.tensor(opening), 0
        places[:, :, : len(opening)] = torch.arange(len(opening))
        at = torch.arange(count)
        places[:, :, len(opening) : first] = len(opening) + torch.stack((0 * at, at // side, at % side))[:, None]
        for row, own in enumerate(texts):
            begin = first
            for number, (question, answer) in enumerate(own, 1):
                text = torch.tensor([*question, *answer[:-1]])
                stop = begin + len(text)
                ids[row, begin:stop], owner[row, begin:stop] = text, number
                targets[row, begin + len(question) - 1 : stop] = torch.tensor(answer)
                places[:, row, begin:stop] = len(opening) + side + torch.arange(len(text))
                begin = stop
        image = torch.zeros_like(ids, dtype=torch.bool)
        image[:, len(opening) : first] = True
        sees = (owner[:, :, None] == owner[:, None]) | (owner[:, None] == 0)
        sees &= torch.ones(length, length).tril().bool()
        return Packed(ids, targets, owner, places, image, torch.zeros(sees.shape).masked_fill(~sees, -1e4)[:, None])


@dataclass(frozen=True)
class Packed:
    """Prompts of several questions [P, S].

    Attributes:
        ids, targets: of tokens, and what follows an answer's token, else -100.
        owner: the number of each token's question from 1, 0 for what all share, -1 for padding.
        places: [3, P, S] time, y, x.
        image: True on image tokens.
        mask: [P, 1, S, S], added to attention.
    """

    ids: Tensor
    targets: Tensor
    owner: Tensor
    places: Tensor
    image: Tensor
    mask: Tensor


# ---- data ------------------------------------------------------------------------------------------------------------


class Pages:
    """Drawn pages that are used several times, each time shifted otherwise."""

    def __init__(self, split: Split, seed: int, limit: int, **kind: tuple[int, int]) -> None:
        self.split, self.seed, self.limit, self.kind = split, seed, limit, kind
        self.drawn = list[Document]()

    def batch(self, step: int, size: int) -> tuple[Shown, list[Questions]]:
        """The pages of a step, a quarter of them new until there are `limit`, with a question about each field."""
        rng = np.random.default_rng((self.seed, step))
        wanted = size if not self.drawn else min(size // 4, self.limit - len(self.drawn))
        new = [draw_page(rng, self.split, **self.kind) for _ in range(wanted)]
        self.drawn += new
        chosen = new + [self.drawn[int(at)] for at in rng.integers(len(self.drawn), size=size - len(new))]
        asked = [[(QUESTION.format(field=entry.field), entry.value) for entry in page.entries] for page in chosen]
        moves = [(int(down), int(across)) for down, across in rng.integers(-SHIFT, SHIFT + 1, (size, 2))]
        return shown(chosen, moves), asked


# ---- stages ----------------------------------------------------------------------------------------------------------


def losses(student: Student, stage: str, page: Shown, asked: list[Questions]) -> dict[str, Tensor]:
    """The losses of a stage, their sum "loss", and shares of what is right."""
    if stage == "language":
        loss, exact = student.answer(student.oracle(page.words), None, asked)
        return {"loss": loss, "exact": torch.tensor(exact).float().mean()}
    seen, characters, fields = student.see(page)
    targets, named = page.words[..., :SLOTS], page.words[..., SLOTS]
    found = {
        "characters": (characters.argmax(-1) == targets)[targets > 0].float().mean(),
        "words": (fields.argmax(-1) == named)[named > 0].float().mean(),
    }
    loss = reading_loss(characters, targets, none_weight=NONE) + 0.5 * reading_loss(fields, named, none_weight=NONE)
    if stage != "characters":
        tokens = seen.pooler_output.view(*page.words.shape[:2], -1).float()
        target = student.oracle(page.words).detach()
        error = (tokens - target).square().mean() / target.square().mean()
        loss, found = loss + error, {**found, "error of tokens": error.detach()}
    if stage == "answers":
        answers, exact = student.answer(tokens, seen.deepstack_features, asked)
        loss, found = loss + answers, {**found, "exact": torch.tensor(exact).float().mean()}
    return {"loss": loss, **found}


def train(student: Student, stage: str, steps: int, rate: float, size: int, out: Path, pages: int) -> None:
    """Trains a stage; a stage that is done is loaded, a killed one goes on from its last measurement."""
    tower = ("visual", "head", "norm")
    taught = {"language": ("language_model", "words"), "characters": tower, "tokens": tower}.get(stage, ("",))
    chosen = [weight for name, weight in student.named_parameters() if any(part in name for part in taught)]
    optimizer, every = muon([(chosen, rate)], 0.01, student), max(1, min(100, steps // 3))
    loop = Loop(stage, student, optimizer, out / f"{stage}.pt", steps, min(20, steps - 1), every, bf16=True)
    if (first := loop.resume()) == steps:
        return
    kind = KINDS["characters" if stage in ("characters", "tokens") else "answers"]
    drawn, unseen = Pages("train", 1, 3000, **kind), Pages("validation", 2, pages, **kind)
    held = unseen.batch(0, pages)

    def measure() -> dict[str, float]:
        with torch.no_grad():
            return {name: float(value) for name, value in losses(student, stage, *held).items()}

    loop.run(first, lambda step: iter([losses(student, stage, *drawn.batch(step, size))]), measure)


def main() -> None:
    """Trains from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/attached-pages"), help="folder (runs/attached-pages)")
    parser.add_argument("--steps", nargs=4, type=int, default=STEPS, help="steps of the stages (6000 1000 1000 3000)")
    parser.add_argument("--batch", type=int, default=8, help="pages in a step (8)")
    parser.add_argument("--held-out", type=int, default=64, help="pages of the measurements (64)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    student = Student()
    for (stage, rate), steps in zip(RATES.items(), args.steps, strict=True):
        train(student, stage, steps, rate, args.batch, args.out, args.held_out)
    student.model.save_pretrained(args.out / "model")
    torch.save(student.words.detach(), args.out / "words.pt")  # for `evaluate.py --tokens oracle`


if __name__ == "__main__":
    main()
