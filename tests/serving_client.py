"""What the tests of the server share: a server in this process, and chats as the official client sends them."""

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import helpers
from helpers import png
from openai import OpenAI
from PIL import Image

from arr_coc.attached import AttachedReader
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.serving.app import Server, web_server
from arr_coc.serving.settings import ServerSettings, UseSettings


def noise(seed: int, size: tuple[int, int] = (60, 90)) -> Image.Image:
    return helpers.noise(*size, seed)


def data_url(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def chat(question: str, *urls: str) -> list[dict[str, Any]]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": question}]}]


@contextmanager
def serving(
    model: ArrCocForConditionalGeneration | AttachedReader, settings: ServerSettings, use: UseSettings | None = None
) -> Iterator[tuple[Server, str, OpenAI]]:
    """A running server, its URL, and a client of it."""
    server, ready = Server(model, settings, "tiny", use or UseSettings()), threading.Event()
    web = web_server(server, ready.set)
    alone = {"Connection": "close"}  # a kept one is closed after 5 s, perhaps as the next request goes out
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listening]})
        thread.start()
        assert ready.wait(120)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with OpenAI(base_url=url, api_key="any", max_retries=0, timeout=120, default_headers=alone) as client:
            yield server, url, client
        web.should_exit = True
        thread.join(60)
    assert not thread.is_alive()


def until(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether something becomes true in time."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


QUESTION = "What is the total?"
IMAGES = [png(noise(seed)) for seed in range(4)]
URLS = [data_url(content) for content in IMAGES]
SETTINGS = ServerSettings(
    cache_tokens=4096, max_waiting=64, embed_batch=4, max_running=6, max_pixels=100_000, image_workers=1
)


def ask(client: OpenAI, question: str = QUESTION, *urls: str, **options: Any) -> Any:
    """Asks about images, the first of `URLS` where none is named."""
    return client.chat.completions.create(model="tiny", messages=chat(question, *(urls or URLS[:1])), **options)


def text_of(completion: Any) -> str:
    return completion.choices[0].message.content
