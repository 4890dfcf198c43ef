"""The language model, and the layouts of an image's tokens that language models expect in their prompts.

Notation: P images, M base tokens in g rows of g, D language-model width.
"""

from math import isqrt

import torch
from torch import Tensor, nn
from transformers import AutoModel, initialization
from transformers.configuration_utils import PretrainedConfig
from transformers.modeling_utils import PreTrainedModel

from .registry import Registry


def build_language_model(config: PretrainedConfig) -> PreTrainedModel:
    """The language model, without a vocabulary head, of any causal language model's config."""
    if config.model_type == "deepseek_ocr2_text":  # in transformers, but only as a part: AutoModel does not know it
        from transformers.models.deepseek_ocr2.modeling_deepseek_ocr2 import DeepseekOcr2TextModel

        return DeepseekOcr2TextModel._from_config(config)
    return AutoModel.from_config(config)


class Layout(nn.Module):
    """Base of the family: what a language model expects around an image's tokens [M + K, D]; `width`: D."""

    def __init__(self, width: int) -> None:
        super().__init__()

    @staticmethod
    def positions(rows: int) -> tuple[int, int]:
        """Positions beside the image's tokens, before and behind its saccades, for `rows` rows of base tokens."""
        return 0, 0

    @staticmethod
    def base_places(tokens: int) -> Tensor:
        """Where an image's base tokens stand among its positions: [M] int64, M being `tokens`."""
        return torch.arange(tokens)


LAYOUTS: Registry[type[Layout]] = Registry("layout")


def layout_positions(layout: str, rows: int) -> tuple[int, int]:
    """Positions that a layout adds to an image of `rows` rows of base tokens: before and behind its saccades.

    Raises:
        ValueError: unknown layout.
    """
    return LAYOUTS[layout].positions(rows)


Framed = tuple[Tensor, Tensor | None]
"""What stands before an image's saccades [P, positions, D], its base tokens among it, and what stands behind them."""


@LAYOUTS.register("plain")
class PlainLayout(Layout):
    """Nothing but the image's tokens."""

    def forward(self, base: Tensor, indicators: Tensor | None) -> Framed:
        """Base tokens [P, M, D] and the bridge's indicator rows [4, D] -> what stands before and behind saccades."""
        return base, None


@LAYOUTS.register("rows")
class RowLayout(Layout):
    """DeepSeek-OCR's: `image_newline` [D] after each row, `view_seperator` [D] (so spelt) after the last."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.image_newline = nn.Parameter(torch.zeros(width))
        self.view_seperator = nn.Parameter(torch.zeros(width))

    def start_weights(self, std: float) -> None:
        for row in (self.image_newline, self.view_seperator):  # as DeepSeek-OCR begins
            initialization.normal_(row, std=row.shape[0] ** -0.5)

    @staticmethod
    def positions(rows: int) -> tuple[int, int]:
        return rows + 1, 0

    @staticmethod
    def base_places(tokens: int) -> Tensor:
        place = torch.arange(tokens)
        return place + place // isqrt(tokens)  # a newline stands behind each row before

    def forward(self, base: Tensor, indicators: Tensor | None) -> Framed:
        """As `PlainLayout.forward`."""
        images, tokens, width = base.shape
        rows = base.unflatten(1, (isqrt(tokens), -1))
        newline = self.image_newline.to(base).expand(images, rows.shape[1], 1, width)
        end = self.view_seperator.to(base).expand(images, 1, width)
        return torch.cat((torch.cat((rows, newline), 2).flatten(1, 2), end), 1), None


@LAYOUTS.register("indicators")
class IndicatorLayout(Layout):
    """Ovis': the image-start row before the base tokens, the image-end row behind the saccades."""

    @staticmethod
    def positions(rows: int) -> tuple[int, int]:
        return 1, 1

    @staticmethod
    def base_places(tokens: int) -> Tensor:
        return torch.arange(tokens) + 1

    def forward(self, base: Tensor, indicators: Tensor | None) -> Framed:
        """As `PlainLayout.forward`."""
        assert indicators is not None, "the config allows this layout with the vet bridge only"
        start, end = (row.to(base).expand(base.shape[0], 1, -1) for row in indicators[:2])
        return torch.cat((start, base), 1), end


def embedding_table(embed: nn.Module, rows: int, device: torch.device) -> Tensor:
    """The first rows [V, D] of what `embed` gives for tokens; a view of its weight where that is at hand.

    Args:
        embed: a language model's embeddings.
        rows: V.
        device: where tokens go.
    """
    if type(embed) is nn.Embedding and not embed.weight.is_meta:  # subclasses scale or quantise
        return embed.weight[:rows]
    table: Tensor = embed(torch.arange(rows, device=device))
    return table
