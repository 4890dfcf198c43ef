"""Build a model repository: weights, configs and card of a `hub_configs/` folder, plus the code that runs them.

The result loads with `trust_remote_code=True` where `arr_coc` is not installed.
"""

import shutil
from pathlib import Path

from .. import modeling
from ..files import check_free, fresh_folder, read_json, write_json
from ..loading import check_checkpoint
from ..modeling.auto_map import AUTO_MAP, PROCESSOR_MAP
from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.weights import WEIGHTS, WEIGHTS_INDEX, weight_files
from .cards import ASSEMBLY, CARD, EVALUATION, base_models, complete_card, default_strategy

CODE = Path(modeling.__file__).parent
"""The folder whose files travel with the weights."""

REQUIRED = ("config.json", "processor_config.json", "tokenizer_config.json")
_TAKEN = (".json", ".jinja", ".md", ".safetensors", ".txt", ".model")
"""Endings of what is copied from the source: configs, tokenizer, chat template, card, weights."""


def build(source: str | Path, out: str | Path, *, card: str | Path | None = None, force: bool = False) -> Path:
    """Writes the complete model repository of `source` to `out`, in one step: beside it first, then renamed.

    Args:
        source: a folder with config, processor, tokenizer, weights (one file or shards) and, for people, a README.md.
        out: the folder to make.
        card: a README.md to take instead of the source's. Either is completed, a missing one written (`complete_card`).
        force: replace `out` if it is there and not empty.

    Returns:
        `out`.

    Raises:
        ValueError: `source` is incomplete or no ARR-COC model, its weights are damaged, not those of its config or no
            finite numbers, a card or an evaluation has another form, `card` is no file, or `out` is in the way.
    """
    source, out = Path(source).absolute(), Path(out).absolute()
    _check(source, out, force)
    if card is not None and not Path(card).is_file():
        raise ValueError(f"card: expected a README.md; got {str(card)!r}, which is no file")
    check_checkpoint(source)
    weight_names = {*weight_files(source), WEIGHTS_INDEX} if not (source / WEIGHTS).is_file() else {WEIGHTS}
    with fresh_folder(out, force=force) as beside:
        for path in sorted(source.iterdir()):
            weights = path.suffix == ".safetensors" or path.name == WEIGHTS_INDEX
            if path.is_file() and path.suffix in _TAKEN and (not weights or path.name in weight_names):
                shutil.copyfile(path, beside / path.name)
        for path in sorted(CODE.glob("*.py")):
            if path.name != "__init__.py":
                shutil.copyfile(path, beside / path.name)
        _write_auto_maps(beside)
        if card is not None:
            shutil.copyfile(card, beside / CARD)
        _complete_card(beside, source.name)
    return out


def _complete_card(folder: Path, name: str) -> None:
    evaluation, assembly = folder / EVALUATION, folder / ASSEMBLY
    complete_card(
        folder / CARD,
        name,
        strategy=default_strategy(read_json(folder / "config.json")),
        evaluation=read_json(evaluation) if evaluation.is_file() else None,
        base_model=base_models(read_json(assembly)) if assembly.is_file() else (),
    )


def _check(source: Path, out: Path, force: bool) -> None:
    if not source.is_dir():
        raise ValueError(f"{source}: expected a folder with a model; got {'a file' if source.exists() else 'nothing'}")
    missing = [name for name in REQUIRED if not (source / name).is_file()]
    if missing:
        raise ValueError(f"{source}: expected {', '.join(REQUIRED)}; got no {', '.join(missing)}")
    model_type = read_json(source / "config.json").get("model_type")
    if model_type != ArrCocConfig.model_type:
        raise ValueError(f"{source}: expected model_type {ArrCocConfig.model_type!r}; got {model_type!r}")
    if out == source or out in source.parents or source in out.parents:
        raise ValueError(f"{out}: expected a folder apart from the source; got one that holds it or lies in it")
    check_free(out, force)


def _write_auto_maps(folder: Path) -> None:
    """Every Auto class looks into one of these files: the model's, the processor's, the image processor's in it."""
    config = read_json(folder / "config.json")
    config["auto_map"] = dict(AUTO_MAP)
    write_json(folder / "config.json", config)
    for name in ("processor_config.json", "preprocessor_config.json"):
        path = folder / name
        if path.is_file():
            settings = read_json(path)
            settings["auto_map"] = dict(PROCESSOR_MAP)
            if isinstance(settings.get("image_processor"), dict):
                settings["image_processor"]["auto_map"] = {"AutoImageProcessor": PROCESSOR_MAP["AutoImageProcessor"]}
            write_json(path, settings)
