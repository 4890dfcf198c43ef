"""`arr-coc evaluate` of published models: what it counts is what the reader answers and fetches."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from attached_models import picture, published
from helpers import Cli, refuses
from PIL import Image

import arr_coc
from arr_coc.attached import AttachedReader
from arr_coc.attached.reader import load_reader
from arr_coc.data.records import read_records
from arr_coc.evaluation import evaluate
from arr_coc.evaluation.arms import Arm
from arr_coc.evaluation.strategies import predict_attached, score_strategies, usable_strategies

PAGES = [picture(150, 220), picture(200, 120, seed=1), picture(150, 220, seed=2)]
BOX = (10.0, 20.0, 60.0, 50.0)


@pytest.fixture
def reader() -> AttachedReader:
    return arr_coc.attach(*published("qwen3_vl"))


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Questions about `PAGES`, as a file."""
    for number, page in enumerate(PAGES):
        page.save(folder / f"{number}.png")
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "data.jsonl"


def rows(reader: AttachedReader, **options: Any) -> list[dict[str, Any]]:
    """Questions of several kinds, whose answers are the reader's own with some options."""
    asked: list[dict[str, Any]] = [
        {"image": "0.png", "question": "What?"},
        {"image": "1.png", "question": "What?"},
        {"image": "0.png", "question": "Who is it?"},
        {"image": "0.png", "question": "What?", "history": [["Who?", "Me."]]},
        {"images": ["1.png", "2.png"], "question": "What?"},
    ]
    for row in asked:
        shown = [[PAGES[int(name[0])] for name in row.get("images", [row.get("image")])]]
        said = reader.generate(shown, row["question"], history=row.get("history", []), **options)
        row |= {"answers": said, "boxes": [BOX]}
    return asked


def test_what_the_reader_says_alone_is_what_evaluation_counts(reader: AttachedReader, tmp_path: Path) -> None:
    """Answers taken one by one are all right in batches, and the wrong strategy's answers are not."""
    options = {"strategy": "saliency", "budget": 0.4}
    data = read_records(write(tmp_path, rows(reader, **options)))
    names = ["saliency", "saliency@0.4", "none", "keep_all", "oracle"]
    report = evaluate(reader, data, names, batch_size=2, budget=0.3, progress=False, data="pages")
    found = report["strategies"]
    assert list(found) == names and found["saliency@0.4"]["exact_match"]["value"] == 1.0
    assert found["none"]["exact_match"]["value"] < 1.0 and {row["n"] for row in found.values()} == {5}
    assert found["none"]["recall"]["value"] == 0.0 and found["keep_all"]["recall"]["value"] == 1.0
    assert found["oracle"]["recall"]["value"] == 1.0 and 0 < found["saliency"]["recall"]["value"] < 1
    prompts = [reader.encode_image([[PAGES[int(place)] for place in shown]]).prompts[0] for shown in ("0", "1", "12")]
    wide, tall, pair = map(len, prompts)
    assert found["keep_all"]["tokens"] == (3 * wide + tall + pair) / 5
    assert found["none"]["tokens"] == sum(len(prompts[number].base) for number in (0, 0, 0, 1, 2)) / 5
    assert found["saliency"]["tokens"] == (3 * round(0.3 * wide) + round(0.3 * tall) + round(0.3 * pair)) / 5
    assert (report["budget"], report["metric"], report["data"]) == (0.3, "exact_match", "pages")


def test_what_was_fetched_is_kept(reader: AttachedReader, tmp_path: Path) -> None:
    data = read_records(write(tmp_path, rows(reader, strategy="attention")))
    arms = [Arm("attention", "ladder", "attention", 0.25, "topk", side=0, tokens=0)]
    said: dict[int, Any] = {}
    for name, part in predict_attached(reader, arms, data, batch_size=8, progress=False):
        assert name == "attention"
        said |= part
    assert sorted(said) == [0, 1, 2, 3, 4]
    answer = reader.generate([PAGES[1:]], "What?", strategy="attention", return_fetch=True)[0]
    assert said[4].fetched == tuple((origin.source, *(round(x, 1) for x in origin.box)) for origin in answer.sources)
    assert (said[4].sources, said[4].size, said[4].answer) == (2, (200, 120), answer.text)
    first = int(answer.fetch.relevance[0, answer.fetch.indices[0]].argmax())
    assert said[4].best == answer.sources[first].source
    assert said[0].image == said[2].image != said[1].image


