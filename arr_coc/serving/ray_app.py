"""The server as an application of Ray Serve: replicas on several machines behind one address.

    serve deploy examples/ray_serve.yaml

A gateway takes requests (keys, limits, a whole body in time), finds which image they are about, and hands them to a
replica: the same application as `arr-coc serve`, whose guard, chat and engine answer. Ray starts, watches, replaces and
scales replicas; deploying again with other arguments replaces them one after the other, each when it has answered what
it took. If a replica dies before the first byte of its answer, another one gets the request.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from starlette.responses import JSONResponse

from ..attached.reader import load_model_or_reader
from .app import Server
from .encodings import affinity_key, by_affinity
from .guard import App, Guard, Message, Receive, Send
from .metrics import Metrics
from .protocol import error_body
from .settings import ServerSettings

ATTEMPTS = 5
"""The most replicas that one request tries: several may die."""

PAUSE = 0.5
"""Seconds before the next try: Ray needs a moment to notice a dead replica."""

REPLICA = b"x-arr-coc-replica"
"""The header with the name of the replica that answered."""

_SCOPE = ("type", "http_version", "method", "path", "raw_path", "query_string", "headers", "scheme")
"""What of a request's scope goes to a replica; the rest are objects of the gateway's process."""


class AffinityRouter(RequestRouter):
    """Ranks replicas by the key in the first argument of a call; full or dead ones are skipped."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        key = pending_request.args[0] if pending_request is not None and pending_request.args else ""
        if not key:
            return [candidate_replicas]
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[replicas[name]] for name in by_affinity(key, replicas)]


