"""What users of a server said of its answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import get_args

from ...journal import journal_files
from ..feedback import JOURNAL, Part, read_feedback
from ..records import MAX_ERRORS, OnError, Record
from .base import FORMATS, Format


@FORMATS.register("feedback")
@dataclass(frozen=True)
class FeedbackLog(Format):
    """Feedback as `arr-coc serve --feedback` writes it.

    Attributes:
        path: the folder.
        part: "learned", "held_out" (one image in three) or "all".
    """

    path: Path
    part: Part = "all"

    places = ("path",)

    def __post_init__(self) -> None:
        if self.part not in get_args(Part):
            raise ValueError(f"part: expected one of {', '.join(get_args(Part))}; got {self.part!r}")

    @property
    def title(self) -> str:
        return f"{self.path} ({self.part})"

    @property
    def files(self) -> list[Path]:
        return journal_files(self.path, JOURNAL)

    def read(
        self, *, limit: int | None = None, on_error: OnError = "stop", max_errors: int = MAX_ERRORS
    ) -> Sequence[Record]:
        """The records; entries are whole or absent, so none is skipped: a damaged one is an error."""
        records = list(islice(read_feedback(self.path, self.part), limit))
        if not records:
            raise ValueError(f"{self.title}: expected feedback with right answers; got none")
        return records
