"""What the commands share: their form, the model's place, quiet libraries, files that can be written."""

import argparse
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig
from transformers.utils import logging

from ..modeling.configuration_arr_coc import ArrCocConfig
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration

SHIPPED = Path("hub_configs") / "arr-coc-tiny"
"""The model that a checkout of the repository holds."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class Command:
    """A subcommand: `examples` are whole command lines, the first one also stands in `arr-coc --help`."""

    name: str
    summary: str
    description: str
    examples: tuple[str, ...]
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


@contextmanager
def quiet() -> Iterator[None]:
    """Libraries report errors only and draw no progress bars of their own; as before afterwards."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="M",
        help=f"folder, or name on the Hub as org/name (default: {SHIPPED.as_posix()} of a checkout)",
    )


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, ... (default: cuda where there is one)")


def add_choice_arguments(parser: argparse.ArgumentParser) -> None:
    """--budget and --allocator."""
    budgets = (
        'patches to fetch: a number, "fast", "balanced", "standard", "accurate", "all", "tier:64" to "tier:400", '
        'or "auto": the model chooses (default: the model\'s)'
    )
    parser.add_argument("--budget", metavar="K", help=budgets)
    parser.add_argument(
        "--allocator", metavar="A", help='"topk", "window", "tiers" or "adaptive" (default: the model\'s)'
    )


def find_model(name: str | None) -> str:
    """An absolute path for a folder, so that nothing is ever looked up on the Hub for it; or a name on the Hub.

    Raises:
        ValueError: a path to nothing or to a file, or no name and no shipped model.
    """
    if name is None:
        checkout = Path(__file__).resolve().parents[2]
        for root in (checkout, Path.cwd()):
            if (root / SHIPPED).is_dir():
                return str(root / SHIPPED)
        raise ValueError(f"--model: expected a folder or org/name; got none, and {SHIPPED.as_posix()} is not here")
    path = Path(name).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if path.exists():
        raise ValueError(f"model: expected a folder or org/name; got a file: {name}")
    # "hub_configs/typo" has the form of a Hub name, but whoever has that folder means it.
    if not _HUB_NAME.fullmatch(name) or path.parent.is_dir():
        raise ValueError(f"model: expected a folder, or org/name on the Hub; got {name!r}, which does not exist")
    return name


def load_config(name: str) -> ArrCocConfig:
    """The config of a folder or Hub name (see `find_model`).

    Raises:
        ValueError: there is none, or it is another kind of model's.
    """
    with _refused(name):
        config = AutoConfig.from_pretrained(name)
    if config.model_type != ArrCocConfig.model_type:
        raise ValueError(f"{name}: expected an ARR-COC model; got a model of type {config.model_type!r}")
    return config


def load_model(name: str | None, device: str | None = None) -> ArrCocForConditionalGeneration:
    """The model and its processor, by this package's own classes: no code of the folder runs.

    Raises:
        ValueError: no such model, damaged or incomplete weights, no processor, no such device.
    """
    source = find_model(name)
    config = load_config(source)
    target = find_device(device)
    with _refused(source):
        loaded: Any = ArrCocForConditionalGeneration.from_pretrained(source, config=config, output_loading_info=True)
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(f"{source}: expected weights for every part; got none for {len(missing)}, e.g. {missing[0]}")
    model.processor  # noqa: B018  refuses now, not after the work, if there is none
    return model.to(target).eval()


def find_device(name: str | None) -> torch.device:
    """The device called `name`; None: CUDA where there is one, else the CPU.

    Raises:
        ValueError: there is no such device.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device: expected one that this machine has; got {name!r} ({_line(error)})") from error
    return device


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """What loaders raise about a damaged or missing checkpoint, as a ValueError that names it."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"{name}: expected an ARR-COC checkpoint; got {_line(error)}") from error


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def writable(name: str, option: str, endings: tuple[str, ...] | None = None) -> Path:
    """The path of a file to write, checked before the work starts.

    Raises:
        ValueError: its folder does not exist, it is a folder itself, or its name has another ending than `endings`.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        raise ValueError(f"{option}: expected a file to write; got a folder: {name}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option}: expected a file in a folder that exists; got {name!r}")
    if endings is not None and path.suffix.lower() not in endings:
        raise ValueError(f"{option}: expected a name ending in {', '.join(endings)}; got {name!r}")
    return path
