"""A policy of allowed sources of images, and downloads within it.

Error messages name a source, but not its content, nor the password or query of a URL.
"""

import ipaddress
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

MAX_BYTES = 256 * 2**20
"""The most bytes from a URL or file object: about the size of the largest image uncompressed."""


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