def test_random_draws_for_each_question(reader: AttachedReader, tmp_path: Path) -> None:
    data = read_records(write(tmp_path, rows(reader)))

    def fetched(size: int, seed: int | None) -> list[Any]:
        scored = score_strategies(reader, data, ["random"], batch_size=size, seed=seed, budget=4, progress=False)
        return [own.fetched for own in scored["random"].predictions[0]]

    first = fetched(8, None)
    assert first == fetched(1, None) != fetched(8, 1) and first[0] != first[2]


def test_the_command_prints_a_table(cli: Cli, attached_folder: Path, tmp_path: Path) -> None:
    small = arr_coc.attach(*published("idefics3"))
    path = write(tmp_path, rows(small, budget=1.0))
    options = ("--model", attached_folder, "--budget", "0.2", "--json", tmp_path / "out.json", "--strategies", "all")
    code, out, err = cli("evaluate", path, *options)
    assert code == 0, err
    report = json.loads((tmp_path / "out.json").read_text())
    assert [*report["strategies"]] == usable_strategies(small, oracle=True)
    assert [*report["strategies"]] == ["attention", "similarity", "saliency", "random", "oracle", "none", "keep_all"]
    assert report["strategies"]["keep_all"]["exact_match"]["value"] == 1.0 and "keep_all" in out and "100.0 %" in out
    assert cli("evaluate", path, *options[:2], "--strategies", "none", "--limit", "1")[0] == 0


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("evaluate", ["--tiles", "auto"], "tiles: expected none with a idefics3 model; got auto"),
        ("ask", ["--tiles", "3"], "--tiles: expected none with a idefics3 model; got 3"),
        ("evaluate", ["--passes", "2"], "num_passes: expected none with a idefics3 model; got 2"),
        ("ask", ["--passes", "2"], "--passes: expected none with a idefics3 model; got 2"),
        ("evaluate", ["--allocator", "window"], "allocator: expected none with a idefics3 model; got window"),
        ("ask", ["--allocator", "window"], "--allocator: expected none with a idefics3 model; got window"),
        ("evaluate", ["--allocators", "all"], "--allocators: expected none with a idefics3 model; got all"),
        ("evaluate", ["--strategies", "clip_query"], "strategies: expected names among attention, similarity"),
        ("ask", ["--strategy", "clip_query"], "strategy: expected one of attention"),
        ("evaluate", ["--strategies", "realizer"], "expected a trained scorer"),
        ("evaluate", ["--strategies", "none@3"], "strategies: expected none without a budget; got none@3"),
        ("evaluate", ["--strategies", "saliency@much"], "budget: expected a share, a number of tokens or one of"),
        ("ask", ["--budget", "auto"], "budget: expected a share, a number of tokens or one of"),
        ("evaluate", ["--budget", "1.5"], "budget: expected a share in 0..1; got 1.5"),
        ("ask", ["--budget", "1.5"], "budget: expected a share in 0..1; got 1.5"),
        ("evaluate", ["--strategies", "oracle"], "expected boxes in every record; got 1 without, e.g"),
        ("evaluate", ["--batch-size", "0"], "batch_size: expected at least 1; got 0"),
    ],
)
def test_other_options_are_refused(
    cli: Cli, attached_folder: Path, command: str, options: list[str], message: str, tmp_path: Path
) -> None:
    asked: list[dict[str, Any]] = [{"image": "0.png", "question": "What?", "answers": ["1"], "boxes": [BOX]}]
    path = write(tmp_path, [*asked, {**asked[0], "boxes": []}])
    given = (path,) if command == "evaluate" else (tmp_path / "0.png", "What?")
    code, out, err = cli(command, *given, "--model", attached_folder, *options)
    assert (code, out) == (2, "") and message in err


