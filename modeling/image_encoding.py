"""Encodings of images: everything about them that no question changes, in memory and in files.

Notation: P encoded images, I image slots, G side of the fine grid, N = G*G patches, M base tokens, K fetched tokens, C
feature channels, T texture channels, D' semantic width, D language-model width.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isqrt
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers.modeling_utils import safe_open, safe_save_file

from .image_loading import Source

KeyValue = tuple[Tensor, Tensor]
"""Keys and values of tokens in one layer."""


class Rows:
    """Base of dataclasses whose tensors and lists hold a row for every item of a batch."""

    def select(self, index: Tensor) -> Self:
        """The items at `index` [I], in that order; repeats are allowed. Fields marked "shared" stay as they are."""

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.index_select(0, index.to(value.device))
            if not isinstance(value, list) or not value:
                return value
            if isinstance(value[0], tuple) and isinstance(value[0][0], Tensor):  # keys and values of layers
                return [tuple(pick(tensor) for tensor in pair) for pair in value]
            return [value[i] for i in index.tolist()]

        return replace(self, **{name: pick(getattr(self, name)) for name in self._own()})  # type: ignore[type-var]

    def join(self, *others: Self) -> Self:
        """The items of all, in that order. Fields marked "shared" are taken from the first."""

        def chain(values: list[Any]) -> Any:
            if any(value is None for value in values):  # what is not known of all is not known
                return None
            if isinstance(values[0], Tensor):
                return torch.cat(values)
            if not isinstance(values[0], list) or not values[0]:
                return values[0]
            if isinstance(values[0][0], tuple) and isinstance(values[0][0][0], Tensor):  # keys and values of layers
                return [
                    tuple(torch.cat(tensors) for tensors in zip(*pairs, strict=True))
                    for pairs in zip(*values, strict=True)
                ]
            return [row for rows in values for row in rows]

        if not others:
            return self
        every = (self, *others)
        return replace(self, **{name: chain([getattr(rows, name) for rows in every]) for name in self._own()})  # type: ignore[type-var]

    def _own(self) -> list[str]:
        """Fields that hold a row for every item."""
        return [part.name for part in fields(self) if part.init and not part.metadata.get("shared")]  # type: ignore[arg-type]


@dataclass
class Tiles(Rows):
    """Tiles of encoded sources: of each what no question changes and nothing else can be made from; R of them.

    Attributes:
        features: [R, C, G, G] in bfloat16 (or half precision, where the model computes in that).
        textures: [R, T, G, G], likewise.
        patch_mask: [R, N] bool.
        seeds: [R] int64.
        sources: [R] int64, the row of the `ImageEncoding` whose source each is a part of.
        windows: [R, 4] int64, x0, y0, x1, y1 in px of the source.
        depths: [R, 2, W, G, G] like the features, where the model keeps depths (`ImageEncoding.depths`), else None.
        pieces: [R, N, 2, S] int32 where the model reads text (`ImageEncoding.pieces`), else None.
        characters: [R, N, 2] float32, likewise (`ImageEncoding.characters`).
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


SEEN = (
    "features", "textures", "patch_mask", "seeds", "compressed", "base_indices", "semantic", "semantic_cache", "depths",
    "pieces", "characters",
)  # fmt: skip
"""What of an `ImageEncoding` comes from the vision tower; the rest is the language model's side of it."""

KNOWN = ("source_sizes", "documents", "sources", "tiles", "tiling")
"""What is known of an encoding's sources, whatever reads their tokens."""


