"""The trainer: what is trained and what is minimised; losses by hand, and what they leave out."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fetching import N, context, fetcher
from helpers import CARD, PAGE, QUESTION, prompt, refuses, tiny_model
from PIL import Image
from trainers import CPU, PAGES, PHASE, ROOT, loaded, standard_trainer, trainer_of, weights_of

from arr_coc.adapters import PARTS, adapt, part_of_parameter
from arr_coc.data.collator import QuestionCollator
from arr_coc.data.formats import open_records
from arr_coc.modeling.modeling_arr_coc import relevance_loss
from arr_coc.modeling.scorers import FetchContext
from arr_coc.training.attention import WRITTEN_OUT, eager_attention, written_out
from arr_coc.training.losses import distribution_loss, diversity_loss, efficiency_loss, loss_weights, retention_loss
from arr_coc.training.optimizers import train_only
from arr_coc.training.phases import AllocatorPhase, JointPhase, Phase, SemanticPhase, make_trainer


# ---- data and draws
@pytest.fixture(scope="module")
def checkpoint(tiered_checkpoint: Path) -> Path:
    return tiered_checkpoint


def test_draws_depend_on_seed_and_step_alone(checkpoint: Path) -> None:
    config = loaded(checkpoint)[0].config
    phase = replace(PHASE, strategies={"realizer": 3.0, "none": 1.0}, budgets={"standard": 1.0, 5: 1.0})
    turned = replace(PHASE, strategies={"none": 1.0, "realizer": 3.0}, budgets={5: 1.0, "standard": 1.0})
    draws = [phase.draw(step, config) for step in range(400)]
    assert draws == [turned.draw(step, config) for step in range(400)]
    share = sum(strategy == "none" for strategy, _ in draws) / len(draws)
    assert 0.18 < share < 0.32 and {fetched for strategy, fetched in draws if strategy == "none"} == {0}
    assert {fetched for strategy, fetched in draws if strategy == "realizer"} == {5, 17}


@pytest.mark.parametrize("weights", [{}, {"realizer": -1.0}, {"realizer": 0.0}, {"realizer": "often"}, ["realizer"]])
def test_mixes_that_draw_nothing_are_refused(weights: Any) -> None:
    refuses("strategies: expected .*; got", replace, PHASE, strategies=weights)


# ---- parts
QUICK: dict[str, Any] = {"data": PAGES, "warmup": 0, "batch_size": 2, "learning_rate": 1e-3}


def test_every_parameter_belongs_to_one_part_and_every_part_has_some(checkpoint: Path) -> None:
    names = [name for name, _ in loaded(checkpoint)[0].named_parameters()]
    assert {part_of_parameter(name) for name in names} == set(PARTS)
    assert {part_of_parameter(f"base_model.model.{name}") for name in names} == set(PARTS)
    refuses("expected one of the parts .*; got 'elsewhere.weight'", part_of_parameter, "elsewhere.weight")


@pytest.mark.parametrize("kind", [AllocatorPhase, SemanticPhase, JointPhase])
def test_a_phase_trains_its_parts_and_leaves_the_others(kind: type[Phase], checkpoint: Path, tmp_path: Path) -> None:
    losses = {"diversity": 0.1, "efficiency": 5.0}
    phase = kind(**QUICK, steps=2, allocator="tiers", losses=losses, target_tokens=1.0)
    trainer = trainer_of(checkpoint, tmp_path, phase)
    before = weights_of(trainer)
    trainer.train()
    after = trainer.model.state_dict()
    changed = {part_of_parameter(key) for key in before if not torch.equal(before[key], after[key])}
    assert changed == set(phase.trained)
    held = sum(len(group["params"]) for group in trainer.optimizer.param_groups)
    assert held == sum(parameter.requires_grad for parameter in trainer.model.parameters())


def test_a_phase_can_train_one_scorer_and_leave_the_others(checkpoint: Path, tmp_path: Path) -> None:
    """It evaluates at the model's own budget, for which the prompts had no room where less was drawn in training."""
    chosen: dict[str, Any] = {"strategies": {"saliency": 1.0}, "budgets": {2: 1.0}, "trained": ("scorer.clip_query",)}
    phase = AllocatorPhase(**QUICK, **chosen, held_out=PAGES, steps=1, evaluate_every=1, losses={"answer": 0.0})
    trainer = trainer_of(checkpoint, tmp_path, phase)
    before = weights_of(trainer)
    trainer.train()
    after = trainer.model.state_dict()
    changed = [key for key in before if not torch.equal(before[key], after[key])]
    assert changed and all("scorers.clip_query." in key for key in changed)
    with pytest.raises(ValueError, match=r"trained: expected scorers that the model holds \(.*\); got scorer.experts"):
        train_only(trainer.model, ["scorer.experts"])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_frozen_scorer_runs_once_and_without_a_graph(checkpoint: Path, tmp_path: Path, checkpointing: bool) -> None:
    phase = SemanticPhase(data=PAGES, steps=1, batch_size=2, activation_checkpointing=checkpointing)
    trainer = trainer_of(checkpoint, tmp_path, phase)
    ran: list[tuple[str, bool]] = []
    for name, scorer in trainer.model.model.fetcher.scorers.items():
        scorer.register_forward_hook(lambda _m, _i, scores, name=name: ran.append((name, scores.requires_grad)))
    trainer.train()
    assert ran == [("realizer", False)]


