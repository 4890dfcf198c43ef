"""The server as an application of Ray Serve: replicas on several machines behind one address.

    serve deploy examples/ray_serve.yaml

A gateway accepts requests (keys, limits, complete bodies), identifies their image and passes them to a replica. A
replica is the same application as `arr-coc serve`. Ray starts, monitors, replaces and scales replicas. A deployment
with other arguments replaces them one by one, each after it has answered its open requests. If a replica dies before
the first byte of its answer, another replica gets the request.
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
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..attached.reader import load_model_or_reader
from .app import Server
from .encodings import affinity_key, by_affinity
from .guard import Guard, replayed
from .metrics import Metrics
from .protocol import error_response
from .settings import ServerSettings

ATTEMPTS = 5  # the most replicas that one request tries, as several can die
PAUSE = 0.5  # seconds before the next attempt, as Ray needs time to notice a dead replica
REPLICA = b"x-arr-coc-replica"  # the header with the name of the replica that answered

_SCOPE = ("type", "http_version", "method", "path", "raw_path", "query_string", "headers", "scheme")
"""Keys of a request's scope that are sent to a replica; the others are objects of the gateway's process."""


class AffinityRouter(RequestRouter):
    """Ranks replicas by the key in the first argument of a call; skips full or dead replicas."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        key = pending_request.args[0] if pending_request is not None and pending_request.args else ""
        if not key:
            return [candidate_replicas]
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        return [[replicas[name]] for name in by_affinity(key, replicas)]


class Replica:
    """One server; see `RayArguments`, and `Server`.

    Args:
        secret: key of the handles, the same for all replicas.
        version: unused. Ray replaces replicas whose arguments change, so a new version replaces them.
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
        self.tag = serve.get_replica_context().replica_id.unique_id.encode()
        self._running = AsyncExitStack()
        await self._running.enter_async_context(self.server.lifespan(self.server.api))

    async def answer(self, key: str, scope: Scope, body: bytes) -> AsyncIterator[Message]:
        """The application's messages to one request; `key` is the router's."""
        gone, messages = asyncio.Event(), asyncio.Queue[Message | None]()

        async def disconnected() -> Message:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (REPLICA, self.tag)]}
            messages.put_nowait(message)

        received = replayed(body, disconnected)
        request = asyncio.ensure_future(self.server.app({**scope, "root_path": ""}, received, send))
        request.add_done_callback(lambda done: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
            await request  # raises the request's error, if any
        finally:
            gone.set()  # as when the client disconnects; also when the caller cancels this generator
            request.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await request

    def check_health(self) -> None:
        """Raises if the engine has stopped; Ray then replaces the replica."""
        if not self.server.engine.alive:
            raise RuntimeError("the engine has stopped")

    async def __del__(self) -> None:
        await self._running.aclose()


class Gateway:
    """Accepts requests, by the keys and request limits of the settings, and passes them to replicas. `secret`: key of
    the handles."""

    def __init__(self, replicas: DeploymentHandle, settings: ServerSettings, secret: bytes) -> None:
        self.replicas: Any = replicas.options(stream=True)
        self.settings, self.secret = settings, secret

    def __serve_build_asgi_app__(self) -> ASGIApp:
        # Starlette answers the lifespan events of ASGI.
        return Starlette(routes=[Mount("/", app=Guard(self._hand_on, self.settings, Metrics()))])

    async def _hand_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends a request to replicas until one answers."""
        body = b"" if scope["method"] == "GET" else (await receive())["body"]
        key = await asyncio.to_thread(affinity_key, body, self.secret) if body else ""
        if scope["path"].endswith("/encodings") and key.startswith(("http:", "https:")):
            message = "image: expected a data: URL, by which several servers know an image; got another"
            await error_response(400, message)(scope, receive, send)
            return
        passed = {name: scope[name] for name in _SCOPE if name in scope}
        begun = False
        for _ in range(ATTEMPTS):
            answer = self.replicas.answer.remote(key, passed, body)
            try:
                async with asyncio.timeout(self.settings.answer_seconds) as limit:
                    async for message in answer:
                        limit.reschedule(None)  # from the first byte on, the replica enforces the deadline
                        begun = True
                        await send(message)
                return
            except TimeoutError:
                await error_response(503, "no server is ready; try again", seconds=5)(scope, receive, send)
                return
            except (RayActorError, RayServeException):
                if begun:  # the answer is incomplete, which the client notices
                    raise
                await asyncio.sleep(PAUSE)
            finally:
                answer.cancel()
        message = "the servers end before they answer; try again"
        await error_response(503, message, seconds=5)(scope, receive, send)


class RayArguments(BaseModel):
    """The arguments of a deployment."""

    model_config = ConfigDict(extra="forbid")

    model: str  # a folder that exists on every machine, or a name on the Hub
    name: str | None = None  # the model's name for clients
    device: str | None = None  # device of each replica
    settings: dict[str, Any] = Field(default_factory=dict)  # fields of `ServerSettings`
    min_replicas: int = 1  # bounds of the number of replicas, which Ray adapts to the load
    max_replicas: int = 4
    target_requests: float = 8.0  # the wanted number of open requests per replica
    idle_seconds: float = 600.0  # seconds until an idle replica that is not needed ends
    cpus: float = 1.0  # of a replica, as `gpus`
    gpus: float = 0.0
    # extra replicas during an update, in percent: old replicas serve until new ones are ready. 0 if there is no room
    # for more: a replica then ends before its successor starts.
    surge_percent: int = Field(25, ge=0, le=100)
    # the key of handles; by default random for each deployment, which replaces all replicas
    secret: str | None = Field(None, min_length=16)
    version: str = ""  # change it to replace replicas when only the weights in the folder have changed


def build(args: RayArguments) -> serve.Application:
    """The application for `serve run arr_coc.serving.ray_app:build model=...` and `serve deploy FILE`."""
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
