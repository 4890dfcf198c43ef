"""The families of published models: the differences between them in an image's tokens.

The rest is transformers' own: `get_image_features` encodes, `generate(mm_encoder_outputs=..., position_ids=...)` takes
image tokens from outside. No model is patched or copied.

Notation: N image tokens of a prompt as the plain model has them, S prompt length, D width of the language model.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from transformers.vision_utils import get_vision_interpolation_indices_and_weights, get_vision_position_ids

from ..modeling.checks import Registry
from ..modeling.image_processing_arr_coc import Box


@dataclass(frozen=True)
class View:
    """A grid of image tokens: a whole image, or a tile of it."""

    image: int  # the number of its image in the prompt, from 0
    box: Box  # x0, y0, x1, y1, its part of this image, px
    rows: int  # of its tokens
    cols: int
    row_ends: int = 0  # tokens without a place behind each row, such as LLaVA's newline
    ends: int = 0  # such tokens behind the last row

    def __len__(self) -> int:
        return self.rows * (self.cols + self.row_ends) + self.ends

    def numbers(self) -> Tensor:
        """[rows, cols] the number of each token within the view."""
        return torch.arange(self.rows)[:, None] * (self.cols + self.row_ends) + torch.arange(self.cols)

    def spread(self, values: Tensor, fill: float = 0.0) -> Tensor:
        """Values [rows * cols, ...] on all tokens of the view, with `fill` on those without a place."""
        tokens = values.new_full((len(self), *values.shape[1:]), fill)
        tokens[self.numbers().flatten().to(values.device)] = values
        return tokens

    def boxes(self) -> Tensor:
        """[rows * cols, 4] x0, y0, x1, y1 of each token, px of the image."""
        x0, y0, x1, y1 = self.box
        y = torch.linspace(y0, y1, self.rows + 1)
        x = torch.linspace(x0, x1, self.cols + 1)
        top, left = torch.meshgrid(y[:-1], x[:-1], indexing="ij")
        bottom, right = torch.meshgrid(y[1:], x[1:], indexing="ij")
        return torch.stack((left, top, right, bottom), -1).flatten(0, 1)


class AttachedFamily:
    """Base class: images of one view each, one-dimensional positions, all image tokens of a batch in one tensor."""

    by_prompt: ClassVar[bool] = False
    """Whether `mm_encoder_outputs` holds a list with a tensor for each prompt instead of one tensor."""

    encodes_cells: ClassVar[bool] = False
    """Whether the vision tower can encode the patches of single image tokens: needed for way "pixels"."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model, processor
        self.image_token = processor.tokenizer.convert_ids_to_tokens(model.config.image_token_id)

    def views(self, image: int, size: tuple[int, int], tokens: int, text: str, inputs: Mapping[str, Any]) -> list[View]:
        """The views of one image of a prompt, in the order of their tokens.

        Args:
            image: the number of the image in the prompt.
            size: its (height, width), px.
            tokens: the number of its tokens.
            text: the processor's text for it.
            inputs: the processor's outputs for the prompt's images: see `of_prompt`.
        """
        raise NotImplementedError

    def of_prompt(self, inputs: Mapping[str, Any], first: int, last: int) -> dict[str, Tensor]:
        """The family's inputs for images `first` to `last` of a call, which positions depend on."""
        return {}

    def positions(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        """Positions [axes, S] of the plain model for a prompt [S]."""
        return torch.arange(len(ids), device=ids.device)[None]

    def position_ids(self, positions: Tensor, mask: Tensor) -> Tensor:
        """Positions [axes, B, S] and attention mask [B, S] as arguments of `generate`."""
        return positions[0]

    def token_types(self, blocks: Tensor) -> dict[str, Tensor]:
        """Further inputs; `blocks` [B, S] is True on image tokens that attend to each other in both directions."""
        return {}


FAMILIES: Registry[type[AttachedFamily]] = Registry("model_type")


def tiles(image: int, size: tuple[int, int], rows: int, cols: int, side: int) -> list[View]:
    """Equal tiles of an image of (height, width) px, row by row, each of `side` x `side` tokens."""
    height, width = size[0] / rows, size[1] / cols
    return [
        View(image, (x * width, y * height, (x + 1) * width, (y + 1) * height), side, side)
        for y in range(rows)
        for x in range(cols)
    ]


@FAMILIES.register("qwen2_5_vl")
class QwenVL(AttachedFamily):
    """An image at its own resolution as one view; positions are (time, y, x)."""

    by_prompt = True

    def views(self, image: int, size: tuple[int, int], tokens: int, text: str, inputs: Mapping[str, Any]) -> list[View]:
        merge = self.model.config.vision_config.spatial_merge_size
        _, rows, cols = (inputs["image_grid_thw"][image] // merge).tolist()
        return [View(image, (0, 0, size[1], size[0]), rows, cols)]

    def of_prompt(self, inputs: Mapping[str, Any], first: int, last: int) -> dict[str, Tensor]:
        return {"image_grid_thw": inputs["image_grid_thw"][first:last]}

    def positions(self, ids: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
        types = (ids == self.model.config.image_token_id).int()
        return self.model.base_model.get_rope_index(ids[None], types[None], **inputs)[0][:, 0]

    def position_ids(self, positions: Tensor, mask: Tensor) -> Tensor:
        text = (mask.cumsum(-1) - 1).clamp(min=0)
        return torch.cat((text[None].to(positions), positions))


@FAMILIES.register("qwen3_vl")
@FAMILIES.register("qwen3_vl_moe")
class Qwen3VL(QwenVL):
    """Its tower attends within an image without windows, so single patches can be encoded."""

    encodes_cells = True

    def overviews(self, images: Sequence[Image.Image], grids: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        """The tower's inputs for small copies of images, each of (rows, cols) tokens."""
        config = self.model.config.vision_config
        side = config.patch_size * config.spatial_merge_size
        sizes = [(cols * side, rows * side) for rows, cols in grids]
        small = [image.resize(size, Image.Resampling.BICUBIC) for image, size in zip(images, sizes, strict=True)]
        return self.processor.image_processor(small, do_resize=False, return_tensors="pt").to(self.model.device)

    def pixels(self, tower: Mapping[str, Tensor], first: int, last: int) -> dict[str, Tensor]:
        """The tower's inputs for images `first` to `last`."""
        starts = F.pad(tower["image_grid_thw"].prod(-1).cumsum(0), (1, 0))
        patches = tower["pixel_values"][starts[first] : starts[last]]
        return {"pixel_values": patches, "image_grid_thw": tower["image_grid_thw"][first:last]}

    def encode_cells(self, pixels: Mapping[str, Tensor], cells: Tensor) -> Any:
        """The outputs of `get_image_features` for the patches of the image tokens `cells` [K], at their places."""
        tower, grids = self.model.base_model.visual, pixels["image_grid_thw"]
        merge = tower.spatial_merge_size
        places = get_vision_position_ids(grids, merge)
        corners, weights = get_vision_interpolation_indices_and_weights(
            grids,
            num_grid_per_side=tower.num_grid_per_side,
            mode=tower.interpolation_mode,
            align_corners=tower.interpolation_align_corners,
            spatial_merge_size=merge,
        )
        # The merge x merge patches of a token are consecutive.
        rows = (cells[:, None] * merge**2 + torch.arange(merge**2, device=cells.device)).flatten()
        last = (grids.prod(-1) // merge**2).cumsum(0)
        counts = torch.bincount(torch.bucketize(cells, last, right=True), minlength=len(grids))
        lengths = F.pad((counts[counts > 0] * merge**2).cumsum(0), (1, 0)).int()
        return self.model.base_model.get_image_features(
            pixels["pixel_values"][rows],
            grids.new_tensor([[1, merge, merge * len(cells)]]),
            image_position_ids=places[rows],
            image_interp_indices=corners[rows],
            image_interp_weights=weights[rows],
            image_cu_seqlens=lengths,
            return_dict=True,
        )


@FAMILIES.register("internvl")
class InternVL(AttachedFamily):
    """Tiles, row by row, and an overview behind them; an image of one tile has no overview."""

    def views(self, image: int, size: tuple[int, int], tokens: int, text: str, inputs: Mapping[str, Any]) -> list[View]:
        side = math.isqrt(self.processor.image_seq_length)
        count = tokens // side**2
        overview = tiles(image, size, 1, 1, side)
        if count == 1:
            return overview
        grids = [(rows, (count - 1) // rows) for rows in range(1, count) if (count - 1) % rows == 0]
        rows, cols = min(grids, key=lambda grid: abs(size[1] / size[0] - grid[1] / grid[0]))
        return tiles(image, size, rows, cols, side) + overview


@FAMILIES.register("idefics3")
@FAMILIES.register("smolvlm")
class Idefics3(AttachedFamily):
    """Tiles, row by row, each with its row and column as text in the prompt, and an overview behind them."""

    by_prompt = True

    def views(self, image: int, size: tuple[int, int], tokens: int, text: str, inputs: Mapping[str, Any]) -> list[View]:
        side = math.isqrt(self.processor.image_seq_len)
        named = [(int(row), int(col)) for row, col in re.findall(r"<row_(\d+)_col_(\d+)>", text)]
        rows, cols = map(max, zip(*named, strict=True)) if named else (0, 0)
        return tiles(image, size, rows, cols, side) + tiles(image, size, 1, 1, side)


@FAMILIES.register("ovis2")
class Ovis2(AttachedFamily):
    """An overview, and behind it tiles row by row, with indicator tokens for rows and columns between them."""

    def views(self, image: int, size: tuple[int, int], tokens: int, text: str, inputs: Mapping[str, Any]) -> list[View]:
        side = math.isqrt(self.processor.image_seq_length)
        overview = tiles(image, size, 1, 1, side)
        rows = text.count("<IMG_ROW>") + 1
        cols = text.count("<IMG_COL>") // rows + 1
        return overview if tokens == side**2 else overview + tiles(image, size, rows, cols, side)


@FAMILIES.register("gemma3")
class Gemma3(AttachedFamily):
    """One view, and behind it crops along the longer side if pan and scan is on.

    Tokens of a view attend to each other in both directions. Fetched tokens come behind the base tokens and attend to
    earlier tokens only, so base tokens do not depend on the question.
    """

    def views(self, image: int, size: tuple[int, int], tokens: int, text: str, inputs: Mapping[str, Any]) -> list[View]:
        side = math.isqrt(self.processor.image_seq_length)
        crops = tokens // side**2 - 1
        rows, cols = (1, crops) if size[1] >= size[0] else (crops, 1)
        return tiles(image, size, 1, 1, side) + (tiles(image, size, rows, cols, side) if crops else [])

    def token_types(self, blocks: Tensor) -> dict[str, Tensor]:
        return {"token_type_ids": blocks.long()}


@FAMILIES.register("llava_onevision")
class LlavaOnevision(AttachedFamily):
    """An overview, and behind it one grid of all tiles, cut to the image, with a newline behind each row. Several
    images in a prompt have no tiles, and one newline each."""

    by_prompt = True

    def views(self, image: int, size: tuple[int, int], tokens: int, text: str, inputs: Mapping[str, Any]) -> list[View]:
        side, box = math.isqrt(self.processor.num_image_tokens), (0, 0, size[1], size[0])
        if tokens == side**2 + 1:
            return [View(image, box, side, side, ends=1)]
        rows, cols = self._cut_grid(size, side)
        return [View(image, box, side, side), View(image, box, rows, cols, row_ends=1)]

    def _cut_grid(self, size: tuple[int, int], side: int) -> tuple[int, int]:
        """Rows and columns of the tiles' tokens without padding, as in `pack_image_features`."""
        from transformers.models.llava_onevision import modeling_llava_onevision as published

        config = self.model.config
        pinpoints, tile = config.image_grid_pinpoints, config.vision_config.image_size
        shape = published.get_anyres_image_grid_shape(size, pinpoints, tile)
        whole = torch.empty(1, *(count * side for count in shape), device="meta")
        rows, cols = published.unpad_image(whole, size).shape[1:]
        most = int(config.vision_aspect_ratio.removeprefix("anyres_max_"))
        ratio = math.sqrt(rows * cols / (most * side**2))
        return (int(rows // ratio), int(cols // ratio)) if ratio > 1.1 else (rows, cols)
