"""An encoding in a file is what it was, bit for bit, and only the model that made it reads it."""

import re
from copy import deepcopy
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, init_empty_weights
from helpers import LARGE_TEXT, SMALL, refuses, tiny_model
from helpers import SCAN as PAGE
from tiny_pdf import paged
from torch import Tensor

from arr_coc.adapters import adapt, scorer_lora_config
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.pretrained import model_identity

QUESTION = "What is the total?"


def flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [tensor for part in value for tensor in flat(part)]
    if hasattr(value, "windows"):
        return [tensor for part in fields(value) for tensor in flat(getattr(value, part.name))]
    return []


CASES: dict[str, Any] = {"one image": SMALL, "a page in tiles": PAGE, "pages": paged("TIFF"), "images": [SMALL, SMALL]}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("bridge", ["linear", "transformer"])
def test_what_is_loaded_is_what_was_saved(case: str, bridge: str, tmp_path: Path) -> None:
    model = tiny_model(text=LARGE_TEXT, bridge={"kind": bridge, "num_heads": 2, "num_layers": 1})
    encoding, path = model.encode_image(CASES[case]), tmp_path / "pages.safetensors"
    encoding.save(path, model)
    loaded = ImageEncoding.load(path, model)
    for part in fields(ImageEncoding):
        held, again = flat(getattr(encoding, part.name)), flat(getattr(loaded, part.name))
        assert len(held) == len(again), part.name
        assert all(torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(held, again, strict=True))
    for name in ("documents", "source_sizes", "pool", "bypass"):
        assert getattr(loaded, name) == getattr(encoding, name)
    answers = [model.generate(seen, QUESTION, return_fetch=True) for seen in (encoding, loaded)]
    single = [answer if isinstance(answer, list) else [answer] for answer in answers]
    for one, other in zip(*single, strict=True):
        assert (one.text, one.probability, one.sources) == (other.text, other.probability, other.sources)


def test_a_model_that_has_changed_since_is_another_model(tmp_path: Path) -> None:
    """A copy with other weights answered from the old features, and an adapted language model from its old prefix."""
    model, path = tiny_model(), tmp_path / "seen.safetensors"
    seen, copied = model.encode_image(SMALL), deepcopy(model)
    seen.save(path, model)
    assert copied.generate(seen, QUESTION) == model.generate(seen, QUESTION)
    with torch.no_grad():
        copied.model.vision_tower.saccade_projection.weight[0, 0] += 1
    for changed in (copied, deepcopy(model).to(torch.bfloat16)):
        refuses("expected an encoding of this model", changed.generate, seen, QUESTION)
        refuses("expected an encoding of this model", ImageEncoding.load, path, changed)
    token = model.model.token
    with torch.no_grad():
        next(model.model.fetcher.parameters()).add_(1)
    assert model.model.token == token, "fine-tuning the scorer leaves encodings valid"
    with torch.no_grad():
        for weight in model.model.language_model.parameters():
            weight.mul_(1.5)
    old, new = (model.generate(page, QUESTION, return_fetch=True) for page in (seen, SMALL))
    assert old.text == new.text and old.probability == pytest.approx(new.probability, rel=1e-3)


def test_other_files_and_what_cannot_be_saved_are_refused(tmp_path: Path) -> None:
    model = tiny_model()
    with pytest.raises(FileNotFoundError, match=r"expected a file that ImageEncoding\.save wrote; got a missing path"):
        ImageEncoding.load(tmp_path / "none", model)
    (tmp_path / "broken").write_bytes(b"x" * 99)
    with pytest.raises(ValueError, match=r"expected a file that ImageEncoding\.save wrote; got a broken one"):
        ImageEncoding.load(tmp_path / "broken", model)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=re.escape("expected format arr_coc.encoding.1; got 'pt'")):
        ImageEncoding.load(tmp_path / "model" / "model.safetensors", model)
    model = tiny_model(text=LARGE_TEXT)
    with pytest.raises(ValueError, match="tiles: expected an encoding that holds all of its tiles"):
        model.encode_image(PAGE, tiles="asked").save(tmp_path / "seen", model)
    with pytest.raises(FileNotFoundError, match=r"none/seen: expected a path in a folder that exists"):
        model.encode_image(SMALL).save(tmp_path / "none" / "seen", model)


def test_a_model_whose_adapters_are_asked_otherwise_refuses_it(tmp_path: Path) -> None:
    model, path = tiny_model(), tmp_path / "seen.safetensors"
    adapted = adapt(model, "bridge", r=2)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    model.encode_image(SMALL).save(path, model)
    assert torch.equal(ImageEncoding.load(path, model).tokens, model.encode_image(SMALL).tokens)
    with adapted.disable_adapter(), pytest.raises(ValueError, match="expected an encoding of this model"):
        ImageEncoding.load(path, model)
    adapted.add_adapter("other", scorer_lora_config(model, r=2, part="bridge"))
    adapted.set_adapter("other")
    refuses("expected an encoding of this model", ImageEncoding.load, path, model)


@pytest.mark.parametrize(("case", "where"), [*product(CASES, ["disk"]), (next(iter(CASES)), "cpu")])
def test_offloaded_weights_encode_write_and_read_the_same(case: str, where: str, tmp_path: Path) -> None:
    tiny_model(text=LARGE_TEXT).save_pretrained(tmp_path / "model")
    model, other = (ArrCocForConditionalGeneration.from_pretrained(tmp_path / "model").eval() for _ in range(2))
    model.processor = other.processor = tiny_model().processor
    device = torch.device("cpu")
    disk_offload(other, tmp_path / "weights", device) if where == "disk" else cpu_offload(other, device)
    assert model_identity(other.model) == model_identity(model.model)
    seen = [each.encode_image(CASES[case]) for each in (model, other)]
    seen[1].save(tmp_path / "seen.safetensors", other)
    seen[1] = ImageEncoding.load(tmp_path / "seen.safetensors", model)
    assert all(torch.equal(*pair) for pair in zip(*(flat(one.tokens) for one in seen), strict=True))
    assert model.generate(seen[0], QUESTION) == other.generate(seen[0], QUESTION) == model.generate(seen[1], QUESTION)
    with init_empty_weights():
        nowhere = ArrCocForConditionalGeneration(model.config)
    refuses("expected a weight; got one without a value", model_identity, nowhere.model)
