"""The scripts of an experiment's folder, for its tests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def loaded_scripts(folder: Path, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The scripts by their names, in the order in which they import each other."""
    loaded = {}
    for name in names:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        loaded[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded[name])
        spec.loader.exec_module(loaded[name])
    return loaded


def called(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", [str(script.__file__), *map(str, arguments)])
    script.main()