@dataclass
class ImageEncoding(Rows):
    """Everything about images that no question changes; pass it in place of the images for any number of questions.

    Attributes:
        features: [P, C, G, G], the grid encoder's output.
        textures: [P, T, G, G], the first of `textures.TEXTURES`.
        patch_mask: [P, N] bool, True on patches that hold some of the image.
        seeds: [P] int64, a checksum of the pixels (for random relevance).
        compressed: [P, D', G/4, G/4], the compressor's output.
        base_indices: [P, M] which patches the base tokens are (mask compressor), or None.
        semantic: [P, M, D'], base states after the semantic encoder, without CLS.
        semantic_cache: its keys and values of the base, per layer.
        tokens: [P, M, D], base tokens in the language model's space; where the layout puts something before or between
            them, with that: [P, positions, D].
        closing: [P, positions, D] what the layout puts behind the fetched tokens, or None.
        quality: [P, M] of the base tokens, from bridges that score tokens, else None.
        bridge_cache: the bridge's keys and values of the base, per layer, where it attends across tokens.
        bypass: whether `tokens` come from the bridge's linear projection alone.
        pool: base cells along each axis that one of `tokens` stands for.
        prefix_ids: [p] the prompt's tokens up to and including the base, or None where it was not prefilled.
        prefix_cache: the language model's keys and values of that prefix, per layer [P, heads, p, d].
        source_sizes: (height, width) of each source image in px, where known.
        documents: the number of the document that each source is a page of, or None where each stands for itself. One
            prompt shows all sources of a document.
        sources: what was encoded, with its pixels, to run back to; None where they are not at hand.
        tiles: tiles of the sources, or None: a model without views.
        tiling: how tiles are asked for, see `views.ViewOptions`; None where all that there are were encoded.
        depths: [P, 2, W, G, G], the grid encoder's states after a third and two thirds of its layers, or None where no
            scorer of the model reads them, nor its language model (deepstack).
        pieces: [P, N, 2, S] int32, the wordpieces that begin in the upper and lower half of each patch, -1 in empty
            slots (`wordpieces.TextReader`); None: a model that does not read text so.
        characters: [P, N, 2] float32, how many characters were read in each patch, and the sum of their confidence, to
            which what cannot be read adds 0; None like `pieces`, and in files of earlier versions.
        bypassed: [P] bool, True where the bridge's adapter failed, so that `tokens` are its linear projection's; None
            from bridges without an adapter.
        made_by: the model that made it (`ArrCocModel.maker`), or None where that is not known.
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
    pool: int = field(default=1, metadata={"shared": True})
    prefix_ids: Tensor | None = field(default=None, metadata={"shared": True})
    prefix_cache: list[KeyValue] | None = None
    source_sizes: list[tuple[int, int]] | None = None
    documents: list[int] | None = None
    sources: list[Any] | None = None
    tiles: Tiles | None = field(default=None, metadata={"shared": True})
    tiling: Any = field(default=None, metadata={"shared": True})
    depths: Tensor | None = None
    pieces: Tensor | None = None
    characters: Tensor | None = None
    bypassed: Tensor | None = None
    made_by: tuple[str, str] | None = field(default=None, metadata={"shared": True})

    @property
    def side(self) -> int:
        """G."""
        return self.features.shape[-1]

    @property
    def base_positions(self) -> int:
        """Positions that an image takes in a prompt when nothing is fetched: M, and those of the layout."""
        return sum(part.shape[1] for part in (self.tokens, self.closing) if part is not None)

    def __len__(self) -> int:
        return self.features.shape[0]

    def join(self, *others: "ImageEncoding") -> "ImageEncoding":
        """The images of all, in that order; documents stay such, and beside them each image becomes one.

        What is not known of all of them (prefix, sizes, pixels) is not known afterwards.

        Raises:
            ValueError: grids or poolings that differ, or tiles that are encoded when a question asks for them.
        """
        every = [self, *others]
        for name in ("side", "pool"):
            if len(values := {getattr(encoding, name) for encoding in every}) > 1:
                raise ValueError(f"{name}: expected encodings of one {name} to join them; got {sorted(values)}")
        if others and any(encoding.tiling is not None for encoding in every):
            raise ValueError('tiles: expected encodings that hold all of their tiles to join them; got tiles="asked"')
        if not all(_same(self.prefix_ids, encoding.prefix_ids) for encoding in others):
            every = [encoding.without_prefix() for encoding in every]
        in_views = any(encoding.documents is not None or encoding.tiles is not None for encoding in every)
        return _join_views(every) if others and in_views else Rows.join(*every)

    def save(self, path: str | os.PathLike, model: Any) -> None:
        """Writes it to one safetensors file, for `load` with the same model, an `ArrCocForConditionalGeneration`.

        Kept are all tensors but the language model's keys and values of the prompt, which it makes anew. Pixels are
        not: a question cannot go back to them for new tiles.

        Raises:
            ValueError: its tiles are encoded when questions ask for them, which a file cannot do.
        """
        save_encoding(self, path, model.model.identity())

    @staticmethod
    def load(path: str | os.PathLike, model: Any) -> "ImageEncoding":
        """The encoding that `save` wrote.

        Raises:
            ValueError: another file, or an encoding of another model.
            FileNotFoundError: no such file.
        """
        core = model.model
        encoding: ImageEncoding = model.prefilled(load_encoding(path, (core.token, core.identity()), core.input_device))
        return encoding

    def centres(self) -> Tensor:
        """[P, M, 2] float32, (y, x) of the middle of what each base token shows, in patches of the fine grid."""
        if self.base_indices is not None:
            return torch.stack((self.base_indices // self.side, self.base_indices % self.side), -1).float()
        rows = isqrt(self.semantic.shape[1])
        start = torch.arange(0, rows, self.pool, device=self.tokens.device)
        middle = ((start + (start + self.pool).clamp(max=rows)) * (self.side // rows) - 1) / 2
        return torch.cartesian_prod(middle, middle).view(1, -1, 2).expand(len(self), -1, -1)

    def legibility(self, images: Sequence[int] | None = None) -> float | None:
        """How well the model can read some of the images, all by default: the mean confidence of their characters.

        0..1; 0 where no character was read, None from models that do not read text. An image that is seen in tiles is
        read in these; of tiles that questions ask for, those that were encoded so far count.
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
        """Raises a ValueError where a model of another width made this: `config` is an `ArrCocConfig`."""
        widths = [self.features.shape[1], self.semantic.shape[-1], self.tokens.shape[-1]]
        own = [config.vision_config.out_channels, config.semantic_config.hidden_size, config.text_config.hidden_size]
        if widths != own:
            raise ValueError(f"image: expected an encoding by a model of widths {own}; got one of {widths}")

    def without_prefix(self) -> "ImageEncoding":
        """The same without the language model's reading of it: for prompts that do not begin with it."""
        return replace(self, prefix_ids=None, prefix_cache=None)

    def without_base(self) -> "ImageEncoding":
        """The same for prompts without base tokens, and without what the layout puts around them.

        Patches are chosen and encoded beside the base as ever.
        """
        quality = None if self.quality is None else self.quality[:, :0]
        return replace(self.without_prefix(), tokens=self.tokens[:, :0], closing=None, quality=quality)


