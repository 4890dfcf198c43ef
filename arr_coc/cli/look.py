"""`arr-coc look`: why patches were fetched, as figures."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import (
    Command,
    add_box_argument,
    add_choice_arguments,
    add_device_argument,
    add_model_argument,
    add_passes_argument,
    split_names,
)

if TYPE_CHECKING:
    from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
    from arr_coc.modeling.vision_tower import ImageEncoding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image", metavar="IMAGE", help="image or document (PDF, TIFF, GIF, video)")
    parser.add_argument("questions", metavar="QUESTION", nargs="+", help="one or more questions, each in quotes")
    parser.add_argument("--out", metavar="DIR", required=True, help="output folder for the figures and look.json")
    add_model_argument(parser)
    strategies = 'strategy that scores the patches: "realizer", "saliency", ... (default: the model\'s)'
    parser.add_argument("--strategy", metavar="S", help=strategies)
    several = "also draw these strategies side by side, comma-separated (default: none)"
    parser.add_argument("--strategies", metavar="A,B", help=several)
    add_choice_arguments(parser)
    add_passes_argument(parser)
    textures = "textures to draw, of the 13 basic ones, comma-separated (default: 6 of them)"
    parser.add_argument("--textures", metavar="A,B", help=textures)
    add_box_argument(parser)
    add_device_argument(parser)


def run(args: argparse.Namespace) -> None:
    from arr_coc.evaluation.reporting import environment, require_extra, shown
    from arr_coc.files import write_json
    from arr_coc.loading import load_model

    require_extra("matplotlib", "figures")
    out = Path(args.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: expected a folder; got a file: {args.out}")
    model = load_model(args.model, args.device)
    encoding = model.encode_image(args.image)
    if encoding.documents is not None and args.box:
        raise ValueError(f"--box: expected an image that is looked at as a whole; got several views: {args.image}")
    out.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "image": args.image if len(args.image) < 1000 else f"{args.image[:80]}...",
        "model": shown(model.config._name_or_path),
        "patches": encoding.side**2,
        "base_tokens": encoding.base_positions,
        "questions": [_look(args, model, encoding, out, number) for number in range(1, len(args.questions) + 1)],
        **environment(model.device),
    }
    write_json(out / "look.json", content)
    for asked in content["questions"]:
        print(f"{asked['question']} {asked['answer']}: {', '.join(str(out / name) for name in asked['figures'])}")


def _look(
    args: argparse.Namespace, model: ArrCocForConditionalGeneration, encoding: ImageEncoding, out: Path, number: int
) -> dict[str, Any]:
    """Draws the figures of one question; its numbers for look.json."""
    from arr_coc.explaining.evidence import TEXTURES_SHOWN, evidence_json, gather_evidence, see, see_part
    from arr_coc.explaining.figures import draw_evidence, draw_passes, draw_strategies, save
    from arr_coc.modeling.fetcher import FetchChoices

    question, ways = args.questions[number - 1], {"allocator": args.allocator, "budget": args.budget}
    if encoding.documents is None:
        seen = see(model, args.image)
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


COMMAND = Command(
    name="look",
    summary="draw why patches were fetched for a question",
    description=(
        "Ask questions about an image and draw, for each, what led to the answer: the image, the relevance of its\n"
        "patches, the fetched tokens (of 1, 4 or 16 patches), the scorer's relevance maps with their weights (for a\n"
        "scorer without maps: information, salience and query similarity), and the image's textures. --passes adds\n"
        "the history of the passes, --strategies a comparison. For a document, or an image with tiles, the view with\n"
        "the most fetched tokens is drawn. look.json holds the numbers. Needs matplotlib\n"
        "(pip install 'arr-coc[eval]')."
    ),
    examples=(
        'arr-coc look receipt.png "What is the total?" --out why',
        'arr-coc look receipt.png "What is the total?" "What is the date?" --passes 2 --budget 53 --out why',
        'arr-coc look receipt.png "What is the total?" --strategies saliency,clip_query,realizer --out why',
    ),
    add_arguments=add_arguments,
    run=run,
)
