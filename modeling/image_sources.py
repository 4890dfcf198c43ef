"""Sources of images: a policy of allowed sources, and opening and downloading within it.

Error messages name a source, but not its content, nor the password or query of a URL.
"""

import base64
import binascii
import ipaddress
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote_to_bytes, urlparse, urlsplit, urlunsplit
from urllib.request import url2pathname

MAX_BYTES = 256 * 2**20
"""The most bytes from a URL or file object: about the size of the largest image uncompressed."""

SHORTEST_BASE64 = 32
"""Characters; below it a string without a scheme is a path, never base64 (the smallest image files take more)."""


@dataclass(frozen=True)
class SourcePolicy:
    """The sources that may be read, beside images that are passed whole (bytes, arrays, base64 and data: URLs).

    Attributes:
        schemes: "http" and "https": downloads; "file": this machine's files, as paths or file: URLs.
        private_addresses: whether downloads may come from addresses that are not public: this machine, its networks. If
            not, each address is checked after it was looked up, for redirects too, and proxies are not used.
        hosts: names that downloads may come from, redirects too; None: any.
        max_bytes: of one download; None: `MAX_BYTES`.
    """

    schemes: tuple[str, ...] = ("http", "https", "file")
    private_addresses: bool = True
    hosts: tuple[str, ...] | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.schemes) - {"http", "https", "file"})
        if unknown:
            raise ValueError(f"sources: expected schemes of http, https, file; got {', '.join(unknown)}")


POLICIES = {
    "any": SourcePolicy(),
    "public": SourcePolicy(schemes=("http", "https"), private_addresses=False),
    "inline": SourcePolicy(schemes=(), private_addresses=False),
}
"""By name: "any" for one's own code; "public" or "inline" (no paths, no URLs) for a server for others."""


def shorten(text: str, length: int = 80) -> str:
    """The text, shortened for an error message."""
    return text if len(text) <= length else f"{text[:length]}..."


def source_policy(sources: str | SourcePolicy) -> SourcePolicy:
    """The policy called `sources`, or `sources` itself.

    Raises:
        ValueError: an unknown name.
    """
    if not isinstance(sources, str):
        return sources
    if sources not in POLICIES:
        raise ValueError(f"sources: expected one of {', '.join(POLICIES)}; got {sources!r}")
    return POLICIES[sources]


def open_source(source: Any, policy: SourcePolicy, timeout: float | None) -> tuple[IO[bytes], str]:
    """Opens a stream of encoded bytes, which the caller closes, and returns its name for error messages.

    Args:
        source: a path (str, PathLike; "~" is the home folder), file://, http(s) or data: URL, base64 text, bytes, a
            binary file object (read from its beginning, left open) or a data set's {"bytes": ..., "path": ...}.
        policy: the sources that may be read.
        timeout: seconds for a whole download, redirects included; None: no limit.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another type, a source that is not allowed, or one that cannot be read.
    """
    if isinstance(source, Mapping) and {"bytes", "path"} & set(source):
        content = source.get("bytes")
        source = source.get("path") if content is None else content
    if isinstance(source, bytes | bytearray | memoryview):
        return BytesIO(source), "bytes"
    if isinstance(source, str):
        return _open_text(source, policy, timeout)
    if isinstance(source, os.PathLike):
        return _open_file(os.fspath(source), policy)
    if hasattr(source, "read"):
        return BytesIO(_read(source)), "file object"
    raise ValueError(
        "image: expected a PIL image, path, URL, data: URL, base64 text, bytes, file object, "
        f'{{"bytes": ..., "path": ...}}, numpy array or torch tensor; got {type(source).__name__}'
    )


def _read(stream: Any) -> bytes:
    if hasattr(stream, "seekable") and stream.seekable():
        stream.seek(0)  # as Pillow does: the same object may be read again
    content = stream.read(MAX_BYTES + 1)
    if not isinstance(content, bytes):
        raise ValueError(f"file object: expected one opened for bytes; got {type(content).__name__} from it")
    if len(content) > MAX_BYTES:
        raise ValueError(f"file object: expected at most {MAX_BYTES} bytes; got more")
    return content


def _open_text(source: str, policy: SourcePolicy, timeout: float | None) -> tuple[IO[bytes], str]:
    if not source.strip():
        raise ValueError("image: expected a path, URL, data: URL or base64 text; got an empty string")
    scheme = source.split(":", 1)[0].lower() if ":" in source else ""
    if scheme in ("http", "https"):
        return BytesIO(download(source, policy, timeout)), without_secrets(source)
    if scheme == "data":
        return BytesIO(_data_url_bytes(source)), "data: URL"
    if scheme == "file":
        return _open_file(_file_url_path(source), policy)
    named = source.startswith("/") and not source.startswith("/9j/")  # as base64 only a JPEG begins with a slash
    if len(source) >= SHORTEST_BASE64 and not ("file" in policy.schemes and (named or os.path.exists(source))):
        with suppress(binascii.Error, ValueError):
            return BytesIO(base64.b64decode("".join(source.split()), validate=True)), "base64 text"
    return _open_file(source, policy)


def _file_url_path(url: str) -> str:
    parsed = urlparse(url)
    if parsed.netloc not in ("", "localhost"):
        raise ValueError(f"{shorten(url)}: expected file:///path on this machine; got host {parsed.netloc!r}")
    return url2pathname(parsed.path)


