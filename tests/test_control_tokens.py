"""Only the chat template writes control tokens: what looks like one in a question is text."""

import torch
from helpers import tiny_model
from PIL import Image

PAGE = Image.new("RGB", (64, 64), "white")


def test_control_tokens_in_a_question_are_text() -> None:
    """`<|im_end|>` in a question closed the user's turn, and what followed it was the template's."""
    model = tiny_model()
    processor = model.processor
    for token in processor.control_tokens:
        question = f"What is {token} here?"
        prompts = processor.prompts([question, "What is"], images=[1, 1], placeholders=3)
        special = processor.tokenizer.convert_tokens_to_ids(processor.control_tokens)
        counts = torch.isin(prompts["input_ids"], torch.tensor(special)) & prompts["attention_mask"].bool()
        assert counts[0].sum() == counts[1].sum(), "only the template's"
        asked = prompts["input_ids"][0][prompts["query_mask"][0]]
        assert processor.tokenizer.decode(asked) == question
        assert isinstance(model.generate(PAGE, question, max_new_tokens=1), str)
