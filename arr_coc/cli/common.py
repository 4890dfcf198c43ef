"""Code that commands share: their form, common arguments, sources of questions, checks of output files."""

from __future__ import annotations

import argparse
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arr_coc.data.formats import Format


FORMATS = "chartqa, columns, docvqa, feedback, gqa, jsonl, mixed, rendered, textvqa, vqav2"
METRICS = (
    "exact_match, caseless_match, alnum_match, gqa_accuracy, vqa_accuracy, textvqa_accuracy, anls, relaxed_accuracy, "
    "token_f1"
)
UNTRAINED = "none, random, saliency, variance, oracle, attention"
TRAINED = "clip_query, realizer, words, compositional, contextual, shannon_jung_vervaeke, hierarchical, experts"
ALLOCATORS = "topk, window, tiers, adaptive, quadtree, foveated, knapsack"
TILING = ("auto", "asked", "all", "never")
WORDS = ("auto", "network", "ocr", "text_layer")
OF_PUBLISHED = "similarity"
"""Registered names: `--help` and `check_arguments` must not import the library. Strategies are `UNTRAINED` scorers,
`TRAINED` ones, of which a model holds some, and those that published models alone have."""

DEVICES = ("cpu", "cuda", "mps", "xpu", "npu", "hpu", "mtia")
"""Kinds of devices that a model can run on, as PyTorch names them."""

FOLDERS = {"log": "LOG", "source": "SOURCE", "bench": "--bench"}
FILES = {"data": "DATA", "recipe": "RECIPE.yaml", "api_keys": "--api-keys", "password_file": "--password-file"}
"""Arguments that name a folder, or a file or folder, to read, as errors call them."""


def check_arguments(args: argparse.Namespace) -> None:
    """Refuses what is not there or cannot be read, and what the model does not have, before torch is imported.

    Raises:
        ValueError, FileNotFoundError: an empty question, a budget, strategy or allocator that the model does not have,
            no such file, folder or device, a broken image or document, or the errors of `find_model` and `writable`.
    """
    given = {name: value for name, value in vars(args).items() if isinstance(value, str)}
    questions = getattr(args, "questions", None)  # a number in other commands
    for question in questions if isinstance(questions, list) else ():
        if not question.strip():
            raise ValueError(f"question: expected a non-empty string; got {question!r}")
    for name, called in FOLDERS.items():
        if name in given and not Path(given[name]).expanduser().is_dir():
            raise ValueError(f"{called}: expected a folder; got {given[name]!r}, which is none")
    for name, called in FILES.items():
        elsewhere = name == "data" and "format" in given  # DATA may be a name on the Hub
        if name in given and not elsewhere and not Path(given[name]).expanduser().exists():
            raise ValueError(f"{called}: expected a file; got {given[name]!r}, which does not exist")
    if getattr(args, "device", None) is not None:
        _check_device(args.device)
    images, password = getattr(args, "image", []), read_password(args)
    for image in [images] if isinstance(images, str) else images:
        _check_image(image, getattr(args, "box", None) or (), password)
    if hasattr(args, "model"):
        from arr_coc.files import find_model

        _check_choices(given, Path(find_model(args.model), "config.json"))
    if "words" in given and given["words"] not in WORDS and not Path(given["words"]).expanduser().is_file():
        raise ValueError(f"--words: expected {', '.join(WORDS)} or a file; got {given['words']!r}")
    for name in ("json", "predictions"):
        if isinstance(value := getattr(args, name, None), str):
            writable(value, f"--{name}")