# ---- what a training logs
def test_accumulation_does_not_change_the_loss(checkpoint: Path, tmp_path: Path) -> None:
    """Four questions in one pass or in four, whatever share of the answer's tokens and boxes each pass has."""
    weights = []
    for number, (size, passes) in enumerate(((4, 1), (1, 4))):
        phase = replace(PHASE, steps=1, warmup=0, batch_size=size, accumulation=passes, held_out=None, log_every=1)
        trainer = trainer_of(checkpoint, tmp_path / str(number), phase, learning_rate=1e-2)
        trainer.train()
        weights.append((trainer.state.log_history[0]["loss"], trainer.state.log_history[0]["grad_norm"]))
    assert weights[0] == pytest.approx(weights[1], rel=1e-4)


def test_training_lowers_the_loss_and_logs(checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sizes = {"steps": 20, "warmup": 2, "batch_size": 6, "learning_rate": 3e-3, "evaluate_every": 20, "log_every": 10}
    chosen = {"strategies": {"realizer": 1.0}, "allocator": "tiers", "losses": {"distribution": 0.1}}
    trainer = trainer_of(checkpoint, tmp_path, **sizes, **chosen)
    with caplog.at_level("INFO"):
        trainer.train()
    told = [record.getMessage() for record in caplog.records if " s a step, about 0 h 0" in record.getMessage()]
    assert [text.split(":")[0] for text in told] == ["step 1/20", "step 10/20", "step 20/20"]
    first, last = (line for line in trainer.state.log_history if "loss" in line)
    assert last["loss"] < first["loss"] - 0.2
    names = {"loss/answer", "loss/relevance", "loss/efficiency", "loss/distribution", "recall", "fetched"}
    assert names | {"grad_norm"} <= set(last)
    assert 0 <= last["recall"] <= 1


# ---- refusals
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1; got 0"),
        ({"learning_rate": "fast"}, "learning_rate: expected float; got 'fast'"),
        ({"rates": {"elbow": 1e-3}}, "rates: expected parts among scorer, .*; got elbow"),
        ({"trained": ["elbow"]}, "trained: expected parts among scorer, .*; got elbow"),
    ],
)
def test_bad_settings_of_a_phase_are_refused(change: dict[str, Any], message: str) -> None:
    refuses(message, replace, PHASE, **change)


def test_the_trainer_refuses_devices_and_losses_that_it_does_not_know(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="device: expected cpu or cuda .*; got cuda:1"):
        make_trainer(*loaded(checkpoint), PHASE, tmp_path, device=torch.device("cuda", 1), root=tmp_path)
    refuses("losses: expected names among answer, .*; got beauty", loss_weights, {"beauty": 1.0})
    refuses("losses: expected weights of 0 or more, one above 0", loss_weights, {"answer": -1.0})
    refuses("retention: expected an adapter", trainer_of, checkpoint, tmp_path, RETAINING, losses={"retention": 1.0})


