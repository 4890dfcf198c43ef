"""Questions about one image go to one of several servers, whoever else comes or goes."""

import hashlib
import json
from collections import Counter
from typing import Any

import pytest
from serving_client import chat, data_url, noise, png

from arr_coc.serving.encodings import HANDLE, affinity_key, by_affinity, handle_of

SECRET = b"secret of all servers"
CONTENT = png(noise(0))


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_an_image_has_one_key_however_it_is_sent() -> None:
    handle = handle_of(hashlib.sha256(CONTENT).digest(), SECRET)
    asked = body(model="tiny", messages=chat("Who?", data_url(CONTENT), data_url(png(noise(1)))))
    assert affinity_key(asked, SECRET) == affinity_key(body(image=data_url(CONTENT)), SECRET) == handle
    assert affinity_key(body(messages=chat("Who?", HANDLE + handle)), SECRET) == handle
    assert affinity_key(asked, b"another secret") != handle
    assert affinity_key(body(messages=chat("Who?", "https://a.example/b.png")), SECRET) == "https://a.example/b.png"


@pytest.mark.parametrize(
    "request_body",
    [b"", b"no JSON", b"[" * 100_000, b"null", b"{}", body(messages="x"), body(messages=[{"content": "text"}]),
     body(messages=[{"content": [{"type": "image_url"}]}]), body(image="data:image/png;base64,@")],
)  # fmt: skip
def test_what_cannot_be_read_has_no_key(request_body: bytes) -> None:
    """A server says why; the gateway must not end over it."""
    assert affinity_key(request_body, SECRET) == ""


def test_a_server_that_goes_gives_its_keys_alone_away() -> None:
    servers, keys = [f"server {number}" for number in range(4)], [str(number) for number in range(2000)]
    first = {key: by_affinity(key, servers)[0] for key in keys}
    assert all(400 < count < 600 for count in Counter(first.values()).values())
    fewer = [name for name in servers if name != "server 2"]
    for key in keys:
        assert by_affinity(key, fewer)[0] == (first[key] if first[key] != "server 2" else by_affinity(key, servers)[1])
    assert by_affinity("a", reversed(servers)) == by_affinity("a", servers)
