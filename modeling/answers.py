"""Answers: their text without thinking, their probability, and the places of their fetched patches on the page.

Notation: B prompts, I image slots, K fetched patches, S prompt length, T tokens of the longest answer.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .budgets import NAMED_BUDGETS, scaled_budget
from .configuration_arr_coc import ArrCocConfig
from .fetcher import FetchResult
from .image_encoding import ImageEncoding, confidence_of
from .image_loading import Source, turn_box
from .image_processing_arr_coc import Box
from .prompt_format import NOT_ON_THE_PAGE
from .scorers import EMPTY
from .views import JointFetch, arrange
from .vision_tower import TEXTURE_SETS, clear_of_padding

THINKS, THOUGHT = "<think>", "</think>"
"""The marks around a language model's thinking before its answer."""

_BEGUN = "|".join(THINKS[:count] for count in range(2, len(THINKS)))
THINKING = re.compile(rf"\A\s*(?:{THINKS}(.*?)(?:{THOUGHT}|\Z)|(?:{_BEGUN})\s*\Z)\s*", re.DOTALL)
"""Matches all text before an answer; the whole text if thinking, or its first mark, did not end."""


def split_thinking(text: str) -> tuple[str, str]:
    """The thinking before an answer, and the answer; "" for a part that is missing."""
    found = THINKING.match(text)
    return ((found[1] or "").strip(), text[found.end() :].strip()) if found else ("", text)


@dataclass(frozen=True)
class Origin:
    """The place of one fetched token.

    Attributes:
        source: the number of the source among those of the prompt, from 0.
        page: of a document, from 1, or None.
        second: of a video, or None.
        box: x0, y0, x1, y1 in px of the source, within it: of the patch; from models with a text reader, of the
            patches in a row that the text beginning there covers.
    """

    source: int
    page: int | None
    second: float | None
    box: Box


def origins_of(fetch: FetchResult, encoding: ImageEncoding, images: Sequence[int]) -> tuple[Origin, ...]:
    """The origin of each fetched token of a prompt with the sources `images` [I], in the order of the prompt.

    Empty if the sources' sizes are not known; padding has none.
    """
    if (known := encoding.known_sources()) is None:
        return ()
    sources = [known[number] for number in images]
    if isinstance(fetch, JointFetch):
        boxes = fetch.boxes()
    else:
        views = arrange(encoding, torch.tensor(images), [[] for _ in images])
        numbers = torch.arange(len(images))[:, None].expand(fetch.indices.shape).flatten()
        side = math.isqrt(fetch.scores.shape[1])
        boxes = views.boxes(numbers, fetch.regions().flatten(0, 1), side).view(*fetch.indices.shape, 4)
    patches: Tensor | int = 1  # in a row, from models with a text reader
    if fetch.levels is None and (read := _read(fetch, encoding, images)) is not None:
        pieces, characters, view = read
        patches = patches_of_text(pieces, characters)[view, fetch.indices].to(boxes.device)
    boxes[..., 2] = boxes[..., 0] + (boxes[..., 2] - boxes[..., 0]) * patches
    origins = []
    for slot, at in (fetch.used & ~fetch.is_padding).nonzero().tolist():
        source, (x0, y0, x1, y1) = sources[slot], boxes[slot, at].tolist()
        box = (max(0.0, x0), max(0.0, y0), min(float(source.width), x1), min(float(source.height), y1))
        origins.append(
            Origin(slot, source.page, source.second, turn_box(box, -source.turned % 360, source.height, source.width))
        )
    return tuple(origins)


def _read(fetch: FetchResult, encoding: ImageEncoding, images: Sequence[int]) -> tuple[Tensor, Tensor, Tensor] | None:
    """The `pieces` and `characters` of V views of a prompt's sources, and the view [I, K] of each fetched token."""
    if encoding.pieces is None or encoding.characters is None:
        return None
    rows = torch.tensor(images, device=encoding.pieces.device)
    own = encoding.pieces[rows], encoding.characters[rows]
    if not isinstance(fetch, JointFetch):
        return *own, torch.arange(len(rows))[:, None].expand_as(fetch.indices)
    views = fetch.seen.views
    if views.tiles is not None and (views.tiles.pieces is None or views.tiles.characters is None):
        return None
    every = torch.arange(len(views.slots))
    pieces, characters = (
        views.pick(part, name, every) for part, name in zip(own, ("pieces", "characters"), strict=True)
    )
    return pieces, characters, fetch.view


