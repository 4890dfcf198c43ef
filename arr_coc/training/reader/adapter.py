"""The language model's LoRA adapter: how it is trained in half precision, and the files that PEFT reads it from.

Notation: P pages, S tokens of a page and the questions about it, D width of the language model, V its vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn

from arr_coc.adapters import LANGUAGE_ADAPTER

from ..stages import Run
from .prompting import Asked, seen


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


class AdaptedModel:
    """A run's language model with a LoRA adapter: new, or as the run's stages have trained it so far.

    Args:
        run: whose language model it is; frozen, in `dtype`.
        rank: of a new adapter.
        dtype: that all of it computes in.
    """

    def __init__(self, run: Run, rank: int, dtype: torch.dtype) -> None:
        self.dtype, self.table = dtype, run.model.get_input_embeddings().requires_grad_(False)
        self.lm_head = run.model.lm_head.to(dtype).requires_grad_(False)
        decoder = run.model.model.language_model.to(dtype).requires_grad_(False)
        trained = dict(run.learner.get("adapter", {}))
        rank = next((len(weight) for name, weight in trained.items() if "lora_A" in name), rank)
        lora = LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear")
        self.model = get_peft_model(decoder, lora, autocast_adapter_dtype=False)
        if trained:
            set_peft_model_state_dict(self.model, trained)
        self.adapter = Adapter(self.model, dtype)

    def answers(self, embeds: Tensor, batch: Asked) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [t, V] of all tokens of answers, the tokens [t], and the number of each one's question [t].

        Args:
            embeds: [P, S, D] of the batch.
            batch: P pages with their questions.
        """
        self.adapter.write()
        hidden = self.model(
            inputs_embeds=embeds.to(self.dtype), attention_mask=seen(batch), position_ids=batch.positions,
            use_cache=False,
        ).last_hidden_state  # fmt: skip
        counts = batch.question.amax(1) + 1
        number = batch.question + (counts.cumsum(0) - counts)[:, None]
        return self.lm_head(hidden[batch.answer]), batch.ids.roll(-1, 1)[batch.answer], number[batch.answer]

    @torch.no_grad()
    def exact(self, embeds: Tensor, batch: Asked) -> list[bool]:
        """Whether every token of an answer is the most probable one, of each question."""
        logits, targets, number = self.answers(embeds, batch)
        hits = (logits.argmax(-1) == targets).long()
        right = torch.ones(len(batch.kinds), dtype=torch.long, device=hits.device)
        return right.scatter_reduce(0, number, hits, "amin").bool().tolist()

    def leave(self, run: Run) -> None:
        """Hands the adapter to the run, whose model keeps its own language model: `arr-coc assemble` merges both."""
        self.adapter.write()
        run.learner["adapter"] = get_peft_model_state_dict(self.model)
        self.model.unload()


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
