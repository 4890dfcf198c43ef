"""Batches of questions about pages, rendered or sketched, for the stages that train the language model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from arr_coc.data import FIELDS, Box, Document, Entry, Glyph, Split, ask, box_targets
from arr_coc.data.domains.variations import missing_fields, unheard_field
from arr_coc.data.mixture import Mixture, sketch_document
from arr_coc.data.records import NOT_ON_THE_PAGE
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig, grid_size
from arr_coc.modeling.processing_arr_coc import find_query_tokens, query_markers
from arr_coc.modeling.prompt_format import CHAT_TEMPLATE

from .stage import Batches, DrawnPages
from .targets import Shown, fitted, pixels, shown, word_targets

TRANSCRIBE = "Read the page."
"""The second turn of a transcribing batch: it asks for the fetched lines, or all lines, top to bottom."""


Spelling = list[tuple[str, int]]
"""Characters in order, each with the number of its glyph on the page (-1 for spaces and line ends)."""


def _transcript(entries: Sequence[Entry], spelt: Mapping[str, tuple[Spelling, Spelling]]) -> Spelling:
    """The entries' labels and values, one line each, in the page's order; they are `spelt` by field."""
    fields = {entry.field for entry in entries}
    spelling: Spelling = []
    for label, value in (both for name, both in spelt.items() if name in fields):
        spelling += [*label, (" ", -1), *value, ("\n", -1)]
    return spelling[:-1]


@dataclass
class Text:
    """Ids before and after the images, and between two images; for those after, masks of predicted tokens and of the
    question, and the glyph of each."""

    before: list[int]
    between: list[int]
    after: list[int]
    answer: list[bool]
    query: list[bool]
    spelt: list[int]

    def extend(self, ids: list[int], answer: list[bool], spelt: list[int]) -> None:
        """Appends tokens that are not part of the question."""
        self.after += ids
        self.answer += answer
        self.spelt += spelt
        self.query += [False] * len(ids)

    def numbered_from(self, first: int) -> "Text":
        """The same with glyphs numbered from `first` on."""
        return replace(self, spelt=[glyph if glyph < 0 else first + glyph for glyph in self.spelt])


@dataclass
class AskedPage:
    """A page, and for each question about it: the texts with the answer alone, with the lines that fit into the
    transcript's budget, and with all lines; the patches of the answer, and those of the lines that fit."""

    image: np.ndarray
    glyphs: Sequence[Glyph]
    words: np.ndarray
    short: list[Text] = field(default_factory=list)
    long: list[Text] = field(default_factory=list)
    longest: list[Text] = field(default_factory=list)
    relevance: list[np.ndarray] = field(default_factory=list)
    unions: list[np.ndarray] = field(default_factory=list)

    @property
    def length(self) -> int:
        """The length of the longest text, in tokens."""
        return max(len(text.after) for text in self.longest)


class Pages(Protocol):
    """A stage's settings of its batches: pages per step, questions about each, and the seed.

    Also the number of steps whose pages are drawn together and sorted by length, which saves padding; the share of
    questions about absent fields, the share of these about fields of no page, and the share of questions that come
    second in a chat; the side that pages are fitted into; and how often rendered pages come up, see `DrawnPages`.
    """

    @property
    def pages(self) -> int: ...
    @property
    def questions(self) -> int: ...
    @property
    def absent(self) -> float: ...
    @property
    def unheard(self) -> float: ...
    @property
    def turns(self) -> float: ...
    @property
    def seed(self) -> int: ...
    @property
    def sorted_steps(self) -> int: ...
    @property
    def image_size(self) -> int | None: ...
    @property
    def reused(self) -> int: ...


