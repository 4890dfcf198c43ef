"""URLs of servers on loopback that are slow, endless, lie or lead elsewhere: an image, or a refusal in time."""

import random
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from PIL import Image

import arr_coc.families  # noqa: F401  registers the policy "public"
from arr_coc.modeling.image_loading import load_image
from tests.fuzz.tally import Tally
from tests.helpers import png

TIMEOUT = 1.0
"""Seconds that a download may take that no image comes of,"""

PATIENCE = 8.0
"""and one that an image comes of, on a machine that is busy."""

SECRET = "s3cret"

WORDING = rf"^(?!.*{SECRET})[^\n]*expected[^\n]*got[^\n]*$"
"""Of a refusal: one line, that does not quote a password."""

OK = b"HTTP/1.1 200 OK\r\n"

CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

Behaviour = Callable[["Connection"], None]


IMAGE = png(Image.new("RGB", (9, 7), "red"))


class Connection:
    """One request and its connection, on the server's side."""

    def __init__(self, connected: socket.socket, port: int) -> None:
        self.socket, self.port = connected, port
        self.request = connected.recv(2**16)

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self.socket.sendall(part)

    def drip(self, content: bytes, seconds: float = 0.2) -> None:
        for start in range(len(content)):
            self.send(content[start : start + 1])
            time.sleep(seconds)

    def redirect(self, to: str) -> None:
        # what it closes next must say so: a client may else send what follows on it
        head = f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        self.send(head.encode())

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def endless(self, head: bytes, content: bytes) -> None:
        self.send(head)
        while True:
            self.send(content)


def sized(content: bytes, length: int | str | None = None, head: bytes = OK) -> bytes:
    return head + f"Content-Length: {len(content) if length is None else length}\r\n\r\n".encode() + content


