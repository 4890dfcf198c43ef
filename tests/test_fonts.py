"""Font families: what is held out stays held out, also under another name."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fontTools.ttLib import TTFont

from arr_coc.pages import font_packages, fonts
from arr_coc.pages.domains.rasterising import CHARSET
from arr_coc.pages.font_packages import install_commands
from arr_coc.pages.fonts import FONT_PATH, FontFace, family_names, find_fonts, font_directories, pip_font_directories
from arr_coc.pages.splits import SPLITS, Split
from benchmarks.font_likeness import LIMIT, letter_shapes, likenesses, plainest_faces

HELD_OUT = """Lato, Roboto, Open Sans, FreeSans, FreeSerif, FreeMono, Liberation Serif, Tinos, Noto Sans, Noto Serif,
    Ubuntu, Comic Neue, Roboto Condensed, Inconsolata, Linux Libertine O, Linux Biolinum O, Fira Code,
    Cantarell, Carlito, Caladea, Nimbus Sans, Nimbus Roman, Nimbus Mono PS, C059, P052, URW Gothic, URW Bookman,
    Cabin, Noto Sans Mono, Ubuntu Mono, Source Sans 3, Crimson Text"""
UNDER_OTHER_NAMES = """Assistant, Cambo, Source Sans Pro, Heebo, Hind, Garuda, Doulos SIL, Galatia SIL, Norasi, STIX,
    STIXGeneral, STIX Math, Scheherazade New, Tlwg Mono, Tlwg Typewriter, Tribun ADF Std, IndUni-C, IndUni-H, IndUni-N,
    IndUni-P, IndUni-T, Nimbus Sans Narrow, Linux Libertine Display O, TeX Gyre Heros, TeX Gyre Termes, TeX Gyre
    Cursor, TeX Gyre Schola, TeX Gyre Pagella, TeX Gyre Adventor, TeX Gyre Bonum, Open Sans Condensed, Droid
    Sans, Roboto Flex, Cairo, Barlow Semi Condensed, IBM Plex Sans Arabic, PT Sans Narrow, PT Sans Caption, PT
    Serif Caption, Arimo, Cousine, Hack, Ubuntu Title, Cabin Sketch, Fira Sans, Crimson Pro"""
"""Clones and close kin of families that are held out, or (Arimo, Cousine, Hack) of training's own."""


def listed(text: str) -> set[str]:
    return {" ".join(name.split()) for name in text.split(",")}


def test_each_family_is_in_one_split_with_a_licence_and_a_package() -> None:
    names = [family.name for family in fonts.font_families()]
    assert len(set(names)) == len(names)
    assert len(family_names("train")) >= 150 and len(family_names("validation")) >= 15
    assert sum(len(family_names(split)) for split in SPLITS) == len(names), "rows of no split"
    assert listed(HELD_OUT) == family_names("test")
    shown = family_names("train") | family_names("validation")
    assert not listed(UNDER_OTHER_NAMES) & shown
    assert not [name for name in shown if name.startswith(("Noto", "Roboto", "Ubuntu", "Open Sans", "Lato"))]
    for family in fonts.font_families():
        assert family.licence, family
        assert re.fullmatch(r"debian:fonts-[a-z0-9.-]+|npm:@[\w.-]+/[\w.-]+@[\d.]+|", family.package), family
    assert [family.name for family in fonts.font_families() if not family.package] == ["Ubuntu Mono"]


def test_install_commands_name_every_package_once() -> None:
    debian, npm = install_commands()
    assert debian[:2] == ["apt-get", "install"] and "fonts-lato" in debian and len(set(debian)) == len(debian)
    assert npm[:2] == ["npm", "install"] and len(set(npm)) == len(npm)
    packages = {family.package.partition(":")[2] for family in fonts.font_families()} - {""}
    assert packages <= {*debian, *npm}
    assert "fonts-lato" not in install_commands(["validation"])[0]


