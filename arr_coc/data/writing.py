"""Writes rendered pages and questions about them as a data set: images and a JSONL file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..files import fresh_folder
from ..modeling.image_processing_arr_coc import Box
from ..pages.domains import AS_DRAWN, DOMAINS, Page, Variations, draw_page
from ..pages.page import Question
from ..pages.splits import Split

JPEG_QUALITY = 92

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
    variations: Variations = AS_DRAWN,
    force: bool = False,
) -> Path:
    """Renders `pages` pages and asks up to `questions` questions about each.

    Every line of the file is `{"image", "question", "answers", "boxes", "label_box" or "label_boxes", "domain", "kind",
    "difficulty", "layout", "font"}` and the page's tags. Boxes are (x0, y0, x1, y1) in px: `boxes` around the answer,
    `label_box` or `label_boxes` around its labels. With variations there are also `absent` and `history`, see
    `arr_coc.data.records`. The same arguments and fonts give the same files.

    Args:
        out: folder for `data.jsonl` and `images/`, written atomically.
        size: side of a page, px.
        split: split of fonts, layouts, wordings and words, see `arr_coc.pages.splits`.
        domains: names in `DOMAINS`, which alternate.

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
            page = draw_page(domain, seed, number, size, split, variations=variations)
            image = f"images/{number:05d}.jpg"
            page.image.convert("RGB").save(beside / image, quality=JPEG_QUALITY)
            for question in page.questions[:questions]:
                turn = {"turn": question.turn} if variations.turns else {}
                lines.append(json.dumps({"image": image} | _line(domain, page, question) | turn))
        (beside / DATA).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out / DATA


def _line(domain: str, page: Page, question: Question) -> dict[str, Any]:
    labels = [_rounded(box) for box in question.label_boxes]
    return {
        "question": question.text,
        "answers": list(question.answers),
        "boxes": [_rounded(box) for box in question.boxes],
        **({"label_box": labels[0]} if len(labels) == 1 else {"label_boxes": labels}),
        **tags_of_page(domain, page, question),
        **({"absent": True} if question.absent else {}),
        **({"history": [list(turn) for turn in question.history]} if question.history else {}),
    }


def tags_of_page(domain: str, page: Page, question: Question) -> dict[str, str]:
    """What a record tells of the page and of the question, by name."""
    asked = {"domain": domain, "kind": question.kind, "difficulty": question.difficulty}
    return {**asked, "layout": page.layout, "font": page.font, **page.told}


def _rounded(box: Box) -> list[float]:
    return [round(float(edge), 1) for edge in box]
