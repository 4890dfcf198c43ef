"""Recipes: a YAML file with the stages that train a checkpoint, from new weights or from a trained model.

model: .                   # folder with config.json and the tokenizer, relative to the recipe
start: .                   # a trained model's folder to start from; none: new weights
config: {fetcher_config: {allocator: tiers}}   # changes to config.json
reference: {format: rendered, pages: 100, split: validation}   # typical questions; saves fetch_reference.json
saved: {dtype: bfloat16, max_shard_size: 16MB}   # form of the files; none: as trained, in one file
seed: 0
defaults: {bf16: true}     # defaults of all stages that have these settings
stages:
  - stage: allocator       # see AllocatorPhase
    steps: 3000
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import PartialState
from huggingface_hub import split_torch_state_dict_into_shards
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME, logging

from ..adapters import LANGUAGE_ADAPTER, adapt
from ..attached import AttachedReader
from ..attached.reader import load_reader
from ..attached.scoring import new_scorer
from ..files import ADAPTER as ADAPTER_FILE
from ..files import check_types, fresh_folder, parse_yaml, read_yaml, sole_writer, write_json
from ..loading import DTYPES, load_config, refused
from ..modeling.configuration_arr_coc import ArrCocConfig, ArrCocFetcherConfig
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.processing_arr_coc import ArrCocProcessor
from . import phases  # noqa: F401  # registers its stages, and reinforcement its own
from .attached import AttachedScorerStage
from .phases import Phase, train_phase
from .reader import asking, marking, recognition  # noqa: F401  # register their stages
from .reader.language_model import load_adapter, save_adapter
from .stages import STAGES, Run, Stage, check_names, stage_from


@dataclass(frozen=True)
class Saving:
    """How a recipe writes its trained model's files. Raises ValueError: another dtype, or an invalid size."""

    dtype: str | None = None  # of weights and of the adapter, a name in `DTYPES`; None: as they were trained
    max_shard_size: int | str = "5GB"  # of a file of weights, bytes or text such as "16MB"

    def __post_init__(self) -> None:
        check_types(self)
        if self.dtype not in (None, *DTYPES):
            raise ValueError(f"saved.dtype: expected one of {', '.join(DTYPES)}; got {self.dtype!r}")
        try:
            split_torch_state_dict_into_shards({}, max_shard_size=self.max_shard_size)
        except ValueError as error:
            expected = 'bytes, or text such as "16MB"'
            raise ValueError(f"saved.max_shard_size: expected {expected}; got {self.max_shard_size!r}") from error

    def write(self, run: Run, folder: Path) -> None:
        """Writes weights, configuration, processor, and the language model's adapter, in the dtype of `saved`."""
        if isinstance(reader := run.model, AttachedReader):
            reader.save_adapter(folder / ADAPTER_FILE)
            return
        dtype = None if self.dtype is None else DTYPES[self.dtype]
        if dtype is not None:
            run.model.to(dtype)  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
        run.model.save_pretrained(folder, max_shard_size=self.max_shard_size)
        run.processor.save_pretrained(folder)
        if run.adapter:
            save_adapter({name: weight.to(dtype or weight.dtype) for name, weight in run.adapter.items()}, folder)


logger = logging.get_logger(__name__)

_TOP = ("model", "start", "seed", "reference", "saved", "config")
_KINDS: tuple[tuple[tuple[str, ...], type, str], ...] = (
    (("model", "start"), str, "text"),
    (("seed",), int, "a whole number"),
    (("config", "defaults", "reference", "saved"), Mapping, "a mapping"),
)
"""Names in a recipe and their long forms."""

_KEYS = (*_TOP, "defaults", "stages")


@dataclass(frozen=True)
class Recipe:
    """A model's configuration and the stages that train it. Raises ValueError: a phase that follows a stage after which
    parts of the model are still untrained."""

    model: Path  # the configuration's folder
    stages: tuple[Stage, ...]  # settings in the order they run
    seed: int = 0  # of the initial weights
    # A trained model's folder to start from, with its adapter if it has one; None: new weights.
    start: Path | None = None
    root: Path = Path(".")  # the folder that paths in the stages' data are relative to
    # Settings that differ from the configuration's, parts of it as mappings.
    changes: Mapping[str, Any] = field(default_factory=dict)
    # Typical questions, see `arr_coc.data.formats.open_records`, on which `arr-coc train` measures what the trained
    # model fetches, for a server to compare its traffic with; None: no measurement.
    reference: Mapping[str, Any] | None = None
    saved: Saving = Saving()  # how the trained model is written

    def __post_init__(self) -> None:
        for before, after in pairwise(self.stages):
            if not (before.leaves_whole or after.from_scratch):
                expected = "a phase first, or after a phase"
                raise ValueError(f"stages: expected {expected}; got one after {type(before).__name__}")

    def config(self) -> ArrCocConfig:
        """The configuration with its changes. Raises ValueError: an unknown field, or an invalid value."""
        known = load_config(str(self.model)).to_dict()
        return ArrCocConfig.from_dict(_changed(known, self.changes, "config"))


