"""The sources of images that a server for others may read: listed hosts, and no addresses of its own network."""

import ipaddress
import socket
from dataclasses import dataclass
from typing import Any

from ..modeling.image_loading import POLICIES, SourcePolicy, shorten


@dataclass(frozen=True)
class GuardedSources(SourcePolicy):
    """A policy for other people's URLs."""

    # Whether downloads may come from addresses that are not public: this machine, its networks. If not, each address is
    # checked after it was looked up, for redirects too, and proxies are not used.
    private_addresses: bool = False
    hosts: tuple[str, ...] | None = None  # names that downloads may come from, redirects too; None: any

    def check_request(self, url: Any, name: str) -> None:
        super().check_request(url, name)
        if self.hosts is not None and url.host not in self.hosts:
            raise ValueError(f"{name}: expected a host that is allowed here (sources); got another")

    def transport(self, httpx: Any) -> Any:
        return None if self.private_addresses else _PublicTransport(httpx)


POLICIES["public"] = GuardedSources(schemes=("http", "https"))


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
    """The first address of `host`, if all of its addresses are public. Raises ValueError: one of the addresses is not
    public."""
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
