"""What the model classes share with every model of transformers: initialisation, capabilities, loading."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import initialization
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

from .configuration_arr_coc import ArrCocConfig
from .probes import Probes
from .vision_tower import SaccadeProjection
from .weights import WEIGHTS, WEIGHTS_INDEX, check_finite, check_fit, check_names, weight_map

_PLACE = ("revision", "subfolder", "cache_dir", "local_files_only", "proxies")
_NOT_PLAIN = ("quantization_config", "state_dict", "gguf_file", "tp_plan", "device_mesh", "distributed_config")


class ArrCocPreTrainedModel(PreTrainedModel):
    """Initialisation, capabilities and loading shared by the model classes."""

    config: ArrCocConfig
    config_class = ArrCocConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    input_modalities = ["image", "text"]
    supports_gradient_checkpointing = True
    _no_split_modules = [
        "GridLayer", "SemanticLayer", "PatchLayer", "QualityBridge", "TransformerBridge", "VisualTableBridge",
        "WordpieceBridge",
        "CompositionalScorer", "ContextualScorer", "ShannonJungVervaekeScorer", "HierarchicalScorer", "ExpertScorer",
    ]  # fmt: skip
    _skip_keys_device_placement = ["cache"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    probes: Probes | None = None
    _place: Mapping[str, Any] = MappingProxyType({})
    """What `from_pretrained` was told of where the checkpoint's files are; its processor lies there, too."""

    def set_probes(self, on: bool) -> Probes | None:
        """Puts probes on the boundaries between the model's parts, or takes them off.

        Returns:
            The latest statistics by boundary, filled by every call from now on; None when they are taken off.
        """
        if self.probes is not None:
            self.probes.remove()
        core: Any = self.base_model
        self.probes = Probes(core, self.get_output_embeddings()) if on else None
        return self.probes

    def _set_gradient_checkpointing(self, *args: Any, **kwargs: Any) -> None:
        super()._set_gradient_checkpointing(*args, **kwargs)
        for module in self.modules():
            if getattr(module, "gradient_checkpointing", False):
                run: Any = module._gradient_checkpointing_func
                module._gradient_checkpointing_func = partial(_checkpoint, module, run)  # type: ignore[assignment]

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *model_args: Any,
        strict: bool = True,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        use_safetensors: bool | None = True,
        **kwargs: Any,
    ) -> Any:
        """As in transformers, but a checkpoint whose weights are not the config's is refused, not completed.

        Args:
            strict: False takes what fits and begins the rest anew, as transformers does.
            ignore_mismatched_sizes: weights of other shapes begin anew.
            output_loading_info: also return what was missing or left over, which is then not refused.
            use_safetensors: False or None reads pickles too.
            pretrained_model_name_or_path, *model_args, **kwargs: as in transformers.

        Raises:
            ValueError: weights that are damaged, missing, left over, of other shapes, or no finite numbers; shards that
                lie elsewhere than in the folder.
            OSError: no such checkpoint.
        """
        source = pretrained_model_name_or_path
        options = {**kwargs, "use_safetensors": use_safetensors, "output_loading_info": True}
        if not strict or source is None:  # without a name, the caller's own state dict says what there is
            loaded: Any = super().from_pretrained(
                source, *model_args, ignore_mismatched_sizes=ignore_mismatched_sizes, **options
            )
            loaded[0]._place = _place_of(kwargs)
            return loaded if output_loading_info else loaded[0]
        passed = ["mismatched"] * ignore_mismatched_sizes + ["missing", "unexpected"] * output_loading_info
        folder = Path(source, kwargs.get("subfolder") or "")
        # First without memory for weights: a size that is a typo would fill it before anything was compared.
        places: list[dict[str, Any]] = [{"device_map": "meta"}, {}] if _loads_plainly(folder, kwargs) else [{}]
        try:
            _check_folder(folder)
            for place in places:
                with _no_bar() if place else nullcontext():  # a single one: that of the weights' loading
                    loaded = super().from_pretrained(
                        source, *model_args, ignore_mismatched_sizes=True, **{**options, **place}
                    )
                model, report = loaded
                if not getattr(model, "_hf_peft_config_loaded", False):  # then the report is the adapter's
                    check_fit(source, report, passed=passed)
        except SafetensorError as error:
            raise ValueError(f"{source}: expected whole .safetensors files; got {error}") from error
        check_finite(source, model.state_dict().items())
        model._place = _place_of(kwargs)
        return loaded if output_loading_info else model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        start: Any = getattr(module, "start_weights", None)  # where normal weights and zero biases do not fit
        if start is not None:
            start(self.config.initializer_range)
        if isinstance(module, SaccadeProjection):
            # A fetched patch speaks the base tokens' language before any training. The compressor comes before it.
            tower: Any = getattr(self, "model", self).vision_tower
            initialization.copy_(module.weight, tower.compressor.warm_start())


@contextmanager
def _no_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _checkpoint(layer: nn.Module, checkpoint: Callable[..., Any], run: Callable[..., Any], *inputs: Any) -> Any:
    """A checkpoint that gives a layer's weights gradients, whichever kind it is: see `use_reentrant`.

    A reentrant one does so only where an input requires gradients: what frozen parts before an adapter make does not.
    """
    if not any(torch.is_tensor(value) and value.requires_grad for value in inputs):
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            return run(*inputs)  # there is nothing to save for
        first = next(at for at, value in enumerate(inputs) if torch.is_tensor(value) and value.is_floating_point())
        inputs = (*inputs[:first], inputs[first].detach().requires_grad_(), *inputs[first + 1 :])
    return checkpoint(run, *inputs)


def _place_of(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in _PLACE if options.get(name) is not None}


def _loads_plainly(folder: Path, options: Mapping[str, Any]) -> bool:
    """Whether it is a folder of weights that are loaded as they are, by one process for itself."""
    path = folder / "config.json"
    if any(options.get(name) is not None for name in _NOT_PLAIN) or not path.is_file() or is_deepspeed_zero3_enabled():
        return False
    return "quantization_config" not in path.read_text(encoding="utf-8", errors="replace")


def _check_folder(folder: Path) -> None:
    """Refuses what transformers would not notice in a local folder: shards elsewhere, two tensors for one part."""
    for index in folder.glob("*.safetensors.index.json"):
        weight_map(index)
    if any((folder / name).is_file() for name in (WEIGHTS, WEIGHTS_INDEX)):
        check_names(folder)