def confidence_of(characters: Tensor) -> float:
    """The mean confidence of characters of which [2] is said how many they are and the sum; 0 of none."""
    count, total = characters.tolist()
    return min(1.0, total / count) if count else 0.0


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    return first is second or (first is not None and second is not None and torch.equal(first, second))


def _join_views(every: list[ImageEncoding]) -> ImageEncoding:
    """`ImageEncoding.join` of encodings of which some have documents or tiles."""
    documents: list[int] = []
    tiles: list[Tiles] = []
    start = 0
    for encoding in every:
        number = documents[-1] + 1 if documents else 0
        documents += [number + own for own in encoding.documents or range(len(encoding))]
        if encoding.tiles is not None:
            tiles.append(replace(encoding.tiles, sources=encoding.tiles.sources + start))
        start += len(encoding)

    def listed(name: str) -> list[Any] | None:
        values = [getattr(encoding, name) for encoding in every]
        return None if None in values else [row for rows in values for row in rows]

    # What fetched tokens see of a base is made anew for each view that is fetched from.
    bare = [
        replace(
            encoding, semantic_cache=[], bridge_cache=None, documents=None, source_sizes=None, sources=None, tiles=None
        )
        for encoding in every
    ]
    return replace(
        Rows.join(*bare), documents=documents, source_sizes=listed("source_sizes"), sources=listed("sources"),
        tiles=Rows.join(*tiles) if tiles else None,
    )  # fmt: skip


