"""Documents: PDFs, image files of several pages and videos are sources page by page; what cannot be read says so."""

import re
import struct
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
from tiny_pdf import PASSWORD, locked, page, paged, pdf_of, write_form

from arr_coc.modeling.budgets import ViewOptions
from arr_coc.modeling.documents import MissingPackage, open_document
from arr_coc.modeling.image_loading import Encoded, load_source

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
    written, box = BytesIO(), (10, 10, 60, 60)
    drawn(420, 430).save(written, "TIFF", save_all=True, append_images=[Image.new("RGB", (420, 430), "white")])
    seen = model.encode_image(written.getvalue(), tiles=tiles)
    if reads_words:  # this reader finds characters everywhere
        seen.characters[1], seen.pieces[1] = 0, -1
    for boxes, named in (([[box], []], False), ([[], [box]], True)):
        answer = model.generate(seen, QUESTION, strategy="oracle", boxes=boxes, return_fetch=True)
        said = "the model finds nothing on page 2, where this answer comes from: it is a guess" in answer.warning
        assert said == named, (boxes, answer.warning)
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


def of_an_unknown_codec() -> bytes:
    return video(kind="avi").replace(b"FMP4", b"zzzz")


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
    for broken in (content[:40], content[:8] + b"\0" * 400, of_an_unknown_codec()):
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
