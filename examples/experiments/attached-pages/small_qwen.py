"""A small model of Qwen3-VL's architecture, its processor, the pages that it reads, and what is on them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

import arr_coc
from arr_coc.attached import AttachedReader
from arr_coc.data import CHARSET, FIELDS, Box, Glyph, Split
from arr_coc.data.domains.document import Document, render_document
from arr_coc.data.glyphs import glyph_targets
from arr_coc.training.from_scratch.targets import SLOTS, word_targets
from benchmarks.attached import NoVideos

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "hub_configs" / "arr-coc-tiny-2"
"""The language model, the tokenizer and the visual words are this model's."""

PATCH, MERGE, SIDE = 8, 2, 128
"""Pixels of a patch, patches along an image token, pixels along a page."""
WORDS = SLOTS * (1 + len(CHARSET)) + 1 + len(FIELDS)
"""The vocabularies of a patch: characters by slot, then names of fields."""
QUARTER = (0, 1, 4, 5)
"""The places of an image token's patches among the sixteen of arr-coc-tiny-2's cells."""
NAMES = (
    "total", "subtotal", "tax", "tip", "code", "order", "invoice", "price", "quantity", "seat", "gate", "room", "table",
    "lane", "bus", "account",
)  # fmt: skip
"""The fields of the pages; their values are numbers."""
LEAST_CAPITAL = 6.0
"""Least height of capitals, px."""
DIGITS = 10
"""The first characters of `CHARSET`; the others are not named."""


class PageProcessor(Qwen3VLProcessor):
    """Qwen3-VL's processor without videos, which need torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return type(argument)


def new_processor() -> PageProcessor:
    """Qwen3-VL's processor with the tokenizer and chat template of arr-coc-tiny-2."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    images = Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGE, min_pixels=32**2, max_pixels=512**2)
    return PageProcessor(images, tokenizer, NoVideos(), chat_template=(TINY / "chat_template.jinja").read_text())


def new_model(processor: PageProcessor, layers: int = 3, width: int = 128) -> Any:
    """A new vision tower, whose first layers look at neighbours, before arr-coc-tiny-2's language model."""
    ids, text = processor.tokenizer.convert_tokens_to_ids, text_config()
    names = {"image": "<|image_pad|>", "vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    tower = {
        "depth": layers, "hidden_size": width, "intermediate_size": 4 * width, "num_heads": width // 32,
        "patch_size": PATCH, "spatial_merge_size": MERGE, "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": (SIDE // PATCH) ** 2, "deepstack_visual_indexes": [0, 1],
    }  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text, vision_config=tower, tie_word_embeddings=True, video_token_id=len(processor.tokenizer),
        **{f"{name}_token_id": ids(token) for name, token in names.items()},
    )  # fmt: skip
    config.vision_config._attn_implementation = "eager"  # type: ignore[union-attr]  # the faster one here
    model = Qwen3VLForConditionalGeneration(config)
    own = {name.removeprefix("model.language_model."): value for name, value in _tiny("model.language_model.").items()}
    missing, unexpected = model.model.language_model.load_state_dict(own, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    _look_around(model.model.visual)
    model.generation_config.update(pad_token_id=ids("<|endoftext|>"), eos_token_id=ids("<|im_end|>"), do_sample=False)
    return model


def text_config() -> dict[str, Any]:
    """That of arr-coc-tiny-2's language model, with positions in time, y and x."""
    text = json.loads((TINY / "config.json").read_text())["text_config"]
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
            "head_dim", "vocab_size", "rms_norm_eps", "pad_token_id", "eos_token_id")  # fmt: skip
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    return {**{name: text[name] for name in kept}, "max_position_embeddings": 1024, "rope_parameters": rope}


def _tiny(prefix: str) -> dict[str, Tensor]:
    files = [load_file(path) for path in sorted(TINY.glob("*.safetensors"))]
    return {name: value for file in files for name, value in file.items() if name.startswith(prefix)}


