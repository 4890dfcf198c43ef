"""The hook that sees everything that a log is about to keep, before it is written.

A function of an operator's own: from an `Example` or a `Feedback` it returns that, another with less in it
(`dataclasses.replace`), or None to keep nothing. Where it raises, nothing is kept.
"""

import importlib
from collections.abc import Callable
from typing import TypeVar

from ..data.feedback import Feedback
from .example import Example

Kept = TypeVar("Kept", Example, Feedback)
Hook = Callable[[Kept], Kept | None]


def load_hook(name: str | None) -> Hook:
    """The function called "MODULE:FUNCTION"; None: one that changes nothing.

    Raises:
        ValueError: there is no such function.
    """
    if name is None:
        return lambda kept: kept
    module, _, function = name.partition(":")
    try:
        hook = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"redact: expected MODULE:FUNCTION; got {name!r} ({error})") from error
    if not callable(hook):
        raise ValueError(f"redact: expected MODULE:FUNCTION; got {name!r}, which is no function")
    return hook
