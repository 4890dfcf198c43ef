"""Runs a server until it is told to end."""

import socket
from collections.abc import Callable
from types import FrameType

import torch
import uvicorn

from .app import Server


class DrainingServer(uvicorn.Server):
    """uvicorn, which on SIGTERM and SIGINT takes no more requests and ends when those it took are answered.

    Args:
        server: what is served.
        on_ready: called when questions are taken.
    """

    def __init__(self, server: Server, on_ready: Callable[[], None]) -> None:
        seconds = int(server.settings.answer_seconds) + 1
        config = uvicorn.Config(
            server.app, lifespan="on", log_level="warning", server_header=False, timeout_graceful_shutdown=seconds
        )
        super().__init__(config)
        self._server, self._on_ready = server, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._server.guard.draining = True
        super().handle_exit(sig, frame)


def share_cores() -> None:
    """Halves PyTorch's threads: two of the server's threads compute at once, one that embeds and one that answers.

    With all cores for each, every product would wait for the slower half of it.
    """
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))


def run(server: Server, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT; a second SIGINT ends at once.

    Args:
        server: what is served.
        host: address to listen at.
        port: 0: any that is free.
        on_ready: called with the URL when questions are taken.

    Raises:
        ValueError: a port that there is not.
        OSError: the address is taken, or not this machine's.
    """
    if not 0 <= port < 2**16:
        raise ValueError(f"port: expected 0 to {2**16 - 1}; got {port}")
    if server.engine.asker.model.device.type == "cpu":
        share_cores()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2048) as listening:
        name = f"[{host}]" if family == socket.AF_INET6 else host
        url = f"http://{name}:{listening.getsockname()[1]}/v1"
        DrainingServer(server, lambda: on_ready(url)).run(sockets=[listening])