def wordpieces_read(fetch: FetchResult, encoding: ImageEncoding) -> tuple[list[int], list[int]]:
    """The wordpieces on all sources of an encoding, and those that a prompt about them fetched, in reading order.

    None from models without a text reader.
    """
    read = None if fetch.levels is not None else _read(fetch, encoding, range(len(encoding.tokens)))
    if read is None:
        return [], []
    pieces, _, view = read
    taken = torch.zeros(pieces.shape[:2], dtype=torch.bool)
    real = fetch.used & ~fetch.is_padding
    taken[view[real].cpu(), fetch.indices[real].cpu()] = True
    side = math.isqrt(pieces.shape[1])
    rows, taken = (
        each.unflatten(1, (side, side)).transpose(2, 3).flatten(1)  # upper halves of a row of patches, then lower ones
        for each in (pieces.cpu(), taken[..., None, None].expand_as(pieces))
    )
    return rows[rows >= 0].tolist(), rows[(rows >= 0) & taken].tolist()


def patches_of_text(pieces: Tensor, characters: Tensor) -> Tensor:
    """[V, N] the number of patches in a row that the text covers which begins in each patch of V views.

    It ends before the next wordpiece, so that the wordpieces of a word cover the word together.

    Args:
        pieces, characters: see `ImageEncoding`.
    """
    side = math.isqrt(pieces.shape[1])
    begins = (pieces >= 0).flatten(2).any(-1).unflatten(1, (side, side))
    goes_on = (characters[..., 0] > 0).unflatten(1, (side, side)) & ~begins
    goes_on[..., :-1] |= goes_on[..., 1:] & ~begins[..., :-1]  # a wide character has its middle in the next patch
    covered = torch.ones_like(goes_on, dtype=torch.int64)
    for column in reversed(range(side - 1)):
        covered[..., column] += covered[..., column + 1] * goes_on[..., column + 1]
    return covered.flatten(1)


@dataclass(frozen=True)
class Pass:
    """One of several passes for a question, and its answer.

    Attributes:
        text: of the answer, as in `Answer`.
        probability: of the whole output, the product of its tokens' probabilities; never calibrated.
        uncertainty: of the whole output, thinking included, 0..1: see `answer_uncertainties`.
        share: of patches drawn at random: see `passes.EXPLORATION`.
        fetch: the patches of this pass, and the map by which they were chosen (`fetch.relevance`).
    """

    text: str
    probability: float
    uncertainty: float
    share: float
    fetch: FetchResult = field(repr=False, compare=False)


@dataclass(frozen=True)
class Answer:
    """An answer and the patches that it was generated from; `fetch` and `output` do not count in a comparison.

    Attributes:
        text: the answer.
        probability: of the whole answer, thinking and end included: the product of its tokens' probabilities; from a
            calibrated model, the value of `calibrated` for it.
        fetch: the fetched patches, one row per image of the prompt.
        sources: the place of each fetched token, in px of its source, those of the answer's own words first; see
            `Origin`.
        places: where the answer's words are on the page, one place for each line; () if they are not among those that
            were fetched, and from models without a text reader.
        passes: the passes in order, with `num_passes` above 1; `fetch` is that of all passes.
        output: with `return_dict_in_generate=True` the output of transformers' `generate`, a row for each answer.
        thinking: the text between <think> and </think> before the answer; "": none. If the tokens ran out within it,
            `text` is "".
        legibility: of the images, 0..1 (`ImageEncoding.legibility`), and `fetched_legibility`, that of the fetched
            patches alone, or of all if no character was fetched; None from models without a text reader.
        turned: degrees, counterclockwise, by which each source of the prompt was turned upright before it was read;
            `sources` and `places` are in px of the page as it was given.
        words: where the words of each source of the prompt came from: a name in `word_sources.WORD_SOURCES`, "caller"
            or "file"; () from models without a text reader.
        evidence: what its probability was calibrated from, see `evidence`.
        warning: in words, if `legibility` is below the model's `least_legibility`, few patches were fetched, or the
            answer was cut by `max_new_tokens`, `max_time` or `stopping_criteria`, or a page's words came from
            another source than the wanted one; else "".
    """

    text: str
    probability: float
    fetch: FetchResult = field(compare=False, repr=False)
    sources: tuple[Origin, ...] = field(default=(), repr=False)
    places: tuple[Origin, ...] = field(default=(), repr=False)
    passes: tuple[Pass, ...] = field(default=(), repr=False)
    output: Any = field(default=None, repr=False, compare=False)
    thinking: str = field(default="", repr=False)
    legibility: float | None = None
    fetched_legibility: float | None = None
    turned: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    evidence: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    warning: str = ""


