"""Documents: PDFs, image files of several pages and videos are sources page by page; what cannot be read says so."""

import gzip
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from io import BytesIO
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from helpers import LARGE_TEXT, READS_WORDS, drawn, reads, refuses, tiny_model
from PIL import Image
from tiny_pdf import PASSWORD, PROSE, locked, page, paged, pdf_of, text_at, write_form, write_pdf

from arr_coc.data import pdf_corpus
from arr_coc.data.pdf_corpus import (
    CachedPages,
    cache_pages,
    install,
    is_readable,
    pdf_packages,
    pdf_pages,
    read_pdf_page,
)
from arr_coc.modeling.budgets import ViewOptions
from arr_coc.modeling.documents import MissingPackage, open_document
from arr_coc.modeling.image_loading import Encoded, load_source
from arr_coc.pages.page import UNKNOWN, TextPage
from arr_coc.pages.splits import SPLITS

LIMITS = ViewOptions(dpi=72, max_pages=5, fps=1.0, max_frames=4)
QUESTION = "What is the total?"


def video(frames: int = 6, rate: int = 2, first: int = 0, kind: str = "mp4") -> bytes:
    """A video whose timestamps begin with the frame numbered `first`."""
    stream = BytesIO()
    with av.open(stream, "w", format=kind) as container:
        track = container.add_stream("mpeg4", rate=rate)
        track.width, track.height, track.pix_fmt = 128, 96, "yuv420p"
        for number in range(frames):
            frame = av.VideoFrame.from_image(page(number % 3, (128, 96)))
            frame.pts, frame.time_base = first + number, Fraction(1, rate)
            for packet in track.encode(frame):
                container.mux(packet)
        for packet in track.encode():
            container.mux(packet)
    return stream.getvalue()


def opened(content: bytes, limits: ViewOptions = LIMITS, **options: Any) -> list[Any]:
    encoded = load_source(content, **options)
    assert isinstance(encoded, Encoded)
    return open_document(encoded, limits, 1_000_000)


def test_what_is_filled_in_on_a_form_is_drawn(tmp_path: Path) -> None:
    (form,) = opened(write_form(tmp_path / "form.pdf", "4711.50").read_bytes())
    field = np.asarray(form.load().convert("L"))[36:54, 81:199]  # 72 dpi: 1 px is 1 pt
    assert (field < 128).sum() > 50 and (field < 128).sum(0).nonzero()[0].max() < 70


@pytest.mark.parametrize("kind", ["PDF", "TIFF", "GIF"])
@pytest.mark.versions
def test_pages_are_sources_in_order(kind: str) -> None:
    sources = opened(paged(kind))
    assert [(source.page, source.height, source.width) for source in sources] == [(n, 160, 120) for n in (1, 2, 3)]
    for number in (2, 0, 1):  # in any order, and again
        pixels = sources[number].load()
        assert pixels.mode == "RGB" and pixels.size == (120, 160)
        assert [sum(pixels.getpixel((30, 17 + 20 * at))) < 100 for at in range(3)] == [at == number for at in range(3)]


@pytest.mark.versions
def test_frames_are_sources_at_their_seconds() -> None:
    sources = opened(video(frames=12))
    assert [source.second for source in sources] == [0.0, 1.5, 3.0, 4.5]  # 6 s: `max_frames` of them, evenly
    assert opened(video(frames=6), ViewOptions(dpi=72, max_pages=5, fps=2.0))[3].second == 1.5
    dark = [sum(sources[0].load().getpixel((30, 17 + 20 * at))) < 200 for at in range(3)]
    assert dark == [True, False, False] and [sum(sources[1].load().getpixel((30, 17))) < 200] == [True]
    # Of a clip cut out of a longer one the first frame came again and again.
    plain, cut = opened(video(frames=12)), opened(video(frames=12, first=40))
    assert [source.second for source in cut] == [source.second for source in plain]
    for one, other in zip(cut, plain, strict=True):
        # Two encodings of the same frames may differ by some grey; another bar differs in hundreds of pixels.
        assert (np.abs(np.asarray(one.load(), int) - np.asarray(other.load(), int)) > 64).sum() < 30