def _data_url_bytes(url: str) -> bytes:
    header, comma, payload = url.partition(",")
    if not comma:
        raise ValueError(f"{shorten(url)}: expected data:<type>;base64,<content>; got no comma")
    if not header.lower().endswith(";base64"):
        return unquote_to_bytes(payload)
    try:
        return base64.b64decode(b"".join(unquote_to_bytes(payload).split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{shorten(header)}: expected base64 content; got {error}") from error


def _open_file(path: str, policy: SourcePolicy) -> tuple[IO[bytes], str]:
    if "file" not in policy.schemes:
        raise ValueError("image: expected a source that is allowed here (sources); got a path on this machine")
    name = path if len(path) <= 80 else f"...{path[-80:]}"  # the end of the name identifies the file
    file = Path(os.path.expanduser(path))
    try:
        if not file.exists():
            raise FileNotFoundError(f"{name}: expected an image file; got a missing path")
        if not file.is_file():  # a FIFO would block, a device has no end
            kind = "a folder" if file.is_dir() else "a device, pipe or socket"
            raise ValueError(f"{name}: expected an image file; got {kind}")
        return file.open("rb"), name
    except FileNotFoundError:
        raise
    except OSError as error:  # no permission, a name too long
        raise ValueError(f"{name}: expected an image file; got {type(error).__name__}") from error


# Downloads


def without_secrets(url: str) -> str:
    """The URL without user, password, query and fragment, for error messages."""
    try:
        parts = urlsplit(url)
        return shorten(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))
    except ValueError:
        return "URL"


def download(url: str, policy: SourcePolicy, timeout: float | None) -> bytes:
    from transformers import image_utils  # it knows huggingface_hub's httpx (or httpx2), which modeling/ may not import

    httpx: Any = image_utils.httpx
    name = without_secrets(url)
    transport = None if policy.private_addresses else _PublicTransport(httpx)
    content, limit = bytearray(), policy.max_bytes or MAX_BYTES
    try:
        with _cut_off(timeout) as watch, httpx.Client(transport=transport, timeout=timeout) as client:
            client.event_hooks = {"request": [lambda request: _check_url(request.url, name, policy)]}
            with client.stream("GET", url, follow_redirects=True, extensions={"trace": watch}) as response:
                response.raise_for_status()
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > limit:
                        raise ValueError(f"{name}: expected at most {limit} bytes; got more")
    except (TimeoutError, httpx.TimeoutException):
        raise ValueError(f"{name}: expected an image within {timeout:g} s; got a slower one") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        raise ValueError(f"{name}: expected an image to download; got {_failure(httpx, error)}") from None
    return bytes(content)


def _check_url(url: Any, name: str, policy: SourcePolicy) -> None:
    """Checks each request of a download, redirects included."""
    if url.scheme in ("http", "https") and url.scheme not in policy.schemes:  # httpx refuses other schemes
        raise ValueError(f"{name}: expected a source that is allowed here (sources); got {url.scheme}:")
    if policy.hosts is not None and url.host not in policy.hosts:
        raise ValueError(f"{name}: expected a host that is allowed here (sources); got another")


def _failure(httpx: Any, error: Exception) -> str:
    """The cause of a failure, without the server's text and the URL."""
    if isinstance(error, httpx.HTTPStatusError):
        return f"status {error.response.status_code}"
    connecting = isinstance(error, httpx.ConnectError | OSError)
    return f"{type(error).__name__}: {shorten(' '.join(str(error).split()))}" if connecting else type(error).__name__


@contextmanager
def _cut_off(seconds: float | None) -> Iterator[Any]:
    """A `trace` for httpx that records its connections, and shuts them after the time limit.

    httpx's own timeouts are for one read each, so a server that sends a byte a second never exceeds them.

    Raises:
        TimeoutError: the time was over before the block ended.
    """
    streams: list[Any] = []
    over = threading.Event()

    def shut() -> None:
        over.set()
        for stream in list(streams):
            with suppress(OSError):
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def watch(event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            streams.append(info["return_value"])
        if over.is_set():
            raise TimeoutError

    timer = None if seconds is None else threading.Timer(seconds, shut)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield watch
    except Exception as error:
        if over.is_set():
            raise TimeoutError from error
        raise
    finally:
        if timer is not None:
            timer.cancel()
    if over.is_set():  # a shut connection may look like the end of the content
        raise TimeoutError


class _PublicTransport:
    """httpx's transport for public addresses only: connects to the address that was checked, without a proxy."""

    def __init__(self, httpx: Any) -> None:
        self.httpx = httpx
        self.transport = httpx.HTTPTransport()

    def __enter__(self) -> "_PublicTransport":
        self.transport.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.transport.__exit__(*error)

    def close(self) -> None:
        self.transport.close()

    def handle_request(self, request: Any) -> Any:
        host = request.url.host
        pinned = self.httpx.Request(
            request.method,
            request.url.copy_with(host=_public_address(host, request.url.port)),
            headers=request.headers,  # with the name of the host
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        return self.transport.handle_request(pinned)


def _public_address(host: str, port: int | None) -> str:
    """The first address of `host`, if all of its addresses are public.

    Raises:
        ValueError: one of the addresses is not public.
    """
    addresses = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in addresses:
        parsed = ipaddress.ip_address(address.partition("%")[0])
        # Other IPv6 ranges contain IPv4 addresses, private ones too.
        unicast = parsed.version == 4 or parsed in ipaddress.ip_network("2000::/3")
        if parsed.version == 6 and (parsed.sixtofour or parsed.teredo):
            unicast = False
        if not (unicast and parsed.is_global) or parsed.is_multicast:
            raise ValueError(f"{shorten(host)}: expected a public address (sources); got one that is not")
    return addresses[0]
