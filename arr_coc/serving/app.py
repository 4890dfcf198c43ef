"""The application: endpoints, errors, start and end; and the function that runs it."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import PurePath
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from ..attached import AttachedReader
from ..evaluation.fetch_reference import find_reference
from ..families.public_sources import GuardedSources
from ..journal import JournalFull
from ..modeling.image_loading import shorten
from ..modeling.image_processing_arr_coc import ArrCocImageProcessor
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .attached_engine import AttachedEngine
from .chat import Chat
from .encodings import HANDLE, AttachedEncoder, Encoder, EncodingStore, ModelEncoder, UnknownHandle
from .engine import Engine
from .guard import Guard
from .image_workers import ImageLimits, WorkerPool
from .metrics import FetchWatch, Metrics
from .protocol import ChatRequest, EncodingRequest, error_response, invalid_field
from .question_queue import EngineBusy, EngineStopped, QuestionQueue
from .settings import ServerSettings, UseSettings
from .use import FeedbackRequest, UnknownAnswer, Use

logger = logging.getLogger(__name__)


class Server:
    """One model behind HTTP: one of ours with its processor, or a reader of a published model.

    Args:
        name: the model's name for clients; by default the last part of its folder or Hub name.
        use: settings of the logs; by default there are none.
        secret: the key of the handles of encodings, random by default. Servers with the same key give the same handles.

    Attributes:
        app: the ASGI application, with the guard.
        on_ready: called when the server's threads and workers have started.

    Raises:
        ValueError: a model that cannot be served, or logs and versions with a published model.
    """

    def __init__(
        self,
        model: ArrCocForConditionalGeneration | AttachedReader,
        settings: ServerSettings,
        name: str | None = None,
        use: UseSettings = UseSettings(),  # noqa: B008  it is frozen
        secret: bytes | None = None,
    ) -> None:
        self.model, self.settings, self.metrics = model, settings, Metrics()
        config = model.model.config if isinstance(model, AttachedReader) else model.config
        self.name = name or PurePath(config._name_or_path).name or "arr-coc"
        alone, restarted = self.metrics.fallbacks.labels("alone").inc, self.metrics.worker_restarts.inc
        self.engine: QuestionQueue
        encoder: Encoder
        if isinstance(model, AttachedReader):
            for wanted in ("examples", "versions"):
                if getattr(use, wanted) is not None:
                    raise ValueError(f"{wanted}: expected none with a {config.model_type} model; got a folder")
            processor, encoder = ArrCocImageProcessor(), AttachedEncoder(model)
            self.engine = AttachedEngine(model, settings, alone)
        else:
            self.watch = FetchWatch(find_reference(model), self.metrics)
            processor, encoder = model.processor.image_processor, ModelEncoder(model)
            self.engine = Engine(model, settings, self.watch.observe, alone)
        schemes = ("http", "https") if settings.image_hosts else ()
        policy = GuardedSources(schemes, settings.max_body, settings.private_images, settings.image_hosts)
        limits = ImageLimits(settings.max_pixels, policy)
        self.workers = WorkerPool(processor, limits, settings.image_workers, restarted)
        self.store = EncodingStore(encoder, self.workers, settings.encodings, self.metrics, secret)
        self.use = Use(self.engine, self.store, self.metrics, use)
        self.chat = Chat(self.engine, self.store, settings, self.metrics, self.name, self.use.watch)
        self.api = _endpoints(self)
        self.app = Guard(self.api, settings, self.metrics)
        self.on_ready: Callable[[], None] = lambda: None
        self.metrics.watch("arr_coc_waiting", "Questions that wait for the batch.", lambda: self.engine.waiting)
        self.metrics.watch("arr_coc_running", "Questions in the batch.", lambda: self.engine.running)
        self.metrics.watch("arr_coc_open_requests", "Requests being read or answered.", lambda: self.app.open)
        self.metrics.watch("arr_coc_encoding_bytes", "Bytes of encodings held.", lambda: self.store.bytes)

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Starts and ends the threads beside the event loop."""
        await self.workers.start()
        await asyncio.to_thread(self.engine.start)
        self.use.start()
        self.on_ready()
        try:
            yield
        finally:
            await asyncio.to_thread(self.engine.stop)
            await asyncio.to_thread(self.use.stop)
            await self.workers.stop()
            await self.store.stop()


