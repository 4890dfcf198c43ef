"""Seeds keep their pages, bit by bit: whoever changes what is drawn, or a pool of words, sees that it is so."""

import hashlib
import json
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
from PIL import features

from arr_coc.pages import fonts
from arr_coc.pages.domains import draw_page
from arr_coc.pages.splits import Split

HASHES = Path(__file__).parent / "fixtures" / "page_hashes.json"
"""Written when lines took the place of characters, and those of training lost distortions of their own; the pixels of
other splits are those of the time when pages got three splits. With FreeType 2.14.3 and matplotlib's DejaVu."""

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


def digest(domain: str, number: int, split: Split, **options: Any) -> str:
    """Of a page's pixels and of all that is known about them."""
    page = draw_page(domain, SEED, number, SIZES[domain], split, **options)
    # `choices` came later.
    asked = [[value for name, value in vars(each).items() if name != "choices"] for each in page.questions]
    lines = [(line.text, line.boxes.tolist()) for line in page.lines]
    known = repr((asked, lines, page.layout, page.font))
    return hashlib.sha256(page.image.tobytes() + known.encode()).hexdigest()


def rendered() -> dict[str, str]:
    """Digests of a few pages of every split and domain but those that depend on a browser's version."""
    pages = product(get_args(Split), SIZES, NUMBERS)
    digests = {f"{domain} {split} {number}": digest(domain, number, split) for split, domain, number in pages}
    fields = ("vendor", "balance", "deposit", "branch", "refund", "mileage")
    return digests | {"own fields": digest("document", 0, "train", fields=fields)}


def test_the_pages_of_a_seed_are_those_that_they_were() -> None:
    assert rendered() == json.loads(HASHES.read_text())
