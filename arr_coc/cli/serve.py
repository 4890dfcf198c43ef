"""`arr-coc serve` and `arr-coc demo`: a model behind an OpenAI-compatible API, and behind a page in the browser."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..serving.settings import MIB, ServerSettings, UseSettings
from .common import add_options, command

KEYS_VARIABLE = "ARR_COC_API_KEYS"


def _add_model_and_address(parser: argparse.ArgumentParser, port: int, listens: str) -> None:
    model = "folder, or org/name on the Hub (default: hub_configs/arr-coc-135m of a checkout)"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=model)
    parser.add_argument("--host", metavar="H", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", metavar="P", type=_port, default=port, help=f"{listens} (default: %(default)s)")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 65535; got {text!r}")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_model_and_address(parser, 8000, "port; 0: any free one")
    parser.add_argument("--name", metavar="N", help="name of the model for clients (default: the folder's)")
    keys = f"file of API keys, one per line; or {KEYS_VARIABLE}, comma-separated (default: no key is needed)"
    parser.add_argument("--api-keys", metavar="FILE", help=keys)
    hosts = "host from which images may be downloaded; may be repeated (default: data: URLs only)"
    parser.add_argument("--image-host", metavar="H", action="append", default=[], help=hosts)
    private = "allow these hosts to have addresses of this machine and its networks"
    parser.add_argument("--private-images", action="store_true", help=private)
    _add_settings(parser, "limits", ServerSettings)
    _add_settings(parser, "logs of use (nothing is kept by default)", UseSettings)
    add_options(parser, "device")


def _add_settings(parser: argparse.ArgumentParser, title: str, kind: Any) -> None:
    """The options of a class of settings."""
    group = parser.add_argument_group(title)
    for setting in fields(kind):
        if setting.metadata:
            described = {"flag": f"--{setting.name.replace('_', '-')}", **setting.metadata}
            group.add_argument(described.pop("flag"), dest=setting.name, **described)


@command("serve", "serve a model behind an OpenAI-compatible API", add_arguments)
def serve_command(args: argparse.Namespace) -> None:
    """Serve a model: /v1/chat/completions, /v1/models, /v1/encodings (encode an image once, ask many times),
    /healthz, /readyz, /metrics. On SIGTERM it answers accepted questions, then exits. Needs the extra "serve".
    With a published model of another family (Qwen3-VL, InternVL, ...) a request's budget may be a share of its
    image tokens; allocator, num_passes, --examples and --versions are not available.

    Examples:
        arr-coc serve hub_configs/arr-coc-tiny-2
        arr-coc serve --examples log --feedback said --versions scorers
        arr-coc serve Qwen/Qwen3-VL-2B-Instruct
        arr-coc serve org/model --host 0.0.0.0 --api-keys keys.txt --image-host images.example.org
    """
    settings = _given(ServerSettings, args, api_keys=_keys(args.api_keys), image_hosts=tuple(args.image_host))
    use = _given(UseSettings, args)
    try:
        from arr_coc.serving.app import Server
        from arr_coc.serving.app import run as serve
    except ImportError as error:
        raise ValueError(f'serve: expected its packages, pip install "arr-coc[serve]"; got {error}') from error
    from arr_coc.attached.reader import load_model_or_reader
    from arr_coc.publishing.building import whole_model

    print(f"Loading {args.model or 'the default model'} ...", file=sys.stderr, flush=True)
    server = Server(load_model_or_reader(whole_model(args.model), args.device), settings, args.name, use)
    serve(server, args.host, args.port, lambda url: print(f"{server.name} at {url}", flush=True))


def _given(kind: Any, args: argparse.Namespace, **own: Any) -> Any:
    """Settings from the arguments of the same names and from `own`; others keep their defaults."""
    given: dict[str, Any] = {}
    for setting in fields(kind):
        if (value := getattr(args, setting.name, None)) is not None:
            given[setting.name] = value * MIB if setting.metadata.get("metavar") == "MIB" else value
    return kind(**{**given, **own})


def _keys(file: str | None) -> tuple[str, ...]:
    """Keys of the file, or else of the environment. Raises ValueError: a file without keys."""
    if file is None:
        listed = os.environ.get(KEYS_VARIABLE, "").split(",")
    else:
        listed = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    keys = tuple(key.strip() for key in listed if key.strip())
    if file is not None and not keys:
        raise ValueError(f"--api-keys: expected a file with a key per line; got none in {file}")
    return keys


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    _add_model_and_address(parser, 7860, "port to listen at")
    add_options(parser, "device")


@command("demo", "serve a web page to ask about images", add_demo_arguments)
def demo_command(args: argparse.Namespace) -> None:
    """Serve a web page: drop an image, ask about it, and see which patches each question fetched, with two
    strategies side by side if wanted. No data leaves the machine.

    Examples:
        arr-coc demo
        arr-coc demo out/arr-coc-tiny-2 --port 8080
    """
    try:
        from arr_coc.demo.page import DemoPage
        from arr_coc.demo.page import run as serve
    except ImportError as error:
        raise ValueError(f'demo: expected its packages, pip install "arr-coc[demo]"; got {error}') from error
    from arr_coc.publishing.building import load_model

    page = DemoPage(load_model(args.model, args.device))
    serve(page, args.host, args.port, lambda url: print(f"Open {url} (Ctrl-C ends it)", flush=True))
