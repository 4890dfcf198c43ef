"""Folders are replaced whole: what was there stays until the new one is in its place."""

import os
from pathlib import Path
from typing import Any

import pytest

from arr_coc.files import replace_folder


def folder_of(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    out = folder_of(tmp_path / "out", "old")
    replace_folder(folder_of(tmp_path / "beside", "new"), out)
    assert (out / "file").read_text() == "new" and list(tmp_path.iterdir()) == [out]


def test_the_old_folder_stays_where_the_new_one_cannot_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training deleted a phase's model before it moved the new one into place."""
    out, beside = folder_of(tmp_path / "out", "old"), folder_of(tmp_path / "beside", "new")
    move = os.replace

    def replace(source: Any, target: Any) -> None:
        if Path(source) == beside:
            raise PermissionError(source)
        move(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "rename", replace)
    with pytest.raises(PermissionError):
        replace_folder(beside, out)
    assert (out / "file").read_text() == "old"
