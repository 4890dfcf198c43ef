"""Prompts: placeholders are trimmed to what is fetched of each item."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.modeling.prompt import find_slots, trim_placeholders

IMAGE, PAD, BASE = 9, 7, 2


def padded(rows: list[list[int]], side: str) -> dict[str, torch.Tensor]:
    """Prompts as a rectangle: input_ids, attention_mask, labels, query_mask and position_ids [B, S]."""
    longest = max(map(len, rows))

    def fill(values: list[list[int]], pad: int) -> torch.Tensor:
        pads = [[pad] * (longest - len(row)) for row in values]
        return torch.tensor([p + v if side == "left" else v + p for p, v in zip(pads, values, strict=True)])

    return {
        "input_ids": fill(rows, PAD),
        "attention_mask": fill([[1] * len(row) for row in rows], 0),
        "labels": fill([[-100 if i < len(row) - 1 else token for i, token in enumerate(row)] for row in rows], -100),
        "query_mask": fill([[int(token not in (IMAGE, 1)) for token in row] for row in rows], 0),
        "position_ids": fill([list(range(len(row))) for row in rows], 0),
    }


def row(texts: list[list[int]], counts: list[int]) -> list[int]:
    """Text, image, text, image, ..., text: images of BASE and these many fetched tokens."""
    tokens = list(texts[0])
    for text, count in zip(texts[1:], counts, strict=True):
        tokens += [IMAGE] * (BASE + count) + text
    return tokens


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[list[list[int]]], list[list[int]], int]:
    """Texts of each prompt, the counts of its images, and K."""
    most = draw(st.integers(0, 5))
    counts = draw(st.lists(st.lists(st.integers(0, most), max_size=2), min_size=1, max_size=3).filter(any))
    text = st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)
    return [[draw(text) for _ in range(len(some) + 1)] for some in counts], counts, most


@pytest.mark.parametrize("side", ["left", "right"])
@settings(deadline=None, max_examples=60)
@given(case=batches())
def test_trimming_gives_the_prompts_that_were_written_for_these_counts(
    side: str, case: tuple[list[list[list[int]]], list[list[int]], int]
) -> None:
    """Text, labels, mask and positions as if the processor had known the counts; images one after another included."""
    texts, counts, most = case
    full = [row(some, [most] * len(each)) for some, each in zip(texts, counts, strict=True)]
    wanted = [row(some, each) for some, each in zip(texts, counts, strict=True)]
    ids = {"image_token_id": IMAGE, "pad_token_id": PAD, "base_positions": BASE}
    trimmed = trim_placeholders(counts=torch.tensor(sum(counts, [])), **ids, **padded(full, side))
    expected = padded(wanted, side if len({*map(len, full)}) > 1 else "left")
    assert trimmed.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(trimmed[name], tensor), name


def test_a_hole_in_the_mask_stays_where_it_is() -> None:
    """[prefix][padding][question], as a kept prefix is continued: the padding in the middle is no edge."""
    ids, mask = torch.tensor([[9, 9, 9, 7, 2, 3]]), torch.tensor([[1, 1, 1, 0, 1, 1]])
    trimmed = trim_placeholders(ids, torch.tensor([0]), image_token_id=9, base_positions=2, attention_mask=mask)
    assert trimmed["input_ids"].tolist() == [[9, 9, 7, 2, 3]]
    assert trimmed["attention_mask"].tolist() == [[1, 1, 0, 1, 1]]
    with pytest.raises(ValueError, match=r"^labels: expected shape \[1, 4\], that of input_ids; got \[1, 3\]$"):
        ids, counts = torch.tensor([[9, 9, 9, 2]]), torch.tensor([0])
        trim_placeholders(ids, counts, image_token_id=9, base_positions=2, labels=torch.zeros(1, 3))


@pytest.mark.parametrize("counts", [[-1], [3]])
def test_counts_outside_the_placeholders_are_refused(counts: list[int]) -> None:
    ids = torch.tensor([[9, 9, 9, 9, 2]])
    with pytest.raises(ValueError, match=rf"^counts: expected 0 to 2 fetched tokens per image; got \[{counts[0]}\]$"):
        trim_placeholders(ids, torch.tensor(counts), image_token_id=9, base_positions=2)


@pytest.mark.parametrize(("token", "slots"), [(IMAGE, 0), (0, 1)])
def test_placeholders_without_an_image_and_images_without_placeholders_are_refused(token: int, slots: int) -> None:
    with pytest.raises(ValueError, match=f"image placeholders: expected {slots} images of 0 base tokens"):
        find_slots(torch.full((1, 4), token), IMAGE, slots, 0)
