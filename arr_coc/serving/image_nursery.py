"""The process that image workers are forked from: it has imported what they need, and never sees an image.

    python -m arr_coc.serving.image_nursery DESCRIPTOR

DESCRIPTOR is one end of a socket. Its first line is JSON: the image processor and the limits. Then come requests: "F"
with a descriptor forks a worker that answers at it, and the reply is its process id; "K" and a process id ends that
worker. The nursery ends with its workers when the other end closes. (multiprocessing's own server of this kind runs
the caller's main module again, and passes pickles.)
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from ..modeling.image_processing_arr_coc import ArrCocImageProcessor
from ..modeling.image_sources import SourcePolicy
from .image_worker import ImageLimits, work

_NUMBER = struct.Struct("<I")
_REQUEST = 1 + _NUMBER.size


class Nursery:
    """The nursery, seen from the server.

    Args:
        processor: the model's image processor.
        limits: of one image.
    """

    def __init__(self, processor: ArrCocImageProcessor, limits: ImageLimits) -> None:
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        # A session of its own: an interrupt at the terminal is the server's to handle, which drains first.
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._socket.sendall(json.dumps([processor.to_dict(), asdict(limits)]).encode() + b"\n")

    def fork(self) -> tuple[int, Connection]:
        """A new worker: its process id, and the connection to it.

        Raises:
            OSError: the nursery has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._socket, [b"F" + _NUMBER.pack(0)], [theirs.fileno()])
        reply = self._socket.recv(_NUMBER.size, socket.MSG_WAITALL)
        if len(reply) < _NUMBER.size:
            raise OSError("the process that image workers are forked from has ended")
        return _NUMBER.unpack(reply)[0], Connection(ours.detach())

    def kill(self, process: int) -> None:
        """Ends a worker, at work or not."""
        with suppress(OSError):
            self._socket.sendall(b"K" + _NUMBER.pack(process))
            self._socket.recv(_NUMBER.size, socket.MSG_WAITALL)

    def stop(self) -> None:
        """Ends all of it."""
        self._socket.close()
        self._process.wait()


def _serve(control: socket.socket) -> None:
    line = bytearray()
    while not line.endswith(b"\n"):
        line += control.recv(1) or sys.exit(0)
    processor, limits = _configured(*json.loads(line))
    workers: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _REQUEST, 1)
        if len(message) < _REQUEST:
            break
        number = _NUMBER.unpack_from(message, 1)[0]
        if message[:1] == b"F":
            number = os.fork()
            if not number:
                control.close()
                work(Connection(descriptors[0]), processor, limits)
                os._exit(0)
            os.close(descriptors[0])
            workers.add(number)
        elif number in workers:
            _end(number)
            workers.remove(number)
        control.sendall(_NUMBER.pack(number))
    for worker in workers:
        _end(worker)


def _end(worker: int) -> None:
    """Until it is waited for, a dead worker keeps its number: no other process has it."""
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)


def _configured(processor: dict[str, Any], limits: dict[str, Any]) -> tuple[ArrCocImageProcessor, ImageLimits]:
    policy = limits.pop("policy")
    lists = {name: tuple(value) for name, value in policy.items() if isinstance(value, list)}
    return ArrCocImageProcessor.from_dict(processor), ImageLimits(**limits, policy=SourcePolicy(**{**policy, **lists}))


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
