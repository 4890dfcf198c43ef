"""What a server allows: limits, keys, hosts."""

import math
from dataclasses import dataclass

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
        max_tokens: of one answer, whatever the client asks for.
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
