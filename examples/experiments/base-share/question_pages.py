"""Draws pages with questions of four kinds, reads them, and stores what all arms are given.

    python examples/experiments/base-share/question_pages.py --model MODEL --pdfs PAGES    # into runs/base-share

With `--side 1024` pages are of four times the area and text. With `--bench FOLDER` the pages of a bench are stored too.

First the scorer is trained on such questions. It sees no split, so all arms share it. Training pages are not drawn:
their wordpieces follow from their text, with some words misread. Validation and test pages are drawn, and the
model's own encoder reads them. What is stored of a page: its wordpieces, their places, and the relevance that the
scorer gives each of them for each question.
"""

import argparse
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from tqdm import tqdm

from arr_coc.evaluation.bench import read_bench
from arr_coc.loading import load_model
from arr_coc.modeling.image_loading import load_image
from arr_coc.pages.domains import DOMAINS
from arr_coc.pages.generator import draw_page, layout_page
from arr_coc.pages.line_questions import KINDS, by_kind
from arr_coc.pages.page import ABSENT, Line, Question, TextPage
from arr_coc.pages.question_writer import DETAIL, TWO_PLACES, QuestionWriter
from arr_coc.pages.splits import Split
from arr_coc.training.reader.asking import RelevanceStage, RelevanceTask
from arr_coc.training.reader.language_model import Prompting
from arr_coc.training.reader.pages import AskedPage, AskedPages, PageReader, Sources, crop, square
from arr_coc.training.reader.targets import page_tokens, pixels, read_without_pixels
from arr_coc.training.stages import Run

SIDES = (512, 1024)
"""Sides of the square that pages are fitted into, px."""
PATCH = 16
"""Side of a patch of arr-coc-135m, px."""
TILE = 256
"""Side of a page of a sheet, px."""
SMALL = 3 / 8
"""Side of the smaller image, as a share. Its print is too small for the encoder, but for headings: training pages have
no other words on it."""
SOURCES = ("generated", "document", "browser", "pdf")
LEAST_PRINT, MOST_PRINT = 6.5, 14.0
"""Height of capital letters on the square, px: the median of a generated page, all of a PDF page. The encoder reads no
smaller print."""
LEAST_TEXT = 400
"""Characters of a page of 512 px with spaces, some 170 wordpieces: fetching alone would show all of a page with less
text."""
MISTAKES = 0.12
"""Most words that are misread on a training page, as a share."""
HELD_OUT = 4
"""Batches that the scorer is measured on."""
SEEDS: Mapping[Split, int] = {"train": 41, "validation": 42, "test": 43}


def draw(rng: np.random.Generator, split: Split, source: str, side: int, pdfs: Path, drawn: bool) -> TextPage:
    """A page with its text and its questions, of all kinds that it allows.

    Args:
        rng: the only source of randomness.
        split: of words, fonts, wordings, layouts and PDF packages.
        source: of `SOURCES`.
        side: of the square, px.
        pdfs: folder of `arr_coc.data.pdf_corpus --cache`, with a folder for each split; those of the test are the
            validation packages' where it has none.
        drawn: whether its image is needed; others may have none.
    """
    if source == "generated":
        while True:
            seed = int(rng.integers(2**31))
            page = layout_page(np.random.default_rng(seed), split)
            heights = [_height(line) for line in page.lines]
            if _full(page, side) and np.median(heights) * side / max(page.size) >= LEAST_PRINT:
                return draw_page(np.random.default_rng(seed), split) if drawn else page
    while True:
        page = _cropped(rng, split, side, pdfs) if source == "pdf" else _sheet(rng, split, side, source)
        if _full(page, side):
            return page


def _height(line: Line) -> float:
    return float(np.median(line.boxes[:, 3] - line.boxes[:, 1]))


def _full(page: TextPage, side: int) -> bool:
    return sum(len(line.text) for line in page.lines) >= LEAST_TEXT * (side / SIDES[0]) ** 2


def _cropped(rng: np.random.Generator, split: Split, side: int, pdfs: Path) -> TextPage:
    """A square of a PDF page, with the words that are whole on it."""
    whole = Sources({"pdf": 1.0}, split, pdfs, worn=0.0).page(rng)
    picture, lines = crop(rng, whole, side, (LEAST_PRINT, MOST_PRINT))
    image = Image.fromarray(picture)
    return TextPage(image, image.size, tuple(_inside(lines, side)), kind="pdf", source=whole.source)