def zipped(size: int) -> bytes:
    packer = zlib.compressobj(wbits=31)
    block = bytes(2**20)
    return b"".join(packer.compress(block) for _ in range(size // len(block))) + packer.flush()


HONEST: dict[str, Behaviour] = {
    "image": lambda c: c.send(sized(IMAGE)),
    "redirected": lambda c: c.redirect(f"http://127.0.0.1:{c.port}/image"),
    "moved": lambda c: c.redirect("/image"),
    "unsized": lambda c: c.send(OK, b"Connection: close\r\n\r\n", IMAGE),
    "chunked": lambda c: c.send(CHUNKED, b"%x\r\n%s\r\n0\r\n\r\n" % (len(IMAGE), IMAGE)),
    "another type": lambda c: c.send(OK, b"Content-Type: text/html\r\n", sized(IMAGE, head=b"")),
    "a little slow": lambda c: (time.sleep(0.1), c.send(sized(IMAGE)))[-1],
}
"""What a server does, by path, that an image comes of."""

HOSTILE: dict[str, Behaviour] = (
    {"silent": lambda c: time.sleep(8), "slow headers": lambda c: c.drip(OK * 30)}
    | {"slow body": lambda c: (c.send(OK, b"Content-Length: 68\r\n\r\n"), c.drip(IMAGE))[-1]}
    | {"slow chunks": lambda c: (c.send(CHUNKED), c.drip(b"1\r\nx\r\n" * 30))[-1]}
    | {"endless": lambda c: c.endless(OK + b"\r\n", bytes(2**16))}
    | {"endless image": lambda c: c.endless(OK + b"\r\n" + IMAGE[:40], bytes(2**16))}
    | {"endless headers": lambda c: c.endless(OK, b"X-A: b\r\n" * 100)}
    | {"one endless header": lambda c: c.endless(OK + b"X-A: ", b"b" * 2**16)}
    | {"endless chunk size": lambda c: c.endless(CHUNKED, b"1" * 2**10)}
    | {"too long": lambda c: c.send(sized(IMAGE, len(IMAGE) + 100)), "too short": lambda c: c.send(sized(IMAGE, 30))}
    | {"negative length": lambda c: c.send(sized(IMAGE, -1))}
    | {"two lengths": lambda c: c.send(OK, b"Content-Length: 3\r\n", sized(IMAGE, head=b""))}
    | {"no number": lambda c: c.send(sized(IMAGE, "nine")), "huge length": lambda c: c.send(sized(IMAGE, 10**30))}
    | {"cut": lambda c: c.send(sized(IMAGE, len(IMAGE))[:-20]), "closed": lambda c: None}
    | {"reset": lambda c: c.reset(), "reset in the body": lambda c: (c.send(sized(IMAGE)[:-9]), c.reset())[-1]}
    | {"empty": lambda c: c.send(sized(b"")), "nothing": lambda c: c.send(b"HTTP/1.1 204 No Content\r\n\r\n")}
    | {"missing": lambda c: c.send(sized(IMAGE, head=b"HTTP/1.1 404 Not Found\r\n"))}
    | {"broken": lambda c: c.send(sized(IMAGE, head=b"HTTP/1.1 500 Oh\r\n"))}
    | {"status 99": lambda c: c.send(sized(IMAGE, head=b"HTTP/1.1 99 Odd\r\n"))}
    | {"only early hints": lambda c: c.endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n")}
    | {"text": lambda c: c.send(sized(b"<html>no</html>"))}
    | {"postscript": lambda c: c.send(sized(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nquit\n"))}
    | {"no HTTP": lambda c: c.send(b"220 ready\r\n"), "noise": lambda c: c.send(random.Random(0).randbytes(3000))}
    | {"bad header": lambda c: c.send(OK, b"X\0: \xff\xfe\r\n: \r\n\r\n", IMAGE)}
    | {"bad chunks": lambda c: c.send(CHUNKED, b"zz\r\n", IMAGE)}
    | {"no gzip": lambda c: c.send(OK, b"Content-Encoding: gzip\r\n", sized(IMAGE, head=b""))}
    | {"gzip bomb": lambda c: c.send(OK, b"Content-Encoding: gzip\r\n", sized(zipped(2**29), head=b""))}
    | {"loop": lambda c: c.redirect(f"http://127.0.0.1:{c.port}/loop")}
    | {"slow loop": lambda c: (time.sleep(0.3), c.redirect(f"http://127.0.0.1:{c.port}/slow%20loop"))[-1]}
    | {"to a file": lambda c: c.redirect("file:///etc/hostname")}
    | {"to FTP": lambda c: c.redirect("ftp://127.0.0.1/x")}
    | {"to data": lambda c: c.redirect("data:image/png;base64,AAAA")}
    | {"to nowhere": lambda c: c.redirect("http://127.0.0.1:1/"), "to no URL": lambda c: c.redirect("http://[::1")}
    | {"to odd letters": lambda c: c.redirect("http://\u2028\u202e.invalid/\0")}
    | {"to nothing": lambda c: c.send(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n")}
)
"""What a server does, by path, that no image comes of."""

ODD = (
    ("http://", "http:///x", "http://[::1", "http://a b/", "http://127.0.0.1:99999/", "http://127.0.0.1:x/")
    + ("https:", "http://\0/", "http://\ud800/", "http://" + "a" * 5000, "HTTP://127.0.0.1:1/", "http://..")
    + ("http://%zz", "http:x", "ftp://127.0.0.1/x", "file://elsewhere/x", "data:,", "data:image/png;base64,%%")
    + ("http://xn--/", "javascript:1")
)
"""No URLs that a server answers."""

PRIVATE = tuple("127.0.0.1 2130706433 0x7f.1 127.1 [::1] [::ffff:127.0.0.1] 0.0.0.0 localhost 127.0.0.1.".split())
"""Names of this machine, which the policy "public" refuses."""


@contextmanager
def served(**others: Behaviour) -> Iterator[int]:
    """Serves `HONEST`, `HOSTILE` and others on loopback, a thread for each connection; gives the port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = listener.getsockname()[1]
    behaviours = {**HONEST, **HOSTILE, **others}

    def answer(connected: socket.socket) -> None:
        with connected, suppress(OSError):
            connected.settimeout(10)
            connection = Connection(connected, port)
            path = connection.request.split(b" ")[1].decode().strip("/").replace("%20", " ")
            behaviours[path.partition("?")[0]](connection)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield port
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def tries(port: int) -> list[tuple[str, dict[str, Any], bool]]:
    """URLs, how they are loaded, and whether an image comes of them."""
    at, any_source = f"http://user:{SECRET}@127.0.0.1:{port}", {"sources": "any", "timeout": TIMEOUT}
    public = {"sources": "public", "timeout": TIMEOUT}
    loads: list[tuple[str, dict[str, Any], bool]] = []
    for name in (*HONEST, *HOSTILE):
        options = any_source | {"timeout": PATIENCE} if name in HONEST else any_source
        loads.append((f"{at}/{name.replace(' ', '%20')}?key={SECRET}", options, name in HONEST))
    loads += [(url, any_source, False) for url in ODD]
    loads += [(f"http://{host}:{port}/image", public, False) for host in PRIVATE]
    return [*loads, (f"{at}/image", {"sources": "inline", "timeout": TIMEOUT}, False)]


def fuzz(count: int, seed: int) -> Tally:
    with served() as port:
        loads = tries(port)
        tally = Tally()
        for number in range(seed, seed + count):
            url, options, honest = loads[number % len(loads)]
            tally.attempt(
                number,
                lambda url=url, options=options: load_image(url, **options),  # type: ignore[misc]
                name=url[-60:],
                promised=(ValueError, FileNotFoundError),
                wording=WORDING if honest is False else "never",
                check=lambda image, honest=honest: None if honest else "an image came of it",  # type: ignore[misc]
            )
    return tally
