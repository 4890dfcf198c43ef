"""Upstream families: the mapping of their published tensors to ours, and the tensors that are left out.

Every target consists of rows of published tensors, one after another: a renamed tensor has all rows of one, a third of
a fused projection has some rows, a stack of experts has rows of many. So one rule can stream them all.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from safetensors import safe_open
from torch import Tensor

from ..modeling.checks import Registry
from ..modeling.prompt_format import IMAGE_TOKEN, TURN_END, TURN_START, VISION_END, VISION_START
from .sources import TensorInfo, WeightsSource

BLOCK_ROWS = 4096  # rows per block when a table is read in blocks


@dataclass(frozen=True)
class TensorRows:
    """Rows `start` to `stop` (exclusive) along the first axis of a published tensor. `transposed`: whether the other
    two axes are swapped."""

    source: WeightsSource
    name: str
    start: int
    stop: int
    transposed: bool = False

    @property
    def info(self) -> TensorInfo:
        return self.source.tensors[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        inner = self.info.shape[:0:-1] if self.transposed else self.info.shape[1:]
        return (self.stop - self.start, *inner)

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.stop == self.info.shape[0]

    def blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Yields blocks of `BLOCK_ROWS` rows, each with the index of its first row."""
        path = self.source.file(self.info.file)
        for first in range(self.start, self.stop, BLOCK_ROWS):
            with safe_open(path, framework="pt") as opened:  # reopened for each block, to free memory
                yield first, opened.get_slice(self.name)[first : min(first + BLOCK_ROWS, self.stop)]


@dataclass
class Mapping:
    """The mapping of one source. `loaded`: rows by our names; `left_out`: reasons by published names."""

    source: WeightsSource
    loaded: dict[str, tuple[TensorRows, ...]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def matching(self, pattern: str) -> Iterable[tuple[str, re.Match[str]]]:
        """The published names that match `pattern` completely."""
        for name in self.source.tensors:
            match = re.fullmatch(pattern, name)
            if match is not None:
                yield name, match

    def take(self, target: str, *names: str, transposed: bool = False) -> None:
        """Maps these published tensors, one after another, to `target`; `transposed` swaps the last two of three axes.
        Raises ValueError: the checkpoint lacks one of the published tensors."""
        shapes = {name: self.source.shape(name) for name in names}
        self.loaded[target] = tuple(TensorRows(self.source, name, 0, shapes[name][0], transposed) for name in names)

    def rename(self, names: dict[str, str]) -> None:
        """Maps patterns of published names to our names, in which \\1, \\2, ... are the pattern's groups."""
        for pattern, target in names.items():
            for name, match in self.matching(pattern):
                self.take(match.expand(target), name)

    def split(self, pattern: str, targets: Iterable[str]) -> None:
        """Splits every matching tensor along its first axis into equal parts, one for each of `targets`."""
        targets = list(targets)
        for name, match in self.matching(pattern):
            rows = self.source.shape(name)[0]
            if rows % len(targets):
                raise ValueError(f"{self.source}: expected {name} with a multiple of {len(targets)} rows; got {rows}")
            step = rows // len(targets)
            for part, target in enumerate(targets):
                self.loaded[match.expand(target)] = (TensorRows(self.source, name, part * step, (part + 1) * step),)

    def leave_out(self, pattern: str, reason: str) -> None:
        """Leaves out every matching tensor that is not loaded."""
        used = self.used
        self.left_out.update({name: reason for name, _ in self.matching(pattern) if name not in used})

    @property
    def used(self) -> set[str]:
        """The published names from which targets are made."""
        return {rows.name for parts in self.loaded.values() for rows in parts}


Shapes = dict[str, tuple[int, ...]]  # names and shapes of all tensors of a checkpoint with the planned config

EMBEDDINGS, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class PromptTokens:
    """The tokens and the template of a language model's prompts. `needed`: tokens that its tokenizer must have;
    `added`: tokens that are added if missing; `chat_template`: None for ChatML."""

    image_token: str = IMAGE_TOKEN
    needed: tuple[str, ...] = (TURN_START, TURN_END)
    added: tuple[str, ...] = (VISION_START, VISION_END, IMAGE_TOKEN)
    chat_template: str | None = None


class PublishedFamily:
    """One upstream family. Its `roles` are the options that accept it; it overrides the methods of these roles."""

    roles: ClassVar[tuple[str, ...]] = ()
    prompting: ClassVar[PromptTokens] = PromptTokens()

    def vision_configs(self, source: WeightsSource) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fields of `vision_config` and `semantic_config` from tensors and published config, which must agree."""
        raise NotImplementedError

    def text_config(self, source: WeightsSource) -> dict[str, Any]:
        """Fields of `text_config`, including its model_type."""
        raise NotImplementedError

    def bridge_config(self, source: WeightsSource, kind: str) -> dict[str, Any]:
        """Fields of `bridge_config` that depend on the language model, for a bridge of this kind."""
        if kind == "vet":
            expected = "a language model with a visual embedding table (Ovis2.5)"
            raise ValueError(f'bridge "vet": expected {expected}; got {source}, without')
        return {}

    def map(self, mapping: Mapping, roles: set[str], wanted: Shapes) -> None:
        """Maps the tensors of a source in these `roles`."""
        raise NotImplementedError


FAMILIES: Registry[type[PublishedFamily]] = Registry("upstream model_type")


def family_of(source: WeightsSource) -> PublishedFamily:
    """The family of a source, by its config's model_type. Raises ValueError: the model_type is unknown."""
    model_type = str(source.field("model_type"))
    try:
        return FAMILIES[model_type]()
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


_SAVED = "architectures auto_map dtype torch_dtype transformers_version use_cache _name_or_path _model_name_or_path"
"""Fields of a published config that describe how it was saved, not the model."""


def inner_config(source: WeightsSource, name: str, model_type: str) -> dict[str, Any]:
    """The language model's config in the field `name` of a published config. Raises ValueError: the field is missing,
    or has another model_type."""
    published = source.field(name)
    if not isinstance(published, dict) or published.get("model_type") != model_type:
        expected = f"{name} of model_type {model_type!r} in config.json"
        raise ValueError(f"{source}: expected {expected}; got {published!r:.80}")
    return published


def as_text_config(published: dict[str, Any], model_type: str) -> dict[str, Any]:
    """The config of a published causal language model as `text_config`."""
    fields = {name: value for name, value in published.items() if name not in _SAVED.split()}
    return {**fields, "model_type": model_type}


def map_decoder(mapping: Mapping, wanted: Shapes, prefix: str = "", decoder: str = "model.") -> None:
    """Maps a decoder-only language model under `prefix`, without single experts, and its vocabulary head unless tied.
    `decoder`: the prefix of its parts after `prefix`."""
    dotted, held = re.escape(prefix), re.escape(decoder)
    parts = held + r"((?:embed_tokens|norm|layers\.\d+)\.(?!mlp\.experts\.).+)"
    mapping.rename({dotted + parts: r"model.language_model.\1"})
    if HEAD in wanted:
        mapping.rename({dotted + r"lm_head\.weight": HEAD})
    else:
        mapping.leave_out(dotted + r"lm_head\.weight", "tied: the embeddings stand for it")
