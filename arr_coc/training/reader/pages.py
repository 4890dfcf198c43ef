"""Pages to learn reading from, by the name of their source; crops of them, and whole pages with questions.

A crop is cut about a character drawn anywhere on the page and scaled, so that print of every size is seen at every size
that a patch can hold. Sources are `arr_coc.pages.generator`, documents of `arr_coc.pages.domains`, and cached PDFs.

Notation: Q questions, S side of the square, px, G side of the grid, N patches, L tokens of a question, C channels of
the features, M base tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import lru_cache
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from arr_coc.data.field_mining import type_of
from arr_coc.data.pdf_corpus import CachedPages
from arr_coc.data.real_pages import RealPages, moved
from arr_coc.modeling.bridges import FOREMOST
from arr_coc.modeling.checks import Registry
from arr_coc.modeling.image_processing_arr_coc import Box, boxes_to_patches, fit_square, map_boxes, patches_of_placement
from arr_coc.modeling.modeling_arr_coc import relevance_loss
from arr_coc.modeling.scorers import EMPTY, FetchContext
from arr_coc.pages import generating
from arr_coc.pages.domains.document import render_document
from arr_coc.pages.page import ABSENT, Line, Question, TextPage, told_apart
from arr_coc.pages.question_writer import NOT_THERE
from arr_coc.pages.splits import Split
from arr_coc.pages.wear import wear

from ..stages import Batches, Run
from .language_model import Prompting
from .targets import LEADS, Print, Wordpieces, pixels, printed, read_without_pixels

if TYPE_CHECKING:
    from .asking import AskingStage
    from .recognition import RecognitionStage

Draw = Callable[..., TextPage]

PAGES: Registry[Draw] = Registry("page source")
"""Sources of pages that need no folder: `draw(rng, split)`; generated ones take a kind too."""


@PAGES.register("generated")
def generated(rng: np.random.Generator, split: Split, kind: str | None = None) -> TextPage:
    """A page of `arr_coc.pages.generator`."""
    return generating().draw_page(rng, split, kind)


@PAGES.register("laid_out")
def laid_out(rng: np.random.Generator, split: Split, kind: str | None = None) -> TextPage:
    """The same without a picture, which is quick."""
    return generating().layout_page(rng, split, kind)


@PAGES.register("jumble")
def jumble(rng: np.random.Generator, split: Split) -> TextPage:
    """A page of `arr_coc.pages.jumble`."""
    return generating("jumble").jumble(rng, split)


Heights = tuple[float, float]  # of the smallest and the largest print on crops: that of a line's characters, px


BLANK = (127, 127, 127)  # colour beyond a page's edges


def square(image: Image.Image, side: int) -> np.ndarray:
    """A page of any shape as uint8 [side, side, 3], placed and resized as the image processor does."""
    placed = fit_square(image.height, image.width, side)
    whole = Image.new("RGB", (side, side), BLANK)
    whole.paste(
        image.convert("RGB").resize(placed.size[::-1], Image.Resampling.BICUBIC), (placed.offset[1], placed.offset[0])
    )
    return np.asarray(whole)


SCALES = (0.5, 3.5)  # least and greatest scale of a crop; the image processor enlarges small images as much
BEYOND = 0.2  # share of a crop that may lie behind an edge of the page
CANDIDATES = 4  # squares of which a crop is chosen


@dataclass(frozen=True)
class Crops:
    """A batch: pixels [B, 3, s, s] in -1..1 and the text on them."""

    pixels: Tensor
    text: Print


def _corner(wanted: float, length: int, reach: float) -> float:
    """Where a crop begins, so that at most `BEYOND` of it is behind either edge of the page, or it shows all of it."""
    least, most = sorted((-BEYOND * reach, length - (1 - BEYOND) * reach))
    return min(max(wanted, least), most)


def _place(rng: np.random.Generator, page: TextPage, side: int, heights: Heights) -> tuple[float, float, float]:
    """Where a crop about some character begins, x and y in px of the page, and its scale."""
    line = page.lines[int(rng.integers(len(page.lines)))]
    box = line.boxes[int(rng.integers(len(line.text)))]
    height = max(2.0, float(box[3] - box[1]))
    least, most = np.log(heights)
    wanted = float(np.exp(rng.triangular(least, least, most)))  # small print has more to learn from in a crop
    fits = heights[0] <= height <= heights[1]
    scale = 1.0 if rng.random() < 0.4 and fits else float(np.clip(wanted / height, *SCALES))
    reach = side / scale
    x, y = (
        _corner(float(box[axis]) - float(rng.uniform(0.05, 0.95)) * reach, length, reach)
        for axis, length in enumerate(page.size)
    )
    return x, y, scale


def crop(rng: np.random.Generator, page: TextPage, side: int, heights: Heights) -> tuple[np.ndarray, list[Line]]:
    """A square of `side` px of a page, scaled; uint8 [side, side, 3] and its lines, in px of the crop.

    Of `CANDIDATES` squares it is the one with the most characters: blank paper teaches little.

    Args:
        rng: which squares, and how large their print is.
        page: with text.
        side: px.
        heights: between which print is scaled, where it is larger or smaller, and in six of ten other cases; small
            print is more frequent.
    """
    assert page.image is not None
    places = [_place(rng, page, side, heights) for _ in range(CANDIDATES)]
    boxes = np.concatenate([line.boxes for line in page.lines])
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2

    def characters(place: tuple[float, float, float]) -> int:
        away = (centres - place[:2]) * place[2]
        return int(((away >= 0) & (away < side)).all(1).sum())

    x0, y0, scale = max(places, key=characters)
    reach, (width, tall) = side / scale, page.size  # of the page, px
    region = (x0, y0, x0 + reach, y0 + reach)
    inside = (max(0, int(x0)), max(0, int(y0)), min(width, int(x0 + reach) + 1), min(tall, int(y0 + reach) + 1))
    cut = page.image.convert("RGB").crop(inside)
    if region[0] < 0 or region[1] < 0 or region[2] > width or region[3] > tall:
        wide = Image.new("RGB", (int(reach) + 2, int(reach) + 2), BLANK)
        wide.paste(cut, (round(inside[0] - x0), round(inside[1] - y0)))
        cut, within = wide, (0.0, 0.0, reach, reach)
    else:
        within = (x0 - inside[0], y0 - inside[1], x0 - inside[0] + reach, y0 - inside[1] + reach)
    picture = cut.resize((side, side), Image.Resampling.BICUBIC, box=within, reducing_gap=None)
    corner = np.array([x0, y0, x0, y0], np.float32)
    lines = []
    for each in page.lines:
        boxes = (each.boxes - corner) * scale
        if (boxes[:, 2:].max(0) > 0).all() and (boxes[:, :2].min(0) < side).all():
            lines.append(Line(each.text, boxes))
    return np.asarray(picture), lines


@dataclass(frozen=True)
class Sources:
    """A mixture of sources of pages."""

    # How often each source comes up: a name of `PAGES`, "pdf", or that of a file or folder in `real_folder`.
    shares: Mapping[str, float]
    split: Split  # of fonts, words and packages
    # A cache of PDF pages that `arr_coc.data.pdf_corpus` drew, with a folder for each split.
    pdf_folder: Path | None = None
    worn: float = 0.5  # share of the pages that are worn, see `arr_coc.pages.wear`
    # Files `NAME.jsonl.gz` of real pages as text, see `arr_coc.data.real_pages`, and folders of scans with a folder for
    # each split, see `arr_coc.data.real_scans`.
    real_folder: Path | None = None

    def __post_init__(self) -> None:
        if "pdf" in self.shares and self.pdf_folder is None:
            raise ValueError('pdf_folder: expected a folder of cached pages for the source "pdf"; got none')
        for name in self.shares:
            if name.split(": ")[0] not in PAGES:
                self._stored(name)

    def each(self) -> dict[str, "Sources"]:
        """Every source alone, by name."""
        return {name: replace(self, shares={name: 1.0}) for name in self.shares}

    def page(self, rng: np.random.Generator) -> TextPage:
        """A page with text of one of the sources, worn or not."""
        names, shares = list(self.shares), np.array(list(self.shares.values()), float)
        while True:
            name = names[int(rng.choice(len(names), p=shares / shares.sum()))]
            page = self._page(name, rng)
            if page.lines:
                break
        return wear(rng, page) if page.image is not None and rng.random() < self.worn else page

    def _page(self, name: str, rng: np.random.Generator) -> TextPage:
        source, *kind = name.split(": ")
        if source in PAGES:
            return PAGES[source](rng, self.split, *kind)
        pages = self._stored(name)
        number = int(rng.integers(len(pages)))
        if isinstance(pages, CachedPages):
            return pages[number]
        page = pages.page(number, rng)
        return moved(rng, page) if self.split == "train" else page

    def _stored(self, name: str) -> CachedPages | RealPages:
        """The pages of a source that needs a folder: with pictures, or as text."""
        if name == "pdf" and self.pdf_folder is not None:
            return _cached(self.pdf_folder / self.split)
        if self.real_folder is None:
            PAGES[name]  # refuses it
        assert self.real_folder is not None
        file = self.real_folder / f"{name}.jsonl.gz"
        scans = self.real_folder / name
        return _cached(scans / self.split) if scans.is_dir() and not file.exists() else _real(file, self.split)


_cached, _real = lru_cache(maxsize=8)(CachedPages), lru_cache(maxsize=32)(RealPages)

POOL = 32  # pages that the crops of a batch are cut from
POOL_SEED = 17  # tells the seeds of pages from those of batches


@dataclass(eq=False)
class CropBatches(Batches[Crops]):
    """Endless batches of crops, a function of (seed, step). Pages take longer to draw than crops to cut, so a page
    stays in a pool for some steps."""

    sources: Sources  # of pages
    seed: tuple[int, ...]  # of everything that is drawn
    stage: "RecognitionStage"  # which crops there are of a batch and of a page, on average
    patch: int  # side of a patch, px
    start: int = 0  # the first step
    pool: int = POOL  # pages that the crops of a batch are cut from
    _drawn: dict[int, TextPage] = field(default_factory=dict, init=False)

    def batch(self, step: int) -> Crops:
        rng, stage = np.random.default_rng((*self.seed, step)), self.stage
        oldest = step * stage.batch_size // stage.per_page
        pictures: list[np.ndarray] = []
        lines: list[list[Line]] = []
        for number in oldest + rng.integers(self.pool, size=stage.batch_size):
            heights = stage.least_print, stage.most_print
            picture, shown = crop(rng, self._page(int(number), oldest), stage.side, heights)
            pictures.append(pixels(picture))
            lines.append(shown)
        return Crops(torch.from_numpy(np.stack(pictures)), printed(lines, stage.side, self.patch))

    def _page(self, number: int, oldest: int) -> TextPage:
        if number not in self._drawn:
            self._drawn = {other: page for other, page in self._drawn.items() if other >= oldest}
            self._drawn[number] = self.sources.page(np.random.default_rng((*self.seed, POOL_SEED, number)))
        return self._drawn[number]


SIDES = (400, 720)  # least and greatest side of a page, px: its print is then as high as that of a page of 1024 px


@PAGES.register("document")
def document(rng: np.random.Generator, split: Split) -> TextPage:
    """A square page of fields."""
    side = int(rng.integers(SIDES[0], SIDES[1] + 1))
    drawn, _ = render_document(rng, size=side, split=split)
    return TextPage(drawn.image, drawn.image.size, drawn.lines, kind="document", source=drawn.layout)


LISTWISE = 0.3  # weight of the listwise loss beside the one of each patch


@dataclass(frozen=True)
class AskedPage:
    """One page and Q questions about it."""

    pixels: Tensor | None  # [1, 3, S, S]; None for a page that was not drawn
    # Int32 [1, N, 2, S] the wordpieces that begin in each patch; None where the model has to read them.
    pieces: Tensor | None
    patch_mask: Tensor  # bool [N], True on patches that hold some of the page
    questions: tuple[Question, ...]  # Q of them
    ids: Tensor  # [Q, L] tokens of the questions; `mask` [Q, L] where there are any
    mask: Tensor
    # [Q, N], 1 on the patches of the answer, `LEADS` on those of what leads to it; -1 if it is not known.
    relevance: Tensor
    answer: Tensor  # bool [Q, N], those of the answer alone

    def relevance_loss(self, scores: Tensor, positive_weight: float) -> Tensor:
        """Of a scorer's logits [Q, N], over the questions of which it is known where the answer stands.

        The binary cross-entropy of each patch, and the cross-entropy of a softmax over all patches with text and
        "none of them", whose logit is 0.
        """
        device = scores.device
        mask = self.patch_mask.to(device).expand(len(self.questions), -1)
        by_patch = relevance_loss(scores[None], self.relevance.to(device), mask, positive_weight)
        shown = mask & (scores > EMPTY)
        answer, known = self.answer.to(device) & shown, (self.relevance[:, 0] >= 0).to(device)
        none = ~self.answer.to(device).any(1)
        asked = known & (none | answer.any(1))  # of some answers nothing was read
        target = F.pad(answer, (0, 1)) | F.pad(none[:, None], (scores.shape[1], 0))
        logs = F.pad(scores.float().masked_fill(~shown, -torch.inf), (0, 1)).log_softmax(-1)
        listwise = -(logs.masked_fill(~target, 0.0).sum(-1) / target.sum(-1).clamp(min=1))
        return by_patch + LISTWISE * (listwise * asked).sum() / asked.sum().clamp(min=1)

    def found(self, scores: Tensor) -> dict[str, Tensor]:
        """Of the questions whose answer stands in patches with text: whether the most relevant patch is one of them
        ("first"), and the share of them among the `FOREMOST` most relevant ones ("foremost")."""
        wanted = self.answer.to(scores.device) & (scores > EMPTY)
        best = scores.topk(min(FOREMOST, scores.shape[1]), 1).indices
        hits = wanted.gather(1, best).float()
        shares = {"first": hits[:, 0], "foremost": hits.sum(1) / wanted.sum(1).clamp(min=1)}
        return {name: share[wanted.any(1)] for name, share in shares.items()}


class PageReader:
    """Reads pages with a run's model, and makes what scorers see of them."""

    def __init__(self, run: Run) -> None:
        run.model.config.require_embeds_alone("relevance, question_answering")  # prompts are made of embeddings
        tower = run.model.model.vision_tower
        embed = run.model.get_input_embeddings()
        if tower.text_reader is None:
            raise ValueError(f'bridge_config.kind: expected "wordpieces"; got "{run.model.config.bridge_config.kind}"')
        assert isinstance(embed, nn.Embedding)
        self.tower, self.embed, self.device = tower, embed, run.device
        self.spellings = tower.text_reader.spellings

    @torch.no_grad()
    def context(self, page: AskedPage) -> FetchContext:
        """What a scorer sees of a page and its questions: `pieces` come once; features are zeros where the page was
        not drawn."""
        count, side, channels = len(page.questions), isqrt(len(page.patch_mask)), self.tower.config.out_channels
        features, pieces = torch.zeros(1, channels, side, side), page.pieces
        if pieces is None:
            assert page.pixels is not None
            grid = self.tower.encode_grid(page.pixels.to(self.device))
            features, pieces = grid["features"].float(), grid["pieces"]
        ids = page.ids.to(self.device)
        features = features.to(self.device)
        return FetchContext(
            features=features.expand(count, -1, -1, -1),
            textures=features[:, :0].expand(count, -1, -1, -1),
            patch_mask=page.patch_mask.to(self.device).expand(count, -1),
            query=self.embed(ids).float(),
            query_mask=page.mask.to(self.device),
            seeds=torch.zeros(count, dtype=torch.long, device=self.device),
            pieces=pieces.to(self.device),
            table=self.embed.weight,
            query_ids=ids,
            spellings=self.spellings,
        )


