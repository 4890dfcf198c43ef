"""`arr-coc serve` and `arr-coc demo`: a model behind an OpenAI-compatible API, and behind a page in the browser."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

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
    _add_limits(parser)
    _add_use(parser)
    add_options(parser, "device")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits").add_argument
    mib: dict[str, Any] = {"metavar": "MIB", "type": int}
    count: dict[str, Any] = {"metavar": "N", "type": int}
    add("--max-body", help="size of a request in MiB (default: 16)", **mib)
    add("--max-pixels", help="pixels of an image, or of all pages of a document (default: 40 million)", **count)
    add("--image-workers", help="processes that decode images (default: 2)", **count)
    add("--encodings", help="cache of encoded images in MiB (default: 512)", **mib)
    add("--max-waiting", help="waiting questions; more get status 429 (default: 128)", **count)
    add("--max-running", help="questions in the batch (default: 8 on a CPU, else 64)", **count)
    add("--max-tokens", help="tokens of an answer; requests for more are refused (default: 1024)", **count)
    add("--cache-tokens", help="tokens of the language model's cache (default: 16384)", **count)
    add("--answer-seconds", metavar="S", type=float, help="seconds for a whole answer (default: 120)")


def _add_use(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("logs of use (nothing is kept by default)").add_argument
    examples = "folder for a log: a sample of the answers, all failures, all unsure answers; see arr-coc replay"
    add("--examples", metavar="DIR", help=examples)
    add("--sample", metavar="P", type=float, help="share of answers that is logged (default: 0.001)")
    add("--unsure", metavar="P", type=float, help="confidence below which all are logged (default: 0.5)")
    mib: dict[str, Any] = {"metavar": "MIB", "type": int}
    size = "size of that log in MiB; the oldest are dropped (default: 256)"
    add("--examples-size", dest="examples_bytes", help=size, **mib)
    add("--feedback", metavar="DIR", help="folder for the feedback of /v1/feedback; see arr-coc learn")
    size = "size of it in MiB; if full, feedback is refused (default: 1024)"
    add("--feedback-size", dest="feedback_bytes", help=size, **mib)
    redact = "function that edits or drops each entry of both logs before it is written"
    add("--redact", metavar="MODULE:FUNCTION", help=redact)
    versions = "folder of scorer versions; the server fetches with the one that arr-coc learn promotes"
    add("--versions", metavar="DIR", help=versions)


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
    from arr_coc.serving.settings import ServerSettings, UseSettings

    settings = _given(ServerSettings, args, api_keys=_keys(args.api_keys), image_hosts=tuple(args.image_host))
    folders = ("examples", "feedback", "versions")
    own = {name: Path(folder).expanduser() for name in folders if (folder := getattr(args, name)) is not None}
    use = _given(UseSettings, args, **own)
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
    from arr_coc.serving.settings import MIB

    given: dict[str, Any] = {field.name: getattr(args, field.name, None) for field in fields(kind)} | own
    for name in ("max_body", "encodings", "examples_bytes", "feedback_bytes"):
        if given.get(name) is not None:
            given[name] *= MIB
    return kind(**{name: value for name, value in given.items() if value is not None})


def _keys(file: str | None) -> tuple[str, ...]:
    """Keys of the file, or else of the environment.

    Raises:
        ValueError: a file without keys.
    """
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
