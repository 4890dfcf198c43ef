"""PDFs of one page a content stream, written by hand, so that tests know where each character is."""

from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw
from reportlab.pdfgen.canvas import Canvas

CONTROL = "/CIDInit /ProcSet findresource begin begincmap 1 beginbfchar <02> <0005> endbfchar endcmap end"
TIMES = "/Type /Font /Subtype /Type1 /BaseFont /Times-Roman"
FONTS = {
    "F1": "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    "F2": f"<< {TIMES} /Encoding /WinAnsiEncoding >>",
    "F3": f"<< {TIMES} /Encoding << /Differences [1 /fi] >> >>",
    "F4": f"<< {TIMES} /Encoding << /Differences [2 /H] >> /ToUnicode 3 0 R >>",
}
"""Names for `Tf`, and fonts that every reader has; 1 of F3 is the ligature fi, 2 of F4 an H said to be a control."""


def write_pdf(path: Path, *contents: str, size: tuple[int, int] = (612, 792)) -> Path:
    """Writes a PDF whose pages have these content streams, in Latin-1, and the fonts above."""
    fonts = " ".join(f"/{name} {font}" for name, font in FONTS.items())
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(contents)))
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>"]
    objects.append(f"<< /Length {len(CONTROL)} >>\nstream\n{CONTROL}\nendstream")
    for index, content in enumerate(contents):
        box = f"/MediaBox [0 0 {size[0]} {size[1]}] /Resources << /Font << {fonts} >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R {box} /Contents {5 + 2 * index} 0 R >>")
        objects.append(f"<< /Length {len(content.encode('latin-1'))} >>\nstream\n{content}\nendstream")
    return _write(path, objects)


PASSWORD = "sesam\N{LATIN SMALL LETTER O WITH DIAERESIS}ffne"


def locked(path: Path) -> Path:
    """Writes an encrypted PDF of one page, with "Total 3.50" on it."""
    canvas = Canvas(str(path), (100, 100), encrypt=PASSWORD)
    canvas.drawString(20, 30, "Total 3.50")
    canvas.save()
    return path


def write_form(path: Path, value: str) -> Path:
    """Writes a PDF of one page of 300 x 200 pt with a text field, filled in with `value`, at 80..200, 145..165 pt."""
    font, shown = f"/Font << /F1 {FONTS['F1']} >>", f"/Tx BMC q {text_at(2, 5, value, size=14)} Q EMC"
    drawn = f"/Type /XObject /Subtype /Form /BBox [0 0 120 20] /Resources << {font} >> /Length {len(shown)}"
    field = f"/FT /Tx /T (field) /V ({value}) /DA (/F1 14 Tf 0 g) /Rect [80 145 200 165] /F 4 /P 3 0 R"
    return _write(
        path,
        [
            f"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [4 0 R] /DR << {font} >> /DA (/F1 14 Tf 0 g) >> >>",
            "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Annots [4 0 R] >>",
            f"<< /Type /Annot /Subtype /Widget {field} /AP << /N 5 0 R >> >>",
            f"<< {drawn} >>\nstream\n{shown}\nendstream",
        ],
    )


def pdf_of(objects: list[str], trailer: str = "") -> bytes:
    """A PDF of these objects, whose first is its catalogue."""
    written, offsets = "%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(written.encode("latin-1")))
        written += f"{number} 0 obj\n{content}\nendobj\n"
    start = len(written.encode("latin-1"))
    entries = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    written += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{entries}"
    written += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n"
    return written.encode("latin-1")


def _write(path: Path, objects: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pdf_of(objects))
    return path


def text_at(x: float, y: float, text: str, *, font: str = "F1", size: float = 24) -> str:
    """Shows a text with its baseline from (x, y), in pt from the lower left corner."""
    return f"BT /{font} {size} Tf {x} {y} Td ({text}) Tj ET\n"


PROSE = "".join(
    text_at(72, 700 - 20 * row, line, size=12)
    for row, line in enumerate(
        ("The quick brown fox jumps over the lazy dog while", "a quiet reader looks at letters on a page.") * 2
    )
)
"""Enough text for a page that is worth reading."""


def page(number: int, size: tuple[int, int] = (120, 160)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).rectangle((10, 10 + 20 * number, 60, 25 + 20 * number), "black")
    return image


def paged(kind: str, pages: int = 3) -> bytes:
    stream = BytesIO()
    images = [page(number) for number in range(pages)]
    images[0].save(
        stream, kind, save_all=True, append_images=images[1:], **({"resolution": 72} if kind == "PDF" else {})
    )
    return stream.getvalue()
