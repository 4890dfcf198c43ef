"""Words that one split shows, no other does."""

import itertools
import re

import numpy as np
import pytest

from arr_coc.pages.domains import values
from arr_coc.pages.domains.glyphs import CHARSET
from arr_coc.pages.splits import SPLITS, part, split_of

NAMES = (values.FIRST_NAMES, values.LAST_NAMES, values.CITIES, values.COMPANIES)
POOLS = (*NAMES, values.TITLES)
MADE_UP = "Madeup"


def everything(split: str) -> set[str]:
    return {word.casefold() for pool in POOLS for word in part(pool, split)}


def test_splits_share_no_word_of_any_two_pools() -> None:
    """Milan is a name and a city: drawn as either, it must not be both trained and tested."""
    assert "Milan" in values.FIRST_NAMES and "Milan" in values.CITIES
    for first, second in itertools.combinations(SPLITS, 2):
        assert not everything(first) & everything(second)
    assert sum(len(everything(split)) for split in SPLITS) == len({word.casefold() for pool in POOLS for word in pool})


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool[0])
def test_half_of_each_pool_is_for_training_and_a_quarter_for_each_other_split(pool: tuple[str, ...]) -> None:
    assert len(set(pool)) == len(pool)
    shares = {split: len(part(pool, split)) / len(pool) for split in SPLITS}
    assert 0.35 < shares["train"] < 0.65 and min(shares["validation"], shares["test"]) > 0.15, shares


def test_pools_can_be_drawn() -> None:
    for pool in POOLS:
        assert all(set(word) - {" "} <= set(CHARSET) and len(word) <= 16 for word in pool)
        assert all(word == " ".join(word.split()) for word in pool)
    assert all(re.fullmatch("[A-Z][a-z]+", name) for name in (*values.FIRST_NAMES, *values.LAST_NAMES))
    assert any(" " in city for city in values.CITIES)
    assert split_of("Receipt") == split_of("RECEIPT")
    assert part(("Oslo", "Zurich", "Oslo Bay"), split_of("Oslo"))[0] == "Oslo"


@pytest.mark.parametrize("split", SPLITS)
def test_names_and_cities_come_from_the_splits_part_of_the_pools(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "made_up_word", lambda rng: MADE_UP)
    rng = np.random.default_rng(0)
    drawn = [values.KINDS[kind](rng, split) for kind in ("name", "city", "company") for _ in range(1000)]
    assert {value for value in drawn if not value.startswith(MADE_UP)} <= {w for p in NAMES for w in part(p, split)}
    made_up = np.mean([value.startswith(MADE_UP) for value in drawn])
    assert 0.45 < made_up < 0.55 if split == "train" else made_up == 0
