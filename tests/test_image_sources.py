"""Where images come from: downloads and their deadline, what a policy refuses, what error messages do not say."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from helpers import noise, png, refuses
from PIL import Image

from arr_coc.families import public_sources
from arr_coc.families.public_sources import GuardedSources
from arr_coc.modeling import image_loading
from arr_coc.modeling.image_loading import POLICIES, SourcePolicy, load_image
from arr_coc.modeling.image_processing_arr_coc import ArrCocImageProcessor

SIZE = (30, 20)
CONTENT = png(noise(SIZE[1], SIZE[0]))


class Handler(BaseHTTPRequestHandler):
    """Serves an image, a page, redirects (`/moved`, `/away` to this address by number) and, slowly, nothing much."""

    def do_GET(self) -> None:
        address = f"http://127.0.0.1:{self.server.server_port}"  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        moved = {"/moved": "/image.png", "/away": f"{address}/image.png", "/elsewhere": "ftp://127.0.0.1/image.png"}
        answers = {"/image.png": CONTENT, "/page.html": b"<html>sign in</html>", "/host": self.headers["Host"].encode()}
        if path in moved:
            self.send_response(302)
            self.send_header("Location", moved[path])
            self.end_headers()
        elif path in answers:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[path])
        elif path.startswith("/slow"):
            with suppress(OSError):  # the client goes
                if path == "/slow-content":
                    self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
                for _ in range(200):
                    self.wfile.write(b"x")
                    time.sleep(0.05)
        else:
            self.send_error(404)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.daemon_threads = True
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()
    thread.join()
    web.socket.close()


@pytest.fixture
def image_file(tmp_path: Path) -> Path:
    path = tmp_path / "image.png"
    path.write_bytes(CONTENT)
    return path


# Downloads
def test_urls(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_image(CONTENT).tobytes()
    assert load_image(f"{server}/image.png").tobytes() == expected
    assert load_image(f"{server}/moved").tobytes() == expected
    for path, message in {
        "missing.png": "expected an image to download; got status 404$",
        "page.html": r"page.html: expected an image .* got text$",
        "elsewhere": "expected an image to download; got UnsupportedProtocol$",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_image(f"{server}/{path}")
    monkeypatch.setattr(image_loading, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="expected at most 10 bytes"):
        load_image(f"{server}/image.png")
    with pytest.raises(ValueError, match="file object: expected at most 10 bytes"):
        load_image(BytesIO(CONTENT))


def test_what_holds_no_image_is_named() -> None:
    refuses("image: expected a path, URL, data: URL or base64 text; got an empty string", load_image, "")
    with pytest.raises(FileNotFoundError, match="invoices00000: expected an image file; got a missing path"):
        load_image("/data/images/receipts/2024/invoices00000")  # base64 text by its letters
    with pytest.raises(ValueError, match="bytes: expected an image .* got a HEIC or AVIF photograph, which Pillow"):
        load_image(b"\0\0\0\x18ftypheic" + bytes(100))
    # A 74-byte PNG of 1 x 89,478,485 px took 2.5 GB.
    refuses("expected sides of at most 65535 px; got 1x65536", load_image, Image.new("1", (65_536, 1)))


def test_a_missing_or_silent_server_is_said() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    refuses("expected an image to download; got Connect", load_image, f"http://127.0.0.1:{port}/image.png", timeout=2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/image.png"
        refuses("expected an image within 0.3 s", load_image, url, timeout=0.3)


@pytest.mark.parametrize("slow", ["slow-content", "slow-headers"])
def test_the_timeout_is_for_the_whole_download(server: str, slow: str) -> None:
    """A server that sent a byte now and then never met a timeout: each byte began it anew."""
    begun = time.monotonic()
    refuses(f"{slow}: expected an image within 0.5 s; got a slower one$", load_image, f"{server}/{slow}", timeout=0.5)
    assert time.monotonic() - begun < 5  # 10 s of bytes


# Policies
def test_a_server_reads_no_files_and_no_addresses_of_its_own_network(server: str, image_file: Path) -> None:
    refused: dict[Any, str] = {
        str(image_file): "^image: expected a source that is allowed here .*; got a path on this machine$",
        image_file: "got a path on this machine$",
        image_file.as_uri(): "got a path on this machine$",
        str(image_file.parent / "missing.png"): "got a path on this machine$",  # there or not: the same answer
        f"{server}/image.png": r"^127.0.0.1: expected a public address \(sources\); got one that is not$",
    }
    for source, message in refused.items():
        refuses(message, load_image, source, sources="public")
        assert load_image(source).size == SIZE if "missing" not in str(source) else True
    refuses(r"allowed here \(sources\); got http:$", load_image, f"{server}/image.png", sources="inline")
    for policy in POLICIES:
        assert load_image(CONTENT, sources=policy).size == SIZE


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"]
    + ["::1", "fe80::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "ff02::1"],
)
def test_addresses_that_are_not_public(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One private address among public ones is enough: the name's owner chooses which one is used."""
    entries = [(0, 0, 0, "", ("8.8.8.8", 80)), (0, 0, 0, "", (address, 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: entries)
    refuses("^name.example: expected a public address", load_image, "http://name.example/image.png", sources="public")


def test_redirects_are_checked_and_the_checked_address_is_used(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is looked up once: an answer that changes between check and connection changes nothing."""
    real = public_sources._public_address

    def public(host: str, port: int | None) -> str:
        return "127.0.0.1" if host == "name.example" else real(host, port)

    monkeypatch.setattr(public_sources, "_public_address", public)
    named = server.replace("127.0.0.1", "name.example")
    assert load_image(f"{named}/image.png", sources="public").size == SIZE
    assert load_image(f"{named}/moved", sources="public").size == SIZE
    refuses("^127.0.0.1: expected a public address", load_image, f"{named}/away", sources="public")
    policy = POLICIES["public"]
    assert image_loading.download(f"{named}/host", policy, 5).decode() == named.removeprefix("http://")


def test_the_image_processors_setting(image_file: Path, tmp_path: Path) -> None:
    size = {"height": 64, "width": 64}
    strict = ArrCocImageProcessor(size=size, patch_size=4, sources="public")
    strict.save_pretrained(tmp_path)
    for processor in (strict, ArrCocImageProcessor.from_pretrained(tmp_path)):
        with pytest.raises(ValueError, match="got a path on this machine$"):
            processor(str(image_file))
        with pytest.raises(ValueError, match="got a path on this machine$"):
            processor.fetch_images([str(image_file)])
    with pytest.raises(
        ValueError, match="^sources: expected one of any, inline, public, or a SourcePolicy; got 'all'$"
    ):
        ArrCocImageProcessor(size=size, patch_size=4, sources="all")


# What is not read, and not said
def test_pipes_devices_and_program_formats_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        refuses("expected an image file; got a device, pipe or socket$", load_image, path)
    # An EPS file named x.png started Ghostscript.
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *args, **kwargs: pytest.fail("started"))
    path = tmp_path / "x.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    refuses(r"expected an image \(PNG, .*\), a PDF or a video; got text$", load_image, path)


def test_errors_quote_neither_content_nor_passwords(server: str, tmp_path: Path) -> None:
    for content in (b"secret line\n", b"P6 secret", b"\x89PNG\r\n\x1a\nsecretsecretsecret", b"GIF89asecret"):
        (tmp_path / "passwords").write_bytes(content)
        with pytest.raises(ValueError) as caught:
            load_image(tmp_path / "passwords")
        assert "secret" not in str(caught.value) and caught.value.__cause__ is None
    address = server.removeprefix("http://")
    for url in (
        f"http://me:secret@{address}/missing.png?token=secret#secret",
        "http://me:secret@[/",
        "http://u:secret@h:x/",
    ):
        with pytest.raises(ValueError) as caught:
            load_image(url, timeout=2)
        assert "secret" not in str(caught.value) and caught.value.__cause__ is None


def test_a_policy_lists_hosts_and_bounds_sizes(server: str) -> None:
    """Redirects too: a listed host may not send a server anywhere it likes."""
    allowed = GuardedSources(schemes=("http",), hosts=("localhost",), private_addresses=True)
    named = server.replace("127.0.0.1", "localhost")
    assert load_image(f"{named}/moved", sources=allowed).size == SIZE
    for url in (f"{server}/image.png", f"{named}/away"):
        refuses(r"expected a host that is allowed here \(sources\); got another$", load_image, url, sources=allowed)
    with pytest.raises(ValueError, match="image.png: expected at most 10 bytes; got more$"):
        load_image(f"{server}/image.png", sources=SourcePolicy(max_bytes=10))
