"""Seeing why: what led to an answer, as numbers and figures."""

import json
import math
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fetching import fetch_of
from helpers import LARGE_TEXT, PAGE, Cli, noise, refuses, tiny_config, tiny_model
from matplotlib.text import Text
from PIL import Image
from tiny_pdf import paged

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.explaining.evidence import AnswerEvidence, SeenImage, evidence_json, gather_evidence, is_untrained, see
from arr_coc.explaining.figures import draw_evidence, draw_passes, draw_strategies, save
from arr_coc.modeling.fetcher import FetchChoices, FetchResult
from arr_coc.viewing import MARGIN, NARROWEST, OUTLINE_COLOUR, SHORTEST, describe, draw_fetch, draw_sheet

QUESTION = "What is the total? $5 or $6?"
HELD = ["realizer", "clip_query", "compositional", "shannon_jung_vervaeke", "experts"]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(fetcher={"scorers": HELD})


@pytest.fixture(scope="module")
def seen(model: Any) -> SeenImage:
    return see(model, PAGE)  # wide, so that the grid has padding


def evidence_of(model: Any, seen: SeenImage, **choices: Any) -> AnswerEvidence:
    return gather_evidence(model, seen, QUESTION, FetchChoices(**choices))


def parts(figure: Any) -> Any:
    return [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]


def texts(figure: Any) -> str:
    return "\n".join(text.get_text() for text in parts(figure))


# ---- evidence
@pytest.mark.parametrize("strategy", ["compositional", "shannon_jung_vervaeke"])
def test_maps_times_weights_order_patches_as_the_relevance_does(model: Any, seen: SeenImage, strategy: str) -> None:
    """What is shown is what was decided by: the temperature, which is above 0, keeps the order."""
    evidence = evidence_of(model, seen, strategy=strategy)
    weights = [each.weight for each in evidence.inner]
    assert all(weight is not None for weight in weights) and sum(weights) == pytest.approx(1)  # type: ignore[arg-type]
    total = np.sum([each.weight * each.values for each in evidence.inner if each.weight is not None], 0)
    scorer = model.model.fetcher.scorers[strategy]
    logits = scorer.temperature(torch.from_numpy(total)[..., None]).squeeze(-1)
    np.testing.assert_allclose(logits.sigmoid().detach().numpy(), evidence.relevance, atol=1e-4)


def test_weights_that_are_as_they_began_are_called_untrained(model: Any) -> None:
    """An assembled checkpoint's scorer is new: its map means nothing, and the figure must say so."""
    fresh = ArrCocForConditionalGeneration(tiny_config()).eval()
    fresh.generation_config, fresh.processor = model.generation_config, model.processor
    assert is_untrained(fresh.model.fetcher.scorers["realizer"])
    assert not is_untrained(model.model.fetcher.scorers["realizer"])
    assert not is_untrained(fresh.model.fetcher.scorer("saliency"))
    seen = see(fresh, PAGE)
    evidence = evidence_of(fresh, seen)
    assert evidence.untrained and evidence_json(evidence)["untrained"]
    assert len(evidence.inner) == 2  # clip_query's space is as new
    assert "relevance (realizer, untrained)" in texts(draw_evidence(seen, evidence))


def test_the_answer_is_that_of_generate_and_looking_changes_nothing(model: Any, seen: SeenImage) -> None:
    evidence = evidence_of(model, seen, strategy="realizer", budget=9)
    asked = {"strategy": "realizer", "budget": 9, "return_fetch": True, "do_sample": False}
    plain = model.generate(seen.image, QUESTION, **asked)
    assert evidence.answer.text == plain.text and 0 < evidence.uncertainty < 1
    assert evidence.fetch.indices.tolist() == plain.fetch.indices.tolist()
    passes = model.generate(seen.image, QUESTION, **asked, num_passes=2, exploration="none")
    assert evidence.uncertainty == pytest.approx(passes.passes[0].uncertainty, abs=1e-4)


def test_unknown_textures_and_passes_without_a_history_are_refused(model: Any, seen: SeenImage) -> None:
    with pytest.raises(ValueError, match="textures: expected names among luminance, .*; got 'variance_1'"):
        gather_evidence(model, seen, QUESTION, FetchChoices(), texture_names=("variance_1",))
    refuses("evidence: expected an answer in passes .*; got a single one", draw_passes, seen, evidence_of(model, seen))


