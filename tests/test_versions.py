"""Versions of a scorer: promoted, stepped back from, whole or absent; and what a fetcher does with one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_model

from arr_coc.adapters import adapt, save_adapter
from arr_coc.learning.versions import CHECKPOINT, DECISION, Versions, adapted_fetcher
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration


def write_adapter(folder: Path, *, part: str = "scorer", seed: int = 0) -> Path:
    """An adapter of `tiny_model()` that changes what is fetched."""
    adapted = adapt(tiny_model(), (part,), r=2)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    save_adapter(adapted, folder)
    return folder


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"))


@pytest.fixture(scope="module")
def model() -> ArrCocForConditionalGeneration:
    return tiny_model()


def test_each_promotion_is_a_version_and_one_step_leads_back(adapter: Path, tmp_path: Path) -> None:
    versions = Versions(tmp_path / "versions")
    assert versions.current().version == CHECKPOINT and versions.adapter(CHECKPOINT) is None
    with pytest.raises(ValueError, match="expected a version before checkpoint; got none"):
        versions.step_back()
    assert [versions.promote(adapter, {"number": number}) for number in range(3)] == ["v0001", "v0002", "v0003"]
    assert versions.names() == [CHECKPOINT, "v0001", "v0002", "v0003"]
    folder = versions.adapter("v0003")
    assert folder is not None and {path.name for path in folder.iterdir()} >= {DECISION, "adapter_model.safetensors"}
    assert versions.step_back() == versions.current().version == "v0002"
    with pytest.raises(ValueError, match="expected a version before v0002; got none"):
        versions.step_back()
    assert versions.promote(adapter, {}) == "v0004"
    assert versions.step_back() == "v0002"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("{}", None),
        ('{"version": 3}', "expected version and previous; got"),
        ('{"version": "checkpoint", "x": 1}', "expected version and previous; got"),
        ('{"version": "v0009"}', "version: expected one of checkpoint; got 'v0009'"),
        ('{"version": "../x"}', "version: expected one of checkpoint; got '../x'"),
    ],
)
def test_damaged_versions_are_refused(text: str, message: str | None, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions/current.json").write_text(text)
    if message is None:
        assert Versions(tmp_path / "versions").current().version == CHECKPOINT
    else:
        with pytest.raises(ValueError, match=message):
            Versions(tmp_path / "versions").current()


def test_a_version_fetches_as_its_adapter_does(adapter: Path, model: Any, picture: Path) -> None:
    from peft import PeftModel

    own = model.model.fetcher
    before = model.generate(picture, "What is the fee?", return_fetch=True)
    weights = {name: tensor.clone() for name, tensor in own.state_dict().items()}
    try:
        model.model.fetcher = adapted_fetcher(own, adapter)
        after = model.generate(picture, "What is the fee?", return_fetch=True)
    finally:
        model.model.fetcher = own
    with_peft = PeftModel.from_pretrained(tiny_model(), str(adapter)).eval().get_base_model()
    expected = with_peft.generate(picture, "What is the fee?", return_fetch=True)
    assert torch.allclose(after.fetch.scores, expected.fetch.scores, rtol=1e-4, atol=1e-5)
    assert torch.equal(after.fetch.indices, expected.fetch.indices)
    assert not torch.equal(after.fetch.indices, before.fetch.indices)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in own.state_dict().items())
    assert adapted_fetcher(own, None) is own


def test_other_adapters_are_refused(model: Any, tmp_path: Path) -> None:
    bridge = write_adapter(tmp_path / "bridge", part="semantic")
    with pytest.raises(
        ValueError, match="expected an adapter of scorers alone; got base_model.model.model.vision_tower"
    ):
        adapted_fetcher(model.model.fetcher, bridge)
    with pytest.raises(ValueError, match="expected an adapter of this model's scorer; got"):
        adapted_fetcher(model.model.fetcher, tmp_path)
    larger = write_adapter(tmp_path / "scorer")
    with pytest.raises(ValueError, match="expected an adapter of this model's scorer; got"):
        adapted_fetcher(tiny_model(fetcher={"hidden_size": 32}).model.fetcher, larger)
