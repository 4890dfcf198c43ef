"""Budgets that are learned under the efficiency loss: easy questions get fewer fetched tokens than hard ones, and
why."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import refuses, tiny_model
from torch import Tensor, nn

from arr_coc import ArrCocConfig
from arr_coc.data.formats.own import Rendered
from arr_coc.modeling.allocators import tier_sizes
from arr_coc.training.losses import expected_answer_loss
from arr_coc.training.phases import AllocatorPhase, make_trainer
from arr_coc.training.recipe import load_recipe
from arr_coc.training.trainer import ArrCocTrainer

LEARNED, HELD_OUT = (
    {"format": "rendered", "domains": "form", "size": 128, "pages": pages, "questions": 4, "seed": seed, "split": split}
    for pages, seed, split in ((40, 1, "train"), (10, 2, "test"))
)
STEPS = 150
MARGIN = 1.15


def mean_fetched(model: Any) -> dict[str, float]:
    """Of the easy and of the hard questions about pages that were not learned from."""
    records = Rendered(**{name: value for name, value in HELD_OUT.items() if name != "format"}).read()
    found: dict[str, list[int]] = {"easy": [], "hard": []}
    for record in records:
        fetch = model.generate(
            record.picture, record.question, allocator="tiers", budget="auto", return_fetch=True, max_new_tokens=1
        ).fetch
        found[dict(record.tags)["difficulty"]].append(fetch.budget)
    return {name: sum(counts) / len(counts) for name, counts in found.items()}


class NeedsItsPatches(ArrCocTrainer):
    """In place of a language model that can read: one that answers the better, the more of what it needs it may see."""

    turned = 0
    """So many places further in the batch is the question whose needs count."""

    def _answer_by_tier(self, model: nn.Module, inputs: Mapping[str, Any], strategy: str, num_fetched: int) -> Tensor:
        needed = inputs["relevance_targets"].sum(1, keepdim=True)
        tokens = (inputs["labels"] != -100).sum(1, keepdim=True)
        missing = (needed - tier_sizes(inputs["relevance_targets"].shape[1], num_fetched)).clamp(min=0) / needed
        return (2 * tokens * missing).roll(self.turned, 0)


def trained(folder: Path, kind: type[ArrCocTrainer], efficiency: float = 0.5) -> dict[str, float]:
    """`mean_fetched` of a tiny model with random, frozen features, once its tier classifier is trained."""
    model = tiny_model(fetcher={"tier_choice": "classifier", "hidden_size": 32})
    with torch.no_grad():
        for weight in model.model.fetcher.budgeters.parameters():
            weight.div_(10)  # as a training begins, certain of nothing
    sizes: dict[str, Any] = {"steps": STEPS, "warmup": 1, "batch_size": 16, "evaluate_every": STEPS}
    chosen: dict[str, Any] = {"trained": ("allocator",), "allocator": "tiers", "budgets": {"auto": 1.0}}
    chosen |= {"gradient": "none", "target_tokens": 16.0, "learning_rate": 1e-2}
    losses = {"answer": 0.0, "relevance": 0.0, "tiers": 1.0, "diversity": 0.5, "efficiency": efficiency}
    phase = AllocatorPhase(data=LEARNED, losses=losses, **sizes, **chosen)
    trainer = make_trainer(model, model.processor, phase, folder, device=torch.device("cpu"), root=folder)
    trainer.__class__ = kind
    trainer.train()
    return mean_fetched(model.eval())


@pytest.mark.slow
def test_the_tier_classifier_gives_hard_questions_more(tmp_path: Path) -> None:
    found = trained(tmp_path, NeedsItsPatches)
    assert found["hard"] >= MARGIN * found["easy"]


def test_the_expected_loss_is_the_mean_over_drawn_tiers_and_prefers_the_better() -> None:
    losses = torch.tensor([[4.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    logits = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]]).log().requires_grad_()
    found = expected_answer_loss(logits, losses)
    assert found.tolist() == pytest.approx([2.25, 0.0])
    found.sum().backward()
    assert logits.grad[0, 0] > 0 > logits.grad[0, 2] and not logits.grad[1].any()


# ---- the recipe
RECIPE = Path(__file__).parents[1] / "examples" / "budgets.yaml"


def test_the_recipe_changes_the_configuration_that_it_starts_from(tmp_path: Path) -> None:
    recipe = load_recipe(RECIPE)
    assert [type(stage).__name__ for stage in recipe.stages] == ["JointPhase", "AllocatorPhase"]
    assert recipe.config().fetcher_config.tier_choice == "classifier"
    assert ArrCocConfig.from_pretrained(recipe.model).fetcher_config.tier_choice == "heuristic"
    path = tmp_path / "recipe.yaml"
    for changes, received in (
        ("{hue: 1}", "config: .*'hue'"),
        ("{fetcher_config: {hue: 1}}", "fetcher_config: .*'hue'"),
    ):
        path.write_text(f"model: {recipe.model}\nconfig: {changes}\nstages: [{{stage: allocator}}]\n")
        refuses(received, load_recipe(path).config)