def test_a_clip_that_is_to_be_turned_is_upright() -> None:
    """As phones write what they film upright: frames lie on their side, and the track's matrix turns them."""
    content = bytearray(video())
    matrix = content.index(b"tkhd") + 44
    assert struct.unpack_from(">9i", content, matrix) == (65536, 0, 0, 0, 65536, 0, 0, 0, 2**30)
    struct.pack_into(">9i", content, matrix, 0, 65536, 0, -65536, 0, 0, 96 << 16, 0, 2**30)
    source, lying = opened(bytes(content))[0], opened(video())[0].load()
    assert (source.height, source.width) == (128, 96)
    turned = np.asarray(lying.transpose(Image.Transpose.ROTATE_270), float)
    assert np.abs(np.asarray(source.load(), float) - turned).mean() < 1


@pytest.mark.parametrize(("reads_words", "tiles"), [(False, "auto"), (False, "never"), (True, "never")])
def test_a_blank_page_is_named_by_its_answer(monkeypatch: pytest.MonkeyPatch, reads_words: bool, tiles: str) -> None:
    """A document with a blank page was said to make any answer a guess, whatever page it came from."""
    warned: list[str] = []
    monkeypatch.setattr("arr_coc.modeling.image_processing_arr_coc.logger.warning_once", warned.append)
    model = reads(tiny_model(**READS_WORDS), 1, 1) if reads_words else tiny_model()
    box, paper = (10, 10, 60, 60), Image.new("RGB", (420, 430), "white")
    for blank, count in ((0, 2), (1, 2), (1, 3), (2, 3)):
        written, pages = BytesIO(), [paper if page == blank else drawn(420, 430) for page in range(count)]
        pages[0].save(written, "TIFF", save_all=True, append_images=pages[1:])
        seen = model.encode_image(written.getvalue(), tiles=tiles)
        if reads_words:  # this reader finds characters everywhere
            seen.characters[blank], seen.pieces[blank] = 0, -1
        for asked in range(count):
            boxes = [[box] if asked == each else [] for each in range(count)]
            answer = model.generate(seen, QUESTION, strategy="oracle", boxes=boxes, return_fetch=True)
            named = f"the model finds nothing on page {asked + 1}, where this answer comes from: it is a guess"
            assert (named in answer.warning) == (asked == blank), (blank, asked, answer.warning)
    assert not warned
    model.generate(Image.new("RGB", (420, 430), "white"), QUESTION, tiles=tiles)
    assert len(warned) == 1


def encrypted() -> bytes:
    """A PDF that asks for a password: a standard security handler whose keys no empty password gives."""
    keys = f"/O <{'11' * 32}> /U <{'22' * 32}>"
    parts = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [] /Count 0 >>",
        f"<< /Filter /Standard /V 1 /R 2 /Length 40 /P -4 {keys} >>",
    ]
    return pdf_of(parts, "/Encrypt 3 0 R /ID [<00><00>]")


def test_an_encrypted_pdf_opens_with_its_password_which_stays_nowhere(tmp_path: Path) -> None:
    path, saved, model = locked(tmp_path / "locked.pdf"), tmp_path / "seen.safetensors", tiny_model()
    plain = opened(path.read_bytes(), password=PASSWORD)
    assert [np.asarray(source.load()).min() < 99 for source in plain] == [True]
    said = model.generate(path, QUESTION, password=PASSWORD)
    seen = model.encode_image([path], password=PASSWORD)
    inputs = model.processor(path, model.processor.prompt(QUESTION), return_tensors="pt", password=PASSWORD)
    assert model.generate(seen, QUESTION) == said and "image_sources" in inputs
    assert model.extract(path, "total", password=PASSWORD).keys() == {"total"}
    seen.save(saved, model)
    assert PASSWORD not in repr(load_source(path, password=PASSWORD)) and PASSWORD.encode() not in saved.read_bytes()
    for wrong, message in (("open", "got another"), (3, "password: expected a string"), (None, "got none")):
        refuses(message, model.generate, path, QUESTION, password=wrong)
    refuses("beside an image that is not encoded; got an encoding", model.generate, seen, QUESTION, password=PASSWORD)


