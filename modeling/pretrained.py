"""What the model classes share with every model of transformers: initialisation, capabilities, loading.

Also where weights are (on a device, offloaded, in files), whether they are finite numbers of the config's shapes, and
probes: hooks that watch what passes between the parts of a model.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import initialization
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

from .configuration_arr_coc import ArrCocConfig
from .vision_tower import FetchedProjection


def device_of(module: nn.Module) -> torch.device:
    """Where inputs of `module` go. Offloaded weights are on "meta" between calls: then where accelerate runs it."""
    device = next(module.parameters()).device
    if device.type != "meta":
        return device
    for part in module.modules():
        hook = getattr(part, "_hf_hook", None)
        for single in getattr(hook, "hooks", (hook,)):
            if getattr(single, "execution_device", None) is not None:
                return torch.device(single.execution_device)  # type: ignore[union-attr]
    return torch.device("cpu")


@contextmanager
def _loaded(module: nn.Module) -> Iterator[None]:
    """Loads what accelerate has offloaded of a module; by its hook, as remote code that imports it would require it."""
    hook = getattr(module, "_hf_hook", None)
    if hook is None or not getattr(hook, "offload", False):
        yield
        return
    hook.pre_forward(module)
    try:
        yield
    finally:
        hook.post_forward(module, None)


def loaded_weights(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """What `state_dict` names, each part loaded while its weights are asked for where accelerate has offloaded it.

    Raises:
        ValueError: a weight that is nowhere.
    """
    with _loaded(module):
        own = [*module._parameters.items(), *module._buffers.items()]
        for name, tensor in own:
            if tensor is None or name in module._non_persistent_buffers_set:
                continue
            if tensor.is_meta:
                raise ValueError(f"{prefix}{name}: expected a weight; got one without a value (on the meta device)")
            yield f"{prefix}{name}", tensor
        for name, part in module._modules.items():
            if part is not None:
                yield from loaded_weights(part, f"{prefix}{name}.")


logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Statistics:
    """Of all values of a tensor, in float64; NaN where it has none.

    Attributes:
        shape, dtype: of the tensor.
        mean, std, min, max: of its values.
    """

    shape: tuple[int, ...]
    dtype: str
    mean: float
    std: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Tensor) -> "Statistics":
        """The statistics of a tensor."""
        exact, dtype = values.detach().double(), str(values.dtype).removeprefix("torch.")
        if not exact.numel():
            return cls(tuple(values.shape), dtype, *[math.nan] * 4)
        numbers = (exact.mean(), exact.std(correction=0), exact.min(), exact.max())
        return cls(tuple(values.shape), dtype, *map(float, numbers))

    def within(self, expected: "Range") -> bool:
        """Whether all values are finite and in range, and spread as far as they should; also of no values."""
        if 0 in self.shape:
            return True
        inside = expected.least <= self.min and self.max <= expected.most
        return inside and expected.least_std <= self.std <= expected.most_std


@dataclass(frozen=True)
class Range:
    """Where values are expected: all of them, and their standard deviation."""

    least: float = -1e4
    most: float = 1e4
    least_std: float = 1e-5
    most_std: float = 1e3


EXPECTED: dict[str, Range] = {
    "pixels": Range(-10.0, 10.0, 0.0, 10.0),  # normalised images; a blank page does not vary
    "grid encoder": Range(),
    "compressor": Range(),
    "semantic encoder": Range(),
    "bridge": Range(),
    "relevance": Range(0.0, 1.0, 0.0, 0.5),
    "prompt": Range(),
    "language model": Range(),
    "logits": Range(),
}
"""What passes each boundary. Wide: half precision ends at 65504, and a signal below 1e-5 beside it is lost."""


def boundaries(core: nn.Module, head: nn.Module | None) -> dict[str, tuple[nn.Module, bool, Callable[[Any], Any]]]:
    """By name: a module of the model `core`, whether its input counts, and what of that or its output is the tensor."""
    tower: Any = core.vision_tower
    parts: dict[str, tuple[Any, bool, Callable[[Any], Any]]] = {
        "pixels": (tower.grid_encoder, True, lambda passed: passed),
        "grid encoder": (tower.grid_encoder, False, _first),
        "compressor": (tower.compressor, False, lambda made: made.compressed),
        "semantic encoder": (tower.semantic_encoder, False, _first),
        "bridge": (core.bridge, False, lambda made: made.tokens),
        "relevance": (core.fetcher, False, lambda made: made.relevance),
        "prompt": (core.language_model, True, lambda passed: passed),
        "language model": (core.language_model, False, lambda made: made.last_hidden_state),
    }
    return parts if head is None else {**parts, "logits": (head, False, lambda made: made)}


def _first(made: Any) -> Any:
    return made[0] if isinstance(made, tuple) else made


class Probes(Mapping[str, Statistics]):
    """The latest statistics of each boundary by name, while hooks are on a model.

    Args:
        core: the model without its head.
        head: its vocabulary head, or None.
    """

    def __init__(self, core: nn.Module, head: nn.Module | None) -> None:
        self._latest: dict[str, Statistics] = {}
        self._handles: list[RemovableHandle] = []
        for name, (module, reads_input, pick) in boundaries(core, head).items():
            if reads_input:
                hook = partial(self._on_input, name)
                self._handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))
            else:
                self._handles.append(module.register_forward_hook(partial(self._on_output, name, pick)))

    def remove(self) -> None:
        """Takes the hooks off; what was seen stays."""
        for handle in self._handles:
            handle.remove()

    def _on_input(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._see(name, args[0] if args else kwargs.get("inputs_embeds"))

    def _on_output(self, name: str, pick: Callable[[Any], Any], module: nn.Module, args: Any, made: Any) -> None:
        self._see(name, pick(made))

    def _see(self, name: str, values: Any) -> None:
        if not isinstance(values, Tensor) or values.is_meta or torch.compiler.is_compiling():
            return
        seen = self._latest[name] = Statistics.of(values)
        expected = EXPECTED[name]
        if not seen.within(expected):
            logger.warning(
                f"{name}: expected values in {expected.least:g}..{expected.most:g} with a standard deviation in "
                f"{expected.least_std:g}..{expected.most_std:g}; got {seen.min:g}..{seen.max:g} with {seen.std:g}"
            )

    def __getitem__(self, name: str) -> Statistics:
        return self._latest[name]

    def __iter__(self) -> Any:
        return iter(self._latest)

    def __len__(self) -> int:
        return len(self._latest)


WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"

_PREFIX = re.compile(r"^(model\.)+")


def weight_files(folder: Path) -> list[str]:
    """Names of the weight files in `folder`: one, or the shards that its index names.

    Raises:
        ValueError: `folder` holds no weights, or lacks a shard; an index of another form (`weight_map`).
    """
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
    """The shard that each tensor is in, by an index file.

    Raises:
        ValueError: no JSON, no `weight_map` from tensors to files, an empty one, or a shard that is no .safetensors
            file right beside the index: such a name would reach into other folders.
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


