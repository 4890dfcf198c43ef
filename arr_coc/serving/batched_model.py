"""The language model for transformers' continuous batching, with image tokens as ids.

Embeddings get token ids above the vocabulary. The engine caches keys and values by the ids of a prompt, and shares
those of equal ids. So only an image's base tokens have the same ids in several prompts, and an id is not reused while
a cache could hold it.

Notation: V vocabulary size, n tokens, D language-model width, S packed prompt tokens.
"""

import copy
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.generation import GenerationMixin
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import ContinuousBatchingManager
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchProcessor
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.generation.logits_process import LogitsProcessor
from transformers.modeling_outputs import CausalLMOutput
from transformers.modeling_utils import PreTrainedModel

from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.pretrained import CACHE

LARGEST_ID = 2**31 - 1  # the largest id: engines keep ids in 32 bits


class TokenRows(nn.Module):
    """A pool of `capacity` rows [D]; row r has the ids V + r, V + r + capacity, ... in turn. An id is reused after
    `LARGEST_ID - V` others, when no cache holds its first use. `embedding`: the language model's, for ids below V."""

    rows: Tensor

    def __init__(self, embedding: nn.Module, vocabulary: int, capacity: int) -> None:
        super().__init__()
        self.embedding, self.vocabulary, self.capacity = embedding, vocabulary, capacity
        weight = next(embedding.parameters())
        self.register_buffer("rows", weight.new_zeros(capacity, weight.shape[1]), persistent=False)
        self._free = deque(range(capacity))
        self._uses = [0] * capacity
        self._rounds = (LARGEST_ID - vocabulary) // capacity
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """The number of free rows."""
        return len(self._free)

    @torch.no_grad()
    def take(self, embeds: Tensor) -> list[int]:
        """Copies the embeddings [n, D] into free rows and returns their ids. Raises ValueError: fewer than n rows are
        free."""
        with self._lock:
            if len(embeds) > len(self._free):
                raise ValueError(f"rows: expected at most {len(self._free)} tokens, which are free; got {len(embeds)}")
            numbers = [self._free.popleft() for _ in range(len(embeds))]
        self.rows[torch.tensor(numbers, dtype=torch.long, device=self.rows.device)] = embeds.to(self.rows)
        if self.rows.is_cuda:  # the engine reads on its own stream
            torch.cuda.current_stream(self.rows.device).synchronize()
        return [self.vocabulary + number + self.capacity * (self._uses[number] % self._rounds) for number in numbers]

    def release(self, ids: Sequence[int]) -> None:
        """Frees rows; their ids are invalid from then on."""
        numbers = [(token - self.vocabulary) % self.capacity for token in ids]
        with self._lock:
            for number in numbers:
                self._uses[number] += 1
            self._free.extend(numbers)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Embeddings [..., D] of ids [...] from the vocabulary or from `take`."""
        virtual = input_ids >= self.vocabulary
        embeds = self.embedding(input_ids.masked_fill(virtual, 0))
        return torch.where(virtual[..., None], self.rows[(input_ids - self.vocabulary) % self.capacity], embeds)


class LatestLogits(LogitsProcessor):
    """Records the `logits` [B, V] of the next tokens before sampling removes any; changes nothing."""

    logits: Tensor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.logits = scores
        return scores


class SampledBatch(ContinuousBatchingManager):
    """A batch of sampled tokens. Their log-probabilities are the model's own: without `temperature` and `top_p`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.logit_processor.logits_processor.insert(0, LatestLogits())

    def _create_batch_processor(self) -> ContinuousBatchProcessor:
        processor = super()._create_batch_processor()
        processor.model_runner.__class__ = _SampledRunner
        return processor


class _SampledRunner(ModelRunner):
    def _sample(self, scores: Tensor, output_ids: Tensor) -> None:
        super()._sample(scores, output_ids)
        count = scores.shape[1]
        own = self.logit_processor.logits_processor[0].logits.log_softmax(-1)
        drawn = own.gather(1, output_ids[0, :count, None].long())[:, 0]
        output_ids[1, :count].copy_(drawn.view(torch.int32))  # the bits of the numbers, as the batch reads them


PAGE = 16  # positions in a page of the cache: prompts share whole pages


class BatchedLanguageModel(PreTrainedModel, GenerationMixin):
    """Language model and vocabulary head of an ARR-COC model, with shared weights, for ids of `TokenRows`."""

    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, model: ArrCocForConditionalGeneration, rows: TokenRows) -> None:
        config = model.config.text_config
        if config._attn_implementation == "eager" and CACHE == "cache":  # transformers 5.23 needs it in the layers
            # The batch would write it into the model's config, and other threads' calls have no causal mask with it.
            config = copy.copy(config)
            config._attn_implementation = "paged|eager"
        super().__init__(config)
        self.rows, self.language_model, self.lm_head = rows, model.model.language_model, model.lm_head
        self.eval()

    def get_input_embeddings(self) -> TokenRows:
        return self.rows

    def forward(
        self, input_ids: Tensor, logits_to_keep: int | Tensor = 0, use_cache: bool = False, **kwargs: Any
    ) -> CausalLMOutput:
        """Logits at `logits_to_keep` of the packed prompts `input_ids` [1, S]; `kwargs` come from the engine."""
        # transformers 5.24 writes it into the config for the time of the call, where other threads' calls find it. What
        # it says is in the mask, and flash attention, which has none, is causal by default.
        kwargs.pop("is_causal", None)
        outputs = self.language_model(inputs_embeds=self.rows(input_ids), use_cache=use_cache, **kwargs)
        hidden = outputs.last_hidden_state
        keep = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep or None, None)
        return CausalLMOutput(logits=self.lm_head(hidden[:, keep]))

    def manager(
        self, tokens: GenerationConfig, *, sampling: bool, cache_tokens: int, batch_tokens: int
    ) -> ContinuousBatchingManager:
        """A batch that accepts and ends questions at any time; the caller starts it.

        Args:
            tokens: settings with the end and padding tokens.
            sampling: whether tokens are sampled by each question's `temperature` and `top_p`; else decoding is greedy.
            cache_tokens: positions of the cache.
            batch_tokens: positions of one forward pass.
        """
        # Values other than 1, since transformers makes no per-request processor for a setting without effect.
        drawn = {"do_sample": True, "temperature": 0.5, "top_p": 0.5, "top_k": 0} if sampling else {"do_sample": False}
        end = -1 if tokens.eos_token_id is None else tokens.eos_token_id  # -1: none
        ids: dict[str, Any] = {"eos_token_id": end, "pad_token_id": tokens.pad_token_id}
        config = ContinuousBatchingConfig(
            page_size=PAGE,
            num_blocks=-(-cache_tokens // PAGE),
            max_batch_tokens=batch_tokens,
            return_logprobs=True,
            per_request_processors=sampling,
            auto_switch_to_flash=self.dtype in (torch.float16, torch.bfloat16),  # flash attention supports these only
        )
        settings = GenerationConfig(**ids, **drawn)
        with torch.no_grad():
            return SampledBatch(self, settings, config) if sampling else self.init_continuous_batching(settings, config)