def of_pages(*boxes: tuple[int, int]) -> bytes:
    kids = " ".join(f"{number + 3} 0 R" for number in range(len(boxes)))
    parts = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(boxes)} >>"]
    parts += [f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {width} {height}] >>" for width, height in boxes]
    return pdf_of(parts)


def of_a_missing_page() -> bytes:
    parts = ["<< /Type /Catalog /Pages 2 0 R >>", "<< /Type /Pages /Kids [3 0 R 9 0 R] /Count 2 >>"]
    return pdf_of([*parts, "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] >>"])


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "an encrypted PDF": (encrypted, "password=, or --password-file of ask and extract); got none"),
    "a broken PDF": (lambda: b"%PDF-1.4\nnothing", "expected a PDF that can be opened; got a broken or empty one"),
    "a PDF without pages": (of_pages, "bytes: expected a PDF that can be opened; got a broken or empty one"),
    "a PDF without its second page": (of_a_missing_page, "bytes: expected page 2 of the PDF to be whole; got a broken"),
    "a PDF of many pages": (lambda: of_pages(*[(9, 9)] * 6), "bytes: expected 1 to 5 pages (max_pages); got 6"),
    "a page of 10^5 px": (lambda: of_pages((10**5, 9)), "bytes, page 1: expected sides of at most"),
    "a large second page": (lambda: of_pages((9, 9), (2000, 2000)), "bytes, page 2: expected at most 1000000 pixels"),
    "a GIF of many pages": (lambda: paged("GIF", 6), "bytes: expected 1 to 5 pages (max_pages); got 6"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_says_so_in_one_line(case: str) -> None:
    content, message = BAD[case]
    refuses(re.escape(message), lambda: opened(content()))


def test_broken_videos_and_packages_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    content = video()
    for broken in (content[:40], content[:8] + b"\0" * 400, video(kind="avi").replace(b"FMP4", b"zzzz")):
        refuses("bytes: expected a ", opened, broken)

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("arr_coc.modeling.documents.import_module", missing)
    with pytest.raises(
        MissingPackage, match=r'bytes: expected pypdfium2 to read it \(pip install "arr-coc\[documents\]"\)'
    ):
        opened(of_pages((9, 9)))


@pytest.mark.parametrize("kind", ["PDF", "TIFF", "video"])
def test_a_document_is_asked_like_an_image(kind: str) -> None:
    model = tiny_model(text=LARGE_TEXT)
    content = video() if kind == "video" else paged(kind)
    answer = model.generate(content, QUESTION, budget=20, return_fetch=True)
    assert int(answer.fetch.counts.sum()) == 20 and len(answer.fetch.counts) == 3
    encoding = model.encode_image(content)
    assert model.generate(encoding, [QUESTION, "Who?"], budget=20)[0] == answer.text
    assert model.generate([content, content], [QUESTION, "Who?"], budget=20)[0] == answer.text


def test_documents_keep_pages_and_seconds_beside_images() -> None:
    """A video that was joined with an image had no seconds in its prompt."""
    model = tiny_model(text=LARGE_TEXT)
    frames, image = model.encode_image(video(), fps=1.0), model.encode_image(Image.new("RGB", (60, 40)))
    assert [source.second for source in frames.join(image).sources] == [0.0, 1.0, 2.0, None]
    assert [source.page for source in image.join(model.encode_image(paged("TIFF"))).sources] == [None, 1, 2, 3]
    model = tiny_model(text=LARGE_TEXT)
    seen: dict[str, Any] = {}
    select_slots = model.model.select_slots
    model.model.select_slots = lambda **kwargs: seen.update(kwargs) or select_slots(**kwargs)
    model.generate(video(), QUESTION, fps=1.0)
    ids, mask, tokenizer = seen["input_ids"][0], seen["query_mask"][0], model.processor.tokenizer
    assert tokenizer.decode(ids[mask]) == QUESTION
    shown = tokenizer.decode(ids)
    assert "0 s <|vision_start|>" in shown and "1 s <|vision_start|>" in shown and "2 s <|vision_start|>" in shown


def test_a_scan_keeps_its_pixels_or_is_reduced_without_loss() -> None:
    """595.2 points are a float that is a little larger: at 150 dpi the scan was resampled to 1241 px."""
    stream = BytesIO()
    Image.new("RGB", (1240, 1754), "white").save(stream, "PDF", resolution=150)
    (page,) = open_document(load_source(stream.getvalue()), ViewOptions(), 2**30)
    assert (page.width, page.height) == page.load().size == (1240, 1754)
    # PDFium alone was seven times as far from the reduced image, and answers at 72 dpi differed.
    scan = Image.effect_noise((1600, 1600), 80).resize((3200, 3200), Image.Resampling.BICUBIC).convert("RGB")
    stream = BytesIO()
    scan.save(stream, "PDF", resolution=400, quality=95)  # 8 inches
    (page,) = open_document(load_source(stream.getvalue()), LIMITS, 2**30)
    shown, expected = page.load(), scan.resize((576, 576), Image.Resampling.LANCZOS)
    assert shown.size == (page.width, page.height) == expected.size
    difference = np.asarray(shown, dtype=float) - np.asarray(expected, dtype=float)
    assert np.abs(difference).mean() < 3


# ---- Pages of PDFs with their text: what is read, where it is, and what is left out
def read(tmp_path: Path, content: str, dpi: float = 144) -> TextPage:
    return read_pdf_page(write_pdf(tmp_path / "page.pdf", content), 0, dpi)


def test_boxes_are_advances_from_the_baseline_to_the_height_of_capitals(tmp_path: Path) -> None:
    page = read(tmp_path, text_at(72, 700, "Hip x"))
    assert page.size == (1224, 1584) and page.source.endswith("page.pdf#1")
    (line,) = page.lines
    assert line.text == "Hip x"
    widths = np.array([0.722, 0.222, 0.556, 0.278, 0.5]) * 48  # of Helvetica, at 24 pt and 2 px a pt
    ends = 144 + widths.cumsum()
    np.testing.assert_allclose(line.boxes[:, 2], ends, atol=0.5)
    np.testing.assert_allclose(line.boxes[:, 0], ends - widths, atol=0.5)
    np.testing.assert_allclose(line.boxes[:, 3], (792 - 700) * 2, atol=0.01)
    np.testing.assert_allclose(line.boxes[:, 3] - line.boxes[:, 1], 0.718 * 48, atol=1)


def test_ink_lies_where_the_boxes_say(tmp_path: Path) -> None:
    page = read(tmp_path, text_at(72, 700, "HEFT") + text_at(300, 300, "small", font="F2", size=9))
    ink = np.asarray(page.image.convert("L")) < 128
    seen = np.zeros_like(ink)
    for line in page.lines:
        for x0, y0, x1, y1 in line.boxes.round().astype(int).tolist():
            assert ink[y0:y1, x0:x1].any()
            seen[y0 - 2 : y1 + 2, x0 - 1 : x1 + 1] = True
    assert not (ink & ~seen).any()
    for text in ("hold", "moaner", "86"):
        (line,) = read(tmp_path, text_at(72, 700, text)).lines
        np.testing.assert_allclose(line.boxes[:, 3] - line.boxes[:, 1], 0.718 * 48, rtol=0.08)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (text_at(72, 700, "left") + text_at(300, 700, "right"), ["left", "right"]),
        (text_at(72, 700, "one") + text_at(72, 600, "other"), ["one", "other"]),
        (text_at(150, 700, "second") + text_at(99, 700, "first"), ["first second"]),  # out of order
        ("BT /F1 24 Tf 72 700 Td [(two) -278 (words)] TJ ET", ["two words"]),  # a gap and no space
        ("BT /F1 24 Tf 4 Tc 72 700 Td (LETTERSPACED) Tj ET", ["LETTERSPACED"]),
        (text_at(72, 700, "m") + text_at(93, 708, "2", size=14), ["m2"]),  # superscript
        (text_at(72, 700, "bold") + text_at(72.4, 700, "bold"), ["bold"]),  # printed twice
        (text_at(72, 600, "\\001x", font="F3"), ["fix"]),
        (text_at(72, 700, "caf") + text_at(104, 700, "e") + text_at(106, 700, "\xb4"), ["caf\xe9"]),
        (text_at(72, 700, "log") + "105 699 8 1 re f\n" + text_at(114, 700, "file"), ["log_file"]),  # a rule
        (text_at(72, 700, "seen") + "3 Tr\n" + text_at(72, 600, "hidden"), ["seen"]),
        (text_at(72, 700, "seen") + "1 g\n" + text_at(72, 600, "white"), ["seen"]),
        (text_at(72, 700, "seen") + text_at(-300, 600, "outside"), ["seen"]),
    ],
)
def test_text_is_as_printed(tmp_path: Path, content: str, expected: list[str]) -> None:
    assert [line.text for line in read(tmp_path, content).lines] == expected


