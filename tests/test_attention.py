"""Attention that is written out gives what "eager" gives, and the scorer learns from the weights that answers pay."""

from pathlib import Path

import pytest
import torch
from helpers import tiny_model
from trainers import CPU, PAGES, ROOT, loaded, trainer_of

from arr_coc.training.attention import WRITTEN_OUT, eager_attention, written_out
from arr_coc.training.phases import AllocatorPhase, make_trainer


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
