"""Characters near an edge between patches belong to the one where an encoder puts them."""

import numpy as np
import torch
from torch import Tensor

from arr_coc.data import CHARSET, Glyph, glyph_targets, render_document
from arr_coc.training.from_scratch.targets import SLOTS, Shown, shown

SIDE, PATCH = 4, 8
A, B = 1 + CHARSET.index("A"), 1 + CHARSET.index("B")


def at(char: str, x: float, y: float) -> Glyph:
    """A character with its centre at (x, y), px."""
    return Glyph(char, (x - 2, y - 3, x + 2, y + 3))


def naming(named: dict[tuple[int, int], int], pages: int = 1) -> Tensor:
    """Logits of a head that names a class in the first slot of some patches (y, x) of the first page, else none."""
    logits = torch.zeros(pages, SIDE, SIDE, SLOTS, 1 + len(CHARSET))
    logits[..., 0] = 3.0
    for (y, x), name in named.items():
        logits[0, y, x, 0, name] = 9.0
    return logits


def test_without_an_encoder_the_centre_decides() -> None:
    documents = [render_document(np.random.default_rng(seed), size=256, split="train") for seed in (1, 2)]
    expected = [glyph_targets(d.glyphs, size=256, grid=32, slots=SLOTS) for d in documents]
    together = shown([d.glyphs for d in documents], 8).targets(2, 32)
    assert torch.equal(together, torch.from_numpy(np.stack(expected)))


def test_a_character_is_nearby_behind_the_edges_within_a_fifth_of_a_patch() -> None:
    page = shown([[at("A", 12, 12), at("A", 15.5, 12), at("A", 15.5, 16.5), at("A", 0.5, 31.5)]], PATCH)
    assert page.nearby(SIDE).tolist() == [[5] * 4, [5, 6, 5, 6], [9, 10, 5, 6], [12] * 4]


def test_an_encoder_puts_a_character_where_it_names_it_but_never_far_off() -> None:
    page = shown([[at("A", 15.5, 12), at("B", 20, 20)]], PATCH)
    for seen in ((1, 1), (1, 2)):
        targets = page.targets_for(naming({seen: A}))
        assert targets[0][seen].tolist() == [A, 0, 0] and int((targets == A).sum()) == 1
    targets = page.targets_for(naming({(1, 3): A, (0, 0): B}))
    assert targets[0, 1, 1, 0] == A and targets[0, 2, 2, 0] == B


def test_characters_that_move_keep_their_order_and_their_page() -> None:
    pages = shown([[], [at("B", 18, 12), at("A", 15.5, 12)]], PATCH)
    logits = naming({}, pages=2)
    logits[1, 1, 2, 1, A] = 9.0
    targets = pages.targets_for(logits)
    assert targets[1, 1, 2].tolist() == [A, B, 0] and int((targets > 0).sum()) == 2


def test_a_line_stays_in_one_row_where_most_of_it_is_named() -> None:
    page = shown([[at("A", 4, 15.5), at("B", 12, 15.5), at("A", 20, 15.5), at("B", 28, 12)]], PATCH)
    named = {(1, 0): A, (2, 1): B, (2, 2): A}
    targets = page.targets_for(naming(named))
    assert [row.nonzero().flatten().tolist() for row in targets[0, 1:3, :, 0]] == [[3], [0, 1, 2]]


def test_lines_stand_a_little_elsewhere_and_keep_their_order() -> None:
    line = [at("A" if x % 2 else "B", 3 + 3.1 * x, 15.5) for x in range(9)]
    page = shown([line], PATCH)
    drawn = torch.stack([page.put_anywhere(SIDE, torch.Generator().manual_seed(seed)) for seed in range(60)])
    assert (drawn[..., None] == page.nearby(SIDE)).any(-1).all()
    rows, columns = drawn // SIDE, drawn % SIDE
    assert (rows == rows[:, :1]).all() and set(rows.flatten().tolist()) == {1, 2}
    assert (columns.diff(dim=1) >= 0).all() and len(columns.unique(dim=0)) > 3


def test_a_character_is_named_that_both_sides_of_an_edge_say_half() -> None:
    page = shown([[at("A", 15.5, 12), at("B", 28, 28)]], PATCH)
    halves = naming({}).log_softmax(-1)
    halves[0, 1, 1:3, 0, [0, A]] = 20.0
    named = page.named(halves)
    assert abs(float(named[0]) - 1) < 0.05 and float(named[1]) < 0.2
    assert page.named(naming({(1, 1): A}))[0] > 0.5


def test_no_characters() -> None:
    empty: Shown = shown([[], []], PATCH)
    assert not empty.targets_for(naming({}, pages=2)).any()