def test_a_glyph_without_a_meaning_is_unknown_and_no_space(tmp_path: Path) -> None:
    """Fonts of old have letters at the places of control characters, which were taken for spaces and lost."""
    (line,) = read(tmp_path, text_at(72, 700, "a\\002b", font="F4")).lines
    assert line.text == f"a{UNKNOWN}b"
    (line,) = read(tmp_path, text_at(72, 700, "\\001x", font="F3")).lines
    starts = line.boxes[:, 0]
    assert line.text == "fix" and starts[1] == pytest.approx((starts[0] + starts[2]) / 2, abs=0.1)


def test_text_in_other_directions_and_pictures_without_text_are_unknown(tmp_path: Path) -> None:
    turned = "BT /F1 24 Tf 0 1 -1 0 300 300 Tm (up) Tj ET\n"
    picture = "q 100 0 0 50 400 400 cm BI /W 1 /H 1 /BPC 8 /CS /G /F /AHx ID 80> EI Q\n"
    level, unknown = read(tmp_path, text_at(72, 700, "level") + turned + picture).lines
    assert level.text == "level" and unknown.text == 3 * UNKNOWN
    np.testing.assert_allclose(unknown.boxes[2], (800, 2 * (792 - 450), 1000, 2 * (792 - 400)), atol=0.1)
    assert (unknown.boxes[:2, 2] < 612).all() and (unknown.boxes[:2, 0] > 560).all()
    ground = "q 612 0 0 792 0 0 cm BI /W 1 /H 1 /BPC 8 /CS /G /F /AHx ID c0> EI Q\n"
    assert len(read(tmp_path, ground + PROSE).lines) == 4


