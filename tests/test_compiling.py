"""torch.export and torch.compile without a break: with a stated budget and encoded images no data decides."""

import pytest
import torch
from graphs import Asking, tokens_of, vision
from helpers import PAGE, prompt, tiny_model


@pytest.mark.parametrize("strategy", ["realizer", "clip_query", "none"])
@torch.no_grad()
@pytest.mark.versions
def test_an_exported_graph_gives_the_logits(strategy: str) -> None:
    """`int(per_row.sum())`, which counts placeholders, stopped it."""
    model = tiny_model()
    budget = 0 if strategy == "none" else model.config.fetcher_config.budget
    asking = Asking(model, model.model.encode_image(**vision(model)), strategy=strategy, budget=budget)
    first, *others = (tokens_of(model, [text, text], strategy) for text in ("What is it?", "Who was it?"))
    program = torch.export.export(asking, first).module()
    for inputs in (first, *others):
        assert torch.allclose(program(*inputs), asking(*inputs), atol=1e-5)
    assert not torch.allclose(asking(*first), asking(*others[0]), atol=1e-3)


@torch.no_grad()
def test_a_question_compiles_without_a_break() -> None:
    model = tiny_model()
    encoding = model.model.encode_image(**vision(model))
    asking = Asking(model, encoding, strategy="realizer", budget=model.config.fetcher_config.budget)
    inputs = tokens_of(model, ["What is it?", "Who?"])
    torch._dynamo.reset()
    compiled = torch.compile(asking, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(*inputs), asking(*inputs), atol=1e-5)
    # As many patches as configured were fetched, and the first of them put in: other logits, and no error.
    model = tiny_model()
    inputs = {**prompt(model, (PAGE, "What is it?"), budget=3), "pixel_values": None, "patch_mask": None}
    inputs["image_encoding"] = model.encode_image(PAGE)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    assert torch.allclose(compiled(**inputs).logits, model(**inputs).logits, atol=1e-4)
