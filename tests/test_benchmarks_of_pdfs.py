"""Drawn PDFs in benchmarks/: pages show what the manifest says, and layers say it too, or lie as they are meant to."""

import csv
import re
import unicodedata
from dataclasses import replace

import numpy as np
import pypdfium2
import pytest
from PIL import Image

from arr_coc.data.pdf_corpus import pdf_packages
from benchmarks import pdf_pages
from benchmarks.lying_layers import KINDS, LIARS
from benchmarks.lying_layers import MANIFEST as LAYERS
from benchmarks.pdf_designs import drawn
from benchmarks.pdf_drawing import SHEETS, Document, Spec, read_manifest


def first_two(specs: list[Spec]) -> list[Spec]:
    """The first two documents of each kind."""
    return [
        spec
        for kind in dict.fromkeys(each.kind for each in specs)
        for spec in [each for each in specs if each.kind == kind][:2]
    ]


PAGES, LAYERED = read_manifest(pdf_pages.MANIFEST), read_manifest(LAYERS)


def layer(pdf: bytes) -> list[str]:
    """The words of a file's text layer; a hyphen at the end of a line as printed, ligatures split."""
    document = pypdfium2.PdfDocument(pdf)
    text = " ".join(document[page].get_textpage().get_text_range() for page in range(len(document)))
    return unicodedata.normalize("NFKC", re.sub("[\u00ad\u0002\ufffe]", "-", text)).split()


def flat(document: Document) -> list[str]:
    """The visible words of all pages."""
    return [word.replace("\u00ad", "-") for page in document.visible for word in page]


def share(words: list[str], among: list[str]) -> float:
    """The share of `words` that are among others."""
    return sum(word in set(among) for word in words) / len(words)


def seen(pdf: bytes, scale: float = 1.0) -> Image.Image:
    """The first page, as a reader of PDFs shows it."""
    document = pypdfium2.PdfDocument(pdf)
    document.init_forms()
    return document[0].render(scale=scale).to_pil().convert("L")


@pytest.mark.parametrize("spec", first_two(PAGES), ids=lambda spec: spec.name)
def test_the_layer_of_a_drawn_document_says_what_it_shows(spec: Spec) -> None:
    document = drawn(spec)
    assert document.checksum == spec.checksum and document.pdf == drawn(spec).pdf
    words, visible = layer(document.pdf), flat(document)
    assert len(document.questions) == len({question for question, _ in document.questions}) == 3
    for _, answer in document.questions:
        assert all(word in visible for word in answer.split())
    if spec.design == "form":  # a value is text of its field
        assert 0.3 < share(visible, words) < 0.9
        assert all(share([max(answer.split(), key=len)], words) == 0 for _, answer in document.questions)
        assert all(answer.encode("latin-1") in document.pdf for _, answer in document.questions)
    else:
        assert share(visible, words) > (0.93 if spec.design == "columns" else 0.99)  # words that are broken are joined
    page = seen(document.pdf)
    assert page.size == pytest.approx(SHEETS[spec.sheet], abs=1)
    ink = np.asarray(page) < 128
    assert ink[30:46, 44:120].any() and not ink[-30:].any()  # upright: the title is at the top


@pytest.mark.parametrize("spec", first_two(LAYERED), ids=lambda spec: spec.name)
def test_layers_lie_as_they_are_meant_to_and_pages_show_the_truth(spec: Spec) -> None:
    document = KINDS[spec.kind](spec)
    assert document.checksum == spec.checksum
    words, visible, honest = layer(document.pdf), flat(document), drawn(replace(spec, variant="", crop=""))
    assert visible == flat(honest)
    shown, true, other = (
        np.asarray(seen(pdf).resize((200, 200)), dtype=float).ravel()
        for pdf in (document.pdf, honest.pdf, drawn(replace(spec, variant="", crop="", seed=spec.seed + 1)).pdf)
    )
    likeness = np.corrcoef(shown, true)[0, 1]
    assert likeness > 0.5 and likeness > np.corrcoef(shown, other)[0, 1] + 0.1
    if spec.kind in LIARS:
        assert share(document.false, words) > 0.85 and share(document.false, visible) == 0
    elif spec.kind == "honest-scan" or spec.design != "form":
        assert share(visible, words) > 0.97 and document.false == []
    numbers = [word for word in visible if sum(map(str.isdigit, word)) > 3]
    if spec.kind in ("unicode", "other-page", "altered"):
        assert share(numbers, words) < 0.2
    elif spec.kind == "white" and spec.variant == "beside":
        np.testing.assert_array_equal(shown, true)


def test_manifests_fix_what_is_measured() -> None:
    assert len(PAGES) == len({spec.name for spec in PAGES}) == 60
    assert {spec.size for spec in PAGES} == {6, 7, 8, 9, 10, 11}
    assert {spec.rotate for spec in PAGES} == {0, 90, 180, 270}
    liars = [spec for spec in LAYERED if spec.kind in LIARS]
    assert len(liars) == 50 and len(LAYERED) == 100
    for kind in LIARS:
        parts = [[spec for spec in liars if spec.kind == kind and spec.held_out == mark] for mark in ("yes", "")]
        assert [len(part) for part in parts] == [5, 5]
        held_out, looked_at = ({(spec.font, spec.locale) for spec in part} for part in parts)
        assert not {font for font, _ in held_out} & {font for font, _ in looked_at}
    seeds = [spec.seed for spec in (*PAGES, *LAYERED)]
    assert len(set(seeds)) == len(seeds)
    with pdf_pages.DEBIAN.open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    tested = {package.package for package in pdf_packages() if package.split == "test"}
    assert len({(row["package"], row["file"], row["page"]) for row in rows}) == 40
    assert {row["package"] for row in rows} <= tested
