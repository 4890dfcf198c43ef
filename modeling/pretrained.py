"""Code shared by the model classes: initialisation, capabilities, loading.

It also finds the device of weights (on a device, offloaded, in files), and checks that weights are finite and have the
config's shapes.
"""

import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import initialization
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import ModelOutput

from .configuration_arr_coc import ArrCocConfig
from .vision_tower import FetchedProjection

# ---- releases of transformers before 5.24 --------------------------------------------------------------------------
#
# They call the key/value cache, now `cache`, `past_key_values`. Once 5.23 is not supported, `CACHE` is "cache",
# `CacheOutput` is `ModelOutput`, and `by_either_name` is transformers' `deprecate_kwarg`.

Function = TypeVar("Function", bound=Callable[..., Any])

OLD_NAME = "past_key_values"
CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else OLD_NAME
"""The name of the cache in the installed release: in language models, their outputs, and `generate`."""


if CACHE == "cache":
    CacheOutput = ModelOutput
else:

    class CacheOutput(ModelOutput):  # type: ignore[no-redef]
        """An output with a field `cache`, which can also be read by its older name, as in any `ModelOutput` from
        5.24 on."""

        cache: Any

        @property
        def past_key_values(self) -> Any:
            return self.cache

        def __contains__(self, key: object) -> bool:
            return super().__contains__("cache" if key == OLD_NAME else key)

        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__("cache" if key == OLD_NAME else key)

        def get(self, key: str, default: Any = None) -> Any:
            return super().get("cache" if key == OLD_NAME else key, default)


def by_either_name(function: Function) -> Function:
    """Accepts `cache` by its older name, too; from 5.24 on with transformers' own warning."""
    if CACHE == "cache":
        return deprecate_kwarg(OLD_NAME, "5.40.0", new_name=CACHE)(function)

    @wraps(function)
    def renaming(*args: Any, **kwargs: Any) -> Any:
        if OLD_NAME in kwargs:
            kwargs["cache"] = kwargs.pop(OLD_NAME)
        return function(*args, **kwargs)

    # `generate` checks by its name whether `forward` takes it.
    signature = inspect.signature(function)
    *named, last = signature.parameters.values()
    older = inspect.Parameter(OLD_NAME, inspect.Parameter.KEYWORD_ONLY, default=None)
    vars(renaming)["__signature__"] = signature.replace(parameters=[*named, older, last])
    return renaming  # type: ignore[return-value]


# ---- weights -------------------------------------------------------------------------------------------------------


def device_of(module: nn.Module) -> torch.device:
    """The device of inputs of `module`. Offloaded weights are on "meta" between calls; then it is accelerate's
    device."""
    device = next(module.parameters()).device
    if device.type != "meta":
        return device
    for part in module.modules():
        hook = getattr(part, "_hf_hook", None)
        for single in getattr(hook, "hooks", (hook,)):
            if getattr(single, "execution_device", None) is not None:
                return torch.device(single.execution_device)  # type: ignore[union-attr]
    return torch.device("cpu")


def loaded_weights(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """The weights of `state_dict`, with offloaded parts loaded while they are read, by accelerate's hook: importing
    accelerate would make remote code require it. Raises ValueError: a weight without values."""
    hook: Any = getattr(module, "_hf_hook", None)
    offloaded = getattr(hook, "offload", False)
    if offloaded:
        hook.pre_forward(module)
    try:
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if name in module._non_persistent_buffers_set:
                continue
            if tensor.is_meta:
                raise ValueError(f"{prefix}{name}: expected a weight; got one without a value (on the meta device)")
            yield f"{prefix}{name}", tensor
        for name, part in module.named_children():
            yield from loaded_weights(part, f"{prefix}{name}.")
    finally:
        if offloaded:
            hook.post_forward(module, None)


WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
_PREFIX = re.compile(r"^(model\.)+")


def weight_files(folder: Path) -> list[str]:
    """Names of the weight files in `folder`: one file, or the shards of its index. Raises ValueError: no weights, a
    missing shard, or an index of another form (`weight_map`)."""
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    index = folder / WEIGHTS_INDEX
    if not index.is_file():
        raise ValueError(f"{folder}: expected weights ({WEIGHTS}, or shards with {WEIGHTS_INDEX}); got none")
    shards = sorted(set(weight_map(index).values()))
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder}: expected the {len(shards)} shards of {WEIGHTS_INDEX}; got no {', '.join(missing)}")
    return shards


