"""Published models by name: a folder, or a repository on the Hub."""

from typing import Any

from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

from ..loading import find_device, find_model
from ..modeling.configuration_arr_coc import ArrCocConfig
from .families import FAMILIES
from .reader import AttachedReader, attach


def load_reader(name: str | None, device: str | None = None) -> AttachedReader | None:
    """A reader attached to the published model `name`; None: it is one of our own, or none that can be read.

    Raises:
        ValueError: a model of a family that cannot be attached to, one that transformers cannot load, or no such
            device.
    """
    if name is None:
        return None
    source = find_model(name)
    try:
        model_type = AutoConfig.from_pretrained(source).model_type
    except (OSError, ValueError):
        return None  # `arr_coc.loading.load_model` says what is wrong with it
    if model_type == ArrCocConfig.model_type:
        return None
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ValueError(f"{source}: expected an ARR-COC model, or a model of type {known}; got {model_type!r}")
    target, kind = find_device(device), AutoModelForImageTextToText
    model, processor = (_loaded(part, source) for part in (kind, AutoProcessor))
    return attach(model.to(target).eval(), processor)


def _loaded(kind: Any, source: str) -> Any:
    try:
        return kind.from_pretrained(source)
    except Exception as error:  # missing packages and files, damaged weights: libraries have many kinds of errors
        line = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{source}: expected what {kind.__name__} loads; got {line}") from error
