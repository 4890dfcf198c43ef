"""A mixture of experts: two of four judge a patch, named for what they look at, none of them idle."""

from dataclasses import replace

import pytest
import torch
from test_scorers import SIDE, build, context

from arr_coc.families.map_scorers import BALANCE_RATE, CHOSEN, EXPERTS, Evidence, expert_evidence
from arr_coc.modeling.vision_tower import TEXTURES


@torch.no_grad()
def test_two_experts_judge_each_patch() -> None:
    gates = build("experts").gates(context())
    assert gates.shape == (3, SIDE * SIDE, len(EXPERTS))
    assert ((gates > 0).sum(-1) == CHOSEN).all() and torch.allclose(gates.sum(-1), torch.ones(3, SIDE * SIDE))


@torch.no_grad()
def test_the_score_is_what_the_chosen_two_say() -> None:
    scorer, whole = build("experts"), context()
    gates, before = scorer.gates(whole), scorer(whole)
    scorer.experts["text"][-1].bias += 5.0
    moved = scorer(whole) - before
    assert torch.allclose(moved, 5 * gates[..., EXPERTS.index("text")], atol=1e-4)


@pytest.mark.parametrize(
    ("expert", "texture", "value"),
    [("text", "stroke_density", 1.0), ("graphics", "saturation", 1.0), ("sparse", "local_entropy", 0.0)],
)
def test_an_expert_is_for_what_its_name_says(expert: str, texture: str, value: float) -> None:
    whole = context()
    for name in ("stroke_density", "saturation", "local_entropy"):
        whole.textures[:, TEXTURES.index(name)] = float(name == "local_entropy")
    whole.textures[:, TEXTURES.index(texture), 5, 4] = value
    evidence = expert_evidence(whole)
    assert evidence.min() >= 0 and evidence.max() <= 1
    assert evidence[:, 5 * SIDE + 4].argmax(-1).tolist() == [EXPERTS.index(expert)] * 3
    assert evidence[:, 5 * SIDE + 7].argmax(-1).tolist() == [EXPERTS.index("mixed")] * 3


def test_the_router_starts_by_what_patches_look_like() -> None:
    layer = Evidence(4, 4)
    layer.start_weights(0.02)
    assert torch.equal(layer.weight, 4 * torch.eye(4))


def test_training_balances_the_load_and_evaluation_leaves_it() -> None:
    """Without a balance the same two experts judge everything, and the others never learn."""
    scorer, whole = build("experts"), context()
    scorer.router.projection.bias.data[:] = torch.tensor([3.0, 2.0, 0.0, 0.0])  # text and graphics take all

    def load() -> torch.Tensor:
        with torch.no_grad():
            return (scorer.gates(whole) > 0).float().mean((0, 1))

    assert load()[:2].min() > 0.7 and load()[2:].max() < 0.4
    scorer(whole)
    assert not scorer.router.load_bias.any(), "in evaluation mode nothing changes"
    scorer.train()
    with torch.no_grad():
        scorer(whole)
    assert not scorer.router.load_bias.any(), "nor where nothing is learned"
    scorer(whole)
    assert scorer.router.load_bias.abs().max() == pytest.approx(BALANCE_RATE)
    for _ in range(4000):
        scorer.router(scorer._normed(whole), expert_evidence(whole), whole.patch_mask)
    scorer.eval()
    assert (load() - CHOSEN / len(EXPERTS)).abs().max() < 0.1


@torch.no_grad()
def test_a_handicap_changes_the_choice_not_the_weight() -> None:
    scorer, whole = build("experts"), context()
    gates = scorer.gates(whole)
    scorer.router.load_bias[:] = 1e-9
    assert torch.equal(scorer.gates(whole), gates), "all alike: the same choice, the same weights"
    scorer.router.load_bias[0] = -1e9
    assert not scorer.gates(whole)[..., 0].any()


@torch.no_grad()
def test_patches_beside_each_other_do_not_share_experts() -> None:
    scorer, whole = build("experts"), context()
    changed = replace(whole, features=whole.features.clone())
    changed.features[:, :, 4, 4] += 3 * torch.randn(3, whole.features.shape[1])
    moved = (scorer(whole) - scorer(changed)).abs() > 1e-6
    assert moved[:, 4 * SIDE + 4].all() and moved.sum() == 3
