"""Releases of transformers: the cache by either name, what an older one saved, and a word about a newer one."""

import json
import re
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_model
from lone import run_alone
from test_modeling import PAGE, QUESTION, prompt
from transformers import DynamicCache
from transformers.utils import logging

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.transformers_releases import CACHE, OLD_NAME, TESTED, warn_of_later_release
from arr_coc.publishing.building import build

pytestmark = pytest.mark.versions

ROOT = Path(__file__).parents[1]
SAVED = Path(__file__).parent / "fixtures" / "saved_5_23"
"""What `python tests/save_with_this_release.py tests/fixtures/saved_5_23` wrote under transformers 5.23.0."""
SAID = 'ARR-COC is tested up to transformers 5.24; if something fails with {}, try pip install "transformers<5.25".'


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


# ---- a newer one


def test_the_newest_release_that_is_tested_is_the_one_that_is_installed_for_tests() -> None:
    pinned = re.search(r"^transformers==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None and tuple(map(int, pinned.groups())) == TESTED == (5, 24)


@pytest.mark.parametrize(
    ("release", "said"), [("5.23.0", ""), ("5.24.3", ""), ("5.25.0.dev0", SAID), ("6.0.0rc1", SAID), ("unknown", "")]
)
def test_a_later_minor_release_is_said_once_in_one_line(
    release: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    logging.warning_once.cache_clear()
    monkeypatch.setattr(logging.get_logger("transformers"), "warning", heard.append)
    warn_of_later_release(release)
    warn_of_later_release(release)
    assert heard == ([said.format(release)] if said else [])


def test_importing_arr_coc_says_it() -> None:
    """And transformers, which was imported before, knows its classes."""
    code = "import peft, transformers; transformers.__version__ = '5.25.0'; import arr_coc\n"
    code += "assert transformers.AutoConfig.for_model('arr_coc').model_type == 'arr_coc'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.removeprefix("[transformers] ") == SAID.format("5.25.0") + "\n" and done.stdout == ""


def test_so_does_remote_code(checkpoint: Path, picture: Path, tmp_path: Path) -> None:
    code = """
import logging, transformers
transformers.__version__ = "5.25.0"
logging.getLogger("transformers").handlers[0].setStream(sys.stdout)
AutoProcessor.from_pretrained(source, trust_remote_code=True)
AutoModel.from_pretrained(source, trust_remote_code=True)
"""
    said = run_alone(code, build(checkpoint, tmp_path / "built"), picture, home=tmp_path)
    assert said.count("ARR-COC") == 1 and SAID.format("5.25.0") in said
