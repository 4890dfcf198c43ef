"""Seeds keep their pages, bit by bit: whoever changes what is drawn, or a pool of words, sees that it is so."""

import hashlib
import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import features

from arr_coc.pages import fonts
from arr_coc.pages.domains import Page, draw_page
from arr_coc.pages.domains.document import Document, render_document
from arr_coc.pages.splits import Split

HASHES = Path(__file__).parent / "fixtures" / "page_hashes.json"
"""Written when pages got three splits and words of their own in each, those of training when they came to say more
words; with FreeType 2.14.3 and matplotlib's DejaVu."""

FREETYPE = "2.14.3"
SEED, NUMBERS = 11, (0, 1, 2)
SIZES = {"document": 320, "form": 256}
"""Side of a page, px."""

pytestmark = pytest.mark.skipif(
    features.version("freetype2") != FREETYPE, reason=f"letters are hashed as FreeType {FREETYPE} draws them"
)


@pytest.fixture(autouse=True)
def same_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All splits draw with the fonts that matplotlib brings along, whatever else is installed."""
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setenv(fonts.FONT_PATH, str(Path(matplotlib.get_data_path()) / "fonts" / "ttf"))
    faces = fonts.find_fonts("train")
    monkeypatch.setattr(fonts, "_faces", lambda split, directories: faces)


def digest(page: Page | Document) -> str:
    """Of pixels and of all that is known about them."""
    said = page.questions if isinstance(page, Page) else page.entries
    fields = [[value for name, value in vars(each).items() if name != "choices"] for each in said]  # a later field
    known = repr((fields, page.glyphs, page.layout, page.font))
    return hashlib.sha256(page.image.tobytes() + known.encode()).hexdigest()


def rendered() -> dict[str, str]:
    """Digests of a few pages of every domain and split, and of what the training of the shipped weights draws."""
    digests = {}
    for split in get_args(Split):
        for domain in SIZES:  # others depend on a browser's version
            for number in NUMBERS:
                page = draw_page(domain, SEED, number, SIZES[domain], split)
                digests[f"{domain} {split} {number}"] = digest(page)
        digests[f"entries {split}"] = digest(render_document(np.random.default_rng(SEED), size=256, split=split))
    return digests


def test_the_pages_of_a_seed_are_those_that_they_were() -> None:
    assert rendered() == json.loads(HASHES.read_text())
    fields = ("vendor", "balance", "deposit", "branch", "refund", "mileage")
    page = draw_page("document", SEED, 0, 320, "train", fields=fields)
    assert digest(page) == "944a4ca45bb07862988942b5be1d1d7a62de39bf9ae9aa9cb538a12cbd5a2621"
