"""How a recipe's trained model is written: in which type, in files of what size."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from huggingface_hub import split_torch_state_dict_into_shards

from ..files import check_types
from ..loading import DTYPES
from .from_scratch.checkpointing import save_learner
from .reader.adapter import save_adapter
from .stages import Run


@dataclass(frozen=True)
class Saving:
    """What a recipe says of its trained model's files.

    Attributes:
        dtype: of weights and of what only training uses, a name in `DTYPES`; None: as they were trained.
        max_shard_size: of a file of weights, bytes or text such as "16MB".

    Raises:
        ValueError: a type that is none of these, or a size that says nothing.
    """

    dtype: str | None = None
    max_shard_size: int | str = "5GB"

    def __post_init__(self) -> None:
        check_types(self)
        if self.dtype not in (None, *DTYPES):
            raise ValueError(f"saved.dtype: expected one of {', '.join(DTYPES)}; got {self.dtype!r}")
        try:
            split_torch_state_dict_into_shards({}, max_shard_size=self.max_shard_size)
        except ValueError as error:
            expected = 'bytes, or text such as "16MB"'
            raise ValueError(f"saved.max_shard_size: expected {expected}; got {self.max_shard_size!r}") from error

    @classmethod
    def told(cls, settings: Mapping[str, Any]) -> "Saving":
        """What a recipe's `saved` says.

        Raises:
            ValueError: settings that there are not.
        """
        known = [setting.name for setting in fields(cls)]
        if unknown := sorted(map(str, set(settings) - set(known))):
            raise ValueError(f"saved: expected settings among {', '.join(known)}; got {', '.join(unknown)}")
        return cls(**settings)

    def write(self, run: Run, folder: Path) -> None:
        """Writes weights, configuration, processor, and what training the model further needs; the run's are cast."""
        dtype = None if self.dtype is None else DTYPES[self.dtype]
        if dtype is not None:
            run.model.to(dtype)  # type: ignore[arg-type]  # transformers wraps `to` and loses its types
        run.model.save_pretrained(folder, max_shard_size=self.max_shard_size)
        run.processor.save_pretrained(folder)
        if adapter := run.learner.get("adapter"):
            save_adapter({name: weight.to(dtype or weight.dtype) for name, weight in adapter.items()}, folder)
        if run.learner:
            states = {
                part: {name: weight.to(dtype) if weight.is_floating_point() else weight for name, weight in own.items()}
                for part, own in run.learner.items()
            }
            save_learner(states, folder)
