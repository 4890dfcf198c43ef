"""Pages that were drawn ahead, so that training only decodes them: a picture and its text each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from ..files import fresh_file
from .pdf_reading import is_readable, read_pdf_page
from .text_page import Line, TextPage

_DPI = (70.0, 200.0)
_LONGEST = 2400  # px: larger pages than A4, such as posters, are drawn at fewer dpi
_QUALITY = 95  # of JPEG, which pages with colours are; others are PNG, the fastest to decode


def cache_pages(pages: Sequence[tuple[Path, int]], folder: str | Path, *, limit: int, seed: int = 0) -> int:
    """Draws pages of PDFs into a folder, each at a resolution of its own, 70 to 200 dpi.

    What is there already is kept, so that it may be ended and called again; pages that are not readable are passed by.

    Args:
        pages: files and pages from 0, in the order of their numbers in the folder.
        folder: is made where it is missing.
        limit: how many pages to have.
        seed: of the resolutions.

    Returns:
        The number of pages in the folder: fewer than `limit` where there are no more.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with tqdm(total=limit, desc="pages", unit="page") as progress:
        for number, (path, page) in enumerate(pages):
            if count >= limit:
                break
            stored = folder / f"{number:06}.npz"
            if not stored.exists():
                _store(path, page, stored, np.random.default_rng([seed, number]))
            count += stored.stat().st_size > 0
            progress.update(count - progress.n)
    return count


def _store(path: Path, page: int, stored: Path, rng: np.random.Generator) -> None:
    """Writes a page beside its text; an empty file stands for one that is not readable."""
    dpi = math.exp(rng.uniform(math.log(_DPI[0]), math.log(_DPI[1])))
    drawn = read_pdf_page(path, page, dpi, longest=_LONGEST)
    if drawn.image is None or not is_readable(drawn):
        stored.touch()
        return
    pixels = np.asarray(drawn.image)
    if (pixels == pixels[..., :1]).all():
        drawn.image.convert("L").save(stored.with_suffix(".png"), compress_level=1)
    else:
        drawn.image.save(stored.with_suffix(".jpg"), quality=_QUALITY)
    with fresh_file(stored) as beside, beside.open("wb") as file:
        np.savez(
            file,
            text="".join(line.text for line in drawn.lines),
            lengths=np.array([len(line.text) for line in drawn.lines], np.int32),
            boxes=np.concatenate([line.boxes for line in drawn.lines]),
            source=drawn.source,
        )


class CachedPages:
    """The pages that `cache_pages` drew into a folder, by index; their order never changes.

    Args:
        folder: where they lie.

    Raises:
        FileNotFoundError: it holds none.
    """

    def __init__(self, folder: str | Path) -> None:
        self._texts = sorted(path for path in Path(folder).glob("*.npz") if path.stat().st_size)
        if not self._texts:
            raise FileNotFoundError(f"{folder}: expected pages that pdf_corpus --cache drew; got none")

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> TextPage:
        path = self._texts[index]
        with np.load(path) as stored:
            lengths, boxes = stored["lengths"].tolist(), stored["boxes"]
            text, source = str(stored["text"]), str(stored["source"])
        picture_path = path.with_suffix(".png")
        with Image.open(picture_path if picture_path.exists() else path.with_suffix(".jpg")) as picture:
            image = picture.convert("RGB")
        ends = np.cumsum(lengths).tolist()
        lines = tuple(Line(text[end - n : end], boxes[end - n : end]) for n, end in zip(lengths, ends, strict=True))
        return TextPage(image, image.size, lines, kind="pdf", source=source)