def weight_map(index: Path) -> dict[str, str]:
    """The shard of each tensor, from an index file.

    Raises:
        ValueError: no JSON, no `weight_map` from tensors to files, an empty one, or a shard that is not a .safetensors
            file beside the index: such a name could reach into other folders.
    """
    try:
        content = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{index}: expected JSON; got {error}") from error
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ValueError(f"{index}: expected a weight_map from tensors to files; got none")
    for name in names.values():
        if not name.endswith(".safetensors") or set(name) & set("/\\:\0"):
            raise ValueError(f"{index}: expected names of .safetensors files beside it; got {name!r}")
    return names


def check_folder(folder: Path) -> None:
    """Refuses problems of a local folder's weights, if it has any, that transformers does not notice.

    Raises:
        ValueError: two tensors for one part, as transformers accepts names with and without "model.", or shards that
            `weight_files` refuses.
        SafetensorError: a damaged file.
    """
    for index in folder.glob("*.safetensors.index.json"):
        weight_map(index)
    tensors: dict[str, str] = {}
    here = any((folder / name).is_file() for name in (WEIGHTS, WEIGHTS_INDEX))
    for file in weight_files(folder) if here else ():
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  not a dict
                part = _PREFIX.sub("", name)
                if part in tensors:
                    raise ValueError(f"{folder}: expected one tensor for each part; got {tensors[part]} and {name}")
                tensors[part] = name


def check_fit(source: Any, report: Mapping[str, Iterable[Any]], *, passed: Iterable[str] = ()) -> None:
    """Refuses weights that do not match the config.

    Args:
        source: the checkpoint's name in errors.
        report: transformers' loading report: missing_keys, unexpected_keys, mismatched_keys.
        passed: the kinds among "missing", "unexpected", "mismatched" that are accepted.

    Raises:
        ValueError: missing or unexpected weights, or weights of other shapes.
    """
    for kind in ("mismatched", "missing", "unexpected"):
        keys = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report[f"{kind}_keys"])
        if keys and kind not in passed:
            raise ValueError(
                f"{source}: expected weights for every part of the config, in its shapes, and no others; "
                f"got {len(keys)} {kind}, e.g. {keys[0]}"
            )