def _check_choices(given: Mapping[str, str], config: Path) -> None:
    """Refuses a budget, strategies and allocators that no model has, or not this one; published models, whose budget
    may be a share, are asked later."""
    from arr_coc.files import read_json
    from arr_coc.modeling.budgets import REFERENCE_PATCHES, resolve_budget

    content = read_json(config) if config.is_file() else {}
    if content.get("model_type") != "arr_coc":
        if "budget" in given and not re.fullmatch(r"\d*\.?\d+", given["budget"]):
            resolve_budget(given["budget"], REFERENCE_PATCHES)
        return
    if "budget" in given:
        vision = content["vision_config"]
        resolve_budget(given["budget"], (vision["image_size"] // vision["patch_size"]) ** 2)
    held = {*UNTRAINED.split(", "), *content.get("fetcher_config", {}).get("scorers", ["realizer", "clip_query"])}
    several = [] if given.get("strategies") == "all" else given.get("strategies", "").split(",")
    pairs = [name.strip().partition("+") for name in several if name.strip()]
    asked = {
        "strategy": [given[name] for name in ("strategy",) if name in given] + [pair[0] for pair in pairs],
        "allocator": [given[name] for name in ("allocator",) if name in given] + [pair[2] for pair in pairs if pair[1]],
    }
    for kind, module, known in (("strategy", "scorers", held), ("allocator", "allocators", {*ALLOCATORS.split(", ")})):
        registry = getattr(sys.modules.get(f"arr_coc.modeling.{module}"), module.upper(), {})
        own = {*registry} - {*TRAINED.split(", ")}  # registered by a script that runs this command line
        for name in asked[kind]:
            if name not in known | own:
                raise ValueError(f"{kind}: expected one of {', '.join(sorted(known))} (held here); got {name!r}")


def _check_device(name: str) -> None:
    """Refuses a device that this machine lacks; torch is asked about what may be one, except about the CPU."""
    if re.fullmatch(rf"({'|'.join(DEVICES)})(:\d+)?", name) is None:
        raise ValueError(f"--device: expected e.g. cpu, cuda, cuda:1, mps; got {name!r}")
    if name != "cpu":
        from arr_coc.loading import find_device

        find_device(name)


def _check_image(source: str, boxes: Sequence[Sequence[float]], password: str | None) -> None:
    """Refuses a file that is no image, PDF or video, or a broken one, and boxes outside it; URLs are read later."""
    if source.partition(":")[0].lower() in ("http", "https"):
        return
    from arr_coc.modeling.budgets import ViewOptions
    from arr_coc.modeling.documents import POINTS, open_document
    from arr_coc.modeling.image_loading import MAX_IMAGE_PIXELS, Encoded, boxes_on_image, check_print, load_source

    loaded = load_source(source, password=password)
    if not isinstance(loaded, Encoded):
        check_print(loaded.height, loaded.width)
        boxes_on_image(boxes, loaded.height, loaded.width)
        return
    # How many pages are too many, and at how many dpi they are read, the model says.
    options = ViewOptions(dpi=POINTS, max_pages=sys.maxsize, max_frames=1)
    pages = open_document(loaded, options, MAX_IMAGE_PIXELS)
    if boxes and (loaded.kind == "video" or len(pages) > 1):
        received = "a video" if loaded.kind == "video" else f"{len(pages)} pages"
        raise ValueError(f"--box: expected an image or one page, which it is on; got {received}")


@dataclass(frozen=True)
class Command:
    """A subcommand."""

    name: str
    summary: str
    description: str
    examples: tuple[str, ...]  # whole command lines; `arr-coc --help` shows the first one
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]  # runs the command; it imports what it needs
    check: Callable[[argparse.Namespace], None]  # refuses arguments before `run`, without an import that takes seconds


def command(
    name: str,
    summary: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    check: Callable[[argparse.Namespace], None] = check_arguments,
) -> Callable[[Callable[[argparse.Namespace], None]], Command]:
    """Makes a `Command` of the function that runs it, whose docstring is the description and the examples."""

    def wrap(run: Callable[[argparse.Namespace], None]) -> Command:
        description, _, listed = inspect.cleandoc(run.__doc__ or "").partition("\n\nExamples:\n")
        examples = tuple(line.strip() for line in listed.splitlines())
        return Command(name, summary, description, examples, add_arguments, run, check)

    return wrap


@contextmanager
def quiet() -> Iterator[None]:
    """Libraries report errors only and draw no progress bars within the context."""
    from transformers.utils import logging as library

    verbosity, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity_error()
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)
        (library.enable_progress_bar if bars else library.disable_progress_bar)()


