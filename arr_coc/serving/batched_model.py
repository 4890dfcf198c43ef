"""The language model alone, as transformers' continuous batching runs it."""

from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerationMixin
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import PreTrainedModel

from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .token_rows import TokenRows

PAGE = 16
"""Positions in a page of the cache: prompts share whole pages."""


class BatchedLanguageModel(PreTrainedModel, GenerationMixin):
    """Language model and vocabulary head of an ARR-COC model, whose weights they are, reading ids of `TokenRows`."""

    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, model: ArrCocForConditionalGeneration, rows: TokenRows) -> None:
        super().__init__(model.config.text_config)
        self.rows, self.language_model, self.lm_head = rows, model.model.language_model, model.lm_head
        self.eval()

    def get_input_embeddings(self) -> TokenRows:
        return self.rows

    def forward(
        self, input_ids: Tensor, logits_to_keep: int | Tensor = 0, use_cache: bool = False, **kwargs: Any
    ) -> CausalLMOutput:
        """Logits at `logits_to_keep` of the packed prompts `input_ids` [1, S]; `kwargs` are the engine's."""
        outputs = self.language_model(inputs_embeds=self.rows(input_ids), use_cache=use_cache, **kwargs)
        hidden = outputs.last_hidden_state
        keep = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep or None, None)
        return CausalLMOutput(logits=self.lm_head(hidden[:, keep]))

    def manager(
        self, tokens: GenerationConfig, *, sampling: bool, cache_tokens: int, batch_tokens: int
    ) -> ContinuousBatchingManager:
        """A batch that takes and ends questions at any time; it has to be started.

        Args:
            tokens: whose end and padding tokens count.
            sampling: whether tokens are drawn, by each question's own `temperature` and `top_p`; else the likeliest.
            cache_tokens: positions of its cache.
            batch_tokens: positions of one pass.
        """
        # Values other than 1: transformers makes no per-request processor of a setting that changes nothing.
        drawn = {"do_sample": True, "temperature": 0.5, "top_p": 0.5, "top_k": 0} if sampling else {"do_sample": False}
        ids: dict[str, Any] = {"eos_token_id": tokens.eos_token_id, "pad_token_id": tokens.pad_token_id}
        config = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=-(-cache_tokens // PAGE),
            max_batch_tokens=batch_tokens,
            return_logprobs=True,
            per_request_processors=sampling,
            auto_switch_to_flash=self.dtype in (torch.float16, torch.bfloat16),  # flash attention takes no others
        )
        with torch.no_grad():
            return self.init_continuous_batching(GenerationConfig(**ids, **drawn), config)