def tiny_words() -> Tensor:
    """[4, WORDS, D] arr-coc-tiny-2's embeddings of what a patch shows, for each patch of an image token."""
    table = _tiny("model.bridge.table.")["model.bridge.table.weight"]
    return table.view(16, WORDS, -1)[list(QUARTER)].clone()


@torch.no_grad()
def _look_around(tower: Any) -> None:
    """Biases of queries and keys with which heads attend by place from the first step: in the first two layers to the
    four neighbours, behind them one head to the patch's own row.

    A head's bias is one vector for queries, and for keys the same vector turned by the rotary angles of the offset.
    """
    embed = tower.patch_embed.proj
    white = patches_of([np.full((SIDE, SIDE, 3), 255, np.uint8)])[0][0]
    embed.bias.copy_(-embed.weight.flatten(1) @ white)  # so blank patches are zeros, and ink alone is normalised
    frequencies = tower.rotary_pos_emb.inv_freq  # for y, and the same ones for x
    strength = torch.zeros_like(frequencies)
    strength[:2] = torch.tensor([8.0, 4.0])  # sharp; and the second against the first's period of 2 pi
    for layer, block in enumerate(tower.blocks):
        attention = block.attn
        dim, half, bias = attention.head_dim, attention.head_dim // 2, attention.qkv.bias
        offsets = [(0, 1), (0, -1), (1, 0), (-1, 0)] if layer < 2 else [(0, 0)]
        for head, (dy, dx) in enumerate(offsets):
            angle = torch.cat((dy * frequencies, dx * frequencies))
            along_x = strength if layer < 2 else 0 * strength
            size = (torch.cat((strength, along_x)) * dim**0.5).sqrt()
            query, key = head * dim, attention.dim + head * dim
            bias[query : query + half] = size
            bias[key : key + half] = size * angle.cos()
            bias[key + half : key + dim] = -size * angle.sin()


# ---- pages -----------------------------------------------------------------------------------------------------------


def draw_page(rng: np.random.Generator, split: Split, *, lines: tuple[int, int], digits: tuple[int, int]) -> Document:
    """A page with numbers of fields in large print, dark on white; `lines` and `digits`: the least and most of them."""
    while True:
        names = [NAMES[place] for place in rng.permutation(len(NAMES))[: int(rng.integers(lines[0], lines[1] + 1))]]
        values = [
            str(rng.integers(10 ** (size - 1), 10**size)) for size in rng.integers(*digits, len(names), endpoint=True)
        ]
        page = render_document(rng, size=SIDE, split=split, pairs=list(zip(names, values, strict=True)))
        least = min(glyph.box[3] - glyph.box[1] for glyph in page.glyphs)
        if least >= LEAST_CAPITAL and len(set(values)) == len(values):
            return replace(page, image=_dark_on_white(page.image))


def _dark_on_white(image: Image.Image) -> Image.Image:
    """The image in grey, as a scanner's settings for text show it."""
    grey = ImageOps.autocontrast(image.convert("L"), cutoff=1)
    levels = np.asarray(grey)
    grey = grey if np.median(levels) > 127 else ImageOps.invert(grey)
    paper = max(1.0, float(np.median(np.asarray(grey))))
    return grey.point([min(255, round(level * 255 / paper)) for level in range(256)]).convert("RGB")


