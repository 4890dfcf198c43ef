"""Releases of transformers: the cache by either name, and what an older one saved."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import PAGE, QUESTION, prompt, tiny_model
from transformers import DynamicCache

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.pretrained import CACHE, OLD_NAME

pytestmark = pytest.mark.versions

SAVED = Path(__file__).parent / "fixtures" / "saved_5_23"
"""What `python tests/save_with_this_release.py tests/fixtures/saved_5_23` wrote under transformers 5.23.0."""


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


# ---- the cache, which was `past_key_values` before 5.24
def empty(model: Any) -> DynamicCache:
    return DynamicCache(config=model.config.text_config)


def deprecated(name: str) -> AbstractContextManager[Any]:
    """From 5.24 on transformers itself warns of the older name, of which 5.23 knows no other."""
    if name == CACHE or CACHE == OLD_NAME:
        return nullcontext()
    return pytest.warns(FutureWarning, match="`past_key_values` is deprecated .* Use `cache` instead")


@pytest.mark.parametrize("name", ["cache", OLD_NAME])
@torch.no_grad()
def test_forward_takes_and_gives_the_cache_by_either_name(name: str, model: Any) -> None:
    inputs, cache = prompt(model, (PAGE, QUESTION)), empty(model)
    with deprecated(name):
        output = model(**inputs, **{name: cache})
    assert torch.equal(output.logits, model(**inputs, use_cache=False).logits)
    assert output.cache is output[name] is getattr(output, name) is output.get(name) is cache and name in output
    assert cache.get_seq_length() == inputs["input_ids"].shape[1]
    assert list(output.keys())[:2] == ["logits", "cache"]
    assert getattr(model(**inputs, use_cache=False), name) is None
    with deprecated(name):
        states = model.model(inputs_embeds=model.get_input_embeddings()(torch.tensor([[7]])), **{name: cache})
    assert getattr(states, name) is cache and cache.get_seq_length() == inputs["input_ids"].shape[1] + 1


@pytest.mark.parametrize("name", ["cache", OLD_NAME])
@pytest.mark.parametrize("form", ["question", "inputs"])
def test_generate_takes_the_cache_by_either_name(name: str, form: str, model: Any) -> None:
    asked = {"image": PAGE, "question": QUESTION} if form == "question" else dict(prompt(model, (PAGE, QUESTION)))
    expected, cache = model.generate(**asked), empty(model)
    with deprecated(name):
        answer = model.generate(**asked, **{name: cache})
    assert answer == expected if form == "question" else torch.equal(answer, expected)
    assert cache.get_seq_length() > 0
    with deprecated(name), pytest.raises(ValueError, match="cache: expected an empty cache beside images .*; got one"):
        model.generate(**asked, **{name: cache})


# ---- what 5.23 saved
def test_a_checkpoint_and_an_encoding_that_5_23_saved_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoding named the release among what makes a model, and each release refused those of all others."""
    model = ArrCocForConditionalGeneration.from_pretrained(SAVED)
    assert json.loads((SAVED / "config.json").read_text())["transformers_version"].startswith("5.23.")
    kept, anew = ImageEncoding.load(SAVED / "page.safetensors", model), model.encode_image(SAVED / "page.png")
    assert torch.allclose(kept.features, anew.features, atol=1e-4)
    assert torch.allclose(kept.tokens, anew.tokens, atol=1e-4)
    answers = json.loads((SAVED / "answers.json").read_text())
    assert {question: model.generate(kept, question) for question in answers} == answers
    assert len(set(answers.values())) > 1
