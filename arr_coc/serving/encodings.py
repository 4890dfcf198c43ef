"""Encoders of decoded images (an ARR-COC model, or a reader of a published model), and the LRU cache of encodings."""

import asyncio
import hashlib
import hmac
import json
import math
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import torch
from PIL import Image
from pydantic import TypeAdapter
from torch import Tensor
from transformers.cache_utils import Cache

from ..attached import AttachedReader
from ..attached.encoding import AttachedEncoding
from ..modeling.answers import legibility_warning
from ..modeling.budgets import COMPRESSION, ViewOptions, pooling
from ..modeling.generation import encode_whole
from ..modeling.image_encoding import ImageEncoding, no_pixels
from ..modeling.image_loading import Source, shorten
from ..modeling.image_processing_arr_coc import FAR_SHRUNK, ArrCocImageProcessor, is_blank
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.view_encoding import encode_sources, take_view_options, windows_of
from ..modeling.word_sources import check_words
from .image_workers import PreparedImage, WorkerPool, inline_content
from .metrics import Metrics
from .protocol import ChatRequest, EncodingRequest

Seen = tuple[dict[str, Any], ...]
"""For each page: size in px, number of views, warnings. ARR-COC models add the finest scale of the views, px of the
model's square per px of the page, and with a text reader the page's legibility and, if it was turned, the degrees."""


class ModelEncoder:
    """Encodes as `generate` of ARR-COC models does."""

    def __init__(self, model: ArrCocForConditionalGeneration) -> None:
        self.model, self.processor = model.model, model.processor.image_processor
        self.least_legibility = model.config.least_legibility

    @torch.no_grad()
    def encode(self, prepared: Sequence[PreparedImage]) -> tuple[ImageEncoding, Seen]:
        """The encoding of one prompt in `generate`, with all tiles at once; above `max_tiles`, fewer tiles at a smaller
        scale."""
        processor, (images, sources) = self.processor, _opened(prepared)
        options = bounded_tiles(sources, processor, take_view_options(processor.views)[0])
        if prepared[0].words != "auto":
            options = replace(options, words=prepared[0].words)
        several = len(prepared) > 1 or any(source.page is not None or source.second is not None for source in sources)
        several |= options.words not in ("auto", "network")
        if several or processor.shrinks(images, options.least_scale):
            encoding = encode_sources(self.model, processor, [sources], options)
        else:
            encoding = encode_whole(self.model, processor, sources)
        if encoding.sources is not None:
            encoding.sources = [replace(source, load=no_pixels) for source in encoding.sources]
        return encoding, seen_pages(encoding, images, processor, self.least_legibility)

    def share_a_prompt(self, encodings: Sequence[ImageEncoding]) -> bool:
        """Whether the base tokens are pooled as for one prompt."""
        rows = self.processor.size["height"] // self.processor.patch_size // COMPRESSION
        pool = pooling(rows, sum(map(len, encodings)), take_view_options(self.processor.views)[0].max_base_tokens)
        return all(encoding.pool == pool for encoding in encodings)


class AttachedEncoder:
    """Encodes for a reader of a published model: all images of a prompt together, as its tokens depend on all of them.
    The language model prefills the base tokens."""

    def __init__(self, reader: AttachedReader) -> None:
        self.reader = reader

    def encode(self, prepared: Sequence[PreparedImage]) -> tuple[AttachedEncoding, Seen]:
        """`AttachedReader.encode_image` for one prompt with all images."""
        images, sources = _opened(prepared)
        encoding = self.reader.encode_sources([sources], words=prepared[0].words)
        (prompt,) = encoding.prompts
        prompt.sources = [replace(source, load=no_pixels) for source in sources]
        counts = [sum(view.image == number for view in prompt.views) for number in range(len(images))]
        return encoding, tuple(
            {"height": image.height, "width": image.width, "views": count, "warnings": _warnings(image)}
            for image, count in zip(images, counts, strict=True)
        )


