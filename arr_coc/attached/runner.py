"""Prompts of published models with base and fetched tokens, and the model that runs on them.

`ModelRunner` writes a prompt as the model's own processor does, keeps its base tokens and fetched tokens (`place`), and
runs the model.

Notation: S tokens of the plain prompt, N image tokens among them, S' tokens that are kept, L tokens of a question, M
base tokens, K fetched tokens, B prompts, T image tokens. Positions are [axes, S]: one axis, or time, y and x.
"""

import copy
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from ..modeling.budgets import NAMED_BUDGETS, resolve_budget
from ..modeling.generation import generation_setting, within_context
from ..modeling.image_encoding import Turns
from ..modeling.patch_scorers import AttentionRecorder
from ..modeling.pretrained import CACHE
from ..modeling.processing_arr_coc import Turn
from ..modeling.prompt import keeps_every_position
from .encoding import AttachedEncoding, EncodedPrompt, flat, mean_over_cells
from .families import AttachedFamily
from .scoring import AttachedFetch, with_neighbours

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
    """A prompt as the language model reads it."""

    ids: Tensor  # [S']
    # [axes, S'], the plain model's positions of the same places; a base token has its cell's mean; floating-point if
    # tokens were left out.
    positions: Tensor
    kinds: Tensor  # [S'] `TEXT`, `BASE` or `FETCHED`
    tokens: Tensor  # [T, D] its image tokens in their order
    planes: list[Tensor]  # those of these tokens
    prefix: int  # the number of tokens that do not depend on the question: those up to the last base token


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


ATTENTION_LAYERS = (0.25, 0.75)  # interval of the language model's depth whose attention is read
NEW_TOKENS = 128  # the most tokens of an answer, if neither the call nor the model's generation config gives it


class PreparedPrompt(NamedTuple):
    """A question about the images of a prompt, ready for the language model: `placed`, with the fetched tokens."""

    encoding: AttachedEncoding
    prompt: EncodedPrompt
    placed: PlacedPrompt
    fetch: AttachedFetch


class _Enough(Exception):
    """Ends the forward pass when the wanted layers have run."""


class _FirstLayers(AttentionRecorder):
    """Records the attention of one prompt's last token in the first `count` layers, then raises `_Enough`.

    Attributes:
        layers: [S] for each layer: how much more the last token attends to each position than the token `first` does,
            mean over heads.
    """

    def __init__(self, count: int, first: int = 0) -> None:
        super().__init__(torch.zeros(0, dtype=torch.bool))
        self.count, self.first = count, first

    def _record(self, weights: Tensor) -> None:
        heads = weights[0].float()
        self.layers.append((heads[:, -1] - heads[:, self.first]).clamp(min=0).mean(0))
        if len(self.layers) == self.count:
            raise _Enough