def _changed(known: Mapping[str, Any], changes: Any, where: str) -> dict[str, Any]:
    """A mapping with changes, also in nested mappings."""
    check_names(known, changes, where)
    changed = dict(known)
    for name, value in changes.items():
        nested = isinstance(known[name], Mapping)
        changed[name] = _changed(known[name], value, f"{where}.{name}") if nested else value
    return changed


def _override(recipe: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted setting, see `load_recipe`. Raises ValueError: no such setting."""
    places, path = _places(recipe, key.split("."))
    if not (places and path and all(path)):
        stages = f"a stage of 0 to {len(recipe['stages']) - 1} or its name"
        expected = f"STAGE.NAME=VALUE with {stages}, or NAME=VALUE of {', '.join(_TOP)} or what a stage has"
        raise ValueError(f"setting: expected {expected}; got {key!r}")
    for place in places:
        known = {} if path in (["data", "path"], ["data", "format"]) else _own_defaults(place)  # or another source
        known |= recipe.get("defaults") or {}
        for name in path[:-1]:
            inner = place.get(name, known.get(name))
            place[name] = dict(inner) if isinstance(inner, dict) else {}
            place, known = place[name], {}
        place[path[-1]] = value


def _own_defaults(stage: dict[str, Any]) -> dict[str, Any]:
    """The mappings that a stage has where a recipe names none."""
    kind = STAGES.get(str(stage.get("stage")))
    made = {} if kind is None else {own.name: own.default_factory for own in fields(kind)}
    return {name: factory() for name, factory in made.items() if factory is not MISSING}


def _places(recipe: dict[str, Any], path: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The recipe or the stages that a dotted name refers to, and the rest of the name."""
    stages = [stage for stage in recipe["stages"] if isinstance(stage, dict)]
    first, rest = path[0], path[1:]
    if path == ["seed"]:  # of the initial weights, and of the draws of stages without a seed of their own
        return [recipe, *(stage for stage in stages if _knows(stage, first) and first not in stage)], path
    if first in _TOP and (not rest or isinstance(recipe.get(first) or {}, dict)):
        return [recipe], path
    if first.isdecimal():
        return recipe["stages"][int(first) : int(first) + 1], rest
    named = [stage for stage in stages if stage.get("stage") == first]
    return (named, rest) if named else ([stage for stage in stages if _knows(stage, first)], path)


def _knows(stage: Any, name: str) -> bool:
    kind = STAGES.get(str(stage.get("stage"))) if isinstance(stage, dict) else None
    return kind is not None and name in {setting.name for setting in fields(kind)}


def load_recipe(path: Path, settings: Sequence[str] = ()) -> Recipe:
    """Reads a recipe.

    Args:
        settings: overrides: "2.steps=100" or "joint.steps=100" for a stage by number or name, "steps=100" for all
            stages with this setting, "2.data.path=pages.jsonl" inside one, "seed=1" or "reference.pages=9" for the
            recipe.

    Raises:
        ValueError: unknown stages or settings, or no stages.
    """
    recipe = _read(path)
    for setting in settings:
        key, equals, value = setting.partition("=")
        try:
            held = parse_yaml(value)
        except yaml.YAMLError as error:
            raise ValueError(f"setting: expected a value in YAML; got {setting!r}") from error
        _override(recipe, key if equals else "", held)
    _check_top(recipe, path)
    defaults = recipe.get("defaults") or {}
    if strange := sorted(str(name) for name in defaults if not any(_knows(stage, name) for stage in recipe["stages"])):
        raise ValueError(f"defaults: expected settings that a stage has; got {', '.join(strange)}")
    saved = recipe.get("saved") or {}
    check_names([setting.name for setting in fields(Saving)], saved, "saved")
    return Recipe(
        model=path.parent / (recipe.get("model") or "."),
        stages=tuple(stage_from(spec, defaults, f"stages[{n}]") for n, spec in enumerate(recipe["stages"])),
        seed=recipe.get("seed") or 0,
        start=None if recipe.get("start") is None else path.parent / recipe["start"],
        root=path.parent,
        changes=recipe.get("config") or {},
        reference=recipe.get("reference"),
        saved=Saving(**saved),
    )


def _check_top(recipe: dict[str, Any], path: Path) -> None:
    for names, kind, expected in _KINDS:
        for name in names:
            value = recipe.get(name)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise ValueError(f"{path}: expected {expected} for {name}; got {value!r}")


def _read(path: Path) -> dict[str, Any]:
    """The content of a recipe's file, of known names."""
    content = read_yaml(path)
    stages = content.get("stages") if isinstance(content, dict) else None
    if not isinstance(stages, list) or not stages:
        raise ValueError(f"{path}: expected a mapping with a list of stages; got {type(content).__name__}")
    if unknown := sorted(map(str, set(content) - set(_KEYS))):
        raise ValueError(f"{path}: expected {', '.join(_KEYS)}; got {', '.join(unknown)}")
    _check_top(content, path)
    return content


def train(recipe: Recipe, out: Path, device: torch.device | str = "cpu") -> None:
    """Runs a recipe, or resumes a killed run: every stage keeps its checkpoints in `out`.

    Writes the trained checkpoint to `out/model`: weights, configuration, processor, and the states for further
    training; of a published model its scorer alone (see `load_reader`).

    Raises:
        ValueError: several processes for a stage that runs in one only; a device that Trainer does not support; another
            process that trains in `out`; damaged weights to start from, or damaged checkpoints and no older one.
    """
    state = PartialState(cpu=torch.device(device).type == "cpu")
    if state.num_processes > 1 and any(stage.from_scratch for stage in recipe.stages):
        several = ", ".join(name for name, kind in STAGES.items() if not kind.from_scratch)
        raise ValueError(f"stages: expected {several} only, with {state.num_processes} processes; got others")
    main = state.is_main_process
    with sole_writer(out) if main else nullcontext():
        if main:
            tell_recipe(recipe, out / "recipe.json")
        run = begin(recipe, torch.device(device))
        for number, stage in enumerate(recipe.stages):
            if main:
                logger.info(f"stage {number}: {stage}")
                tell_changes(stage, out / f"stage{number}.json")
            stage.run(run, out / f"stage{number}")
        if main:
            with fresh_folder(out.absolute() / "model", force=True) as beside:
                recipe.saved.write(run, beside)
        state.wait_for_everyone()


_ANY_TIME = ("workers", "log_every", "report_to")  # settings of stages without effect on the result


def tell_changes(stage: Stage, path: Path) -> None:
    """Warns of settings that differ from those of the stage's start, which are in `path`."""
    names = [part.name for part in fields(stage) if part.name not in _ANY_TIME]
    _tell({name: repr(getattr(stage, name)) for name in names}, path, "stage")


def tell_recipe(recipe: Recipe, path: Path, **others: Any) -> None:
    """The same for the settings of a recipe beside its stages, and for `others`."""
    own = {name: getattr(recipe, name) for name in ("model", "start", "seed", "changes")}
    _tell({name: repr(value) for name, value in {**own, **others}.items()}, path, "training")


def _tell(told: dict[str, str], path: Path, what: str) -> None:
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, told)
        return
    begun = json.loads(path.read_text(encoding="utf-8"))
    if changed := [f"{name} {begun.get(name)} -> {value}" for name, value in told.items() if begun.get(name) != value]:
        kept = "what was trained before stays, and what is done is not trained again (another --out begins anew)"
        logger.warning(f"{path}: the {what} was begun with other settings ({', '.join(changed)}): {kept}")


