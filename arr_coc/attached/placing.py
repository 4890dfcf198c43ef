"""Prompts of published models: first with all image tokens, then with base and fetched tokens only.

`PromptWriter` writes a prompt as the model's own processor does; `place` keeps its base tokens and fetched tokens.

Notation: S tokens of the plain prompt, N image tokens among them, S' tokens that are kept, L tokens of a question, M
base tokens, K fetched tokens, B prompts, T image tokens. Positions are [axes, S]: one axis, or time, y and x.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..modeling.budgets import NAMED_BUDGETS, resolve_budget
from ..modeling.image_encoding import Turns
from ..modeling.processing_arr_coc import Turn
from .encoding import EncodedPrompt, mean_over_cells
from .families import AttachedFamily

TEXT, BASE, FETCHED = 0, 1, 2


class PlainPrompt(NamedTuple):
    """A prompt with all image tokens.

    Attributes:
        ids: [S].
        is_image: bool [S], True on its N image tokens.
        positions: [axes, S], of the plain model.
    """

    ids: Tensor
    is_image: Tensor
    positions: Tensor


@dataclass
class PlacedPrompt:
    """A prompt as the language model reads it.

    Attributes:
        ids: [S'].
        positions: [axes, S'], the plain model's positions of the same places; a base token has its cell's mean.
        kinds: [S'] `TEXT`, `BASE` or `FETCHED`.
        tokens, planes: [T, D] its image tokens in their order.
        prefix: the number of tokens that do not depend on the question: those up to the last base token.
    """

    ids: Tensor
    positions: Tensor
    kinds: Tensor
    tokens: Tensor
    planes: list[Tensor]
    prefix: int

    @property
    def has_gaps(self) -> bool:
        """Whether tokens of the plain model's prompt were left out."""
        return self.positions.is_floating_point()


def count_fetched(budget: float | int | str, tokens: int, places: int, base: int) -> int | None:
    """K for a prompt of `tokens` image tokens in `places` and `base` base tokens; None: all tokens are kept.

    Args:
        budget: a share (float) of the plain model's image tokens, base tokens included; or, as for our own models, a
            number of fetched tokens beside the base tokens, or a name in `NAMED_BUDGETS`; or "all".

    Raises:
        ValueError: another kind of budget, more tokens than there are, a share below that of the base tokens, or no
            token at all.
    """
    known = (*NAMED_BUDGETS, "all")
    kinds = not isinstance(budget, bool) and isinstance(budget, float | int | str)
    if not kinds or (isinstance(budget, str) and budget not in known) or (isinstance(budget, int) and budget < 0):
        expected = f"a share, a number of tokens or one of {', '.join(known)}"
        raise ValueError(f"budget: expected {expected}; got {budget!r}")
    if budget == "all" or (isinstance(budget, float) and budget == 1.0):
        return None
    if isinstance(budget, float):
        if not 0.0 <= budget < 1.0:
            raise ValueError(f"budget: expected a share in 0..1; got {budget!r}")
        fetched = min(round(budget * tokens) - base, places)
        if fetched < 0:
            raise ValueError(f"budget: expected at least {base / tokens:.3f}, what the base takes; got {budget!r}")
    elif isinstance(budget, int) and budget > places:
        expected = f"a share in 0..1, 0 to {places} tokens or one of {', '.join(known)}"
        raise ValueError(f"budget: expected {expected}; got {budget}")
    else:
        fetched = resolve_budget(budget, places)
    if not fetched + base:
        raise ValueError(f"budget: expected at least one token where there is no base; got {budget!r}")
    return fetched


def share_or_number(text: str) -> float | int | str:
    """A budget of a published model (`AttachedReader.generate`): a share, a number of tokens, or a name."""
    if text.isdecimal():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


def place(
    plain: PlainPrompt, prompt: EncodedPrompt, fetched: Tensor | None, tokens: Tensor, planes: list[Tensor]
) -> PlacedPrompt:
    """Places base tokens at their view, and fetched tokens behind all base tokens.

    Args:
        fetched: [K] numbers of tokens, ascending; None: all, each in its own place, without base tokens.
        tokens, planes: [K, D] the fetched tokens, or all.
    """
    ids, is_image, positions = plain
    columns = is_image.nonzero().flatten()
    text = (~is_image).nonzero().flatten()
    if fetched is None:
        kinds = torch.where(is_image, FETCHED, TEXT)
        return PlacedPrompt(ids, positions, kinds, tokens, planes, 0)
    own = columns[fetched.to(columns.device)]
    count = len(prompt.base)
    base_positions = mean_over_cells(positions[:, columns].T, prompt.cells, count).T
    behind = columns[-1].expand(len(own)) if count else own
    keys = torch.cat((text, columns[_first_of_view(prompt)], behind))
    order = keys.argsort(stable=True)
    counts = ids.new_tensor([len(text), count, len(own)])
    kinds = ids.new_tensor([TEXT, BASE, FETCHED]).repeat_interleave(counts)[order]
    every = torch.cat((ids[text], ids[columns[:1]].expand(count + len(own))))
    at = torch.cat((positions[:, text].float(), base_positions, positions[:, own].float()), 1)
    prefix = int((kinds == BASE).nonzero()[-1]) + 1 if count else 0
    image_tokens = torch.cat((prompt.base, tokens))
    image_planes = [torch.cat(pair) for pair in zip(prompt.base_planes, planes, strict=True)]
    return PlacedPrompt(every[order], at[:, order], kinds, image_tokens, image_planes, prefix)


def _first_of_view(prompt: EncodedPrompt) -> Tensor:
    """[M] the number of the first token of each base token's view."""
    firsts, start = [], 0
    for view, (rows, cols) in zip(prompt.views, prompt.base_grids, strict=True):
        firsts += [start] * (rows * cols)
        start += len(view)
    return torch.tensor(firsts, dtype=torch.long)


@dataclass
class Batch:
    """A batch of prompts: [prefix][padding][rest]; all begin with the same prefix of p tokens, or p = 0.

    Attributes:
        ids, mask: [B, S'].
        positions: [axes, B, S'].
        kinds: [B, S'].
        tokens: [B, T, D], or a list of [T, D]; `planes` likewise, for each layer.
    """

    ids: Tensor
    mask: Tensor
    positions: Tensor
    kinds: Tensor
    tokens: list[Tensor]
    planes: list[list[Tensor]]


def pad(
    prompts: Sequence[PlacedPrompt], image_id: int, pad_id: int, *, prefix: int = 0, level: bool = False, spare: int = 0
) -> Batch:
    """Pads prompts on the left, or behind a common prefix.

    Args:
        prefix: p.
        level: whether all get equally many image tokens; the padding is zeros that no token attends to.
        spare: padding in every prompt.
    """
    most = max(len(prompt.tokens) for prompt in prompts)
    extra = [most - len(prompt.tokens) if level else 0 for prompt in prompts]
    length = spare + max(len(prompt.ids) + more for prompt, more in zip(prompts, extra, strict=True))
    rows = []
    for prompt, more in zip(prompts, extra, strict=True):
        fill = prompt.ids.new_full((length - len(prompt.ids),), pad_id)
        fill[len(fill) - more :] = image_id
        rows.append((prompt, fill, _behind(prompt.tokens, more, prefix, prompt)))

    def join(parts: Tensor, padding: Tensor) -> Tensor:
        return torch.cat((parts[..., :prefix], padding, parts[..., prefix:]), -1)

    return Batch(
        ids=torch.stack([join(prompt.ids, fill) for prompt, fill, _ in rows]),
        mask=torch.stack([join(torch.ones_like(prompt.ids), torch.zeros_like(fill)) for prompt, fill, _ in rows]),
        positions=torch.stack(
            [join(p.positions, p.positions.new_zeros(len(p.positions), len(fill))) for p, fill, _ in rows], 1
        ),
        kinds=torch.stack([join(prompt.kinds, torch.full_like(fill, TEXT)) for prompt, fill, _ in rows]),
        tokens=[tokens for _, _, tokens in rows],
        planes=[
            [_behind(plane, more, prefix, prompt) for prompt, more, plane in zip(prompts, extra, layer, strict=True)]
            for layer in zip(*(prompt.planes for prompt in prompts), strict=True)
        ],
    )


def _behind(tokens: Tensor, more: int, prefix: int, prompt: PlacedPrompt) -> Tensor:
    """Image tokens [T, D] behind the prefix, and `more` zeros in front of them."""
    known = int((prompt.kinds[:prefix] != TEXT).sum())
    return torch.cat((tokens.new_zeros(more, tokens.shape[1]), tokens[known:]))


class PromptWriter:
    """Questions about images -> token ids; `tokenizing` holds the lock of the tokenizer."""

    def __init__(self, family: AttachedFamily) -> None:
        self.family, self.processor, self.model = family, family.processor, family.model
        self.tokenizing = Turns()

    def chat(self, images: int, question: str, history: Sequence[Turn] = ()) -> str:
        """The prompt's text, with one placeholder for each image in its first turn.

        Raises:
            ValueError: a chat template without a place for images.
        """
        said = [(role, text) for turn in history for role, text in zip(("user", "assistant"), turn, strict=True)]
        chat: list[dict[str, Any]] = [
            {"role": role, "content": [{"type": "text", "text": text}]} for role, text in (*said, ("user", question))
        ]
        chat[0]["content"] = [*({"type": "image"} for _ in range(images)), *chat[0]["content"]]
        text = self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        if (count := text.count(self.processor.image_token)) != images:
            raise ValueError(f"chat template: expected a place for each of {images} images; got {count}")
        return text

    def processed(self, images: Sequence[Sequence[Any]]) -> tuple[dict[str, Any], list[list[str]]]:
        """The processor's outputs for the images of prompts, and its text for each image."""
        texts = [self.chat(len(shown), "?") for shown in images]
        with self.tokenizing.lock:
            options = {"padding": True, "return_tensors": "pt", "return_text_replacement_offsets": True}
            inputs = self.processor(text=texts, images=[list(shown) for shown in images], **options)
        offsets = inputs.pop("text_replacement_offsets")
        return inputs.to(self.model.device), [[part["replacement"] for part in own] for own in offsets]

    def plain(self, prompt: EncodedPrompt, question: str, history: Sequence[Turn] = ()) -> PlainPrompt:
        """The prompt of the plain model."""
        chat = self.chat(len(prompt.texts), question, history)
        text = self.processor.get_text_with_replacements([chat], prompt.texts)[0][0]
        bos = self.processor.tokenizer.bos_token
        ids = self._ids(text, special=bos is None or not text.startswith(bos))
        positions = self.family.positions(ids, prompt.inputs).to(ids.device)
        return PlainPrompt(ids, ids == self.model.config.image_token_id, positions)

    def words(self, question: str) -> Tensor:
        """[L] the question's own tokens."""
        return self._ids(question, special=False)

    def _ids(self, text: str, special: bool) -> Tensor:
        with self.tokenizing.lock:
            ids = self.processor.tokenizer(text, add_special_tokens=special).input_ids
        return torch.tensor(ids, dtype=torch.long, device=self.model.device)
