"""Drawn pages with text and questions: what the reader is trained on, and the domains that `arr-coc render` draws."""

from importlib import import_module
from typing import Any


def generating(name: str = "generator") -> Any:
    """The module `arr_coc.pages.NAME`; ValueError without the packages of the extra "train", whose words it uses."""
    try:
        return import_module(f"arr_coc.pages.{name}")
    except ImportError as error:
        expected = 'the packages of generated pages (pip install "arr-coc[train]")'
        raise ValueError(f"pages: expected {expected}; got {error}") from error
