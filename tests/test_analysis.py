"""Analysis of a data set: clusters of relevance maps, what kinds of questions get, the page."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Cli, tiny_model
from PIL import Image

from arr_coc.data.records import Record
from arr_coc.evaluation import evaluate
from arr_coc.evaluation.reporting import Figure, Gallery, to_html, to_markdown
from arr_coc.explaining.analysis import (
    analyse,
    cluster_maps,
    effective_share,
    most_typical,
    on_page,
    typical_words,
    word_groups,
    write_analysis,
)
from arr_coc.modeling.fetcher import FetchChoices


def bumps(places: list[int], side: int = 16, seed: int = 0) -> np.ndarray:
    """Maps [n, side * side], each with a bright row at its place, and some noise."""
    maps = np.random.default_rng(seed).uniform(0, 0.01, (len(places), side, side))
    for each, place in zip(maps, places, strict=True):
        each[place] += 1
    return maps.reshape(len(places), -1)


# ---- clusters -----------------------------------------------------------------------------------------------------


@pytest.mark.versions
def test_maps_that_look_alike_are_in_one_cluster_whatever_their_scale() -> None:
    places = [2] * 5 + [9] * 7 + [14] * 3
    maps = bumps(places) * np.linspace(0.1, 10, len(places))[:, None]
    labels = cluster_maps(maps, 3, seed=1)
    assert labels.tolist() == [1] * 5 + [0] * 7 + [2] * 3  # the largest first
    assert cluster_maps(maps, 3, seed=1).tolist() == labels.tolist()


def test_there_are_no_more_clusters_than_different_maps() -> None:
    assert set(cluster_maps(np.repeat(bumps([1, 5]), 4, 0), 6)) == {0, 1}
    assert cluster_maps(np.zeros((3, 4)), 6).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="clusters: expected at least 1; got 0"):
        cluster_maps(np.ones((3, 4)), 0)


def test_the_most_typical_map_is_the_one_in_the_middle() -> None:
    maps = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [9.0, 0.0, 9.0]])
    assert most_typical(maps, np.array([0, 1, 2]), 2)[0] == 1


def test_relevance_is_spread_over_a_share_of_the_page() -> None:
    maps = np.zeros((3, 8))
    maps[0], maps[1, 3], maps[2, :2] = 0.4, 1, 5
    np.testing.assert_allclose(effective_share(maps), [1, 1 / 8, 2 / 8])


def test_a_map_is_that_of_the_page_without_its_padding() -> None:
    """A page half as high as wide fills the middle rows of the grid; what is relevant above it is padding."""
    relevance = np.zeros((8, 8))
    relevance[:2], relevance[2:4] = 9, 1
    page = on_page(relevance, (50, 100))
    np.testing.assert_allclose(page[:8], 1)
    np.testing.assert_allclose(page[8:], 0)


# ---- words --------------------------------------------------------------------------------------------------------


def test_words_of_the_same_questions_share_a_row() -> None:
    words = [{"what", "is", "the", "total"}, {"can", "you", "the", "date"}, {"can", "you", "the", "total"}, {"the"}]
    assert word_groups(words) == {"can, you": [1, 2], "total": [0, 2]}


def test_a_word_stands_out_by_more_than_chance() -> None:
    inside = np.arange(40) < 20
    words = [{"the", "total"} if place < 18 else {"the", "date"} for place in range(40)]
    assert typical_words(words, inside) == ["total"]
    assert typical_words([{"a"} if place % 2 else {"b"} for place in range(40)], inside) == []


# ---- the whole ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder, records = tmp_path_factory.mktemp("pages"), []
    for number, size in enumerate(((60, 90), (90, 60))):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        for kind in ("total", "date"):
            tags = (("kind", kind),)
            asked = f"What is the {kind}?"
            box = (10.0, 10.0, 30.0, 20.0)
            records.append(Record(folder / f"{number}.png", asked, ("1",), (box,), len(records) + 1, tags=tags))
    return records


def test_scores_are_those_of_evaluate_and_budgets_those_that_were_spent(records: list[Record], tmp_path: Path) -> None:
    model = tiny_model()
    choices = FetchChoices(strategy="realizer", allocator="knapsack", budget=20, seed=0)
    found = analyse(model, records, choices, clusters=2, examples=1, progress=False, data="pages")
    expected = evaluate(model, records, ["realizer"], allocator="knapsack", budget=20, seed=0, progress=False)
    whole = found.numbers["all"]
    assert whole["score"] == expected["strategies"]["realizer"]["exact_match"]
    assert whole["recall"] == expected["strategies"]["realizer"]["recall"]
    assert whole["tokens"] == {"least": 20, "mean": 20.0, "greatest": 20}
    assert sum(whole["share_of_tokens_by_patches"].values()) == pytest.approx(1)
    assert sum(cluster["n"] for cluster in found.numbers["clusters"]) == len(records) == found.numbers["n"]
    kinds = {table["by"]: [row["kind"] for row in table["rows"]] for table in found.numbers["kinds"]}
    assert kinds["kind"] == ["date", "total"] and kinds["words of the question"] == ["date", "total"]
    held = model.generate(records[0].picture, records[0].question, choices=choices, return_fetch=True, do_sample=False)
    assert found.traces[0].boxes.shape == (len(held.sources), 4)
    np.testing.assert_allclose(found.traces[0].boxes[0], np.divide(held.sources[0].box, (90, 60, 90, 60)), atol=1e-6)

    page = write_analysis(tmp_path, model, found, "arr-coc analyse").read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)=(?!"data:)', page) and "http" not in page  # needs nothing else
    assert page.count("<img") >= 2 * (2 + 1) and any(record.question in page for record in records)
    assert json.loads((tmp_path / "analysis.json").read_text()) == json.loads(json.dumps(found.numbers))


def test_the_command_writes_a_page(cli: Cli, checkpoint: Path, records: list[Record], tmp_path: Path) -> None:
    lines = [{"image": str(each.image), "question": each.question, "answers": ["1"]} for each in records]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--model", checkpoint, "--out", tmp_path / "why", "--limit", "2", "--strategy", "none")
    code, out, _ = cli("analyse", tmp_path / "data.jsonl", *options)
    numbers = json.loads((tmp_path / "why" / "analysis.json").read_text())
    assert code == 0 and str(tmp_path / "why" / "analysis.html") in out
    assert numbers["all"]["recall"] is None and numbers["all"]["centre"] is None and len(numbers["clusters"]) == 1

    def refused(*more: Any) -> str:
        code, out, err = cli("analyse", tmp_path / "data.jsonl", *options, *more)
        err = err.partition("\n")[2] if err.startswith("Loading ") else err
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    assert "clusters: expected at least 1; got 0" in refused("--clusters", "0")
    assert "got 'luck'" in refused("--strategy", "luck")


def test_a_document_is_analysed_by_the_page_that_most_was_fetched_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pages = [Image.fromarray(rng.integers(0, 256, (70, 50, 3), dtype=np.uint8)) for _ in range(2)]
    pages[0].save(tmp_path / "two.tiff", save_all=True, append_images=pages[1:])
    record = Record(tmp_path / "two.tiff", "What is it?", ("1",), line=1)
    model = tiny_model()
    for path in ("first.png", "second.png"):
        pages[path == "second.png"].save(tmp_path / path)
    several = Record(tmp_path / "first.png", "What is it?", ("1",), line=2, others=(tmp_path / "second.png",))
    found = analyse(model, [record, several], FetchChoices(budget=20), progress=False)
    for each in found.traces:
        assert each.source == np.bincount(each.sources).argmax() and len(each.boxes) == 20
    write_analysis(tmp_path, model, found, "")


def test_a_gallery_is_a_row_of_pictures(tmp_path: Path) -> None:
    png = b"\x89PNG" + b"0" * 8
    gallery = Gallery([Figure("one", png, "One"), Figure("two", b"\xff\xd8", "Two")])
    page = to_html("Title", [gallery])
    assert page.count("<figure>") == 2 and "data:image/png" in page and "data:image/jpeg" in page
    text = to_markdown("Title", [gallery], tmp_path)
    assert "(one.png)" in text and "(two.jpg)" in text and (tmp_path / "one.png").read_bytes() == png
