"""The card of a model repository: metadata that follows from the model, its evaluation and this package."""

import importlib.metadata
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard
from packaging.requirements import Requirement

from ..modeling.configuration_arr_coc import ArrCocConfig

CARD, EVALUATION, ASSEMBLY = "README.md", "evaluation.json", "assembly.json"
LIBRARY, TASK, TAGS = "transformers", "image-text-to-text", ("arr_coc", "custom_code")
NEEDED = ("library_name", "pipeline_tag", "license", "transformers_version")
"""Metadata without which a card is not complete."""

_NAMES = {"recall": "Recall of boxed patches"}
"""How the card calls what `arr-coc evaluate` measures, where the measure's own name does not say enough."""

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
"""A link to what is beside the card's folder, where the card was written, and not on the Hub."""
_TESTED = re.compile(r"^Tested with transformers `[^`\n]*`\.(?=\r?$)", re.MULTILINE)


def read_card(path: Path) -> ModelCard:
    """The card at `path`; one without metadata has empty metadata.

    Raises:
        ValueError: the card's metadata is no YAML, or not what the Hub takes.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # a card keeps its line ends
            text = file.read()
        return ModelCard(text if text.startswith("---") else f"---\n\n---\n{text}")
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: expected a card with YAML metadata; got {_line(error)}") from error


def complete_card(
    path: Path,
    name: str,
    *,
    strategy: str,
    evaluation: dict[str, Any] | None = None,
    base_model: Iterable[str] = (),
) -> ModelCard:
    """Adds to the card at `path` what it leaves out, and writes it; there is one afterwards. Repeating changes nothing.

    The library, the task, the tags, the tested range of transformers (also in the text), and results of the evaluation.
    What the card says itself stays, but for that range, for older results on the same data, and for links that lead out
    of its folder, of which the text stays.

    Args:
        path: of the card.
        name: of the model, for a card that has no title.
        strategy: the one that the model answers by when none is asked for; its results go into the card.
        evaluation: what `arr-coc evaluate --json` wrote.
        base_model: models on the Hub that this one is made of, for a card that names none.

    Returns:
        the card, as written.

    Raises:
        ValueError: the card's metadata is no YAML, or the evaluation has another form.
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
    card.text = _say_tested(_OUTER.sub(r"\1", card.text), data["transformers_version"])
    if evaluation is not None:
        results = evaluation_results(evaluation, strategy)
        measured = {result.dataset_type for result in results}
        data.eval_results = [r for r in data.eval_results or () if r.dataset_type not in measured] + results
        data.model_name = data.model_name or _title(card.text) or name
    card.save(path)
    return card


def missing_metadata(card: ModelCard) -> list[str]:
    """Names of what the card leaves out of `NEEDED`."""
    return [name for name in NEEDED if not card.data.get(name)]


def tested_transformers() -> str:
    """The releases of transformers that this package asks for, e.g. ">=5.23,<6"."""
    for line in importlib.metadata.requires("arr-coc") or ():
        requirement = Requirement(line)
        if requirement.name == LIBRARY:
            return ",".join(sorted(map(str, requirement.specifier), reverse=True))
    raise AssertionError("arr-coc is installed without a requirement on transformers")


def evaluation_results(evaluation: dict[str, Any], strategy: str) -> list[EvalResult]:
    """Results of one strategy, in percent, as rounded as `arr-coc evaluate` prints them.

    Args:
        evaluation: what `arr-coc evaluate --json` wrote.
        strategy: the one to report. An evaluation without it gives no results: others answer another question.

    Raises:
        ValueError: another form.
    """
    try:
        row = evaluation["strategies"].get(strategy)
        if row is None:
            return []
        data = PurePosixPath(str(evaluation["data"]).replace("\\", "/"))
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


def default_strategy(config: dict[str, Any]) -> str:
    """The strategy in the content of a `config.json`, or the one that a config without it has."""
    named = config.get("fetcher_config", {}).get("strategy")
    return str(named or ArrCocConfig().fetcher_config.strategy)


def base_models(assembly: dict[str, Any]) -> list[str]:
    """The names on the Hub that an assembled model's parts come from; sources in folders have none.

    Args:
        assembly: what `arr-coc assemble` wrote about its sources.

    Raises:
        ValueError: another form.
    """
    try:
        names = dict.fromkeys(str(source["name"]) for source in assembly["sources"].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{ASSEMBLY}: expected what arr-coc assemble writes; got {error!r}") from error
    return [name for name in names if "/" in name]


def _say_tested(text: str, versions: str) -> str:
    said = f"Tested with transformers `{versions}`."
    if _TESTED.search(text):
        return _TESTED.sub(said, text)
    end = "\r\n" if "\r\n" in text else "\n"
    return f"{text.rstrip()}{end}{end}{said}{end}"


def _title(text: str) -> str | None:
    heading = re.search(r"^# +(.+?) *\r?$", text, re.MULTILINE)
    return heading[1] if heading else None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