Encoder = ModelEncoder | AttachedEncoder


def _opened(prepared: Sequence[PreparedImage]) -> tuple[list[Image.Image], list[Source]]:
    """The pages of images and documents, and the source of each."""
    pages = [page for image in prepared for page in image.pages]
    images, sources = [Image.fromarray(page.pixels) for page in pages], list[Source]()
    for image, page in zip(images, pages, strict=True):
        layer = None if page.layer is None else partial(_itself, page.layer)
        sources.append(Source(image.height, image.width, partial(_itself, image), page.page, page.second, layer))
    return images, sources


def _itself(value: Any, *_: Any) -> Any:
    return value


def _warnings(image: Image.Image) -> list[str]:
    return ["blank: any answer is a guess"] if is_blank(image) else []


def bounded_tiles(sources: Sequence[Source], processor: ArrCocImageProcessor, options: ViewOptions) -> ViewOptions:
    """Options that limit the tiles of a document so that all can be encoded, as questions cannot encode more tiles."""
    if options.tiles == "never":
        return options
    options = replace(options, tiles="auto") if options.tiles == "asked" else options
    scale = options.least_scale
    count = sum(len(windows_of(source, options, processor, scale)) for source in sources)
    return options if count <= options.max_tiles else replace(options, tiles=max(1, options.max_tiles // len(sources)))


def seen_pages(
    encoding: ImageEncoding, images: Sequence[Image.Image], processor: ArrCocImageProcessor, least_legibility: float
) -> Seen:
    """The views of each page; a page with a legibility below `least_legibility` has a warning."""
    side, seen = processor.size["height"], list[dict[str, Any]]()
    for number, image in enumerate(images):
        windows = [] if encoding.tiles is None else encoding.tiles.windows[encoding.tiles.sources == number].tolist()
        longest = min((max(x1 - x0, y1 - y0) for x0, y0, x1, y1 in windows), default=max(image.size))
        scale = side / longest
        warnings = _warnings(image)
        if scale < FAR_SHRUNK and processor.readable_px is not None:
            warnings.append(f"letters lower than {math.ceil(processor.readable_px / scale)} px are not read")
        page: dict[str, Any] = {"height": image.height, "width": image.width}
        page |= {"views": 1 + len(windows), "scale": round(scale, 3)}
        if (legibility := encoding.legibility([number])) is not None:
            page["legibility"] = round(legibility, 3)
            source, _, warning = encoding.word_sources()[number]
            page["words"] = source
            page |= {"turned": encoding.turned[number]} if encoding.turned[number] else {}
            warnings += filter(None, [legibility_warning(legibility, least_legibility), warning])
        seen.append({**page, "warnings": warnings})
    return tuple(seen)


HANDLE = "encoding:"  # prefix of a handle that is given in place of a URL


class UnknownHandle(ValueError):
    """No encoding with this handle is in the cache."""


@dataclass(frozen=True)
class HeldEncoding:
    """The encoding of an image."""

    handle: str  # its name for clients: equal images have one, which cannot be computed from the image alone
    encoding: Any  # the store's encoding of one image, or of several that share their base tokens
    size: int  # bytes
    seen: tuple[dict[str, Any], ...]  # the views of each of its pages, see `seen_pages`
    contents: tuple[bytes, ...] = ()  # the image files as sent, if the store keeps them


def size_of(value: Any) -> int:
    """Bytes of the tensors in an encoding, or in a part of one."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Cache):
        return sum(size_of(vars(layer)) for layer in value.layers)
    if isinstance(value, Mapping):
        return size_of([*value.values()])
    if isinstance(value, list | tuple):
        return sum(size_of(part) for part in value)
    return sum(size_of(getattr(value, part.name)) for part in fields(value)) if is_dataclass(value) else 0


def _worded(key: bytes, words: Any) -> bytes:
    """The key of an image's encoding with these words."""
    return key if words == "auto" else hashlib.sha256(key + json.dumps(words).encode()).digest()


def handle_of(key: bytes, secret: bytes) -> str:
    """The handle of an image's content, an HMAC: equal images have equal handles, and clients cannot tell whether
    another client sent an image."""
    return "enc_" + hmac.new(secret, key, "sha256").hexdigest()[:32]


class EncodingStore:
    """Encodes images, which the workers decode; each only once while it is in the cache.

    Args:
        limit: bytes of encodings in the cache; a single larger encoding is used, but not kept.
        secret: key of the handles; by default random for each store.
    """

    def __init__(
        self, encoder: Encoder, workers: WorkerPool, limit: int, metrics: Metrics, secret: bytes | None = None
    ) -> None:
        self.encoder, self.workers, self.limit, self.metrics = encoder, workers, limit, metrics
        self.bytes = 0
        self.keeps_content = False  # whether encodings keep the image files, for logs; set before the first image
        self._held: OrderedDict[str, HeldEncoding] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[HeldEncoding]] = {}
        self._secret = secret or secrets.token_bytes(32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoder")

    async def get(self, source: str, words: Any = None) -> HeldEncoding:
        """The encoding of a data: or http(s) URL, or of a handle ("encoding:enc_..."); `words`: `protocol.Words`.

        Raises:
            UnknownHandle: no encoding with this handle is in the cache.
            ValueError: not an image, or not allowed.
        """
        words = "auto" if words is None else words
        check_words(words)
        scheme = source.partition(":")[0].lower()
        if scheme == "encoding":
            if words != "auto":
                raise ValueError("words: expected them with a whole image; got a handle, whose words were read")
            if (handle := source.removeprefix(HANDLE)) not in self._held:
                raise UnknownHandle("encoding: expected a handle that is held; got another: encode the image again")
            return self._hit(handle)
        if scheme == "data":
            content = inline_content(source)
            key = _worded(hashlib.sha256(content).digest(), words)
            return await self._by_handle(handle_of(key, self._secret), [source], words)
        prepared = await self._prepared([source], words)
        return await self._by_handle(handle_of(prepared[0].key, self._secret), [source], words, prepared)

    async def get_all(self, sources: Sequence[str], words: Any = None) -> list[HeldEncoding]:
        """The encodings of a prompt's images; one encoding of all images if they cannot be encoded one by one.

        Raises:
            UnknownHandle, ValueError: see `get`; or a handle of an image that must be encoded together with others.
        """
        words = "auto" if words is None else words
        if isinstance(words, list) and len(sources) > 1:
            raise ValueError(f"words: expected a name where a request has several images; got words for {len(sources)}")
        if isinstance(self.encoder, AttachedEncoder) and len(sources) > 1:
            self._refuse_handles(sources, f"{len(sources)} images", "one")
            prepared = await self._prepared(sources, words)
            joint = handle_of(b"".join(image.key for image in prepared), self._secret)
            return [await self._by_handle(joint, sources, words, prepared)]
        held = [await self.get(source, words) for source in sources]  # one by one, as a request has one image worker
        encodings = [own.encoding for own in held]
        if isinstance(self.encoder, AttachedEncoder) or len(held) == 1 or self.encoder.share_a_prompt(encodings):
            return held
        pages = sum(map(len, encodings))
        self._refuse_handles(sources, f"{pages} pages, which share their base tokens", "fewer pages")
        joint = handle_of(b"".join(own.handle.encode() for own in held), self._secret)
        return [await self._by_handle(joint, sources, words)]

    @staticmethod
    def _refuse_handles(sources: Sequence[str], shown: str, fewer: str) -> None:
        if any(source.lower().startswith(HANDLE) for source in sources):
            expected = f"whole images where a request has {shown}"
            raise ValueError(f"encoding: expected {expected}; got a handle: send {fewer}, or the images themselves")

    async def _prepared(self, sources: Sequence[str], words: Any) -> list[PreparedImage]:
        """The decoded contents of data: and http(s) URLs."""
        prepared = []
        for source in sources:
            scheme = source.partition(":")[0].lower()
            if scheme == "data":
                content = inline_content(source)
                prepared.append(replace(await self.workers.prepare(content), content=content))
            elif scheme in ("http", "https"):
                hosts = self.workers.limits.policy.hosts or ()
                if (host := urlsplit(source).hostname) not in hosts:
                    allowed = f"one at {', '.join(hosts)}" if hosts else "a data: URL, as no host is allowed here"
                    option = "(the server's --image-host HOST allows one)"
                    raise ValueError(f"image_url: expected {allowed} {option}; got {host}")
                prepared.append(await self.workers.prepare(source))
            else:
                expected = "a data: or http(s) URL, or encoding: and a handle"
                raise ValueError(f"image_url or file_data: expected {expected}; got {shorten(source, 40)!r}")
        return [replace(image, key=_worded(image.key, words), words=words) for image in prepared]

    async def stop(self) -> None:
        """Waits for the image that is being encoded, and encodes no more."""
        for task in [*self._under_way.values()]:
            task.cancel()
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _hit(self, handle: str) -> HeldEncoding:
        self.metrics.encodings.labels("hit").inc()
        self._held.move_to_end(handle)
        return self._held[handle]

    async def _by_handle(
        self, handle: str, sources: Sequence[str], words: Any, prepared: list[PreparedImage] | None = None
    ) -> HeldEncoding:
        if handle in self._held:
            return self._hit(handle)
        task = self._under_way.get(handle)
        self.metrics.encodings.labels("miss" if task is None else "shared").inc()
        if task is None:
            task = self._under_way[handle] = asyncio.create_task(self._encode(handle, sources, words, prepared))
            task.add_done_callback(lambda done: self._ended(handle, done))
        return await asyncio.shield(task)  # a disconnected client does not cancel it for others

    def _ended(self, handle: str, task: "asyncio.Task[HeldEncoding]") -> None:
        del self._under_way[handle]
        if not task.cancelled():
            task.exception()  # all clients may have disconnected

    async def _encode(
        self, handle: str, sources: Sequence[str], words: Any, prepared: list[PreparedImage] | None
    ) -> HeldEncoding:
        prepared = prepared or await self._prepared(sources, words)
        with self.metrics.encode_seconds.time():
            encoded = asyncio.get_running_loop().run_in_executor(self._thread, self.encoder.encode, prepared)
            encoding, seen = await encoded
        contents = tuple(image.content for image in prepared) if self.keeps_content else ()
        size = size_of(encoding) + sum(map(len, contents))
        held = HeldEncoding(handle, encoding, size, seen, contents)
        if size > self.limit:
            self.metrics.fallbacks.labels("not_held").inc()
            return held
        self._held[handle] = held
        self.bytes += size
        while self.bytes > self.limit:
            _, oldest = self._held.popitem(last=False)
            self.bytes -= oldest.size
        return held


REQUEST: TypeAdapter[ChatRequest | EncodingRequest] = TypeAdapter(ChatRequest | EncodingRequest)


def affinity_key(body: bytes, secret: bytes) -> str:
    """The routing key of a request's first image: the handle of its encoding, or its URL.

    `body`: of /v1/chat/completions or /v1/encodings; an invalid one has the key "", as any server returns the error.
    `secret`: the key of the handles, common to all servers.
    """
    try:
        request = REQUEST.validate_json(body)
        url = request.image if isinstance(request, EncodingRequest) else request.turns()[0][0]
        if url.startswith("data:"):
            return handle_of(hashlib.sha256(inline_content(url)).digest(), secret)
        return url.removeprefix(HANDLE)
    except ValueError:
        return ""


def by_affinity(key: str, names: Iterable[str]) -> list[str]:
    """Servers in order of preference for a key. If a server is added or removed, the others keep their keys. This is
    rendezvous hashing (Thaler and Ravishankar, 1996): servers are ordered by their hash with the key."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{key}\0{name}".encode()).digest(), reverse=True)
