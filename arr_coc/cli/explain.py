"""`arr-coc look` and `info`: figures of an answer; parts and costs of a model."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import add_options, command, split_names

if TYPE_CHECKING:
    from arr_coc.modeling.image_encoding import ImageEncoding
    from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration


def add_look_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("image", metavar="IMAGE", help="image or document (PDF, TIFF, GIF, video)")
    add("questions", metavar="QUESTION", nargs="+", help="one or more questions, each in quotes")
    add("--out", metavar="DIR", required=True, help="output folder for the figures and look.json")
    add_options(parser, "model", "strategy")
    add("--strategies", metavar="A,B", help="also draw these strategies side by side, comma-separated (default: none)")
    add_options(parser, "budget", "allocator", "passes")
    textures = "textures to draw, of the 13 basic ones, comma-separated (default: 6 of them)"
    add("--textures", metavar="A,B", help=textures)
    add_options(parser, "box", "device")


@command("look", "draw why patches were fetched for a question", add_look_arguments)
def look_command(args: argparse.Namespace) -> None:
    """Ask questions about an image and draw, for each, what led to the answer: the image, the relevance of its
    patches, the fetched tokens (of 1, 4 or 16 patches), the scorer's relevance maps with their weights (for a
    scorer without maps: information, salience and query similarity), and the image's textures. --passes adds
    the history of the passes, --strategies a comparison. For a document, or an image with tiles, the view with
    the most fetched tokens is drawn. look.json holds the numbers. Needs matplotlib
    (pip install 'arr-coc[eval]').

    Examples:
        arr-coc look receipt.png "What is the total?" --out why
        arr-coc look receipt.png "What is the total?" "What is the date?" --passes 2 --budget 53 --out why
        arr-coc look receipt.png "What is the total?" --strategies saliency,random,words --out why
    """
    from arr_coc.evaluation.reporting import environment, require_extra, shown
    from arr_coc.files import write_json
    from arr_coc.modeling.image_loading import load_source
    from arr_coc.publishing.building import load_model

    require_extra("matplotlib", "figures")
    out = Path(args.out).expanduser()
    out.mkdir(parents=True, exist_ok=True)  # before the work, which would be lost
    image = load_source(args.image)  # before the model: it may be a URL
    model = load_model(args.model, args.device)
    encoding = model.encode_image(image)
    if encoding.documents is not None and args.box:
        raise ValueError(f"--box: expected an image without tiles; got several views: {args.image}")
    content: dict[str, Any] = {
        "image": args.image if len(args.image) < 1000 else f"{args.image[:80]}...",
        "model": shown(model.config._name_or_path),
        "patches": encoding.side**2,
        "base_tokens": encoding.base_positions,
        "questions": [_look(args, model, image, encoding, out, number) for number in range(1, len(args.questions) + 1)],
        **environment(model.device),
    }
    write_json(out / "look.json", content)
    for asked in content["questions"]:
        print(f"{asked['question']} {asked['answer']}: {', '.join(str(out / name) for name in asked['figures'])}")


def _look(
    args: argparse.Namespace,
    model: ArrCocForConditionalGeneration,
    image: Any,
    encoding: ImageEncoding,
    out: Path,
    number: int,
) -> dict[str, Any]:
    """Draws the figures of one question; returns its numbers for look.json."""
    from arr_coc.explaining.evidence import TEXTURES_SHOWN, evidence_json, gather_evidence, see, see_part
    from arr_coc.explaining.figures import draw_evidence, draw_passes, draw_strategies, save
    from arr_coc.modeling.fetcher import FetchChoices

    question, ways = args.questions[number - 1], {"allocator": args.allocator, "budget": args.budget}
    if encoding.documents is None:
        seen = see(model, image)
    else:
        seen = see_part(model, encoding, question, strategy=args.strategy, **ways)

    def gather(strategy: str | None, passes: int | str, textures: tuple[str, ...]) -> Any:
        choices = FetchChoices(strategy=strategy, num_passes=passes, **ways)
        return gather_evidence(model, seen, question, choices, boxes=args.box, texture_names=textures)

    textures = TEXTURES_SHOWN if args.textures is None else tuple(split_names(args.textures, "--textures"))
    evidence = gather(args.strategy, args.passes, textures)
    figures = {f"question-{number}.png": draw_evidence(seen, evidence)}
    if evidence.answer.passes:
        figures[f"passes-{number}.png"] = draw_passes(seen, evidence)
    content = {**evidence_json(evidence), "part": None if seen.part is None else asdict(seen.part)}
    if args.strategies is not None:
        several = [gather(name, 1, ()) for name in split_names(args.strategies, "--strategies")]
        figures[f"strategies-{number}.png"] = draw_strategies(seen, several)
        content["strategies"] = [evidence_json(each) for each in several]
    for name, figure in figures.items():
        save(figure, out / name)
    return {**content, "figures": [*figures]}


def add_info_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="M", nargs="?", help="folder, or org/name on the Hub (default: the shipped one)")
    size = "side of the image in px, for tokens, FLOPs and --stats (default: the model's)"
    add("--image-size", metavar="S", type=int, help=size)
    add("--budget", metavar="K", help="number of fetched tokens, for the FLOPs (default: the model's)")
    length = "length of the question in tokens, for the FLOPs (default: 16)"
    add("--question-tokens", metavar="L", type=int, default=16, help=length)
    stats = "run the model on a generated image: statistics of each stage, and values out of range (reads the weights)"
    add("--stats", action="store_true", help=stats)
    scorers = "list every registered scorer with its parameters and FLOPs at this model's sizes"
    add("--scorers", action="store_true", help=scorers)
    add_options(parser, "device")
    add("--json", action="store_true", help="print JSON")


@command("info", "print a model's parts, tokens and cost", add_info_arguments)
def info_command(args: argparse.Namespace) -> None:
    """Print parameters per part, geometry, tokens per image, and floating-point operations (FLOPs) per stage. All
    of it follows from the config: no weights are read, and FLOPs are counted on the meta device. With --stats
    the model runs on a generated image, and the output of each stage is summarized: the same weights give the
    same numbers on every machine, up to rounding.

    Examples:
        arr-coc info hub_configs/arr-coc-tiny-2
        arr-coc info hub_configs/arr-coc-tiny-2 --budget all --json
        arr-coc info hub_configs/arr-coc-tiny-2 --scorers
        arr-coc info hub_configs/arr-coc-tiny-2 --stats --image-size 256
    """
    from arr_coc.files import find_model
    from arr_coc.loading import load_config
    from arr_coc.model_summary import count_scorers, describe_model, report, stage_statistics
    from arr_coc.probes import EXPECTED
    from arr_coc.publishing.building import load_model

    if args.question_tokens < 1:
        raise ValueError(f"--question-tokens: expected at least 1; got {args.question_tokens}")
    name = find_model(args.model)
    config = load_config(name)
    description = describe_model(name, config, args.budget, args.question_tokens, args.image_size)
    if args.scorers:
        counts = count_scorers(config, question_tokens=args.question_tokens, image_size=args.image_size)
        held = config.fetcher_config.scorers
        description["scorers"] = {
            name: {**of, "held": not of["parameters"] or name in held} for name, of in counts.items()
        }
    if args.stats:
        statistics = stage_statistics(load_model(name, args.device), budget=args.budget, image_size=args.image_size)
        description["statistics"] = {
            stage: {**asdict(of), "in_range": of.within(EXPECTED[stage])} for stage, of in statistics.items()
        }
    print(json.dumps(description, indent=2) if args.json else report(description))
