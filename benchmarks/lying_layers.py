"""PDFs whose text layer lies, and honest ones: is a lie noticed, and is no honest layer refused?

    python -m benchmarks.lying_layers DIR            # writes DIR/KIND/*.pdf, data.jsonl (a bench) and documents.jsonl
    python -m benchmarks.lying_layers DIR --check    # and counts the documents whose layer words="auto" does not trust

`lying_layers.csv` fixes the documents. Five kinds lie, ten documents each: `unicode` (characters come out as others),
`other-page` (a scan with the OCR of another page), `white` (white text on white), `unseen` (text that no one can see)
and `altered` (a scan or outlines with other numbers in the layer). `honest-drawn` and `honest-scan` do not lie.

A line of documents.jsonl is a document: `file`, `kind`, `variant`, `held_out`, `font`; `visible`, the printed words of
each page; `false`, words of the layer that are not printed where it has them (of the fonts without a map they are not
known). `held_out` documents, half of the liars, have fonts and texts that nobody looks at while building a check.
"""

from __future__ import annotations

import argparse
import io
import json
import string
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pypdfium2
from fontTools.pens.reportLabPen import ReportLabPen
from fontTools.ttLib import TTFont as GlyphFont
from PIL import Image, ImageFilter
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont

from arr_coc.publishing.building import load_model

from .pdf_designs import draw, drawn
from .pdf_drawing import BLACK, WHITE, Document, Print, Sheet, Spec, faces, font_file, read_manifest, write_documents

MANIFEST = Path(__file__).with_name("lying_layers.csv")
FILLED, INVISIBLE = 0, 3  # text rendering modes
_TINY = 0.1  # pt
_MAPPED = string.ascii_letters + string.digits + string.punctuation


# ---- what layers and pages are made of ----------------------------------------------------------------------------


def write_layer(
    sheet: Sheet,
    prints: Sequence[Print],
    *,
    mode: int = INVISIBLE,
    colour: tuple[float, float, float] = BLACK,
    size: float | None = None,
    shift: float = 0.0,
) -> None:
    """Writes texts of the sheet's page in Helvetica, as wide as they are printed; in a `size` in pt, as it comes."""
    text = sheet.canvas.beginText()
    text.setTextRenderMode(mode)
    text.setFillColorRGB(*colour)
    for each in prints:
        if each.page == sheet.page and each.text:
            text.setFont("Helvetica", size or each.size)
            natural = pdfmetrics.stringWidth(each.text, "Helvetica", size or each.size)
            text.setHorizScale(100.0 if size else 100 * each.width / natural)
            text.setTextOrigin(each.x + shift, sheet.height - each.y)
            text.textOut(each.text)
    sheet.canvas.saveState()  # mode and scale would hold for later texts too
    sheet.canvas.drawText(text)
    sheet.canvas.restoreState()


def scan(pdf: bytes, page: int, random: Random, *, tilt: float = 0.0) -> Image.Image:
    """A page as a scanner gives it: 150 to 220 dpi, grey, noise, a little out of focus, turned by `tilt` degrees."""
    document = pypdfium2.PdfDocument(pdf)
    document.init_forms()
    image = document[page].render(scale=random.uniform(150, 220) / 72).to_pil().convert("L")
    image = image.rotate(tilt, Image.Resampling.BICUBIC, fillcolor=255).filter(ImageFilter.GaussianBlur(0.6))
    noise = np.random.default_rng(random.randrange(2**32)).normal(0, 5, (image.height, image.width))
    return Image.fromarray(np.clip(np.asarray(image) * 0.96 + noise, 0, 255).astype(np.uint8))


def draw_scan(sheet: Sheet, image: Image.Image) -> None:
    """Covers the sheet's page with an image."""
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=80)
    sheet.canvas.drawImage(ImageReader(packed), 0, 0, sheet.width, sheet.height)


def draw_outlines(sheet: Sheet, prints: Sequence[Print]) -> None:
    """Draws texts as paths, without text."""
    fonts = {name: GlyphFont(font_file(sheet.spec.font, name)) for name in {each.font for each in prints}}
    for each in prints:
        font = fonts[each.font]
        glyphs, names, scale = font.getGlyphSet(), font.getBestCmap(), each.size / font["head"].unitsPerEm
        sheet.canvas.saveState()
        sheet.canvas.setFillColorRGB(*BLACK)
        sheet.canvas.translate(each.x, sheet.height - each.y)
        sheet.canvas.scale(scale, scale)
        for character in each.text:
            path = sheet.canvas.beginPath()
            path.closePath = path.close  # as the pen calls it
            glyph = glyphs[names.get(ord(character), ".notdef")]
            glyph.draw(ReportLabPen(glyphs, path))
            sheet.canvas.drawPath(path, stroke=0, fill=1, fillMode=1)
            sheet.canvas.translate(glyph.width, 0)
        sheet.canvas.restoreState()


