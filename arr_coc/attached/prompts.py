"""Writing prompts as a published model's processor does, for images that were processed before.

Notation: S tokens of a prompt, N of them of images, L tokens of a question.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .encoding import EncodedPrompt
from .families import Family
from .placing import PlainPrompt


class PromptWriter:
    """Questions about images -> token ids.

    Args:
        family: of the model, with its processor.
    """

    def __init__(self, family: Family) -> None:
        self.family = family
        self.processor = family.processor
        self.model = family.model

    def chat(self, images: int, question: str) -> str:
        """The prompt's text, with one placeholder for each image.

        Raises:
            ValueError: a chat template without a place for images.
        """
        content = [*({"type": "image"} for _ in range(images)), {"type": "text", "text": question}]
        chat = [{"role": "user", "content": content}]
        text = self.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        if (count := text.count(self.processor.image_token)) != images:
            raise ValueError(f"chat template: expected a place for each of {images} images; got {count}")
        return text

    def processed(self, images: Sequence[Sequence[Any]]) -> tuple[dict[str, Any], list[list[str]]]:
        """What the processor makes of the images of prompts, and what it writes in each image's place."""
        texts = [self.chat(len(shown), "?") for shown in images]
        inputs = self.processor(
            text=texts,
            images=[list(shown) for shown in images],
            padding=True,
            return_tensors="pt",
            return_text_replacement_offsets=True,
        )
        offsets = inputs.pop("text_replacement_offsets")
        return inputs.to(self.model.device), [[part["replacement"] for part in own] for own in offsets]

    def plain(self, prompt: EncodedPrompt, question: str) -> PlainPrompt:
        """The prompt as the plain model gets it."""
        chat = self.chat(len(prompt.texts), question)
        text = self.processor.get_text_with_replacements([chat], prompt.texts)[0][0]
        bos = self.processor.tokenizer.bos_token
        ids = self._ids(text, special=bos is None or not text.startswith(bos))
        positions = self.family.positions(ids, prompt.inputs).to(ids.device)
        return PlainPrompt(ids, ids == self.model.config.image_token_id, positions)

    def words(self, question: str) -> Tensor:
        """[L] the question's own tokens."""
        return self._ids(question, special=False)

    def _ids(self, text: str, special: bool) -> Tensor:
        ids = self.processor.tokenizer(text, add_special_tokens=special).input_ids
        return torch.tensor(ids, dtype=torch.long, device=self.model.device)
