"""PEFT adapters for one part of the model: by default the scorer, so that a user trains nothing else.

`get_peft_model(model, scorer_lora_config(model))` gives an adapter of a few hundred KB at the published size; it loads
with `PeftModel.from_pretrained`, `model.load_adapter` or `AutoPeftModelForCausalLM` like any other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from torch import nn
from transformers import PreTrainedModel

if TYPE_CHECKING:
    from peft import LoraConfig

PARTS = {
    "scorer": "fetcher.scorers",
    "bridge": "bridge",
    "semantic": "vision_tower.semantic_encoder",
    "language": "language_model",
}
"""Where the linear layers of each part stand in the model."""


def linear_layers(model: nn.Module, part: str) -> list[str]:
    """Full names of the linear layers of a part, in the model's order.

    Args:
        model: an ARR-COC model.
        part: a name in `PARTS`, or one scorer as "scorer.realizer".

    Raises:
        ValueError: an unknown part, or one without linear layers in this model.
    """
    name, _, member = part.partition(".")
    if name not in PARTS or (member and name != "scorer"):
        expected = f"one of {', '.join(PARTS)}, or a scorer as scorer.realizer"
        raise ValueError(f"part: expected {expected}; got {part!r}")
    place = ".".join(filter(None, (PARTS[name], member)))
    inside = re.compile(rf"(?:.*\.)?{re.escape(place)}(?:\..+)?")
    # Subclasses are left out: they are linear layers with a meaning of their own, such as a temperature.
    found = [name for name, module in model.named_modules() if type(module) is nn.Linear and inside.fullmatch(name)]
    if not found:
        raise ValueError(f"part: expected a part with linear layers in this model; {part!r} has none")
    return found


def scorer_lora_config(
    model: PreTrainedModel, r: int = 8, *, part: str = "scorer", alpha: int | None = None, **settings: Any
) -> LoraConfig:
    """LoRA for exactly the linear layers of one part, whatever language model stands beside it.

    Args:
        model: an ARR-COC model.
        r: rank.
        part: see `linear_layers`.
        alpha: LoRA's scale; twice the rank by default.
        **settings: of `peft.LoraConfig`, e.g. `use_dora=True`, `lora_dropout=0.05`.

    Raises:
        ValueError: an unknown part, or one without linear layers in this model.
    """
    from peft import LoraConfig, TaskType  # importing it takes a second, which every command would pay

    # One expression over full names: a list of last names would hit layers of the language model too.
    names = "|".join(re.escape(name) for name in linear_layers(model, part))
    settings.setdefault("task_type", TaskType.CAUSAL_LM)
    return LoraConfig(r=r, lora_alpha=2 * r if alpha is None else alpha, target_modules=f"(?:{names})", **settings)