def _sheet(rng: np.random.Generator, split: Split, side: int, source: str) -> TextPage:
    """Pages of `TILE` px of a domain on one sheet; only fields that one of them alone has are asked about."""
    questions, lines = list[Question](), list[Line]()
    image = Image.new("RGB", (side, side), "white")
    for y, x in product(range(0, side, TILE), repeat=2):
        page = DOMAINS[source](rng, TILE, split)
        image.paste(page.image.convert("RGB"), (x, y))
        lines += [Line(line.text, line.boxes + np.float32([x, y, x, y])) for line in page.lines]
        own = [question for question in page.questions if question.kind != ABSENT]
        for question in own:
            boxes, labels = (
                tuple((x0 + x, y0 + y, x1 + x, y1 + y) for x0, y0, x1, y1 in group)
                for group in (question.boxes, question.label_boxes)
            )
            questions.append(replace(question, boxes=boxes, label_boxes=labels, kind=DETAIL))
    text = " ".join(line.text for line in lines).casefold()
    once = {name: question for question in questions if text.count(name := _field(question, lines)) == 1}
    writer = QuestionWriter(Random(int(rng.integers(2**63))), split)
    if len(once) > 1:
        (one, first), (two, second) = writer.random.sample([*once.items()], 2)
        answers = [first.answers[0] + sign + second.answers[0] for sign in (" and ", ", ", " ")]
        boxes, labels = (*first.boxes, *second.boxes), (*first.label_boxes, *second.label_boxes)
        asked = writer.word("both", first=one, second=two, First=one.capitalize())
        writer.add(asked, answers, boxes, labels, TWO_PLACES)
    return TextPage(image, image.size, tuple(lines), (*once.values(), *writer.questions), source)


def _field(question: Question, lines: Sequence[Line]) -> str:
    """The text in the box of the question's label, in lower case."""
    x0, y0, x1, y1 = question.label_boxes[0]
    shown = []
    for line in lines:
        x, y = (line.boxes[:, 0] + line.boxes[:, 2]) / 2, (line.boxes[:, 1] + line.boxes[:, 3]) / 2
        inside = (x > x0 - 1) & (x < x1 + 1) & (y > y0 - 1) & (y < y1 + 1)
        shown.append("".join(character for character, kept in zip(line.text, inside, strict=True) if kept))
    return " ".join("".join(shown).casefold().split()).rstrip(":")


def _inside(lines: Sequence[Line], side: int) -> list[Line]:
    """The words of lines on a crop that are whole."""
    kept = []
    for line in lines:
        start = 0
        words: list[tuple[str, np.ndarray]] = []
        for word in line.text.split(" "):
            boxes = line.boxes[start : start + len(word)]
            start += len(word) + 1
            if word and (boxes[:, :2] >= 0).all() and (boxes[:, 2:] <= side).all():
                words.append((word, boxes))
        if words:
            text, spaces = " ".join(word for word, _ in words), [boxes[-1:] for _, boxes in words]
            parts = [part for (_, boxes), space in zip(words, spaces, strict=True) for part in (boxes, space)]
            kept.append(Line(text, np.concatenate(parts[:-1])))
    return kept


@dataclass
class Drawer:
    """Pages with one question of each kind: what `AskedPages` asks for pages.

    Attributes:
        split, side, pdfs, drawn: see `draw`.
        last: the page before.
    """

    split: Split
    side: int
    pdfs: Path
    drawn: bool
    last: TextPage | None = None

    def page(self, rng: np.random.Generator) -> TextPage:
        """The next page, of any source; pages without questions are drawn again."""
        while True:
            source = SOURCES[int(rng.integers(len(SOURCES)))]
            page = draw(rng, self.split, source, self.side, self.pdfs, self.drawn)
            asked = by_kind(Random(int(rng.integers(2**63))), page, self.split) if page.lines else ()
            first = {question.kind: question for question in reversed(asked) if question.kind in KINDS}
            if first:
                image = page.image if self.drawn else None
                self.last = replace(page, image=image, questions=tuple(first.values()), source=source)
                return self.last


class BenchPages:
    """The pages of a bench one after another, with all their questions, of which the kind is the bench's source.

    Args:
        folder: see `read_bench`.
        asks: whether a question is short enough; pages without such a one are left out.
    """

    def __init__(self, folder: Path, asks: Callable[[Question], bool]) -> None:
        found = defaultdict[tuple[str, Path], list[Question]](list)
        for source, records in read_bench(folder).items():
            for record in records:
                question = Question(record.question, record.answers, (), (), source)
                if asks(question):
                    found[source, record.image].append(question)
        self.pages, self.questions = [*found.items()], max(map(len, found.values()))
        self.last: TextPage | None = None

    def page(self, rng: np.random.Generator) -> TextPage:
        """The next page."""
        (source, path), questions = self.pages.pop(0)
        image = load_image(path)
        self.last = TextPage(image, image.size, (), tuple(questions), source, source)
        return self.last


def asked_pages(run: Run, split: Split, side: int, pdfs: Path, pages: int, start: int = 0) -> AskedPages:
    """Batches of `pages` pages of `side` px."""
    return _asked(Drawer(split, side, pdfs, split != "train"), run, side, SEEDS[split], len(KINDS), pages, start)


def _asked(sources: Any, run: Run, side: int, seed: int, questions: int, pages: int = 1, start: int = 0) -> AskedPages:
    stage = RelevanceStage(pages_per_step=pages, questions=questions, mistakes=MISTAKES)
    asked = AskedPages(sources, (seed,), run, stage, lambda question: True, start)
    asked.grid = side // PATCH
    asked.side = asked.grid * asked.patch
    return asked


