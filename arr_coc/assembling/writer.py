"""Writes a planned checkpoint, one output shard at a time; tensors are read for their shard.

Peak memory is one shard, plus the published tensors of one of its tensors. Only modules with new tensors get memory,
one part of the model at a time; all others stay on the meta device.
"""

import shutil
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers.dynamic_module_utils import custom_object_save
from transformers.modeling_utils import PreTrainedModel

from ..files import check_free, fresh_folder, write_json
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.pretrained import WEIGHTS_INDEX, check_finite
from .families import EMBEDDINGS
from .plan import Plan, Target, part_of, record, skeleton
from .published import CLIP_RECIPE, CLIP_TEXT, WORDS, fit

COMPRESSOR, PROJECTION = "model.vision_tower.compressor", "model.vision_tower.saccade_projection"


@torch.no_grad()
def initialise(plan: Plan, model: PreTrainedModel, part: str) -> dict[str, Tensor]:
    """The new tensors of one part (`part_of`) of the model; values depend on the plan's seed and the part alone.
    `model` is on the meta device; the part gets memory for the time of the call."""
    names = [name for name, target in plan.targets.items() if not target.rows and part_of(name) == part]
    root, compressor = model.get_submodule(part), model.get_submodule(COMPRESSOR) if part == PROJECTION else None
    for owner in {name.rpartition(".")[0] for name in names}:
        module = model.get_submodule(owner).to_empty(device="cpu", recurse=False)
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))  # reveals values that no recipe fills
    if compressor is not None:
        for name, tensor in compressor.to_empty(device="cpu").state_dict().items():
            tensor.copy_(read(plan.targets[f"{COMPRESSOR}.{name}"], torch.float32))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.request.seed + zlib.crc32(part.encode()))
        for module in _children_first(root):
            model._init_weights(module)
    state = model.state_dict()
    new = {name: state[name].clone() for name in names}
    root.to("meta")
    if compressor is not None:
        compressor.to("meta")
    empty = [name for name, tensor in new.items() if tensor.is_floating_point() and tensor.isnan().any()]
    assert not empty, f"no recipe in _init_weights for {empty}"
    return new


def _children_first(module: nn.Module) -> list[nn.Module]:
    return [each for child in module.children() for each in _children_first(child)] + [module]


CONFIG = "config.json"
RECORD = "assembly.json"  # file with the origin of every part of an assembled checkpoint


def write(plan: Plan, out: Path, *, force: bool = False, progress: bool = False) -> Path:
    """Writes the checkpoint to `out`, atomically by a rename.

    Args:
        plan: the plan; its config gets the statistics of the text embeddings.

    Raises:
        ValueError: `out` exists, there is no space for it, or a file cannot be downloaded.
        OSError: writing failed; partial files are removed.
    """
    out = out.absolute()
    check_free(out, force)
    check_space(out, plan.nbytes)
    needed = [(rows.source, rows.name) for target in plan.targets.values() for rows in target.rows]
    needed += [(source, WORDS) for role, source in plan.request.sources.items() if role == CLIP_TEXT]
    for source, file in dict.fromkeys((source, source.tensors[name].file) for source, name in needed):
        source.file(file)  # downloads it
    with fresh_folder(out, force=force) as folder:
        set_statistics(plan.config, plan.targets[EMBEDDINGS])
        _write_shards(plan, folder, progress)
        plan.config.save_pretrained(folder)
        custom_object_save(ArrCocForConditionalGeneration, folder)
        plan.generation.save_pretrained(folder)
        plan.processor.save_pretrained(folder)
        for file in plan.shards:
            shutil.copymode(folder / CONFIG, folder / file)  # safetensors makes files that only the owner can read
        write_json(folder / RECORD, record(plan))
    return out


def check_space(out: Path, needed: int) -> None:
    """Refuses an output that does not fit on its disk. Raises ValueError: fewer than `needed` bytes are free."""
    there = next(folder for folder in (out, *out.parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ValueError(f"{out}: expected {needed:,} bytes of free disk space; got {free:,}")


def _write_shards(plan: Plan, folder: Path, progress: bool) -> None:
    model, new = skeleton(plan.config), dict[str, Tensor]()
    with tqdm(total=plan.nbytes, desc="assembling", unit="B", unit_scale=True, disable=not progress) as bar:
        for file, names in plan.shards.items():
            shard: dict[str, Tensor] = {}
            for name in names:
                target = plan.targets[name]
                if not target.rows and name not in new:
                    new |= initialise(plan, model, part_of(name))
                shard[name] = read(target) if target.rows else new.pop(name).to(target.dtype)
                if target.recipe == CLIP_RECIPE:
                    source = plan.request.sources[CLIP_TEXT]
                    shard[name].copy_(fit(source, plan.targets[EMBEDDINGS].rows[0], plan.processor.tokenizer))
                bar.update(target.nbytes)
            save_file(shard, folder / file, metadata={"format": "pt"})
    if len(plan.shards) > 1:
        count = sum(target.numel for target in plan.targets.values())
        where = {name: file for file, names in plan.shards.items() for name in names}
        sizes = {"total_parameters": count, "total_size": plan.nbytes}
        write_json(folder / WEIGHTS_INDEX, {"metadata": sizes, "weight_map": dict(sorted(where.items()))})


def read(target: Target, dtype: torch.dtype | None = None) -> Tensor:
    """Reads a tensor from its published rows; `dtype`: the target's by default. Raises ValueError: a published tensor
    has values that are not finite."""
    out = torch.empty(target.shape, dtype=dtype or target.dtype)
    flat, at = out.view(-1), 0
    with ExitStack() as stack:
        opened: dict[Path, Any] = {}
        for rows in target.rows:
            path = rows.source.file(rows.info.file)
            if path not in opened:
                opened[path] = stack.enter_context(safe_open(path, framework="pt"))
            block = opened[path].get_slice(rows.name)[rows.start : rows.stop]
            check_finite(rows.source, [(rows.name, block)])
            block = block.mT if rows.transposed else block
            flat[at : at + block.numel()].copy_(block.reshape(-1))
            at += block.numel()
    if target.extra_rows:
        known = out[: -target.extra_rows]
        out[-target.extra_rows :] = known.float().mean(0)
    return out


def set_statistics(config: ArrCocConfig, target: Target) -> None:
    """Records mean and standard deviation of the published text embeddings in `bridge_config`."""
    count, total, squares = 0, 0.0, 0.0
    for _, part in target.rows[0].blocks():
        block = part.double()
        count += block.numel()
        total += float(block.sum())
        squares += float(block.square().sum())
    mean = total / count
    config.bridge_config.text_embedding_mean = mean
    config.bridge_config.text_embedding_std = max(squares / count - mean**2, 0.0) ** 0.5
