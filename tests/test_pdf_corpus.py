"""The packages that hold PDFs, their pages in order, and pages drawn ahead."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_pdf import PROSE, text_at, write_pdf

from arr_coc.data import pdf_corpus
from arr_coc.data.pdf_corpus import CachedPages, cache_pages, install, pdf_packages, pdf_pages, read_pdf_page
from arr_coc.pages.splits import SPLITS


def test_each_package_has_one_split_and_a_licence() -> None:
    packages = pdf_packages()
    assert len({package.package for package in packages}) == len(packages) >= 150
    assert all(package.licence.strip() for package in packages)
    assert min(sum(package.split == split for package in packages) for split in SPLITS) >= 20
    splits = {package.package: package.split for package in pdf_packages()}
    for family in ("debian-edu-doc-", "linuxcnc-doc-", "developers-reference", "fonts-sil-"):
        assert len({split for name, split in splits.items() if name.startswith(family)}) == 1


def test_pages_alternate_between_packages_and_files(tmp_path: Path) -> None:
    names = [package.package for package in pdf_packages() if package.split == "test"][:2]
    for name, files in zip(names, (1, 4), strict=True):
        for index in range(files):
            write_pdf(tmp_path / name / f"doc/{index}.pdf", *[PROSE] * 30)
    (tmp_path / names[0] / "broken.PDF").write_text("no PDF")
    pages = pdf_pages(tmp_path, "test")
    assert len(pages) == len(set(pages)) == 5 * 24  # of each file so many at most
    first = [path for path, _ in pages[:5]]
    assert sum(names[1] in path.parts for path in first) == 3 and len(set(first)) == 4
    assert pages == pdf_pages(tmp_path, "test")
    with pytest.raises(FileNotFoundError, match=r"expected PDFs of the train split .*pdf_corpus --folder .* --install"):
        pdf_pages(tmp_path, "train")


def test_installing_keeps_pdfs_alone_and_fetches_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def run(command: list[str], *, cwd: str, check: bool, stdout: int) -> None:
        if command[0] == "apt-get":
            fetched.append(command[-1])
            return
        assert check and command[0] == "sh" and "dpkg -x some-doc_*.deb" in command[-1]
        path = write_pdf(Path(cwd) / "unpacked/usr/share/doc/some/guide.pdf", PROSE)
        path.with_name("more.pdf.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.with_name("link.pdf").symlink_to(path)
        path.with_name("copyright").write_text("free")
        (path.parent / "html").mkdir()

    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        install(["some-doc"], tmp_path / "pdfs")
    assert fetched == ["some-doc"]
    files = sorted(path for path in (tmp_path / "pdfs").rglob("*") if path.is_file())
    assert [str(path.relative_to(tmp_path)) for path in files] == [
        f"pdfs/some-doc/usr/share/doc/some/{name}.pdf" for name in ("guide", "more")
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert not any(path.name == "html" for path in (tmp_path / "pdfs").rglob("*"))


def test_pages_drawn_ahead_are_those_that_are_read(tmp_path: Path) -> None:
    red = "1 0 0 rg\n" + PROSE
    path = write_pdf(tmp_path / "page.pdf", PROSE, text_at(72, 700, "too short"), red)
    pages = [(path, page) for page in range(3)]
    folder = tmp_path / "cache"
    assert cache_pages(pages, folder, limit=1) == 1
    before = {item: item.stat().st_mtime_ns for item in folder.iterdir()}
    assert cache_pages(pages, folder, limit=9) == 2
    assert all(item.stat().st_mtime_ns == time for item, time in before.items())
    assert sorted(item.name for item in folder.glob("*.*g")) == ["000000.png", "000002.jpg"]

    cached = CachedPages(folder)
    assert len(cached) == 2
    for page, source in zip(cached, (0, 2), strict=True):
        dpi = float(np.exp(np.random.default_rng([0, source]).uniform(np.log(70), np.log(200))))
        assert page.kind == "pdf" and page.source.endswith(f"page.pdf#{source + 1}")
        anew = read_pdf_page(path, source, dpi)
        assert page.image is not None and anew.image is not None and page.size == anew.size
        assert [line.text for line in page.lines] == [line.text for line in anew.lines]
        for line, again in zip(page.lines, anew.lines, strict=True):
            np.testing.assert_allclose(line.boxes, again.boxes, atol=1e-3)
        difference = np.asarray(page.image, np.int16) - np.asarray(anew.image, np.int16)
        assert abs(difference).mean() < 3
    assert (np.asarray(cached[1].image)[..., 1] < 100).any()  # red is red
    with pytest.raises(FileNotFoundError, match="expected pages that pdf_corpus --cache or real_scans stored"):
        CachedPages(tmp_path)


def test_the_command_prints_what_fetches_and_draws_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["pdf_corpus", "--folder", str(tmp_path), *arguments])
        pdf_corpus.main()
        return capsys.readouterr().out

    printed = call("--split", "test").splitlines()
    names = [package.package for package in pdf_packages() if package.split == "test"]
    assert len(printed) == len(names) and printed[0].startswith(f"apt-get download {names[0]} && ")
    write_pdf(tmp_path / names[0] / "guide.pdf", PROSE, PROSE)
    assert call("--split", "test", "--cache", str(tmp_path / "cache")) == "2 pages\n"
    assert len(CachedPages(tmp_path / "cache")) == 2
    with pytest.raises(SystemExit):
        call("--cache", str(tmp_path / "cache"))
    assert "--cache: expected --split beside it" in capsys.readouterr().err