@dataclass(eq=False)
class AskedPages(Batches[list[AskedPage]]):
    """Endless batches of pages with questions, a function of (seed, step)."""

    sources: Sources  # of pages
    seed: tuple[int, ...]  # of everything that is drawn
    run: InitVar[Run]  # whose model and tokenizer read them
    # Of whose pages and questions there are so many; `contrast` and `elsewhere` hold in training alone.
    stage: "AskingStage"
    wanted: Callable[[Question], bool]  # which questions are asked
    start: int = 0  # the first step

    def __post_init__(self, run: Run) -> None:
        self._others = round(self.stage.questions * self.stage.elsewhere)
        self.tokenizer, config = run.processor.tokenizer, run.model.config.vision_config
        self.side, self.patch, self.grid = config.image_size, config.patch_size, config.grid_size
        self.marks = config.marks
        self.prompting, self.cut = Prompting(self.tokenizer), Wordpieces(self.tokenizer)

    def batch(self, step: int) -> list[AskedPage]:
        rng = np.random.default_rng((*self.seed, step))
        return [self._page(rng) for _ in range(self.stage.pages_per_step)]

    def _page(self, rng: np.random.Generator) -> AskedPage:
        """The next page that has questions."""
        while True:
            page = self.sources.page(rng)
            known = [each for each in page.questions if self.prompting.short(each) and self.wanted(each)]
            if known:
                break
        known = [known[int(n)] for n in rng.permutation(len(known))]
        if self.stage.contrast and self.sources.split == "train" and rng.random() < self.stage.contrast:
            kind = type_of(known[0].answers[0])
            known.sort(key=lambda question: type_of(question.answers[0]) != kind)
        others = self._elsewhere(rng, page) if self._others and self.sources.split == "train" else []
        asked = (*known[: self.stage.questions - len(others)], *others)
        wide, tall = page.size
        placed = fit_square(tall, wide, self.side)
        answer = np.stack([self._patches(question.boxes, tall, wide) for question in asked])
        leads = np.stack([self._patches(question.label_boxes, tall, wide) for question in asked])
        known_place = answer.any(1, keepdims=True) | np.array([[question.kind == "absent"] for question in asked])
        relevance = np.where(known_place, np.maximum(answer, LEADS * leads), -1.0).astype(np.float32)
        tokens = self.tokenizer(
            [question.text for question in asked], add_special_tokens=False, padding=True, return_tensors="pt"
        )
        drawn, pieces = None, None
        if page.image is None:
            mistakes = self.stage.mistakes * rng.random()
            pieces = read_without_pixels(page, self.grid, self.cut, rng, mistakes, self.marks)[None]
        else:
            drawn = torch.from_numpy(pixels(square(page.image, self.side)))[None]
        return AskedPage(
            drawn,
            pieces,
            torch.from_numpy(patches_of_placement(placed, self.grid, self.patch).ravel()),
            asked,
            tokens["input_ids"],
            tokens["attention_mask"].bool(),
            torch.from_numpy(relevance),
            torch.from_numpy(answer),
        )

    def _elsewhere(self, rng: np.random.Generator, page: TextPage) -> list[Question]:
        """Questions about another page of the kind, as questions about fields that this page has not. Real pages have
        none: words of the question alone do not tell whether a page names the field in other ones."""
        if page.kind not in generating().KINDS:
            return []
        other = generating().layout_page(rng, self.sources.split, page.kind)
        asked = [question for number, question in told_apart([other, page]) if not number]
        absent = [replace(each, answers=(NOT_THERE,), boxes=(), label_boxes=(), kind=ABSENT) for each in asked]
        known = [each for each in absent if self.prompting.short(each) and self.wanted(each)]
        return [known[int(n)] for n in rng.permutation(len(known))[: self._others]]

    def _patches(self, boxes: Sequence[Box], tall: int, wide: int) -> np.ndarray:
        """bool [N], True on patches that boxes on a page of that size touch."""
        return boxes_to_patches(map_boxes(boxes, tall, wide, self.side), self.grid, self.patch).ravel()