# ---- probability and legibility --------------------------------------------------------------------------------------

SUREST = 1e-6
"""The least distance of a probability from 0 and from 1, as files keep six digits."""


def evidence(probability: float, *, text: str, legibility: float | None, characters: float = 1.0) -> dict[str, float]:
    """What `calibrated` knows of an answer, by the names of the weights; long answers are more often wrong.

    `characters`: of the fetched patches with the answer's words, the least confidence of their characters, 0..1.
    """
    sure = min(max(probability, SUREST), 1 - SUREST)
    return {
        "logit": math.log(sure / (1 - sure)),
        "legibility": 0.0 if legibility is None else legibility - 1,
        "characters": characters - 1,
        "words": math.log1p(len(text.split())),
        "refused": float(text.casefold() == NOT_ON_THE_PAGE),
        "bias": 1.0,
    }


def calibrated(probability: float, weights: Mapping[str, float] | None, known: Mapping[str, float]) -> float:
    """The probability that an answer is right, by Platt scaling (Platt, 1999) of the probability of its tokens.

    It is the sigmoid of the sum of what is `known` (`evidence`) times weights (`ArrCocConfig.calibration`), and grows
    with the probability of the answer's tokens, with the legibility of what was fetched, and with that of its own
    words; without weights it stays.
    """
    if weights is None:
        return probability
    total = sum(weights.get(name, 0.0) * value for name, value in known.items())
    return 1 / (1 + math.exp(-min(max(total, -700.0), 700.0)))


def legibility_warning(legibility: float | None, least: float, pages: int = 1) -> str:
    """The warning if the `legibility` of `pages` pages is below `least`; "" otherwise."""
    if legibility is None or legibility >= least:
        return ""
    if legibility == 0:
        return f"the model finds no text on {'this page' if pages == 1 else 'these pages'}: any answer is a guess"
    shown = "this page is" if pages == 1 else "these pages are"
    return f"{shown} hard to read for the model (legibility {legibility:.2f}): the answer may be wrong"


FAINTEST = 0.02
"""The least mean gradient of a patch with print on it, of pixels from -1 to 1; paper's own is half of that."""


def blank_warning(answer: "Answer", encoding: ImageEncoding, images: Sequence[int]) -> str:
    """The warning if the most relevant patch fetched for an answer is on one of several pages, and that one is blank.

    `images`: the sources of the prompt.
    """
    fetched = answer.fetch.used & ~answer.fetch.is_padding
    if len(images) == 1 or not answer.sources:
        return ""
    origin = answer.sources[int(answer.fetch.own_relevance()[fetched].argmax())]
    row = images[origin.source]
    if encoding.characters is None:
        edges = encoding.textures[row : row + 1, TEXTURE_SETS["light"].index("edge_magnitude")]
        within = F.pad(encoding.patch_mask[row].view_as(edges), [1] * 4)  # without the paper's own edges
        blank = bool(clear_of_padding(F.pad(edges, [1] * 4), within.flatten(1)).max() < FAINTEST)
    else:
        blank = encoding.legibility([row]) == 0
    place = f"image {origin.source + 1}" if origin.page is None else f"page {origin.page}"
    return f"the model finds nothing on {place}, where this answer comes from: it is a guess" if blank else ""


