"""Asks a vLLM server that has the language model only: this client embeds images and questions, the server answers.

    arr-coc export-language-model MODEL OUT
    vllm serve OUT --enable-prompt-embeds --dtype float32

Each question is one chat message with one part of type "prompt_embeds": the prompt between the template's first and
last control tokens, which the server adds. It is one part, since some templates put a line break between parts. The
server's prefix cache compares the bits of embeddings, block by block. The base tokens of an image are the same for
every question, so the server prefills them once.

Notation: S tokens of a prompt, D language-model width.
"""

import base64
from collections.abc import Sequence
from functools import cached_property
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from ..modeling.answers import split_thinking
from ..modeling.generation import AnswerGenerator, QuestionBatch, take_choices
from ..modeling.image_encoding import ImageEncoding
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from ..modeling.processing_arr_coc import Turn


class VllmClient:
    """Asks about images through a server of the language model.

    Args:
        model: with its processor. Its language model only embeds tokens, unless the strategy is "attention".
        client: OpenAI's client of the server.
        name: the model's name on the server; None: the first one that the server lists.

    Raises:
        ValueError: the model's prompts are more than embeddings.

    Example:
        >>> answers = VllmClient(model, OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"))
        >>> answers.ask(answers.encode("receipt.png"), "What is the total?")
    """

    def __init__(self, model: ArrCocForConditionalGeneration, client: Any, name: str | None = None) -> None:
        model.config.require_embeds_alone("VllmClient")
        self.answer_generator, self.client, self._name = AnswerGenerator(model, model.processor), client, name

    @cached_property
    def name(self) -> str:
        """The model's name on the server."""
        return self._name or self.client.models.list().data[0].id

    def encode(self, image: Any) -> ImageEncoding:
        """Encodes an image for all questions, without a prefill of the language model. Raises ValueError: the image
        cannot be read."""
        return self.answer_generator.encode(image, prefix=False)

    def ask(self, encoding: ImageEncoding, question: str, **options: Any) -> str:
        """The greedy answer, as from `generate`; `options` are those of `prompt_embeds`.

        Raises:
            ValueError: an invalid choice or prompt.
            openai.OpenAIError: the server did not answer.
        """
        completion = self.client.chat.completions.create(**self.body(encoding, question, **options))
        return split_thinking((completion.choices[0].message.content or "").strip())[1]

    def body(self, encoding: ImageEncoding, question: str, *, max_tokens: int = 64, **options: Any) -> dict[str, Any]:
        """The request that `ask` sends."""
        saved = BytesIO()  # vLLM loads the tensor with `weights_only`
        embeds = self.prompt_embeds(encoding, question, max_tokens=max_tokens, **options)
        torch.save(embeds.cpu().clone(), saved)  # saving a view would save its whole storage
        part = {"type": "prompt_embeds", "data": base64.b64encode(saved.getvalue()).decode()}
        messages = [{"role": "user", "content": [part]}]
        return {"model": self.name, "messages": messages, "max_tokens": max_tokens, "temperature": 0.0}

    @torch.no_grad()
    def prompt_embeds(
        self,
        encoding: ImageEncoding,
        question: str,
        *,
        history: Sequence[Turn] = (),
        max_tokens: int = 64,
        **choices: Any,
    ) -> Tensor:
        """The prompt's embeddings [S, D], without the tokens that the server's template adds around it.

        `history`: as in `generate`; `choices` are fields of FetchChoices.

        Raises:
            ValueError: an invalid choice or prompt, or the template adds other tokens around it.
        """
        fetch_choices, unknown = take_choices(choices)
        if unknown:
            raise TypeError(f"ask: expected fields of FetchChoices; got {', '.join(sorted(unknown))}")
        resolved = self.answer_generator.model.model.fetcher.resolve(fetch_choices)
        settings = {"max_new_tokens": max_tokens}
        batch = QuestionBatch(encoding, [[*range(len(encoding))]], [question], resolved, history, settings)
        prompt = self.answer_generator.embed(batch)
        inside = prompt.inputs["attention_mask"][0].bool()
        ids, embeds = prompt.inputs["input_ids"][0][inside].tolist(), prompt.embeds[0][inside]
        head, tail = self._around
        if ids[: len(head)] != head or ids[len(ids) - len(tail) :] != tail:
            expected = "one that writes the same before and after every conversation"
            raise ValueError(f"chat template: expected {expected}; got another")
        return embeds[len(head) : len(ids) - len(tail)]

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """Tokens that the template adds before and after a user's only message."""
        processor = self.answer_generator.processor
        block = {"type": "text", "text": processor.image_token}
        messages: list[Any] = [{"role": "user", "content": [block]}]
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
        with processor.tokenizing.lock:
            head, tail = processor.tokenizer(text.split(processor.image_token), add_special_tokens=False)["input_ids"]
        return list(head), list(tail)
