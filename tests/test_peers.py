"""Peers: each published rule on tensors made by hand; exactly K patches; an item's choice is its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import READS_WORDS, SCORES_WORDS, refuses, tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close
from transformers import AutoModel, BloomConfig, GPT2Config, Qwen3Config

from arr_coc import ArrCocConfig
from arr_coc.data.records import Record
from arr_coc.evaluation import peers
from arr_coc.evaluation.answers import PeerChoices, ask, encode, lattice
from arr_coc.evaluation.arms import BASELINES, BOUNDS, GROUPS, LADDER, make_arms
from arr_coc.evaluation.deciding import default_rules

SIZES = [(60, 90), (80, 40), (50, 50)]  # height, width
QUESTIONS = ["What is it?", "Why?", "How many of them are there in all?"]


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in SIZES]


# ---- the rules
def test_fastv_ranks_by_attention_dart_keeps_pivots_and_cdpruner_scales_relevance() -> None:
    """Patches at places 1 and 2: the first is looked at by many, the second by the last position."""
    attention = torch.tensor([[1.0, 0, 0, 0], [0.1, 0.9, 0, 0], [0.0, 0.8, 0.2, 0], [0.2, 0.0, 0.5, 0.3]])
    places = torch.tensor([1, 2])
    assert_close(peers.received(attention, places), torch.tensor([1.7 / 4, 0.7 / 4]))
    assert_close(peers.received(attention, places, slice(-1, None)), torch.tensor([0.0, 0.5]))
    east, north, up = torch.eye(3)
    states = torch.stack((east, 2 * east, north, east + 0.1 * up, up, north + 0.1 * east))
    pivots = torch.tensor([0])
    assert peers.least_duplicated(states, pivots, torch.empty(0, 3), 3).tolist() == [0, 2, 4]
    # A pivot of the text: what is like it is duplicated too. Each pivot adds one in its turn.
    assert peers.least_duplicated(states, pivots, -up[None], 3).tolist() == [0, 2, 4]
    assert peers.least_duplicated(states, pivots, up[None], 3).tolist() == [0, 2, 1]
    assert sorted(peers.least_duplicated(states, pivots, up[None], 6).tolist()) == list(range(6))
    text = torch.tensor([[1.0, 0], [1.0, 0]])
    patches = torch.tensor([[2.0, 0], [0, 3], [1, 1]])
    assert_close(peers.relevance(patches, text, turned=False), torch.tensor([1.0, 0.0, 0.5**0.5]))
    assert_close(peers.relevance(patches, text), torch.tensor([0.0, 1.0, 1 - 0.5**0.5]))  # the authors' sign
    assert peers.relevance(patches, text).min() > 0 and peers.relevance(patches[:1], text).tolist() == [1.0]


def test_sparsevlm_lets_the_words_about_the_image_rate() -> None:
    patches = torch.tensor([[4.0, 0, 0], [3.0, 0, 0]])
    text = torch.tensor([[0.0, 0, 1], [1.0, 0, 0], [0.0, 1, 0]])  # the second word is what the patches show
    assert peers.raters(patches, text).tolist() == [False, True, False]
    assert peers.raters(patches, text[:1].expand(3, -1)).tolist() == [True] * 3  # nobody stands out: all rate
    # Shares of 2/3, 1/3 and next to nothing: the second word's is the mean itself, so it does not rate.
    shares = torch.tensor([[2 / 3], [1 / 3], [1e-9]])
    assert peers.raters(torch.ones(1, 1), shares.log()).tolist() == [True, False, False]
    attention = torch.zeros(6, 6)
    attention[4, 1], attention[5, 1], attention[5, 2], attention[3, 2] = 0.2, 0.4, 0.3, 9.0
    assert_close(peers.received(attention, torch.tensor([1, 2]), torch.tensor([4, 5])), torch.tensor([0.3, 0.15]))


def test_greedy_steps_maximise_the_determinant() -> None:
    """Each choice is the one whose kernel has the largest determinant, by torch's own."""
    draw = torch.Generator().manual_seed(0)
    weight, states = torch.rand(12, generator=draw), torch.randn(12, 6, generator=draw)
    unit = torch.nn.functional.normalize(states, dim=-1)
    kernel = (weight[:, None] * (unit @ unit.T) * weight).double()
    chosen: list[int] = []
    for _ in range(5):
        rest = [i for i in range(12) if i not in chosen]
        chosen.append(max(rest, key=lambda i: float(torch.linalg.det(kernel[[*chosen, i]][:, [*chosen, i]]))))
    assert peers.conditional_dpp(weight, states, 5).tolist() == chosen


