"""The model without its head, as trainers call it that bring a head of their own: it sees, it fetches, it learns."""

from typing import Any

import pytest
import torch
from helpers import CARD, PAGE, QUESTION, prompt, refuses, tiny_model, with_markers
from peft import LoraConfig, get_peft_model
from torch import Tensor

ADAPTERS = {
    "all linear layers": {"target_modules": "all-linear"},
    "attention": {"target_modules": ["q_proj", "v_proj", "query", "value"]},
}


def answered(model: Any, answer: str) -> tuple[dict[str, Any], Tensor]:
    """A question's batch with an answer behind the prompt, without a query_mask; the true mask of its question."""
    inputs = dict(prompt(model, (PAGE, QUESTION)))
    behind = model.processor.tokenizer(answer + "<|im_end|>", add_special_tokens=False, return_tensors="pt").input_ids
    question = torch.cat((inputs.pop("query_mask"), torch.zeros_like(behind).bool()), 1)
    inputs["input_ids"] = torch.cat((inputs["input_ids"], behind), 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return inputs, question


def questions_read(model: Any, inputs: dict[str, Any]) -> Tensor:
    """What the scorer read of the questions [I, L, D], padding 0."""
    output = model.model(**inputs)
    context = output.prompt.context
    return context.query * context.query_mask[..., None]


def loss_of(base: Any, head: Any, batch: dict[str, Any], labels: Tensor) -> Tensor:
    """Cross-entropy of a base model's hidden states through a head, as TRL's trainers compute it."""
    logits = head(base(**batch).last_hidden_state)[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize("adapter", [None, *ADAPTERS])
def test_the_base_model_sees_the_image_and_teaches_the_scorer(adapter: str | None) -> None:
    """`pixel_values` went unread into **kwargs: black images gave the same loss, and the scorer got no gradient."""
    model = tiny_model().train()
    if adapter is not None:
        get_peft_model(model, LoraConfig(r=2, task_type="CAUSAL_LM", **ADAPTERS[adapter])).train()
    batch = dict(prompt(model, (PAGE, QUESTION), (CARD, "Who?")))
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    black = {**batch, "pixel_values": torch.full_like(batch["pixel_values"], -1.0)}
    loss = loss_of(model.base_model, model.lm_head, batch, labels)
    assert abs(loss - loss_of(model.base_model, model.lm_head, black, labels)) > 1e-3
    loss.backward()
    scorer = model.model.fetcher.scorers["realizer"]
    gradients = [weight.grad.norm() for weight in scorer.parameters() if weight.grad is not None]
    assert gradients and sum(gradients) > 0


def test_the_base_models_hidden_states_are_those_behind_the_logits() -> None:
    model = tiny_model()
    batch = dict(prompt(model, (PAGE, QUESTION), (CARD, "Who?")))
    with torch.no_grad():
        assert torch.equal(model.lm_head(model.base_model(**batch).last_hidden_state), model(**batch).logits)


@pytest.mark.parametrize("part", ["base model", "model"])
def test_an_unknown_argument_is_refused(part: str) -> None:
    model = tiny_model()
    batch = dict(prompt(model, (PAGE, QUESTION)))
    with pytest.raises(TypeError, match=r"expected its own arguments or the language model's; got \['image_siz"):
        (model.base_model if part == "base model" else model)(**batch, image_sizes=torch.ones(1, 2))


# ---- the question, where no mask of it comes
@torch.no_grad()
@pytest.mark.parametrize("came", ["no mask", "labels everywhere", "the prompt's mask"])
def test_answers_do_not_leak_into_the_question(came: str) -> None:
    """TRL's collators give the mask of the prompt alone, its other trainers none, and its heads keep the labels."""
    model = with_markers()
    read = []
    for answer in ("12.50", "a longer answer than that"):
        inputs, question = answered(model, answer)
        if came == "labels everywhere":
            inputs["labels"] = inputs["input_ids"]
        if came == "the prompt's mask":
            inputs["query_mask"] = prompt(model, (PAGE, QUESTION))["query_mask"]
        read.append(questions_read(model, inputs)[:, : int(question.sum())])
        expected = questions_read(model, {**inputs, "query_mask": question})
        assert torch.equal(read[-1], expected[:, : int(question.sum())])
        assert int(model.model(**inputs).prompt.context.query_mask.sum()) == int(question.sum())
    assert torch.equal(*read)


def test_a_mask_of_other_prompts_is_refused_even_with_markers() -> None:
    model = with_markers()
    inputs, _ = answered(model, "12.50")
    short = prompt(model, (PAGE, QUESTION))["query_mask"]
    for mask in (short.repeat(2, 1), torch.cat((short, short), 1)):
        refuses("query_mask: expected shape", model.model, **inputs, query_mask=mask)
