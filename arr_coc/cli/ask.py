"""`arr-coc ask`: one question or several about an image, or about several images together."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import add_options, announce, check_arguments, command, read_password, tiles_of, writable

if TYPE_CHECKING:
    from collections.abc import Callable

    from arr_coc.attached import AttachedReader
    from arr_coc.modeling.answers import Answer

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
URL = re.compile(r"(https?|file)://|data:\S*,", re.IGNORECASE)

FILE = re.compile(
    r".*\.(png|jpe?g|webp|gif|bmp|tiff?|ppm|avif|jp2|pdf|mp4|mov|mkv|webm|avi)|\S*/\S*[^\s?]", re.IGNORECASE
)
"""The name of a file that may be misspelt: an ending of an image or document, or one word with a slash."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    sources = "image, PDF or video file, http(s) URL or data: URL; several are asked about together"
    add("image", metavar="IMAGE", nargs="+", help=sources)
    add("questions", metavar="QUESTION", nargs="+", help="one or more questions, each in quotes")
    add_options(parser, "model", "strategy", "budget", "allocator", "passes", "box")
    tiles = "tiles of large images: auto, all, asked (those the question chooses), never, or a number (default: auto)"
    add("--tiles", metavar="T", type=tiles_of, help=tiles)
    add_options(parser, "readings", "words", "reread", "password-file")
    picture = (
        f"file for a picture of the fetched patches and their relevance ({', '.join(PICTURES)}); for a document or a "
        "large image it is a contact sheet"
    )
    add("--picture", metavar="FILE", help=picture)
    add("--json", action="store_true", help="print the answer and what was fetched as JSON")
    add_options(parser, "device")