def begin(recipe: Recipe, device: torch.device) -> Run:
    """A model with new weights, or with those of the recipe's start folder; weights that it does not have stay new.
    Raises ValueError: no such folder, weights of other shapes, or fewer language layers; or see `attached_reader`."""
    if any(isinstance(stage, AttachedScorerStage) for stage in recipe.stages):
        reader: Any = attached_reader(recipe, device)
        return Run(reader, reader.processor, device, recipe.root)
    config = recipe.config()
    torch.manual_seed(recipe.seed)
    with refused(str(recipe.model)):
        processor = ArrCocProcessor.from_pretrained(recipe.model)
    run = Run(ArrCocForConditionalGeneration(config), processor, device, recipe.root)
    if (recipe.model / GENERATION_CONFIG_NAME).is_file():
        run.model.generation_config = GenerationConfig.from_pretrained(recipe.model)
    if recipe.start is not None:
        if not recipe.start.is_dir():
            raise ValueError(f"start: expected a trained model's folder; got {recipe.start}, which is none")
        known = ArrCocConfig.from_dict(config.to_dict())
        with refused(str(recipe.start)):
            trained, loading = ArrCocForConditionalGeneration.from_pretrained(
                recipe.start, config=known, output_loading_info=True
            )
        if new := sorted(name for name in loading["missing_keys"] if ".language_model." in name):
            raise ValueError(f"start: expected a language model that is as deep; got none with {new[0]}")
        run.model.load_state_dict(trained.state_dict())
        if (recipe.start / LANGUAGE_ADAPTER).is_dir():
            run.adapter = load_adapter(recipe.start)
    return run