def show_progress() -> bool:
    """Shows the bars of downloads and uploads in a terminal, which `quiet` switches off; returns whether it is one."""
    from huggingface_hub import constants
    from huggingface_hub.utils import enable_progress_bars

    if sys.stderr.isatty() and constants.HF_HUB_DISABLE_PROGRESS_BARS is None:
        enable_progress_bars()
    return sys.stderr.isatty()


def announce(work: str) -> None:
    """Says on standard error what begins, where no terminal shows bars."""
    if not sys.stderr.isatty():
        print(f"{work} ...", file=sys.stderr, flush=True)


@contextmanager
def training_log() -> Iterator[None]:
    """Trainings report their progress on standard error."""
    handler, logger = logging.StreamHandler(), logging.getLogger("arr_coc.training")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _box(text: str) -> tuple[float, float, float, float]:
    try:
        x0, y0, x1, y1 = (float(edge) for edge in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected four numbers X0,Y0,X1,Y1; got {text!r}") from error
    return x0, y0, x1, y1


def read_password(args: argparse.Namespace) -> str | None:
    """The password in --password-file, if the command has one; it is neither printed nor saved."""
    if (name := getattr(args, "password_file", None)) is None:
        return None
    return Path(name).expanduser().read_text(encoding="utf-8", errors="replace").partition("\n")[0].rstrip("\r")


def _positive_or(words: Sequence[str], expected: str) -> Callable[[str], int | str]:
    """A parser of a positive number or one of some words."""

    def parse(text: str) -> int | str:
        if text in words:
            return text
        if not text.isdecimal() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"expected {expected}; got {text!r}")
        return int(text)

    return parse


tiles_of = _positive_or(TILING, f"{', '.join(TILING)} or a positive number")


SHARED: dict[str, dict[str, Any]] = {
    "model": {
        "metavar": "M",
        "help": "the model: a folder, or org/name on the Hub (default: hub_configs/arr-coc-135m of a checkout)",
    },
    "device": {"metavar": "D", "help": "cpu, cuda, cuda:1, ... (default: cuda if available, else cpu)"},
    "strategy": {
        "metavar": "S",
        "help": f"strategy that scores the patches: {UNTRAINED}; of a trained model also those of {TRAINED} that it "
        "holds (arr-coc-135m: words; arr-coc info MODEL lists them); of a published model also "
        f"{OF_PUBLISHED} (default: the model's)",
    },
    "budget": {
        "metavar": "K",
        "help": 'number of tokens to fetch, or "fast", "balanced", "standard", "accurate", "all", "tier:64" to '
        '"tier:400", or "auto": the model chooses (default: the model\'s)',
    },
    "allocator": {"metavar": "A", "help": f"how patches are chosen by relevance: {ALLOCATORS} (default: the model's)"},
    "box": {
        "metavar": "X0,Y0,X1,Y1",
        "action": "append",
        "type": _box,
        "help": "for --strategy oracle: ground-truth box of the answer, in px of the image; may be repeated",
    },
    "tiles": {
        "metavar": "T",
        "type": tiles_of,
        "help": "tiles of large images: auto, all, asked (those that a question chooses), never, or a number per "
        "source (default: auto for questions about documents or several images, never for others)",
    },
    "readings": {
        "metavar": "N",
        "type": int,
        "choices": (1, 2, 3),
        "help": "number of sizes at which a page is read, 1 to 3; the answers vote, and N readings take up to N times "
        "as long (default: 1)",
    },
    "words": {
        "metavar": "W",
        "help": "where the words of a page come from: auto (the text layer of a PDF where it agrees with the page, "
        "else the network), network, text_layer, ocr (needs arr-coc[ocr]), or a file with words: hOCR, ALTO, PAGE XML "
        "(default: auto)",
    },
    "password-file": {
        "metavar": "FILE",
        "help": "file whose first line is the password of encrypted PDFs (default: none)",
    },
    "reread": {
        "action": argparse.BooleanOptionalAction,
        "help": "words read with little confidence are read again from the original pixels, or not (default: the "
        "model's)",
    },
    "passes": {
        "metavar": "P",
        "type": _positive_or(("auto",), 'a number from 1, or "auto"'),
        "default": 1,
        "help": 'passes of fetching per question, each with the budget: a number, or "auto": up to 4 while unsure '
        "(default: 1)",
    },
    "format": {"metavar": "F", "help": f"format of DATA: {FORMATS} (default: jsonl)"},
    "with": {
        "metavar": "NAME=VALUE",
        "action": "append",
        "dest": "fields",
        "help": "setting of the format, such as images=DIR, ocr=FILE or columns.question=NAME; may be repeated",
    },
    "on-error": {
        "choices": ("stop", "skip"),
        "default": "stop",
        "help": "what to do at a bad record: stop, or skip it with a warning (default: stop)",
    },
    "max-errors": {
        "metavar": "N",
        "type": int,
        "default": 100,
        "help": "number of bad records that are skipped at most (default: 100)",
    },
}
"""Options that several commands have."""

