"""Parts of the model, and PEFT adapters for them: by default for the scorer alone.

`adapt(model)`, or `get_peft_model(model, scorer_lora_config(model))`, adds an adapter of a few hundred KB at the
published size. Call `.train()` before training: in evaluation mode, in which `from_pretrained` returns a model, the
answer's loss does not reach the scorer. The adapter loads with `PeftModel.from_pretrained`, `model.load_adapter` or
`AutoPeftModelForCausalLM` like any other.

Parts can be trained, frozen, adapted and given learning rates separately. Each parameter belongs to exactly one part,
by its name, also in a wrapped model (PEFT, DDP).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel


PARTS = {
    "scorer": r"fetcher\.scorers\.",
    "allocator": r"fetcher\.",
    "bridge": r"bridge\.|layout\.|vision_tower\.saccade_projection\.",
    "semantic": r"vision_tower\.semantic_encoder\.",
    "encoder": r"vision_tower\.",
    "language": r"language_model\.|lm_head\.",
}
"""Part -> pattern of its parameters' names; the first match counts. Parameters of the fetcher outside scorers belong
to the allocator; the compressor belongs to the grid encoder."""

_PATTERNS = {part: re.compile(rf"(?:^|\.)(?:{pattern})") for part, pattern in PARTS.items()}


def part_of_parameter(name: str) -> str:
    """The part of a parameter. Raises ValueError: no part has a parameter of that name."""
    for part, pattern in _PATTERNS.items():
        if pattern.search(name):
            return part
    raise ValueError(f"parameter: expected one of the parts {', '.join(PARTS)}; got {name!r}")


def in_parts(name: str, parts: Iterable[str]) -> bool:
    """Whether a parameter belongs to one of the parts; "scorer.realizer" is one scorer. Raises ValueError: see
    `part_of_parameter`."""
    own = part_of_parameter(name)
    member = re.search(r"fetcher\.scorers\.(\w+)\.", name)
    return not {own, *([f"{own}.{member[1]}"] if member else [])}.isdisjoint(parts)


def check_parts(parts: Iterable[str], what: str, *, scorers: bool = False) -> None:
    """Raises a ValueError for a name that is not in `PARTS`; `what`: the setting with these names; `scorers`: whether
    single scorers are parts too, as "scorer.realizer"."""
    unknown = sorted(part for part in set(parts) - set(PARTS) if not (scorers and re.fullmatch(r"scorer\.\w+", part)))
    if unknown:
        raise ValueError(f"{what}: expected parts among {', '.join(PARTS)}; got {', '.join(unknown)}")


LANGUAGE_ADAPTER = "language_adapter"  # folder of an adapter of the language model alone, in a trained model's folder


def linear_layers(model: nn.Module, part: str) -> list[str]:
    """Full names of the linear layers of a part, in the model's order; a part may have none in this model.

    `model` is an ARR-COC model, with or without adapters, whose own layers are not named; `part` a name in `PARTS`, or
    one scorer as "scorer.realizer".

    Raises:
        ValueError: an unknown part.
    """
    check_parts([part], "part", scorers=True)
    name, _, member = part.partition(".")
    unwrapped = getattr(model, "get_base_model", None)
    model = model if unwrapped is None else unwrapped()
    inside = re.compile(rf"(?:^|\.)scorers\.{re.escape(member)}\." if member else "")
    # Subclasses are left out: they are linear layers with a special purpose, such as a temperature. So is the
    # vocabulary head, which may share the embeddings.
    weights = {f"{place}.weight": place for place in _plain_linear(model) if place.rpartition(".")[2] != "lm_head"}
    return [place for weight, place in weights.items() if part_of_parameter(weight) == name and inside.search(weight)]


def _plain_linear(module: nn.Module, place: str = "") -> Iterator[str]:
    """Names of `nn.Linear` layers as without adapters: PEFT's layers have the name of the layer that they wrap. Copies
    that PEFT trains (`modules_to_save`) are left out."""
    if hasattr(module, "modules_to_save") and hasattr(module, "original_module"):
        return
    wrapped = getattr(module, "get_base_layer", None)
    whole = module if wrapped is None else wrapped()
    if type(whole) is nn.Linear:
        yield place
    if whole is module:
        for name, part in module.named_children():
            yield from _plain_linear(part, f"{place}.{name}" if place else name)


def scorer_lora_config(
    model: PreTrainedModel,
    r: int = 8,
    *,
    part: str | Sequence[str] = "scorer",
    alpha: int | None = None,
    **settings: Any,
) -> LoraConfig:
    """LoRA for exactly the linear layers of one part, or of several, for any language model.

    Args:
        model: an ARR-COC model.
        r: rank.
        part: see `linear_layers`.
        alpha: LoRA's scale; twice the rank by default.
        **settings: of `peft.LoraConfig`, e.g. `use_dora=True`, `lora_dropout=0.05`; but for those that the others set.

    Raises:
        ValueError: a rank below 1; an unknown part, or one without linear layers in this model; `lora_alpha` or
            `target_modules`.

    Example:
        >>> adapted = peft.get_peft_model(model, scorer_lora_config(model, r=8)).train()
    """
    from peft import LoraConfig, TaskType  # importing it takes a second, which every command would pay

    if isinstance(r, bool) or not isinstance(r, int) or r < 1:
        raise ValueError(f"r: expected a rank, a whole number from 1; got {r!r}")
    for name, own in (("lora_alpha", "alpha"), ("target_modules", "part")):
        if name in settings:
            raise ValueError(f"{name}: expected {own} in its place; got {settings[name]!r}")
    parts = [part] if isinstance(part, str) else part
    layers = {each: linear_layers(model, each) for each in parts}
    if empty := [each for each, names in layers.items() if not names]:
        raise ValueError(f"part: expected a part with linear layers in this model; {empty[0]!r} has none")
    # One expression over full names: a list of last names would also match layers of the language model.
    names = "|".join(re.escape(name) for name in dict.fromkeys(chain(*layers.values())))
    if hasattr(model, "prepare_inputs_for_generation"):  # the model without its vocabulary head has no such task
        settings.setdefault("task_type", TaskType.CAUSAL_LM)
    return LoraConfig(r=r, lora_alpha=2 * r if alpha is None else alpha, target_modules=f"(?:{names})", **settings)


def adapt(model: PreTrainedModel, parts: str | Sequence[str] = "scorer", r: int = 8, **settings: Any) -> PeftModel:
    """The model with LoRA beside the parts that a phase trains; everything else is frozen.

    The model is changed in place, as PEFT does. Parts without linear layers in this model are skipped; for them, the
    rank and the other settings see `scorer_lora_config`.

    Raises:
        ValueError: an unknown part, or no linear layer in any.
    """
    from peft import get_peft_model

    named = [parts] if isinstance(parts, str) else parts
    known = [part for part in named if linear_layers(model, part)]
    if not known:
        raise ValueError(f"parts: expected one with linear layers in this model; got {', '.join(named) or 'none'}")
    return get_peft_model(model, scorer_lora_config(model, r, part=known, **settings))


def save_adapter(adapted: PeftModel, folder: str | Path) -> int:
    """Writes the adapters (one with a name other than "default" to a folder of its name), without the base model.

    Returns:
        The size in bytes of all files.

    Raises:
        ValueError: trained weights outside the adapters, which would be lost.
    """
    from peft import get_peft_model_state_dict

    held = {
        tensor.data_ptr()
        for name in adapted.peft_config
        for tensor in get_peft_model_state_dict(adapted, adapter_name=name).values()
    }
    lost = [n for n, weight in adapted.named_parameters() if weight.requires_grad and weight.data_ptr() not in held]
    if lost:
        raise ValueError(f"adapter: expected to hold all that is trained (modules_to_save); got {lost[0]} beside it")
    # "auto" would look the base's vocabulary up on the Hub; no part here has embeddings.
    adapted.save_pretrained(str(folder), save_embedding_layers=False)
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