# ---- reading
_SMALL = {"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 3}


def test_reading_is_what_the_model_itself_computes() -> None:
    """Attention and hidden states as by eager attention over all layers; grouped keys; nothing is left changed."""
    config = Qwen3Config(**_SMALL, num_key_value_heads=2, head_dim=8, intermediate_size=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        language_model = AutoModel.from_config(config, attn_implementation="sdpa").eval()
        embeds = torch.randn(7, 16)
    with torch.no_grad():
        found = peers.read_prompt(language_model, embeds, 2)
        assert config._attn_implementation == "sdpa"
        language_model.set_attn_implementation("eager")
        expected = language_model(inputs_embeds=embeds[None], output_attentions=True, output_hidden_states=True)
    assert_close(found.attention, expected.attentions[1][0].mean(0))
    assert_close(found.hidden, expected.hidden_states[2][0])
    assert_close(found.normed, language_model.norm(expected.hidden_states[2])[0])
    assert found.keys.shape == (7, 16)
    with torch.no_grad():
        whole = peers.read_prompt(
            language_model, embeds, 9
        )  # no more layers than there are: what the last one puts out
    assert_close(whole.normed, expected.last_hidden_state[0])
    assert_close(language_model.norm(whole.hidden), whole.normed)


def test_prompts_that_a_model_cannot_read_are_refused() -> None:
    embeds = torch.zeros(9, 16)
    gpt = AutoModel.from_config(GPT2Config(vocab_size=8, n_embd=16, n_head=4, n_layer=2, n_positions=8)).eval()
    refuses("prompt: expected at most 8 tokens, all patches among them; got 9", peers.read_prompt, gpt, embeds, 2)
    bloom = AutoModel.from_config(BloomConfig(vocab_size=8, hidden_size=16, n_head=4, n_layer=2)).eval()
    refuses(
        "language model: expected attention by transformers' interface; got bloom", peers.read_prompt, bloom, embeds, 2
    )


# ---- as arms
def fetched(model: Any, arm: Any, images: list[Image.Image], questions: list[str]) -> list[Any]:
    records = [Record(Path("-"), question, ("?",)) for question in questions]
    return ask(model, arm, records, encode(model, images, arm.side), max_new_tokens=2)


@pytest.mark.parametrize("name", peers.PEERS)
def test_a_peer_keeps_exactly_k_and_batch_is_single(model: Any, images: list[Image.Image], name: str) -> None:
    (arm,) = make_arms(model.config, [name])
    together = fetched(model, arm, images, QUESTIONS)
    for number, answer in enumerate(together):
        (alone,) = fetched(model, arm, images[number : number + 1], QUESTIONS[number : number + 1])
        assert alone.fetch.indices.tolist() == answer.fetch.indices.tolist() and alone.text == answer.text
        assert answer.fetch.indices.unique().numel() == 17 and not answer.fetch.is_padding.any()
        encoding = encode(model, images[number : number + 1], 128)
        kept = peers.PeerQuestion(model, encoding, QUESTIONS[number]).kept(peers.PEERS[name], 17)
        assert kept.tolist() == answer.fetch.indices[0].tolist()  # what the rule chose is what is fetched


def test_peers_share_what_is_read(model: Any, images: list[Image.Image], monkeypatch: pytest.MonkeyPatch) -> None:
    """All patches through the model once per question, whatever asks first; the choices are those made alone."""
    arms = make_arms(model.config, ["peers", "dart@5", "cdpruner@40"])
    records = [Record(Path("-"), question, ("?",), line=number) for number, question in enumerate(QUESTIONS)]
    encoding = encode(model, images, 128)
    alone = {arm.name: PeerChoices(model, [arm]).of(arm, records, encoding) for arm in arms}
    read, read_prompt = list[int](), peers.read_prompt
    monkeypatch.setattr(peers, "read_prompt", lambda *given: read.append(1) or read_prompt(*given))
    shared = PeerChoices(model, [*make_arms(model.config, ["none"]), *arms])
    for arm in arms:
        for ours, theirs in zip(shared.of(arm, records, encoding), alone[arm.name], strict=True):
            assert ours.equal(theirs)
    assert len(read) == len(records)


# ---- Arms: their sizes in tokens, their names, and the lattice of the uniform one
def test_arms_of_the_published_geometry_and_of_a_model_that_reads_text() -> None:
    """256 + 273 tokens are 23 x 23: the larger image is a fair match to the token."""
    arms = {arm.name: arm for arm in make_arms(ArrCocConfig())}
    assert {arms[name].tokens for name in ("random", "saliency", "realizer", "uniform", "larger", "oracle")} == {529}
    assert (arms["larger"].side, arms["larger"].strategy) == (23 * 64, "none")
    assert (arms["smaller"].side, arms["smaller"].tokens) == (6 * 64, 36 + 576)
    assert (arms["none"].tokens, arms["keep_all"].tokens) == (256, 256 + 4096)
    assert list(arms["random"].runs) == ["random.0", "random.1", "random.2"] and list(arms["none"].runs) == ["none"]
    # Rules that say nothing else are about it.
    config = tiny_config(**READS_WORDS, fetcher=SCORES_WORDS)
    names = [arm.name for arm in make_arms(config)]
    assert [arm.name for arm in make_arms(config, ["ladder"])] == ["none", "random", "saliency", "words"]
    assert not default_rules("words").missing(names) and default_rules("realizer").missing(names)


@pytest.mark.parametrize("budget", [1, 5, 17, 60])
def test_baselines_never_get_fewer_tokens(budget: int) -> None:
    arms = make_arms(tiny_config(), budget=budget)
    wanted = 16 + budget
    assert [arm.name for arm in arms] == [*LADDER, *BASELINES, *GROUPS["halves"], *BOUNDS]
    assert all(arm.tokens >= wanted for arm in arms if arm.role == "baseline")
    assert all(arm.tokens == wanted for arm in arms if arm.role == "ladder" and arm.name != "none")


def test_arms_keep_to_what_there_is() -> None:
    config = tiny_config(fetcher={"scorers": ["realizer"]})
    assert "clip_query" not in [arm.name for arm in make_arms(config)]
    assert "oracle" not in [arm.name for arm in make_arms(config, boxed=False)]
    (cut,) = make_arms(config, ["keep_all"], room=100)
    assert (cut.budget, cut.tokens) == (84, 100) and "the context holds 84 of 256" in cut.note
    with pytest.raises(ValueError, match=r"arms: expected names among .*; got \['luck', 'uniform@4'\]"):
        make_arms(config, ["none", "luck", "uniform@4"])
    refuses('arms: expected boxes in every record for "oracle"', make_arms, config, ["oracle"], boxed=False)
    refuses('seeds: expected at least one for "random"; got none', make_arms, config, ["random"], seeds=())
    assert "other_base" not in [arm.name for arm in make_arms(config, several=False)]
    # Of a model without base tokens no larger image had enough of them, which was looked for without end.
    names = {arm.name for arm in make_arms(tiny_config(bridge={"layout": "fetched"}))}
    assert {"none", "smaller", "patches_only"} <= names and not {"larger", "other_base", "other_base@0"} & names
    with pytest.raises(ValueError, match='arms: expected more than one page for "other_base"; got one'):
        make_arms(config, ["other_base"], several=False)
    with pytest.raises(ValueError, match=r"got \['other_base\+allow'\]"):
        make_arms(config, ["other_base+allow"])
    with pytest.raises(ValueError, match="expected a budget of at least 1 for patches_only; got patches_only@0"):
        make_arms(config, ["patches_only@0"])


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 400))
@settings(max_examples=200, deadline=None)
def test_a_lattice_is_of_distinct_cells(rows: int, columns: int, count: int) -> None:
    cells = lattice(rows, columns, count)
    assert len(set(cells)) == len(cells) == min(count, rows * columns)
    assert all(0 <= y < rows and 0 <= x < columns for y, x in cells)
