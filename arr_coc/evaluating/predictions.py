"""Predictions on disk: JSONL, one file per run and process, complete up to the last line whatever happened to the run.

Notation: N patches, G side of the fine grid.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..data.fields import shorten
from ..data.records import Record
from ..files import fresh_file
from ..metrics import patch_recall
from ..modeling.asker import Answer
from ..modeling.image_processing_arr_coc import boxes_to_patches, map_boxes
from ..modeling.vision_tower import ImageEncoding
from ..settings import check_types

_OF_VIEWS = ("sources", "fetched", "best")


@dataclass(frozen=True)
class Prediction:
    """What a run said about one record.

    Attributes:
        line: the record's.
        answer, probability: as in `Answer`.
        tokens: positions that the image took in the prompt.
        grid: G.
        size: (height, width) of the source image, px.
        patches: the fetched patches, N bits in base64.
        image: digest of the image's pixels (see `image_digest`); "" in files that were written before there was one.
        sources: that the prompt showed.
        fetched: of an answer over views, where `patches` is "": source, x0, y0, x1, y1 of each patch, px of its source.
        best: the source of the fetched patch with the highest relevance, or -1.
    """

    line: int
    answer: str
    probability: float
    tokens: int
    grid: int
    size: tuple[int, int]
    patches: str
    image: str = ""
    sources: int = 1
    fetched: tuple[tuple[float, ...], ...] = ()
    best: int = -1

    @property
    def over_views(self) -> bool:
        """Whether it was asked over views, so that `patches` of one grid are not known."""
        return not self.patches

    @property
    def mask(self) -> np.ndarray:
        """bool [N], True on the fetched patches; of none where it was asked over views."""
        if self.over_views:
            return np.zeros(self.grid**2, dtype=bool)
        return np.unpackbits(np.frombuffer(base64.b64decode(self.patches), np.uint8), count=self.grid**2).astype(bool)

    @property
    def indices(self) -> list[int]:
        """The fetched patches, ascending."""
        return np.flatnonzero(self.mask).tolist()


def prediction(line: int, answer: Answer, encoding: ImageEncoding, image: Image.Image) -> Prediction:
    """What is kept of an answer about one image, which `encoding` holds (perhaps among others of its size)."""
    grid = encoding.side
    bits = answer.fetch.covered()[0].cpu().numpy()
    return Prediction(
        line=line,
        answer=answer.text,
        probability=round(answer.probability, 6),
        tokens=encoding.base_positions + int(answer.fetch.tokens.sum()),
        grid=grid,
        size=(image.height, image.width),
        patches=base64.b64encode(np.packbits(bits).tobytes()).decode(),
        image=image_digest(image),
    )


def image_digest(image: Image.Image) -> str:
    """16 hexadecimal digits that tell an image's pixels from others, whatever file or row they came from."""
    content = hashlib.blake2b(f"{image.mode} {image.size} ".encode(), digest_size=8)
    content.update(image.tobytes())
    return content.hexdigest()


def boxed_patches(record: Record, size: tuple[int, int], grid: int, patch_size: int) -> np.ndarray:
    """bool [G, G]: the patches under the record's boxes in an image of `size` (height, width) px; none without boxes.

    Raises:
        ValueError: boxes that do not reach into the image; the message names the record's line.
    """
    boxed = boxes_to_patches(map_boxes(record.boxes, *size, grid * patch_size), grid, patch_size)
    if record.boxes and not boxed.any():
        raise ValueError(f"line {record.line}: boxes: expected boxes that reach into the image; got {record.boxes}")
    return boxed


def recall(prediction: Prediction, record: Record, patch_size: int) -> float:
    """Share of the record's boxed patches that were fetched from its one view; NaN where it has no boxes."""
    if not record.boxes:
        return float("nan")
    boxed = boxed_patches(record, prediction.size, prediction.grid, patch_size)
    return patch_recall(prediction.indices, boxed)


def append(path: Path, predictions: Iterable[Prediction]) -> None:
    """Adds lines to a file, all or (if the process dies) a part that `read_run` drops."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(_entry(prediction), ensure_ascii=False) + "\n" for prediction in predictions))


def _entry(said: Prediction) -> dict[str, Any]:
    """Its fields; of an answer about one view without those that are of views."""
    return {name: value for name, value in asdict(said).items() if said.over_views or name not in _OF_VIEWS}


def mend(path: Path) -> None:
    """Cuts off a last line that a killed process did not finish; killed itself, it leaves the file as it was."""
    if path.is_file():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with fresh_file(path) as beside:
                beside.write_bytes(whole)


def run_files(folder: Path, run: str) -> list[Path]:
    """The files of one run: RUN-PROCESS.jsonl."""
    return [path for path in sorted(folder.glob("*.jsonl")) if path.stem.rpartition("-")[0] == run]


def read_run(folder: Path, run: str) -> dict[int, Prediction]:
    """The predictions of a run by line, of all processes; an unfinished last line does not count.

    Raises:
        ValueError: a line that is no prediction.
    """
    predictions: dict[int, Prediction] = {}
    for path in run_files(folder, run):
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):  # answers may hold U+2028
            try:
                content = json.loads(line.decode("utf-8"))
                said = Prediction(**{**content, "size": tuple(content["size"])})
                check_types(said)
                said.mask  # noqa: B018  refuses patches that are no bits of this grid
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{path}, line {number}: expected a prediction; got {shorten(line.decode('utf-8', 'replace'))}"
                ) from error
            predictions[said.line] = said
    return predictions
