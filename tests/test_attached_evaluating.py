"""`arr-coc evaluate` of published models: what it counts is what the reader answers and fetches."""

import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import exp, prod
from pathlib import Path
from typing import Any

import openai
import pytest
import transformers
from attached_models import picture, published
from helpers import Cli, png, refuses
from PIL import Image
from serving_client import ask, chat, data_url, serving, text_of, until

import arr_coc
from arr_coc.attached import AttachedReader
from arr_coc.attached.reader import load_reader
from arr_coc.data.records import read_records
from arr_coc.evaluation import evaluate
from arr_coc.evaluation.arms import Arm
from arr_coc.evaluation.prediction_loop import predict_all
from arr_coc.evaluation.strategies import score_strategies, usable_strategies
from arr_coc.serving.app import Server
from arr_coc.serving.settings import ServerSettings, UseSettings

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
    for name, part in predict_all(reader, arms, data, batch_size=8, progress=False):
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
        ("both", ["--tiles", "3"], "tiles: expected none with a idefics3 model; got 3"),
        ("both", ["--passes", "2"], "passes: expected none with a idefics3 model; got 2"),
        ("both", ["--allocator", "window"], "allocator: expected none with a idefics3 model; got window"),
        ("evaluate", ["--allocators", "all"], "--allocators: expected none with a idefics3 model; got all"),
        ("evaluate", ["--strategies", "clip_query"], "strategies: expected names among attention, similarity"),
        ("ask", ["--strategy", "clip_query"], "strategy: expected one of attention"),
        ("evaluate", ["--strategies", "realizer"], "expected a trained scorer"),
        ("evaluate", ["--strategies", "none@3"], "strategies: expected none without a budget; got none@3"),
        ("evaluate", ["--strategies", "saliency@much"], "budget: expected a share, a number of tokens or one of"),
        ("ask", ["--budget", "auto"], "budget: expected a share, a number of tokens or one of"),
        ("both", ["--budget", "1.5"], "budget: expected a share in 0..1; got 1.5"),
        ("evaluate", ["--strategies", "oracle"], "expected boxes in every record; got 1 without, e.g"),
        ("evaluate", ["--batch-size", "0"], "batch_size: expected at least 1; got 0"),
    ],
)
def test_other_options_are_refused(
    cli: Cli, attached_folder: Path, command: str, options: list[str], message: str, tmp_path: Path
) -> None:
    row: dict[str, Any] = {"image": "0.png", "question": "What?", "answers": ["1"]}
    path = write(tmp_path, [{**row, "boxes": [BOX]}, {**row, "boxes": []}])
    for asked in (("evaluate", path), ("ask", tmp_path / "0.png", "What?")):
        if command in ("both", asked[0]):
            code, out, err = cli(*asked, "--model", attached_folder, *options)
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


# ---- The server with a published model: answers are those of `AttachedReader.generate`, whoever else asks
SIZES = [(150, 220), (200, 120), (150, 220)]
SERVED_PAGES = [picture(*size, seed=seed) for seed, size in enumerate(SIZES)]
URLS = [data_url(png(page)) for page in SERVED_PAGES]
INVOICES = Path(__file__).parents[1] / "examples/images/invoices.pdf"
SETTINGS = ServerSettings(cache_tokens=2500, max_waiting=64, max_running=6, max_pixels=5_000_000)


@pytest.fixture(scope="module", params=["qwen3_vl", "gemma3"])
def host(request: pytest.FixtureRequest) -> AttachedReader:
    return arr_coc.attach(*published(request.param))


@pytest.fixture(scope="module")
def served(host: AttachedReader, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, Any]]:
    with serving(host, SETTINGS, UseSettings(feedback=tmp_path_factory.mktemp("said"))) as running:
        yield running


@pytest.fixture(scope="module")
def client(served: tuple[Server, str, Any]) -> Any:
    return served[2]


