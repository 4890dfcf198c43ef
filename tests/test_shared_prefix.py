"""What several questions read alike is read once, with the same outcome as if each read it for itself."""

import pytest
import torch
from helpers import tiny_model
from torch import Tensor

from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.training.attention import all_eager_attention
from arr_coc.training.from_scratch.shared_prefix import ReadPrompts, read_prompts

PAGES, QUESTIONS, TOKENS, LENGTH = 2, 3, 7, 5


@pytest.fixture
def model() -> ArrCocForConditionalGeneration:
    torch.manual_seed(0)
    return tiny_model()


@pytest.fixture
def prompts(model: ArrCocForConditionalGeneration) -> tuple[Tensor, Tensor, Tensor]:
    """Ids before, tokens of each page, ids after."""
    slots, vocabulary = PAGES * QUESTIONS, model.config.text_config.vocab_size
    before = torch.arange(3).expand(slots, -1)
    tokens = torch.randn(PAGES, TOKENS, model.config.text_config.hidden_size, requires_grad=True)
    return before, tokens, torch.randint(vocabulary, (slots, LENGTH))


def _gradients(model: ArrCocForConditionalGeneration, tokens: Tensor, read: ReadPrompts) -> list[Tensor]:
    weights = torch.linspace(-1, 1, read.states.numel()).view_as(read.states)
    loss = (read.states * weights).sum() + read.attention.square().sum()
    parameters = [tokens, *model.model.language_model.layers.parameters()]
    return list(torch.autograd.grad(loss, parameters))


def test_what_is_read_once_gives_the_same_states_attention_and_gradients(
    model: ArrCocForConditionalGeneration, prompts: tuple[Tensor, Tensor, Tensor]
) -> None:
    before, tokens, after = prompts
    with all_eager_attention(model):
        once = read_prompts(model, before, tokens, after, layer=0)
        each = read_prompts(model, before, tokens.repeat_interleave(QUESTIONS, 0), after, layer=0)
    assert once.states.shape[:2] == (PAGES * QUESTIONS, LENGTH - 1)
    assert once.attention.shape == (PAGES * QUESTIONS, LENGTH - 1, TOKENS)
    torch.testing.assert_close(once.states, each.states)
    torch.testing.assert_close(once.attention, each.attention)
    for own, other in zip(_gradients(model, tokens, once), _gradients(model, tokens, each), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_states_are_those_of_the_whole_prompt(
    model: ArrCocForConditionalGeneration, prompts: tuple[Tensor, Tensor, Tensor]
) -> None:
    before, tokens, after = prompts
    embed = model.get_input_embeddings()
    whole = torch.cat((embed(before), tokens.repeat_interleave(QUESTIONS, 0), embed(after)), 1)
    states = model.model(inputs_embeds=whole).last_hidden_state
    read = read_prompts(model, before, tokens, after, layer=None)
    assert not read.attention.numel()
    torch.testing.assert_close(read.states, states[:, -LENGTH:-1], rtol=1e-4, atol=1e-5)


def test_language_models_that_forget_positions_read_each_for_itself() -> None:
    """A sliding window's cache keeps its last keys alone."""
    torch.manual_seed(0)
    sliding = tiny_model(
        text={"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention"] * 2}
    )
    width, slots = sliding.config.text_config.hidden_size, PAGES * QUESTIONS
    tokens, after = torch.randn(PAGES, TOKENS, width), torch.randint(9, (slots, LENGTH))
    before = torch.zeros(slots, 1, dtype=torch.long)
    passes: list[int] = []
    sliding.model.register_forward_hook(lambda *_: passes.append(1))
    once = read_prompts(sliding, before, tokens, after, layer=None).states
    each = read_prompts(sliding, before, tokens.repeat_interleave(QUESTIONS, 0), after, layer=None).states
    assert len(passes) == 2
    torch.testing.assert_close(once, each)
