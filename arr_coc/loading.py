"""Loads models by name: a folder, or a repository on the Hub; and chooses their device."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoConfig

from .files import SHIPPED, find_model
from .modeling.configuration_arr_coc import ArrCocConfig
from .modeling.modeling_arr_coc import ArrCocForConditionalGeneration, load_processor
from .modeling.pretrained import WEIGHTS, WEIGHTS_INDEX, check_finite, no_bar, weight_files, weight_map

LANGUAGE_MODEL = "language_model.json"
"""File in a folder of trained parts that names the language model which completes them: the fields of
`assembling.trained.LanguageModel`."""

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
"""dtypes of published weights, by their names in configurations."""


def load_config(name: str) -> ArrCocConfig:
    """The config of a folder or Hub name (see `files.find_model`). Raises ValueError: no config.json, or one of another
    kind of model."""
    with refused(name):
        config = AutoConfig.from_pretrained(name)
    if config.model_type != ArrCocConfig.model_type:
        raise ValueError(f"{name}: expected an ARR-COC model; got a model of type {config.model_type!r}")
    return config


def load_model(name: str | None, device: str | None = None) -> ArrCocForConditionalGeneration:
    """The model and its processor, with this package's own classes: no code of the folder runs. Raises ValueError: no
    such model, weights that are damaged or do not match the config, no processor, no such device."""
    source = find_model(name)
    config = load_config(source)
    target = find_device(device)
    if Path(source).is_dir():
        try:
            weight_files(Path(source))
        except ValueError as error:
            if Path(source).parts[-2:-1] != SHIPPED.parts[:-1]:
                raise
            raise ValueError(f"{error}. Distributions have no weights: a clone of the repository has") from error
    with refused(source), nullcontext() if sys.stderr.isatty() else no_bar():
        model = ArrCocForConditionalGeneration.from_pretrained(source, config=config)
    with refused(source):
        model.processor  # noqa: B018  refuses now, not after the work, if there is none
    return model.to(target).eval()


def check_checkpoint(folder: Path) -> None:
    """Refuses a damaged checkpoint; at most one of its tensors is in memory at a time.

    Raises:
        ValueError: damaged config, processor or weights; weights that do not match the config or are not finite; or a
            wrong index of their shards.
    """
    config = load_config(str(folder))
    load_processor(config)
    files = weight_files(folder)
    with refused(str(folder)):
        ArrCocForConditionalGeneration.from_pretrained(folder, config=config, device_map="meta")
    shard_of: dict[str, str] = {}
    for file in files:
        with refused(str(folder)), safe_open(folder / file, framework="pt") as opened:
            names = list(opened.keys())
            shard_of.update(dict.fromkeys(names, file))
            check_finite(folder / file, ((name, opened.get_tensor(name)) for name in names))
    if files != [WEIGHTS] and shard_of != weight_map(folder / WEIGHTS_INDEX):
        raise ValueError(f"{folder}: expected each tensor in the shard that {WEIGHTS_INDEX} says; got others")


def find_device(name: str | None) -> torch.device:
    """The device called `name`; None: CUDA if there is one, else the CPU. Raises ValueError: this machine has no such
    device."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        here = ", ".join(["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])])
        raise ValueError(f"device: expected one of this machine's, {here}; got {name!r}") from error
    return device


@contextmanager
def refused(name: str, expected: str = "an ARR-COC checkpoint") -> Iterator[None]:
    """Turns errors of loaders for a damaged or missing file into a ValueError that names it and what was expected."""
    try:
        yield
    except Exception as error:  # transformers, PEFT, safetensors, tokenizers and pickle raise errors of their own types
        if str(error).startswith(f"{name}: expected"):
            raise
        line = (str(error).strip().splitlines() or [type(error).__name__])[0].strip()
        raise ValueError(f"{name}: expected {expected}; got {line}") from error
