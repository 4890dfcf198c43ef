"""Settings of a server: its limits, keys and hosts, and the logs of its use (examples, feedback, versions).

Most are options of `arr-coc serve`, which explains them; sizes are bytes here, and MiB there.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 2**20


def _folder(text: str) -> Path:
    return Path(text).expanduser()


def _option(default: Any, text: str, metavar: str = "N", flag: str | None = None) -> Any:
    kind = {"N": int, "MIB": int, "S": float, "P": float, "DIR": _folder}.get(metavar)
    described = {"help": text, "metavar": metavar, "type": kind, "flag": flag}
    return field(default=default, metadata={name: value for name, value in described.items() if value is not None})


@dataclass(frozen=True)
class ServerSettings:
    """The limits of one server. Requests and questions beyond them are refused."""

    api_keys: tuple[str, ...] = ()  # that clients send as `Authorization: Bearer KEY`; empty: no key is needed
    image_hosts: tuple[str, ...] = ()  # from which images can be downloaded; empty: clients send them as data: URLs
    private_images: bool = False  # whether these hosts can have addresses that are not public
    max_body: int = _option(16 * MIB, "size of a request in MiB (default: 16)", "MIB")
    max_pixels: int = _option(40_000_000, "pixels of an image, or of all pages of a document (default: 40 million)")
    image_workers: int = _option(2, "processes that decode images (default: 2)")
    encodings: int = _option(512 * MIB, "cache of encoded images in MiB (default: 512)", "MIB")
    max_waiting: int = _option(128, "waiting questions; more get status 429 (default: 128)")
    max_running: int | None = _option(None, "questions in the batch (default: 8 on a CPU, else 64)")
    max_tokens: int = _option(1024, "tokens of an answer; requests for more are refused (default: 1024)")
    cache_tokens: int = _option(16_384, "tokens of the language model's cache (default: 16384)")
    answer_seconds: float = _option(120.0, "seconds for a whole answer (default: 120)", "S")
    body_seconds: float = 20.0  # for a request to arrive
    max_open: int = 256  # requests that are read or answered at once
    batch_tokens: int = 512  # positions in one forward pass of the language model
    embed_batch: int | None = None  # questions that are scored and fetched for together; None: 4 on a CPU, else 8

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < math.inf:
                raise ValueError(f"{name}: expected a positive number; got {value}")


@dataclass(frozen=True)
class UseSettings:
    """Logs of one server, all off by default, and the versions of its scorer (see `arr_coc.learning.versions`)."""

    examples: Path | None = _option(
        None, "folder for a log: a sample of the answers, all failures, all unsure answers; see arr-coc replay", "DIR"
    )
    sample: float = _option(0.001, "share of answers that is logged (default: 0.001)", "P")
    unsure: float = _option(0.5, "confidence below which all are logged (default: 0.5)", "P")
    examples_bytes: int = _option(
        256 * MIB, "size of that log in MiB; the oldest are dropped (default: 256)", "MIB", "--examples-size"
    )
    feedback: Path | None = _option(None, "folder for the feedback of /v1/feedback; see arr-coc learn", "DIR")
    feedback_bytes: int = _option(
        1024 * MIB, "size of it in MiB; if full, feedback is refused (default: 1024)", "MIB", "--feedback-size"
    )
    redact: str | None = _option(
        None, "function that edits or drops each entry of both logs before it is written", "MODULE:FUNCTION"
    )
    versions: Path | None = _option(
        None, "folder of scorer versions; the server fetches with the one that arr-coc learn promotes", "DIR"
    )
    remembered_bytes: int = 64 * MIB  # of images whose answers are remembered for feedback
    versions_seconds: float = 2.0  # between checks for the version in use

    def __post_init__(self) -> None:
        for name in ("sample", "unsure"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: expected a share from 0 to 1; got {getattr(self, name)}")
        for name in ("examples_bytes", "feedback_bytes", "remembered_bytes", "versions_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected a positive number; got {getattr(self, name)}")
        if self.redact is not None and self.examples is None and self.feedback is None:
            raise ValueError("redact: expected a log of examples or of feedback; got none")
