"""Encodings of images: everything that does not depend on a question, in memory and in files.

Notation: P encoded images, I image slots, G side of the fine grid, N = G*G patches, M base tokens, K fetched tokens, C
feature channels, T texture channels, D' semantic width, D language-model width.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isqrt
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers.modeling_utils import safe_open, safe_save_file

from .budgets import Window
from .image_loading import Source

READ_WELL = 0.7
"""Legibility of an overview from which on it is read well: arr-coc-135m has medians of 0.98 with lines of 9 px, 0.91 of
7 px, 0.68 of 5 px, and 0.7 to 0.8 with worn print of 40 px and more (14 pages of PDFs, 2026-11-26)."""

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of tokens in one layer."""


class Rows:
    """Base of dataclasses whose tensors and lists hold one row for each item of a batch."""

    def select(self, index: Tensor) -> Self:
        """The items at `index` [I], in that order; repeats are allowed. Fields marked "shared" do not change."""
        return self._combined(
            [self],
            lambda tensors: tensors[0].index_select(0, index.to(tensors[0].device)),
            lambda lists: [lists[0][row] for row in index.tolist()],
        )

    def join(self, *others: Self) -> Self:
        """The items of all parts, in that order. Fields marked "shared" come from the first part."""
        if not others:
            return self
        return self._combined([self, *others], torch.cat, lambda lists: [row for rows in lists for row in rows])

    def _combined(
        self,
        parts: Sequence[Self],
        of_tensors: Callable[[list[Tensor]], Tensor],
        of_lists: Callable[[list[list[Any]]], list[Any]],
    ) -> Self:
        """The parts as one: each field with one row for each item by `of_tensors` or `of_lists`."""

        def combined(values: list[Any]) -> Any:
            if any(value is None for value in values):  # a field that is not known for all parts is None
                return None
            if isinstance(values[0], Tensor):
                return of_tensors(values)
            if not isinstance(values[0], list) or not values[0]:
                return values[0]
            if not isinstance(values[0][0], tuple) or not isinstance(values[0][0][0], Tensor):
                return of_lists(values)
            layers = zip(*values, strict=True)  # of keys and values
            return [tuple(of_tensors([*tensors]) for tensors in zip(*pairs, strict=True)) for pairs in layers]

        own = [part.name for part in fields(self) if part.init and not part.metadata.get("shared")]  # type: ignore[arg-type]
        return replace(self, **{name: combined([getattr(part, name) for part in parts]) for name in own})  # type: ignore[type-var]


@dataclass
class Tiles(Rows):
    """R tiles of encoded sources, with the fields from which all others can be computed.

    Attributes:
        features: [R, C, G, G] in bfloat16, or in the model's own half precision.
        textures: [R, T, G, G], in the same dtype.
        patch_mask: [R, N] bool.
        seeds: [R] int64.
        sources: [R] int64, the row of each tile's source in the `ImageEncoding`.
        windows: [R, 4] int64, x0, y0, x1, y1 in px of the source.
        depths: [R, 2, W, G, G] in the same dtype (`ImageEncoding.depths`), or None.
        pieces: [R, N, 2, S] int32 (`ImageEncoding.pieces`), or None.
        characters: [R, N, 2] float32 (`ImageEncoding.characters`), or None.
    """

    features: Tensor
    textures: Tensor
    patch_mask: Tensor
    seeds: Tensor
    sources: Tensor
    windows: Tensor
    depths: Tensor | None = None
    pieces: Tensor | None = None
    characters: Tensor | None = None

    def __len__(self) -> int:
        return len(self.sources)


