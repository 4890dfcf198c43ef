"""Serves the page, and keeps it to itself: no request leaves the machine, neither the server's nor the page's."""

from collections.abc import Callable
from threading import Event

import gradio as gr
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .page import Page

POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; base-uri 'self'; form-action 'self'"
"""What the browser may load: Gradio's own files, whatever they name."""

MAX_UPLOAD = 32 * 2**20
"""Bytes of a file."""

VISITORS = 64
"""Visitors whose images are held; beyond it the one who was idle longest starts anew."""

STYLE = """
html { overflow-anchor: none; }
@media (max-width: 700px) { #answers { min-height: 100vh; } }
#first-picture img, #second-picture img { max-height: 66vh; object-fit: contain; }
#message p { margin: 0; padding: .6em .8em; border-left: 4px solid #c00; background: #c0000014; font-weight: 600; }
:focus-visible { outline: 3px solid #ff6a00 !important; outline-offset: 1px; }
footer { display: none !important; }
"""


class OwnFilesOnly:
    """Tells the browser with every answer to load nothing from elsewhere, and to tell nobody where it was."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = POLICY
                headers["Referrer-Policy"] = "no-referrer"
            await send(message)

        await self.app(scope, receive, send_with_policy)


def run(page: Page, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serves a page until the process is interrupted.

    Args:
        page: what to serve.
        host: address to listen at.
        port: to listen at.
        ready: called with the page's URL once it answers.

    Raises:
        OSError: the port is taken.
    """
    theme = gr.themes.Default(primary_hue="blue")
    theme.set(button_primary_background_fill="*primary_700", button_primary_background_fill_hover="*primary_800")
    _, url, _ = page.blocks.launch(
        server_name=host,
        server_port=port,
        app_kwargs={"middleware": [Middleware(OwnFilesOnly)]},
        css=STYLE,
        theme=theme,
        footer_links=[],
        inbrowser=False,
        max_file_size=MAX_UPLOAD,
        mcp_server=False,
        prevent_thread_lock=True,
        pwa=False,
        quiet=True,
        run_history=False,
        share=False,
        ssr_mode=False,
        state_session_capacity=VISITORS,
    )
    try:
        ready(url)
        Event().wait()
    finally:
        page.blocks.close(verbose=False)
