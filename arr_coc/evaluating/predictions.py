"""Predictions on disk: JSONL, one file per run and process, complete up to the last line whatever happened to the run.

Notation: N patches, G side of the fine grid.
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ..modeling.asker import Answer


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
    """

    line: int
    answer: str
    probability: float
    tokens: int
    grid: int
    size: tuple[int, int]
    patches: str

    @property
    def indices(self) -> list[int]:
        """The fetched patches, ascending."""
        bits = np.unpackbits(np.frombuffer(base64.b64decode(self.patches), np.uint8), count=self.grid**2)
        return np.flatnonzero(bits).tolist()


def prediction(line: int, answer: Answer, tokens: int, grid: int, size: tuple[int, int]) -> Prediction:
    """Of an answer about one image."""
    bits = np.zeros(grid**2, dtype=np.uint8)
    bits[answer.fetch.indices[0].cpu().numpy()] = 1
    packed = base64.b64encode(np.packbits(bits).tobytes()).decode()
    return Prediction(line, answer.text, round(answer.probability, 6), tokens, grid, size, packed)


def append(path: Path, predictions: Iterable[Prediction]) -> None:
    """Adds lines to a file, all or (if the process dies) a part that `read_run` drops."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write("".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in predictions))


def mend(path: Path) -> None:
    """Cuts off a last line that a killed process did not finish."""
    if path.is_file():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            path.write_bytes(whole)


def run_files(folder: Path, run: str) -> list[Path]:
    """The files of one run: RUN-PROCESS.jsonl."""
    return [path for path in sorted(folder.glob("*.jsonl")) if path.stem.rpartition("-")[0] == run]


def read_run(folder: Path, run: str) -> dict[int, Prediction]:
    """The predictions of a run by line, of all processes; an unfinished last line does not count.

    Raises:
        ValueError: a line that is no prediction.
    """
    found: dict[int, Prediction] = {}
    for path in run_files(folder, run):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), 1):
            if not line.endswith("\n"):
                break
            try:
                content = json.loads(line)
                one = Prediction(**{**content, "size": tuple(content["size"])})
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{path}, line {number}: expected a prediction; got {line.strip()[:60]!r}") from error
            found[one.line] = one
    return found