def altered(prints: Sequence[Print], random: Random, *, digits: str, share: float) -> list[Print]:
    """The texts, a share of those with digits with other ones: "one" digit, or "all" of them."""
    changed = []
    for each in prints:
        places = [place for place, character in enumerate(each.text) if character in string.digits]
        if places and random.random() < share:
            text = list(each.text)
            for place in places if digits == "all" else [random.choice(places)]:
                text[place] = random.choice(string.digits.replace(text[place], ""))
            each = replace(each, text="".join(text))
        changed.append(each)
    return changed


def _differing(false: Sequence[Print], true: Sequence[Print]) -> list[str]:
    """The words of `false` that are not printed anywhere."""
    printed = {word for each in true for word in each.text.split()}
    return [word for each in false for word in each.text.split() if word not in printed]


# ---- kinds ----------------------------------------------------------------------------------------------------------


def _swaps(variant: str, random: Random) -> dict[str, str]:
    """What is written for a printed character, of those that come out as others."""
    if variant == "private use":
        return {character: chr(0xE000 + ord(character)) for character in _MAPPED}
    if variant == "shifted":
        return {character: chr(33 + (ord(character) - 32) % 94) for character in _MAPPED}
    pools = {"missing": (), "digits": (string.digits,)}.get(
        variant, (string.ascii_lowercase, string.ascii_uppercase, string.digits)
    )
    swaps = dict[str, str]()
    for pool in pools:
        order = random.sample(pool, len(pool))
        swaps |= dict(zip(order, order[1:] + order[:1], strict=True))  # one ring, so that none stays
    return swaps


def _unicode(spec: Spec) -> Document:
    """Fonts whose map to Unicode is wrong, or missing."""
    swaps, names = _swaps(spec.variant, Random(spec.seed)), []
    for name in faces(spec.font):
        font = TTFont(f"{name}-{spec.seed}", font_file(spec.font, name), asciiReadable=spec.variant != "missing")
        font.face.name = font.fontName.encode()  # reportlab takes faces of one name for the same
        for table in (font.face.charToGlyph, font.face.charWidths):
            table.update({ord(swap): table[ord(printed)] for printed, swap in swaps.items() if ord(printed) in table})
        pdfmetrics.registerFont(font)
        names.append(font.fontName)
    sheet, questions = draw(spec, (names[0], names[1]), lambda text: "".join(swaps.get(each, each) for each in text))
    pdf = sheet.finish()
    if spec.variant == "missing":
        pdf = pdf.replace(b"/ToUnicode", b"/NoUnicode")  # an unknown key of the same length: offsets hold
    false = [replace(each, text=sheet.encode(each.text)) for each in sheet.prints]
    return Document(pdf, sheet.words, _differing(false, sheet.prints), questions)


def _other_page(spec: Spec) -> Document:
    """A scan with the invisible OCR of another page: another document of the same design, or of another one."""
    page, questions, other = _two(spec, "columns" if spec.variant == "other design" else spec.design)
    sheet = Sheet(spec)
    draw_scan(sheet, scan(page.finish(), 0, Random(spec.seed)))
    write_layer(sheet, other.prints)
    return Document(sheet.finish(), page.words, _differing(other.prints, page.prints), questions)


def _two(spec: Spec, design: str) -> tuple[Sheet, list[tuple[str, str]], Sheet]:
    """The document with its questions, and another one."""
    page, questions = draw(spec)
    return page, questions, draw(replace(spec, seed=spec.seed + 500_000, design=design))[0]


def _white(spec: Spec) -> Document:
    """White text on white: altered numbers beside the true ones, or all that outlines do not say."""
    page, questions, other = _two(spec, spec.design)
    if spec.variant == "only":
        sheet = Sheet(spec)
        write_layer(sheet, other.prints, mode=FILLED, colour=WHITE)
        draw_outlines(sheet, page.prints)
        return Document(sheet.finish(), page.words, _differing(other.prints, page.prints), questions)
    numbers = [each for each in page.prints if any(map(str.isdigit, each.text))]
    false = [replace(each, x=each.x + each.width + 2) for each in altered(numbers, Random(1), digits="all", share=1.0)]
    sheet, _ = draw(spec, under=lambda bare: write_layer(bare, false, mode=FILLED, colour=WHITE))
    return Document(sheet.finish(), page.words, _differing(false, page.prints), questions)


