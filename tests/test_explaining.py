"""Seeing why: what led to an answer, as numbers and figures."""

import json
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Cli, refuses, tiny_config, tiny_model
from matplotlib.text import Text
from PIL import Image

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.explaining.evidence import AnswerEvidence, SeenImage, evidence_json, gather_evidence, is_untrained, see
from arr_coc.explaining.figures import draw_evidence, draw_passes, draw_strategies, save
from arr_coc.modeling.fetcher import FetchChoices

QUESTION = "What is the total? $5 or $6?"
HELD = ["realizer", "clip_query", "compositional", "shannon_jung_vervaeke", "experts"]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(fetcher={"scorers": HELD})


def seen_by(model: Any) -> SeenImage:
    """A wide picture of noise, so that the grid has padding."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)
    return see(model, Image.fromarray(pixels))


@pytest.fixture(scope="module")
def seen(model: Any) -> SeenImage:
    return seen_by(model)


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
    seen = seen_by(fresh)
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
    noise = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    pages = [Image.new("RGB", (90, 70), "white"), Image.fromarray(noise)]
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
