"""The language model's LoRA adapter: how it is trained in half precision, and the files that PEFT reads it from."""

from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn

from arr_coc.adapters import LANGUAGE_ADAPTER


class Adapter(nn.Module):
    """Float32 copies of an adapter that may compute in bfloat16, in whose rounding small steps would be lost.

    Gradients go to the copies as they come, and `write` puts the copies' values into the adapter.
    """

    def __init__(self, model: PeftModel, dtype: torch.dtype) -> None:
        super().__init__()
        self.working = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.masters = nn.ParameterList(nn.Parameter(each.detach().float().clone()) for each in self.working)
        for each, master in zip(self.working, self.masters, strict=True):
            each.data = each.data.to(dtype)
            each.register_post_accumulate_grad_hook(lambda own, master=master: self._hand_over(own, master))

    @staticmethod
    def _hand_over(own: Tensor, master: nn.Parameter) -> None:
        assert own.grad is not None
        gradient = own.grad.float()
        master.grad = gradient if master.grad is None else master.grad + gradient
        own.grad = None

    @torch.no_grad()
    def write(self) -> None:
        """The copies' values into the adapter."""
        for each, master in zip(self.working, self.masters, strict=True):
            each.copy_(master)


def save_adapter(state: Mapping[str, Tensor], model: Path) -> None:
    """Writes an adapter of a decoder as one of the causal language model around it, in PEFT's own files.

    Args:
        state: by the names that PEFT gives an adapter of the decoder alone.
        model: the folder that gets it, in a folder of its own: transformers would take an adapter that lies beside
            weights for one of the whole model.
    """
    folder = model / LANGUAGE_ADAPTER
    inner, outer = "base_model.model.", "base_model.model.model."
    renamed = {name.replace(inner, outer, 1): weight.contiguous() for name, weight in state.items()}
    rank = next(len(weight) for name, weight in state.items() if "lora_A" in name)
    targets = sorted({name.split(".")[-3] for name in state})
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, task_type="CAUSAL_LM", inference_mode=True)
    config.save_pretrained(str(folder))
    save_file(renamed, folder / "adapter_model.safetensors")
