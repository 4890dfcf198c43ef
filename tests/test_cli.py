"""The command line: what it prints, its exit codes, and one line for a user's mistake."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
from helpers import Cli, refuses, tiny_config, tiny_model
from PIL import Image

from arr_coc.attached.scoring import STRATEGIES
from arr_coc.cli import COMMANDS, main
from arr_coc.cli.common import TILING, TRAINED
from arr_coc.cli.evaluate import table
from arr_coc.data.formats import DEFAULT_FORMAT, FORMATS
from arr_coc.data.records import MAX_ERRORS
from arr_coc.evaluation.arms import GROUPS
from arr_coc.files import SHIPPED
from arr_coc.loading import DTYPES
from arr_coc.metrics import METRICS
from arr_coc.model_summary import count_flops, on_meta
from arr_coc.modeling import budgets
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.bridges import BRIDGES
from arr_coc.modeling.generation import AnswerGenerator
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.scorers import SCORERS
from arr_coc.pages.domains import DOMAINS
from arr_coc.publishing.pushing import MAIN
from arr_coc.version import __version__

ROOT = Path(__file__).parents[1]
QUESTION = "What is the total?"


@pytest.fixture
def data(picture: Path, tmp_path: Path) -> Path:
    shutil.copyfile(picture, tmp_path / "noise.png")
    line = {"image": "noise.png", "question": QUESTION, "answers": ["12"], "boxes": [[8, 8, 20, 16]]}
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({**line, "question": QUESTION + "?" * i}) + "\n" for i in range(3)))
    return path


# ---- ask
def test_ask_prints_and_draws_and_takes_boxes(cli: Cli, checkpoint: Path, picture: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "out.png"
    code, out, err = cli("ask", picture, QUESTION, "--model", checkpoint, "--picture", drawn)
    assert (code, out) == (0, tiny_model().generate(picture, QUESTION) + "\n")
    assert "strategy realizer, allocator topk: 17 of 256 patches fetched" in err and str(drawn) in err
    with Image.open(drawn) as image:
        assert image.width >= 768
    options = ("--strategy", "oracle", "--budget", "4", "--json")
    found = json.loads(cli("ask", picture, QUESTION, "--model", checkpoint, *options, "--box", "0,4,10,12")[1])
    assert found["positions"] == [[3, 0], [3, 1], [4, 0], [4, 1]]  # 21 px of padding above
    code, _, err = cli("ask", picture, QUESTION, "--model", checkpoint, *options)
    assert code == 2 and "--box: expected the place of the answer beside --strategy oracle; got none" in err


def test_ask_as_json_says_what_was_fetched(cli: Cli, checkpoint: Path, picture: Path) -> None:
    options = ("--strategy", "saliency", "--budget", "fast", "--allocator", "window", "--json")
    code, out, err = cli("ask", picture, QUESTION, "--model", checkpoint, *options)
    found = json.loads(out)
    expected = tiny_model().generate(
        picture, QUESTION, strategy="saliency", budget="fast", allocator="window", return_fetch=True
    )
    assert code == 0 and err.startswith("Loading ") and err.count("\n") == 1
    assert (found["answer"], found["confidence"]) == (expected.text, pytest.approx(expected.probability))
    assert found["positions"] == expected.fetch.positions[0].tolist()
    assert found["tokens"] == {"base": 16, "fetched": 4} and found["patches"] == 256
    assert (found["strategy"], found["allocator"], found["budget"]) == ("saliency", "window", 4)


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_an_answer_is_printed_whatever_the_terminal_can_show(
    checkpoint: Path, picture: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """It was lost, after the model had answered."""
    odd = picture.with_name("caf\udce9.png")  # no UTF-8, as Python names it
    odd.write_bytes(picture.read_bytes())
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding))
    assert main(["ask", str(odd), "Preis \u20ac?", "--model", str(checkpoint), "--json"]) == 0
    found = json.loads(written.getvalue().decode(encoding))
    assert (found["question"], found["image"]) == ("Preis \u20ac?", str(odd))


def test_ask_about_several_images(cli: Cli, checkpoint: Path, picture: Path, tmp_path: Path) -> None:
    other, drawn = tmp_path / "other.png", tmp_path / "sheet.png"
    Image.new("RGB", (90, 60), "navy").save(other)
    options = ("--model", checkpoint, "--json", "--picture", drawn)
    said = json.loads(cli("ask", picture, other, QUESTION, *options)[1])
    model = ArrCocForConditionalGeneration.from_pretrained(checkpoint)
    assert said["answer"] == model.generate([[str(picture), str(other)]], QUESTION)[0]
    assert said["image"] == [str(picture), str(other)] and len(said["sources"]) == said["budget"]
    with Image.open(drawn) as sheet:
        assert sheet.size > (90, 60)
    message = refused(cli("ask", picture, other, QUESTION, "--model", checkpoint, "--box", "0,4,10,12"))
    assert "--box: expected one image, which it is on; got 2" in message
    assert "QUESTION: expected a question behind the images; got a file" in refused(cli("ask", picture, other))


def test_ask_several_questions_about_a_page_that_is_encoded_once(
    cli: Cli, checkpoint: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second question was taken for an image."""
    questions, options = (QUESTION, "What is 3/4 of it?", "Net/gross?"), ("--model", checkpoint)
    expected = [tiny_model().generate(picture, question) for question in questions]
    encoded, encode = [], AnswerGenerator.encode
    monkeypatch.setattr(AnswerGenerator, "encode", lambda *own, **given: encoded.append(own) or encode(*own, **given))
    code, out, err = cli("ask", picture, *questions, *options)
    assert (code, out.splitlines(), err.count("confidence "), len(encoded)) == (0, expected, 3, 1)
    found = [json.loads(line) for line in cli("ask", picture, *questions, *options, "--json")[1].splitlines()]
    assert [(each["question"], each["answer"]) for each in found] == [*zip(questions, expected, strict=True)]
    for typo in ("typo.PNG", "scans/typo", "https://example.org/1"):
        expected_error = f"QUESTION: expected a question behind the images; got the name of a file: {typo}"
        assert expected_error in refused(cli("ask", picture, QUESTION, typo, *options))
        assert expected_error in refused(cli("ask", picture, typo, *options))
    assert "typo.png: expected an image file; got a missing path" in refused(cli("ask", picture, "typo.png", QUESTION))
    message = refused(cli("ask", picture, *questions, *options, "--picture", "out.png"))
    assert "--picture: expected one question, whose patches it shows; got 3" in message


