"""Evaluation: records, metrics, and that every image is encoded once whatever the batches."""

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import READS_WORDS, SCORES_WORDS, noise, refuses, tiny_checkpoint, tiny_config, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close
from transformers import AutoModel, BloomConfig, GPT2Config, Qwen3Config

import arr_coc
from arr_coc import ArrCocConfig, ArrCocForConditionalGeneration
from arr_coc.cli import main
from arr_coc.cli.evaluate import table
from arr_coc.data.records import NOT_ON_THE_PAGE, Record, read_records
from arr_coc.evaluation import evaluate, peers
from arr_coc.evaluation.answers import PeerChoices, ask, encode, lattice
from arr_coc.evaluation.arms import BASELINES, BOUNDS, GROUPS, LADDER, make_arms
from arr_coc.evaluation.calibration import LEGEND
from arr_coc.evaluation.deciding import default_rules
from arr_coc.evaluation.statistics import wilson
from arr_coc.evaluation.strategies import score_strategies, with_allocators
from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.answers import calibrated

QUESTIONS = ["What is it?", "Why?", "How many of them are there?"]
IMAGES = [noise(60, 90), noise(80, 40, 1), noise(50, 50, 2)]


def write(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n", encoding="utf-8")
    return path


@pytest.fixture
def lines(tmp_path: Path) -> list[dict[str, Any]]:
    """Nine questions about three images, in an order that separates an image's questions."""
    (tmp_path / "images").mkdir()
    for number, image in enumerate(IMAGES):
        image.save(tmp_path / "images" / f"{number}.png")
    return [
        {"image": f"images/{i}.png", "question": question, "answers": ["?"], "boxes": [[10, 10, 30, 18]]}
        for question in QUESTIONS
        for i in range(len(IMAGES))
    ]


@pytest.fixture
def encoded(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images are encoded, call by call."""
    counts, encode = list[int](), model.model.encode_image
    monkeypatch.setattr(
        model.model, "encode_image", lambda pixels, *a, **kw: counts.append(len(pixels)) or encode(pixels, *a, **kw)
    )
    return counts


@pytest.mark.parametrize("batch_size", [1, 4])
def test_what_the_model_says_alone_is_what_evaluation_counts(
    model: Any, lines: list[Any], tmp_path: Path, batch_size: int, encoded: list[int]
) -> None:
    """Answers taken one by one are all right in batches, and the wrong strategy's answers are not."""
    for line in lines:
        line["answers"] = ["no", model.generate(tmp_path / line["image"], line["question"], strategy="realizer") + " "]
    records = read_records(write(tmp_path, lines))
    encoded.clear()
    found = evaluate(model, records, ["realizer", "none"], batch_size=batch_size, progress=False)["strategies"]
    assert sum(encoded) == len(IMAGES), "every image is encoded once"
    assert found["realizer"]["exact_match"]["value"] == 1.0
    assert found["none"]["exact_match"]["value"] < 1.0
    assert (found["realizer"]["tokens"], found["none"]["tokens"]) == (16 + 17, 16)
    assert found["realizer"]["n"] == found["none"]["n"] == 9
    told = found["realizer"]["answers"]
    assert [each["line"] for each in told] == [record.line for record in records]
    assert [f"{each['answer']} " for each in told] == [line["answers"][1] for line in lines]
    assert {each["score"] for each in told} == {1.0}


def test_every_combination_reads_one_encoding_and_answers_as_it_does_alone(
    model: Any, lines: list[Any], tmp_path: Path, encoded: list[int]
) -> None:
    """All allocators with two strategies, and once the one that fetches nothing."""
    names = with_allocators(["none", "saliency", "realizer"], [*ALLOCATORS])
    assert len(set(names)) == 1 + 2 * len(ALLOCATORS) and names[0] == "none" and "realizer+knapsack" in names
    records = read_records(write(tmp_path, lines))
    scored = score_strategies(model, records, names, progress=False)
    assert sum(encoded) == len(IMAGES) and list(scored) == names
    for name in names:
        strategy, _, allocator = name.partition("+")
        chosen = {"strategy": strategy, "allocator": allocator or None}
        alone = model.generate(records[0].picture, records[0].question, return_fetch=True, **chosen)
        said = scored[name].predictions[0][0]
        assert said.answer == alone.text and said.tokens == 16 + alone.fetch.budget
        assert said.patches == tuple(alone.fetch.covered()[0].nonzero()[:, 0].tolist())
    with pytest.raises(ValueError, match="allocator: expected one of .*; got 'nope'"):
        evaluate(model, records, ["saliency+nope"], progress=False)
    with pytest.raises(ValueError, match="allocator: expected one of .*; got 'nope'"):
        with_allocators(["saliency"], ["nope"])
    bare = [replace(record, boxes=()) for record in records]
    refuses('"oracle": expected boxes', evaluate, model, bare, ["oracle+window"], progress=False)


def test_the_command_prints_strategies_with_allocators(
    checkpoint: Path, lines: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(write(tmp_path, lines[:2]))
    asked = ["evaluate", data, "--model", str(checkpoint), "--strategies", "none,saliency"]
    assert main([*asked, "--allocators", "topk,knapsack"]) == 0
    scores, confidence = capsys.readouterr().out.split("In brackets: 95 % intervals.\n\n")
    for rows in (scores, confidence.removesuffix(f"{LEGEND}\n")):
        assert [line.split()[0] for line in rows.splitlines()[1:]] == ["none", "saliency+topk", "saliency+knapsack"]
    assert main([*asked, "--allocators", "all", "--allocator", "topk"]) == 2
    assert "--allocators: expected it without --allocator; got both" in capsys.readouterr().err


def test_the_command_fits_the_calibration_into_the_models_folder(
    lines: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, model = tiny_checkpoint(tmp_path / "model"), tiny_model()
    for line in lines[:5]:
        line["answers"] = [model.generate(tmp_path / line["image"], line["question"])]
    data, before = str(write(tmp_path, lines)), json.loads((folder / "config.json").read_text(encoding="utf-8"))
    asked = ["evaluate", data, "--model", str(folder), "--fit-calibration"]
    assert main([*asked, "--json", str(tmp_path / "fit.json")]) == 0
    after, fit = (
        json.loads(path.read_text(encoding="utf-8")) for path in (folder / "config.json", tmp_path / "fit.json")
    )
    assert after == {**before, "calibration": fit["weights"]} and fit["n"] == 9
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[1:3]] == ["before", "after"]
    assert f"Written to {folder / 'config.json'}: logit " in printed
    first, question = tmp_path / lines[0]["image"], lines[0]["question"]
    plain, fitted = (
        each.generate(first, question, return_fetch=True)
        for each in (model, ArrCocForConditionalGeneration.from_pretrained(folder))
    )
    expected = calibrated(plain.probability, fit["weights"], plain.evidence)
    assert fitted.text == plain.text and fitted.probability == pytest.approx(expected, rel=1e-3)
    assert main([*asked, "--json", str(tmp_path / "again.json")]) == 0  # of the probabilities of tokens, as before
    again = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))
    assert again["weights"] == pytest.approx(fit["weights"])
    capsys.readouterr()
    for arguments, message in (
        (["--strategies", "none,saliency"], "expected one strategy, that of users; got none,saliency"),
        (["--model", "none/here"], "expected --model FOLDER, which it is written into; got none/here"),
    ):
        assert main([*asked, *arguments]) == 2
        assert f"--fit-calibration: {message}" in capsys.readouterr().err


def test_recall_is_of_the_patches_under_the_boxes(model: Any, lines: list[Any], tmp_path: Path) -> None:
    del lines[0]["boxes"]
    lines[1]["boxes"] = []
    records = read_records(write(tmp_path, lines))
    found = evaluate(model, records, ["none", "variance"], progress=False)["strategies"]
    assert found["none"]["recall"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert 0 <= found["variance"]["recall"]["low"] <= found["variance"]["recall"]["value"] < 1
    with pytest.raises(ValueError, match=r'"oracle": expected boxes in every record; got 2 without, e.g. line 1'):
        evaluate(model, records, ["oracle"], progress=False)
    alone = evaluate(model, records[2:3], ["oracle"], budget=64, tiles="never", progress=False)
    one = alone["strategies"]["oracle"]["recall"]
    assert one["value"] == one["high"] == 1.0 and one["low"] < 0.5, "one image says little"
    assert alone["tiles"] == "never"
    found = evaluate(model, records[2:], ["oracle"], budget=64, progress=False)["strategies"]
    assert found["oracle"]["recall"]["value"] == 1.0
    bare = [record for record in records if not record.boxes]
    assert evaluate(model, bare, ["none"], progress=False)["strategies"]["none"]["recall"] is None


def test_not_on_the_page_has_a_precision_and_a_recall(
    model: Any, lines: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of nine are absent; it is said of two of them and of two others: 2 / 4 and 2 / 3."""
    for line in lines[:3]:
        line |= {"answers": [NOT_ON_THE_PAGE], "boxes": [], "absent": True}
    records = read_records(write(tmp_path, lines))
    said = [f" {NOT_ON_THE_PAGE}"] * 2 + ["?"] * 5 + [NOT_ON_THE_PAGE] * 2
    by_line = {record.line: text for record, text in zip(records, said, strict=True)}

    def saying(model: Any, arm: Any, asked: Any, *args: Any, **kwargs: Any) -> Any:
        answers = ask(model, arm, asked, *args, **kwargs)
        return [replace(answer, text=by_line[record.line]) for answer, record in zip(answers, asked, strict=True)]

    monkeypatch.setattr("arr_coc.evaluation.prediction_loop.ask", saying)
    found = evaluate(model, records, ["none", "oracle"], progress=False)["strategies"]
    shares = found["none"]["not_on_the_page"]
    assert (shares["precision"]["value"], shares["recall"]["value"]) == (0.5, pytest.approx(2 / 3))
    assert "50.0 %" in table(found) and "66.7 %" in table(found)
    calibration = found["none"]["calibration"]
    assert calibration["refused"]["accuracy"] == 0.5 and calibration["refused"]["n"] == 4
    assert sum(own["n"] for own in calibration["bins"]) == 9
    assert found["none"]["exact_match"]["value"] == pytest.approx(6 / 9), "the three absent of which two are right"
    by_line = dict.fromkeys(by_line, "?")
    shares = evaluate(model, records, ["none"], progress=False)["strategies"]["none"]["not_on_the_page"]
    assert shares["precision"] is None and shares["recall"]["value"] == 0.0
    there = evaluate(model, records[3:], ["none"], progress=False)["strategies"]
    assert "not_on_the_page" not in there["none"] and "not on the page" not in table(there)


def test_second_turns_are_asked_with_their_own_history(model: Any, lines: list[Any], tmp_path: Path) -> None:
    """In one batch with first turns and with other histories, each as `generate` would ask it alone."""
    for number, line in enumerate(lines):
        line["history"] = [["What is it?", f"A {number}"]] * (number % 3)
    records = read_records(write(tmp_path, lines))
    (scored,) = score_strategies(model, records, ["realizer"], progress=False).values()
    for record, said in zip(records, scored.predictions[0], strict=True):
        alone = model.generate(record.picture, record.question, history=record.history, return_fetch=True)
        assert said.answer == alone.text and said.probability == pytest.approx(alone.probability, rel=1e-3, abs=1e-6)
    twice = [lines[0] | {"history": [["Why?", text]]} for text in ("no", "yes", "no")]
    (scored,) = score_strategies(model, read_records(write(tmp_path, twice)), ["none"], progress=False).values()
    assert len(scored.predictions[0]) == 2, "the same question after the same history counts once"
    with pytest.raises(ValueError, match="history: expected turns .*, or a list of them for each of 2 questions; got"):
        model.generate(records[0].picture, ["Why?", "What?"], history=[[], [], []])


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_drawn_on_a_terminal_only(
    model: Any,
    lines: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
) -> None:
    """A file got bars too, with carriage returns."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    evaluate(model, read_records(write(tmp_path, lines), limit=2), ["none"])
    captured = capsys.readouterr()
    assert captured.out == "" and ("2/2" in captured.err) == terminal
    assert terminal or captured.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategies": ["luck"]}, r"strategy: expected one of .*; got 'luck'"),
        ({"strategies": []}, "expected records and strategies; got 1 records, 0 strategies"),
        ({"strategies": ["none"], "allocator": "all"}, r"expected one of adaptive, .*; got 'all'"),
        ({"strategies": ["none"], "budget": 257}, "budget: expected 0 to 256 patches"),
        ({"strategies": ["none"], "batch_size": 0}, "batch_size: expected at least 1; got 0"),
    ],
)
def test_bad_choices_are_refused_before_anything_runs(
    model: Any, lines: list[Any], tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    refuses(message, evaluate, model, read_records(write(tmp_path, lines), limit=1), **arguments, progress=False)


@pytest.mark.parametrize(
    ("question", "said"),
    [("word " * 600, "expected at most 512 tokens; got "), ("What \ud800?", "expected text, which UTF-8 can hold")],
)
def test_bad_questions_are_refused_with_their_line_before_any_is_asked(
    model: Any, lines: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str, said: str
) -> None:
    """The answers to the questions before them were lost."""
    records = read_records(write(tmp_path, lines))
    records[-1] = replace(records[-1], question=question)
    monkeypatch.setattr(model.model, "encode_image", None)
    refuses(f"line {records[-1].line}: question: {said}", evaluate, model, records, ["none"], progress=False)


def test_a_broken_image_is_refused_with_its_line_before_any_is_encoded(
    model: Any, lines: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = read_records(write(tmp_path, lines))[0]
    monkeypatch.setattr(model.model, "encode_image", None)
    broken = tmp_path / "broken.png"
    broken.write_bytes(Path(str(record.image)).read_bytes()[:-200])
    with pytest.raises(ValueError, match="line 7: .*broken.png: expected a whole image"):
        evaluate(model, [record, replace(record, image=broken, line=7)], ["none"], batch_size=1, progress=False)
    with pytest.raises(ValueError, match="line 7: boxes: expected boxes that reach into the image"):
        outside = replace(record, boxes=((900.0, 900.0, 990.0, 990.0),), line=7)
        evaluate(model, [record, outside], ["none"], batch_size=1, progress=False)


def test_copies_of_a_question_and_of_an_image_count_once(model: Any, lines: list[Any], tmp_path: Path) -> None:
    """Found by their pixels: the same page saved twice, also in another format, is one page."""
    for name, source in (("copy.png", 0), ("again.bmp", 0)):
        Image.open(tmp_path / "images" / f"{source}.png").save(tmp_path / "images" / name)
    copies = [{**lines[0], "image": f"images/{name}"} for name in ("copy.png", "again.bmp")] + [lines[0]] * 10
    fresh = {**copies[0], "question": "Who?"}
    records = read_records(write(tmp_path, [*lines, *copies, fresh]))
    (scored,) = score_strategies(model, records, ["none"], progress=False).values()
    assert scored.scores.shape == (1, 10) and len(set(scored.images)) == 3
    assert scored.images[9] == scored.images[0], "another question about a page that is known"
    (alone,) = evaluate(model, records[:9], ["none"], progress=False)["strategies"].values()
    (all_of_them,) = evaluate(model, records[:-1], ["none"], progress=False)["strategies"].values()
    assert all_of_them == alone


def test_only_functions_import_scipy_and_without_it_nothing_is_asked(
    model: Any, lines: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that every command starts without the extra "eval"."""
    for path in sorted(Path(arr_coc.__file__).parent.rglob("*.py")):
        for statement in ast.parse(path.read_text()).body:
            names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) and not statement.level else []
            assert not {name.split(".")[0] for name in names} & {"scipy", "matplotlib", "datasets"}, path
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    monkeypatch.setattr(model, "generate", None)
    with pytest.raises(ValueError, match=r"intervals: expected scipy \(pip install 'arr-coc\[eval\]'\); got none"):
        evaluate(model, read_records(write(tmp_path, lines)), ["none"], progress=False)


def test_bad_files_are_refused(lines: list[Any], tmp_path: Path) -> None:
    path = write(tmp_path, lines)
    del lines[1]["answers"]
    refuses("line 2: expected image, question and answers; got no answers", read_records, write(tmp_path, lines))
    for text, message in [
        ("", "expected one JSON object per line; got an empty file"),
        ("\n[1]\n", r"line 2: expected a JSON object; got '\[1\]'"),
        ('{"image": ', "line 1: expected a JSON object; got "),
        ("[" * 100_000, "line 1: expected a JSON object; got "),
    ]:
        path.write_text(text)
        refuses(message, read_records, path)
    path.write_bytes(b"\xff\xfe\x00")
    refuses("expected UTF-8 text", read_records, path)
    with pytest.raises(FileNotFoundError):
        read_records(tmp_path / "none.jsonl")
    refuses("limit: expected at least 1 record; got 0", read_records, path, limit=0)


@pytest.mark.versions
def test_wilson_agrees_with_published_values() -> None:
    """81 of 263: 0.2553 to 0.3662 (Newcombe 1998, table I); at the edges the interval stays inside 0..1."""
    interval = wilson(81, 263)
    assert (interval.low, interval.high) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))
    assert wilson(0, 20).low == 0 and wilson(20, 20).high == 1 and wilson(20, 20).low < 1
    refuses("expected 0 to n, n at least 1; got 3 of 2", wilson, 3, 2)


# ---- Peers: each published rule on tensors made by hand; exactly K patches; an item's choice is its own
# ---- the rules
def test_fastv_ranks_by_attention_dart_keeps_pivots_and_cdpruner_scales_relevance() -> None:
    """Patches at places 1 and 2: the first is looked at by many, the second by the last position."""
    attention = torch.tensor([[1.0, 0, 0, 0], [0.1, 0.9, 0, 0], [0.0, 0.8, 0.2, 0], [0.2, 0.0, 0.5, 0.3]])
    places = torch.tensor([1, 2])
    assert_close(peers.received(attention, places), torch.tensor([1.7 / 4, 0.7 / 4]))
    assert_close(peers.received(attention, places, slice(-1, None)), torch.tensor([0.0, 0.5]))
    east, north, up = torch.eye(3)
    states = torch.stack((east, 2 * east, north, east + 0.1 * up, up, north + 0.1 * east))
    pivots = torch.tensor([0])
    assert peers.least_duplicated(states, pivots, torch.empty(0, 3), 3).tolist() == [0, 2, 4]
    # A pivot of the text: what is like it is duplicated too. Each pivot adds one in its turn.
    assert peers.least_duplicated(states, pivots, -up[None], 3).tolist() == [0, 2, 4]
    assert peers.least_duplicated(states, pivots, up[None], 3).tolist() == [0, 2, 1]
    assert sorted(peers.least_duplicated(states, pivots, up[None], 6).tolist()) == list(range(6))
    text = torch.tensor([[1.0, 0], [1.0, 0]])
    patches = torch.tensor([[2.0, 0], [0, 3], [1, 1]])
    assert_close(peers.relevance(patches, text, turned=False), torch.tensor([1.0, 0.0, 0.5**0.5]))
    assert_close(peers.relevance(patches, text), torch.tensor([0.0, 1.0, 1 - 0.5**0.5]))  # the authors' sign
    assert peers.relevance(patches, text).min() > 0 and peers.relevance(patches[:1], text).tolist() == [1.0]


def test_sparsevlm_lets_the_words_about_the_image_rate() -> None:
    patches = torch.tensor([[4.0, 0, 0], [3.0, 0, 0]])
    text = torch.tensor([[0.0, 0, 1], [1.0, 0, 0], [0.0, 1, 0]])  # the second word is what the patches show
    assert peers.raters(patches, text).tolist() == [False, True, False]
    assert peers.raters(patches, text[:1].expand(3, -1)).tolist() == [True] * 3  # nobody stands out: all rate
    # Shares of 2/3, 1/3 and next to nothing: the second word's is the mean itself, so it does not rate.
    shares = torch.tensor([[2 / 3], [1 / 3], [1e-9]])
    assert peers.raters(torch.ones(1, 1), shares.log()).tolist() == [True, False, False]
    attention = torch.zeros(6, 6)
    attention[4, 1], attention[5, 1], attention[5, 2], attention[3, 2] = 0.2, 0.4, 0.3, 9.0
    assert_close(peers.received(attention, torch.tensor([1, 2]), torch.tensor([4, 5])), torch.tensor([0.3, 0.15]))


def test_greedy_steps_maximise_the_determinant() -> None:
    """Each choice is the one whose kernel has the largest determinant, by torch's own."""
    draw = torch.Generator().manual_seed(0)
    weight, states = torch.rand(12, generator=draw), torch.randn(12, 6, generator=draw)
    unit = torch.nn.functional.normalize(states, dim=-1)
    kernel = (weight[:, None] * (unit @ unit.T) * weight).double()
    chosen: list[int] = []
    for _ in range(5):
        rest = [i for i in range(12) if i not in chosen]
        chosen.append(max(rest, key=lambda i: float(torch.linalg.det(kernel[[*chosen, i]][:, [*chosen, i]]))))
    assert peers.conditional_dpp(weight, states, 5).tolist() == chosen


# ---- reading
_SMALL = {"vocab_size": 8, "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 3}


def test_reading_is_what_the_model_itself_computes() -> None:
    """Attention and hidden states as by eager attention over all layers; grouped keys; nothing is left changed."""
    config = Qwen3Config(**_SMALL, num_key_value_heads=2, head_dim=8, intermediate_size=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        language_model = AutoModel.from_config(config, attn_implementation="sdpa").eval()
        embeds = torch.randn(7, 16)
    with torch.no_grad():
        found = peers.read_prompt(language_model, embeds, 2)
        assert config._attn_implementation == "sdpa"
        language_model.set_attn_implementation("eager")
        expected = language_model(inputs_embeds=embeds[None], output_attentions=True, output_hidden_states=True)
    assert_close(found.attention, expected.attentions[1][0].mean(0))
    assert_close(found.hidden, expected.hidden_states[2][0])
    assert_close(found.normed, language_model.norm(expected.hidden_states[2])[0])
    assert found.keys.shape == (7, 16)
    with torch.no_grad():
        whole = peers.read_prompt(
            language_model, embeds, 9
        )  # no more layers than there are: what the last one puts out
    assert_close(whole.normed, expected.last_hidden_state[0])
    assert_close(language_model.norm(whole.hidden), whole.normed)


def test_prompts_that_a_model_cannot_read_are_refused() -> None:
    embeds = torch.zeros(9, 16)
    gpt = AutoModel.from_config(GPT2Config(vocab_size=8, n_embd=16, n_head=4, n_layer=2, n_positions=8)).eval()
    refuses("prompt: expected at most 8 tokens, all patches among them; got 9", peers.read_prompt, gpt, embeds, 2)
    bloom = AutoModel.from_config(BloomConfig(vocab_size=8, hidden_size=16, n_head=4, n_layer=2)).eval()
    refuses(
        "language model: expected attention by transformers' interface; got bloom", peers.read_prompt, bloom, embeds, 2
    )


# ---- as arms
def fetched(model: Any, arm: Any, images: list[Image.Image], questions: list[str]) -> list[Any]:
    records = [Record(Path("-"), question, ("?",)) for question in questions]
    return ask(model, arm, records, encode(model, images, arm.side), max_new_tokens=2)


@pytest.mark.parametrize("name", peers.PEERS)
def test_a_peer_keeps_exactly_k_and_batch_is_single(model: Any, name: str) -> None:
    (arm,) = make_arms(model.config, [name])
    together = fetched(model, arm, IMAGES, QUESTIONS)
    for number, answer in enumerate(together):
        (alone,) = fetched(model, arm, IMAGES[number : number + 1], QUESTIONS[number : number + 1])
        assert alone.fetch.indices.tolist() == answer.fetch.indices.tolist() and alone.text == answer.text
        assert answer.fetch.indices.unique().numel() == 17 and not answer.fetch.is_padding.any()
        encoding = encode(model, IMAGES[number : number + 1], 128)
        kept = peers.PeerQuestion(model, encoding, QUESTIONS[number]).kept(peers.PEERS[name], 17)
        assert kept.tolist() == answer.fetch.indices[0].tolist()  # what the rule chose is what is fetched


def test_peers_share_what_is_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All patches through the model once per question, whatever asks first; the choices are those made alone."""
    arms = make_arms(model.config, ["peers", "dart@5", "cdpruner@40"])
    records = [Record(Path("-"), question, ("?",), line=number) for number, question in enumerate(QUESTIONS)]
    encoding = encode(model, IMAGES, 128)
    alone = {arm.name: PeerChoices(model, [arm]).of(arm, records, encoding) for arm in arms}
    read, read_prompt = list[int](), peers.read_prompt
    monkeypatch.setattr(peers, "read_prompt", lambda *given: read.append(1) or read_prompt(*given))
    shared = PeerChoices(model, [*make_arms(model.config, ["none"]), *arms])
    for arm in arms:
        for ours, theirs in zip(shared.of(arm, records, encoding), alone[arm.name], strict=True):
            assert ours.equal(theirs)
    assert len(read) == len(records)


# ---- Arms: their sizes in tokens, their names, and the lattice of the uniform one
def test_arms_of_the_published_geometry_and_of_a_model_that_reads_text() -> None:
    """256 + 273 tokens are 23 x 23: the larger image is a fair match to the token."""
    arms = {arm.name: arm for arm in make_arms(ArrCocConfig())}
    assert {arms[name].tokens for name in ("random", "saliency", "realizer", "uniform", "larger", "oracle")} == {529}
    assert (arms["larger"].side, arms["larger"].strategy) == (23 * 64, "none")
    assert (arms["smaller"].side, arms["smaller"].tokens) == (6 * 64, 36 + 576)
    assert (arms["none"].tokens, arms["keep_all"].tokens) == (256, 256 + 4096)
    assert list(arms["random"].runs) == ["random.0", "random.1", "random.2"] and list(arms["none"].runs) == ["none"]
    # Rules that say nothing else are about it.
    config = tiny_config(**READS_WORDS, fetcher=SCORES_WORDS)
    names = [arm.name for arm in make_arms(config)]
    assert [arm.name for arm in make_arms(config, ["ladder"])] == ["none", "random", "saliency", "words"]
    assert not default_rules("words").missing(names) and default_rules("realizer").missing(names)


@pytest.mark.parametrize("budget", [1, 5, 17, 60])
def test_baselines_never_get_fewer_tokens(budget: int) -> None:
    arms = make_arms(tiny_config(), budget=budget)
    wanted = 16 + budget
    assert [arm.name for arm in arms] == [*LADDER, *BASELINES, *GROUPS["halves"], *BOUNDS]
    assert all(arm.tokens >= wanted for arm in arms if arm.role == "baseline")
    assert all(arm.tokens == wanted for arm in arms if arm.role == "ladder" and arm.name != "none")


def test_arms_keep_to_what_there_is() -> None:
    config = tiny_config(fetcher={"scorers": ["realizer"]})
    assert "clip_query" not in [arm.name for arm in make_arms(config)]
    assert "oracle" not in [arm.name for arm in make_arms(config, boxed=False)]
    (cut,) = make_arms(config, ["keep_all"], room=100)
    assert (cut.budget, cut.tokens) == (84, 100) and "the context holds 84 of 256" in cut.note
    with pytest.raises(ValueError, match=r"arms: expected names among .*; got \['luck', 'uniform@4'\]"):
        make_arms(config, ["none", "luck", "uniform@4"])
    refuses('arms: expected boxes in every record for "oracle"', make_arms, config, ["oracle"], boxed=False)
    refuses('seeds: expected at least one for "random"; got none', make_arms, config, ["random"], seeds=())
    assert "other_base" not in [arm.name for arm in make_arms(config, several=False)]
    # Of a model without base tokens no larger image had enough of them, which was looked for without end.
    names = {arm.name for arm in make_arms(tiny_config(bridge={"layout": "fetched"}))}
    assert {"none", "smaller", "patches_only"} <= names and not {"larger", "other_base", "other_base@0"} & names
    with pytest.raises(ValueError, match='arms: expected more than one page for "other_base"; got one'):
        make_arms(config, ["other_base"], several=False)
    with pytest.raises(ValueError, match=r"got \['other_base\+allow'\]"):
        make_arms(config, ["other_base+allow"])
    with pytest.raises(ValueError, match="expected a budget of at least 1 for patches_only; got patches_only@0"):
        make_arms(config, ["patches_only@0"])


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 400))
@settings(max_examples=200, deadline=None)
def test_a_lattice_is_of_distinct_cells(rows: int, columns: int, count: int) -> None:
    cells = lattice(rows, columns, count)
    assert len(set(cells)) == len(cells) == min(count, rows * columns)
    assert all(0 <= y < rows and 0 <= x < columns for y, x in cells)
