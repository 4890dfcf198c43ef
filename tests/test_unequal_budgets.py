"""The model with a budget of its own for every item: as if the processor had written just these placeholders."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import CARD, PAGE, PAIRS, loud_model, prompt, refuses, tiny_model
from torch import Tensor, nn
from transformers import GenerationConfig

from arr_coc import ArrCocConfig
from arr_coc.data.formats.own import Rendered
from arr_coc.modeling.allocators import tier_sizes
from arr_coc.training.losses import expected_answer_loss
from arr_coc.training.phases import AllocatorPhase, make_trainer
from arr_coc.training.recipe import load_recipe
from arr_coc.training.trainer import ArrCocTrainer

CHANGES: dict[str, dict[str, Any]] = {
    "linear": {},
    "mask compressor": {"vision": {"compressor": "mask"}},
    "attention across tokens": {"bridge": {"kind": "transformer", "num_heads": 2, "num_layers": 1}},
    "rows": {"bridge": {"layout": "rows"}},
    "fetched": {"bridge": {"layout": "fetched"}},
    "indicators": {"bridge": {"kind": "vet", "layout": "indicators", "table_size": 40}},
    "classifier": {"fetcher": {"tier_choice": "classifier"}},
}
CHOOSING = ["tiers", "adaptive"]
"""Questions of PAIRS have 11, 4 and 43 tokens."""


def choosing_model(name: str = "linear") -> Any:
    changes = {part: dict(values) for part, values in CHANGES[name].items()}
    fetcher = {"tier_lengths": [6, 12, 30, 40], "adaptive_share": 0.06, **changes.pop("fetcher", {})}
    model = loud_model(fetcher=fetcher, **changes)
    classifier = model.model.fetcher.budgeters["tiers"].classifier
    if classifier is not None:  # a random one prefers one tier for all: what its items have in common is taken off
        with torch.no_grad():
            common = model(
                **prompt(model, *PAIRS, budget="auto"), choices={"allocator": "tiers"}
            ).fetch.tier_logits.mean(0)
            classifier.head.bias -= common
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return choosing_model()


@pytest.fixture(scope="module", params=CHANGES)
def any_model(request: pytest.FixtureRequest) -> Any:
    return choosing_model(request.param)


@pytest.fixture
def padding(request: pytest.FixtureRequest, any_model: Any) -> Iterator[str]:
    """Pads on the given side while the test runs."""
    any_model.processor.tokenizer.padding_side = request.param
    yield request.param
    any_model.processor.tokenizer.padding_side = "left"


@torch.no_grad()
@pytest.mark.parametrize("padding", ["left", "right"], indirect=True)
@pytest.mark.parametrize("allocator", CHOOSING)
def test_each_item_is_as_alone_with_just_its_placeholders(any_model: Any, allocator: str, padding: str) -> None:
    """Tokens, logits and patches, in a batch of unequal budgets, against an exact budget that nothing is cut from."""
    batch = prompt(any_model, *PAIRS, budget="auto")
    together = any_model(**batch, choices={"allocator": allocator})
    counts = together.fetch.counts.tolist()
    assert len(set(counts)) > 1, "the test needs items that differ"
    assert together.logits.shape[:2] == batch.input_ids.shape
    for i, (pair, count) in enumerate(zip(PAIRS, counts, strict=True)):
        exact = prompt(any_model, pair, budget=count)
        alone = any_model(**exact, choices={"allocator": "topk"})
        assert together.fetch.select(torch.tensor([i])).indices.equal(alone.fetch.indices)
        held = together.image_tokens[i]
        placed_tokens = held[placed(any_model, together, i, len(held))]
        assert torch.allclose(placed_tokens, alone.image_tokens[0], atol=1e-4)
        stays = batch.attention_mask[i].bool()
        is_image = batch.input_ids[i] == any_model.config.image_token_id
        stays[is_image] = placed(any_model, together, i, int(is_image.sum()))
        assert torch.allclose(together.logits[i][stays], alone.logits[0], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("padding", ["left", "right"], indirect=True)
def test_losses_from_the_callers_labels_are_the_models(any_model: Any, padding: str) -> None:
    """Those of TRL and of Trainer's label smoothing were of other tokens, as surplus placeholders left the logits."""
    batch = prompt(any_model, *PAIRS, budget="auto")
    image = batch.input_ids == any_model.config.image_token_id
    labels = batch.input_ids.masked_fill(image | (batch.attention_mask == 0), -100)
    out = any_model(**batch, labels=labels, choices={"allocator": "tiers"})
    assert not out.fetch.used.all(), "the test needs items that differ"
    expected = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert torch.allclose(out.loss, expected)
    shifted = F.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    assert torch.allclose(any_model(**batch, shift_labels=shifted, choices={"allocator": "tiers"}).loss, expected)


def placed(model: Any, output: Any, item: int, positions: int) -> torch.Tensor:
    """bool [positions]: the positions of an item's image that hold a token; its fetched tokens come last."""
    places = torch.ones(positions, dtype=torch.bool)
    closing = 1 if model.config.bridge_config.layout == "indicators" else 0
    most = positions - (output.image_tokens.shape[1] - output.fetch.budget)
    start = positions - closing - most
    places[start : positions - closing] = torch.arange(most) < int(output.fetch.counts[item])
    return places