def budget_warning(fetch: FetchResult) -> str:
    """The warning if fewer patches than the smallest named budget were fetched for a prompt, and more have text; else
    ""."""
    count, patches = int(fetch.counts.sum()), fetch.relevance.shape[-1]
    enough = count >= scaled_budget(min(NAMED_BUDGETS.values()), patches) or count >= int((fetch.scores > EMPTY).sum())
    return "" if enough or fetch.strategy == "none" else f"few patches were fetched ({count}): the answer may be cut"


def legibilities(
    fetch: FetchResult, encoding: ImageEncoding, images: Sequence[Sequence[int]]
) -> list[tuple[float, float] | None]:
    """`Answer.legibility` and `Answer.fetched_legibility` of each prompt; None from models without a text reader.

    `fetch`: of all prompts; `images`: the sources of each prompt.
    """
    tiles = encoding.tiles
    if encoding.characters is None or (tiles is not None and tiles.characters is None):
        return [None] * len(images)
    shown = torch.tensor([number for own in images for number in own], device=encoding.characters.device)
    fetched = fetch.fetched_characters(encoding.characters[shown]).split([len(own) for own in images])
    pages, totals = [encoding.legibility(own) or 0.0 for own in images], [held.sum(0) for held in fetched]
    return [(page, confidence_of(total) if total[0] else page) for page, total in zip(pages, totals, strict=True)]


def with_fetch(
    texts: Sequence[str],
    probabilities: Sequence[float],
    fetch: FetchResult,
    encoding: ImageEncoding,
    images: Sequence[Sequence[int]],
    output: Any,
    config: ArrCocConfig,
    decode: Callable[[list[list[int]]], list[str]],
) -> list[Answer]:
    """Answers, equally many for each prompt, with the patches fetched for it.

    `texts`: the whole outputs; `probabilities`: of the whole outputs; `images`: the sources of each prompt; `decode`:
    token ids of several texts -> the texts.
    """
    repeats = len(texts) // len(images)
    read = legibilities(fetch, encoding, images)
    rows = torch.arange(sum(map(len, images))).split([len(own) for own in images])
    answers = []
    for number, (text, probability) in enumerate(zip(texts, probabilities, strict=True)):
        prompt, shown = number // repeats, images[number // repeats]
        fetched = fetch.select(rows[prompt])
        thinking, answer_text = split_thinking(text)
        page, legible = read[prompt] or (None, None)
        words = FetchedWords.of(fetched, legible, encoding, shown, decode)
        known = words.evidence(probability, answer_text)
        hard = legibility_warning(page, config.least_legibility, len(shown))
        origins = [encoding.word_sources()[row] for row in shown]
        if hard and any(source == "network" for source, _, _ in origins):
            hard += ' (words="ocr" reads it with an OCR engine)'
        warnings = (hard, "" if page == 0 else budget_warning(fetched), *(warning for _, _, warning in origins))
        answer = Answer(
            answer_text,
            calibrated(probability, config.calibration, known),
            fetched,
            origins_of(fetched, encoding, shown),
            output=output,
            thinking=thinking,
            legibility=page,
            fetched_legibility=legible,
            turned=tuple(encoding.turned[row] for row in shown),
            words=() if page is None else tuple(source for source, _, _ in origins),
            evidence=known,
            warning="; ".join(filter(None, warnings)),
        )
        answers.append(with_places(answer, words.of_text(answer_text), encoding, shown))
    return answers


def answer_probabilities(model: Any, output: Any, start: int, end: int | list[int] | Tensor, pad: int) -> list[float]:
    """[answers] the product of the model's own token probabilities from `start` to the first end token, inclusive."""
    tokens, beams = output.sequences[:, start:], getattr(output, "beam_indices", None)
    scores = model.compute_transition_scores(output.sequences, output.logits, beams, normalize_logits=True)
    behind = _behind(tokens, end, pad)
    return scores.masked_fill(behind[:, : scores.shape[1]], 0.0).sum(1).exp().tolist()


