"""Writes rendered pages and questions about them as a data set: images and a JSONL file."""

import json
from collections.abc import Sequence
from pathlib import Path
from time import gmtime
from typing import Any

from tqdm import tqdm

from ..files import fresh_folder
from ..pages.domains import AS_DRAWN, DOMAINS, Page, Question, Variations, draw_page
from ..pages.domains.rasterising import Box
from ..pages.splits import Split

JPEG_QUALITY = 92

DPI = 150
"""Pixels per inch of the pages of a PDF, the default resolution of rendering."""

DATA = "data.jsonl"
"""Name of the file of questions, beside the folder of images."""


def write_questions(
    out: Path,
    *,
    pages: int,
    questions: int,
    seed: int,
    size: int = 256,
    split: Split = "test",
    domains: Sequence[str] = ("document",),
    sources: int | None = None,
    variations: Variations = AS_DRAWN,
    force: bool = False,
) -> Path:
    """Renders `pages` pages and asks up to `questions` questions about each.

    Every line of the file is `{"image", "question", "answers", "boxes", "label_box" or "label_boxes", "domain", "kind",
    "difficulty", "layout", "font"}` and the page's tags. Boxes are (x0, y0, x1, y1) in px: `boxes` around the answer,
    `label_box` or `label_boxes` around its labels. With variations there are also `absent` and `history`, see
    `arr_coc.data.records`. A question about a document of several pages has a PDF as `image`, and the sources of
    boxes. The same arguments and fonts give the same files.

    Args:
        out: folder for `data.jsonl` and `images/`, written atomically.
        pages: number of pages.
        questions: the most questions per page.
        seed: seed of all random draws.
        size: side of a page, px.
        split: split of fonts, layouts, wordings and words, see `arr_coc.pages.splits`.
        domains: names in `DOMAINS`, which alternate.
        sources: number of pages, for domain pages; None: random.
        variations: variations of the pages and their questions.
        force: whether to replace `out` if it exists and is not empty.

    Returns:
        The JSONL file's path.

    Raises:
        FileNotFoundError: no font of the split is installed; `out` does not change.
        ValueError: fewer than one page or question, an unknown domain or none, or arguments that `draw_page` refuses;
            `out` has files (without `force`), or another process writes to it.
    """
    for option, count in (("pages", pages), ("questions", questions)):
        if count < 1:
            raise ValueError(f"{option}: expected at least 1; got {count}")
    if not domains:
        raise ValueError(f"domains: expected at least one of {', '.join(sorted(DOMAINS))}; got none")
    for domain in domains:
        DOMAINS[domain]  # raises ValueError if unknown
    lines = []
    with fresh_folder(out.absolute(), force=force) as beside:
        (beside / "images").mkdir()
        for number in tqdm(range(pages), desc="rendering", unit="page", disable=None):
            domain = domains[number % len(domains)]
            page = draw_page(domain, seed, number, size, split, sources=sources, variations=variations)
            images = _write_images(beside, f"images/{number:05d}", page)
            for question in page.questions[:questions]:
                turn = {"turn": question.turn} if variations.turns else {}
                lines.append(json.dumps(images | _line(domain, page, question) | turn))
        (beside / DATA).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out / DATA


def _write_images(folder: Path, stem: str, page: Page) -> dict[str, Any]:
    """Writes a page's source, or several as a PDF; returns the field of a line that names the file."""
    first, *rest = (source.convert("RGB") for source in page.sources)
    if not rest:
        first.save(folder / f"{stem}.jpg", quality=JPEG_QUALITY)
        return {"image": f"{stem}.jpg"}
    epoch = gmtime(0)  # a fixed time, so that equal data gives equal files
    first.save(
        folder / f"{stem}.pdf", save_all=True, append_images=rest, resolution=DPI, quality=JPEG_QUALITY,
        creationDate=epoch, modDate=epoch,
    )  # fmt: skip
    return {"image": f"{stem}.pdf"}


def _line(domain: str, page: Page, question: Question) -> dict[str, Any]:
    labels = [_rounded(box) for box in question.label_boxes]
    places = ("box_sources", "label_sources", "answer_sources")
    return {
        "question": question.text,
        "answers": list(question.answers),
        "boxes": [_rounded(box) for box in question.boxes],
        **({"label_box": labels[0]} if len(labels) == 1 else {"label_boxes": labels}),
        "domain": domain,
        "kind": question.kind,
        "difficulty": question.difficulty,
        "layout": page.layout,
        "font": page.font,
        **page.told,
        **{name: list(getattr(question, name)) for name in places if getattr(question, name)},
        **({"absent": True} if question.absent else {}),
        **({"history": [list(turn) for turn in question.history]} if question.history else {}),
    }


def _rounded(box: Box) -> list[float]:
    return [round(float(edge), 1) for edge in box]
