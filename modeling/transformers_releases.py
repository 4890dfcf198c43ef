"""Code for releases of transformers before 5.24.

Before 5.24 the key/value cache, now `cache`, is called `past_key_values`. Once 5.23 is not supported, `CACHE` is
"cache", `CacheOutput` is `ModelOutput`, and `by_either_name` is transformers' `deprecate_kwarg`.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import ModelOutput

Function = TypeVar("Function", bound=Callable[..., Any])

OLD_NAME = "past_key_values"
CACHE = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else OLD_NAME
"""The name of the cache in the installed release: in language models, their outputs, and `generate`."""


if CACHE == "cache":
    CacheOutput = ModelOutput
else:

    class CacheOutput(ModelOutput):  # type: ignore[no-redef]
        """An output with a field `cache`, which can also be read by its older name, as in any `ModelOutput` from
        5.24 on."""

        cache: Any

        @property
        def past_key_values(self) -> Any:
            return self.cache

        def __contains__(self, key: object) -> bool:
            return super().__contains__("cache" if key == OLD_NAME else key)

        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__("cache" if key == OLD_NAME else key)

        def get(self, key: str, default: Any = None) -> Any:
            return super().get("cache" if key == OLD_NAME else key, default)


def by_either_name(function: Function) -> Function:
    """Accepts `cache` by its older name, too; from 5.24 on with transformers' own warning."""
    if CACHE == "cache":
        return deprecate_kwarg(OLD_NAME, "5.40.0", new_name=CACHE)(function)

    @wraps(function)
    def renaming(*args: Any, **kwargs: Any) -> Any:
        if OLD_NAME in kwargs:
            kwargs["cache"] = kwargs.pop(OLD_NAME)
        return function(*args, **kwargs)

    # `generate` checks by its name whether `forward` takes it.
    signature = inspect.signature(function)
    *named, last = signature.parameters.values()
    older = inspect.Parameter(OLD_NAME, inspect.Parameter.KEYWORD_ONLY, default=None)
    vars(renaming)["__signature__"] = signature.replace(parameters=[*named, older, last])
    return renaming  # type: ignore[return-value]
