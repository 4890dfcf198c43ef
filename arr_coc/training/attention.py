"""Attention written out for a while: its weights can be looked at, and on a CPU it trains faster in bfloat16."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration


@contextmanager
def eager_attention(language_model: PreTrainedModel) -> Iterator[None]:
    """A language model's attention is "eager" inside, and afterwards, whatever happens, what it was before."""
    configured = language_model.config._attn_implementation
    language_model.set_attn_implementation("eager")
    try:
        yield
    finally:
        language_model.set_attn_implementation(configured)


@contextmanager
def all_eager_attention(model: ArrCocForConditionalGeneration) -> Iterator[None]:
    """The same for the language model, the grid encoder and the semantic encoder."""
    configs = (model.config.vision_config, model.config.semantic_config)
    configured = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        with eager_attention(model.model.language_model):
            yield
    finally:
        for config, implementation in zip(configs, configured, strict=True):
            config._attn_implementation = implementation