@dataclass
class Batch:
    """P pages with Q questions each: I = P*Q slots, page-major.

    Attributes:
        pixel_values: [P, 3, S, S]; of sketched pages [P, 0].
        shown: the characters on the pages.
        glyphs, words: [P, G, G, SLOTS] and [P, G, G], see the reading stage.
        before, after: [I, *] token ids before and after the vision tokens, the latter padded on the right.
        answer, query: [I, *] True on the predicted tokens of `after`, and on the question's.
        spelt: [I, *] for each token of `after` the number of its character in `shown`, -1: it is none of them.
        places: [I, *] the patch that shows it.
        relevance: [I, N] patches of the answer and its label; none for absent fields.
        oracle: [I, N] the patches that strategy "oracle" fetches.
        transcript: these pages and questions with a second turn that transcribes the lines fetched.
        whole: these with a second turn that transcribes all lines, for those who see the whole page.
    """

    pixel_values: Tensor
    shown: Shown
    glyphs: Tensor
    words: Tensor
    before: Tensor
    after: Tensor
    answer: Tensor
    query: Tensor
    spelt: Tensor
    places: Tensor
    relevance: Tensor
    oracle: Tensor
    transcript: "Batch | None" = None
    whole: "Batch | None" = None

    @property
    def text(self) -> Tensor:
        """[I, N] whether there are characters on each patch of a question's page."""
        written = (self.glyphs > 0).any(-1).flatten(1)
        return written.repeat_interleave(len(self.after) // len(written), 0)

    def read_from(self, *, whole: bool) -> "Batch":
        """The batch that transcribes the whole page (with base tokens alone or all patches), or the fetched lines."""
        transcribing = self.whole if whole else self.transcript
        assert transcribing is not None, "a batch that transcribes already"
        return transcribing

    def put(self, patches: Tensor) -> "Batch":
        """The same questions with the characters on other patches [n], numbered on over the pages, see `targets`."""
        pages, side = self.glyphs.shape[:2]
        return replace(
            self, glyphs=self.shown.targets(pages, side, patches), places=places_of(self.spelt, patches % side**2)
        )

    def to(self, device: torch.device) -> "Batch":
        """The same with every tensor on `device`."""
        moved: dict[str, Any] = {name: None if part is None else part.to(device) for name, part in vars(self).items()}
        return Batch(**moved)


def places_of(spelt: Tensor, patches: Tensor) -> Tensor:
    """The patch of each token's character, from all characters' `patches` [n]; -1 without one."""
    return torch.cat((patches, patches.new_tensor([-1])))[spelt]


class Prompts:
    """Tokenises prompts without the vision tokens, which are inserted later."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, image_token_id: int) -> None:
        self.tokenizer, self.markers = tokenizer, query_markers(tokenizer)
        self.image_token_id, self.pad = image_token_id, tokenizer.pad_token_id

    def _turns(self, turns: list[dict[str, Any]]) -> list[int]:
        prompt = self.tokenizer.apply_chat_template(
            turns,
            chat_template=CHAT_TEMPLATE,
            tokenize=False,
            add_generation_prompt=True,
        )
        return self.tokenizer(prompt, add_special_tokens=False).input_ids

    def __call__(
        self,
        question: str,
        answer: Spelling,
        transcript: Spelling | None = None,
        history: Sequence[tuple[str, str]] = (),
        images: int = 1,
    ) -> Text:
        """Tokens around images: a question, its answer, and with `transcript` a further turn that asks for it.

        `history`: earlier questions and answers; `images`: those of the first turn.
        """
        spoken = [text for turn in history for text in turn] + [question]
        turns = [_message(("user", "assistant")[place % 2], text) for place, text in enumerate(spoken)]
        turns[0]["content"][:0] = [{"type": "image"}] * images
        ids = self._turns(turns)
        places = [place for place, token in enumerate(ids) if token == self.image_token_id]
        between = ids[places[0] + 1 : places[1]] if images > 1 else []
        end = places[-1] + 1
        query = find_query_tokens(torch.tensor([ids]), **self.markers)[0].tolist()[end:]
        text = Text(ids[: places[0]], between, ids[end:], [False] * len(query), query, [-1] * len(query))
        self._append(text, answer)
        if transcript is not None:
            asked = self.tokenizer("\n", add_special_tokens=False).input_ids
            asked = asked + self._turns([_message("user", TRANSCRIBE)])
            text.extend(asked, [False] * len(asked), [-1] * len(asked))
            self._append(text, transcript)
        return text

    def _append(self, text: "Text", spelling: Spelling) -> None:
        """Adds the predicted tokens: those of the spelling and the end."""
        ids = self.tokenizer("".join(char for char, _ in spelling), add_special_tokens=False).input_ids
        spelt = [glyph for _, glyph in spelling] if len(ids) == len(spelling) else [-1] * len(ids)
        text.extend([*ids, self.tokenizer.eos_token_id], [True] * (len(ids) + 1), [*spelt, -1])


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


class QuestionPages(Batches[Batch]):
    """Endless batches; a function of (seed, split, position).

    Args:
        stage: its settings.
        config: of the model.
        prompts: the tokeniser of prompts.
        split: of fonts, words, layouts and wordings.
        transcript_budget: patches of the lines that a batch transcribes.
        mixture: draws the pages; None: they are sketched, with the words of training.
        start: the first step.
        held_out: pages that training never shows, whatever the split.
    """

    def __init__(
        self,
        stage: Pages,
        config: ArrCocConfig,
        prompts: Prompts,
        *,
        split: Split,
        transcript_budget: int,
        mixture: Mixture | None,
        start: int = 0,
        held_out: bool = False,
    ) -> None:
        self.stage, self.prompts, self.split, self.start = stage, prompts, split, start
        self.transcript_budget = transcript_budget
        self.held_out, self.purpose = held_out, 3 if held_out else 2
        self._sorted: dict[int, list[AskedPage]] = {}
        vision = config.vision_config
        self.size, self.side = vision.image_size, stage.image_size or vision.image_size
        self.source = (
            None
            if mixture is None
            else DrawnPages(mixture, (stage.seed, self.purpose, 2), stage.reused, size=self.size, split=split)
        )
        self.grid = grid_size(self.side, vision.patch_size)

    def batch(self, step: int) -> Batch:
        """The batch of one step."""
        together = 1 if self.held_out else self.stage.sorted_steps
        if together == 1:
            return self._batch(self._drawn(step))
        first, within = divmod(step, together)
        if first not in self._sorted:
            drawn = [page for number in range(together) for page in self._drawn(first * together + number)]
            self._sorted = {first: sorted(drawn, key=lambda page: page.length)}
        order = np.random.default_rng((self.stage.seed, self.purpose, first, together)).permutation(together)
        begin = int(order[within]) * self.stage.pages
        return self._batch(self._sorted[first][begin : begin + self.stage.pages])

    def _drawn(self, step: int) -> list[AskedPage]:
        """The pages of one step and their questions."""
        rng = np.random.default_rng((self.stage.seed, self.purpose, step))
        first = step * self.stage.pages
        return [self._asked_page(number, rng) for number in range(first, first + self.stage.pages)]

    def _asked_page(self, number: int, rng: np.random.Generator) -> AskedPage:
        image, page = self._page(number, rng)
        listed = page.entries
        words = word_targets(listed, page.labels, size=self.size, grid=self.grid)
        spelt = _spelt(listed, page.glyphs)
        everything = _transcript(listed, spelt)
        asked_page = AskedPage(image, page.glyphs, words)
        order = rng.permutation(len(listed))
        for number in range(self.stage.questions):
            turned = np.roll(order, -number)  # the entry of the question first, then the others in a drawn order
            entries = [listed[int(index)] for index in turned]
            fitting, union = self._fitting(entries)
            asked, answer, patches = self._asked(rng, entries[0], spelt, page)
            before = self._history(rng, entries[1:])
            asked_page.short.append(self.prompts(asked, answer, history=before))
            asked_page.long.append(self.prompts(asked, answer, _transcript(fitting, spelt), before))
            asked_page.longest.append(self.prompts(asked, answer, everything, before))
            asked_page.relevance.append(patches)
            asked_page.unions.append(union)
        return asked_page

    def _batch(self, pages: Sequence[AskedPage]) -> Batch:
        """Pages and questions as tensors."""
        relevance = [own for page in pages for own in page.relevance]
        shared = {
            "pixel_values": [page.image for page in pages],
            "words": [page.words for page in pages],
            "relevance": relevance,
        }
        tensors: dict[str, Any] = {name: torch.from_numpy(np.stack(arrays)) for name, arrays in shared.items()}
        tensors["shown"] = characters = shown([page.glyphs for page in pages], self.size / self.grid)
        tensors["glyphs"] = characters.targets(len(pages), self.grid)
        centred = characters.nearby(self.grid)[:, 0] % self.grid**2
        tensors["oracle"] = torch.from_numpy(np.stack([union for page in pages for union in page.unions]))
        firsts = np.cumsum([0, *(len(page.glyphs) for page in pages)])[:-1].tolist()
        short, long, longest = (
            [
                text.numbered_from(first)
                for page, first in zip(pages, firsts, strict=True)
                for text in getattr(page, kind)
            ]
            for kind in ("short", "long", "longest")
        )
        read = Batch(**tensors, **self._padded(long, centred))
        tensors["oracle"] = tensors["relevance"]
        whole = Batch(**tensors, **self._padded(longest, centred))
        return Batch(**tensors, **self._padded(short, centred), transcript=read, whole=whole)

    def _page(self, number: int, rng: np.random.Generator) -> tuple[np.ndarray, Document]:
        """The pixels of page number `drawn`, empty for a sketched one; and its content."""
        if self.source is None:
            entries, glyphs = sketch_document(rng, size=self.size)
            return np.zeros(0, np.float32), Document(Image.new("RGB", (1, 1)), entries, glyphs, "sketch", "")
        document = self.source.page(number, rng)
        return pixels(fitted(document.image, self.side)), document

    def _asked(
        self, rng: np.random.Generator, entry: Entry, spelt: Mapping[str, tuple[Spelling, Spelling]], page: Document
    ) -> tuple[str, Spelling, np.ndarray]:  # fmt: skip
        """A question about an entry, or about an absent field; its answer, and the patches it needs.

        On a part of a page, the absent field is one from elsewhere on the page, if there is any.
        """
        missing: Sequence[str] = ()
        if rng.random() < self.stage.absent:
            missing = page.elsewhere or missing_fields(FIELDS, page.glyphs)
        if missing:
            field = missing[int(rng.integers(len(missing)))]
            if self.stage.unheard and rng.random() < self.stage.unheard:
                field = unheard_field(rng, page.glyphs, self.split)
            question = ask(rng, field, split=self.split)
            return question, [(char, -1) for char in NOT_ON_THE_PAGE], np.zeros(self.grid**2, np.float32)
        return ask(rng, entry.field, split=self.split), spelt[entry.field][1], self._patches(entry)

    def _history(self, rng: np.random.Generator, others: Sequence[Entry]) -> list[tuple[str, str]]:
        """An earlier turn about one of the other entries, or none."""
        if not others or rng.random() >= self.stage.turns:
            return []
        earlier = others[int(rng.integers(len(others)))]
        return [(ask(rng, earlier.field, split=self.split), earlier.value)]

    def _patches(self, entry: Entry) -> np.ndarray:
        """[N] 1 on the patches of an entry's label and value."""
        return box_targets([entry.label_box, entry.value_box], size=self.size, grid=self.grid).reshape(-1)

    def _fitting(self, entries: list[Entry]) -> tuple[list[Entry], np.ndarray]:
        """The first entry and those after it that fit into the transcript's budget; their patches."""
        fitting, union = [entries[0]], self._patches(entries[0])
        for entry in entries[1:]:
            more = np.maximum(union, self._patches(entry))
            if more.sum() > self.transcript_budget:
                break
            fitting.append(entry)
            union = more
        return fitting, union

    def _padded(self, texts: list[Text], patches: Tensor) -> dict[str, Any]:
        """The texts' tensors; `patches` [n]: of all characters."""
        tensors = padded(texts, self.prompts.pad)
        return {**tensors, "places": places_of(tensors["spelt"], patches)}


def padded(texts: Sequence[Text], pad: int) -> dict[str, Tensor]:
    """`before` of texts, of equal length, and the texts after, padded on the right: [I, *] each."""
    length = max(len(text.after) for text in texts)
    fills = {"after": pad, "answer": False, "query": False, "spelt": -1}
    rows = {
        name: torch.tensor([getattr(text, name) + [fill] * (length - len(text.after)) for text in texts])
        for name, fill in fills.items()
    }
    return {"before": torch.tensor([text.before for text in texts]), **rows}


def _spelt(entries: Sequence[Entry], glyphs: Sequence[Glyph]) -> dict[str, tuple[Spelling, Spelling]]:
    """Label and value of each field, with the glyphs that show them."""
    return {
        entry.field: (
            spelling(entry.label, entry.label_box, glyphs), spelling(entry.value, entry.value_box, glyphs),
        )
        for entry in entries
    }  # fmt: skip


def spelling(text: str, box: Box, glyphs: Sequence[Glyph], first: int = 0) -> Spelling:
    """`text` with the glyphs in `box`, from left to right; a colon behind a label is skipped.

    `first`: number of the first glyph.
    """
    x0, y0, x1, y1 = box
    centres = [((g.box[0] + g.box[2]) / 2, (g.box[1] + g.box[3]) / 2, number) for number, g in enumerate(glyphs)]
    inside = [(x, number) for x, y, number in centres if x0 - 1 <= x <= x1 + 1 and y0 <= y <= y1]
    found = iter([number for _, number in sorted(inside)])
    return [(char, -1 if char == " " else _number(next(found, None), char, glyphs, first)) for char in text]


def _number(found: int | None, char: str, glyphs: Sequence[Glyph], first: int) -> int:
    """The number of a glyph; -1 if it is not the expected character."""
    return -1 if found is None or glyphs[found].char != char else first + found
