"""A fetcher with a scorer's adapter merged in, beside the model that it comes from: another one to fetch with."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

from safetensors import safe_open
from torch import nn

from ..modeling.fetcher import RunningBackFetcher

_WEIGHTS = "adapter_model.safetensors"
_PREFIX = "base_model.model.model.fetcher.scorers."
"""What the names of a scorer's adapter begin with, as PEFT saves an adapter of a whole model."""


class _Core(nn.Module):
    """The fetcher where a whole model has it, since an adapter's names are those of the whole."""

    def __init__(self, fetcher: RunningBackFetcher) -> None:
        super().__init__()
        self.fetcher = fetcher


class _Whole(nn.Module):
    def __init__(self, fetcher: RunningBackFetcher) -> None:
        super().__init__()
        self.model = _Core(fetcher)


def adapted_fetcher(fetcher: RunningBackFetcher, adapter: Path | None) -> RunningBackFetcher:
    """The checkpoint's fetcher with an adapter merged into a copy; without an adapter the fetcher itself.

    Args:
        fetcher: the checkpoint's own, which stays as it is.
        adapter: folder of a LoRA of scorers, see `arr_coc.adapters`.

    Raises:
        ValueError: no whole adapter, one of other parts than scorers, or of another checkpoint's shapes.
    """
    if adapter is None:
        return fetcher
    with _refused(adapter), safe_open(adapter / _WEIGHTS, framework="pt") as opened:
        others = [name for name in opened.keys() if not name.startswith(_PREFIX)]  # noqa: SIM118  it is no dict
    if others:
        raise ValueError(f"{adapter}: expected an adapter of scorers alone; got {others[0]}")
    from peft import LoraConfig, PeftModel  # importing it takes a second

    with _refused(adapter):
        config = LoraConfig.from_pretrained(str(adapter))
        config.task_type = None  # there is nothing here that generates
        whole = _Whole(deepcopy(fetcher))
        merged: _Whole = PeftModel.from_pretrained(whole, str(adapter), config=config).merge_and_unload()
    return merged.model.fetcher.eval().requires_grad_(False)


@contextmanager
def _refused(adapter: Path) -> Iterator[None]:
    """Whatever loaders stumble over in a damaged or missing adapter, as a ValueError that names it."""
    try:
        yield
    except Exception as error:  # PEFT, safetensors and torch each have kinds of their own
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{adapter}: expected an adapter of this model's scorer; got {line}") from error
