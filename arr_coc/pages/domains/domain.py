"""Domains: kinds of pages that `arr-coc render` draws, with questions and the boxes of their answers; pages by number.

Pages of every domain can be varied: photographs, questions about absent fields, second turns. The same (domain, seed,
index, size, split) gives the same page in every process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from PIL import Image, ImageFilter

from ...modeling.checks import Registry
from ...modeling.image_processing_arr_coc import Box
from ...modeling.prompt_format import NOT_ON_THE_PAGE
from ..homography import bounds_of, corners_of, homography, moved_box, moved_boxes, project, sample_quad, steady
from ..page import ABSENT, Line, Question
from ..splits import Split
from ..wear import compressed
from .rasterising import check_page, text_unit
from .values import WORDS, ask, unheard_name

CHARACTERS = {"under 120": 120, "120 to 299": 300, "300 or more": math.inf}
"""Kinds of pages by number of characters, with exclusive upper limits."""


@dataclass(frozen=True)
class Page:
    """An RGB page, square in most domains, with questions, the names of its layout and fonts, and its lines.

    `fields`: the names from which its fields are drawn; empty for pages without fields.
    `tags`: names and values that distinguish kinds of pages.
    """

    image: Image.Image
    questions: tuple[Question, ...]
    layout: str
    font: str
    lines: tuple[Line, ...] = ()
    fields: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def told(self) -> dict[str, str]:
        """The tags, and "characters" (a kind of `CHARACTERS`) if the lines are known."""
        shown = sum(len(line.text.replace(" ", "")) for line in self.lines)
        counted = {"characters": next(name for name, below in CHARACTERS.items() if shown < below)} if shown else {}
        return {**counted, **dict(self.tags)}


def layouts_of(domain: str) -> dict[Split, dict[str, str]]:
    """By split, a domain's layouts of words.txt by name. Those of the test split are its own."""
    train, test = (
        dict(item.split("=") for item in WORDS[f"{split} layouts of {domain}"]) for split in ("train", "test")
    )
    return {"train": train, "validation": train, "test": test}


Draw = Callable[..., Page]
"""Draws a page: `draw(rng, size, split)`; `size` is its longer side, px; `rng` is the only source of randomness.
That of `document` takes `fields` too, the names to draw from."""

DOMAINS: Registry[Draw] = Registry("domain")
_TURN, _SKEW = 5.0, 0.05  # at most: degrees of rotation, share of the sides by which corners move
_FILLED = (0.9, 1.0)  # share of the picture that the page fills
_SHADOW = 0.45  # at most: share of the light that a shadow removes
_BLUR = 0.6  # px at most on a page of 256 px, whose letters are 11 px high at least
_NOISE = 6.0  # of 255, at most
_QUALITY = (40, 90)  # of JPEG


def photograph(rng: np.random.Generator, page: Page) -> Page:
    """A photograph of a square page, of the same size, with the boxes of questions and characters mapped. Boxes are
    axis-aligned around the mapped corners, clipped to the picture."""
    size = page.image.width
    matrix, picture = _view(rng, size), _ground(rng, size)
    # The page, without its outermost pixels so that its edge is smooth, over the ground.
    cover = Image.new("L", (size, size), 0)
    cover.paste(255, (1, 1, size - 1, size - 1))
    x0, y0, x1, y1 = bounds_of(project(matrix, corners_of((0, 0, size, size))))
    left, top = math.floor(x0), math.floor(y0)
    back = np.linalg.inv(matrix) @ np.array([(1, 0, left), (0, 1, top), (0, 0, 1)], np.float64)
    coefficients = steady((back / back[2, 2]).reshape(-1)[:8]).tolist()
    seen = [
        layer.transform(
            (math.ceil(x1) - left, math.ceil(y1) - top),
            Image.Transform.PERSPECTIVE,
            coefficients,
            Image.Resampling.BICUBIC,
        )
        for layer in (page.image.convert("RGB"), cover)
    ]
    picture.paste(seen[0], (left, top), seen[1])

    def moved(box: Box) -> Box:
        return moved_box(matrix, box, (size, size))

    lines = tuple(Line(line.text, moved_boxes(matrix, line.boxes).clip(0, size)) for line in page.lines)
    questions = tuple(each.moved(moved) for each in page.questions)
    return replace(page, image=_exposed(rng, picture), questions=questions, lines=lines)


def _view(rng: np.random.Generator, size: int) -> np.ndarray:
    """The homography from page to picture; the whole page is visible and fills most of the picture."""
    quad = sample_quad(rng, size, size, turn=_TURN, skew=_SKEW)
    left, top, right, bottom = bounds_of(quad)
    quad *= float(rng.uniform(*_FILLED)) * size / max(right - left, bottom - top)
    left, top, right, bottom = bounds_of(quad)
    x, y = float(rng.uniform(-left, size - right)), float(rng.uniform(-top, size - bottom))
    return homography(corners_of((0, 0, size, size)), quad + (x, y))


def _ground(rng: np.random.Generator, size: int) -> Image.Image:
    """The background below the page: a muted colour with a coarse texture."""
    cells = int(rng.integers(4, 20))
    colour = rng.uniform(20, 235) + rng.uniform(-30, 30, 3)
    texture = colour + rng.uniform(5, 30) * rng.standard_normal((cells, cells, 1))
    return _from_levels(texture).resize((size, size), Image.Resampling.BICUBIC)