def check_finite(source: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuses tensors, by name, with values that are not finite.

    Tensors that are not in memory (offloaded) and quantized ones are not checked.

    Raises:
        ValueError: NaN or an infinity.
    """
    for name, tensor in tensors:
        plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_floating_point() and not tensor.is_meta
        if plain and tensor.numel() and not _is_finite(tensor.detach()):
            raise ValueError(f"{source}: expected finite weights; got NaN or infinity in {name}")


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype.itemsize == 1:  # the 8-bit types have no minimum
        tensor = tensor.float()
    low, high = torch.aminmax(tensor)  # without a copy; NaN propagates
    return bool(low.isfinite() & high.isfinite())


_PLACE = ("revision", "subfolder", "cache_dir", "local_files_only", "proxies")
_NOT_PLAIN = ("quantization_config", "state_dict", "gguf_file", "tp_plan", "device_mesh", "distributed_config")


class ArrCocPreTrainedModel(PreTrainedModel):
    """Base of the model classes: initialisation, capabilities and loading."""

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

    _place: Mapping[str, Any] = MappingProxyType({})
    """The arguments of `from_pretrained` that locate the checkpoint's files, to load its processor from there too."""

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether a part computes its activations again in the backward pass. PEFT 0.21 asks by this name, about which
        transformers 5.24 warns."""
        return any(getattr(module, "gradient_checkpointing", False) for module in self.modules())

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
        """As in transformers, but weights that do not match the config are refused instead of initialised.

        Args:
            strict: False loads matching weights and initialises the others, as transformers does.
            ignore_mismatched_sizes: weights of other shapes are initialised.
            output_loading_info: also returns the missing and unexpected weights, which are then not refused.
            use_safetensors: False or None reads pickles too.
            pretrained_model_name_or_path, *model_args, **kwargs: as in transformers.

        Raises:
            ValueError: weights that are damaged, missing, unexpected, of other shapes or not finite; shards in other
                folders.
            OSError: no such checkpoint.
        """
        source, load = pretrained_model_name_or_path, super().from_pretrained
        options = {**kwargs, "use_safetensors": use_safetensors, "output_loading_info": True}
        loaded: Any
        if not strict or source is None:  # without a name, the caller's own state dict is loaded
            loaded = load(source, *model_args, ignore_mismatched_sizes=ignore_mismatched_sizes, **options)
        else:
            passed = ["mismatched"] * ignore_mismatched_sizes + ["missing", "unexpected"] * output_loading_info
            options["ignore_mismatched_sizes"] = True  # `check_fit` refuses them
            folder = Path(source, kwargs.get("subfolder") or "")
            # First without memory for weights: a wrong size in the config would fill it before the comparison.
            places: list[dict[str, Any]] = [{"device_map": "meta"}, {}] if _loads_plainly(folder, kwargs) else [{}]
            try:
                check_folder(folder)
                for place in places:
                    with no_bar() if place else nullcontext():  # one message: that of loading the weights
                        loaded = load(source, *model_args, **{**options, **place})
                    if not getattr(loaded[0], "_hf_peft_config_loaded", False):  # then the report is the adapter's
                        check_fit(source, loaded[1], passed=passed)
            except SafetensorError as error:
                raise ValueError(f"{source}: expected whole .safetensors files; got {error}") from error
            check_finite(source, loaded[0].state_dict().items())
        loaded[0]._place = {name: kwargs[name] for name in _PLACE if kwargs.get(name) is not None}
        return loaded if output_loading_info else loaded[0]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        start: Any = getattr(module, "start_weights", None)  # others start with normal weights and zero biases
        if start is not None:
            start(self.config.initializer_range)
        if isinstance(module, FetchedProjection):
            # Fetched patches start as tokens like base tokens. The compressor is initialised before.
            tower: Any = getattr(self, "model", self).vision_tower
            initialization.copy_(module.weight, tower.compressor.warm_start())


@contextmanager
def no_bar() -> Iterator[None]:
    """transformers draws no progress bars within the context."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _checkpoint(layer: nn.Module, checkpoint: Callable[..., Any], run: Callable[..., Any], *inputs: Any) -> Any:
    """A checkpoint function with which a layer's weights get gradients: see `use_reentrant`. A reentrant checkpoint
    gives gradients only if an input requires them; outputs of frozen parts before an adapter do not."""
    if not any(torch.is_tensor(value) and value.requires_grad for value in inputs):
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            return run(*inputs)  # without gradients there is nothing to save
        first = next(at for at, value in enumerate(inputs) if torch.is_tensor(value) and value.is_floating_point())
        inputs = (*inputs[:first], inputs[first].detach().requires_grad_(), *inputs[first + 1 :])
    return checkpoint(run, *inputs)


def _loads_plainly(folder: Path, options: Mapping[str, Any]) -> bool:
    """Whether it is a local folder whose weights one process loads without conversion."""
    path = folder / "config.json"
    if any(options.get(name) is not None for name in _NOT_PLAIN) or not path.is_file() or is_deepspeed_zero3_enabled():
        return False
    return "quantization_config" not in path.read_text(encoding="utf-8", errors="replace")


# ---- identity of weights ------------------------------------------------------------------------------------------

SAMPLES = 1024  # number of weights of each parameter in its part's identity, evenly spaced

_UNRELATED = ("transformers_version", "_name_or_path", "dtype")
"""Fields about the origin of a config and its loading dtype; the identity uses the weights' own dtypes."""


def model_identity(core: ArrCocPreTrainedModel) -> str:
    """A checksum of the parts that encode images: configs, samples of the weights and active adapters."""
    config, digest = core.config, sha256()
    for part in (config.vision_config, config.semantic_config, config.bridge_config):
        usual = type(part)().to_dict()  # a new field with its default must not change the identity
        settings = {name: value for name, value in part.to_dict().items() if value != usual.get(name)}
        settings = {name: value for name, value in settings.items() if name not in _UNRELATED}
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, path in (("tower", "vision_tower"), ("bridge", "bridge"), ("layout", "layout")):
        module = core.get_submodule(path)
        for key, sample in sorted((key, _sampled(tensor)) for key, tensor in loaded_weights(module)):
            digest.update(f"{name}.{key}".encode() + sample)
        for key, part in module.named_modules():
            if hasattr(part, "active_adapters") and hasattr(part, "disable_adapters"):  # of PEFT
                read = [] if part.disable_adapters else part.active_adapters
                digest.update(f"{name}.{key}{read}{getattr(part, 'scaling', None)}".encode())
    return digest.hexdigest()


def _sampled(tensor: Tensor) -> bytes:
    flat = tensor.detach().flatten()
    sample = flat[:: max(1, len(flat) // SAMPLES)].float().cpu().numpy()
    return f"{list(tensor.shape)}{tensor.dtype}".encode() + sample.tobytes()