# ---- mistakes
def refused(result: tuple[int, str, str]) -> str:
    """Checks that this was one line about a user's mistake; gives the line."""
    code, out, err = result
    assert (code, out) == (2, "")
    if err.startswith("Loading "):  # `ask` outside a terminal
        err = err.partition("\n")[2]
    assert err.startswith("arr-coc: error: ") and err.endswith("\n") and err.count("\n") == 1, err
    return err.removeprefix("arr-coc: error: ").strip()


def test_ask_refuses_in_one_line(cli: Cli, checkpoint: Path, picture: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.png"
    cut.write_bytes(picture.read_bytes()[:8000])
    for image, question, options, message in (
        (cut, QUESTION, (), "cut.png: expected a whole image; got a corrupt one"),
        (picture, "why " * 400, (), "question: expected at most 512 tokens"),
        (picture, QUESTION, ("--box", "1,2,3"), "argument --box: expected four numbers X0,Y0,X1,Y1; got '1,2,3'"),
        (picture, QUESTION, ("--picture", "no/such/out.png"), "--picture: expected a file in a folder that exists"),
        (picture, QUESTION, ("--picture", "."), "--picture: expected a file to write; got a folder"),
        (picture, QUESTION, ("--device", "hpu:7"), "device: expected one of this machine's, cpu"),
    ):
        assert message in refused(cli("ask", image, question, "--model", checkpoint, *options))


def test_a_missing_model_is_never_looked_up(cli: Cli, picture: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub_configs").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, message in [
        ("./missing/model", "model: expected a folder, or org/name on the Hub; got './missing/model'"),
        ("hub_configs/typo", "got 'hub_configs/typo', which does not exist"),
        ("typo", "got 'typo', which does not exist"),
        ("/nowhere/at/all", "got '/nowhere/at/all', which does not exist"),
        ("file", "model: expected a folder or org/name; got a file: file"),
        ("empty", "model: expected a folder with config.json or scorer.safetensors; got none in empty"),
        ("org/name", "org/name: expected an ARR-COC checkpoint; got "),  # offline
    ]:
        assert message in refused(cli("ask", picture, QUESTION, "--model", name))
        assert message in refused(cli("info", name))
    assert cli("ask", picture, QUESTION, "--model", "org/name")[2].startswith("Loading org/name ...\n")  # no terminal


def test_damaged_checkpoints_are_refused(cli: Cli, checkpoint: Path, picture: Path, tmp_path: Path) -> None:
    """test_weights.py has the damages of weights."""

    def ask(folder: Path) -> str:
        return refused(cli("ask", picture, QUESTION, "--model", folder))

    def copy(name: str, *without: str) -> Path:
        return Path(shutil.copytree(checkpoint, tmp_path / name, ignore=shutil.ignore_patterns(*without)))

    assert "expected weights (model.safetensors, or shards" in ask(copy("weightless", "*.safetensors"))
    assert "got none. Distributions have no weights: a clone of the repository has" in ask(
        copy("hub_configs/arr-coc-tiny-2", "*.safetensors")
    )
    assert f"processor: expected '{tmp_path / 'mute'}' to hold one" in ask(copy("mute", "tokenizer*"))
    other = copy("other")
    (other / "config.json").write_text('{"model_type": "bert"}')
    assert "expected an ARR-COC model, or a model of type gemma3, idefics3, " in (error := ask(other))
    assert error.endswith("; got 'bert'")
    (other / "config.json").write_text("{")
    assert f"{other / 'config.json'}: expected JSON; got " in ask(other)


def test_no_model_named_and_none_shipped(cli: Cli, picture: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("arr_coc.files.SHIPPED", Path("hub_configs") / "not-shipped")
    message = refused(cli("ask", picture, QUESTION))
    assert message == "model: expected a folder or org/name; got none, and hub_configs/not-shipped is not here"


def test_the_default_is_shipped(cli: Cli, checkpoint: Path, picture: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("arr_coc.loading.SHIPPED", Path("models") / "tiny")
    shutil.copytree(checkpoint, tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    assert cli("ask", picture, QUESTION)[0] == 0


def test_wrong_arguments_are_one_line_too_or_a_traceback(cli: Cli, tmp_path: Path, picture: Path) -> None:
    assert "the following arguments are required: QUESTION (see arr-coc ask --help)" in refused(cli("ask", "a.png"))
    assert "invalid choice: 'dance'" in refused(cli("dance"))
    assert "COMMAND" in refused(cli())
    assert "--batch-size: invalid int value: 'x'" in refused(cli("evaluate", "d", "--batch-size", "x"))
    (tmp_path / "data.yaml").write_text("format: {a: {}}\npath: questions.jsonl\n")
    assert "format: expected one of " in refused(cli("evaluate", tmp_path / "data.yaml"))
    refuses("which does not exist", main, ["ask", str(picture), QUESTION, "--model", "typo", "--debug"])


def test_a_reader_that_leaves_is_no_error(cli: Cli, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`arr-coc info ... | head -0` must not end in a traceback."""

    def leave(_: Any) -> str:
        raise BrokenPipeError

    monkeypatch.setattr("arr_coc.model_summary.report", leave)
    assert cli("info", checkpoint) == (1, "", "")


# ---- evaluate, info, build
def test_evaluate_prints_a_table_and_writes_json(cli: Cli, checkpoint: Path, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    options = ("--strategies", "none,random, oracle", "--limit", "2", "--batch-size", "2", "--json", target)
    code, out, err = cli("evaluate", data, "--model", checkpoint, *options)
    found = json.loads(target.read_text())
    assert code == 0 and err == "Loading the model, then asking 2 questions ...\n"  # no bar outside a terminal
    assert list(found["strategies"]) == ["none", "random", "oracle"]
    assert found["strategies"]["oracle"]["n"] == 2 and found["strategies"]["oracle"]["tokens"] == 33
    assert out == table(found["strategies"]) + "\n"
    assert [line.split()[0] for line in out.split("In brackets")[0].splitlines()[1:]] == ["none", "random", "oracle"]
    options = (data, "--model", checkpoint, "--limit", "1", "--json", target)
    for strategies, expected in (([], ["realizer"]), (["--strategies", "all"], ["none", "saliency", "random"])):
        assert cli("evaluate", *options, *strategies)[0] == 0
        assert [*json.loads(target.read_text())["strategies"]][:3] == expected  # all seven, without an option


def test_evaluate_refuses_in_one_line(cli: Cli, checkpoint: Path, data: Path, tmp_path: Path) -> None:
    def evaluate(path: Path, *options: Any) -> str:
        return refused(cli("evaluate", path, "--model", checkpoint, *options))

    assert "--strategies: expected names with commas between them; got ','" in evaluate(data, "--strategies", ",")
    assert "limit: expected at least 1 record; got 0" in evaluate(data, "--limit", "0")
    assert "line 1: answers: vqa_accuracy expected at least 4" in evaluate(data, "--metric", "vqa_accuracy")
    assert "--with: expected each name once" in evaluate(data, "--with", "path=1")
    assert "--with: expected each name once" in evaluate(data, "--with", "columns=3", "--with", "columns.question=q")
    (tmp_path / "noise.png").write_text("text")
    code, out, err = cli("evaluate", data, "--model", checkpoint, "--strategies", "none")
    assert (code, out) == (2, "") and "noise.png: expected an image" in err.splitlines()[-1]  # below the progress bar


def test_what_may_not_be_written_is_refused_before_the_work(
    cli: Cli, checkpoint: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    monkeypatch.setattr("arr_coc.loading.load_model", None)
    said = refused(cli("evaluate", data, "--model", checkpoint, "--json", tmp_path / "out.json"))
    assert "--json: expected a file that may be written; got no permission" in said


def test_the_table_is_printed_where_the_file_cannot_be_written(
    cli: Cli, checkpoint: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("arr_coc.files.write_json", full)
    options = ("--strategies", "none", "--limit", "1", "--json", tmp_path / "out.json")
    code, out, err = cli("evaluate", data, "--model", checkpoint, *options)
    assert code == 2 and out.startswith("strategy") and "No space left" in err


def test_info_counts_without_weights(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    shutil.copyfile(checkpoint / "config.json", tmp_path / "config.json")
    code, out, _ = cli("info", tmp_path, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["parameters"]["total"] == sum(parameter.numel() for parameter in tiny_model().parameters())
    assert found["tokens"] == {"base": 16, "fetched": 17, "question": 16}
    assert found["geometry"]["grid"] == [16, 16] and found["fetching"]["budgets"]["fast"] == 4
    _, text, _ = cli("info", tmp_path)
    assert f"{found['parameters']['total']:,}" in text
    assert all(stage in text for stage in found["flops"])
    assert "budget: expected" in refused(cli("info", tmp_path, "--budget", "999"))
    assert "--question-tokens: expected at least 1; got 0" in refused(cli("info", tmp_path, "--question-tokens", "0"))


def test_flops_are_those_of_the_matrices() -> None:
    """The prefill and decode step by hand: projections, attention in full, and the head at one position."""
    config = tiny_config()
    text, length = config.text_config, 16 + 17 + 16
    flops = count_flops(on_meta(config), question_tokens=16)
    heads, head = text.num_attention_heads * text.head_dim, text.vocab_size * text.hidden_size
    keys = text.num_key_value_heads * text.head_dim
    linear = text.hidden_size * (2 * heads + 2 * keys + 3 * text.intermediate_size)

    def expected(new: int, seen: int) -> int:
        return 2 * (text.num_hidden_layers * (new * linear + 2 * new * seen * heads) + head)

    # rotary embedding: transformers forms the angles by a matrix product of head_dim / 2 x new
    assert flops["prefill"] == pytest.approx(expected(length, length), rel=2e-3)
    assert flops["one decode step"] == pytest.approx(expected(1, length + 1), rel=2e-3)


# ---- How the command line starts: help and version, what they name, and what they wait for
RECEIPT = "examples/images/receipt.png"

FRESH = """
import contextlib, io, json, os, sys, time
from arr_coc.cli import main

begun = time.process_time()
for arguments in json.load(sys.stdin):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    loaded = [name for name in ("arr_coc.modeling", "numpy", "torch", "transformers") if name in sys.modules]
    seconds = begun + time.process_time()
    print(json.dumps([code, out.getvalue(), err.getvalue(), seconds, loaded]), flush=True)
    os._exit(0)
"""
"""Runs command lines, each as in a fresh interpreter; says code, output, errors, CPU seconds and what was imported."""


def fresh(*lines: tuple[str, ...], **environment: str) -> list[list[Any]]:
    given = {"cwd": ROOT, "env": {**os.environ, **environment}, "input": json.dumps(lines), "timeout": 300}
    result = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True, **given)
    return [json.loads(line) for line in result.stdout.splitlines()]


EXAMPLES: dict[str, Any] = {command.name: command.examples for command in COMMANDS}
HELP = {("--version",): [__version__], ("--help",): EXAMPLES} | {(name, "--help"): EXAMPLES[name] for name in EXAMPLES}
"""What is said to each line, among others."""
BROKEN = {
    "broken.pdf": "expected a PDF that can be opened; got a broken or empty one",
    "broken.mp4": "expected a whole video; got a broken one",
    "narrow.png": "image: expected sides of at least 8 px, the height of the smallest print; got 90x3",
}
ASK = ("ask", RECEIPT, QUESTION)
REFUSED: list[tuple[tuple[str, ...], str]] = [
    *((("ask", name, QUESTION), message) for name, message in BROKEN.items()),
    (("ask", "missing.png", QUESTION), "missing.png: expected an image file; got a missing path"),
    (("ask", "README.md", QUESTION), "a PDF or a video; got text"),
    ((*ASK, "--model", "typo"), "got 'typo', which does not exist"),
    ((*ASK, "--picture", "out.txt"), "--picture: expected a name ending in .png"),
    (("look", "missing.png", QUESTION, "--out", "out"), "missing.png: expected an image file"),
    (("ask", RECEIPT, " "), "question: expected a non-empty string; got ' '"),
    ((*ASK, "--budget", "some"), "budget: expected 0 to "),
    ((*ASK, "--budget", "5000"), "budget: expected 0 to 4096 patches"),
    ((*ASK, "--budget", "0.25"), "budget: expected 0 to "),
    (("build", "nowhere", "out"), "SOURCE: expected a folder; got 'nowhere', which is none"),
    (("replay", "nowhere"), "LOG: expected a folder; got 'nowhere', which is none"),
    (("serve", "nowhere"), "got 'nowhere', which does not exist"),
    ((*ASK, "--model", "docs"), "model: expected a folder with config.json or scorer.safetensors; got none in docs"),
    (("info", "docs"), "model: expected a folder with config.json or scorer.safetensors; got none in docs"),
    ((*ASK, "--strategy", "realizer"), "oracle, random, saliency, variance, words (held here)"),  # which it lacks
    (("evaluate", "examples/held_out/data.jsonl", "--strategies", "none,word"), "(held here); got 'word'"),
    ((*ASK, "--allocator", "best"), "allocator: expected one of adaptive, foveated, knapsack"),
    ((*ASK, "--tiles", "some"), "--tiles: expected auto, asked, all, never or a positive number"),
    ((*ASK, "--passes", "0"), "--passes: expected a number from 1, or "),
    ((*ASK, "--strategy", "oracle"), "--box: expected the place of the answer beside --strategy"),
    ((*ASK, "--box", "1,2,3,4"), "--box: expected --strategy oracle, which fetches what is in it"),
    ((*ASK, "--strategy", "oracle", "--box", "5000,0,5100,50"), "boxes: expected boxes that reach into the image of "),
    ((*ASK, "--readings", "3", "--passes", "2"), "--readings: expected 1 beside --passes; got 3"),
    ((*ASK, "--readings", "2", "--strategy", "oracle", "--box", "1,2,3,4"), "--readings: expected 1 beside --box"),
    *(
        ((*command, "--device", "foo"), "--device: expected e.g. cpu, cuda, cuda:1, mps; got 'foo'")
        for command in (
            ASK,
            ("look", RECEIPT, QUESTION, "--out", "out"),
            ("serve",),
            ("demo",),
            ("measure", "examples/measured.yaml"),
            ("evaluate", "examples/held_out/data.jsonl"),
            ("train", "examples/phases.yaml", "--out", "out"),
            ("info",),
            ("learn", "--versions", "out"),
        )
    ),
    (("serve", "--port", "99999"), "--port: expected a number from 0 to 65535; got '99999'"),
    (("measure", "--bench", "nowhere"), "--bench: expected a folder; got 'nowhere', which is none"),
    (("measure", "nowhere.yaml"), "DATA: expected a file; got 'nowhere.yaml', which does not exist"),
    (("evaluate", "nowhere.jsonl"), "DATA: expected a file; got 'nowhere.jsonl', which does not exist"),
    (("train", "nowhere.yaml", "--out", "out"), "RECIPE.yaml: expected a file; got 'nowhere.yaml'"),
    (("serve", "--api-keys", "nowhere.txt"), "--api-keys: expected a file; got 'nowhere.txt'"),
    (("measure", "examples/measured.yaml", "--json", "no/such/file"), "--json: expected a file in a folder"),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[Any]]:
    """What is said to the command lines of `HELP` and `REFUSED`; those of `BROKEN` name files that are there."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken.pdf").write_bytes((ROOT / "examples/images/invoices.pdf").read_bytes()[:200])
    (folder / "broken.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(200))
    Image.new("RGB", (3, 90)).save(folder / "narrow.png")
    lines = [*HELP, *(line for line, _ in REFUSED)]
    placed = [tuple(str(folder / part) if part in BROKEN else part for part in line) for line in lines]
    return dict(zip(lines, fresh(*placed), strict=True))


@pytest.mark.parametrize("line", HELP, ids=" ".join)
def test_help_and_version_do_not_wait_for_the_library(line: tuple[str, ...], told: Any) -> None:
    """`arr-coc --help` took 5 s: it imported transformers and torch, and registered classes with them."""
    code, out, _, seconds, loaded = told[line]
    assert out.startswith(("usage: arr-coc", "arr-coc ")) and (code, loaded) == (0, [])
    assert seconds < 1.0  # 0.15 s on an idle machine
    assert all(part in out for part in HELP[line])


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_what_cannot_work_is_refused_without_the_library(line: tuple[str, ...], message: str, told: Any) -> None:
    """`arr-coc ask missing.png` took 5 s, those of the imports; a broken document, 20 s, those of the model."""
    code, _, err, _, loaded = told[line]
    (refusal,) = err.splitlines()
    assert message in refusal and code == 2 and not {"torch", "transformers"} & {*loaded}


def test_a_name_on_the_hub_is_refused_if_the_hub_does_not_answer() -> None:
    """It took 143 s: three loaders tried six times each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        hub = f"http://127.0.0.1:{free.getsockname()[1]}"
    line = ("ask", RECEIPT, QUESTION, "--model", "org/name")
    ((code, _, err, seconds, _),) = fresh(line, HF_ENDPOINT=hub, HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="0")
    refusal = f".*: org/name: expected a folder or a model on the Hub; got no answer from {hub} .*"
    assert code == 2 and re.fullmatch(refusal, err.splitlines()[-1]) and seconds < 60


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("evaluate", (*FORMATS, *METRICS, *GROUPS)),
        ("assemble", (*BRIDGES, *SCORERS, *DTYPES)),
        ("render", tuple(DOMAINS)),
        ("ask", (*ALLOCATORS, *SCORERS, *STRATEGIES)),
        ("look", tuple(ALLOCATORS)),
    ],
)
def test_help_names_what_is_registered(cli: Cli, command: str, names: tuple[str, ...]) -> None:
    """It does not ask the registries, so that it is quick."""
    words = set(re.findall(r"\w+", cli(command, "--help")[1]))
    assert names and set(names) <= words


def test_help_says_the_defaults_of_the_library(cli: Cli) -> None:
    text = " ".join(cli("evaluate", "--help")[1].split())
    assert f"(default: {DEFAULT_FORMAT})" in text and f"skipped at most (default: {MAX_ERRORS})" in text
    assert f"(default: {SHIPPED.as_posix()} of a checkout)" in text
    assert f"(default: {MAIN})" in " ".join(cli("push", "--help")[1].split())
    assert {*TRAINED.split(", ")} == {name for name, kind in SCORERS.items() if kind.trained}
    assert TILING == budgets.TILING


@pytest.mark.parametrize(
    "arguments",
    [
        ("examples/phases.yaml", "stips=1", "--out", "OUT"),
        ("examples/phases.yaml", "--out", "OUT", "stips=1"),
        ("--out", "OUT", "examples/phases.yaml", "stips=1"),
    ],
)
def test_settings_stand_before_and_behind_options(cli: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Behind an option they were "unrecognized arguments"."""
    given = [str(tmp_path) if part == "OUT" else part.replace("examples", str(ROOT / "examples")) for part in arguments]
    code, out, err = cli("train", *given)
    assert (code, out) == (2, "") and "stips" in err and "unrecognized" not in err


@pytest.mark.parametrize("arguments", [("train", "r.yaml", "--out", "o", "stray"), ("info", "m", "steps=1")])
def test_arguments_that_mean_nothing(cli: Cli, arguments: tuple[str, ...]) -> None:
    code, _, err = cli(*arguments)
    assert code == 2 and err.startswith(f"arr-coc: error: unrecognized arguments: {arguments[-1]}")