# ---- Retention: what an adapter learns elsewhere does not change what the scorers say of retained records
OTHER = {**PAGES, "seed": 77}
MIXED = {"format": "mixed", "sources": [PAGES, OTHER], "retained": [1]}
SIZES: dict[str, Any] = {"steps": 12, "warmup": 1, "batch_size": 4, "learning_rate": 2e-2, "weight_decay": 0.0}
CHOSEN: dict[str, Any] = {"trained": ("scorer",), "strategies": {"realizer": 1.0}, "losses": {"answer": 0.0}}
RETAINING = AllocatorPhase(data=MIXED, **SIZES, **CHOSEN)


def test_retention_is_of_real_patches() -> None:
    scores, mask = torch.tensor([[1.0, 5.0, 3.0]]), torch.tensor([[True, False, True]])
    assert retention_loss(scores, torch.zeros(1, 3), mask).tolist() == [5.0]


def moved(checkpoint: Path, folder: Path, weight: float) -> float:
    """How far the realizer's logits of retained records are, after training, from those without the adapter."""
    model, processor = loaded(checkpoint)
    phase = replace(RETAINING, losses={**RETAINING.losses, "retention": weight})
    trainer = make_trainer(adapt(model, ("scorer",), r=4), processor, phase, folder, device=CPU, root=folder)
    trainer.train()
    adapted = trainer.model.eval()
    collate = QuestionCollator(processor, model.config)
    batch = collate(list(open_records(OTHER, folder=folder)))
    with torch.no_grad():
        after = trainer._run(adapted, batch, "realizer", None).scores["realizer"]
        with adapted.disable_adapter():
            before = trainer._run(adapted, batch, "realizer", None).scores["realizer"]
    return retention_loss(after, before, batch["patch_mask"][batch["image_index"]]).mean().item()


def test_retained_records_are_judged_as_before(checkpoint: Path, tmp_path: Path) -> None:
    free, held = (moved(checkpoint, tmp_path / "free", 0.0), moved(checkpoint, tmp_path / "held", 5.0))
    assert held < free / 3, (held, free)


@pytest.mark.parametrize("retained", [[2], [-1], ["1"], 1, [True]])
def test_sources_that_there_are_not_are_not_retained(retained: Any) -> None:
    with pytest.raises(ValueError, match="retained: expected a list of numbers of sources, 0 to 1; got"):
        open_records({**MIXED, "retained": retained})


# ---- losses beside the answer's: known values, the signs of their gradients
def labels(*rows: float) -> torch.Tensor:
    """One constant row of relevance per number."""
    return torch.tensor(rows)[:, None].expand(-1, N).contiguous()


def loss_of(module: Any, given: Any, target: torch.Tensor, weight: float = 4.0) -> torch.Tensor:
    scores = torch.stack(list(module.all_scores(given).values()))
    return relevance_loss(scores, target, given.patch_mask, weight)


# ---- relevance
def test_rows_that_nobody_knows_are_left_out_and_every_image_counts_the_same() -> None:
    module, both = fetcher(), context()
    tensors = ("features", "textures", "patch_mask", "query", "query_mask", "seeds")
    first = FetchContext(**{name: getattr(both, name)[:1] for name in tensors})
    known = torch.rand(1, N, generator=torch.Generator().manual_seed(0)).round()
    expected = loss_of(module, first, known)
    assert loss_of(module, both, torch.cat((known, labels(-1.0)))).item() == pytest.approx(expected.item(), rel=1e-5)
    # Over all patches of the batch, a thin image counted a tenth of a square one.
    module, given = fetcher(scorers=["clip_query"], strategy="clip_query"), context()
    given.patch_mask[0, 4:] = False
    target = labels(1.0, 0.0)
    scores = module.scorers["clip_query"](given)
    thin = torch.nn.functional.softplus(-scores[0, :4]).mean()
    square = torch.nn.functional.softplus(scores[1]).mean()
    assert loss_of(module, given, target, weight=1.0).item() == pytest.approx(((thin + square) / 2).item(), rel=1e-5)


