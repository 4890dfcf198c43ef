"""Where answers are lost: the same questions and patches, read in other tokens."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_training import ANSWERING, begun, config, questions

from arr_coc.data.questions import build_tokenizer
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig
from arr_coc.training.from_scratch.answering import Answering
from arr_coc.training.from_scratch.learner import Learner, Said
from arr_coc.training.from_scratch.questions import Batch, Prompts
from benchmarks.lost_answers import WAYS, lost_answers, main

__all__ = ["config"]  # the fixture


@pytest.fixture
def learner(config: ArrCocConfig) -> Learner:
    torch.manual_seed(0)
    run = begun(config)
    return Learner(run.model, run.processor.tokenizer).eval()


@pytest.fixture
def batch(config: ArrCocConfig) -> Batch:
    drawn = questions(config, Prompts(build_tokenizer(), config.image_token_id), sketched=True)
    return with_pixels(drawn, config, seed=0)


def with_pixels(batch: Batch, config: ArrCocConfig, seed: int) -> Batch:
    """A sketch has none."""
    side, generator = config.vision_config.image_size, torch.Generator().manual_seed(seed)
    return replace(batch, pixel_values=torch.randn(len(batch.glyphs), 3, side, side, generator=generator))


@torch.no_grad()
def answered(learner: Learner, batch: Batch, said: Said, strategy: str = "oracle") -> float:
    generator, budget = torch.Generator().manual_seed(0), 0 if strategy == "none" else 16
    outputs = learner(batch, strategy=strategy, budget=budget, generator=generator, frozen=True, said=said)
    return float(outputs["answer"])


@pytest.mark.parametrize("strategy", ["oracle", "none"])
def test_perfect_tokens_say_what_stands_there_whatever_the_picture_shows(
    learner: Learner, batch: Batch, config: ArrCocConfig, strategy: str
) -> None:
    """The encoder may place characters at edges, so it names the same nothing in both pictures here."""
    learner.reading.requires_grad_(False)
    for weight in learner.reading.parameters():
        weight.zero_()
    other = with_pixels(batch, config, seed=1)
    perfect = [answered(learner, page, "perfect", strategy) for page in (batch, other)]
    assert perfect[0] == pytest.approx(perfect[1], abs=1e-6)
    seen = [answered(learner, page, "bridge", strategy) for page in (batch, other)]
    assert abs(seen[0] - seen[1]) > 1e-5 and seen[0] != pytest.approx(perfect[0], abs=1e-5)


def test_named_tokens_say_what_the_encoder_reads(
    learner: Learner, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that reads everything right makes perfect tokens, one that reads nothing empty ones."""
    nothing = answered(learner, batch, "named")
    read = learner.read

    def reads_right(features: torch.Tensor, asked: Batch) -> Batch:
        return read(features, asked)[0]

    monkeypatch.setattr(learner, "_named", reads_right)
    assert answered(learner, batch, "named") == answered(learner, batch, "perfect") != nothing


def test_every_kind_and_strategy_is_read_in_every_way(config: ArrCocConfig) -> None:
    stage = replace(ANSWERING, evaluate_strategies=("oracle", "none"))
    task = stage.task(begun(config))
    assert isinstance(task, Answering)
    lost = list(lost_answers(task))
    assert [(row.kind, row.strategy) for row in lost] == [(kind, s) for kind in stage.kinds for s in ("oracle", "none")]
    for row in lost:
        assert row.questions > 0 and set(row.exact) == set(WAYS) and row.kind in str(row)
        assert all(0 <= found.low <= found.value <= found.high <= 1 for found in row.exact.values())


def test_a_folder_without_what_training_left_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "expected a trained model's folder with learner.safetensors; got" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path), "--questions", "0"])
    assert "--questions: expected at least 1; got 0" in capsys.readouterr().err