class Replica:
    """One server.

    Args:
        model: folder or name on the Hub.
        settings: its limits.
        name: what clients call the model.
        device: "cpu", "cuda", ...
        secret: of handles, the same for all.
        version: what is deployed: Ray replaces replicas whose arguments are not the new ones.
    """

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self,
        model: str,
        settings: ServerSettings,
        name: str | None,
        device: str | None,
        secret: bytes,
        version: str = "",
    ) -> None:
        loaded = await asyncio.to_thread(load_model_or_reader, model, device)
        self.server = Server(loaded, settings, name, secret=secret)
        self.version = version
        self.tag = serve.get_replica_context().replica_id.unique_id.encode()
        self._running = AsyncExitStack()
        await self._running.enter_async_context(self.server.lifespan(self.server.api))

    async def answer(self, key: str, scope: Message, body: bytes) -> AsyncIterator[Message]:
        """The application's messages to one request; `key` is the router's."""
        gone, messages = asyncio.Event(), asyncio.Queue[Message | None]()
        unread = [body]

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (REPLICA, self.tag)]}
            messages.put_nowait(message)

        request = asyncio.ensure_future(self.server.app({**scope, "root_path": ""}, receive, send))
        request.add_done_callback(lambda done: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
            await request  # raises what it raised
        finally:
            gone.set()  # as when the client disconnects; so does a caller that cancels this generator
            request.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await request

    def check_health(self) -> None:
        """Ray replaces a replica whose check raises."""
        if not self.server.engine.alive:
            raise RuntimeError("the engine has stopped")

    async def __del__(self) -> None:
        await self._running.aclose()


class Gateway:
    """Takes requests and hands them to replicas.

    Args:
        replicas: Ray's handle of them.
        settings: whose keys and limits of a request count here, too.
        secret: of handles.
    """

    def __init__(self, replicas: DeploymentHandle, settings: ServerSettings, secret: bytes) -> None:
        self.replicas: Any = replicas.options(stream=True)
        self.settings, self.secret = settings, secret

    def __serve_build_asgi_app__(self) -> App:
        guard = Guard(self._hand_on, self.settings, Metrics())

        async def application(scope: Message, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await _live(receive, send)
            else:
                await guard(scope, receive, send)

        return application

    async def _hand_on(self, scope: Message, receive: Receive, send: Send) -> None:
        """Asks replicas until one answers."""
        body = b"" if scope["method"] == "GET" else (await receive())["body"]
        key = await asyncio.to_thread(affinity_key, body, self.secret) if body else ""
        if scope["path"].endswith("/encodings") and key.startswith(("http:", "https:")):
            message = "image: expected a data: URL, by which several servers know an image; got another"
            await _answer(send, 400, message, "invalid_request_error")
            return
        passed = {name: scope[name] for name in _SCOPE if name in scope}
        begun = False
        for _ in range(ATTEMPTS):
            answer = self.replicas.answer.remote(key, passed, body)
            try:
                async with asyncio.timeout(self.settings.answer_seconds) as limit:
                    async for message in answer:
                        limit.reschedule(None)  # from its first byte on an answer has its own deadline
                        begun = True
                        await send(message)
                return
            except TimeoutError:
                await _answer(send, 503, "no server is ready; try again", "server_error")
                return
            except (RayActorError, RayServeException):
                if begun:  # the client notices that the answer breaks off
                    raise
                await asyncio.sleep(PAUSE)
            finally:
                answer.cancel()
        await _answer(send, 503, "the servers end before they answer; try again", "server_error")


async def _live(receive: Receive, send: Send) -> None:
    """Starts and ends: there is nothing to do."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _answer(send: Send, status: int, message: str, kind: str) -> None:
    headers = {"Retry-After": "5"} if status == 503 else None
    response = JSONResponse(error_body(message, kind), status, headers)
    await send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body})


class RayArguments(BaseModel):
    """What is deployed.

    Attributes:
        model: folder that every machine has, or a name on the Hub.
        name: what clients call it.
        device: of each replica.
        settings: fields of `ServerSettings`.
        min_replicas, max_replicas: Ray keeps as many as the load needs.
        target_requests: open requests of a replica that are neither too many nor too few.
        idle_seconds: before a replica that is not needed ends.
        cpus, gpus: that a replica takes.
        surge_percent: replicas beyond the number needed while all are replaced, in percent of it: old ones serve until
            new ones are ready. 0 where there is no room for more: then one ends before its successor starts.
        secret: the key of handles. Without one each deployment draws its own, which replaces all replicas.
        version: change it to replace replicas though nothing else has changed, when the folder holds other weights.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    name: str | None = None
    device: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    min_replicas: int = 1
    max_replicas: int = 4
    target_requests: float = 8.0
    idle_seconds: float = 600.0
    cpus: float = 1.0
    gpus: float = 0.0
    surge_percent: int = Field(25, ge=0, le=100)
    secret: str | None = Field(None, min_length=16)
    version: str = ""


def build(args: RayArguments) -> serve.Application:
    """The application, as `serve run arr_coc.serving.ray_app:build model=...` and `serve deploy FILE` ask for it."""
    lists = {name: tuple(value) for name, value in args.settings.items() if isinstance(value, list)}
    settings = ServerSettings(**{**args.settings, **lists})
    secret = args.secret.encode() if args.secret else secrets.token_bytes(32)
    ending = settings.answer_seconds + 1
    scaling = AutoscalingConfig(
        min_replicas=args.min_replicas,
        max_replicas=args.max_replicas,
        target_ongoing_requests=args.target_requests,
        downscale_delay_s=args.idle_seconds,
    )
    replica = serve.deployment(Replica).options(
        name="Replica",
        ray_actor_options={"num_cpus": args.cpus, "num_gpus": args.gpus},
        autoscaling_config=scaling,
        max_ongoing_requests=settings.max_open,
        request_router_config=RequestRouterConfig(request_router_class=AffinityRouter),
        graceful_shutdown_timeout_s=ending,
        health_check_period_s=5.0,
        max_surge_percent=args.surge_percent,
    )
    gateway = serve.deployment(serve.ingress()(Gateway)).options(
        name="Gateway",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=settings.max_open * args.max_replicas,
        graceful_shutdown_timeout_s=ending,
    )
    replicas = replica.bind(args.model, settings, args.name, args.device, secret, args.version)
    return gateway.bind(replicas, settings, secret)
