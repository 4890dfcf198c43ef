"""Bridges: vision tokens to language-model embeddings; base tokens first and alone, fetched tokens behind them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import tiny_config

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.families.quality_bridges import like_text
from arr_coc.modeling.bridges import BRIDGES, FOREMOST, ReadPatches
from arr_coc.modeling.configuration_arr_coc import ArrCocBridgeConfig
from arr_coc.modeling.wordpieces import PIECE_SLOTS

BRIDGE_CASES: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("quality", {}),
    ("transformer", {"num_layers": 2, "num_heads": 2}),
    ("vet", {"table_size": 24}),
    ("cells", {"place_words": [3, 2]}),
    ("wordpieces", {"places": 8}),
]
SETTINGS = dict(reversed(BRIDGE_CASES))
"""By kind: the first case of each."""
SCORED = ["quality", "transformer"]


def build(kind: str, settings: dict[str, Any] | None = None) -> Any:
    """A bridge of random weights, none of them zero, from 8 channels to 6."""
    torch.manual_seed(0)
    settings = SETTINGS[kind] if settings is None else settings
    return BRIDGES[kind](ArrCocBridgeConfig(kind=kind, **settings), vision_size=8, text_size=6)


def tokens(count: int = 5, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, count, 8, generator=generator), torch.randn(2, count, 8, generator=generator)


def told(count: int) -> ReadPatches:
    """What a bridge is told of fetched tokens beside their states: patches of 8 x 8, and a vocabulary of 9."""
    table = torch.randn(9, 6, generator=torch.Generator().manual_seed(5))
    indices = torch.tensor([5, 20, 33, 34, 50])[:count].expand(2, -1)
    rank = torch.arange(count).flip(0).expand(2, -1)
    pieces = torch.full((2, count, 2, PIECE_SLOTS), -1)
    pieces[:, :, 0, 0] = 3
    opens = torch.ones(9, dtype=torch.bool)
    return ReadPatches(pieces, table, 8, opens, indices, rank, torch.full(rank.shape, 0.5))


def test_every_bridge_is_tested() -> None:
    assert {kind for kind, _ in BRIDGE_CASES} == set(BRIDGES)


@pytest.mark.parametrize("kind", ["linear", "quality", "vet", "cells"])
def test_without_attention_each_token_crosses_by_itself(kind: str) -> None:
    """A bridge that mixed tokens, or normalised over them, would change base tokens when something is fetched."""
    bridge = build(kind)
    semantic, compressed = tokens(9)
    alone = bridge(semantic[:, :4], compressed[:, :4]).tokens
    assert torch.allclose(alone, bridge(semantic, compressed).tokens[:, :4], atol=1e-6)


# ---- quality
@pytest.mark.parametrize("kind", SCORED)
def test_quality_weighs_the_correction_and_a_new_adapter_is_the_identity(kind: str) -> None:
    bridge = build(kind)
    base = bridge(*tokens())
    projected = bridge(*tokens(), bypass=True)
    assert torch.equal(projected.tokens, bridge.projection(torch.cat(tokens(), -1)))
    with torch.no_grad():
        bridge.adapter.score.weight.zero_()
        bridge.adapter.score.bias.fill_(200.0)  # a quality of 1: nothing to correct
    assert torch.equal(bridge(*tokens()).tokens, projected.tokens)
    assert not torch.allclose(base.tokens, projected.tokens)
    # An assembled checkpoint must begin with its projector's own tokens, whatever bridge is around it.
    bridge = ArrCocForConditionalGeneration(tiny_config(bridge={"kind": kind})).model.bridge
    assert not bridge.adapter.correction.weight.any() and bridge.adapter.gate.weight.any()
    given = (torch.randn(1, 5, 32), torch.randn(1, 5, 32))
    base = bridge(*given)
    assert torch.equal(base.tokens, bridge(*given, bypass=True).tokens)
    fetched = bridge(*given, base=base.cache)
    assert torch.equal(fetched.tokens, base.tokens)


@pytest.mark.parametrize("kind", SCORED)
def test_tokens_keep_within_the_statistics_of_text(kind: str) -> None:
    settings = {"text_embedding_mean": 0.01, "text_embedding_std": 0.03, **SETTINGS[kind]}
    bridge, plain = build(kind, settings), build(kind)
    base = bridge(*tokens())
    for out in (base.tokens, bridge(*tokens(3, seed=2), base=base.cache).tokens):
        assert torch.allclose(out.mean(-1), torch.tensor(0.01), atol=1e-6)
        assert torch.allclose(out.std(-1, correction=0), torch.tensor(0.03), atol=1e-6)
    assert torch.allclose(base.tokens, like_text(plain(*tokens()).tokens, 0.01, 0.03))
    assert torch.equal(bridge(*tokens(), bypass=True).tokens, plain(*tokens(), bypass=True).tokens)


def test_statistics_of_small_and_constant_tokens_are_finite() -> None:
    """With a norm's usual eps of 1e-5, tokens as small as text embeddings came out a tenth too small."""
    small = like_text(1e-3 * torch.randn(4, 64), 0.0, 0.02)
    assert torch.allclose(small.std(-1, correction=0), torch.tensor(0.02), atol=1e-5)
    assert like_text(torch.ones(2, 6), 0.5, 0.02).isfinite().all()