def _exposed(rng: np.random.Generator, picture: Image.Image) -> Image.Image:
    """The picture in coloured light with a gradient and an optional soft shadow, blurred, noisy, and as JPEG."""
    size = picture.width
    at = np.linspace(-1, 1, size)
    across, along = np.meshgrid(at, at)

    def distance() -> np.ndarray:
        """[size, size]: signed distance from a random line through the picture's middle, -1.4 to 1.4."""
        angle = float(rng.uniform(0, 2 * math.pi))
        return math.cos(angle) * across + math.sin(angle) * along

    light = 1 - float(rng.uniform(0, 0.15)) * (distance() + 1.4) / 2.8
    if rng.random() < 0.6:
        edge, softness = float(rng.uniform(-0.8, 0.8)), float(rng.uniform(0.02, 0.3))
        light *= 1 - float(rng.uniform(0.1, _SHADOW)) / (1 + np.exp(-(distance() - edge) / softness))
    colour = 1 - rng.uniform(0, 0.12, 3)
    picture = _from_levels(np.asarray(picture) * light[:, :, None] * colour)
    picture = picture.filter(ImageFilter.GaussianBlur(text_unit(size) * float(rng.uniform(0, _BLUR))))
    noise = float(rng.uniform(0, _NOISE)) * rng.standard_normal((size, size, 1))
    return compressed(_from_levels(np.asarray(picture) + noise), int(rng.integers(*_QUALITY)))


def _from_levels(levels: np.ndarray) -> Image.Image:
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


def with_turns(rng: np.random.Generator, page: Page, share: float) -> Page:
    """The page, with another question and its answer before a share of its questions, if it has several."""
    questions: list[Question] = []
    for question in page.questions:
        others = [other for other in page.questions if other.text != question.text]
        if others and rng.random() < share:
            earlier = others[int(rng.integers(len(others)))]
            question = replace(question, history=((earlier.text, earlier.answers[0]),))
        questions.append(question)
    return replace(page, questions=tuple(questions))


def with_absent(rng: np.random.Generator, page: Page, share: float, split: Split, unheard: float = 0.0) -> Page:
    """The page, with a share of its questions replaced by questions about absent fields, each field once.

    Pages whose fields are not drawn from a list (`Page.fields`) do not change. A share `unheard` of these questions is
    about fields that no page has, for example a passport.
    """
    missing = missing_fields(page.fields, page.lines)
    order = iter(rng.permutation(len(missing)).tolist())
    questions = []
    for question in page.questions:
        place = next(order, None) if rng.random() < share else None
        if place is not None:
            heard = not unheard or rng.random() >= unheard
            text = ask(rng, missing[place] if heard else unheard_field(rng, page.lines, split), split=split)
            question = Question(text, (NOT_ON_THE_PAGE,), (), (), ABSENT)
        questions.append(question)
    return replace(page, questions=tuple(questions))


def missing_fields(fields: Sequence[str], lines: Sequence[Line]) -> list[str]:
    """The fields that a page with these lines does not show. A field counts as shown if its name is anywhere, also in a
    word, as a subtotal could be an answer for the total."""
    shown = "".join(line.text for line in lines).lower().replace(" ", "")
    return [field for field in fields if field.lower().replace(" ", "") not in shown]


def unheard_field(rng: np.random.Generator, lines: Sequence[Line], split: Split) -> str:
    """A name that `FIELDS` lacks and that a page with these lines does not show."""
    while not (missing := missing_fields([unheard_name(rng, split)], lines)):
        pass
    return missing[0]


@dataclass(frozen=True)
class Variations:
    """Shares of varied pages and questions, from 0 to 1.

    Each variation has separate random numbers, so it depends neither on the others nor on the page's content.

    Raises:
        ValueError: a share outside 0..1.
    """

    photo: float = 0.0  # share of photographed pages
    absent: float = 0.0  # share of questions about absent fields, on pages with fields
    turns: float = 0.0  # share of questions that are second in a chat, after another one about the page
    unheard: float = 0.0  # of these, share of questions about fields that no page has

    def __post_init__(self) -> None:
        for field in fields(self):
            share = getattr(self, field.name)
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise ValueError(f"{field.name}: expected a share from 0 to 1; got {share!r}")


AS_DRAWN = Variations()  # no variations
_ENTROPY: dict[Split, tuple[int, ...]] = {"train": (1,), "validation": (2,), "test": ()}


def draw_page(
    domain: str,
    seed: int,
    index: int,
    size: int,
    split: Split,
    *,
    fields: Sequence[str] | None = None,
    variations: Variations = AS_DRAWN,
) -> Page:
    """The page number `index` of a domain, whose side is `size` px; pages of two splits never share random numbers.

    Args:
        fields: the names to draw from, for domain document only; None: its default.

    Raises:
        ValueError: an unknown domain, fields for a domain other than document, photographs of a page that is not
            square, a negative number, a page under 64 px, or a bad split.
        FileNotFoundError: no font of the split is installed.
    """
    check_page(size, split)
    if seed < 0 or index < 0:
        raise ValueError(f"expected a seed and an index of at least 0; got seed={seed}, index={index}")
    if fields is not None and domain != "document":
        raise ValueError(f"fields: expected domain document; got {domain!r}")
    entropy, options = (seed, index, *_ENTROPY[split]), {} if fields is None else {"fields": fields}
    page = DOMAINS[domain](np.random.default_rng(entropy), size, split, **options)
    if variations.photo and page.image.width != page.image.height:
        raise ValueError(f"photo: expected a domain of square pages; got {domain!r}")
    photo, absent, turns = (
        np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=(key,))) for key in range(3)
    )
    if variations.photo and photo.random() < variations.photo:
        page = photograph(photo, page)
    if variations.absent:
        page = with_absent(absent, page, variations.absent, split, variations.unheard)
    return with_turns(turns, page, variations.turns) if variations.turns else page
