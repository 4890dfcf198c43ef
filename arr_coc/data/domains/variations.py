"""What can be done with the pages of every domain: photograph them, ask for what is not there, ask in a second turn."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from ..splits import Split
from .absent import with_absent
from .page import Page
from .photo import photograph
from .turns import with_turns


@dataclass(frozen=True)
class Variations:
    """How often pages and questions are varied; shares from 0 to 1.

    Each has random numbers of its own: what one of them does, and what a page shows, does not depend on the others.

    Attributes:
        photo: pages that are photographed.
        absent: questions about fields that the page does not show, on pages that show fields.
        unheard: of these, questions about what no page has a field for.
        turns: questions that come second in a chat, after another one about the page.

    Raises:
        ValueError: a share that is none.
    """

    photo: float = 0.0
    absent: float = 0.0
    turns: float = 0.0
    unheard: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            share = getattr(self, field.name)
            if type(share) not in (int, float) or not 0 <= share <= 1:
                raise ValueError(f"{field.name}: expected a share from 0 to 1; got {share!r}")

    def apply(self, page: Page, entropy: tuple[int, ...], split: Split) -> Page:
        """The page, varied.

        Args:
            page: as its domain drew it.
            entropy: what its own random numbers come from.
            split: of wordings.
        """
        photo, absent, turns = (
            partial(np.random.default_rng, np.random.SeedSequence(entropy, spawn_key=(key,))) for key in range(3)
        )
        if self.photo and (rng := photo()).random() < self.photo:
            page = photograph(rng, page)
        if self.absent:
            page = with_absent(absent(), page, self.absent, split, self.unheard)
        if self.turns:
            page = with_turns(turns(), page, self.turns)
        return page


AS_DRAWN = Variations()
"""Pages as their domains draw them."""
