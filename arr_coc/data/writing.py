"""Writes rendered pages and questions about them as a data set: images and a JSONL file."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from .questions import ask
from .rendering import render_document
from .values import FIELDS, Split

JPEG_QUALITY = 92


def write_questions(
    out: Path,
    *,
    pages: int,
    questions: int,
    seed: int,
    size: int = 256,
    split: Split = "test",
    fields: Sequence[str] = FIELDS,
) -> Path:
    """Renders `pages` pages and asks up to `questions` distinct fields of each.

    Every line of the file is `{"image", "question", "answers", "boxes", "label_box", "layout", "font"}`; boxes are
    (x0, y0, x1, y1) in px, `boxes` around the value. The same arguments and fonts give the same files.

    Args:
        out: folder for `data.jsonl` and `images/`.
        pages, questions: how many.
        seed: of everything drawn.
        size: side of a page, px.
        split: fonts, layouts and words: "train" or "test".
        fields: names of the fields; see `render_document`.

    Returns:
        The JSONL file's path.

    Raises:
        FileExistsError: `out` holds a data set already.
    """
    path = out / "data.jsonl"
    if path.exists():
        raise FileExistsError(f"{path}: expected a folder without a data set; got one that holds it")
    (out / "images").mkdir(parents=True, exist_ok=True)
    lines = []
    for page in tqdm(range(pages), desc="rendering", unit="page"):
        rng = np.random.default_rng((seed, page))
        document = render_document(rng, size=size, split=split, fields=fields)
        name = f"images/{page:05d}.jpg"
        document.image.convert("RGB").save(out / name, quality=JPEG_QUALITY)
        for index in rng.permutation(len(document.entries))[:questions]:
            entry = document.entries[int(index)]
            line = {
                "image": name,
                "question": ask(rng, entry.field, split=split),
                "answers": [entry.value],
                "boxes": [[round(float(edge), 1) for edge in entry.value_box]],
                "label_box": [round(float(edge), 1) for edge in entry.label_box],
                "layout": document.layout,
                "font": document.font,
            }
            lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
