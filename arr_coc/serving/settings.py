"""Settings of a server: its limits, keys and hosts, and the logs of its use (examples, feedback, versions)."""

import math
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True)
class ServerSettings:
    """The limits of one server.

    Attributes:
        api_keys: what clients show as `Authorization: Bearer KEY`; none: every client is let in.
        image_hosts: names that images may be downloaded from; none: clients send images as data: URLs.
        private_images: whether those hosts may have addresses that are not public (this machine, its networks).
        max_body: bytes of a request.
        body_seconds: for a request to arrive.
        max_open: requests that are being read or answered at once; beyond it they are refused.
        max_waiting: questions that wait for the engine; beyond it they are refused.
        answer_seconds: from a whole request to the last token.
        max_pixels: of one image, before anything is decoded.
        image_workers: processes that decode.
        encodings: bytes of encoded images that are held for further questions.
        max_tokens: of one answer; requests for more are refused.
        cache_tokens: positions of the language model's paged cache, prompts and answers of all running questions.
        batch_tokens: positions in one pass of the language model.
        max_running: questions in the batch; None: 8 on a CPU, where each costs the others attention, else 64.
        embed_batch: questions that are scored and fetched for together; None: 4 on a CPU, else 8.
    """

    api_keys: tuple[str, ...] = ()
    image_hosts: tuple[str, ...] = ()
    private_images: bool = False
    max_body: int = 16 * MIB
    body_seconds: float = 20.0
    max_open: int = 256
    max_waiting: int = 128
    answer_seconds: float = 120.0
    max_pixels: int = 40_000_000
    image_workers: int = 2
    encodings: int = 512 * MIB
    max_tokens: int = 1024
    cache_tokens: int = 16_384
    batch_tokens: int = 512
    max_running: int | None = None
    embed_batch: int | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a positive number; got {value}")


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
        redact: "MODULE:FUNCTION", which changes what is about to be written, or drops it (see `examples`).
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