# ---- visual embedding table
def test_vet_is_softmax_times_table() -> None:
    bridge = build("vet")
    x = torch.cat(tokens(), -1)
    linear, norm = bridge.head
    logits = F.layer_norm(x @ linear.weight.t(), (20,), norm.weight, norm.bias)
    by_hand = torch.cat((logits.softmax(-1), torch.zeros(2, 5, 4)), -1) @ bridge.table.weight
    assert linear.bias is None and torch.allclose(bridge(*tokens()).tokens, by_hand, atol=1e-6)
    assert torch.equal(bridge.indicators(torch.device("cpu")), bridge.table.weight[-4:])
    with pytest.raises(ValueError, match=r"^bridge_bypass: expected a bridge with a linear projection; got \"vet\""):
        build("vet")(*tokens(), bypass=True)


def test_probabilities_are_in_float32() -> None:
    """In bfloat16 a softmax over 65,532 words rounds most of them away."""
    bridge = build("vet").bfloat16()
    seen: list[torch.Tensor] = []
    bridge.table.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    out = bridge(*(t.bfloat16() for t in tokens())).tokens
    assert seen[0].dtype == torch.float32 and out.dtype == torch.bfloat16 and out.isfinite().all()


# ---- words of a cell
def test_a_base_token_is_the_sum_of_what_its_places_say() -> None:
    bridge = build("cells")
    x = torch.cat(tokens(), -1)
    logits = bridge.head(F.layer_norm(x, (16,), bridge.norm.weight, bridge.norm.bias))
    by_hand = bridge.rest(x)
    for place in range(16):
        for first, last in ((0, 3), (3, 5)):
            rows = slice(5 * place + first, 5 * place + last)
            by_hand = by_hand + logits[..., rows].softmax(-1) @ bridge.table.weight[rows]
    assert torch.allclose(bridge(*tokens()).tokens, by_hand, atol=1e-5)
    assert torch.allclose(bridge.words(*tokens()), logits.view(2, 5, 16, 5))


# ---- wordpieces
def wordpieces(counts: list[int], lower: list[int] | None = None) -> tuple[Any, ReadPatches]:
    """The bridge, and fetched patches in each of which so many wordpieces begin, in the upper half but for `lower`."""
    pieces = torch.full((2, len(counts), 2, PIECE_SLOTS), -1)
    for patch, count in enumerate(counts):
        half = int(patch in (lower or ()))
        pieces[:, patch, half, :count] = torch.arange(1 + patch, 1 + patch + count)
    bridge = build("wordpieces")
    return bridge, replace(told(len(counts)), pieces=pieces)


def test_fetched_tokens_are_rows_of_the_vocabulary_at_their_places_in_reading_order() -> None:
    bridge, patches = wordpieces([2, 0, 1, 0, 1])
    out = bridge(*tokens(seed=2), base=[], patches=replace(patches, rank=patches.rank + FOREMOST))
    assert out.source.tolist() == [[0, 0, 2, 4, -1]] * 2 and not out.tokens[:, 4].any()
    rows, columns = torch.tensor([0, 0, 4, 6]), torch.tensor([5, 5, 1, 2])
    placed = bridge.places.rows(2 * rows) + bridge.places.columns(columns)
    torch.testing.assert_close(out.tokens[:, :4], (patches.table[[1, 2, 3, 5]] + placed).expand(2, -1, -1))
    # Patches come row by row; what begins in the upper halves of a row of them is read before what does below.
    bridge, patches = wordpieces([1, 1, 1, 1, 1], lower=[2])
    assert bridge(*tokens(), base=[], patches=patches).source.tolist() == [[0, 1, 3, 2, 4]] * 2