def test_the_commands_are_printed_and_run_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(font_packages.subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["font_packages", "--split", "test"])
    font_packages.main()
    assert capsys.readouterr().out.startswith("apt-get install -y ") and not commands and not list(tmp_path.iterdir())
    monkeypatch.setattr("sys.argv", ["font_packages", "--install"])
    font_packages.main()
    assert commands == install_commands() and (tmp_path / ".local/share/fonts/arr_coc").is_dir()


@pytest.mark.parametrize("split", SPLITS)
def test_installed_faces_are_of_their_split_of_usual_weight_and_have_every_character(split: Split) -> None:
    for face in find_fonts(split):
        assert face.family in family_names(split)
        assert face.family == "URW Bookman" or not re.search("light|thin|black|hairline", face.style.lower())
    for face in find_fonts(split):
        with TTFont(face.path, lazy=True, fontNumber=0) as font:
            characters = font.getBestCmap()
        assert not [char for char in f"{CHARSET} " if ord(char) not in characters], face


@pytest.mark.slow
def test_no_installed_family_is_one_of_another_split_under_another_name() -> None:
    plain = {split: plainest_faces(find_fonts(split)) for split in SPLITS}
    for left, right in (("train", "validation"), ("train", "test"), ("validation", "test")):
        for row, column in np.argwhere(likenesses(plain[left], plain[right]) >= LIMIT):
            pytest.fail(
                f"{plain[left][row].family} ({left}) has the letters of {plain[right][column].family} ({right})"
            )


def narrowed(face: FontFace, path: Path) -> FontFace:
    """A copy of a TrueType face with letters of four fifths of the width."""
    with TTFont(face.path) as font:
        for name in font.getGlyphOrder():
            glyph = font["glyf"][name]
            if glyph.numberOfContours > 0:
                glyph.coordinates.scale((0.8, 1.0))
        font.save(path)
    return replace(face, path=str(path))


def test_likeness_sees_a_face_under_other_widths_and_not_another_design(tmp_path: Path) -> None:
    """Else the test above could not fail."""
    faces = {face.family: face for face in plainest_faces(find_fonts("train"))}
    plain, serif = faces["DejaVu Sans"], faces["DejaVu Serif"]
    assert np.isclose(letter_shapes(plain) @ letter_shapes(plain), 1.0)
    assert likenesses([plain], [narrowed(plain, tmp_path / "narrow.ttf")])[0, 0] > LIMIT
    assert likenesses([plain], [serif])[0, 0] < 0.9


def test_what_pip_brings_has_faces_of_every_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests need no others: matplotlib and rendercv-fonts come with the extra `test`."""
    monkeypatch.setenv(FONT_PATH, os.pathsep.join(map(str, pip_font_directories())))
    families = {split: {face.family for face in find_fonts(split)} for split in SPLITS}
    assert families["train"] >= {"DejaVu Sans", "DejaVu Sans Mono", "DejaVu Serif"}
    assert families["validation"] == {"EB Garamond"}
    assert families["test"] >= {"Lato", "Open Sans", "Roboto"}


def test_files_that_are_no_font_of_a_family_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"not a font")
    monkeypatch.setenv(FONT_PATH, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="python -m arr_coc.pages.font_packages --install"):
        find_fonts("validation")
    with pytest.raises(ValueError, match="split: expected one of train, validation, test; got 'dev'"):
        find_fonts("dev")  # type: ignore[arg-type]
    monkeypatch.delenv(FONT_PATH, raising=False)
    assert font_directories()[0] == Path("/usr/share/fonts") and font_directories()[-2:] == pip_font_directories()
    folders = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv(FONT_PATH, os.pathsep.join(map(str, folders)))
    assert font_directories() == folders
    monkeypatch.setenv(FONT_PATH, "")
    assert font_directories() == ()
    with pytest.raises(FileNotFoundError, match=r"got none in no folder \(ARR_COC_FONT_PATH is empty\)"):
        find_fonts("train")
