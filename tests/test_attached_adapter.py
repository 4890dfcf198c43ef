"""The trained scorer of a reader of a published model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from attached_models import picture, published
from safetensors.torch import save_file

import arr_coc
from arr_coc.attached import AttachedReader, train_scorer
from arr_coc.attached.families import FAMILIES
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig

SMALL = ArrCocFetcherConfig(hidden_size=16, num_heads=2, num_layers=1, position_size=8, key_pool=1)


def boxes(family: str, image: Any) -> list[tuple[float, float, float, float]]:
    """The lower right quarter."""
    return [(image.width / 2, image.height / 2, image.width, image.height)]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_scorer_learns_boxes_and_comes_back_from_its_file(family: str, tmp_path: Path) -> None:
    model, processor = published(family)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    reader, image = AttachedReader(model, processor), picture(150, 220)
    page = reader.encode_image(image)
    examples = [(page, "What?", boxes(family, image))]
    losses = train_scorer(reader, examples, steps=30, batch_size=1, learning_rate=0.02, config=SMALL)
    assert len(losses) == 30 and losses[-1] < 0.6 * losses[0]
    options = {"budget": 0.5, "return_fetch": True}
    answer = reader.generate(page, "What?", **options)
    assert answer.fetch.strategy == "realizer" and answer.fetch.fallbacks["scorer"] == 0
    known = reader.generate(page, "What?", strategy="oracle", boxes=boxes(family, image), **options)
    relevant = known.fetch.scores[0] > 0.5
    found = relevant[answer.fetch.indices[0]].sum() / min(int(relevant.sum()), len(answer.fetch.indices[0]))
    assert found > 0.9
    reader.save_adapter(tmp_path / "scorer.safetensors")
    other = arr_coc.attach(model, processor)
    other.load_adapter(tmp_path / "scorer.safetensors")
    again = other.generate(other.encode_image(image), "What?", **options)
    assert torch.equal(again.fetch.scores, answer.fetch.scores) and again.text == answer.text
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_the_models_own_attention_teaches() -> None:
    reader = arr_coc.attach(*published("qwen3_vl"))
    page = reader.encode_image(picture(150, 220))
    steps: list[int] = []
    train = [(page, "What?", None)]
    losses = train_scorer(
        reader, train, steps=60, batch_size=1, learning_rate=0.02, config=SMALL, on_step=lambda n, _: steps.append(n)
    )
    assert losses[-1] < 0.2 * losses[0] and steps == [*range(60)]
    (prompt,) = page.prompts
    paid = reader.runner.attention(page, prompt, "What?", to_all=True)
    assert len(paid) == len(prompt)
    best = paid.argsort(descending=True)[:3].tolist()
    fetched = reader.generate(page, "What?", budget=10, return_fetch=True).fetch.indices[0].tolist()
    assert set(best) <= set(fetched)


def test_what_cannot_be_trained_or_read_is_refused(tmp_path: Path) -> None:
    reader = arr_coc.attach(*published("qwen3_vl"))
    with pytest.raises(ValueError, match="examples, steps: expected at least one of each; got 0 and 3"):
        train_scorer(reader, [], steps=3)
    with pytest.raises(ValueError, match="save_adapter: expected a trained scorer"):
        reader.save_adapter(tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError):
        reader.load_adapter(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(ValueError, match="expected a scorer in a safetensors file"):
        reader.load_adapter(tmp_path / "text.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="expected a scorer that save_adapter wrote; got 1 other tensors"):
        reader.load_adapter(tmp_path / "other.safetensors")
    train_scorer(reader, [(picture(60, 60), "What?", [(0, 0, 9, 9)])], steps=1, batch_size=1, config=SMALL)
    reader.save_adapter(tmp_path / "scorer.safetensors")
    other = arr_coc.attach(*published("gemma3"))
    with pytest.raises(ValueError, match="expected a scorer for gemma3 with tokens 32 wide; got one for qwen3_vl, 32"):
        other.load_adapter(tmp_path / "scorer.safetensors")