class Turns:
    """A lock for what threads share, such as a tokenizer's padding. A copy, also a pickled one, is a new lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __reduce__(self) -> Any:
        return type(self), ()


@dataclass
class Tiling:
    """The tiles that questions may encode; encodings of the same sources share one.

    Attributes:
        windows: of every source, all tiles that it can have.
        asked_tiles, asked_share: limits for one question, see `ViewOptions`.
        encode: (source row, window) of some tiles -> these tiles.
        rows: (source row, window) of encoded tiles -> their row in `tiles`.
        tiles: the encoded tiles; None: none yet.
        turns: its lock is held while tiles are encoded, as several threads may use one encoding.
    """

    windows: list[list[Window]]
    asked_tiles: int
    asked_share: float
    encode: Callable[[list[tuple[int, Window]]], Tiles]
    rows: dict[tuple[int, Window], int] = field(default_factory=dict)
    tiles: Tiles | None = None
    turns: Turns = field(default_factory=Turns)


@dataclass
class ImageEncoding(Rows):
    """Encoded images; pass it in place of the images for any number of questions.

    Attributes:
        features: [P, C, G, G], the grid encoder's output.
        textures: [P, T, G, G], the channels of one of `vision_tower.TEXTURE_SETS`.
        patch_mask: [P, N] bool, False on padding patches.
        seeds: [P] int64, a checksum of the pixels (for random relevance).
        compressed: [P, D', G/4, G/4], the compressor's output.
        base_indices: [P, M] the patch of each base token (mask compressor), or None.
        semantic: [P, M, D'], states of base tokens after the semantic encoder, without CLS; D' is 0 in models that read
            text, which have none.
        semantic_cache: its keys and values of base tokens, for each layer.
        tokens: [P, M, D], base tokens for the language model, with the layout's tokens before and between them: [P,
            positions, D].
        closing: [P, positions, D] the layout's tokens behind the fetched tokens, or None.
        bridge_cache: the bridge's keys and values of base tokens, for each layer, if it attends across tokens.
        bypass: whether `tokens` come from the bridge's linear projection alone.
        pool: base cells along each axis in one of `tokens`.
        prefix_ids: [p] the prompt's tokens up to and including the base tokens, or None without a prefill.
        prefix_cache: the language model's keys and values of this prefix, for each layer [P, heads, p, d].
        page_cache: of one page whose words all fit the budget, so that each question fetches them: their tokens [W, D],
            and the keys and values [1, heads, p + W, d] of prefix and words; None of other images.
        source_sizes: (height, width) of each source image in px as it was given, if known.
        documents: the number of each source's document, or None without documents. One prompt shows all sources of a
            document.
        sources: the sources with their pixels, from which tiles are encoded, turned upright; None if they are not in
            memory and none was turned.
        tiles: tiles of the sources, or None: a model without views.
        tiling: the tiles that questions may encode, see `budgets.ViewOptions`; None if all tiles were encoded.
        depths: [P, 2, W, G, G], the grid encoder's states after a third and two thirds of its layers; None if neither a
            scorer nor the language model (deepstack) reads them.
        pieces: [P, N, 2, S] int32, the wordpieces that begin in the upper and lower half of each patch, -1 in empty
            slots (`wordpieces.TextReader`); None from models without a text reader.
        characters: [P, N, 2] float32, the number of characters in each patch and the sum of their confidence, 0 for
            characters without a class; None from models without a text reader, and in files of earlier versions.
        bypassed: [P] bool, True where the linear projection replaced the bridge's failed adapter; None from bridges
            without an adapter.
        made_by: the model that made it (`ArrCocModel.maker`), or None if that is not known.
        words: for each source where its words came from: (name in `word_sources.WORD_SOURCES`, engine with version,
            warning); None: the network read all.
        unseen: whether `features` of pages whose words were given are 0, as nothing that the model does by itself reads
            them (`view_encoding.with_features`).
        readings: further readings of the same sources, see `rereading.Reading`; none in rows that were selected or
            joined.
        joined: whether `join` made it: a single question is then about all of its images, not about each.
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
    bridge_cache: list[KeyValue] | None = None
    bypass: bool = False
    pool: int = field(default=1, metadata={"shared": True})
    prefix_ids: Tensor | None = field(default=None, metadata={"shared": True})
    prefix_cache: list[KeyValue] | None = None
    page_cache: tuple[Tensor, list[KeyValue]] | None = field(default=None, metadata={"shared": True})
    source_sizes: list[tuple[int, int]] | None = None
    documents: list[int] | None = None
    sources: list[Any] | None = None
    tiles: Tiles | None = field(default=None, metadata={"shared": True})
    tiling: Tiling | None = field(default=None, metadata={"shared": True})
    depths: Tensor | None = None
    pieces: Tensor | None = None
    characters: Tensor | None = None
    bypassed: Tensor | None = None
    made_by: tuple[str, str] | None = field(default=None, metadata={"shared": True})
    words: list[tuple[str, str, str]] | None = None
    unseen: bool = field(default=False, metadata={"shared": True})
    readings: tuple[Any, ...] = field(default=(), metadata={"shared": True})
    joined: bool = field(default=False, metadata={"shared": True})

    @property
    def side(self) -> int:
        """G."""
        return self.features.shape[-1]

    @property
    def base_positions(self) -> int:
        """Positions that an image takes in a prompt when nothing is fetched: M, and those of the layout."""
        return sum(part.shape[1] for part in (self.tokens, self.closing) if part is not None)

    def known_sources(self) -> list[Source] | None:
        """`sources`; without their pixels where these are not kept, as of a plain image; None without sizes."""
        if self.sources is not None or self.source_sizes is None:
            return self.sources
        return [Source(height, width, no_pixels) for height, width in self.source_sizes]

    @property
    def turned(self) -> list[int]:
        """Degrees, counterclockwise, by which each source was turned before it was read."""
        return [source.turned for source in self.sources or ()] or [0] * len(self)

    def __len__(self) -> int:
        return self.features.shape[0]

    def select(self, index: Tensor) -> "ImageEncoding":
        """The images at `index` [I], each by itself: its overview, without tiles and further readings."""
        documents = None if self.documents is None else list(range(len(index)))
        return replace(super().select(index), tiles=None, tiling=None, documents=documents, readings=(), joined=False)

    def join(self, *others: "ImageEncoding") -> "ImageEncoding":
        """The images of all encodings, in that order. Documents stay documents; beside them each image becomes one.

        `generate` answers one question about the result from all images together, and several each from its own.

        Fields that are not known for all of them (prefix, sizes, pixels) are None in the result.

        Raises:
            ValueError: grids or poolings that differ, or tiles that are encoded on demand.
        """
        if not others:
            return self
        every = [self, *others]
        for name in ("side", "pool"):
            if len(values := {getattr(encoding, name) for encoding in every}) > 1:
                raise ValueError(f"{name}: expected encodings of one {name} to join them; got {sorted(values)}")
        if any(encoding.tiling is not None for encoding in every):
            raise ValueError('tiles: expected encodings that hold all of their tiles to join them; got tiles="asked"')
        alike: dict[str, Any] = {"readings": (), "page_cache": None, "joined": True}
        alike["unseen"] = any(encoding.unseen for encoding in every)
        named = any(encoding.words is not None for encoding in every)
        prefixes = [encoding.prefix_ids for encoding in every]
        if not all(prefix is not None and torch.equal(prefix, prefixes[0]) for prefix in prefixes):  # type: ignore[arg-type]
            alike |= {"prefix_ids": None, "prefix_cache": None}
        every = [replace(each, **alike, words=each.word_sources() if named else None) for each in every]
        if any(encoding.documents is not None or encoding.sources is not None for encoding in every):
            every = _in_views(every)
        return Rows.join(*every)

    def save(self, path: str | os.PathLike, model: Any) -> None:
        """Writes the encoding to a safetensors file, which `load` reads with the same model.

        `model` is an `ArrCocForConditionalGeneration`. The file holds all tensors but the language model's keys and
        values of the prompt, which `load` computes again. It holds no pixels, so a question cannot encode further
        tiles.

        Raises:
            ValueError: tiles that are encoded on demand, or several readings, which a file cannot hold.
            FileNotFoundError: the path's folder does not exist.
        """
        if not Path(path).absolute().parent.is_dir():
            raise FileNotFoundError(f"{path}: expected a path in a folder that exists; got none")
        if self.tiling is not None:
            expected = "an encoding that holds all of its tiles (a larger max_tiles, fewer tiles by a number, or none)"
            raise ValueError(f'tiles: expected {expected}; got one of tiles="asked", or of more than max_tiles')
        if self.readings:
            raise ValueError(f"readings: expected an encoding of one reading to save it; got {1 + len(self.readings)}")
        metadata = {name: getattr(self, name) for name in _METADATA}
        if self.sources is not None:
            metadata["places"] = [(source.page, source.second, source.turned) for source in self.sources]
        about = {"format": FORMAT, "identity": model.model.identity(), "encoding": json.dumps(metadata)}
        tensors = {name: tensor.detach().contiguous().cpu().clone() for name, tensor in _tensors(self)}
        safe_save_file(tensors, str(path), metadata=about)

    @staticmethod
    def load(path: str | os.PathLike, model: Any) -> "ImageEncoding":
        """Reads an encoding that `save` wrote.

        Raises:
            ValueError: another kind of file, or an encoding of another model.
            FileNotFoundError: no such file.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path}: expected a file that ImageEncoding.save wrote; got a missing path")
        core = model.model
        try:
            with safe_open(str(path), framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name).to(core.input_device) for name in file.keys()}  # noqa: SIM118
        except Exception as error:  # safetensors has a class of its own
            expected = "a file that ImageEncoding.save wrote"
            raise ValueError(f"{path}: expected {expected}; got a broken one ({type(error).__name__})") from None
        if about.get("format") != FORMAT:
            raise ValueError(f"{path}: expected format {FORMAT}; got {about.get('format')!r}")
        identity = core.identity()
        check_identity(str(path), about["identity"], identity)
        encoding = _rebuilt(tensors, json.loads(about["encoding"]))
        encoding.made_by = core.token, identity
        prefilled: ImageEncoding = model.prefilled(encoding)
        return prefilled

    def word_sources(self) -> list[tuple[str, str, str]]:
        """`words`, also where the network read all."""
        return [("network", "", "")] * len(self) if self.words is None else self.words

    def centres(self) -> Tensor:
        """[P, M, 2] float32, (y, x) of the centre of each base token's patches, in patches of the fine grid."""
        if self.base_indices is not None:
            return torch.stack((self.base_indices // self.side, self.base_indices % self.side), -1).float()
        rows = isqrt(self.semantic.shape[1])
        start = torch.arange(0, rows, self.pool, device=self.tokens.device)
        middle = ((start + (start + self.pool).clamp(max=rows)) * (self.side // rows) - 1) / 2
        return torch.cartesian_prod(middle, middle).view(1, -1, 2).expand(len(self), -1, -1)

    def legibility(self, images: Sequence[int] | None = None) -> float | None:
        """The mean confidence, 0..1, of the characters in some of the images, all by default.

        0 without any character, None from models without a text reader. For an image with tiles, the characters are
        those of its tiles, as far as these are encoded.
        """
        if self.characters is None:
            return None
        total = self.characters.new_zeros(2)
        for row in range(len(self)) if images is None else images:
            views = self.characters[row : row + 1]
            if self.tiles is not None and self.tiles.characters is not None:
                own = (self.tiles.sources == row).nonzero()[:, 0]
                views = self.tiles.characters[own.to(views.device)] if len(own) else views
            total += views.sum((0, 1))
        return confidence_of(total)

    def check_fits(self, config: Any) -> None:
        """Raises a ValueError if a model of another width made the encoding: `config` is an `ArrCocConfig`."""
        widths = [self.features.shape[1], self.semantic.shape[-1], self.tokens.shape[-1]]
        semantic = config.semantic_config.hidden_size if self.pieces is None else 0
        own = [config.vision_config.out_channels, semantic, config.text_config.hidden_size]
        if widths != own:
            raise ValueError(f"image: expected an encoding by a model of widths {own}; got one of {widths}")

    def without_prefix(self) -> "ImageEncoding":
        """The encoding without the language model's prefill, for prompts that begin otherwise."""
        return replace(self, prefix_ids=None, prefix_cache=None, page_cache=None)

    def without_base(self) -> "ImageEncoding":
        """The encoding for prompts without base tokens and without the layout's tokens around them.

        Scorer and fetched tokens still use the base tokens.
        """
        return replace(self.without_prefix(), tokens=self.tokens[:, :0], closing=None)


def confidence_of(characters: Tensor) -> float:
    """The mean confidence of characters, from their number and the sum of their confidence [2]; 0 without any."""
    count, total = characters.tolist()
    return min(1.0, total / count) if count else 0.0


def _in_views(every: list[ImageEncoding]) -> list[ImageEncoding]:
    """Encodings to join, some of them with documents or tiles: all tiles are in the first one."""
    tiles, parts, start, number = list[Tiles](), list[ImageEncoding](), 0, 0
    for encoding in every:
        documents = [number + own for own in encoding.documents or range(len(encoding))]
        if encoding.tiles is not None:
            tiles.append(replace(encoding.tiles, sources=encoding.tiles.sources + start))
        start, number = start + len(encoding), documents[-1] + 1
        # The states that fetched tokens attend to are computed again for each view that is fetched from.
        again: dict[str, Any] = {"semantic_cache": [], "bridge_cache": None}
        parts.append(replace(encoding, **again, documents=documents, sources=encoding.known_sources()))
    parts[0].tiles = tiles[0].join(*tiles[1:]) if tiles else None
    return parts


# ---- in files ------------------------------------------------------------------------------------------------------

FORMAT = "arr_coc.encoding.1"

_CACHES = ("semantic_cache", "bridge_cache")
_METADATA = ("bypass", "pool", "source_sizes", "documents", "words", "unseen", "joined")


def check_identity(name: str, made_by: str, identity: str) -> None:
    if made_by != identity:
        expected = f"an encoding of this model ({identity[:12]})"
        raise ValueError(f"{name}: expected {expected}; got one of {made_by[:12]}")


def _tensors(encoding: ImageEncoding) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a file, by their names there."""
    for part in fields(encoding):
        value = getattr(encoding, part.name)
        if isinstance(value, Tensor) and part.name != "prefix_ids":
            yield part.name, value
    for name in _CACHES:
        for layer, pair in enumerate(getattr(encoding, name) or []):
            yield from ((f"{name}.{layer}.{kind}", tensor) for kind, tensor in zip("kv", pair, strict=True))
    if encoding.tiles is not None:
        held = ((part.name, getattr(encoding.tiles, part.name)) for part in fields(encoding.tiles))
        yield from ((f"tiles.{name}", tensor) for name, tensor in held if tensor is not None)


def _rebuilt(tensors: dict[str, Tensor], metadata: dict[str, Any]) -> ImageEncoding:
    whole: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if "." not in name}
    for name in _CACHES:
        layers = sum(key.startswith(f"{name}.") for key in tensors) // 2
        pairs = [(tensors[f"{name}.{layer}.k"], tensors[f"{name}.{layer}.v"]) for layer in range(layers)]
        whole[name] = pairs or ([] if name == "semantic_cache" else None)
    tiles = {name.removeprefix("tiles."): tensor for name, tensor in tensors.items() if name.startswith("tiles.")}
    whole.pop("quality", None)  # of files from before December 2026
    places = metadata.pop("places", None)
    if metadata["source_sizes"] is not None:
        metadata["source_sizes"] = [(height, width) for height, width in metadata["source_sizes"]]
    if metadata.get("words") is not None:
        metadata["words"] = [(source, engine, warning) for source, engine, warning in metadata["words"]]
    encoding = ImageEncoding(base_indices=whole.pop("base_indices", None), **whole, **metadata)
    if tiles:
        apart = {name: tensor.cpu() if name in ("sources", "windows") else tensor for name, tensor in tiles.items()}
        encoding.tiles = Tiles(**apart)
    if places is not None:
        sizes = metadata["source_sizes"]
        encoding.sources = [
            replace(Source(height, width, no_pixels, page, second).turn(sum(turned)), load=no_pixels)
            for (height, width), (page, second, *turned) in zip(sizes, places, strict=True)
        ]
    return encoding


def no_pixels() -> Any:
    raise ValueError("source: expected its pixels; got an encoding that holds none")