def answer_uncertainties(output: Any, start: int, end: int | list[int] | Tensor, pad: int) -> list[float]:
    """[answers] 0..1: mean entropy of the token distributions up to the first end token, over log(vocabulary).

    For greedy or sampled answers, not for beams.
    """
    entropies = torch.stack([torch.special.entr(step.float().softmax(-1)).sum(-1) for step in output.logits], 1)
    counted = ~_behind(output.sequences[:, start:], end, pad)[:, : entropies.shape[1]]
    mean = (entropies * counted).sum(1) / counted.sum(1)
    return (mean / math.log(output.logits[0].shape[-1])).tolist()


def _behind(tokens: Tensor, end: int | list[int] | Tensor, pad: int) -> Tensor:
    """bool [B, T]: tokens behind an answer's first end."""
    ends = torch.isin(tokens, torch.as_tensor(end, dtype=tokens.dtype, device=tokens.device).reshape(-1))
    behind = ends.cumsum(1) - ends.int() > 0
    return behind | ((tokens == torch.as_tensor(pad, device=tokens.device)) & ~ends)  # stopped for another reason


# ---- places ---------------------------------------------------------------------------------------------------------


class FetchedPiece(NamedTuple):
    """A wordpiece that was fetched: its line in reading order, its column, its token, the number of its patch among the
    fetched ones, the patch's relevance, and the confidence of the patch's characters."""

    line: tuple[int, int, int]
    column: int
    token: int
    origin: int
    relevance: float
    confidence: float


