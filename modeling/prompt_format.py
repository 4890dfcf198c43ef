"""The format of prompts: the chat template, the layouts around an image's tokens, and the number of tokens of an image.

The number is known before the model runs: `count_vision_tokens` counts for the processor and for the model.

Notation: P images, G side of the fine grid, N = G*G patches, M = (G/4)^2 base tokens in g rows of g, K fetched tokens,
D language-model width.
"""

import math
from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization

from .budgets import COMPRESSION, count_fetched, grid_size, pooling
from .checks import Registry

# ---- chat template --------------------------------------------------------------------------------------------------

IMAGE_TOKEN = "<|image_pad|>"
TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
QUESTION_ROLE = "user"
NOT_ON_THE_PAGE = "not on the page"  # the answer to a question about what an image does not show

_RENDER = """\
{%- macro render(content) -%}
  {%- if content is string -%}
    {{- content -}}
  {%- else -%}
    {%- for block in content or [] -%}
      {%- if block['type'] == 'text' -%}
        {{- block['text'] -}}
      {%- elif block['type'] in ['image', 'image_url'] -%}
        {{- 'IMAGE' -}}
      {%- else -%}
        {{- raise_exception('message content: expected text, image or image_url; got ' + block['type']) -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
"""


def render_macro(image: str) -> str:
    """Jinja macro `render(content)` of a chat template, which writes the blocks of a message in the order given, and
    `image` (a Jinja string) for each image."""
    return _RENDER.replace("'IMAGE'", f"'{image}'")


# ChatML as Qwen writes it. The `generation` tags mark the answers for `return_assistant_tokens_mask=True`;
# `enable_thinking=False` is Qwen3's switch.
CHAT_TEMPLATE = (
    render_macro("<|vision_start|><|image_pad|><|vision_end|>")
    + """\
{%- for message in messages -%}
  {{- '<|im_start|>' + message['role'] + '\\n' -}}
  {%- if message['role'] == 'assistant' -%}
    {%- generation -%}
      {{- render(message['content']) + '<|im_end|>' -}}
    {%- endgeneration -%}
  {%- else -%}
    {{- render(message['content']) + '<|im_end|>' -}}
  {%- endif -%}
  {{- '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|im_start|>assistant\\n' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}
    {{- '<think>\\n\\n</think>\\n\\n' -}}
  {%- endif -%}
{%- endif -%}
"""
)

IMAGES = ("image", "image_url")


def images_first(messages: Sequence[Any]) -> list[Any]:
    """A chat's messages in the order of the training: all images before the text of the first question.

    Several texts of a message become one, joined by line breaks. Messages that are not a chat do not change; the
    template refuses them.
    """
    ordered, images = [], []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list | tuple) and all(isinstance(block, Mapping) for block in content):
            texts = [block["text"] for block in content if block.get("type") == "text"]
            images += [block for block in content if block.get("type") in IMAGES]
            others = [block for block in content if block.get("type") not in (*IMAGES, "text")]
            message = {**message, "content": others + [{"type": "text", "text": "\n".join(texts)}] * bool(texts)}
        ordered.append(message)
    if not images:
        return ordered
    roles = [message.get("role") if isinstance(message, Mapping) else None for message in ordered]
    first = roles.index(QUESTION_ROLE) if QUESTION_ROLE in roles else None
    if first is None:
        return list(messages)
    content = ordered[first]["content"]
    texts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    ordered[first] = {**ordered[first], "content": [*images, *texts]}
    return ordered


# ---- layouts -----------------------------------------------------------------------------------------------------


Framed = tuple[Tensor, Tensor | None]
"""The tokens before an image's fetched tokens [P, positions, D], its base tokens among them, and those behind."""

LAYOUTS: Registry[type["Layout"]] = Registry("layout")


@LAYOUTS.register("plain")
class Layout(nn.Module):
    """The tokens that a language model expects around an image's tokens [M + K, D], here none; `width`: D.

    Attributes:
        adds: whether there are such tokens.
        shows_base: whether prompts hold base tokens.
        spatial: whether a token's position is its place in the image (`prompt.spatial_positions`), not its number.
    """

    adds: ClassVar[bool] = False
    shows_base: ClassVar[bool] = True
    spatial: ClassVar[bool] = False

    def __init__(self, width: int) -> None:
        super().__init__()

    @staticmethod
    def positions(rows: int) -> tuple[int, int]:
        """Positions beside the image's tokens, before and behind its fetched tokens, for `rows` rows of base tokens."""
        return 0, 0

    @staticmethod
    def base_places(tokens: int) -> Tensor:
        """The positions of base tokens among those of an image: [M] int64; M is `tokens`."""
        return torch.arange(tokens)

    def forward(self, base: Tensor, indicators: Tensor | None) -> Framed:
        """Base tokens [P, M, D] and the bridge's indicator rows [4, D] -> tokens before and behind fetched tokens."""
        return base, None


