"""Versions of the scorer: a folder of adapters, and which of them is in use.

FOLDER/v0001/ holds an adapter as PEFT saves it, `DECISION` beside it; FOLDER/current.json says which version is in use
and which was before. Both appear whole or not at all, so servers may read them at any time.
"""

import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files import fresh_folder, read_json, write_json
from ..locks import sole_writer
from ..settings import check_types

CHECKPOINT = "checkpoint"
"""The version that is no adapter: the scorer as the checkpoint has it."""

DECISION = "decision.json"
"""File beside an adapter: what was measured before it was promoted."""

_CURRENT = "current.json"
_VERSION = re.compile(r"v\d{4,}")


@dataclass(frozen=True)
class Current:
    """Which version is in use, and which one a step back leads to (None: there is no step back)."""

    version: str = CHECKPOINT
    previous: str | None = None


class Versions:
    """The versions in a folder, which need not be there yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def current(self) -> Current:
        """What is in use.

        Raises:
            ValueError: the file that says so is damaged, or names a version that is not there.
        """
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
        """The folder of a version's adapter; None for the checkpoint's own scorer.

        Raises:
            ValueError: there is no such version.
        """
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
        """Takes an adapter in as a new version and puts it into use; returns its name.

        Raises:
            ValueError: another process promotes just now.
        """
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
        """Puts the version before into use again; returns its name. There is one step, until another is promoted.

        Raises:
            ValueError: there is none before.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with sole_writer(self.folder):
            current = self.current()
            if current.previous is None:
                raise ValueError(f"{self.folder}: expected a version before {current.version}; got none")
            self._use(Current(current.previous))
        return current.previous

    def _use(self, current: Current) -> None:
        write_json(self.folder / _CURRENT, asdict(current))
