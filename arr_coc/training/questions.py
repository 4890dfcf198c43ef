"""Batches of questions about pages, rendered or sketched, for the stages that train the language model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerBase

from arr_coc.data import Entry, Glyph, Split, ask, box_targets, glyph_targets, render_document
from arr_coc.data.sketching import sketch_document
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.modeling.processing_arr_coc import CHAT_TEMPLATE, find_query_tokens, query_markers
from arr_coc.training.reading import SLOTS, pixels, word_targets
from arr_coc.training.streaming import per_step

TRANSCRIBE = "Read the page."
"""What the second turn of a transcribing batch asks for: the fetched lines, top to bottom."""


class Pages(Protocol):
    """What a stage says of its batches: pages per step, questions about each, and the seed."""

    @property
    def pages(self) -> int: ...
    @property
    def questions(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass
class Batch:
    """P pages with Q questions each: I = P*Q slots, page-major.

    Attributes:
        pixel_values: [P, 3, S, S]; of sketched pages [P, 0].
        glyphs, words: [P, G, G, SLOTS] and [P, G, G], see the reading stage.
        before, after: [I, *] token ids before and after the vision tokens, the latter padded on the right.
        answer, query: [I, *] True on the tokens of `after` that are to be predicted, and on the question's.
        relevance: [I, N] patches of the answer and its label.
        oracle: [I, N] what strategy "oracle" fetches.
        transcript: the same with a second turn that transcribes the lines fetched.
    """

    pixel_values: Tensor
    glyphs: Tensor
    words: Tensor
    before: Tensor
    after: Tensor
    answer: Tensor
    query: Tensor
    relevance: Tensor
    oracle: Tensor
    transcript: "Batch | None" = None


class Prompts:
    """Tokenises prompts around the vision tokens, which are put in later, as many as the batch's budget asks for."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, image_token_id: int) -> None:
        self.tokenizer, self.markers = tokenizer, query_markers(tokenizer)
        self.image_token_id, self.pad = image_token_id, tokenizer.pad_token_id

    def _turn(self, content: list[dict[str, str]]) -> list[int]:
        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=CHAT_TEMPLATE,
            tokenize=False,
            add_generation_prompt=True,
        )
        return self.tokenizer(prompt, add_special_tokens=False).input_ids

    def _spelt(self, answer: str) -> list[int]:
        return [*self.tokenizer(answer, add_special_tokens=False).input_ids, self.tokenizer.eos_token_id]

    def __call__(
        self, question: str, answer: str, transcript: str | None = None
    ) -> tuple[list[int], list[int], list[bool], list[bool]]:
        """Ids before and after the image; of the latter, which are to be predicted and which are the question.

        With `transcript`, a second turn asks for it.
        """
        ids = self._turn([{"type": "image"}, {"type": "text", "text": question}])
        place = ids.index(self.image_token_id)
        query = find_query_tokens(torch.tensor([ids]), **self.markers)[0].tolist()[place + 1 :]
        after, spelt = ids[place + 1 :], self._spelt(answer)
        predicted = [False] * len(after) + [True] * len(spelt)
        after = after + spelt
        if transcript is not None:
            asked, read = self._turn([{"type": "text", "text": TRANSCRIBE}]), self._spelt(transcript)
            after += self.tokenizer("\n", add_special_tokens=False).input_ids + asked + read
            predicted += [False] * (len(after) - len(predicted) - len(read)) + [True] * len(read)
        return ids[:place], after, predicted, query + [False] * (len(after) - len(query))


class QuestionPages(IterableDataset):
    """Endless batches; a function of (seed, split, position)."""

    def __init__(
        self,
        stage: Pages,
        config: ArrCocConfig,
        prompts: Prompts,
        *,
        split: Split,
        transcript_budget: int,
        start: int = 0,
        held_out: bool = False,
        sketched: bool = False,
    ) -> None:
        self.stage, self.prompts, self.split, self.start = stage, prompts, split, start
        self.transcript_budget, self.sketched = transcript_budget, sketched
        self.purpose = 3 if held_out else 2  # pages that are measured on never come up in training, whatever the split
        self.size, self.grid = config.vision_config.image_size, config.vision_config.grid_size

    def __iter__(self) -> Iterator[Batch]:
        return per_step(self.batch, self.start)

    def batch(self, step: int) -> Batch:
        """The batch of one step."""
        rng = np.random.default_rng((self.stage.seed, self.purpose, step))
        images, glyphs, words, short, long, relevance, unions = [], [], [], [], [], [], []
        for _ in range(self.stage.pages):
            image, listed, drawn = self._page(rng)
            images.append(image)
            glyphs.append(glyph_targets(drawn, size=self.size, grid=self.grid, slots=SLOTS))
            words.append(word_targets(listed, size=self.size, grid=self.grid))
            order = rng.permutation(len(listed))
            for number in range(self.stage.questions):
                turned = np.roll(order, -number)  # the one asked about first, then the others in a drawn order
                entries = [listed[int(index)] for index in turned]
                asked = (ask(rng, entries[0].field, split=self.split), entries[0].value)
                kept, union = self._fitting(entries)
                lines = "\n".join(f"{entry.label} {entry.value}" for entry in kept)
                short.append(self.prompts(*asked))
                long.append(self.prompts(*asked, lines))
                relevance.append(self._patches(entries[0]))
                unions.append(union)
        shared = {"pixel_values": images, "glyphs": glyphs, "words": words, "relevance": relevance}
        tensors = {name: torch.from_numpy(np.stack(arrays)) for name, arrays in shared.items()}
        transcript = Batch(**tensors, **self._padded(long), oracle=torch.from_numpy(np.stack(unions)))
        return Batch(**tensors, **self._padded(short), oracle=tensors["relevance"], transcript=transcript)

    def _page(self, rng: np.random.Generator) -> tuple[np.ndarray, tuple[Entry, ...], tuple[Glyph, ...]]:
        if self.sketched:
            return np.zeros(0, np.float32), *sketch_document(rng, size=self.size)
        document = render_document(rng, size=self.size, split=self.split)
        return pixels(np.asarray(document.image.convert("RGB"))), document.entries, document.glyphs

    def _patches(self, entry: Entry) -> np.ndarray:
        """[N] 1 on the patches of an entry's label and value."""
        return box_targets([entry.label_box, entry.value_box], size=self.size, grid=self.grid).reshape(-1)

    def _fitting(self, entries: list[Entry]) -> tuple[list[Entry], np.ndarray]:
        """The first entry and those after it that fit into the transcript's budget, top to bottom; their patches."""
        kept, union = [entries[0]], self._patches(entries[0])
        for entry in entries[1:]:
            more = np.maximum(union, self._patches(entry))
            if more.sum() > self.transcript_budget:
                break
            kept.append(entry)
            union = more
        return sorted(kept, key=lambda entry: entry.value_box[1]), union

    def _padded(self, texts: list[tuple[list[int], list[int], list[bool], list[bool]]]) -> dict[str, Tensor]:
        length = max(len(after) for _, after, _, _ in texts)
        after, answer, query = (
            torch.tensor([list(text[part]) + [fill] * (length - len(text[part])) for text in texts])
            for part, fill in ((1, self.prompts.pad), (2, False), (3, False))
        )
        before = torch.tensor([before for before, *_ in texts])
        return {"before": before, "after": after, "answer": answer, "query": query}