# ---- in files ------------------------------------------------------------------------------------------------------

FORMAT = "arr_coc.encoding.1"

_CACHES = ("semantic_cache", "bridge_cache")
_SAID = ("bypass", "pool", "source_sizes", "documents")


def check_identity(name: str, made_by: str, identity: str) -> None:
    if made_by != identity:
        expected = f"an encoding of this model ({identity[:12]})"
        raise ValueError(f"{name}: expected {expected}; got one of {made_by[:12]}")


def save_encoding(encoding: ImageEncoding, path: str | os.PathLike, identity: str) -> None:
    """Writes an encoding to one safetensors file.

    Raises:
        ValueError: its tiles are encoded when questions ask for them, which a file cannot do.
    """
    if encoding.tiling is not None:
        expected = "an encoding that holds all of its tiles (a larger max_tiles, fewer tiles by a number, or none)"
        raise ValueError(f'tiles: expected {expected}; got one of tiles="asked", or of more than max_tiles')
    said = {name: getattr(encoding, name) for name in _SAID}
    if encoding.sources is not None:
        said["places"] = [(source.page, source.second) for source in encoding.sources]
    about = {"format": FORMAT, "identity": identity, "encoding": json.dumps(said)}
    tensors = {name: tensor.detach().contiguous().cpu().clone() for name, tensor in _tensors(encoding)}
    safe_save_file(tensors, str(path), metadata=about)


def _tensors(encoding: ImageEncoding) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that a file holds, by its name there."""
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


def load_encoding(path: str | os.PathLike, made_by: tuple[str, str], device: torch.device) -> ImageEncoding:
    """The encoding in a file that `save_encoding` wrote, for the model `made_by` (its object, its identity).

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such content, or of another model.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: expected a file that ImageEncoding.save wrote; got a missing path")
    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors has a class of its own
        expected = "a file that ImageEncoding.save wrote"
        raise ValueError(f"{path}: expected {expected}; got a broken one ({type(error).__name__})") from None
    if about.get("format") != FORMAT:
        raise ValueError(f"{path}: expected format {FORMAT}; got {about.get('format')!r}")
    check_identity(str(path), about["identity"], made_by[1])
    encoding = _rebuilt(tensors, json.loads(about["encoding"]))
    encoding.made_by = made_by
    return encoding


def _rebuilt(tensors: dict[str, Tensor], said: dict[str, Any]) -> ImageEncoding:
    whole: dict[str, Any] = {name: tensor for name, tensor in tensors.items() if "." not in name}
    for name in _CACHES:
        layers = sum(key.startswith(f"{name}.") for key in tensors) // 2
        pairs = [(tensors[f"{name}.{layer}.k"], tensors[f"{name}.{layer}.v"]) for layer in range(layers)]
        whole[name] = pairs or ([] if name == "semantic_cache" else None)
    tiles = {name.removeprefix("tiles."): tensor for name, tensor in tensors.items() if name.startswith("tiles.")}
    places = said.pop("places", None)
    if said["source_sizes"] is not None:
        said["source_sizes"] = [(height, width) for height, width in said["source_sizes"]]
    encoding = ImageEncoding(base_indices=whole.pop("base_indices", None), **whole, **said)
    if tiles:
        apart = {name: tensor.cpu() if name in ("sources", "windows") else tensor for name, tensor in tiles.items()}
        encoding.tiles = Tiles(**apart)
    if places is not None:
        sizes = said["source_sizes"]
        encoding.sources = [
            Source(height, width, no_pixels, page, second)
            for (height, width), (page, second) in zip(sizes, places, strict=True)
        ]
    return encoding


def no_pixels() -> Any:
    raise ValueError("source: expected its pixels; got an encoding that holds none")
