"""Writes rendered pages and questions about them as a data set: images and a JSONL file."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from tqdm import tqdm

from ..files import fresh_folder
from ..modeling.image_processing_arr_coc import Box
from .formats import Rendered

JPEG_QUALITY = 92
DATA = "data.jsonl"  # name of the file of questions, beside the folder of images


def write_questions(out: Path, drawn: Rendered, *, force: bool = False) -> Path:
    """Draws pages and writes them with the questions about each, of which a page may have fewer.

    Every line of the file is `{"image", "question", "answers", "boxes", "label_box" or "label_boxes", "domain", "kind",
    "difficulty", "layout", "font"}` and the page's tags. Boxes are (x0, y0, x1, y1) in px: `boxes` around the answer,
    `label_box` or `label_boxes` around its labels. With variations there are also `absent` and `history`, see
    `arr_coc.data.records`. The same pages and fonts give the same files.

    Args:
        out: folder for `data.jsonl` and `images/`, written atomically.

    Raises:
        FileNotFoundError: no font of the split is installed; `out` does not change.
        ValueError: arguments that `draw_page` refuses; `out` has files (without `force`), or another process writes to
            it.
    """
    lines = []
    with fresh_folder(out.absolute(), force=force) as beside:
        (beside / "images").mkdir()
        for number in tqdm(range(drawn.pages), desc="rendering", unit="page", disable=None):
            page, image = drawn.page(number), f"images/{number:05d}.jpg"
            jpeg = BytesIO()  # Pillow writes part of a file to a full disk, and says nothing
            page.image.convert("RGB").save(jpeg, "JPEG", quality=JPEG_QUALITY)
            (beside / image).write_bytes(jpeg.getvalue())
            for place in range(min(drawn.questions, len(page.questions))):
                record = drawn.record(number * drawn.questions + place)
                labels = _rounded(record.label_boxes)
                line = {
                    "image": image,
                    "question": record.question,
                    "answers": list(record.answers),
                    "boxes": _rounded(record.boxes),
                    **({"label_box": labels[0]} if len(labels) == 1 else {"label_boxes": labels}),
                    **dict(record.tags),
                    **({"absent": True} if record.absent else {}),
                    **({"history": record.history} if record.history else {}),
                }
                lines.append(json.dumps(line))
        (beside / DATA).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return out / DATA


def _rounded(boxes: Sequence[Box]) -> list[list[float]]:
    return [[round(float(edge), 1) for edge in box] for box in boxes]