# ---- figures
def test_a_figure_says_what_was_measured(model: Any, seen: SeenImage, tmp_path: Path) -> None:
    """The dollar signs of the question began a formula, and the text between them was set in italics."""
    evidence = evidence_of(model, seen, strategy="compositional", allocator="quadtree", budget=20)
    figure = draw_evidence(seen, evidence)
    said = texts(figure)
    assert QUESTION in said and evidence.answer.text in said
    for each in evidence.inner:
        assert f"{each.name} × {each.weight:.2f}" in said
    assert all(each.name in said for each in evidence.textures)
    assert not any(text.get_parse_math() for text in parts(figure) if "$" in text.get_text())
    save(figure, tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as drawn:
        assert drawn.width > 900


def overlapping(figure: Any) -> list[Any]:
    """Texts that cover one another."""
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    boxes = {text: text.get_window_extent(renderer) for text in parts(figure)}
    return [pair for pair in combinations(boxes, 2) if boxes[pair[0]].overlaps(boxes[pair[1]])]


@pytest.mark.parametrize("size", [(40, 120), (120, 40)])
def test_no_text_covers_another_and_none_leaves_the_page(model: Any, size: tuple[int, int]) -> None:
    seen = see(model, Image.new("RGB", size, "white"))
    long = gather_evidence(
        model, seen, "What is written there? " * 12, FetchChoices(strategy="experts", num_passes=3, budget=5)
    )
    for figure in (draw_evidence(seen, long), draw_passes(seen, long), draw_strategies(seen, [long] * 5)):
        assert overlapping(figure) == []
        renderer, page = figure.canvas.get_renderer(), figure.bbox
        for text in parts(figure):
            box = text.get_window_extent(renderer)
            assert box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 - 1 and box.y1 <= page.y1, text


# ---- the command
def test_look_draws_figures_and_keeps_their_numbers(cli: Cli, checkpoint: Path, picture: Path, tmp_path: Path) -> None:
    options = ("--passes", "2", "--budget", "5", "--strategies", "saliency,realizer", "--textures", "x,y")
    code, out, _ = cli("look", picture, "What?", "Where?", "--model", checkpoint, "--out", tmp_path / "why", *options)
    content = json.loads((tmp_path / "why" / "look.json").read_text())
    names = [f"{kind}-{number}.png" for number in (1, 2) for kind in ("question", "passes", "strategies")]
    assert code == 0 and [name for asked in content["questions"] for name in asked["figures"]] == names
    assert all((tmp_path / "why" / name).is_file() and str(tmp_path / "why" / name) in out for name in names)
    first = content["questions"][0]
    assert first["question"] == "What?" and [each["name"] for each in first["textures"]] == ["x", "y"]
    assert [each["strategy"] for each in first["strategies"]] == ["saliency", "realizer"]


def test_look_refuses_in_one_line(
    cli: Cli, checkpoint: Path, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*options: Any) -> str:
        code, out, err = cli("look", picture, "What?", "--model", checkpoint, "--out", tmp_path / "why", *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        return err

    assert "strategy: expected one of" in refused("--strategy", "luck")
    assert "--strategies: expected names with commas" in refused("--strategies", ",")
    assert not (tmp_path / "why").exists() or not any((tmp_path / "why").iterdir())
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "why"):
        assert refused("--out", out).startswith("arr-coc: error: [Errno") and f"'{out}'" in refused("--out", out)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "figures: expected matplotlib (pip install 'arr-coc[eval]'); got none" in refused()


def test_look_shows_the_page_that_a_question_fetches_most_from(cli: Cli, checkpoint: Path, tmp_path: Path) -> None:
    pages = [Image.new("RGB", (90, 70), "white"), noise(70, 90)]
    pages[0].save(tmp_path / "two.tiff", save_all=True, append_images=pages[1:])
    options = ("--strategy", "saliency", "--model", checkpoint, "--out", tmp_path / "why")
    code, _, err = cli("look", tmp_path / "two.tiff", "What?", *options)
    assert code == 0, err
    (asked,) = json.loads((tmp_path / "why" / "look.json").read_text())["questions"]
    part = asked["part"]
    assert part["page"] == 2 and part["box"] == [0, 0, 90, 70] and part["views"] == 2 and part["share"] > 0.9
    code, _, err = cli("look", tmp_path / "two.tiff", "What?", *options, "--box", "1,1,9,9")
    assert (code, err.count("\n")) == (2, 1)
    assert "--box: expected an image or one page, which it is on; got 2 pages" in err


# ---- The picture of what was fetched: geometry, colours, caption
def fetch(indices: list[int], side: int = 8, **changes: Any) -> FetchResult:
    """One item in which the fetched patches are relevant and no others."""
    index = torch.tensor([indices], dtype=torch.long)
    relevance = torch.zeros(1, side * side).scatter(1, index, 1.0)
    return fetch_of(index, relevance, **{"strategy": "realizer", "allocator": "topk", **changes})


def outlined(picture: Image.Image) -> np.ndarray:
    """bool [H, W]: pixels in the outline's colour."""
    return (np.asarray(picture) == OUTLINE_COLOUR[:3]).all(-1)


def test_a_fetched_patch_is_outlined_where_it_lies_and_nothing_else_is() -> None:
    picture = draw_fetch(Image.new("RGB", (64, 64), "white"), fetch([8 + 2]), question="?", text="a")
    cell = SHORTEST // 8
    rows, columns = np.nonzero(outlined(picture))
    assert picture.width == SHORTEST + 2 * MARGIN
    assert (rows.min() // cell, columns.min() // cell) == (1, 2)
    top, left = MARGIN + cell, MARGIN + 2 * cell
    assert top <= rows.min() and rows.max() < top + cell
    assert left <= columns.min() and columns.max() < left + cell
    said = describe(fetch([1, 2], is_padding=torch.tensor([[False, True]])))
    assert said == (
        "strategy realizer, allocator topk: 2 of 64 patches fetched (outlined, 1 of them padding), beside 4 base "
        "tokens (grid)"
    )
    alone = fetch([1, 2], base=0)
    assert describe(alone).endswith("2 of 64 patches fetched (outlined)")


@pytest.mark.parametrize(("width", "height"), [(64, 16), (16, 64)])
def test_padding_is_cut_off_and_patches_stay_over_their_part_of_the_image(width: int, height: int) -> None:
    """A 64 x 16 image fills rows 3 and 4 of an 8 x 8 grid; its upper left patch is (3, 0)."""
    image = Image.new("RGB", (width, height), "white")
    first = 3 * 8 if width > height else 3
    padding = torch.tensor([[False, True]])
    picture = draw_fetch(image, fetch([first, 63], is_padding=padding), question="?", text="a")
    rows, columns = np.nonzero(outlined(picture))
    cell = SHORTEST // 8
    left = MARGIN + (0 if width > height else (NARROWEST - 2 * cell) // 2)
    assert rows.min() >= MARGIN and rows.max() < MARGIN + cell
    assert left <= columns.min() and columns.max() < left + cell


def test_patches_of_tiles_are_outlined_where_they_lie_in_the_image() -> None:
    model = tiny_model(text=LARGE_TEXT)
    page = Image.new("RGB", (500, 700), "white")
    page.paste("black", (300, 520, 380, 540))
    answer = model.generate(page, "?", strategy="oracle", boxes=[(300, 520, 380, 540)], budget=4, return_fetch=True)
    places = [origin.box for origin in answer.sources]
    assert all(x1 - x0 < 500 / 16 for x0, _, x1, _ in places), "of tiles, finer than the overview"
    picture = draw_fetch(page, answer.fetch)
    rows, columns = np.nonzero(outlined(picture))
    scale = 16 * math.ceil(SHORTEST / 16) / 700
    left = (picture.width - 500 * scale) / 2
    expected = (min(y0 for _, y0, *_ in places), max(y1 for *_, y1 in places))
    assert rows.min() == pytest.approx(MARGIN + expected[0] * scale, abs=4)
    assert rows.max() == pytest.approx(MARGIN + expected[1] * scale, abs=4)
    assert columns.min() == pytest.approx(left + min(x0 for x0, *_ in places) * scale, abs=4)


@pytest.mark.parametrize("question", ["word " * 80, "w" * 400, "short", ""])
def test_the_caption_never_leaves_the_page(question: str) -> None:
    picture = draw_fetch(
        Image.new("RGB", (20, 30), "black"), fetch([5]), question=question, text="yes " * 40, probability=1
    )
    pixels = np.asarray(picture)
    assert (pixels[:, -MARGIN + 2 :] == 255).all() and (pixels[:, : MARGIN - 2] == 255).all()
    assert (pixels[-3:] == 255).all()


def test_pages_that_were_fetched_from_are_outlined() -> None:
    model = tiny_model(text=LARGE_TEXT)
    encoding = model.encode_image(paged("TIFF"))
    answer = model.generate(encoding, "What is the total?", budget=12, return_fetch=True)
    sheet = draw_sheet(encoding.sources, answer, question="What is the total?")
    base_only = model.generate(encoding, "What is the total?", strategy="none", return_fetch=True)
    plain = draw_sheet(encoding.sources, base_only, question="?")
    assert outlined(sheet).sum() > 100 and not outlined(plain).any()
    colour, none = (np.ptp(np.asarray(each), -1).mean() for each in (sheet, plain))
    assert colour > none + 2  # relevance was drawn for single images only
    refuses("answer: expected one about 1 sources; got source", draw_sheet, encoding.sources[:1], answer, question="?")


def test_the_command_line_asks_documents(checkpoint: Path, tmp_path: Path, cli: Cli) -> None:
    file, picture = tmp_path / "pages.tiff", tmp_path / "sheet.png"
    file.write_bytes(paged("TIFF"))
    options = ["--model", str(checkpoint), "--json", "--picture", str(picture), "--budget", "9"]
    code, out, _ = cli("ask", str(file), "What?", *options)
    assert code == 0
    said: dict[str, Any] = json.loads(out)
    assert said["tokens"]["fetched"] == len(said["positions"]) == 9
    assert {origin["page"] for origin in said["sources"]} <= {1, 2, 3} and said["sources"][0]["box"]
    with Image.open(picture) as sheet:
        assert sheet.width > 300