def test_clients_get_what_reader_says(served: tuple[Server, str, Any], host: AttachedReader, client: Any) -> None:
    """Images, strategies, budgets and lengths mixed in one batch."""
    cases = [
        (number % 3, f"What is {number}?", ("attention", "saliency", "similarity")[number % 3], budget, 3 + number % 5)
        for number, budget in enumerate([0.5, 8, 1.0, "fast", 0.3, 2] * 2)
    ]

    def answer(case: tuple[int, str, str, Any, int]) -> str:
        page, question, strategy, budget, length = case
        choices = {"strategy": strategy, "budget": budget}
        return text_of(ask(client, question, URLS[page], max_tokens=length, extra_body=choices))

    sizes, generate = list[int](), host.runner.answers

    def watched(asked: Any, *args: Any) -> Any:
        sizes.append(len(asked))
        return generate(asked, *args)

    host.runner.answers = watched  # type: ignore[method-assign]
    try:
        with ThreadPoolExecutor(12) as threads:
            answers = list(threads.map(answer, cases))
    finally:
        host.runner.answers = generate  # type: ignore[method-assign]
    expected = [
        host.generate(SERVED_PAGES[page], question, strategy=strategy, budget=budget, max_new_tokens=length)
        for page, question, strategy, budget, length in cases
    ]
    assert answers == expected and len(set(answers)) > 6
    assert sum(sizes) == len(cases) and 1 < max(sizes) <= 6
    assert until(lambda: not served[0].engine.running)