@dataclass(frozen=True)
class FetchedWords:
    """The wordpieces fetched for a prompt, in reading order: rows of patches, in each first the upper halves.

    Attributes:
        legibility: `Answer.fetched_legibility`.
        pieces: the wordpieces; none from models without a text reader.
        texts: of each of them.
    """

    legibility: float | None
    pieces: list[FetchedPiece]
    texts: list[str]

    @classmethod
    def of(
        cls,
        fetch: FetchResult,
        legibility: float | None,
        encoding: ImageEncoding,
        images: Sequence[int],
        decode: Callable[[list[list[int]]], list[str]],
    ) -> "FetchedWords":
        """`fetch`: of the prompt, with a row for each of its sources `images`; `decode`: see `with_fetch`."""
        pieces = list[FetchedPiece]()
        if fetch.levels is None and (read := _read(fetch, encoding, images)) is not None:
            table, characters, views = read
            relevance, side = fetch.own_relevance(), math.isqrt(table.shape[1])
            for number, (slot, at) in enumerate((fetch.used & ~fetch.is_padding).nonzero().tolist()):
                view, patch = int(views[slot, at]), int(fetch.indices[slot, at])
                held, sure = characters[view, patch].tolist()
                rest = number, float(relevance[slot, at]), sure / held if held else 1.0
                for half, tokens in enumerate(table[view, patch].tolist()):
                    line = (slot, view, 2 * (patch // side) + half)
                    pieces += [FetchedPiece(line, patch % side, token, *rest) for token in tokens if token >= 0]
        pieces.sort(key=lambda piece: piece[:2])
        return cls(legibility, pieces, decode([[piece.token] for piece in pieces]))

    def of_text(self, text: str) -> list[FetchedPiece]:
        """Those that a text consists of; none if it is not among them."""
        return [self.pieces[at] for at in _words_of(text, self.texts, [piece.relevance for piece in self.pieces])]

    def evidence(self, probability: float, text: str) -> dict[str, float]:
        """What `calibrated` knows of the answer `text`; `probability`: of its tokens."""
        least = min((piece.confidence for piece in self.of_text(text)), default=1.0)
        return evidence(probability, text=text, legibility=self.legibility, characters=least)


def with_places(answer: Answer, own: Sequence[FetchedPiece], encoding: ImageEncoding, images: Sequence[int]) -> Answer:
    """The answer with `places`, and with `sources` that begin with those of its `own` words, or `blank_warning`.

    `images`: the sources of its prompt.
    """
    if not own or not answer.sources:
        warnings = filter(None, (answer.warning, blank_warning(answer, encoding, images)))
        return replace(answer, warning="; ".join(warnings)) if answer.legibility != 0 else answer
    first = list(dict.fromkeys(piece.origin for piece in own))
    rest = [origin for number, origin in enumerate(answer.sources) if number not in set(first)]
    places = []
    for _, line in groupby(own, key=lambda piece: piece.line):
        origins = [answer.sources[piece.origin] for piece in line]
        x0, y0, x1, y1 = zip(*(origin.box for origin in origins), strict=True)
        places.append(replace(origins[0], box=(min(x0), min(y0), max(x1), max(y1))))
    return replace(answer, places=tuple(places), sources=(*(answer.sources[number] for number in first), *rest))


def _words_of(text: str, texts: Sequence[str], relevance: Sequence[float]) -> list[int]:
    """The wordpieces that a text consists of: of several places the most relevant; else of each of its words.

    Letters and digits count, in any case; a place that begins and ends with whole words is preferred.
    """
    owners = [number for number, part in enumerate(texts) for _ in part]
    page = "".join(texts)

    def place(wanted: str) -> list[int]:
        signs = re.findall(r"[^\W_]", wanted)
        for border in (r"(?<![^\W_])(?:{})(?![^\W_])", "{}"):
            found = re.finditer(border.format(r"[\W_]*".join(signs)), page, re.IGNORECASE) if signs else ()
            spans = [list(dict.fromkeys(owners[each.start() : each.end()])) for each in found]
            if spans:
                return max(spans, key=lambda span: sum(relevance[number] for number in span) / len(span))
        return []

    whole = place(text)
    return whole or sorted({number for word in text.split() if len(word) > 1 for number in place(word)})


# ---- several readings, and several pages -----------------------------------------------------------------------------

SURE = 0.8
"""Probability from which on an answer is not asked again."""


def surest(
    answers: Sequence[Answer], again: Sequence[Callable[[list[int]], Sequence[Answer]]], least: float = SURE
) -> list[Answer]:
    """The answer to each question that its readings agree on most, from `answers` of the first reading.

    `again`: of each further reading, answers to the questions of these numbers; `least`: probability from which on a
    question is not asked again.
    """
    given = [[answer] for answer in answers]
    for ask in again:
        unsure = [number for number, own in enumerate(given) if all(answer.probability < least for answer in own)]
        if not unsure:
            break
        for number, answer in zip(unsure, ask(unsure), strict=True):
            given[number].append(answer)
    return [agreed(own) for own in given]


def agreed(answers: Sequence[Answer]) -> Answer:
    """Of the answers of several readings to a question the one whose text has the largest sum of probabilities.

    Its probability becomes the mean of its own and of that sum divided by the number of readings: an answer that
    other readings do not give is less sure. Case and white space of texts are ignored.
    """
    by_text = defaultdict[str, list[Answer]](list)
    for answer in answers:
        by_text[" ".join(answer.text.casefold().split())].append(answer)
    best = max(by_text.values(), key=lambda own: sum(answer.probability for answer in own))
    first, share = max(best, key=lambda answer: answer.probability), sum(answer.probability for answer in best)
    return replace(first, probability=(first.probability + share / len(answers)) / 2)


def on_page(answer: Answer, sources: Sequence[Source], places: Tensor) -> Answer:
    """An answer about the sheets that `rereading.on_sheets` made of the `sources` of a prompt as one about these pages.

    `places`: [P, 2] of the pages on their sheets.
    """

    def moved(origin: Origin) -> Origin:
        source, (x, y) = sources[origin.source], places[origin.source].tolist()
        x0, y0, x1, y1 = origin.box
        left, top = max(0.0, x0 - x), max(0.0, y0 - y)
        box = (left, top, min(float(source.width), x1 - x), min(float(source.height), y1 - y))
        return replace(origin, box=turn_box(box, -source.turned % 360, source.height, source.width))

    fetch: Any = answer.fetch
    if isinstance(fetch, JointFetch):
        views = fetch.seen.views
        windows = views.windows - places[views.slots].repeat(1, 2)
        fetch = replace(fetch, seen=replace(fetch.seen, views=replace(views, windows=windows)))
    own, said = tuple(map(moved, answer.sources)), tuple(map(moved, answer.places))
    turned = tuple(source.turned for source in sources)
    return replace(answer, sources=own, places=said, fetch=fetch, turned=turned)
