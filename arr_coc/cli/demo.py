"""`arr-coc demo`: a page in the browser to ask about images."""

from __future__ import annotations

import argparse

from .common import Command, add_device_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="folder, or org/name on the Hub (default: arr-coc-tiny-2 of a checkout)",
    )
    parser.add_argument("--host", metavar="H", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", metavar="P", type=int, default=7860, help="port to listen at (default: %(default)s)")
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    try:
        from arr_coc.demo.page import Page
        from arr_coc.demo.page import run as serve
    except ImportError as error:
        raise ValueError(f'demo: expected its packages, pip install "arr-coc[demo]"; got {error}') from error
    from arr_coc.loading import load_model

    page = Page(load_model(args.model, args.device))
    serve(page, args.host, args.port, lambda url: print(f"Open {url} (Ctrl-C ends it)", flush=True))


COMMAND = Command(
    name="demo",
    summary="serve a web page to ask about images",
    description=(
        "Serve a web page: drop an image, ask about it, and see which patches each question fetched, with two\n"
        "strategies side by side if wanted. No data leaves the machine."
    ),
    examples=("arr-coc demo", "arr-coc demo out/arr-coc-tiny --port 8080"),
    add_arguments=add_arguments,
    run=run,
)
