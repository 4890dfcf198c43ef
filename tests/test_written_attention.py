"""Attention that is written out for training gives what "eager" gives, and its weights."""

import pytest
import torch
from helpers import tiny_model

from arr_coc.training.attention import WRITTEN_OUT, eager_attention


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
    gradients = [torch.autograd.grad(each.last_hidden_state[0].sum(), model.layers[0].self_attn.q_proj.weight)[0]
                 for each in (ours, theirs)]  # fmt: skip
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    model.set_attn_implementation(configured)
    with pytest.raises(KeyError), eager_attention(model):
        assert model.config._attn_implementation == WRITTEN_OUT
        raise KeyError
    assert model.config._attn_implementation == configured


def test_attention_that_drops_stays_with_transformers() -> None:
    model = tiny_model().model.language_model
    model.config.attention_dropout = 0.1
    with eager_attention(model):
        assert model.config._attn_implementation == "eager"


def test_padding_that_sees_nothing_leaves_numbers_in_bfloat16() -> None:
    """A float32 mask's least number is minus infinity in bfloat16, and a row of it alone has no softmax."""
    model = tiny_model().model.language_model
    ids = torch.arange(2 * 9).view(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with eager_attention(model), torch.autocast("cpu", torch.bfloat16):
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    assert states.isfinite().all()
