"""What one visitor has in hand: an image, encoded once, and pictures of what was asked about it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from PIL import Image

from ..modeling.fetcher import FetchResult
from ..modeling.image_loading import load_image
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.vision_tower import ImageEncoding
from ..viewing import draw_fetch
from .steps import Step

REMEMBERED = 12
"""Answers whose pictures are kept."""


@dataclass(frozen=True)
class Session:
    """An image and what was asked about it. It never changes: a further answer gives a further session.

    Attributes:
        image: upright, RGB.
        encoding: what the model made of it.
        asked: a picture and a caption of each of the last answers, the newest first.
    """

    image: Image.Image
    encoding: ImageEncoding
    asked: tuple[tuple[Image.Image, str], ...] = ()

    @classmethod
    def open(cls, model: ArrCocForConditionalGeneration, content: bytes) -> Self:
        """Decodes and encodes an uploaded file.

        Raises:
            ValueError: it is no image, a broken one, or one that is too large.
        """
        try:
            image = load_image(content)
        except ValueError as error:
            raise ValueError(f"image: {str(error).removeprefix('bytes: ')}") from error
        return cls(image, model.encode_image(image))

    def overlay(self, fetch: FetchResult) -> Image.Image:
        """The image with the fetched patches outlined and relevance as a heat map."""
        return draw_fetch(self.image, fetch)

    def answered(self, question: str, steps: Sequence[Step]) -> Self:
        """The session after a question and its whole answers, one of each strategy."""
        pictures = [
            draw_fetch(self.image, step.fetch, question=question, text=step.text, probability=step.probability)
            for step in steps
        ]
        captions = [f"{question} → {step.text or '(nothing)'} ({step.fetch.strategy})" for step in steps]
        return replace(self, asked=(*zip(pictures, captions, strict=True), *self.asked)[:REMEMBERED])
