"""Cached encoder outputs: the same numbers, computed once; another name for other weights or pixels; whole files."""

import re
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import cpu_offload, disk_offload, init_empty_weights
from helpers import LARGE_TEXT, SMALL, prompt, refuses, tiny_model, tiny_processor
from helpers import SCAN as PAGE
from safetensors.torch import load_file
from tiny_pdf import paged
from torch import Tensor, nn
from transformers.utils import logging

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.adapters import adapt, scorer_lora_config
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.pretrained import model_identity
from arr_coc.training.cache import CachedEncoder
from arr_coc.training.phases import AllocatorPhase, train_phase


def pixels(count: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    """pixel_values [P, 3, 128, 128] and patch_mask [P, 256] whose last row is padding."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.ones(count, 256, dtype=torch.bool)
    mask[:, -16:] = False
    return torch.rand(count, 3, 128, 128, generator=generator) * 2 - 1, mask


def frozen(**changes: Any) -> Any:
    return tiny_model(**changes).requires_grad_(False)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*.pt"))


def assert_same(made: ImageEncoding, expected: ImageEncoding, **tolerance: float) -> None:
    for field in fields(ImageEncoding):
        first, second = getattr(made, field.name), getattr(expected, field.name)
        if first is None or second is None:
            assert first is second, field.name
        else:
            torch.testing.assert_close(first, second, **tolerance, msg=lambda text, n=field.name: f"{n}: {text}")


VARIANTS: dict[str, dict[str, Any]] = {
    "linear": {},
    "mask compressor": {"vision": {"compressor": "mask"}},
    "transformer bridge": {"bridge": {"kind": "transformer"}},
    "rows": {"bridge": {"layout": "rows"}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_second_time_nothing_runs_and_the_numbers_are_the_same(variant: str, tmp_path: Path) -> None:
    model = frozen(**VARIANTS[variant])
    calls: list[int] = []
    model.model.vision_tower.grid_encoder.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0])))
    images, mask = pixels()
    expected = model.model.encode_image(images, mask)
    encoder = CachedEncoder(model, tmp_path)
    for _ in range(2):
        assert_same(encoder.encode(images, mask), expected, atol=1e-5, rtol=1e-4)
    again = CachedEncoder(model, tmp_path)  # another run
    assert_same(again.encode(images.flip(0), mask).select(torch.tensor([2, 1, 0])), expected, atol=1e-5, rtol=1e-4)
    assert calls == [3, 3] and (encoder.hits, encoder.misses, again.hits, again.misses) == (3, 3, 3, 0)
    assert len(files(tmp_path)) == 3


def test_what_changes_the_output_is_not_found_again(tmp_path: Path) -> None:
    model = frozen()
    images, mask = pixels(1)

    def misses() -> int:
        encoder = CachedEncoder(model, tmp_path)
        made = encoder.encode(images, mask)
        assert_same(made, model.model.encode_image(images, mask), atol=1e-5, rtol=1e-4)
        return encoder.misses

    assert misses() == 1 and misses() == 0
    with torch.no_grad():
        model.model.vision_tower.grid_encoder.neck.conv1.weight.mul_(1.5)
    assert misses() == 1 and misses() == 0
    with torch.no_grad():
        next(model.model.bridge.parameters()).mul_(1.5)
    assert misses() == 1
    images = images + 0.01
    assert misses() == 1
    mask = torch.ones_like(mask)
    assert misses() == 1
    with torch.no_grad():
        next(model.model.fetcher.parameters()).mul_(1.5)
        model.model.vision_tower.saccade_projection.weight.mul_(1.5)
    assert misses() == 0  # neither is a part of the encoding


def test_a_trained_grid_encoder_is_refused(tmp_path: Path) -> None:
    model = frozen()
    model.model.vision_tower.grid_encoder.neck.conv1.requires_grad_(True)
    with pytest.raises(ValueError, match="expected a frozen grid encoder; got one that trains neck.conv1.weight"):
        CachedEncoder(model, tmp_path).encode(*pixels(1))
    model.requires_grad_(False)
    model.model.bridge.dropout = nn.Dropout(0.1)
    model.train()
    refuses("without dropout", CachedEncoder(model, tmp_path).encode, *pixels(1))


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_truncated_file_is_made_again(keep: int, tmp_path: Path) -> None:
    logging.set_verbosity_error()
    model = frozen()
    images, mask = pixels(1)
    encoder = CachedEncoder(model, tmp_path)
    expected = encoder.encode(images, mask)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    assert_same(encoder.encode(images, mask), expected)
    assert encoder.misses == 2 and path.read_bytes() == whole


def test_writers_at_once_read_whole_files_only(tmp_path: Path) -> None:
    images, mask = pixels(4)
    encoders = [CachedEncoder(frozen(), tmp_path) for _ in range(4)]
    expected = frozen().model.encode_image(images, mask).features

    def encode_often(seed: int) -> bool:
        encoder = encoders[seed]
        order = [torch.randperm(4, generator=torch.Generator().manual_seed(10 * seed + turn)) for turn in range(8)]
        made = [(encoder.encode(images[index], mask).features, expected[index]) for index in order]
        return all(torch.allclose(first, second, atol=1e-5) for first, second in made)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(encode_often, range(4)))
    assert len(files(tmp_path)) == 4 and not list(tmp_path.glob("*/*.tmp"))


def test_a_phase_with_a_cache_trains_the_same_weights(checkpoint: Path, tmp_path: Path) -> None:
    data = {"format": "rendered", "pages": 2, "questions": 1, "size": 128, "split": "train"}
    made = {}
    for folder in (None, "encoded"):
        model = ArrCocForConditionalGeneration.from_pretrained(checkpoint)
        chosen: dict[str, Any] = {"trained": ("scorer",), "data": data, "cache": folder}
        phase = AllocatorPhase(**chosen, steps=3, warmup=1, batch_size=2, evaluate_every=9)
        out = tmp_path / f"run {folder}"
        trained = train_phase(model, tiny_processor(), phase, out, device=torch.device("cpu"), root=tmp_path)
        made[folder] = load_file(trained / "model.safetensors")
    assert len(files(tmp_path / "encoded")) == 2
    before = load_file(checkpoint / "model.safetensors")
    moved = {name for name, weight in made[None].items() if not weight.equal(before[name])}
    assert any("scorers" in name for name in moved)
    for name, weight in made[None].items():
        torch.testing.assert_close(made["encoded"][name], weight, atol=1e-5, rtol=1e-4)


# ---- An encoding in a file is what it was, bit for bit, and only the model that made it reads it
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
@pytest.mark.versions
def test_offloaded_weights_encode_write_and_read_the_same(case: str, where: str, tmp_path: Path) -> None:
    """With every parameter on the meta device the images were sent there: "Cannot copy out of meta tensor"."""
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
    inputs = prompt(model, (SMALL, QUESTION))
    assert torch.equal(model.generate(**inputs), other.generate(**inputs))
    with init_empty_weights():
        nowhere = ArrCocForConditionalGeneration(model.config)
    refuses("expected a weight; got one without a value", model_identity, nowhere.model)