@LAYOUTS.register("rows")
class RowLayout(Layout):
    """DeepSeek-OCR's: `image_newline` [D] after each row, `view_seperator` [D] (its spelling) after the last."""

    adds = True

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.image_newline = nn.Parameter(torch.zeros(width))
        self.view_seperator = nn.Parameter(torch.zeros(width))

    def start_weights(self, std: float) -> None:
        for row in (self.image_newline, self.view_seperator):  # DeepSeek-OCR's initialisation
            initialization.normal_(row, std=row.shape[0] ** -0.5)

    @staticmethod
    def positions(rows: int) -> tuple[int, int]:
        return rows + 1, 0

    @staticmethod
    def base_places(tokens: int) -> Tensor:
        place = torch.arange(tokens)
        return place + place // isqrt(tokens)  # there is a newline behind each earlier row

    def forward(self, base: Tensor, indicators: Tensor | None) -> Framed:
        images, tokens, width = base.shape
        rows = base.unflatten(1, (isqrt(tokens), -1))
        newline = self.image_newline.to(base).expand(images, rows.shape[1], 1, width)
        end = self.view_seperator.to(base).expand(images, 1, width)
        return torch.cat((torch.cat((rows, newline), 2).flatten(1, 2), end), 1), None


@LAYOUTS.register("indicators")
class IndicatorLayout(Layout):
    """Ovis': the image-start row before the base tokens, the image-end row behind the fetched tokens."""

    adds = True

    @staticmethod
    def positions(rows: int) -> tuple[int, int]:
        return 1, 1

    @staticmethod
    def base_places(tokens: int) -> Tensor:
        return torch.arange(tokens) + 1

    def forward(self, base: Tensor, indicators: Tensor | None) -> Framed:
        assert indicators is not None, "the config allows this layout with the vet bridge only"
        start, end = (row.to(base).expand(base.shape[0], 1, -1) for row in indicators[:2])
        return torch.cat((start, base), 1), end


@LAYOUTS.register("fetched")
class FetchedLayout(Layout):
    """Fetched tokens alone: the prompt has no base tokens."""

    shows_base = False

    @staticmethod
    def positions(rows: int) -> tuple[int, int]:
        return -(rows**2), 0

    @staticmethod
    def base_places(tokens: int) -> Tensor:
        return torch.arange(0)


@LAYOUTS.register("qwen3_vl")
class Qwen3VlLayout(Layout):
    """Qwen3-VL's: the image's tokens alone, each at its row and column."""

    spatial = True


# ---- how many tokens ---------------------------------------------------------------------------------------------


def count_vision_tokens(
    image_size: int,
    patch_size: int,
    budget: int | str | None = None,
    *,
    strategy: str | None = None,
    excludes_base: bool = False,
    layout: str = "plain",
    sources: int = 1,
    max_base_tokens: int | None = None,
) -> tuple[int, int]:
    """Positions of one image in the language model: (base, K fetched tokens), known before the model runs.

    Base positions are those of the M base tokens and of the layout. For a document they are the pooled base tokens of
    all its pages, which share K.

    Args:
        image_size: side of the padded square image, px.
        patch_size: side of a fine patch, px.
        budget: see `resolve_budget`.
        strategy: "none" fetches nothing (K = 0); all others fetch the budget.
        excludes_base: whether base tokens are patches that are never fetched again: `ArrCocConfig.excludes_base`.
        layout: `ArrCocBridgeConfig.layout`.
        sources: pages of a document.
        max_base_tokens: see `pooling`.
    """
    side = grid_size(image_size, patch_size)
    rows = side // COMPRESSION
    pooled = math.ceil(rows / pooling(rows, sources, max_base_tokens))
    base = sources * (pooled**2 + sum(LAYOUTS[layout].positions(pooled)))
    return base, count_fetched(side * side, budget, strategy=strategy, taken=rows**2 if excludes_base else 0)
