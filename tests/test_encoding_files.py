"""An encoding in a file is what it was, bit for bit, and only the model that made it reads it."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_model
from test_documents import paged
from test_views import PAGE, SMALL
from torch import Tensor

from arr_coc.modeling.vision_tower import ImageEncoding

QUESTION = "What is the total?"
LARGE = {"max_position_embeddings": 4096}


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
    model = tiny_model(text=LARGE, bridge={"kind": bridge, "num_heads": 2, "num_layers": 1})
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


def test_another_model_refuses_it(tmp_path: Path) -> None:
    model, path = tiny_model(), tmp_path / "seen.safetensors"
    model.encode_image(SMALL).save(path, model)
    with torch.no_grad():
        model.model.vision_tower.saccade_projection.weight[0, 0] += 1
    with pytest.raises(ValueError, match="expected an encoding of this model"):
        ImageEncoding.load(path, model)


def test_other_files_are_refused(tmp_path: Path) -> None:
    model = tiny_model()
    with pytest.raises(FileNotFoundError, match=r"expected a file that ImageEncoding\.save wrote; got a missing path"):
        ImageEncoding.load(tmp_path / "none", model)
    (tmp_path / "broken").write_bytes(b"x" * 99)
    with pytest.raises(ValueError, match=r"expected a file that ImageEncoding\.save wrote; got a broken one"):
        ImageEncoding.load(tmp_path / "broken", model)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=re.escape("expected format arr_coc.encoding.1; got 'pt'")):
        ImageEncoding.load(tmp_path / "model" / "model.safetensors", model)


def test_an_encoding_that_waits_for_questions_is_not_saved(tmp_path: Path) -> None:
    model = tiny_model(text=LARGE)
    with pytest.raises(ValueError, match="tiles: expected an encoding that holds all of its tiles"):
        model.encode_image(PAGE, tiles="asked").save(tmp_path / "seen", model)