def test_of_more_wordpieces_than_patches_the_most_relevant_patches_stay() -> None:
    """Ranks are 4, 3, 2, 1, 0: patch 3, then patch 1's second wordpiece has no room."""
    bridge, patches = wordpieces([2, 2, 0, 3, 0])
    assert bridge(*tokens(), base=[], patches=patches).source.tolist() == [[1, 1, 3, 3, 3]] * 2
    used = torch.tensor([[True] * 4 + [False], [True, True, False, False, False]])
    out = bridge(*tokens(), base=[], used=used, patches=patches)
    assert out.source.tolist() == [[1, 3, 3, 3, -1], [1, 1, -1, -1, -1]]


@pytest.mark.parametrize(("most", "mean", "share"), [(3, 0.8, 1 / 4), (2, 0.9, 1 / 9)])
def test_the_ends_of_words_are_marked(monkeypatch: pytest.MonkeyPatch, most: int, mean: float, share: float) -> None:
    """Patches 2 and 3 hold one word in a line, patch 4 the next line. With two foremost patches, half of the word does
    not come again. What stands in reading order is not marked."""
    monkeypatch.setattr("arr_coc.modeling.bridges.FOREMOST", most)
    bridge, patches = wordpieces([1, 0, 1, 1, 1])
    opens, relevance = torch.arange(9) != 4, torch.tensor([[0.1, 0.2, 0.7, 0.9, 0.5]] * 2)
    parts = [getattr(bridge.places, name) for name in ("mark", "best", "first", "last")]
    for part in parts:
        torch.nn.init.normal_(part)
    plain = bridge(*tokens(), base=[], patches=replace(patches, relevance=None))
    marked = bridge(*tokens(), base=[], patches=replace(patches, relevance=relevance, opens=opens))
    assert marked.source.tolist() == [[[2, 3, 4, 3, 4], [3, 4, 2, 3, 4]][most - 2]] * 2
    whole = most == 3
    word = [[mean, 1.0, 1.0, 0.0], [mean, 1.0, 0.0, 1.0]] if whole else [[0.0] * 4, [mean, 1.0, 1.0, 1.0]]
    marks = torch.tensor([[0.0] * 4] * 2 + word + [[0.5, share, share, share]])
    torch.testing.assert_close(marked.tokens - plain.tokens, (marks @ torch.stack(parts)).expand(2, -1, -1))
    apart = bridge(*tokens(), base=[], patches=replace(patches, relevance=relevance, opens=torch.ones_like(opens)))
    assert torch.equal(apart.tokens, marked.tokens) is not whole
    unknown = bridge(*tokens(), base=[], patches=replace(patches, relevance=relevance, opens=None))
    assert torch.equal(unknown.tokens, plain.tokens)


def test_base_tokens_are_the_mean_of_what_their_cells_hold() -> None:
    bridge, patches = wordpieces([1])
    pieces = torch.full((2, 64, 2, PIECE_SLOTS), -1)  # 8 x 8 patches, cells of 4 x 4
    pieces[:, 3, 0, :2], pieces[:, 8, 1, 0], pieces[:, 63, 0, 0] = torch.tensor([4, 2]), 2, 7
    out = bridge(*tokens(4), patches=ReadPatches(pieces, patches.table, 8)).tokens
    held = torch.stack([patches.table[[4, 2, 2]].mean(0), torch.zeros(6), torch.zeros(6), patches.table[7]])
    cells = [(2, 2), (2, 6), (6, 2), (6, 6)]
    placed = torch.stack([bridge.places.rows.weight[2 * y] + bridge.places.columns.weight[x] for y, x in cells])
    torch.testing.assert_close(out, (held + placed).expand(2, -1, -1))
    finer = bridge.places(torch.tensor([2 * 9 + 1]), torch.tensor([13]), 16)  # of 16 patches a side, 8 are stored
    torch.testing.assert_close(finer, bridge.places.rows.weight[[9]] + bridge.places.columns.weight[[6]])
