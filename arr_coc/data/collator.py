"""Collates records into training batches: the prompt of `generate(image, question)`, followed by the answer.

Notation: B records, S their longest sequence, P distinct images, I = B image slots, N patches.
"""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..modeling.configuration_arr_coc import ArrCocConfig, count_vision_tokens
from ..modeling.image_loading import Source, load_source
from ..modeling.image_processing_arr_coc import boxes_to_patches
from ..modeling.processing_arr_coc import ArrCocProcessor
from ..modeling.prompt import query_markers
from ..modeling.word_sources import PageToRead, check_words, read_before, to_tensor
from .records import Record, is_document, of_line

IGNORED = -100  # label of tokens that are not predicted, which transformers' losses ignore
UNKNOWN = -1.0  # relevance of every patch if the patches of the answer are unknown
SINGLE = "expected a single image, as training supports no documents"
MARKS = 32  # at least as many tokens as the chat template puts around the text of a turn


class QuestionCollator:
    """Batches of records as tensors for `ArrCocForConditionalGeneration.forward`.

    Args:
        budget: placeholders for fetched tokens in prompts; the config's by default. A step can use fewer, see
            `trim_placeholders`.
        words: where the words of images come from, a name in `word_sources.WORD_SOURCES`.

    Raises:
        ValueError: a bad budget, a tokenizer without a token that ends an answer.
    """

    def __init__(
        self,
        processor: ArrCocProcessor,
        config: ArrCocConfig,
        *,
        budget: int | str | None = None,
        words: str = "network",
    ) -> None:
        check_words(words)
        self.processor, self.words = processor, words
        self.side, self.patch_size = processor.image_processor.size["height"], processor.image_processor.patch_size
        spent = config.fetcher_config.budget if budget is None else budget
        prompt: dict[str, Any] = {"excludes_base": config.excludes_base, "layout": config.bridge_config.layout}
        self.placeholders = sum(count_vision_tokens(self.side, self.patch_size, spent, **prompt))
        self.limit = getattr(config.text_config, "max_position_embeddings", None)
        end = query_markers(processor.tokenizer, processor.image_token)["end_id"]
        self.end = processor.tokenizer.eos_token_id if end is None else end
        if self.end is None:
            raise ValueError("tokenizer: expected a token that ends a turn, or an eos token; got neither")
        self.opening = _opening(processor)

    def __call__(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """The batch of these records.

        Returns:
            input_ids, attention_mask, labels: int64 [B, S]; labels are the answer and its end, `IGNORED` elsewhere.
            query_mask: bool [B, S], True on the question's text, never on the answer.
            pixel_values: float32 [P, 3, side, side], patch_mask: bool [P, N]; each distinct image once.
            image_index: int64 [I], the image of each record.
            image_words, source_sizes: of each distinct image, if `words` are not the network's; see `ArrCocProcessor`.
            retained: bool [I], only if there are any: records on which the scorer's relevance is retained.
            relevance_targets: float32 [I, N], 1 on patches under the boxes of the answer and its label, 0 elsewhere;
                all 0 for absent answers; rows of `UNKNOWN` for unknown boxes, boxes outside the image, and retained
                records.

        Raises:
            ValueError: no records, an image that cannot be read, a sequence longer than the
                model's context; the message names the record's line.
        """
        if not records:
            raise ValueError("records: expected at least one; got none")
        rows = [self._sequence(record) for record in records]
        fills = {"input_ids": self.processor.tokenizer.pad_token_id, "labels": IGNORED}
        batch = {name: pad_sequence([row[name] for row in rows], True, fills.get(name, 0), "left") for name in rows[0]}
        return batch | self._images(records)

    def check(self, records: Sequence[Record]) -> None:
        """Refuses what no step could train on, before any training: files are opened, but not decoded.

        Only long texts are tokenized: a token has at least one byte.

        Raises:
            ValueError: several images, a document, a file that is no image, a prompt and answer longer than the
                context; the message names the record's line.
        """
        files = {record.image: record for record in reversed(records)}
        for record in records:
            _check_single(record)
            if files[record.image] is record and isinstance(record.image, Path):
                with of_line(record.line):
                    if is_document(record.image):
                        raise ValueError(f"image: {SINGLE}; got a document")
            told = [record.question, *record.answers, *(text for turn in record.history for text in turn)]
            most = self.placeholders + sum(len(text.encode("utf-8", "replace")) + MARKS for text in told)
            if self.limit is not None and most > self.limit:
                self._sequence(record)

    def _sequence(self, record: Record) -> dict[str, Tensor]:
        """The tensors [S] of one record; the question is located in the prompt only, so no answer leaks into it."""
        asked: dict[str, Any] = {"images": [1], "placeholders": self.placeholders, "history": record.history}
        prompt = self.processor.prompts([record.question], **asked)["input_ids"][0]
        said = self.opening + record.answers[0].strip()  # in which special tokens are spelt
        tokens = self.processor.tokenizer(said, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        answer = torch.tensor([*tokens, self.end])
        if self.limit is not None and len(prompt) + len(answer) > self.limit:
            received = f"{len(prompt) + len(answer)}, {self.placeholders} of them the image's"
            raise ValueError(
                f"line {record.line}: expected at most {self.limit} tokens with the answer; got {received}"
            )
        ids = torch.cat((prompt, answer))
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": torch.cat((torch.full_like(prompt, IGNORED), answer)),
            "query_mask": torch.cat((self.processor.query_mask(prompt[None])[0], torch.zeros_like(answer).bool())),
        }

    def _images(self, records: Sequence[Record]) -> dict[str, Tensor]:
        """Pixels of the distinct images, the image of each record, and the patches of its answer."""
        limit = self.processor.image_processor.max_image_pixels
        for record in records:
            _check_single(record)
        slots: dict[Hashable, int] = {}
        index = [slots.setdefault(record.image, len(slots)) for record in records]
        first = [records[index.index(slot)] for slot in range(len(slots))]
        images = [_loaded(record, limit) for record in first]
        inputs = self.processor.image_processor(images, return_tensors="pt")
        sizes = [(images[slot].height, images[slot].width) for slot in index]
        relevance = [self._relevance(record, size) for record, size in zip(records, sizes, strict=True)]
        marks = torch.tensor([record.retained for record in records])
        words = {}
        if self.words not in ("auto", "network"):  # images have no text layer
            pages = [PageToRead(Source(image.height, image.width, image.copy), image) for image in images]
            known = [read_before(self.words, page) for page in pages]
            image_sizes = torch.tensor([(image.height, image.width) for image in images])
            words = {"image_words": to_tensor(known), "source_sizes": image_sizes}
        return {
            **words,
            **({"retained": marks} if marks.any() else {}),
            "pixel_values": inputs["pixel_values"],
            "patch_mask": inputs["patch_mask"].bool(),
            "image_index": torch.tensor(index),
            "relevance_targets": torch.stack(relevance),
        }

    def _relevance(self, record: Record, size: tuple[int, int]) -> Tensor:
        """float32 [N] for an image of (height, width) px."""
        grid = self.side // self.patch_size
        patches = np.zeros((grid, grid), dtype=bool)
        if record.boxes and not record.retained:
            boxes = self.processor.image_processor.map_boxes((*record.boxes, *record.label_boxes), *size)
            patches = boxes_to_patches(boxes, grid, self.patch_size)
        if not patches.any() and (record.retained or not record.absent):
            return torch.full((grid**2,), UNKNOWN)
        return torch.from_numpy(patches).flatten().float()


def _check_single(record: Record) -> None:
    if record.others:
        raise ValueError(f"line {record.line}: images: {SINGLE}; got {len(record.images)}")


def _loaded(record: Record, limit: int) -> Image.Image:
    with of_line(record.line):
        loaded = load_source(record.picture, max_image_pixels=limit)
        if not isinstance(loaded, Image.Image):
            raise ValueError(f"image: {SINGLE}; got a document")
        return loaded


def _opening(processor: ArrCocProcessor) -> str:
    """The white space that the chat template writes between the assistant's header and its answer."""
    chat = [{"role": "user", "content": "x"}]
    header = processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    turns = processor.apply_chat_template([*chat, {"role": "assistant", "content": "x"}], tokenize=False)
    before, _, _ = turns.removeprefix(header).partition("x")
    return before if turns.startswith(header) and before.isspace() else ""