@torch.no_grad()
def test_relevance_counts_by_its_batchs_share_of_the_accumulated_tokens() -> None:
    """Trainer sums the losses of accumulated batches: whole in each, relevance would weigh more, the more batches."""
    model = tiny_model()
    content = [{"type": "image", "image": Image.new("RGB", (90, 60))}, {"type": "text", "text": "What is it?"}]
    chat = [{"role": "user", "content": content}]
    inputs = dict(model.processor.apply_chat_template(chat, tokenize=True, return_dict=True, return_tensors="pt"))
    relevant = torch.zeros(1, model.config.vision_config.num_patches)
    relevant[0, 40:44] = 1.0
    for answered in (3, inputs["input_ids"].shape[1]):
        counted = min(answered, inputs["input_ids"].shape[1] - 1)  # nothing predicts the first token
        inputs["labels"] = torch.full_like(inputs["input_ids"], -100)
        inputs["labels"][:, -answered:] = inputs["input_ids"][:, -answered:]
        inputs["num_items_in_batch"] = 4 * counted
        both, answer = model(**inputs, relevance_targets=relevant), model(**inputs)
        weighted = model.config.relevance_loss_weight * both.relevance_loss.item()
        assert (both.loss - answer.loss).item() == pytest.approx(weighted / 4, rel=1e-4)


# ---- diversity, distribution, efficiency
def test_diversity_and_distribution_by_hand() -> None:
    tokens = torch.tensor([[1.0, 3.0], [0.0, 4.0]])
    assert distribution_loss(tokens[:1], 2.0, 1.0).item() == 0
    assert distribution_loss(tokens, 2.0, 1.0).item() == pytest.approx(0.5)
    assert distribution_loss(tokens, 5.0, 1.0).item() == pytest.approx((9 + 9 + 1) / 2)
    assert distribution_loss(10 * tokens, 20.0, 10.0).item() == pytest.approx(0.5), "in units of the text's"
    even = 50 * torch.eye(5)  # every item certain, every tier taken
    assert diversity_loss(even).item() == pytest.approx(0, abs=1e-6)
    assert diversity_loss(even[:1].repeat(3, 1)).item() == pytest.approx(1, abs=1e-6)
    assert diversity_loss(torch.tensor([[math.log(3), 0.0]])).item() == pytest.approx(1 - 0.8112781, abs=1e-6)


def test_efficiency_pushes_down_above_the_target_only() -> None:
    for tokens, sign in ((150.0, 1), (50.0, 0)):
        expected = torch.tensor([tokens, tokens], requires_grad=True)
        efficiency_loss(expected, 100).backward()
        assert expected.grad.sign().tolist() == [sign, sign]
    refuses("^target: expected a positive number of tokens; got 0$", efficiency_loss, torch.ones(1), 0)