def check(args: argparse.Namespace) -> None:
    """Refuses what needs no model."""
    if args.picture is not None:
        writable(args.picture, "--picture", PICTURES)
    args.image, args.questions = _split(args.image + args.questions)
    if args.picture is not None and len(args.questions) > 1:
        raise ValueError(f"--picture: expected one question, whose patches it shows; got {len(args.questions)}")
    if len(args.image) > 1 and args.box:
        raise ValueError(f"--box: expected one image, which it is on; got {len(args.image)}")
    if args.box and args.strategy != "oracle":
        received = args.strategy or "the model's own"
        raise ValueError(f"--box: expected --strategy oracle, which fetches what is in it; got {received}")
    if args.strategy == "oracle" and not args.box:
        raise ValueError("--box: expected the place of the answer beside --strategy oracle; got none")
    if (args.readings or 1) > 1 and (
        alone := "--box" if args.box else "--passes" if args.passes not in (None, 1) else ""
    ):
        raise ValueError(f"--readings: expected 1 beside {alone}; got {args.readings}")
    check_arguments(args)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The images, of which there is at least one, and the questions behind them."""
    files = [bool(os.path.exists(text) or URL.match(text) or FILE.fullmatch(text)) for text in arguments]
    first = files.index(False, 1) if False in files[1:] else len(files) - 1
    if True in files[first:]:
        text = arguments[files.index(True, first)]
        kind = "a file" if os.path.exists(text) else "the name of a file"
        raise ValueError(f"QUESTION: expected a question behind the images; got {kind}: {text}")
    return arguments[:first], arguments[first:]


@command("ask", "ask questions about one image or several", add_arguments, check)
def ask_command(args: argparse.Namespace) -> None:
    """Ask one question or several about one image or several, a PDF or a video, which are encoded once. The
    questions follow the images. Each answer goes to standard output, a line each (with --json one JSON object a
    line); the confidence and a summary of what was fetched go to standard error. With a published model of
    another family (Qwen3-VL, InternVL, ...) --budget may be a share of its image tokens; --allocator, --passes
    and --tiles are not available.

    Examples:
        arr-coc ask receipt.png "What is the total?"
        arr-coc ask receipt.png "What is the total?" "What is the date?"
        arr-coc ask receipt.png "What is the total?" --picture fetched.png
        arr-coc ask receipt.png "What is the total?" --strategy none --json
        arr-coc ask invoices.pdf "What is the total?" --picture sheet.png
        arr-coc ask first.png second.png "Which total is the highest?"
        arr-coc ask invoice.jpg "What is the total?" --model Qwen/Qwen3-VL-2B-Instruct --budget 0.25
    """
    from transformers.utils import logging

    from arr_coc.attached.reader import load_reader
    from arr_coc.modeling.image_loading import load_source
    from arr_coc.publishing.building import load_model
    from arr_coc.viewing import draw_answer, draw_sheet

    picture = None if args.picture is None else Path(args.picture).expanduser()
    password = read_password(args)
    images = [load_source(image, password=password) for image in args.image]
    announce(f"Loading {args.model or 'the default model'}")
    if (reader := load_reader(args.model, args.device)) is not None:
        answers: Any = reader
        seen, options = _encode_published(args, reader, images)
        model, sources, base = reader.model, seen.prompts[0].sources, None
    else:
        answers = model = load_model(args.model, args.device)
        logging.enable_progress_bar()  # for pages and tiles, whose encoding may take long
        page = [images] if len(images) > 1 else images[0]
        readings = 1 if args.readings is None else args.readings
        seen = model.encode_image(page, tiles=args.tiles, readings=readings, words=args.words, reread=args.reread)
        options = {"budget": args.budget, "allocator": args.allocator, "num_passes": args.passes}
        sources, base = seen.sources, len(seen) * seen.base_positions
    draw = partial(draw_answer, images[0]) if sources is None else partial(draw_sheet, sources)
    options |= {"strategy": args.strategy, "boxes": args.box}
    for question in args.questions:
        args.question, answer = question, answers.generate(seen, question, return_fetch=True, **options)
        _report(args, model, answer, answer.fetch.base if base is None else base, picture, draw)


def _encode_published(args: argparse.Namespace, reader: AttachedReader, images: list[Any]) -> tuple[Any, Any]:
    """The images as a published model with running back encodes them, and further options of its `generate`."""
    from arr_coc.attached.runner import share_or_number

    for name in ("allocator", "passes", "tiles", "readings", "reread"):
        if (value := getattr(args, name)) not in (None, 1):  # a published model has one pass and one reading
            raise ValueError(f"--{name}: expected none with a {reader.model.config.model_type} model; got {value}")
    options = {} if args.budget is None else {"budget": share_or_number(args.budget)}
    return reader.encode_image([images], words=args.words or "auto"), options


def _report(
    args: argparse.Namespace, model: Any, answer: Answer, base: int, picture: Path | None, draw: Callable[..., Any]
) -> None:
    """Prints and draws an answer."""
    from arr_coc.files import fresh_file
    from arr_coc.viewing import describe

    if args.json:
        whole = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        print(json.dumps(_as_json(args, model, answer, base), ensure_ascii=not whole))
    else:  # of several questions one line each
        print(answer.text if len(args.questions) == 1 else " ".join(answer.text.split()))
    sys.stdout.flush()
    if picture is not None:
        with fresh_file(picture) as beside:
            draw(answer, question=args.question).save(beside)
    if args.json:
        return
    drawn = "" if picture is None else f"; picture in {picture}"
    passes = f" in {len(answer.passes)} passes" if answer.passes else ""
    passes += f"; up to {args.readings} readings" if (args.readings or 1) > 1 else ""
    elsewhere = [source for source in dict.fromkeys(getattr(answer, "words", ())) if source != "network"]
    passes += f"; words from {' and '.join(elsewhere)}" if elsewhere else ""
    fallbacks = "".join(f"; {part} fell back" for part, count in answer.fetch.fallbacks.items() if count)
    said = f"{describe(answer.fetch, drawn=picture is not None)}{passes}{fallbacks}{drawn}"
    print(f"confidence {answer.probability:.1%}; {said}", file=sys.stderr)
    if answer.warning:
        print(f"warning: {answer.warning}", file=sys.stderr)


def _as_json(args: argparse.Namespace, model: Any, answer: Answer, base: int) -> dict[str, Any]:
    fetch = answer.fetch
    used = fetch.used.nonzero(as_tuple=True)
    images = [name if len(name) < 1000 else f"{name[:80]}..." for name in args.image]  # a data: URL is the image itself
    return {
        "answer": answer.text,
        "confidence": answer.probability,
        "legibility": answer.legibility,
        "words": answer.words,
        "warning": answer.warning,
        "image": images[0] if len(images) == 1 else images,
        "question": args.question,
        "model": model.config._name_or_path,
        "strategy": fetch.strategy,
        "allocator": fetch.allocator,
        "budget": int(fetch.counts.sum()),
        "patches": fetch.relevance.shape[-1],
        "tokens": {"base": base, "fetched": int(fetch.counts.sum())},
        "positions": fetch.positions[used].tolist(),  # (y, x) in the fine grid of its view
        "regions": fetch.regions()[used].tolist(),  # y0, x0, y1, x1 there, in patches
        "padding": fetch.is_padding[used].tolist(),
        "sources": [asdict(origin) for origin in answer.sources],
        "passes": [
            {
                "answer": each.text,
                "confidence": each.probability,
                "uncertainty": each.uncertainty,
                "exploration": each.share,
                "budget": each.fetch.budget,
                "positions": each.fetch.positions[0].tolist(),
            }
            for each in answer.passes
        ],
        "fallbacks": fetch.fallbacks,
    }