DATA = ("format", "with", "on-error", "max-errors")  # those that say how DATA is read


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Adds some of the options `SHARED`."""
    for name in names:
        parser.add_argument(f"--{name}", **SHARED[name])


def split_names(text: str, option: str) -> list[str]:
    """The names in a text with commas between them. Raises ValueError: no names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"{option}: expected names with commas between them; got {text!r}")
    return names


def writable(name: str, option: str, endings: tuple[str, ...] | None = None) -> Path:
    """The path of a file to write, checked before the work starts. Raises ValueError: its folder does not exist, it is
    a folder itself, it may not be written, or its name has an ending outside `endings`."""
    path = Path(name).expanduser()
    if path.is_dir():
        raise ValueError(f"{option}: expected a file to write; got a folder: {name}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option}: expected a file in a folder that exists; got {name!r}")
    if not os.access(path.absolute().parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValueError(f"{option}: expected a file that may be written; got no permission: {name!r}")
    if endings is not None and path.suffix.lower() not in endings:
        raise ValueError(f"{option}: expected a name ending in {', '.join(endings)}; got {name!r}")
    return path


def find_source(data: str | None, kind: str | None, settings: Sequence[str] | None) -> Format:
    """The source that the arguments name.

    Args:
        data: a path; or a YAML file with format, path and other fields, its paths relative to it.
        kind: the format's name.
        settings: NAME=VALUE, see `SHARED`.

    Raises:
        ValueError: see `open_source`; or a YAML file together with options that it replaces.
    """
    from arr_coc.data.formats import DEFAULT_FORMAT, FORMATS, open_source

    if data is not None and Path(data).suffix in (".yaml", ".yml"):
        if kind is not None or settings:
            raise ValueError("--data: expected a YAML file, or --format and --with; got both")
        return read_source(Path(data))
    name = DEFAULT_FORMAT if kind is None else kind
    places = FORMATS[name].places
    spec: dict[str, Any] = {"format": name} if data is None else {"format": name, "path": data}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not (key and equals and value):
            raise ValueError(f"--with: expected NAME=VALUE; got {setting!r}")
        *outer, inner = key.split(".")
        target = spec
        for part in outer:
            target = target.setdefault(part, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict) or inner in target:
            raise ValueError(f"--with: expected each name once, and {key!r} not given otherwise; got {setting!r}")
        target[inner] = value if key in places else _number_or_text(value)
    return open_source(spec)


def _number_or_text(value: str) -> int | float | str:
    if value.isdecimal():
        return int(value)
    whole, point, rest = value.partition(".")
    return float(value) if point and whole.isdecimal() and rest.isdecimal() else value


def read_source(path: Path) -> Format:
    """The source in a YAML file. Raises ValueError: no YAML, or see `open_source`."""
    from arr_coc.data.formats import open_source
    from arr_coc.files import read_yaml

    content = read_yaml(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: expected format, path and the format's other fields by name; got {content!r}")
    return open_source(content, folder=path.parent)