def _endpoints(server: Server) -> FastAPI:
    # Without FastAPI's documentation pages, which load scripts from other hosts.
    api = FastAPI(title="ARR-COC", docs_url=None, redoc_url=None, openapi_url=None, lifespan=server.lifespan)
    _add_errors(api, server)
    loaded = int(time.time())  # the server got the model just now
    model = {"id": server.name, "object": "model", "created": loaded, "owned_by": "arr-coc"}

    def check_model(name: str) -> None:
        if name != server.name:
            raise HTTPException(
                404, f"model: expected {server.name!r}, which is served here; got {shorten(name, 40)!r}"
            )

    @api.get("/healthz")
    @api.get("/readyz")
    async def health() -> Response:
        return JSONResponse({"ok": server.engine.alive}, 200 if server.engine.alive else 503)

    @api.get("/metrics")
    async def metrics() -> Response:
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4")

    @api.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [model]}

    @api.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        check_model(name)
        return model

    @api.post("/v1/encodings")
    async def encodings(body: EncodingRequest, request: Request) -> dict[str, Any]:
        async with asyncio.timeout(server.settings.answer_seconds):
            held = await _while_there(request, server.store.get(body.image, body.words))
        size = {name: held.seen[0][name] for name in ("height", "width")}
        return {"object": "encoding", "id": f"{HANDLE}{held.handle}", "size": size, "bytes": held.size}

    @api.post("/v1/feedback")
    async def feedback(body: FeedbackRequest) -> dict[str, Any]:
        if server.use.desk is None:
            raise HTTPException(404, "feedback: expected a server that keeps it; got one that does not")
        async with asyncio.timeout(server.settings.answer_seconds):
            await server.use.desk.take(body)
        return {"object": "feedback", "taken": True}

    @api.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, request: Request) -> dict[str, Any] | StreamingResponse:
        check_model(body.model)
        answering = await _while_there(request, server.chat.begin(body))
        if body.stream:
            return StreamingResponse(answering.events(), media_type="text/event-stream")
        try:
            return await _while_there(request, answering.whole())
        finally:
            answering.end()

    return api


class _ClientGone(Exception):
    """Raised when the client has disconnected."""


async def _while_there(request: Request, answer: Any) -> Any:
    """Awaits the answer; cancels it when the client disconnects. Raises _ClientGone: the client disconnected."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise _ClientGone
        return work.result()
    finally:
        for task in (work, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


def _add_errors(api: FastAPI, server: Server) -> None:
    """Returns errors in OpenAI's form; internal errors without details of the server."""

    def refuse(reason: str, status: int, message: str, **more: Any) -> Response:
        server.metrics.refused.labels(reason).inc()
        return error_response(status, message, **more)

    async def answer(_: Request, error: Exception) -> Response:
        match error:
            case RequestValidationError():
                field, message = invalid_field(error.errors(), error.body)
                return refuse("request", 400, message, param=field)
            case UnknownHandle():
                return refuse("handle", 404, str(error), code="unknown_encoding")
            case UnknownAnswer():
                return refuse("answer", 404, str(error), code="unknown_answer")
            case ValueError():
                return refuse("image" if str(error).startswith(("image", "bytes")) else "request", 400, str(error))
            case HTTPException():
                return refuse("request", error.status_code, str(error.detail))
            case EngineBusy():
                return refuse("busy", 429, str(error), seconds=error.seconds, code="busy")
            case EngineStopped():
                return refuse("stopped", 503, "the server ended before the answer did", seconds=5, code="stopped")
            case JournalFull():
                logger.error("feedback was not kept: %s", error)
                return refuse("journal", 507, "feedback: expected room for it; got none")
            case TimeoutError():
                limit = f"{server.settings.answer_seconds:g} s, the server's --answer-seconds"
                return refuse("deadline", 504, f"the answer took too long: more than {limit}", code="deadline")
            case _ClientGone():
                server.metrics.refused.labels("gone").inc()
                return Response(status_code=499)
            case _:
                logger.error("a request failed", exc_info=error)
                return refuse("fault", 500, "the server failed to answer; its log says why")

    known = (RequestValidationError, ValueError, HTTPException, EngineBusy, EngineStopped, JournalFull, TimeoutError)
    for kind in (*known, _ClientGone, Exception):
        api.add_exception_handler(kind, answer)


def web_server(server: Server, on_ready: Callable[[], None]) -> uvicorn.Server:
    """uvicorn, which on SIGTERM or SIGINT answers the open requests and ends; `on_ready` is called at the start."""
    server.on_ready = on_ready
    seconds = int(server.settings.answer_seconds) + 1
    config = uvicorn.Config(
        server.app, lifespan="on", log_level="warning", server_header=False, timeout_graceful_shutdown=seconds
    )
    return uvicorn.Server(config)


def share_cores() -> None:
    """Halves PyTorch's threads, since two of the server's threads compute at once: one embeds, one answers.

    If both used all cores, each matrix product would wait for its slowest thread.
    """
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))


def run(server: Server, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serves at an address until SIGTERM or SIGINT; a second SIGINT ends at once. Port 0: any free port.

    `on_ready` is called with the URL when the server accepts questions.

    Raises:
        OSError: the address is in use, or does not belong to this machine.
    """
    if server.engine.device.type == "cpu":
        share_cores()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=2048) as listening:
        name = f"[{host}]" if family == socket.AF_INET6 else host
        url = f"http://{name}:{listening.getsockname()[1]}/v1"
        web_server(server, lambda: on_ready(url)).run(sockets=[listening])
