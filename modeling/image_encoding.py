"""An encoded image: everything about it that no question changes.

Notation: P encoded images, I image slots, G side of the fine grid, N = G*G patches, M base tokens, C feature channels,
T texture channels, D' semantic width, D language-model width.
"""

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from .encoding import KeyValue


@dataclass
class ImageEncoding:
    """Everything about images that no question changes; pass it in place of the images for any number of questions.

    Attributes:
        features: [P, C, G, G], the grid encoder's output.
        textures: [P, T, G, G].
        patch_mask: [P, N] bool, True on patches that hold some of the image.
        seeds: [P] int64, a checksum of the pixels (for random relevance).
        compressed: [P, D', G/4, G/4], the compressor's output.
        base_indices: [P, M] which patches the base tokens are (mask compressor), or None.
        semantic: [P, M, D'], base states after the semantic encoder, without CLS.
        semantic_cache: its keys and values of the base, per layer.
        tokens: [P, M, D], base tokens in the language model's space; where the layout puts something before or between
            them, with that: [P, positions, D].
        closing: [P, positions, D] what the layout puts behind the saccades, or None.
        quality: [P, M] of the base tokens, from bridges that score tokens, else None.
        bridge_cache: the bridge's keys and values of the base, per layer, where it attends across tokens.
        bypass: whether `tokens` come from the bridge's linear projection alone.
        prefix_ids: [p] the prompt's tokens up to and including the base, or None where it was not prefilled.
        prefix_cache: the language model's keys and values of that prefix, per layer [P, heads, p, d].
        source_sizes: (height, width) of each source image in px, where known.
    """

    features: Tensor
    textures: Tensor
    patch_mask: Tensor
    seeds: Tensor
    compressed: Tensor
    base_indices: Tensor | None
    semantic: Tensor
    semantic_cache: list[KeyValue]
    tokens: Tensor
    closing: Tensor | None = None
    quality: Tensor | None = None
    bridge_cache: list[KeyValue] | None = None
    bypass: bool = False
    prefix_ids: Tensor | None = None
    prefix_cache: list[KeyValue] | None = None
    source_sizes: list[tuple[int, int]] | None = None

    @property
    def side(self) -> int:
        """G."""
        return self.features.shape[-1]

    @property
    def base_positions(self) -> int:
        """Positions that an image takes in a prompt when nothing is fetched: M, and those of the layout."""
        return self.tokens.shape[1] + (0 if self.closing is None else self.closing.shape[1])

    def __len__(self) -> int:
        return self.features.shape[0]

    def select(self, index: Tensor) -> "ImageEncoding":
        """The encodings at `index` [I], in that order; repeats are allowed."""

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.index_select(0, index.to(value.device))
            if isinstance(value, list):
                return [tuple(pick(t) for t in pair) for pair in value]
            return value

        named = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {name: named.pop(name) for name in ("prefix_ids", "source_sizes")}
        if kept["source_sizes"] is not None:
            kept["source_sizes"] = [kept["source_sizes"][i] for i in index.tolist()]
        return ImageEncoding(**{name: pick(value) for name, value in named.items()}, **kept)
