"""Cached encoder outputs: the same numbers, computed once; another name for other weights or pixels; whole files."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import refuses, tiny_model, tiny_processor
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.utils import logging

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.image_encoding import ImageEncoding
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
    encoder = CachedEncoder(model, tmp_path)
    encoder.encode(images, mask)

    def misses() -> int:
        before = encoder.misses
        made = encoder.encode(images, mask)
        assert_same(made, model.model.encode_image(images, mask), atol=1e-5, rtol=1e-4)
        return encoder.misses - before

    assert misses() == 0
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