def check_names(folder: Path) -> None:
    """Refuses weights of which two would go to the same part: transformers takes names with and without "model.".

    Raises:
        ValueError: two tensors for one part; no weights, or shards elsewhere (`weight_files`).
        SafetensorError: a damaged file.
    """
    tensors: dict[str, str] = {}
    for file in weight_files(folder):
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  not a dict
                part = _PREFIX.sub("", name)
                if part in tensors:
                    raise ValueError(f"{folder}: expected one tensor for each part; got {tensors[part]} and {name}")
                tensors[part] = name


def check_fit(source: Any, report: Mapping[str, Iterable[Any]], *, passed: Iterable[str] = ()) -> None:
    """Refuses weights that are not those of the config.

    Args:
        source: names the checkpoint in errors.
        report: what transformers says of loading it: missing_keys, unexpected_keys, mismatched_keys.
        passed: of "missing", "unexpected", "mismatched" those that are let through.

    Raises:
        ValueError: some are missing, left over or of other shapes.
    """
    for kind in ("mismatched", "missing", "unexpected"):
        keys = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report[f"{kind}_keys"])
        if keys and kind not in passed:
            raise ValueError(
                f"{source}: expected weights for every part of the config, in its shapes, and no others; "
                f"got {len(keys)} {kind}, e.g. {keys[0]}"
            )


def check_finite(source: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuses tensors, by name, that hold what is no finite number.

    Those that are not in memory (offloaded) pass, and so do quantized ones.

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
    low, high = torch.aminmax(tensor)  # without a copy, and NaN comes through
    return bool(low.isfinite() & high.isfinite())


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
        if isinstance(module, FetchedProjection):
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


# ---- which weights ------------------------------------------------------------------------------------------------

SAMPLES = 1024
"""Weights of each parameter that its part of the identity is made of, evenly spaced."""

_UNRELATED = ("transformers_version", "_name_or_path", "dtype")
"""Settings that say where a config comes from, and which type it was loaded in: the weights' own types count."""


def model_identity(core: ArrCocPreTrainedModel) -> str:
    """A checksum of what makes an encoding: configs, samples of the weights and active adapters, before the prompt."""
    config, digest = core.config, sha256()
    for part in (config.vision_config, config.semantic_config, config.bridge_config):
        usual = type(part)().to_dict()  # left out, so that a setting that is new changes nothing where it is unused
        settings = {name: value for name, value in part.to_dict().items() if value != usual.get(name)}
        settings = {name: value for name, value in settings.items() if name not in _UNRELATED}
        digest.update(json.dumps(settings, sort_keys=True, default=str).encode())
    for name, path in (("tower", "vision_tower"), ("bridge", "bridge"), ("layout", "layout")):
        module = core.get_submodule(path)
        for key, said in sorted((key, _sampled(tensor)) for key, tensor in loaded_weights(module)):
            digest.update(f"{name}.{key}".encode() + said)
        for key, part in module.named_modules():
            if hasattr(part, "active_adapters") and hasattr(part, "disable_adapters"):  # of PEFT: who is asked, and how
                read = [] if part.disable_adapters else part.active_adapters
                digest.update(f"{name}.{key}{read}{getattr(part, 'scaling', None)}".encode())
    return digest.hexdigest()


def _sampled(tensor: Tensor) -> bytes:
    flat = tensor.detach().flatten()
    sample = flat[:: max(1, len(flat) // SAMPLES)].float().cpu().numpy()
    return f"{list(tensor.shape)}{tensor.dtype}".encode() + sample.tobytes()
