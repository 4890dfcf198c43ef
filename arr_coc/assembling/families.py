"""Upstream families: what each publishes, and where it goes here. One file per family, one registry for all."""

from dataclasses import dataclass
from typing import Any, ClassVar

from ..modeling.processing_arr_coc import IMAGE_TOKEN, TURN_END, TURN_START, VISION_END, VISION_START
from ..modeling.registry import Registry
from .mapping import Mapping
from .sources import Source

Shapes = dict[str, tuple[int, ...]]
"""Our names and shapes of everything that a checkpoint of the planned config holds."""

EMBEDDINGS, HEAD = "model.language_model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class Prompting:
    """What prompts to a language model are made of.

    `needed`: tokens that its tokenizer must hold; `added`: tokens that it gets where it lacks them; `chat_template`:
    None for ChatML.
    """

    image_token: str = IMAGE_TOKEN
    needed: tuple[str, ...] = (TURN_START, TURN_END)
    added: tuple[str, ...] = (VISION_START, VISION_END, IMAGE_TOKEN)
    chat_template: str | None = None


class Family:
    """One upstream family. A family overrides what belongs to its `roles`, the options that it can be given to."""

    roles: ClassVar[tuple[str, ...]] = ()
    prompting: ClassVar[Prompting] = Prompting()

    def vision_configs(self, source: Source) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fields of `vision_config` and `semantic_config`, from tensors and published config, which must agree."""
        raise NotImplementedError

    def text_config(self, source: Source) -> dict[str, Any]:
        """Fields of `text_config`, its model_type among them."""
        raise NotImplementedError

    def bridge_config(self, source: Source, kind: str) -> dict[str, Any]:
        """Fields of `bridge_config` that follow from the language model, for a bridge of this kind."""
        if kind == "vet":
            raise ValueError(
                'bridge "vet": expected a language model with a visual embedding table (Ovis2.5); '
                f"got {source}, without"
            )
        return {}

    def map(self, source: Source, roles: set[str], wanted: Shapes) -> Mapping:
        """Where the tensors of `source` go when it is asked for `roles`."""
        raise NotImplementedError


FAMILIES: Registry[type[Family]] = Registry("upstream model_type")


def family_of(source: Source) -> Family:
    """The family of a source, by its config's model_type.

    Raises:
        ValueError: unknown.
    """
    model_type = str(source.field("model_type"))
    try:
        return FAMILIES[model_type]()
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


_NOT_MODEL = (
    "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "_name_or_path", "use_cache",
    "_model_name_or_path",
)  # fmt: skip
"""Fields of a published config that say how it was saved, not what the model is."""


def as_text_config(published: dict[str, Any], model_type: str) -> dict[str, Any]:
    """A published causal language model's config as `text_config`."""
    fields = {name: value for name, value in published.items() if name not in _NOT_MODEL}
    return {**fields, "model_type": model_type}


def map_decoder(mapping: Mapping, wanted: Shapes, prefix: str = "") -> None:
    """A decoder-only language model under `prefix`, without single experts, and its vocabulary head unless tied."""
    dotted = prefix.replace(".", r"\.")
    parts = r"model\.((?:embed_tokens|norm|layers\.\d+)\.(?!mlp\.experts\.).+)"
    mapping.rename({dotted + parts: r"model.language_model.\1"})
    if HEAD in wanted:
        mapping.rename({dotted + r"lm_head\.weight": HEAD})
    else:
        mapping.leave_out(dotted + r"lm_head\.weight", "tied: the embeddings stand for it")
