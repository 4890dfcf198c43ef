"""A model that goes on from a smaller one's weights, and begins by computing what that computes.

Larger may be: the number of language layers, the units of their MLPs, the widths of the grid encoder, and those of base
tokens until they are bridged. The image may have another size: position tables are resized, as they are for one image
of that size.
"""

import re
from pathlib import Path

import torch
from torch import Tensor, nn

from arr_coc.loading import load_config

from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.grid_encoder import RELATIVE, resize_table
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .widening import EncoderConfig, widened, wider

UNITS = "intermediate_size"
"""A language model's setting: units of its MLPs."""


def load_grown(model: ArrCocForConditionalGeneration, start: Path, seed: int) -> set[str]:
    """Loads the weights of a trained model that is as large, or smaller as the module says.

    Args:
        model: with new weights. What the trained one knows nothing of keeps them.
        start: the trained model's folder.
        seed: of what tells copies apart.

    Returns:
        Names of the weights that the trained one knows nothing of.

    Raises:
        ValueError: a width that is no multiple of what it was, or fewer units.
    """
    config, before = model.config, load_config(str(start))
    known = config.to_dict()
    visions = (before.vision_config, config.vision_config)
    semantics = (before.semantic_config, config.semantic_config)
    sees_anew, says_more = wider(*visions) or visions[0].grid_size != visions[1].grid_size, wider(*semantics)
    if sees_anew or says_more:
        known["vision_config"] = before.vision_config.to_dict()
    if says_more:
        known["semantic_config"] = before.semantic_config.to_dict()
    units = [getattr(part.text_config, UNITS, None) for part in (before, config)]
    if units[0] != units[1]:
        known["text_config"][UNITS] = units[0]
    trained, loading = ArrCocForConditionalGeneration.from_pretrained(
        start, config=ArrCocConfig.from_dict(known), output_loading_info=True
    )
    state, like = trained.state_dict(), model.state_dict()
    if sees_anew:
        state |= _encoder(trained, model, seed)
    if units[0] != units[1]:
        spoken = {name: weight for name, weight in state.items() if ".language_model." in name and ".mlp." in name}
        state |= {name: _with_units(weight, like[name]) for name, weight in spoken.items()}
    if says_more:
        state |= _base(state, like, *semantics, seed)
    model.load_state_dict(state)
    missing = set(loading["missing_keys"])
    _pass_through(model.model.language_model, missing)
    return missing


def _encoder(
    trained: ArrCocForConditionalGeneration, model: ArrCocForConditionalGeneration, seed: int
) -> dict[str, Tensor]:
    """The grid encoder's weights as `model` has them, computing what the trained one's compute."""
    configs = (trained.config.vision_config, model.config.vision_config)
    weights, like = (each.model.vision_tower.grid_encoder.state_dict() for each in (trained, model))
    for name, weight in weights.items():
        if name == "pos_embed":
            weights[name] = resize_table(weight, like[name].shape[1])
        elif name.endswith(("rel_pos_h", "rel_pos_w")):
            weights[name] = RELATIVE[configs[1].relative_positions](weight, len(like[name]))
    if wider(*configs):
        weights = widened(weights, *configs, like, torch.Generator().manual_seed(seed))
    return {f"model.vision_tower.grid_encoder.{name}": weight for name, weight in weights.items()}


def _base(
    state: dict[str, Tensor], like: dict[str, Tensor], before: EncoderConfig, after: EncoderConfig, seed: int
) -> dict[str, Tensor]:
    """The weights of what is as wide as base tokens, computing what narrower ones do.

    Raises:
        ValueError: weights as wide that this cannot widen.
    """
    named = {name: re.sub(r"^model\.(vision_tower\.)?", "", name) for name in state}
    narrow = {name: part for name, part in named.items() if state[name].shape != like[name].shape}
    if stray := [name for name, part in narrow.items() if not re.match(r"compressor|semantic|saccade_p|bridge", part)]:
        raise ValueError(f"semantic_config: expected a model whose {stray[0]} is no wider than it was")
    if any(".latent." in name for name in narrow):
        raise ValueError("semantic_config: expected no latent_size where it is wider than it was")
    weights, shapes = ({part: each[name] for name, part in narrow.items()} for each in (state, like))
    wide = widened(weights, before, after, shapes, torch.Generator().manual_seed(seed))
    return {name: wide[part] for name, part in narrow.items()}


def _with_units(weight: Tensor, like: Tensor) -> Tensor:
    """A language layer's MLP weight with new units, which nothing reads: those that leave an MLP get weight 0."""
    if weight.shape == like.shape:
        return weight
    if any(new < old for new, old in zip(like.shape, weight.shape, strict=True)):
        raise ValueError(f"{UNITS}: expected at least {min(weight.shape)}; got {min(like.shape)}")
    new = like.clone() if weight.shape[0] < like.shape[0] else torch.zeros_like(like)
    new[tuple(map(slice, weight.shape))] = weight
    return new


def _pass_through(language_model: nn.Module, missing: set[str]) -> None:
    """Sets new language layers to change nothing: a start with fewer layers then answers as it did.

    Args:
        language_model: with its layers in `layers`.
        missing: names of the weights that the start did not have.
    """
    layers = language_model.get_submodule("layers")
    for number, layer in layers.named_children():
        if any(f"language_model.layers.{number}.self_attn.o_proj.weight" in name for name in missing):
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                nn.init.zeros_(layer.get_submodule(name).get_parameter("weight"))