def test_a_page_that_is_too_large_is_drawn_at_fewer_dpi(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "poster.pdf", text_at(72, 700, "H"), size=(2000, 4000))
    page = read_pdf_page(path, 0, 150, longest=1000)
    assert page.size == (500, 1000) and page.lines[0].boxes[0, 0] == pytest.approx(72 / 4, abs=0.1)


def test_readable_is_prose_and_neither_a_few_words_nor_garble(tmp_path: Path) -> None:
    assert is_readable(read(tmp_path, PROSE))
    assert not is_readable(read(tmp_path, text_at(72, 700, "a few words")))
    assert not is_readable(read(tmp_path, PROSE.translate({ord(vowel): "x" for vowel in "aeiouy"})))


def test_bad_requests_say_what_was_expected(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "page.pdf", PROSE, PROSE)
    refuses(r"page: expected 0 to 1, the pages of .*page.pdf; got 2", read_pdf_page, path, 2, 100)
    refuses("dpi: expected a number above 0; got 0", read_pdf_page, path, 0, 0)
    (tmp_path / "not.pdf").write_text("text")
    for name in ("not.pdf", "missing.pdf"):
        refuses(rf"{name}: expected a PDF; got ", read_pdf_page, tmp_path / name, 0, 100)


# ---- The packages that hold PDFs, their pages in order, and pages drawn ahead
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
    for kept, source in zip(cached, (0, 2), strict=True):
        dpi = float(np.exp(np.random.default_rng([0, source]).uniform(np.log(70), np.log(200))))
        assert kept.kind == "pdf" and kept.source.endswith(f"page.pdf#{source + 1}")
        anew = read_pdf_page(path, source, dpi)
        assert kept.image is not None and anew.image is not None and kept.size == anew.size
        assert [line.text for line in kept.lines] == [line.text for line in anew.lines]
        for line, again in zip(kept.lines, anew.lines, strict=True):
            np.testing.assert_allclose(line.boxes, again.boxes, atol=1e-3)
        difference = np.asarray(kept.image, np.int16) - np.asarray(anew.image, np.int16)
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