class ModelRunner:
    """Writes the prompts of a published model, and runs it on them; `tokenizing` holds the lock of its tokenizer."""

    def __init__(self, family: AttachedFamily) -> None:
        self.family, self.processor, self.model = family, family.processor, family.model
        self.tokenizing = Turns()

    def chat(self, images: int, question: str, history: Sequence[Turn] = ()) -> str:
        """The prompt's text, with one placeholder for each image in its first turn. Raises ValueError: a chat template
        without a place for images."""
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

    def place(self, prompt: EncodedPrompt, plain: PlainPrompt, fetched: Tensor | None) -> PlacedPrompt:
        """The prompt with base tokens at their view, and fetched tokens behind all base tokens. `fetched`: [K] numbers
        of tokens, ascending; None: all, each in its own place, without base tokens."""
        tokens, planes = prompt.tokens, prompt.planes
        if tokens is None:
            tokens, planes = self._encode_cells(prompt, fetched)
        elif fetched is not None:
            at = fetched.to(tokens.device)
            tokens, planes = tokens[at], [plane[at] for plane in planes]
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
        starts = torch.tensor([0, *map(len, prompt.views)]).cumsum(0)[:-1]
        firsts = starts.repeat_interleave(torch.tensor([rows * cols for rows, cols in prompt.base_grids]))
        keys = torch.cat((text, columns[firsts.to(columns.device)], behind))
        order = keys.argsort(stable=True)
        counts = ids.new_tensor([len(text), count, len(own)])
        kinds = ids.new_tensor([TEXT, BASE, FETCHED]).repeat_interleave(counts)[order]
        every = torch.cat((ids[text], ids[columns[:1]].expand(count + len(own))))
        at = torch.cat((positions[:, text].float(), base_positions, positions[:, own].float()), 1)
        prefix = int((kinds == BASE).nonzero()[-1]) + 1 if count else 0
        image_tokens = torch.cat((prompt.base, tokens))
        image_planes = [torch.cat(pair) for pair in zip(prompt.base_planes, planes, strict=True)]
        return PlacedPrompt(every[order], at[:, order], kinds, image_tokens, image_planes, prefix)

    def _encode_cells(self, prompt: EncodedPrompt, cells: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """The tokens `cells` [K] of a prompt, and their planes, encoded from its pixels; None: all tokens."""
        if cells is None:
            return flat(self.model.base_model.get_image_features(**prompt.pixels, return_dict=True))
        if not len(cells):
            return prompt.base[:0], [plane[:0] for plane in prompt.base_planes]
        family: Any = self.family
        return flat(family.encode_cells(prompt.pixels, cells.to(prompt.base.device)))

    def prefilled(self, encoding: AttachedEncoding, prompt: EncodedPrompt, *, whole: bool) -> tuple[Tensor, Any] | None:
        """The prompt up to its last base token, and the cache of the language model that read it.

        `whole`: up to the last of all image tokens, by the layers whose attention strategy "attention" reads; None
        where the model's cache drops positions.
        """
        placed = self.place(prompt, self.plain(prompt, "?"), None if whole else torch.zeros(0, dtype=torch.long))
        cache = DynamicCache(config=self.model.config.get_text_config())
        if whole and not keeps_every_position(cache):
            return None
        end = int((placed.kinds != TEXT).nonzero()[-1]) + 1
        inputs = self._inputs(encoding, [placed], end=end)
        layers: Any = _FirstLayers(self._attention_layers[1]) if whole else nullcontext()
        with suppress(_Enough), layers:
            self.model.base_model(**inputs, **{CACHE: cache}, use_cache=True)
        return placed.ids[:end], cache

    @property
    def _attention_layers(self) -> tuple[int, int]:
        """The first layer whose attention is read, and the one behind the last."""
        depth = self.model.config.get_text_config().num_hidden_layers
        low, high = (round(share * depth) for share in ATTENTION_LAYERS)
        low = min(low, depth - 1)
        return low, max(low + 1, high)

    @torch.no_grad()
    def attention(
        self,
        encoding: AttachedEncoding,
        prompt: EncodedPrompt,
        question: str,
        history: Sequence[Turn] = (),
        *,
        to_all: bool = False,
    ) -> Tensor:
        """[M] attention to base tokens from the prompt's last token, in the language model's middle layers.

        The answer begins behind the last token, so that this token attends to what the answer is read from (FastV,
        arXiv 2403.06764, and PyramidDrop, arXiv 2410.17247, rank image tokens by it). Counted is how much more it
        attends to a token than the first token behind the images does, which has not read the question: some image
        tokens get attention whatever the question is, for which MLLMs Know Where to Look (arXiv 2502.17422) corrects
        by a second, general question. The mean over heads and layers is taken.

        The language model reads base tokens and question, behind the cached prefix if there is one; with `to_all` it
        reads all image tokens and the question, behind those in `prompt.image`: [N], with the mean of its neighbours
        added to each token (`with_neighbours`). Its layers behind the middle ones do not run.

        Raises:
            ValueError: an attention implementation without weights.
        """
        plain = self.plain(prompt, question, history)
        placed = self.place(prompt, plain, None if to_all else torch.zeros(0, dtype=torch.long))
        behind = int((placed.kinds != TEXT).nonzero()[-1]) + 1
        cache, start = (None, 0) if to_all else self._prefix([prompt], [placed])
        if to_all and prompt.image is not None and torch.equal(placed.ids[:behind], prompt.image[0]):
            cache, start = copy.deepcopy(prompt.image[1]), behind
        low, high = self._attention_layers
        with suppress(_Enough), _FirstLayers(high, first=behind - start) as recorder:
            inputs = self._inputs(encoding, [placed], start, skip=start)
            self.model.base_model(**inputs, **{CACHE: cache}, use_cache=cache is not None)
        if not recorder.layers:
            received = self.model.config.get_text_config()._attn_implementation
            expected = 'a language model with attention "sdpa" or "eager", which shows its weights'
            raise ValueError(f'strategy "attention": expected {expected}; got {received!r}')
        paid = torch.stack(recorder.layers[low:]).mean(0)
        paid = paid[(placed.kinds == (FETCHED if to_all else BASE)).to(paid.device)]
        return with_neighbours(paid, prompt) if to_all else paid

    def answers(
        self, prepared: Sequence[PreparedPrompt], kwargs: dict[str, Any], with_logits: bool
    ) -> tuple[Any, int, list[str]]:
        """The output of transformers' `generate` for prompts, the start of its answers, and their texts."""
        placed = [own.placed for own in prepared]
        repeats = max(self.setting(kwargs, name, 1) for name in ("num_beams", "num_return_sequences"))
        plain = repeats == 1 and self._cache_is_plain(kwargs)
        cache, start = self._prefix([own.prompt for own in prepared], placed) if plain else (None, 0)
        # `generate` drops a mask of ones; without mask and cache, a gap in positions starts another sequence.
        gaps = any(own.positions.is_floating_point() for own in placed)
        spare = int(gaps and not self.setting(kwargs, "use_cache", True))
        inputs = self._inputs(prepared[0].encoding, placed, start, stacked=repeats > 1, spare=spare)
        if cache is not None:
            inputs[CACHE] = cache
        return self._decoded(inputs, kwargs, with_logits)

    def answers_to_text(
        self, questions: Sequence[str], turns: Sequence[Sequence[Turn]], kwargs: dict[str, Any]
    ) -> list[str]:
        """The plain model's answer to text."""
        texts = [self.chat(0, text, before) for text, before in zip(questions, turns, strict=True)]
        with self.tokenizing.lock:
            inputs = self.processor(text=texts, padding=True, padding_side="left", return_tensors="pt")
        return self._decoded(inputs.to(self.model.device), kwargs, False)[2]

    def setting(self, kwargs: dict[str, Any], name: str, default: Any = None) -> Any:
        """A setting of a generation as transformers resolves it."""
        return generation_setting(self.model, kwargs, name, default)

    def _decoded(self, inputs: dict[str, Any], kwargs: dict[str, Any], with_logits: bool) -> tuple[Any, int, list[str]]:
        """The output of `generate`, the start of its answers, and their texts."""
        start = inputs["input_ids"].shape[1]
        settings = within_context(self.model, kwargs, start) | {"return_dict_in_generate": True}
        if self.setting(kwargs, "max_new_tokens") is None and "max_length" not in kwargs:
            settings["max_new_tokens"] = NEW_TOKENS
        if with_logits:
            settings["output_logits"] = True
        output = self.model.generate(**inputs, **settings)
        texts = self.processor.tokenizer.batch_decode(output.sequences[:, start:], skip_special_tokens=True)
        return output, start, [text.strip() for text in texts]

    def _cache_is_plain(self, kwargs: dict[str, Any]) -> bool:
        """Whether this generation uses the kind of cache in which a prefix is stored."""
        others = [self.setting(kwargs, name) for name in ("cache_implementation", "prompt_lookup_num_tokens")]
        return others == [None, None] and "cache" not in kwargs and bool(self.setting(kwargs, "use_cache", True))

    def _prefix(self, prompts: Sequence[EncodedPrompt], placed: Sequence[PlacedPrompt]) -> tuple[Any, int]:
        """The cache of the prompts' common prefix, and its length; None and 0 without one."""
        first = prompts[0]
        if first.prefix is None or any(prompt is not first for prompt in prompts):
            return None, 0
        known, cache = first.prefix
        start = len(known)
        if not all(own.prefix == start and torch.equal(own.ids[:start], known) for own in placed):
            return None, 0
        if len({len(own.ids) for own in placed}) > 1 and not keeps_every_position(cache):
            return None, 0  # a sliding window would count the padding behind the prefix
        cache = copy.deepcopy(cache)
        cache.batch_repeat_interleave(len(placed))
        return cache, start

    def _inputs(
        self,
        encoding: AttachedEncoding,
        placed: Sequence[PlacedPrompt],
        prefix: int = 0,
        *,
        skip: int = 0,
        end: int | None = None,
        stacked: bool = False,
        spare: int = 0,
    ) -> dict[str, Any]:
        """The model's inputs for a batch of prompts, [prefix][padding][rest].

        Args:
            prefix: the number of tokens with which all begin, and which a cache holds: their image tokens are left out.
            skip, end: the first token, and the one behind the last.
            stacked: in the form for beams: all prompts get equally many image tokens; no token attends to those added.
            spare: padding in every prompt.
        """
        most = max(len(prompt.tokens) for prompt in placed)
        extra = [most - len(own.tokens) if stacked and not self.family.by_prompt else 0 for own in placed]
        length = spare + max(len(prompt.ids) + more for prompt, more in zip(placed, extra, strict=True))
        pad_id = self.setting({}, "pad_token_id", self.processor.tokenizer.pad_token_id) or 0
        rows = []
        for prompt, more in zip(placed, extra, strict=True):
            fill = prompt.ids.new_full((length - len(prompt.ids),), pad_id)
            fill[len(fill) - more :] = self.model.config.image_token_id
            parts = (
                (prompt.ids, fill),
                (torch.ones_like(prompt.ids), torch.zeros_like(fill)),
                (prompt.positions, prompt.positions.new_zeros(len(prompt.positions), len(fill))),
                (prompt.kinds, torch.full_like(fill, TEXT)),
            )
            joined = [torch.cat((own[..., :prefix], added, own[..., prefix:]), -1) for own, added in parts]
            known = int((prompt.kinds[:prefix] != TEXT).sum())
            values = (prompt.tokens, *prompt.planes)
            rows.append((*joined, [torch.cat((own.new_zeros(more, own.shape[1]), own[known:])) for own in values]))
        ids, mask, positions, kinds, features = zip(*rows, strict=True)
        tokens, *planes = ([*layer] for layer in zip(*features, strict=True))
        output = tokens if self.family.by_prompt else torch.stack(tokens) if stacked else torch.cat(tokens)
        whole, shown = torch.stack(mask), torch.stack(kinds)[:, :end]
        blocks = shown == (BASE if bool((shown == BASE).any()) else FETCHED)
        return {
            "input_ids": torch.stack(ids)[:, skip:end],
            "attention_mask": whole[:, :end],
            "position_ids": self.family.position_ids(torch.stack(positions, 1), whole)[..., skip:end],
            "mm_encoder_outputs": encoding.outputs(
                pooler_output=output, **({"deepstack_features": planes} if planes else {})
            ),
            **self.family.token_types(blocks),
        }