def test_a_streamed_answer_comes_in_pieces(host: AttachedReader, client: Any) -> None:
    """Most tokens of a model without training are special ones or parts of characters: one of eight answers has two."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    most = 0
    for question in ("Who?", "Why?", "Where?", "When?", "How?", "Which?", "Whose?", "What?"):
        *pieces, end, usage = ask(client, question, URLS[0], max_tokens=12, **options)
        expected = host.generate(SERVED_PAGES[0], question, max_new_tokens=12, return_fetch=True)
        parts = [content for piece in pieces if (content := piece.choices[0].delta.content)]
        assert "".join(parts) == expected.text
        most = max(most, len(parts))
    assert most > 1
    whole = ask(client, "What?", URLS[0], max_tokens=12, logprobs=True)
    told = [token.logprob for token in whole.choices[0].logprobs.content]
    assert text_of(whole) == expected.text and prod(map(exp, told)) == pytest.approx(expected.probability, rel=1e-2)
    assert end.choices[0].finish_reason == "length" and usage.usage.completion_tokens == 12
    seen = end.arr_coc["images"]
    assert [(page["height"], page["width"], page["warnings"]) for page in seen] == [(*SIZES[0], [])]
    assert (end.arr_coc["strategy"], end.arr_coc["patches"]) == ("attention", [len(expected.sources)])


def test_several_images_documents_and_earlier_turns(host: AttachedReader, client: Any) -> None:
    both = ask(client, "What?", *URLS[:2], extra_body={"budget": 0.5})
    expected = host.generate([SERVED_PAGES[:2]], "What?", budget=0.5, return_fetch=True)[0]
    assert text_of(both) == expected.text and len(both.arr_coc["images"]) == 2
    assert both.arr_coc["patches"] == [sum(origin.source == page for origin in expected.sources) for page in (0, 1)]
    document = ask(client, "What?", data_url(INVOICES.read_bytes()), extra_body={"strategy": "saliency"})
    assert text_of(document) == host.generate(INVOICES, "What?", strategy="saliency")
    turns = [*chat("Who?", URLS[0]), {"role": "assistant", "content": "Me."}, {"role": "user", "content": "What?"}]
    answer = client.chat.completions.create(model="tiny", messages=turns)
    assert text_of(answer) == host.generate(SERVED_PAGES[0], "What?", history=[("Who?", "Me.")])
    said = {"strategy": "words", "words": [["Total", [0, 0, 40, 20]]], "budget": 4}
    assert ask(client, "What is the total?", URLS[0], extra_body=said).arr_coc["strategy"] == "words"


def test_a_client_that_goes_takes_its_question_along(served: tuple[Server, str, Any], client: Any) -> None:
    stream = ask(client, "What?", URLS[0], stream=True, max_tokens=1000)
    next(iter(stream))
    assert served[0].engine.running == 1
    stream.close()
    assert until(lambda: not served[0].engine.running, 5)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an allocator": ({"extra_body": {"allocator": "window"}}, "allocator: expected none with a "),
    "passes": ({"extra_body": {"num_passes": 2}}, "num_passes: expected none with a "),
    "a share": ({"extra_body": {"budget": 1.5}}, "budget: expected a share in 0..1; got 1.5"),
    "a share below the base": ({"extra_body": {"budget": 0.001}}, "what the base takes; got 0.001"),
    "a budget": ({"extra_body": {"budget": "auto"}}, "budget: expected a share, a number of tokens or one of"),
    "a strategy": ({"extra_body": {"strategy": "clip_query"}}, "strategy: expected one of attention"),
    "no boxes": ({"extra_body": {"strategy": "oracle"}}, "boxes: expected boxes with strategy oracle"),
    "no words": ({"extra_body": {"strategy": "words"}}, "expected a PDF with a text layer, or words="),
    "no scorer": ({"extra_body": {"strategy": "realizer"}}, "expected a trained scorer"),
    "too many tokens": ({"max_tokens": 1024, "messages": chat("x" * 2000, URLS[0])}, "the context of 2500 holds no"),
    "a long question": ({"messages": chat("x" * 3000, URLS[0])}, "expected a prompt of fewer than 2500 tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_why(case: str, client: Any) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "tiny", "messages": chat("What?", URLS[0]), **changes})
    assert message in str(caught.value.body)


def test_a_generation_that_fails_is_tried_again_question_by_question(
    served: tuple[Server, str, Any], host: AttachedReader, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate, began = host.runner.answers, list[int]()

    def failing(asked: Any, *args: Any) -> Any:
        began.append(len(asked))
        until(lambda: served[0].engine.waiting > 1 or len(began) > 1, 5)
        if len(asked) > 1:
            raise RuntimeError("out of memory")
        return generate(asked, *args)

    monkeypatch.setattr(host.runner, "answers", failing)
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: text_of(ask(client, "What?", URLS[0])), range(4)))
    assert len(set(answers)) == 1 and began.count(1) == 4 and len(began) > 4


def test_a_stop_in_the_middle_of_an_answer_is_told(host: AttachedReader) -> None:
    with serving(host, SETTINGS) as (server, _, own):
        stream = ask(own, "What?", URLS[0], stream=True, max_tokens=1000)
        next(iter(stream))
        server.engine.stop()
        with pytest.raises(openai.APIError, match="the server ended before the answer did"):
            list(stream)


def test_tokens_are_drawn_as_the_model_says_where_nobody_says_otherwise(
    served: tuple[Server, str, Any], host: AttachedReader, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As published generation configs do: a narrow top_k leaves the likeliest token alone."""
    config, generate, given = (
        host.model.generation_config,
        host.model.generate,
        list[dict[str, Any]](),
    )

    def watched(*args: Any, **kwargs: Any) -> Any:
        given.append(kwargs)
        return generate(*args, **kwargs)

    monkeypatch.setattr(host.model, "generate", watched)
    monkeypatch.setattr(config, "top_k", 1)
    cold, warm = (text_of(ask(client, "What?", URLS[0], temperature=value)) for value in (0.0, 2.0))
    assert cold == warm and [own["do_sample"] for own in given] == [False, True]
    assert (given[1]["temperature"], given[1]["top_p"], given[1]["top_k"]) == (2.0, 1.0, 1)


def test_what_only_our_own_models_have_is_refused(cli: Cli, attached_folder: Path, tmp_path: Path) -> None:
    for option in ("--examples", "--versions"):
        code, out, err = cli("serve", attached_folder, option, tmp_path / "kept")
        expected = f"{option.removeprefix('--')}: expected none with a idefics3 model; got a folder"
        assert (code, out) == (2, "") and err.endswith(f" ...\narr-coc: error: {expected}\n")  # behind "Loading"