def attached_reader(recipe: Recipe, device: torch.device) -> AttachedReader:
    """A reader of a recipe's published model, with the scorer of the start folder, or a new one.

    Raises:
        ValueError: other stages in the recipe, settings for our own models only, not a published model, or no scorer of
            this model in the start folder.
    """
    given = [] if recipe.reference is None else ["reference"]
    given += [f"config.{name}" for name in recipe.changes if name != "fetcher_config"]
    given += [type(stage).__name__ for stage in recipe.stages if not isinstance(stage, AttachedScorerStage)]
    if given:
        expected = "stages attached_scorer alone, and of a configuration fetcher_config"
        raise ValueError(f"recipe: expected {expected}, with a published model; got {', '.join(given)}")
    known, changes = ArrCocFetcherConfig().to_dict(), recipe.changes.get("fetcher_config", {})
    config = ArrCocFetcherConfig.from_dict(_changed(known, changes, "config.fetcher_config"))
    model, start, (first, *_) = recipe.model, recipe.start, recipe.stages
    name = str(model) if model.is_dir() else model.relative_to(recipe.root).as_posix()  # or a name on the Hub
    reader = load_reader(name, str(device))
    if reader is None:
        raise ValueError(f"model: expected a published model for the stage attached_scorer; got {name}")
    if start is None:
        assert isinstance(first, AttachedScorerStage)
        reader.scorer = new_scorer(config, reader.width, first.seed).to(reader.model.device)
    elif not (start / ADAPTER_FILE).is_file():
        raise ValueError(f"start: expected a folder with {ADAPTER_FILE}, a trained scorer; got {start}")
    else:
        reader.load_adapter(start / ADAPTER_FILE)
    return reader


ADAPTER = "adapter"  # folder of the adapter, in a run's own folder


def train_adapter(recipe: Recipe, out: Path, device: torch.device | str = "cpu", *, rank: int = 8) -> Path:
    """Runs a recipe's one phase on an adapter, or resumes a killed run; the model's own weights do not change.

    The recipe has a trained model as its `start`; checkpoints and the adapter go to `out`.

    Returns:
        The adapter's folder, for `PeftModel.from_pretrained`.

    Raises:
        ValueError: another recipe, a phase whose parts have no linear layers, or `out` in use by another process.
    """
    phase = recipe.stages[0]
    if len(recipe.stages) != 1 or not isinstance(phase, Phase) or recipe.start is None:
        stages = ", ".join(type(stage).__name__ for stage in recipe.stages)
        raise ValueError(f"adapter: expected a recipe with a start and one phase; got {recipe.start} and {stages}")
    own = {"config": recipe.changes, "reference": recipe.reference}
    if given := [name for name, value in own.items() if value]:
        raise ValueError(f"adapter: expected a recipe of the start's model as it is; got {', '.join(given)}")
    device = torch.device(device)
    main = PartialState(cpu=device.type == "cpu").is_main_process
    with sole_writer(out) if main else nullcontext():
        with refused(str(recipe.start)):
            model = ArrCocForConditionalGeneration.from_pretrained(recipe.start)
            processor = ArrCocProcessor.from_pretrained(recipe.start)
        if main:
            tell_recipe(recipe, out / "recipe.json", rank=rank)
            tell_changes(phase, out / "stage0.json")
        torch.manual_seed(recipe.seed)
        adapted = adapt(model, phase.trained, r=rank)
        trained = train_phase(adapted, processor, phase, out / "stage0", device=device, root=recipe.root)
        if main:
            with fresh_folder((out / ADAPTER).absolute(), force=True) as beside:
                for path in (*trained.glob("adapter_*"), *trained.glob("README.md")):
                    shutil.copyfile(path, beside / path.name)
    return out / ADAPTER