@torch.no_grad()
def test_a_host_of_absolute_positions_counts_from_the_prompt() -> None:
    """Prompts of equal length get padding where they are trimmed: it had moved what was behind it."""
    model = loud_model(
        fetcher={"adaptive_share": 0.06},
        text={"model_type": "gpt2", "n_embd": 24, "n_layer": 2, "n_head": 2, "n_positions": 1024},
    )
    pairs = [(PAGE, "Who?"), (CARD, "What")]
    batch = prompt(model, *pairs, budget="auto")
    assert batch.attention_mask.all()
    together = model(**batch, choices={"allocator": "adaptive"})
    assert len(set(together.fetch.counts.tolist())) == 2, "the test needs items that differ"
    for pair, count, logits in zip(pairs, together.fetch.counts.tolist(), together.logits, strict=True):
        alone = model(**prompt(model, pair, budget=count), choices={"allocator": "topk"}).logits[0]
        assert torch.allclose(logits[-10:], alone[-10:], atol=1e-4)


# ---- generate
@pytest.mark.parametrize("allocator", CHOOSING)
def test_answers_do_not_depend_on_the_batch_or_on_how_one_asks(any_model: Any, allocator: str) -> None:
    images, questions = map(list, zip(*PAIRS, strict=True))
    alone = [any_model.generate(*pair, allocator=allocator, return_fetch=True) for pair in PAIRS]
    texts = [answer.text for answer in alone]
    together = any_model.generate(images, questions, allocator=allocator, return_fetch=True)
    assert [answer.text for answer in together] == texts
    for one, same in zip(alone, together, strict=True):
        assert one.fetch.indices.equal(same.fetch.indices) and one.fetch.budget == same.fetch.budget
        assert one.probability == pytest.approx(same.probability, rel=1e-3)
    batch = prompt(any_model, *PAIRS, budget="auto")
    sequences = any_model.generate(**batch, allocator=allocator)
    start = batch.input_ids.shape[1]
    assert sequences[:, :start].equal(batch.input_ids), "sequences begin with the prompts as they were given"
    decoded = any_model.processor.tokenizer.batch_decode(sequences[:, start:], skip_special_tokens=True)
    assert [answer.strip() for answer in decoded] == texts
    assert len({answer.fetch.budget for answer in alone}) > 1


def test_max_length_may_come_from_a_generation_config(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given so, it was not shortened along with the prompt: sequences were longer than it allows."""
    monkeypatch.setattr(model.generation_config, "max_new_tokens", None)
    batch = prompt(model, PAIRS[1], budget="auto")
    length = batch.input_ids.shape[1] + 3
    config = GenerationConfig(max_length=length, min_length=length, pad_token_id=0)
    assert model.generate(**batch, generation_config=config, allocator="tiers").shape[1] == length


# ---- who chooses
def fetched(model: Any, question: str = "Who?", **kwargs: Any) -> tuple[int, str]:
    fetch = model.generate(CARD, question, return_fetch=True, max_new_tokens=1, **kwargs).fetch
    return fetch.budget, fetch.allocator


def test_auto_takes_the_configured_allocator_and_a_stated_budget_is_exact() -> None:
    plain = choosing_model()
    assert fetched(plain) == (17, "topk") and fetched(plain, budget="auto") == (4, "tiers")
    assert fetched(plain, budget="tier:256") == (16, "topk")
    configured = loud_model(fetcher={"allocator": "adaptive", "budget": "auto", "adaptive_share": 0.06})
    assert configured.config.vision_tokens() == (16, 25), "as many placeholders as an item can need"
    count, allocator = fetched(configured)
    assert allocator == "adaptive" and 4 <= count <= 25 and fetched(configured, budget="auto") == (count, "adaptive")
    configured = loud_model(fetcher={"allocator": "tiers", "budget": "auto", "tier_lengths": [1, 2, 3, 4]})
    assert fetched(configured) == (25, "tiers")
    assert fetched(configured, budget=9) == (9, "topk")
    assert fetched(configured, budget=9, allocator="tiers") == (9, "tiers"), "the most it may take"
    assert fetched(configured, allocator="window") == (25, "window")
    with pytest.raises(ValueError, match="^budget: expected a number or a name beside allocator 'topk'.*; got 'auto'$"):
        fetched(configured, budget="auto", allocator="topk")


@torch.no_grad()
def test_the_loss_of_a_trimmed_prompt_is_that_of_the_exact_one(model: Any) -> None:
    """Labels and positions are cut along with the placeholders."""

    def loss(allocator: str, budget: int | str) -> float:
        inputs = prompt(model, PAIRS[1], budget=budget)
        inputs["labels"] = inputs.input_ids.masked_fill(~inputs.query_mask.bool(), -100)
        inputs["position_ids"] = torch.arange(inputs.input_ids.shape[1])[None]
        return model(**inputs, choices={"allocator": allocator}).loss.item()

    assert loss("tiers", "auto") == pytest.approx(loss("topk", 4), rel=1e-4)


# ---- Budgets that are learned under the efficiency loss: easy questions get fewer fetched tokens than hard ones, and
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
