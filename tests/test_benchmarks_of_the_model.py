"""Benchmarks of the model measure what they say; `arr-coc info --stats` prints what comes out of every stage."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import READS_WORDS, SCORES_WORDS, tiny_config, tiny_model
from published import assembled
from transformers import Qwen3VLForConditionalGeneration

from arr_coc import ArrCocConfig
from arr_coc.cli import main
from arr_coc.model_summary import count_flops, count_scorers, generated_image, on_meta
from arr_coc.modeling import generation
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.scorers import SCORERS
from arr_coc.modeling.vision_tower import TEXTURE_SETS
from benchmarks import readings
from benchmarks.assembling import LIMIT
from benchmarks.encoder import encoder_costs
from benchmarks.fetching import ENCODER, FIRST, fetching_costs
from benchmarks.passes import cost_of_a_pass
from benchmarks.path import Trace, question_traces
from benchmarks.placing import WAYS, Asked, place
from benchmarks.qwen3_vl import first_token, our_inputs, qwen3_vl_config, qwen3_vl_inputs
from benchmarks.timing import Seconds, alternate, table
from benchmarks.views import random_model, view_costs

SHIPPED = Path(__file__).parents[1] / "hub_configs" / "arr-coc-tiny-2"
READ_NO_TEXT = [name for name, kind in SCORERS.items() if not kind.reads_text]
TRAINED = {name for name in READ_NO_TEXT if SCORERS[name].trained}


@pytest.mark.slow
def test_assembling_holds_one_file_and_one_group(tmp_path: Path) -> None:
    """244 MB in files of at most 74 MB: who held the model, or all pages of an input, would need more than the limit.

    In a process of its own: what this one has freed would be used again, and other tests' garbage be measured.
    """
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux' /proc")
    command = [sys.executable, "-m", "benchmarks.assembling", "--scale", "4", "--max-shard-size", "32MB"]
    # glibc would raise the size from which freed blocks go back to the system: up to 60 MB too much, by chance.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    command += ["--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=SHIPPED.parents[1], env=environment, capture_output=True, text=True, timeout=600)
    if "clear_refs" in done.stderr:
        pytest.skip("this system does not let the peak be reset")
    assert done.returncode == 0, done.stderr
    found = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines() if "MiB" in line}
    held = found["group"] + found["shard"]
    assert found["total"] > 1.4 * held
    assert held / 2 < found["peak"] <= LIMIT * held, done.stdout


@pytest.mark.parametrize("llm", ["qwen3", "deepseek"])
def test_info_prints_what_comes_out_of_every_stage(
    llm: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assembled(published, tmp_path / "out", llm)
    capsys.readouterr()
    assert main(["info", str(tmp_path / "out"), "--stats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["statistics"]
    assert found["grid encoder"]["shape"] == [1, 16, 16, 16] and found["semantic encoder"]["shape"] == [1, 16, 32]
    assert all(of["std"] > 0 for of in found.values())
    assert main(["info", str(tmp_path / "out"), "--stats"]) == 0
    assert f"{found['grid encoder']['std']:.5f}" in capsys.readouterr().out


def test_a_model_answers_the_same_however_it_is_placed(checkpoint: Path, tmp_path: Path) -> None:
    asked = Asked(checkpoint, tmp_path, torch.bfloat16, new_tokens=3, max_shard_size="20KB")
    found = {way: place(way, asked) for way in WAYS}
    assert len({tuple(of.answer) for of in found.values()}) == 1
    assert all(len(of.answer) == 3 and of.peak > 2**20 for of in found.values())
    assert len(list((tmp_path / "exported").glob("*.safetensors"))) > 2
    assert any(parameter.is_meta for parameter in WAYS["language model on disk"](asked).parameters())


def test_info_measures_at_another_size(published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assembled(published, tmp_path / "out")
    capsys.readouterr()
    assert main(["info", str(tmp_path / "out"), "--stats", "--json", "--image-size", "64"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["statistics"]["grid encoder"]["shape"] == [1, 16, 8, 8] and found["geometry"]["patches"] == 64
    assert found["tokens"]["base"] == 4
    assert main(["info", str(tmp_path / "out"), "--image-size", "60"]) == 2
    assert "image side: expected" in capsys.readouterr().err


def test_info_lists_every_scorer_held_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(SHIPPED), "--scorers", "--json"]) == 0
    scorers = json.loads(capsys.readouterr().out)["scorers"]
    assert list(scorers) == READ_NO_TEXT and {name for name, of in scorers.items() if of["parameters"]} == TRAINED
    assert all(scorers[name]["flops"] > 0 for name in {*TRAINED, "attention"})
    assert [scorers[name]["held"] for name in ("realizer", "experts", "saliency")] == [True, False, True]
    assert main(["info", str(SHIPPED), "--scorers"]) == 0
    assert f"{scorers['experts']['parameters']:,}" in capsys.readouterr().out


def test_a_scorers_flops_are_those_of_its_stage_where_it_is_the_strategy() -> None:
    """Counted apart for a table, they must be what the model then takes; a narrow latent takes less."""
    sizes = {"scorers": ["realizer", "experts"]}
    counts = count_scorers(tiny_config(fetcher=sizes))
    for name in ("realizer", "experts", "saliency", "attention"):
        config = tiny_config(fetcher={**sizes, "strategy": name})
        assert count_flops(on_meta(config))["fetcher"] == counts[name]["flops"]
    latent = count_scorers(tiny_config(fetcher={"latent_size": 2}))
    for name in ("realizer", "experts"):
        assert all(latent[name][what] < counts[name][what] for what in ("flops", "parameters"))
    reader = tiny_config(**READS_WORDS, fetcher=SCORES_WORDS)
    words = count_scorers(reader)["words"]
    assert words["flops"] == count_flops(on_meta(reader))["fetcher"] > 0 < words["parameters"]


def test_every_scorer_allocator_and_texture_set_is_timed() -> None:
    model = tiny_model(fetcher={"scorers": sorted(TRAINED)})
    costs = fetching_costs(model, rounds=1)
    parts = [f"textures {kind}" for kind in TEXTURE_SETS] + [f"fetching {name}" for name in READ_NO_TEXT]
    parts += [f"allocator {name}" for name in ALLOCATORS]
    assert list(costs) == [FIRST, ENCODER, *parts]
    assert 0 < costs[ENCODER].least < costs[FIRST].least


def test_a_question_visits_few_files_of_the_model() -> None:
    """It once entered 22 files with 67 changes between them: a reader could not follow it."""
    pytest.importorskip("pypdfium2")
    traces = question_traces(tiny_model())
    first, pdf, further = traces["image"], traces["PDF"], traces["further question"]
    assert "modeling_arr_coc.py" in first.files and "grid_encoder.py" not in further.files
    assert len(first.files) <= 16 and first.changes <= 38, first.visits
    assert len(pdf.files) <= 22 and pdf.changes <= 76, pdf.visits
    assert len(further.files) <= 12 and further.changes <= 26, further.visits


def test_changes_of_file_are_counted_between_calls() -> None:
    calls = [("a.py", "f"), ("a.py", "g"), ("b.py", "h"), ("a.py", "f")]
    assert (Trace(calls).visits, Trace(calls).files, Trace(calls).changes) == (
        ["a.py", "b.py", "a.py"],
        ["a.py", "b.py"],
        2,
    )
    assert Trace([]).changes == 0


def test_all_ways_through_the_grid_encoder_give_the_same_features_for_less_memory() -> None:
    config = tiny_config(vision={"image_size": 512}).vision_config
    costs = encoder_costs(config, torch.float32, rounds=2)
    blocks, fused, sam = (costs.features[name] for name in ("blocks", "fused kernel", "transformers' SAM"))
    assert (blocks - sam).abs().max() < 2e-5 and (fused - sam).abs().max() < 2e-5
    assert not torch.equal(blocks, fused), "the other path ran"
    assert costs.peaks["blocks"] <= costs.peaks["fused kernel"] < costs.peaks["transformers' SAM"] / 4
    assert all(len(seconds.taken) == 2 for seconds in costs.seconds.values())

    backward = encoder_costs(tiny_config().vision_config, torch.bfloat16, rounds=1, backward=True)
    assert backward.features["blocks"].shape == (1, 16, 16, 16)


def test_the_time_to_the_first_token_is_that_of_both_models() -> None:
    config = tiny_config()
    small = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_position_embeddings": 64}
    rival = qwen3_vl_config(config.text_config, {**small, "patch_size": 8, "deepstack_visual_indexes": [0]})
    assert qwen3_vl_inputs(rival, 128, 16)["input_ids"].shape == (1, 64 + 16)
    assert our_inputs(config, 128, 16)["input_ids"].shape == (1, sum(config.vision_tokens(128)) + 16)
    seconds = first_token(config, rival, torch.float32, rounds=1)
    assert [len(of.taken) for of in seconds.values()] == [1, 1] and "qwen3-vl" in table(seconds, "arr-coc")


def test_the_rival_has_the_published_sizes() -> None:
    """2,127,532,032: the parameters of Qwen3-VL-2B, embeddings counted once."""
    text = ArrCocConfig.from_pretrained(Path(__file__).parents[1] / "hub_configs" / "arr-coc-qwen3-1.7b").text_config
    rival = qwen3_vl_config(text)
    assert rival.text_config.rope_parameters["mrope_section"] == [24, 20, 20]
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(rival)
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_127_532_032


def test_calls_take_turns_and_ratios_are_those_of_rounds() -> None:
    order: list[str] = []
    ticks = iter([0, 9, 9, 18] + [0, 1, 1, 3] + [3, 5, 5, 13])  # the round that warms up does not count
    seconds = alternate(
        {name: lambda name=name: order.append(name) for name in "ab"}, 2, clock=lambda: float(next(ticks))
    )
    assert order == ["a", "b"] * 3
    assert (seconds["a"], seconds["b"]) == (Seconds((1.0, 2.0)), Seconds((2.0, 8.0)))
    assert (seconds["b"].times(seconds["a"]), seconds["b"].least, seconds["b"].median) == (3.0, 2.0, 5.0)


def test_more_views_cost_features_alone_and_no_token() -> None:
    model = tiny_model()
    one, four = view_costs(model, 1, rounds=1), view_costs(model, 4, rounds=1)
    assert (one.views, four.views) == (1, 5) and one.tokens == four.tokens
    config = model.config.vision_config
    features = 2 * (config.out_channels + 2) * config.num_patches  # bfloat16, with two textures
    assert 4 * features <= four.held - one.held <= 4 * (features + 2 * config.num_patches)
    assert 0 < four.fetch < four.second < four.first
    with pytest.raises(ValueError, match="views: expected square numbers; got 5"):
        view_costs(model, 5)


def test_views_are_measured_of_random_weights() -> None:
    model = random_model(Path(__file__).parents[1] / "hub_configs" / "arr-coc-tiny-2").eval()
    assert model.dtype == torch.bfloat16
    costs = view_costs(model, 4, rounds=1)
    assert costs.views == 5 and costs.tokens == sum(model.config.vision_tokens())


def test_every_reading_is_measured_however_sure_the_answer_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generated_image(96).save(tmp_path / "page.png")
    model, before, read = tiny_model(), generation.surest, list[int]()
    calls = {}

    def counted(timed: dict[str, Callable[[], object]], rounds: int) -> dict[str, Seconds]:
        for name, call in timed.items():
            read.clear()
            call()
            calls[name] = len(read)
        return alternate(timed, rounds)

    ask_again = generation.AnswerGenerator._ask_again

    def asked_again(*args: Any) -> Any:
        read.append(1)
        return ask_again(*args)

    monkeypatch.setattr(generation.AnswerGenerator, "_ask_again", asked_again)
    monkeypatch.setattr(readings, "alternate", counted)
    costs = readings.reading_costs(model, tmp_path / "page.png", rounds=1)
    expected = {f"{which}, {count} reading(s)": count - 1 for which in ("first", "next") for count in (1, 2, 3)}
    assert calls == {**expected, "first, unsure words again": 0}
    assert list(costs) == list(calls) and all(seconds.median > 0 for seconds in costs.values())
    assert generation.surest is before


def test_a_further_pass_is_measured_beside_a_fresh_question() -> None:
    cost = cost_of_a_pass(tiny_model(), generated_image(128), budget=8, rounds=1)
    assert min(cost.one, cost.two, cost.all, cost.fresh) > 0 and cost.further == cost.two - cost.one