def test_boxes_beside_the_image_are_refused(reader: AttachedReader, tmp_path: Path) -> None:
    row = {"image": "0.png", "question": "What?", "answers": ["1"], "boxes": [(300, 0, 320, 20)]}
    data = read_records(write(tmp_path, [row]))
    with pytest.raises(ValueError, match="line 1: boxes: expected boxes that reach into source 0 of 220 x 150 px"):
        evaluate(reader, data, ["none"], progress=False)


# ---- `arr-coc ask` with a published model in a folder, and what the pages about published models show
ROOT = Path(__file__).parents[1]
PDF = ROOT / "examples/images/invoices.pdf"


def test_the_answer_is_the_readers(cli: Cli, attached_folder: Path, picture: Path, tmp_path: Path) -> None:
    drawn = tmp_path / "out.png"
    options = ("--budget", "0.5", "--strategy", "saliency", "--picture", drawn)
    code, out, err = cli("ask", picture, "What?", "--model", attached_folder, *options)
    reader = arr_coc.attach(*published("idefics3"))
    expected = reader.generate(picture, "What?", budget=0.5, strategy="saliency", return_fetch=True)
    assert (code, out) == (0, expected.text + "\n")
    fetched = len(expected.fetch.indices[0])
    amount = (
        f"{fetched} of {expected.fetch.scores.shape[1]} patches fetched (outlined), beside {expected.fetch.base} base"
    )
    assert f"strategy saliency, allocator topk: {amount} tokens (grid); picture in" in err
    with Image.open(drawn) as image:
        assert max(image.size) >= 512


def test_words_of_a_file_lead_to_tokens(cli: Cli, attached_folder: Path, picture: Path, tmp_path: Path) -> None:
    word = "<span class='ocrx_word' title='bbox 10 10 60 30'>Total</span>"
    boxed = f"<span class='ocr_line' title='bbox 10 10 60 30'>{word}</span>"
    said = tmp_path / "page.hocr"
    said.write_text(f"<html><body><div class='ocr_page' title='bbox 0 0 640 480'>{boxed}</div></body></html>")
    options = ("--model", attached_folder, "--strategy", "words", "--budget", "2", "--json")
    code, out, err = cli("ask", picture, "What is the total?", *options, "--words", said)
    assert code == 0 and json.loads(out)["sources"][0]["box"][:2] == [0, 0], err
    code, out, _ = cli(
        "ask", PDF, "What?", "--model", attached_folder, "--budget", "100", "--strategy", "random", "--json"
    )
    found = json.loads(out)
    assert code == 0 and found["tokens"]["fetched"] == 100 and found["strategy"] == "random"
    assert {source["page"] for source in found["sources"]} == {1, 2}


def test_a_folder_that_does_not_load_is_refused(attached_folder: Path, checkpoint: Path, tmp_path: Path) -> None:
    assert load_reader(None) is None and load_reader(str(checkpoint)) is None
    folder = shutil.copytree(attached_folder, tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"damaged")
    refuses("expected what AutoModelForImageTextToText loads; got", load_reader, str(folder))


@pytest.mark.parametrize("page", ["README.md", "docs/published-models.md"])
def test_what_the_pages_show_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tiny model in the place of the Hub's, and few steps of training."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"arr_coc": arr_coc}
    for kind, part in zip(("AutoModelForImageTextToText", "AutoProcessor"), published("qwen3_vl"), strict=True):
        space[kind] = getattr(transformers, kind)
        monkeypatch.setattr(space[kind], "from_pretrained", lambda *args, part=part, **kwargs: part)
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block.replace("steps=200", "steps=1"), page, "exec"), space)
    assert space["answer"].fetch.strategy == "attention" and space["answer"].sources
