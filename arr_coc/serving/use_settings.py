"""What a server keeps of its use: examples, feedback, and the versions of the scorer that come of it."""

from dataclasses import dataclass
from pathlib import Path

from .settings import MIB


@dataclass(frozen=True)
class UseSettings:
    """Logs of one server, all off by default, and where it takes its scorer from.

    Attributes:
        examples: folder of the journal of examples.
        sample: share of the answers that are examples, whatever came of them.
        unsure: answers that are less probable are examples too, as are all that failed.
        examples_bytes: of the journal; the oldest entries go where it is full.
        feedback: folder of the journal of feedback; without one there is no /v1/feedback.
        feedback_bytes: of that journal, which takes nothing more where it is full.
        remembered_bytes: of images whose answers feedback may name.
        redact: "MODULE:FUNCTION", which changes what is about to be written, or drops it (see `redaction`).
        versions: folder of the scorer's versions, see `arr_coc.learning.versions`.
        versions_seconds: between looks at which of them is in use.
    """

    examples: Path | None = None
    sample: float = 0.001
    unsure: float = 0.5
    examples_bytes: int = 256 * MIB
    feedback: Path | None = None
    feedback_bytes: int = 1024 * MIB
    remembered_bytes: int = 64 * MIB
    redact: str | None = None
    versions: Path | None = None
    versions_seconds: float = 2.0

    def __post_init__(self) -> None:
        for name in ("sample", "unsure"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a share from 0 to 1; got {getattr(self, name)}")
        for name in ("examples_bytes", "feedback_bytes", "remembered_bytes", "versions_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a positive number; got {getattr(self, name)}")
        if self.redact is not None and self.examples is None and self.feedback is None:
            raise ValueError("redact: expected a log of examples or of feedback; got none")

    @property
    def keeps_images(self) -> bool:
        """Whether any log needs images as they were sent."""
        return self.examples is not None or self.feedback is not None
