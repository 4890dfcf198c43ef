"""Writes rendered pages and questions about them as a data set: images and a JSONL file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .domains import AS_DRAWN, DOMAINS, Page, Question, Variations, draw_page
from .rasterising import Box
from .splits import Split

JPEG_QUALITY = 92


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
) -> Path:
    """Renders `pages` pages and asks up to `questions` questions about each.

    Every line of the file is `{"image", "question", "answers", "boxes", "label_box" or "label_boxes", "domain", "kind",
    "difficulty", "layout", "font"}`; boxes are (x0, y0, x1, y1) in px: `boxes` around the answer, `label_box`, or
    `label_boxes` where there are several, around what leads to it. With variations there are also `absent` and
    `history`, where they apply, see `arr_coc.data.records`. The same arguments and fonts give the same files.

    Args:
        out: folder for `data.jsonl` and `images/`.
        pages, questions: how many.
        seed: of everything drawn.
        size: side of a page, px.
        split: fonts, layouts, wordings and words, see `arr_coc.data.splits`.
        domains: names in `DOMAINS`, which take turns.
        variations: what is done with the pages and their questions.

    Returns:
        The JSONL file's path.

    Raises:
        FileExistsError: `out` holds a data set already.
        FileNotFoundError: no font of the split is installed; `out` is left as it was.
        ValueError: fewer than one page or question, an unknown domain or none, and what `draw_page` refuses.
    """
    for option, count in (("pages", pages), ("questions", questions)):
        if count < 1:
            raise ValueError(f"{option}: expected at least 1; got {count}")
    if not domains:
        raise ValueError(f"domains: expected at least one of {', '.join(sorted(DOMAINS))}; got none")
    for domain in domains:
        DOMAINS[domain]  # a ValueError where it is unknown
    path = out / "data.jsonl"
    if path.exists():
        raise FileExistsError(f"{path}: expected a folder without a data set; got one that holds it")
    lines = []
    for number in tqdm(range(pages), desc="rendering", unit="page"):
        domain = domains[number % len(domains)]
        page = draw_page(domain, seed, number, size, split, variations=variations)
        name = f"images/{number:05d}.jpg"
        (out / "images").mkdir(parents=True, exist_ok=True)  # not before a page was drawn: there may be no fonts
        page.image.convert("RGB").save(out / name, quality=JPEG_QUALITY)
        for question in page.questions[:questions]:
            turn = {"turn": question.turn} if variations.turns else {}
            lines.append(json.dumps(_line(name, domain, page, question) | turn))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _line(image: str, domain: str, page: Page, question: Question) -> dict[str, Any]:
    labels = [_rounded(box) for box in question.label_boxes]
    return {
        "image": image,
        "question": question.text,
        "answers": list(question.answers),
        "boxes": [_rounded(box) for box in question.boxes],
        **({"label_box": labels[0]} if len(labels) == 1 else {"label_boxes": labels}),
        "domain": domain,
        "kind": question.kind,
        "difficulty": question.difficulty,
        "layout": page.layout,
        "font": page.font,
        **({"absent": True} if question.absent else {}),
        **({"history": [list(turn) for turn in question.history]} if question.history else {}),
    }


def _rounded(box: Box) -> list[float]:
    return [round(float(edge), 1) for edge in box]
