"""Settings of a server: its limits, keys and hosts, and the logs of its use (examples, feedback, versions)."""

import math
from dataclasses import dataclass
from pathlib import Path

MIB = 2**20


@dataclass(frozen=True)
class ServerSettings:
    """The limits of one server.

    Attributes:
        api_keys: keys that clients send as `Authorization: Bearer KEY`; empty: no key is needed.
        image_hosts: hosts from which images can be downloaded; empty: clients send images as data: URLs.
        private_images: whether these hosts can have addresses that are not public (this machine, its networks).
        max_body: the most bytes of a request.
        body_seconds: time limit for a request to arrive, s.
        max_open: the most requests that are read or answered at once; further requests are refused.
        max_waiting: the most questions that wait for the engine; further questions are refused.
        answer_seconds: time limit from a complete request to the last token, s.
        max_pixels: the most pixels of one image, checked before decoding.
        image_workers: number of processes that decode images.
        encodings: bytes of encoded images that are kept for further questions.
        max_tokens: the most tokens of one answer; requests for more are refused.
        cache_tokens: positions of the language model's paged cache, for prompts and answers of all running questions.
        batch_tokens: positions in one forward pass of the language model.
        max_running: the most questions in the batch; None: 8 on a CPU, where each slows the others down, else 64.
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
    """Logs of one server, all off by default, and the versions of its scorer.

    Attributes:
        examples: folder of the journal of examples.
        sample: share of all answers that are kept as examples.
        unsure: less probable answers are also kept as examples, as are all failures.
        examples_bytes: the most bytes of this journal; when it is full, the oldest entries are deleted.
        feedback: folder of the journal of feedback; without one there is no /v1/feedback.
        feedback_bytes: the most bytes of this journal; when it is full, feedback is refused.
        remembered_bytes: bytes of images whose answers are remembered for feedback.
        redact: "MODULE:FUNCTION", which changes or drops an entry before it is written (see `examples`).
        versions: folder of the scorer's versions, see `arr_coc.learning.versions`.
        versions_seconds: interval between checks for the version in use, s.
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