class KindsTask(RelevanceTask):
    """The stage `relevance` on such pages."""

    stage: "KindsStage"

    def pages(self, start: int) -> AskedPages:
        return self._kinds("train", start)

    @cached_property
    def _unseen(self) -> dict[str, list[AskedPage]]:
        batches = self._kinds("validation")
        return {"kinds": [page for number in range(HELD_OUT) for page in batches.batch(number)]}

    def _kinds(self, split: Split, start: int = 0) -> AskedPages:
        stage = self.stage
        return asked_pages(self.run, split, stage.side, Path(stage.pdfs), stage.pages_per_step, start)


@dataclass(frozen=True)
class KindsStage(RelevanceStage):
    """Its settings, and those of the pages; `pages` is not used."""

    side: int = SIDES[0]
    pdfs: str = ""

    def task(self, run: Run) -> KindsTask:
        return KindsTask(self, run)


@torch.no_grad()
def stored(run: Run, pages: AskedPages, count: int) -> list[dict[str, Any]]:
    """What arms are given of the first `count` pages: dictionaries of numpy arrays, text and numbers."""
    reading = PageReader(run)
    scorer = run.model.model.fetcher.scorer(run.model.config.fetcher_config.strategy)
    kept = []
    for number in tqdm(range(count), disable=None):
        (page,) = pages.batch(number)
        last: Any = pages.sources.last  # type: ignore[attr-defined]  # a Drawer
        small = _small(run, pages, last, number)
        context = reading.context(page)
        assert context.pieces is not None
        tokens = page_tokens(context.pieces[0])
        relevance = scorer(context).sigmoid().cpu().numpy()[:, tokens.patches]
        kept.append(
            {
                "page": number,
                "source": last.source,
                "tokens": vars(tokens),
                "small": vars(page_tokens(small)),
                "relevance": relevance.astype(np.float16),
                "questions": [vars(question) for question in page.questions],
            }
        )
    return kept


def _small(run: Run, pages: AskedPages, page: TextPage, number: int) -> torch.Tensor:
    """[g * g, 2, S] the wordpieces that are read on the page at `SMALL` of its side, g patches."""
    grid = int(SMALL * pages.grid)
    if page.image is None:
        rng, scale = np.random.default_rng((SEEDS["train"], number, 1)), grid * pages.patch / max(page.size)
        lines = tuple(line for line in page.lines if _height(line) * scale >= LEAST_PRINT)
        return read_without_pixels(replace(page, lines=lines), grid, pages.cut, rng, MISTAKES * rng.random())
    small = torch.from_numpy(pixels(square(page.image, grid * pages.patch)))[None].to(run.device)
    return run.model.model.vision_tower.encode_grid(small)["pieces"][0]


def questions_of(page: Mapping[str, Any]) -> list[Question]:
    """The questions of a stored page."""
    return [Question(**question) for question in page["questions"]]


def main() -> None:
    """Trains the scorer, draws and reads all pages, from the command line; what is stored already is kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="arr-coc-135m's complete folder (arr-coc assemble)")
    parser.add_argument("--pdfs", type=Path, required=True, help="pages of arr_coc.data.pdf_corpus --cache")
    parser.add_argument("--side", type=int, default=SIDES[0], choices=SIDES, help="of the pages, px (512)")
    parser.add_argument("--bench", type=Path, help="folder of a bench, whose pages are stored as bench.pt")
    parser.add_argument("--out", type=Path, default=Path("runs/base-share"), help="folder (runs/base-share)")
    parser.add_argument("--pages", nargs=3, type=int, default=[4800, 200, 400], help="(4800 200 400)")
    parser.add_argument("--steps", type=int, default=300, help="of the scorer's training (300)")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    model = load_model(args.model, args.device).float()
    run = Run(model, model.processor, torch.device(args.device))
    if args.steps:
        stage = KindsStage(
            steps=args.steps,
            learning_rate=4e-4,
            evaluate_every=max(1, args.steps // 3),
            seed=40,
            pdfs=str(args.pdfs),
            side=args.side,
            workers=0,
            bf16=False,
        )
        stage.run(run, args.out / "scorer")
    model.eval()
    args.out.mkdir(parents=True, exist_ok=True)
    for split, count in zip(SEEDS, args.pages, strict=True):
        path = args.out / f"{split}.pt"
        if not path.exists():
            torch.save(stored(run, asked_pages(run, split, args.side, args.pdfs, 1), count), path)
    if args.bench:
        bench = BenchPages(args.bench, Prompting(run.processor.tokenizer).short)
        count, pages = len(bench.pages), _asked(bench, run, args.side, SEEDS["test"], bench.questions)
        torch.save(stored(run, pages, count), args.out / "bench.pt")


if __name__ == "__main__":
    main()
