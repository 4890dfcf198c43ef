"""Which of several servers a request goes to: questions about one image to the same, which holds its encoding."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from .encodings import HANDLE, handle_of, inline_content


def affinity_key(body: bytes, secret: bytes) -> str:
    """What a request's first image is known by: the handle that its encoding has or will have, or its URL.

    Args:
        body: of /v1/chat/completions or /v1/encodings.
        secret: that all servers tell handles from.

    Returns:
        "" where there is no image, or none that can be read: any server says why.
    """
    try:
        url = _first_image(json.loads(body))
        if url.startswith("data:"):
            return handle_of(hashlib.sha256(inline_content(url)).digest(), secret)
        return url.removeprefix(HANDLE)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""


def _first_image(request: Any) -> str:
    if "image" in request:
        return str(request["image"])
    parts = (part for message in request["messages"] for part in message["content"] if isinstance(part, dict))
    urls = (
        part["file"]["file_data"] if part["type"] == "file" else part["image_url"]["url"]
        for part in parts
        if part.get("type") in ("image_url", "file")
    )
    return str(next(urls, ""))


def by_affinity(key: str, names: Iterable[str]) -> list[str]:
    """Servers in the order in which a key prefers them: whichever comes or goes, the others keep their keys.

    Rendezvous hashing (Thaler and Ravishankar, 1996): each server draws a number for the key, the largest is first.
    """
    return sorted(names, key=lambda name: hashlib.sha256(f"{key}\0{name}".encode()).digest(), reverse=True)