# ---- transformers' own Trainer with batches of QuestionCollator, and the losses that it and others ask for
@pytest.mark.versions
def test_evaluate_gives_the_loss(tmp_path: Path) -> None:
    """`relevance_labels` looked like a label to Trainer, which then found the batch without its labels."""
    model = tiny_model()
    trainer = standard_trainer(model, tmp_path)
    measured = trainer.evaluate()
    with torch.no_grad():
        batch = trainer.data_collator(list(trainer.eval_dataset))
        expected = model(**batch).loss
    assert measured["eval_loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert trainer.label_names == ["labels"]


@pytest.mark.versions
def test_the_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    """It died for want of eval_loss."""
    model = tiny_model()
    settings = {"max_steps": 3, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer = standard_trainer(model, tmp_path, learning_rate=0.5, load_best_model_at_end=True, **settings)
    trainer.train()
    losses = {line["step"]: line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line}
    assert set(losses) == {1, 2, 3}
    best = min(losses.values())
    assert trainer.state.best_metric == pytest.approx(best)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best, rel=1e-3)


# ---- losses
@torch.no_grad()
@pytest.mark.versions
def test_the_loss_of_a_batch_counts_by_its_share_of_the_tokens() -> None:
    model = tiny_model()
    inputs = prompt(model, (PAGE, QUESTION), (CARD, "Who?"))
    labels = inputs["input_ids"].masked_fill(~inputs["query_mask"], -100)
    tokens = int((labels[:, 1:] != -100).sum())
    whole = model(**inputs, labels=labels).loss
    assert torch.allclose(model(**inputs, labels=labels, num_items_in_batch=2 * tokens).loss, whole / 2)
    assert torch.allclose(model(**inputs, labels=labels, num_items_in_batch=torch.tensor(tokens)).loss, whole)


# ---- Attention that is written out gives what "eager" gives, and the scorer learns from the weights that answers pay
def test_distillation_trains_the_scorer_without_boxes(checkpoint: Path, tmp_path: Path) -> None:
    trainer = trainer_of(
        checkpoint,
        tmp_path,
        AllocatorPhase(data=PAGES, steps=15, warmup=1, batch_size=4, learning_rate=3e-3),
        log_every=5,
        losses={"answer": 0.0, "relevance": 0.0, "distillation": 1.0},
    )
    trainer.train()
    lines = [line["loss/distillation"] for line in trainer.state.log_history if "loss/distillation" in line]
    assert lines[-1] < lines[0] - 0.01 and trainer.model.model.language_model.config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_the_shipped_model_looks_at_the_answer_when_it_gives_it(tmp_path: Path) -> None:
    """On held-out pages, with half of all patches fetched, boxed patches get several times their share of attention."""
    model, processor = loaded(ROOT / "hub_configs" / "arr-coc-tiny-2")
    pages = {"format": "jsonl", "path": str(ROOT / "examples" / "held_out" / "data.jsonl")}
    phase = AllocatorPhase(data=pages, losses={"distillation": 1.0}, distillation_budget=800)
    trainer = make_trainer(model.eval(), processor, phase, tmp_path, device=CPU, root=tmp_path)
    batch = trainer.data_collator(trainer.train_dataset[:3])
    boxed = batch["relevance_targets"]
    attended = (trainer._attended(trainer.model, batch) * boxed).sum(1)
    assert bool((attended > 2 * boxed.mean(1)).all())


@pytest.mark.parametrize("key_heads", [1, 2])
def test_written_out_attention_is_eager_attention(key_heads: int) -> None:
    torch.manual_seed(0)
    model = tiny_model(text={"num_key_value_heads": key_heads}).model.language_model
    ids = torch.arange(2 * 9).view(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    configured = model.config._attn_implementation
    outputs = {}
    for name in (WRITTEN_OUT, "eager"):
        model.set_attn_implementation(name)
        outputs[name] = model(input_ids=ids, attention_mask=mask, output_attentions=True)
    ours, theirs = outputs.values()
    torch.testing.assert_close(ours.last_hidden_state[0], theirs.last_hidden_state[0])
    torch.testing.assert_close(ours.last_hidden_state[1, 4:], theirs.last_hidden_state[1, 4:])
    for own, other in zip(ours.attentions, theirs.attentions, strict=True):
        torch.testing.assert_close(own[0], other[0])
    gradients = [
        torch.autograd.grad(each.last_hidden_state[0].sum(), model.layers[0].self_attn.q_proj.weight)[0]
        for each in (ours, theirs)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    model.set_attn_implementation(configured)
    with pytest.raises(KeyError), eager_attention(model):
        assert model.config._attn_implementation == WRITTEN_OUT
        raise KeyError
    assert model.config._attn_implementation == configured


@pytest.mark.parametrize("masked", [True, False])
def test_attention_of_spans_is_that_of_a_mask_which_keeps_them_apart(masked: bool) -> None:
    """A prefix of 5 tokens and two sequences behind it; with a mask, tokens are hidden within the spans too."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, 11, 6, generator=generator) for heads in (4, 2, 2))
    owner = torch.tensor([0] * 5 + [1] * 4 + [2] * 2)
    seen = (owner[:, None] == owner) | (owner == 0)
    if masked:
        seen &= torch.ones(11, 11, dtype=torch.bool).tril()
        seen[9:, 2] = False
    mask = torch.zeros(1, 1, 11, 11).masked_fill(~seen, torch.finfo(torch.float32).min)
    results = []
    for given, spans in ((mask, ()), (mask if masked else None, [(0, 5), (5, 9), (9, 11)])):
        inputs = [each.clone().requires_grad_() for each in (query, key, value)]
        out, weights = written_out(torch.nn.Identity(), *inputs, given, 0.3, spans)
        assert (weights is None) == bool(spans)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for whole, apart in zip(*results, strict=True):
        torch.testing.assert_close(apart, whole, rtol=1e-4, atol=1e-5)


def test_padding_that_sees_nothing_leaves_numbers_in_bfloat16() -> None:
    """A float32 mask's least number is minus infinity in bfloat16, and a row of it alone has no softmax."""
    model = tiny_model().model.language_model
    ids = torch.arange(2 * 9).view(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with eager_attention(model), torch.autocast("cpu", torch.bfloat16):
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    assert states.isfinite().all()
