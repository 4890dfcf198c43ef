"""Builds a model repository: weights, configs and card of a `hub_configs/` folder, and the code that runs them.

The result loads with `trust_remote_code=True` without `arr_coc`. The card's metadata are derived from the model, its
evaluation and this package.

`export_language_model` writes the language model as a plain checkpoint of transformers. An engine without support for
ARR-COC, for example vLLM, can then answer prompts that `AnswerGenerator.embed` has embedded (`serving.vllm_client`).
"""

import importlib.metadata
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from huggingface_hub import EvalResult, ModelCard
from packaging.requirements import Requirement
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

from .. import loading, modeling
from ..assembling.trained import complete, find_language_model, is_complete, trained_files
from ..files import cache_folder, check_free, find_model, fresh_folder, read_json, write_json
from ..loading import LANGUAGE_MODEL, check_checkpoint
from ..modeling.checks import write_members
from ..modeling.configuration_arr_coc import AUTO_MAP, PROCESSOR_MAP, ArrCocConfig
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.pretrained import WEIGHTS, WEIGHTS_INDEX, weight_files

logger = logging.get_logger(__name__)

CARD, EVALUATION, ASSEMBLY = "README.md", "evaluation.json", "assembly.json"
LIBRARY, TASK, TAGS = "transformers", "image-text-to-text", ("arr_coc", "custom_code")
NEEDED = ("library_name", "pipeline_tag", "license", "transformers_version")  # metadata that a card must have

_NAMES = {"recall": "Recall of boxed patches"}
"""Names in the card for measures of `arr-coc evaluate` whose own names are unclear."""

_NEW = """\
# {name}

An ARR-COC vision-language model: it runs back into the image for the patches that a question needs.

```python
from transformers import AutoModel

model = AutoModel.from_pretrained("org/{name}", trust_remote_code=True)
print(model.generate("image.png", "What is the total?"))
```
"""
_OUTER = re.compile(r"!?\[([^\]]*)\]\(\.\./[^)]*\)")
"""A link that leaves the card's folder, and so does not exist on the Hub."""
_TESTED = re.compile(r"^Tested with transformers `[^`\n]*`\.(?=\r?$)", re.MULTILINE)


def completed(folder: Path, llm: str | None = None, out: Path | None = None, *, force: bool = False) -> Path:
    """The repository of a folder of trained parts and their language model, made if it is not there yet.

    Progress bars are shown on a terminal.

    Args:
        folder: with `loading.LANGUAGE_MODEL`.
        llm: see `assembling.find_language_model`.
        out: the folder to write; None: one of the same name in `files.cache_folder`.
        force: whether to make it anew.

    Raises:
        ValueError: the weights are damaged, the language model is not available, `out` exists, or there is no space.
        OSError: writing failed; partial files are removed.
    """
    kept = cache_folder() / folder.name
    out = kept if out is None else out
    if out == kept and not force and llm is None and is_complete(folder, out):
        return out
    trained_files(folder)  # a ValueError before any download
    check_free(out, force or out == kept)
    logger.warning(f"{folder.name} is completed with its language model, once; it is kept in {out}")
    source = find_language_model(folder, llm, progress=sys.stderr.isatty())
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as beside:
        whole = complete(folder, source, Path(beside) / folder.name)
        return build(whole, out, force=force or out == kept)


def whole_model(name: str | None = None) -> str:
    """The folder or Hub name of a model; a folder of trained parts, such as the default, is completed first.

    Its language model is downloaded at the first use (`completed`).

    Raises:
        ValueError: no such model (`files.find_model`), or a language model that is not available.
    """
    source = find_model(name)
    return str(completed(Path(source))) if (Path(source) / LANGUAGE_MODEL).is_file() else source


def load_model(name: str | None = None, device: str | None = None) -> ArrCocForConditionalGeneration:
    """The model `name`, or the default one, completed if need be (`whole_model`), with its processor.

    Args:
        name: a folder, or org/name on the Hub.
        device: see `loading.find_device`.

    Raises:
        ValueError: see `whole_model` and `loading.load_model`.
    """
    loading.find_device(device)  # refused before anything is downloaded
    return loading.load_model(whole_model(name), device)


