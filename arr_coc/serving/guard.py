"""The guard in front of the application: keys, limits, complete request bodies.

It reads each body within limits of size and time, so that no endpoint waits for a slow client.
"""

import asyncio
import hmac

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .metrics import Metrics
from .protocol import error_response
from .settings import ServerSettings

OPEN_PATHS = ("/healthz", "/readyz")  # paths that are always answered, as monitoring has no key and must not wait


class _Refusal(Exception):
    """Raised to answer with an error of the guard."""

    def __init__(self, status: int, reason: str, message: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.reason, self.retry_after = status, reason, retry_after


class Guard:
    """An ASGI application around another one, with keys and limits; `metrics` count refusals."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics
        self.open = 0  # requests that are being read or answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        self.open += 1
        try:
            self._admit(scope)
            whole = replayed(await self._body(scope, receive), receive)
        except _Refusal as refusal:
            self.metrics.refused.labels(refusal.reason).inc()
            response = error_response(refusal.status, str(refusal), seconds=refusal.retry_after)
            response.headers["connection"] = "close"  # the body can be unread
            await response(scope, receive, send)
        except ClientDisconnect:
            self.metrics.refused.labels("gone").inc()
        else:
            await self.app(scope, whole, send)
        finally:
            self.open -= 1

    def _admit(self, scope: Scope) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        scheme, _, shown = headers.get(b"authorization", b"").partition(b" ")
        # Compares with all keys, each in constant time, so that the time reveals nothing about them.
        matches = [hmac.compare_digest(shown, key.encode()) for key in self.settings.api_keys]
        if self.settings.api_keys and not (scheme.lower() == b"bearer" and any(matches)):
            raise _Refusal(401, "key", "Authorization: expected Bearer and a key of this server; got another")
        if self.open > self.settings.max_open:
            raise _Refusal(429, "busy", "too many requests are open; try again", retry_after=1)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.settings.max_body:
            raise _Refusal(413, "body_size", f"body: expected at most {self.settings.max_body} bytes; got more")

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        limit, content = self.settings.max_body, bytearray()
        try:
            async with asyncio.timeout(self.settings.body_seconds):
                async for part in Request(scope, receive).stream():
                    content += part
                    if len(content) > limit:
                        raise _Refusal(413, "body_size", f"body: expected at most {limit} bytes; got more")
        except TimeoutError:
            expected = f"it whole within {self.settings.body_seconds:g} s"
            raise _Refusal(408, "body_time", f"body: expected {expected}; got a slower one") from None
        return bytes(content)


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the whole body first, then later messages."""
    unread = [body]

    async def replay() -> Message:
        return {"type": "http.request", "body": unread.pop(), "more_body": False} if unread else await receive()

    return replay