def _unseen(spec: Spec) -> Document:
    """Text behind an image or a rectangle, outside the crop box, or of 0.1 pt."""
    page, questions, other = _two(spec, spec.design)
    false = other.prints
    if spec.variant in ("image", "tiny over image"):
        sheet, image = Sheet(spec), scan(page.finish(), 0, Random(spec.seed))
        if spec.variant == "image":
            write_layer(sheet, false, mode=FILLED)
            draw_scan(sheet, image)
        else:
            draw_scan(sheet, image)
            write_layer(sheet, false, mode=FILLED, size=_TINY)
    else:
        sheet, _ = draw(spec, under=lambda bare: _hide(bare, false))
    return Document(sheet.finish(), page.words, _differing(false, page.prints), questions)


def _hide(sheet: Sheet, prints: Sequence[Print]) -> None:
    if sheet.spec.variant == "tiny":
        write_layer(sheet, prints, mode=FILLED, size=_TINY)
    elif sheet.spec.variant == "crop":
        write_layer(sheet, prints, mode=FILLED, shift=sheet.width + 10)
    else:
        write_layer(sheet, prints, mode=FILLED)
        sheet.box(0, 0, sheet.width, sheet.height, WHITE)


def _altered(spec: Spec) -> Document:
    """A scan, or outlines, with an invisible layer that has other numbers. Variant: "scan one 0.5" and the like."""
    medium, digits, share = spec.variant.split()
    page, questions = draw(spec)
    false = altered(page.prints, Random(spec.seed), digits=digits, share=float(share))
    sheet = Sheet(spec)
    if medium == "scan":
        draw_scan(sheet, scan(page.finish(), 0, Random(spec.seed)))
    else:
        draw_outlines(sheet, page.prints)
    write_layer(sheet, false)
    return Document(sheet.finish(), page.words, _differing(false, page.prints), questions)


def _honest_scan(spec: Spec) -> Document:
    """Scanned pages with what they say as an invisible layer; the layer of a tilted page is not tilted."""
    page, questions = draw(spec)
    pdf, random, sheet = page.finish(), Random(spec.seed), Sheet(spec)
    for number in range(page.page + 1):
        if number:
            sheet.next_page()
        draw_scan(sheet, scan(pdf, number, random, tilt=0.3 if spec.variant == "tilted" else 0.0))
        write_layer(sheet, page.prints)
    return Document(sheet.finish(), page.words, [], questions)


LIARS: dict[str, Callable[[Spec], Document]] = {
    "unicode": _unicode,
    "other-page": _other_page,
    "white": _white,
    "unseen": _unseen,
    "altered": _altered,
}
KINDS = LIARS | {"honest-drawn": drawn, "honest-scan": _honest_scan}


def checked(folder: Path) -> str:
    """A table: of the documents of each kind, those with a page whose text layer `words="auto"` does not trust."""
    model, counts = load_model(), defaultdict[tuple[str, str], list[bool]](list)
    for lines in sorted(folder.glob("*/documents.jsonl")):
        for document in map(json.loads, lines.read_text().splitlines()):
            page = model.encode_image(lines.parent / document["file"], prefix=False)
            distrusted = any(source == "network" for source, _, _ in page.word_sources())
            counts[lines.parent.name, document["held_out"]].append(distrusted)
    rows = [f"| {kind} | {held_out} | {sum(found)} of {len(found)} |" for (kind, held_out), found in counts.items()]
    return "\n".join(["| kind | held out | not trusted |", "|---|---|---|", *rows])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write PDFs with text layers that lie, and honest ones.")
    parser.add_argument("folder", type=Path, help="folder of the documents, with a folder for each kind")
    parser.add_argument("--check", action="store_true", help="encode them with the default model, and print a table")
    args = parser.parse_args(arguments)
    specs = read_manifest(MANIFEST)
    for kind in KINDS:
        write_documents(args.folder / kind, [spec for spec in specs if spec.kind == kind], KINDS[kind])
    if args.check:
        print(checked(args.folder))


if __name__ == "__main__":
    main()