def read_card(path: Path) -> ModelCard:
    """Reads the card at `path`; without metadata, its metadata are empty. Raises ValueError: the card's metadata are
    not YAML, or are invalid for the Hub."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # keeps the card's line ends
            text = file.read()
        return ModelCard(text if text.startswith("---") else f"---\n\n---\n{text}")
    except (ValueError, TypeError, yaml.YAMLError) as error:
        received = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: expected a card with YAML metadata; got {received}") from error


def complete_card(
    path: Path, name: str, *, strategy: str, evaluation: dict[str, Any] | None = None, base_model: Iterable[str] = ()
) -> ModelCard:
    """Completes the card at `path`, or writes a new one; idempotent.

    It adds the library, the task, the tags, the tested range of transformers (also in the text), and results of the
    evaluation. It replaces an existing range, older results on the same data, and links that leave the folder (only
    their text stays). All other content stays.

    Args:
        name: name of the model, for a card without a title.
        strategy: the model's default strategy, whose results are added.
        base_model: Hub names of the models that this one is made of, for a card that names none.

    Raises:
        ValueError: the card's metadata are not YAML, or the evaluation has another form.
    """
    if not path.is_file():
        path.write_text(_NEW.format(name=name), encoding="utf-8")
    card = read_card(path)
    data: Any = card.data  # a ModelCardData, which ModelCard does not declare
    data.library_name = data.library_name or LIBRARY
    data.pipeline_tag = data.pipeline_tag or TASK
    data.tags = [*(data.tags or ()), *(tag for tag in TAGS if tag not in (data.tags or ()))]
    data.base_model = data.base_model or list(base_model) or None
    data["transformers_version"] = tested_transformers()
    text, said = _OUTER.sub(r"\1", card.text), f"Tested with transformers `{data['transformers_version']}`."
    end = "\r\n" if "\r\n" in text else "\n"
    card.text = _TESTED.sub(said, text) if _TESTED.search(text) else f"{text.rstrip()}{end}{end}{said}{end}"
    if evaluation is not None:
        results = evaluation_results(evaluation, strategy)
        measured = {result.dataset_type for result in results}
        data.eval_results = [r for r in data.eval_results or () if r.dataset_type not in measured] + results
        title = re.search(r"^# +(.+?) *\r?$", card.text, re.MULTILINE)
        data.model_name = data.model_name or (title[1] if title else name)
    card.save(path)
    return card


def missing_metadata(card: ModelCard) -> list[str]:
    """The names of `NEEDED` that the card lacks."""
    return [name for name in NEEDED if not card.data.get(name)]


def tested_transformers() -> str:
    """The releases of transformers that this package requires, e.g. ">=5.23,<6"."""
    for line in importlib.metadata.requires("arr-coc") or ():
        requirement = Requirement(line)
        if requirement.name == LIBRARY:
            return ",".join(sorted(map(str, requirement.specifier), reverse=True))
    raise AssertionError("arr-coc is installed without a requirement on transformers")


def evaluation_results(evaluation: dict[str, Any], strategy: str) -> list[EvalResult]:
    """Results of one strategy in percent, rounded as `arr-coc evaluate` prints them; none if it was not evaluated.
    Raises ValueError: another form than that of `arr-coc evaluate --json`."""
    try:
        row = evaluation["strategies"].get(strategy)
        if row is None:
            return []
        dataset = str(evaluation["data"]).replace("\\", "/")
        if (data := PurePosixPath(dataset)).suffix and " and " not in dataset:  # a file, else a name
            dataset = data.parent.name or data.stem
        settings = {"strategy": strategy, "allocator": evaluation["allocator"], "budget": evaluation["budget"]}
        return [
            EvalResult(
                task_type=TASK,
                dataset_type=dataset,
                dataset_name=dataset,
                dataset_args={"questions": row["n"]},
                metric_type=metric,
                metric_name=f"{_NAMES.get(metric, metric.replace('_', ' ').capitalize())} (%)",
                metric_value=round(100 * interval["value"], 1),
                metric_args=settings,
            )
            for metric, interval in row.items()
            if isinstance(interval, dict) and "value" in interval  # a share with its bounds, no count and no group
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{EVALUATION}: expected what arr-coc evaluate --json writes; got {error!r}") from error


def base_models(assembly: dict[str, Any]) -> list[str]:
    """The Hub names of the sources in the record that `arr-coc assemble` wrote; folders have none. Raises ValueError:
    another form."""
    try:
        names = dict.fromkeys(str(source["name"]) for source in assembly["sources"].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{ASSEMBLY}: expected what arr-coc assemble writes; got {error!r}") from error
    return [name for name in names if "/" in name]


CODE = Path(modeling.__file__).parent  # the folder whose files travel with the weights
REQUIRED = ("config.json", "processor_config.json", "tokenizer_config.json")
_TAKEN = (".json", ".jinja", ".md", ".safetensors", ".txt", ".model")
"""Endings of the files to copy from the source: configs, tokenizer, chat template, card, weights."""


def build(source: str | Path, out: str | Path, *, card: str | Path | None = None, force: bool = False) -> Path:
    """Writes the complete model repository of `source` to `out`, atomically by a rename.

    Args:
        source: a folder with config, processor, tokenizer, weights (one file or shards) and optionally a README.md.
        card: a README.md in place of the source's. The card is completed, or written if missing (`complete_card`).

    Raises:
        ValueError: `source` is incomplete or not an ARR-COC model; its weights are damaged, not finite or do not match
            its config; a card or an evaluation has another form; `card` is not a file; or `out` exists.
    """
    source, out = Path(source).absolute(), Path(out).absolute()
    if not source.is_dir():
        raise ValueError(f"{source}: expected a folder with a model; got {'a file' if source.exists() else 'nothing'}")
    if missing := [name for name in REQUIRED if not (source / name).is_file()]:
        raise ValueError(f"{source}: expected {', '.join(REQUIRED)}; got no {', '.join(missing)}")
    if out == source or out in source.parents or source in out.parents:
        raise ValueError(f"{out}: expected a folder apart from the source; got one that holds it or lies in it")
    check_free(out, force)
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
        config = ArrCocConfig.from_pretrained(beside)
        write_members(beside, config.members())
        _write_auto_maps(beside)
        if card is not None:
            shutil.copyfile(card, beside / CARD)
        complete_card(
            beside / CARD,
            source.name,
            strategy=config.fetcher_config.strategy,
            evaluation=read_json(beside / EVALUATION) if (beside / EVALUATION).is_file() else None,
            base_model=base_models(read_json(beside / ASSEMBLY)) if (beside / ASSEMBLY).is_file() else (),
        )
    return out


def _write_auto_maps(folder: Path) -> None:
    """Writes the `auto_map` of model, processor and image processor into the files that Auto classes read."""
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


PROBE = 8  # number of positions on which two forms of one language model are compared


def plain_language_model(model: ArrCocForConditionalGeneration) -> PreTrainedModel:
    """Language model and vocabulary head in transformers' own class, with shared weights. Raises ValueError:
    transformers has no class for this language model, or the class computes other logits."""
    text = model.config.text_config
    try:
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(text)
    except ValueError as error:
        expected = "a language model that AutoModelForCausalLM knows"
        raise ValueError(f"text_config: expected {expected}; got {text.model_type!r}") from error
    setattr(plain, plain.base_model_prefix, model.model.language_model)
    plain.set_output_embeddings(model.lm_head)
    plain.generation_config = model.generation_config
    left = [name for name, tensor in plain.state_dict().items() if tensor.is_meta]
    if left or not _same_logits(model, plain.eval()):
        expected = "a class of transformers that is the language model and a linear vocabulary head"
        raise ValueError(f"text_config: expected {expected}; got {type(plain).__name__}")
    return plain


@torch.no_grad()
def _same_logits(model: ArrCocForConditionalGeneration, plain: PreTrainedModel) -> bool:
    """Whether both give the same logits; some classes scale or cap logits, which ARR-COC's head does not."""
    vocabulary = model.config.text_config.vocab_size
    tokens = torch.linspace(0, vocabulary - 1, PROBE, device=model.model.input_device).long()[None]
    forms: tuple[Any, Any] = (model.model.language_model, plain)
    embeds = model.get_input_embeddings()(tokens)
    hidden, output = (form(inputs_embeds=embeds, use_cache=False) for form in forms)
    return torch.equal(model.lm_head(hidden.last_hidden_state), output.logits)


def export_language_model(
    model: ArrCocForConditionalGeneration, out: str | Path, *, force: bool = False, max_shard_size: str = "5GB"
) -> Path:
    """Writes language model, tokenizer, chat template and generation config to `out`, atomically.

    Args:
        model: with its processor.
        max_shard_size: the largest size of a weight file, as "500MB".

    Raises:
        ValueError: the language model has no plain form (`plain_language_model`), prompts are more than embeddings, or
            `out` exists.
    """
    model.config.require_embeds_alone("export-language-model")
    out = Path(out).expanduser().absolute()
    plain, processor = plain_language_model(model), model.processor
    with fresh_folder(out, force=force) as beside:
        plain.save_pretrained(beside, max_shard_size=max_shard_size)
        own_template = processor.tokenizer.chat_template
        with processor.tokenizing.lock:
            try:
                processor.tokenizer.chat_template = processor.chat_template
                processor.tokenizer.save_pretrained(beside)
            finally:
                processor.tokenizer.chat_template = own_template
    return out