def blocks(grid: Any) -> Any:
    """[P, G, G, ...] -> [P, N, 4, ...]: the patches of each image token, in the vision tower's order."""
    pages, side = grid.shape[:2]
    split = grid.reshape(pages, side // MERGE, MERGE, side // MERGE, MERGE, *grid.shape[3:])
    return split.swapaxes(2, 3).reshape(pages, (side // MERGE) ** 2, MERGE**2, *grid.shape[3:])


def patches_of(images: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Pixels and grid of square pages, uint8 [S, S, 3], as Qwen3-VL's image processor makes them."""
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    pixels = ((np.stack(images) / 255 - mean) / std).astype(np.float32)
    count, side = len(pixels), pixels.shape[1] // PATCH
    grid = pixels.reshape(count, side, PATCH, side, PATCH, 3).transpose(0, 1, 3, 5, 2, 4)  # [P, G, G, 3, 8, 8]
    patches = torch.from_numpy(blocks(grid).copy()).flatten(0, 2)  # [P N 4, 3, 8, 8]
    twice = patches[:, :, None].expand(-1, -1, 2, -1, -1)  # two equal frames
    return twice.reshape(len(patches), -1), torch.tensor([[1, side, side]] * count)


@dataclass(frozen=True)
class Shown:
    """What P pages show: patches of the vision tower, and the words of each patch [P, N, 4, SLOTS + 1]."""

    patches: Tensor
    grid: Tensor
    words: Tensor


def shown(documents: Sequence[Document], moves: Sequence[tuple[int, int]] | None = None) -> Shown:
    """The tensors of pages; `moves`: by how many pixels (y, x) each is shifted, repeating its edge."""
    grid, found, images = SIDE // PATCH, [], []
    for page, (down, across) in zip(documents, moves or [(0, 0)] * len(documents), strict=True):
        moved = (across, down, across, down)

        def place(box: Box, moved: Sequence[int] = moved) -> Any:
            return tuple(edge + by for edge, by in zip(box, moved, strict=True))

        glyphs = [Glyph(glyph.char, place(glyph.box)) for glyph in page.glyphs]
        entries = [replace(entry, label_box=place(entry.label_box)) for entry in page.entries]
        characters = glyph_targets(glyphs, size=SIDE, grid=grid, slots=SLOTS)
        characters[characters > DIGITS] = 0
        fields = word_targets(entries, size=SIDE, grid=grid)
        found.append(np.concatenate((characters, fields[..., None]), -1))
        at = [np.clip(np.arange(SIDE) - by, 0, SIDE - 1) for by in (down, across)]
        images.append(np.asarray(page.image.convert("RGB"))[np.ix_(*at)])
    patches, sizes = patches_of(images)
    return Shown(patches, sizes, torch.from_numpy(blocks(np.stack(found)).copy()))


def oracle_tokens(table: Tensor, words: Tensor) -> Tensor:
    """[P, N, D] sums of the embeddings of what the patches of each image token show.

    Args:
        table: [4, WORDS, D].
        words: [P, N, 4, SLOTS + 1].
    """
    known = words.clamp(min=0)
    rows = torch.arange(SLOTS + 1) * (1 + len(CHARSET))  # where each vocabulary starts
    chosen = table[torch.arange(MERGE**2)[:, None], known + rows]  # [P, N, 4, SLOTS + 1, D]
    return (chosen * (known > 0)[..., None]).sum((2, 3))


class OracleTower(torch.nn.Module):
    """Makes oracle tokens of pages that it was shown before, in place of a vision tower; its planes are zeros."""

    def __init__(self, tower: Any, table: Tensor) -> None:
        super().__init__()
        self.spatial_merge_size, self.dtype, self.table = tower.spatial_merge_size, tower.dtype, table
        self.planes, self.known = len(tower.deepstack_visual_indexes), dict[bytes, Tensor]()

    def learn(self, document: Document) -> None:
        """Remembers what a page shows."""
        page = shown([document])
        self.known[self._key(page.patches)] = page.words

    @staticmethod
    def _key(patches: Tensor) -> bytes:
        return (patches * 16).round().to(torch.int16).numpy().tobytes()

    def forward(self, patches: Tensor, grid_thw: Tensor, **kwargs: Any) -> BaseModelOutputWithDeepstackFeatures:
        parts = patches.split(grid_thw.prod(1).tolist())
        tokens = torch.cat([oracle_tokens(self.table, self.known[self._key(part)])[0] for part in parts])
        return BaseModelOutputWithDeepstackFeatures(
            pooler_output=tokens, deepstack_features=[torch.zeros_like(tokens)] * self.planes
        )


def load_reader(folder: Path, *, oracle: bool = False) -> AttachedReader:
    """A reader attached to the model that train.py wrote; `oracle`: with `OracleTower` for its vision tower."""
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder / "model").eval()
    if oracle:
        model.model.visual = OracleTower(model.model.visual, torch.load(folder / "words.pt"))
    return arr_coc.attach(model, new_processor())
