"""Which base tokens the language model reads beside an image's patches: its own, another page's, or none.

Only what the language model reads is exchanged. The patches stay those of the image: chosen by its own features and
encoded beside its own base.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ..data.images import HeldImage
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.vision_tower import ImageEncoding
from .answers import load_images
from .arms import Arm
from .predictions import image_digest


class OtherPages:
    """For each image of the data the next one that shows something else.

    Images follow each other as the data first names them, the first one behind the last. Images with the same pixels
    are one page, so a copy is nobody's other page. Which one it is depends on the data alone, not on batches or
    processes.

    Args:
        model: with a processor.
        images: those of all records.
    """

    def __init__(self, model: ArrCocForConditionalGeneration, images: Sequence[Path | HeldImage]) -> None:
        self.model = model
        self.images = list(dict.fromkeys(images))
        self._places = {image: place for place, image in enumerate(self.images)}
        self._digests: dict[Path | HeldImage, str] = {}

    def after(self, image: Path | HeldImage) -> Path | HeldImage | None:
        """The other page of `image`; None where all pages are the same."""
        place = self._places[image]
        behind = (*self.images[place + 1 :], *self.images[:place])
        return next((other for other in behind if self._digest(other) != self._digest(image)), None)

    def _digest(self, image: Path | HeldImage) -> str:
        if image not in self._digests:
            self._digests[image] = image_digest(*load_images(self.model, [image]))
        return self._digests[image]


def as_read(arm: Arm, encoding: ImageEncoding, images: Tensor, others: Tensor) -> ImageEncoding:
    """The images at `images` [I] of an encoding, with the base tokens that the language model reads under `arm`.

    `others` [I]: where in the encoding their other pages are.
    """
    own = encoding.select(images)
    if arm.rule == "other_base":
        return with_base_of(own, encoding.select(others))
    return own.without_base() if arm.rule == "patches_only" else own


def with_base_of(encoding: ImageEncoding, others: ImageEncoding) -> ImageEncoding:
    """The encoding with the base tokens of `others`, image by image, and the language model's reading of them."""
    return replace(
        encoding, tokens=others.tokens, closing=others.closing, quality=others.quality, prefix_ids=others.prefix_ids,
        prefix_cache=others.prefix_cache,
    )  # fmt: skip
