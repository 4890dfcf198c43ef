"""Peers: each published rule on tensors made by hand; exactly K patches; an item's choice is its own."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny_config, tiny_model
from PIL import Image
from torch.testing import assert_close
from transformers import AutoModel, BloomConfig, GPT2Config, Qwen3Config

from arr_coc.data.records import Record
from arr_coc.evaluation import peer_rules, peers
from arr_coc.evaluation.answers import PeerChoices, ask, encode
from arr_coc.evaluation.arms import GROUPS, make_arms
from arr_coc.evaluation.peer_rules import (
    PEERS,
    cls_attention,
    conditional_dpp,
    least_duplicated,
    merge,
    raters,
    received,
    received_from_last,
    relevance,
    significance,
    targets,
)
from arr_coc.evaluation.peers import EarlyStates, PeerQuestion, choose, merged, read_prompt

SIZES = [(60, 90), (80, 40), (50, 50)]  # height, width
QUESTIONS = ["What is it?", "Why?", "How many of them are there in all?"]


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in SIZES]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def masked() -> Any:
    return tiny_model(vision={"compressor": "mask"})


# ---- the rules ----------------------------------------------------------------------------------------------------


def test_fastv_ranks_by_attention_received() -> None:
    """Patches at places 1 and 2: the first is looked at by many, the second by the last position."""
    attention = torch.tensor([[1.0, 0, 0, 0], [0.1, 0.9, 0, 0], [0.0, 0.8, 0.2, 0], [0.2, 0.0, 0.5, 0.3]])
    places = torch.tensor([1, 2])
    assert_close(received(attention, places), torch.tensor([1.7 / 4, 0.7 / 4]))
    assert_close(received_from_last(attention, places), torch.tensor([0.0, 0.5]))


def test_sparsevlm_lets_the_words_about_the_image_rate() -> None:
    patches = torch.tensor([[4.0, 0, 0], [3.0, 0, 0]])
    text = torch.tensor([[0.0, 0, 1], [1.0, 0, 0], [0.0, 1, 0]])  # the second word is what the patches show
    assert raters(patches, text).tolist() == [False, True, False]
    assert raters(patches, text[:1].expand(3, -1)).tolist() == [True] * 3  # nobody stands out: all rate
    # Shares of 2/3, 1/3 and next to nothing: the second word's is the mean itself, so it does not rate.
    shares = torch.tensor([[2 / 3], [1 / 3], [1e-9]])
    assert raters(torch.ones(1, 1), shares.log()).tolist() == [True, False, False]
    attention = torch.zeros(6, 6)
    attention[4, 1], attention[5, 1], attention[5, 2], attention[3, 2] = 0.2, 0.4, 0.3, 9.0
    assert_close(significance(attention, torch.tensor([4, 5]), torch.tensor([1, 2])), torch.tensor([0.3, 0.15]))


def test_visionzip_attends_from_cls_with_every_head() -> None:
    query = torch.tensor([[2.0], [0.0]])  # the second head looks everywhere alike
    keys = torch.tensor([[[0.0], [1.0]], [[5.0], [-5.0]]])
    first = 1 / (1 + np.exp(2))
    assert_close(cls_attention(query, keys), torch.tensor([(first + 0.5) / 2, (1 - first + 0.5) / 2]).float())


def test_visionzip_merges_the_rest_into_evenly_spaced_targets() -> None:
    assert targets(torch.tensor([1, 3, 4, 6, 8, 9]), 2).tolist() == [1, 6]
    assert targets(torch.tensor([1, 3, 4, 6, 8]), 3).tolist() == [1, 3, 4]  # steps of 5 / 3, rounded down
    features = torch.tensor([[0.0], [10.0], [2.0], [4.0], [20.0]])
    keys = torch.tensor([[1.0, 0], [0, 1], [5, 0.1], [3, 0.2], [0.1, 2]])
    merged = merge(features, keys, torch.tensor([0, 1]), torch.tensor([2, 3, 4]))
    assert_close(merged, torch.tensor([[0.0 + 3.0], [10.0 + 20.0]]))  # plus the mean of 2, 4; of 20
    merged = merge(features, keys, torch.tensor([0, 1]), torch.tensor([2, 3]))
    assert_close(merged, torch.tensor([[3.0], [10.0]]))  # nothing went to the second


def test_dart_keeps_pivots_and_what_is_least_like_them() -> None:
    east, north, up = torch.eye(3)
    states = torch.stack((east, 2 * east, north, east + 0.1 * up, up, north + 0.1 * east))
    pivots = torch.tensor([0])
    assert least_duplicated(states, pivots, torch.empty(0, 3), 3).tolist() == [0, 2, 4]
    # A pivot of the text: what is like it is duplicated too. Each pivot adds one in its turn.
    assert least_duplicated(states, pivots, -up[None], 3).tolist() == [0, 2, 4]
    assert least_duplicated(states, pivots, up[None], 3).tolist() == [0, 2, 1]
    assert sorted(least_duplicated(states, pivots, up[None], 6).tolist()) == list(range(6))


def test_cdpruner_scales_relevance_to_its_own_range() -> None:
    text = torch.tensor([[1.0, 0], [1.0, 0]])
    patches = torch.tensor([[2.0, 0], [0, 3], [1, 1]])
    assert_close(relevance(patches, text, turned=False), torch.tensor([1.0, 0.0, 0.5**0.5]))
    assert_close(relevance(patches, text), torch.tensor([0.0, 1.0, 1 - 0.5**0.5]))  # the authors' sign
    assert relevance(patches, text).min() > 0 and relevance(patches[:1], text).tolist() == [1.0]


def test_cdpruner_takes_the_relevant_but_no_twin() -> None:
    states = torch.tensor([[1.0, 0, 0], [1.0, 0.01, 0], [0, 1, 0], [0, 0, 1]])
    assert conditional_dpp(torch.tensor([1.0, 0.9, 0.5, 0.2]), states, 3).tolist() == [0, 2, 3]
    weight = torch.tensor([1.0, 0.9, 0.5, 0.0])
    assert conditional_dpp(weight, states[:, :1].expand(4, 3), 3).tolist() == [0, 1, 2]  # rank 1: then by weight


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
    assert conditional_dpp(weight, states, 5).tolist() == chosen


class Hand(PeerQuestion):
    """A question of tensors made by hand: the image at places 1 to 4, the text at 5 and 6, the question at 5."""

    def __init__(self, embeds: Any, reading: Any = None) -> None:
        self.embeds, self.reading = embeds, reading

    candidates = torch.arange(4)
    prompt = (torch.tensor([[1, 9, 9, 9, 9, 1, 1]]), torch.tensor([[0, 0, 0, 0, 0, 1, 0]]), torch.arange(1, 5))
    model = SimpleNamespace(config=SimpleNamespace(image_token_id=9))


def test_cdpruner_compares_what_the_language_model_reads() -> None:
    """Tokens behind the projector; two alike, and the one that is least like the question is worth most."""
    east, north, up = torch.eye(3)
    embeds = torch.stack((up, east, north, 2 * north, east + north, east, up))
    assert PEERS["cdpruner"].rule(Hand(embeds), 2).places.tolist() == [1, 3]  # north; its twin is no gain
    assert PEERS["cdpruner_unturned"].rule(Hand(embeds), 2).places.tolist() == [0, 3]


def test_sparsevlm_lets_the_template_rate_too() -> None:
    """The word at 6 is the template's, not the question's; it is what the image shows."""
    east, north, _ = torch.eye(3)
    embeds = torch.stack((north, *4 * [3 * east], north, 3 * east))
    attention = torch.zeros(7, 7)
    attention[5, 1], attention[6, 3] = 0.9, 0.1
    reading = EarlyStates(attention, torch.zeros(7, 2), embeds, embeds)
    assert PEERS["sparsevlm"].rule(Hand(embeds, reading), 1).places.tolist() == [2]


def test_dart_compares_behind_the_last_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """One pivot of the image and one of the text, whose key is long; states before the norm would say otherwise."""
    monkeypatch.setattr(peer_rules, "IMAGE_PIVOTS", 1)
    monkeypatch.setattr(peer_rules, "TEXT_PIVOTS", 1)
    east, north, up = torch.eye(3)
    normed = torch.stack((up, east, east + 0.1 * north, north, up, up, north))
    keys = torch.zeros(7, 2)
    keys[1], keys[6] = 5.0, 4.0  # the template's word has a longer key than the question's
    reading = EarlyStates(torch.zeros(7, 7), keys, normed.flip(0), normed)
    assert PEERS["dart"].rule(Hand(normed, reading), 2).places.tolist() == [0, 3]  # its share of one is the text's turn


# ---- reading ------------------------------------------------------------------------------------------------------

_SMALL = {"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 3}


def test_reading_is_what_the_model_itself_computes() -> None:
    """Attention and hidden states as by eager attention over all layers; grouped keys; nothing is left changed."""
    config = Qwen3Config(**_SMALL, num_key_value_heads=2, head_dim=8, intermediate_size=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        language_model = AutoModel.from_config(config, attn_implementation="sdpa").eval()
        embeds = torch.randn(7, 16)
    with torch.no_grad():
        found = read_prompt(language_model, embeds, 2)
        assert config._attn_implementation == "sdpa"
        language_model.set_attn_implementation("eager")
        expected = language_model(inputs_embeds=embeds[None], output_attentions=True, output_hidden_states=True)
    assert_close(found.attention, expected.attentions[1][0].mean(0))
    assert_close(found.hidden, expected.hidden_states[2][0])
    assert_close(found.normed, language_model.norm(expected.hidden_states[2])[0])
    assert found.keys.shape == (7, 16)
    with torch.no_grad():
        whole = read_prompt(language_model, embeds, 9)  # no more layers than there are: what the last one puts out
    assert_close(whole.normed, expected.last_hidden_state[0])
    assert_close(language_model.norm(whole.hidden), whole.normed)


def test_prompts_that_a_model_cannot_read_are_refused() -> None:
    embeds = torch.zeros(9, 16)
    gpt = AutoModel.from_config(GPT2Config(vocab_size=8, n_embd=16, n_head=4, n_layer=2, n_positions=8)).eval()
    with pytest.raises(ValueError, match="prompt: expected at most 8 tokens, all patches among them; got 9"):
        read_prompt(gpt, embeds, 2)
    bloom = AutoModel.from_config(BloomConfig(vocab_size=8, hidden_size=16, n_head=4, n_layer=2)).eval()
    with pytest.raises(ValueError, match="language model: expected attention by transformers' interface; got bloom"):
        read_prompt(bloom, embeds, 2)


def test_a_question_stands_where_the_prompt_says(masked: Any, images: list[Image.Image]) -> None:
    """With the mask compressor base patches are no candidates; padding never is."""
    encoding = encode(masked, images[:1], 128)
    question = PeerQuestion(masked, encoding, "Why?")
    free = encoding.patch_mask[0].clone()
    free[encoding.base_indices[0]] = False
    assert question.candidates.tolist() == free.nonzero()[:, 0].tolist()
    ids = question.prompt[0][0]
    assert masked.processor.tokenizer.decode(ids[question.asked]) == "Why?"
    text_behind = ids[int(question.places[-1]) + 1 :]
    assert ids[question.behind].tolist() == text_behind[text_behind != masked.config.image_token_id].tolist()
    assert set(question.asked.tolist()) < set(question.behind.tolist()), "the template's words after it, too"
    assert (ids == masked.config.image_token_id).sum() == 16 + len(question.candidates)
    expected = masked.model.bridge_fetched(encoding, question.candidates[None]).tokens[0]
    assert_close(question.embeds[question.places], expected)


# ---- as arms ------------------------------------------------------------------------------------------------------


def fetched(model: Any, arm: Any, images: list[Image.Image], questions: list[str]) -> list[Any]:
    records = [Record(Path("-"), question, ("?",)) for question in questions]
    return ask(model, arm, records, encode(model, images, arm.side), max_new_tokens=2)


def test_every_peer_is_an_arm_and_says_what_it_recreates() -> None:
    arms = make_arms(tiny_config(), ["peers", "fastv@5"])
    assert [arm.name for arm in arms] == [*PEERS, "fastv@5"] and GROUPS["peers"] == tuple(PEERS)
    assert all("a re-creation of" in arm.note and "arXiv" in arm.note for arm in arms)
    assert {arm.role for arm in arms[:-1]} == {"peer"} and [arm.tokens for arm in arms] == [33] * len(PEERS) + [21]
    assert (arms[-1].rule, arms[-1].budget, arms[-1].role) == ("fastv", 5, "ablation")


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_keeps_exactly_k_and_batch_is_single(model: Any, images: list[Image.Image], name: str) -> None:
    (arm,) = make_arms(model.config, [name])
    together = fetched(model, arm, images, QUESTIONS)
    for number, answer in enumerate(together):
        (alone,) = fetched(model, arm, images[number : number + 1], QUESTIONS[number : number + 1])
        assert alone.fetch.indices.tolist() == answer.fetch.indices.tolist() and alone.text == answer.text
        assert answer.fetch.indices.unique().numel() == 17 and not answer.fetch.is_padding.any()
        encoding = encode(model, images[number : number + 1], 128)
        (kept,) = choose(model, [(PEERS[name], 17)], encoding, QUESTIONS[number])
        assert kept.patches.tolist() == answer.fetch.indices[0].tolist()  # what the rule chose is what is fetched


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_never_takes_a_base_patch_twice(masked: Any, images: list[Image.Image], name: str) -> None:
    (arm,) = make_arms(masked.config, [f"{name}@9"])
    base = encode(masked, images[:1], 128).base_indices[0].tolist()
    (answer,) = fetched(masked, arm, images[:1], QUESTIONS[:1])
    assert answer.fetch.indices.shape[1] == 9 and not set(base) & set(answer.fetch.indices[0].tolist())


def test_a_thin_image_gives_all_it_has(model: Any) -> None:
    thin = [Image.new("RGB", (4, 128), "red")]
    for name in PEERS:
        (answer,) = fetched(model, *make_arms(model.config, [f"{name}@40"]), thin, ["Why?"])
        assert answer.fetch.indices.unique().numel() == 40 and int(answer.fetch.is_padding.sum()) == 8


def test_only_the_merging_rule_changes_features_and_only_of_what_it_keeps(
    model: Any, images: list[Image.Image]
) -> None:
    encoding = encode(model, images[:1], 128)
    for name, peer in PEERS.items():
        kept = choose(model, [(peer, 32)], encoding, "Why?")
        changed = (merged(encoding, kept).features != encoding.features).any(1)[0].flatten().nonzero()[:, 0].tolist()
        assert bool(changed) == (name == "visionzip") and set(changed) <= set(kept[0].patches.tolist())
        assert len(changed) <= round(32 * 10 / 64)


def test_peers_share_one_reading_of_a_question(
    model: Any, images: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All patches through the model once per question, whatever asks first; the choices are those made alone."""
    arms = make_arms(model.config, ["peers", "dart@5", "visionzip@40"])
    records = [Record(Path("-"), question, ("?",), line=number) for number, question in enumerate(QUESTIONS)]
    encoding = encode(model, images, 128)
    alone = {arm.name: PeerChoices(model, [arm]).of(arm, records, encoding) for arm in arms}
    read: list[int] = []
    monkeypatch.setattr(peers, "read_prompt", lambda *given: read.append(1) or read_prompt(*given))
    shared = PeerChoices(model, [*make_arms(model.config, ["none"]), *arms])
    for arm in arms:
        for ours, theirs in zip(shared.of(arm, records, encoding), alone[arm.name], strict=True):
            assert ours.patches.equal(theirs.patches) and (ours.features is None) == (theirs.features is None)
            assert ours.features is None or ours.features.equal(theirs.features)
    assert len(read) == len(records)
