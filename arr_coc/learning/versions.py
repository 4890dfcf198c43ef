"""Versions of the scorer: a folder of adapters, the version in use, and a fetcher with an adapter merged in.

FOLDER/v0001/ holds an adapter as PEFT saves it, with `DECISION` beside it. FOLDER/current.json names the version in use
and the one before. Both are written atomically, so servers can read them at any time.
"""

import re
import shutil
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn

from ..files import check_types, fresh_folder, read_json, sole_writer, write_json
from ..loading import refused
from ..modeling.fetcher import RunningBackFetcher

CHECKPOINT = "checkpoint"  # the version without an adapter: the checkpoint's scorer
DECISION = "decision.json"  # file beside an adapter with the measurements that led to its promotion
_CURRENT = "current.json"
_VERSION = re.compile(r"v\d{4,}")


@dataclass(frozen=True)
class Current:
    """The version in use, and the one to roll back to (None: no rollback is possible)."""

    version: str = CHECKPOINT
    previous: str | None = None


class Versions:
    """The versions in a folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def current(self) -> Current:
        """The version in use. Raises ValueError: its file is damaged, or names a version that does not exist."""
        path = self.folder / _CURRENT
        if not path.exists():
            return Current()
        content = read_json(path)
        try:
            current = Current(**content)
            check_types(current)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: expected version and previous; got {content}") from error
        for version in (current.version, current.previous or CHECKPOINT):
            self.adapter(version)
        return current

    def adapter(self, version: str) -> Path | None:
        """The folder of a version's adapter; None for the checkpoint's own scorer. Raises ValueError: the version does
        not exist."""
        if version == CHECKPOINT:
            return None
        folder = self.folder / version
        if not (_VERSION.fullmatch(version) and folder.is_dir()):
            raise ValueError(f"version: expected one of {', '.join(self.names())}; got {version!r}")
        return folder

    def names(self) -> list[str]:
        """All versions, the checkpoint's first."""
        adapters = [path.name for path in self.folder.glob("v*") if _VERSION.fullmatch(path.name)]
        return [CHECKPOINT, *sorted(adapters, key=lambda name: int(name[1:]))]

    def promote(self, adapter: Path, decision: dict[str, Any]) -> str:
        """Adds an adapter as a new version and puts it into use; returns its name. Raises ValueError: another process
        is promoting a version."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with sole_writer(self.folder):
            last = self.names()[-1]
            version = f"v{1 if last == CHECKPOINT else int(last[1:]) + 1:04d}"
            with fresh_folder(self.folder / version) as beside:
                for path in adapter.iterdir():
                    shutil.copyfile(path, beside / path.name)
                write_json(beside / DECISION, decision)
            self._use(Current(version, self.current().version))
        return version

    def step_back(self) -> str:
        """Rolls back to the previous version; returns its name. One step is possible until the next promotion. Raises
        ValueError: there is no previous version."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with sole_writer(self.folder):
            current = self.current()
            if current.previous is None:
                raise ValueError(f"{self.folder}: expected a version before {current.version}; got none")
            self._use(Current(current.previous))
        return current.previous

    def _use(self, current: Current) -> None:
        write_json(self.folder / _CURRENT, asdict(current))


_WEIGHTS = "adapter_model.safetensors"
_EXPECTED = "an adapter of this model's scorer"
_PREFIX = "base_model.model.model.fetcher.scorers."
"""Prefix of the weight names in a scorer's adapter, as PEFT saves an adapter of a whole model."""


def adapted_fetcher(fetcher: RunningBackFetcher, adapter: Path | None) -> RunningBackFetcher:
    """The checkpoint's fetcher with an adapter merged into a copy; without an adapter the fetcher itself.

    Args:
        fetcher: the checkpoint's fetcher, which does not change.
        adapter: folder of a LoRA of scorers, see `arr_coc.adapters`.

    Raises:
        ValueError: the adapter is incomplete, adapts other parts than scorers, or has another checkpoint's shapes.
    """
    if adapter is None:
        return fetcher
    with refused(str(adapter), _EXPECTED), safe_open(adapter / _WEIGHTS, framework="pt") as opened:
        others = [name for name in opened.keys() if not name.startswith(_PREFIX)]  # noqa: SIM118  not a dict
    if others:
        raise ValueError(f"{adapter}: expected an adapter of scorers alone; got {others[0]}")
    from peft import LoraConfig, PeftModel  # importing it takes a second

    with refused(str(adapter), _EXPECTED):
        config = LoraConfig.from_pretrained(str(adapter))
        config.task_type = None  # the wrapped module cannot generate
        # The names of an adapter are those of a whole model.
        whole = nn.ModuleDict({"model": nn.ModuleDict({"fetcher": deepcopy(fetcher)})})
        merged: Any = PeftModel.from_pretrained(whole, str(adapter), config=config).merge_and_unload()
    return merged["model"]["fetcher"].eval().requires_grad_(False)
