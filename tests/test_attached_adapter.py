"""The trained scorer of a reader of a published model: the stage that trains it, its file, and commands that use it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from attached_models import picture, published
from helpers import Cli, refuses
from safetensors.torch import load_file, save_file

import arr_coc
from arr_coc.attached import AttachedReader
from arr_coc.attached.families import FAMILIES
from arr_coc.attached.reader import load_reader
from arr_coc.files import ADAPTER
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.training.attached import AttachedScorerStage
from arr_coc.training.checkpoints import load_state

SIZES = {"hidden_size": 16, "num_heads": 2, "num_layers": 1, "position_size": 8, "key_pool": 1}
SMALL = ArrCocFetcherConfig(**SIZES)
QUICK: dict[str, Any] = {"warmup": 3, "batch_size": 1, "learning_rate": 0.02, "evaluate_every": 30}
IMAGE = picture(150, 220)
QUARTER = (110, 75, 220, 150)
"""The lower right one, px."""


def questions(folder: Path, *records: dict[str, Any]) -> dict[str, str]:
    """Data about `IMAGE`, as a recipe names it."""
    IMAGE.save(folder / "page.png")
    rows = [{"image": "page.png", "question": "What?", "answers": ["1"], **record} for record in records or [{}]]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"format": "jsonl", "path": str(folder / "data.jsonl")}


def curve(folder: Path, name: str) -> list[float]:
    """The numbers of one name that a stage wrote, in the order of its steps."""
    rows = [json.loads(line) for line in (folder / "attached_scorer.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether weights are equal, name by name."""
    return first.keys() == second.keys() and all(torch.equal(weight, second[name]) for name, weight in first.items())


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_scorer_learns_boxes_and_comes_back_from_its_file(family: str, tmp_path: Path) -> None:
    model, processor = published(family)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    reader, data = AttachedReader(model, processor), questions(tmp_path, {"boxes": [QUARTER]})
    stage = AttachedScorerStage(data=data, held_out=data, steps=30, **QUICK)
    stage.train(reader, tmp_path, config=SMALL)
    losses, found = (curve(tmp_path, f"held out, {name}") for name in ("loss", "boxes found"))
    assert len(losses) == 2 and losses[-1] < 0.6 * losses[0] and found[-1] > found[0]
    options = {"budget": 0.5, "return_fetch": True}
    page = reader.encode_image(IMAGE)
    answer = reader.generate(page, "What?", **options)
    assert answer.fetch.strategy == "realizer" and answer.fetch.fallbacks["scorer"] == 0
    known = reader.generate(page, "What?", strategy="oracle", boxes=[QUARTER], **options)
    relevant = known.fetch.scores[0] > 0.5
    inside = relevant[answer.fetch.indices[0]].sum() / min(int(relevant.sum()), len(answer.fetch.indices[0]))
    assert inside > 0.9
    reader.save_adapter(tmp_path / "scorer.safetensors")
    other = arr_coc.attach(model, processor)
    other.load_adapter(tmp_path / "scorer.safetensors")
    again = other.generate(other.encode_image(IMAGE), "What?", **options)
    assert torch.equal(again.fetch.scores, answer.fetch.scores) and again.text == answer.text
    assert same(model.state_dict(), before)


@pytest.mark.parametrize("boxes", [[], [QUARTER]])
def test_the_models_own_attention_teaches(boxes: list[Any], tmp_path: Path) -> None:
    """Where there are no boxes, and where it shall."""
    reader, data = arr_coc.attach(*published("qwen3_vl")), questions(tmp_path, {"boxes": boxes} if boxes else {})
    teacher = "attention" if boxes else "boxes"
    stage = AttachedScorerStage(data=data, held_out=data, teacher=teacher, steps=60, **{**QUICK, "evaluate_every": 60})
    stage.train(reader, tmp_path, config=SMALL)
    losses = curve(tmp_path, "held out, loss")
    assert losses[-1] < 0.2 * losses[0] and bool(curve(tmp_path, "held out, boxes found")) is bool(boxes)
    page = reader.encode_image(IMAGE)
    (prompt,) = page.prompts
    paid = reader.runner.attention(page, prompt, "What?", to_all=True)
    assert len(paid) == len(prompt)
    best = paid.argsort(descending=True)[:3].tolist()
    fetched = reader.generate(page, "What?", budget=10, return_fetch=True).fetch.indices[0].tolist()
    assert set(best) <= set(fetched)


@pytest.fixture
def tmp_path(tmp_path: Path, attached_folder: Path) -> Path:
    """A folder with a published model in it."""
    (tmp_path / "published").symlink_to(attached_folder)
    return tmp_path


def recipe(folder: Path, **settings: Any) -> Path:
    """A recipe for the model in the folder `published` beside it."""
    data = questions(folder, {"boxes": [QUARTER]}, {"question": "Who?", "boxes": [(0, 0, 50, 50)]}, {})
    own = {"stage": "attached_scorer", "data": data, "steps": 4, **QUICK, "evaluate_every": 2}
    content: dict[str, Any] = {"model": "published", "config": {"fetcher_config": SIZES}, "stages": [own], **settings}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(content))))
    return folder / "recipe.yaml"


def test_a_recipe_trains_and_makes_what_commands_take(cli: Cli, tmp_path: Path) -> None:
    path, image = recipe(tmp_path), tmp_path / "page.png"
    code, out, err = cli("train", path, "--out", tmp_path / "run")
    assert (code, out) == (0, f"{tmp_path / 'run/model'}\n"), err
    state = load_state(tmp_path / "run/stage0/attached_scorer")
    assert state is not None and state["step"] == 4
    whole = load_file(tmp_path / "run/model" / ADAPTER)
    code, out, err = cli("train", path, "--out", tmp_path / "run")  # done already
    assert code == 0 and same(load_file(tmp_path / "run/model" / ADAPTER), whole)
    code, out, err = cli("ask", image, "What?", "--model", tmp_path / "run/model", "--json")
    found = json.loads(out)
    assert (code, found["strategy"]) == (0, "realizer")
    reader = load_reader(str(tmp_path / "published"), "cpu")
    assert reader is not None and reader.scorer is None
    reader.load_adapter(tmp_path / "run/model" / ADAPTER)
    assert found["answer"] == reader.generate(image, "What?")
    assert "other settings" not in err
    code, _, err = cli("train", path, "seed=3", "--out", tmp_path / "run")
    assert code == 0 and "the training was begun with other settings (seed 0 -> 3)" in err
    on = recipe(tmp_path, start="run/model")
    assert cli("train", on, "steps=1", "learning_rate=0.0", "weight_decay=0.0", "--out", tmp_path / "on")[0] == 0
    assert same(load_file(tmp_path / "on/model" / ADAPTER), whole)


def test_the_example_runs(cli: Cli, tmp_path: Path) -> None:
    """With the tiny model in the place of the Hub's."""
    recipe(tmp_path)
    small = ["steps=1", "batch_size=1", "data.pages=1", "data.size=128", "held_out.pages=1", "held_out.size=128"]
    example = Path(__file__).parents[1] / "examples/attached.yaml"
    code, _, err = cli("train", example, f"model={tmp_path / 'published'}", *small, "--out", tmp_path / "run")
    assert code == 0, err
    assert 0 <= curve(tmp_path / "run/stage0", "held out, boxes found")[-1] <= 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reference": {"format": "rendered", "pages": 1}}, "expected stages attached_scorer alone, and of a config"),
        ({"config": {"bridge_config": {}}}, "with a published model; got config.bridge_config"),
        ({"stages": [{"stage": "attached_scorer"}, {"stage": "joint"}]}, "with a published model; got JointPhase"),
        ({"stages": [{"stage": "attached_scorer", "teacher": "me"}]}, "teacher: expected one of boxes, attention"),
        ({"stages": [{"stage": "attached_scorer", "steps": 0}]}, "steps: expected at least 1; got 0"),
        ({"config": {"fetcher_config": {"widht": 3}}}, "config.fetcher_config: expected settings among"),
        ({"start": "published"}, f"start: expected a folder with {ADAPTER}, a trained scorer; got"),
        ({"model": "nowhere"}, "model: expected a folder, or org/name on the Hub; got 'nowhere'"),
        ({"model": "own"}, "model: expected a published model for the stage attached_scorer; got"),
    ],
)
def test_recipes_that_are_refused(
    cli: Cli, checkpoint: Path, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "own").symlink_to(checkpoint)
    code, _, err = cli("train", recipe(tmp_path, **settings), "--out", tmp_path / "run")
    assert code == 2 and message in err


def test_what_cannot_be_trained_or_read_is_refused(tmp_path: Path) -> None:
    reader = arr_coc.attach(*published("qwen3_vl"))
    refuses("save_adapter: expected a trained scorer", reader.save_adapter, tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError):
        reader.load_adapter(tmp_path / "none.safetensors")
    (tmp_path / "text.safetensors").write_text("no tensors")
    refuses("expected a scorer in a safetensors file", reader.load_adapter, tmp_path / "text.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="expected a scorer that save_adapter wrote; got 1 other tensors"):
        reader.load_adapter(tmp_path / "other.safetensors")
    AttachedScorerStage(data=questions(tmp_path), steps=1, batch_size=1).train(reader, tmp_path, config=SMALL)
    reader.save_adapter(tmp_path / "scorer.safetensors")
    other = arr_coc.attach(*published("gemma3"))
    with pytest.raises(ValueError, match="expected a scorer for gemma3 with tokens 32 wide; got one for qwen3_vl, 32"):
        other.load_adapter(tmp_path / "scorer.safetensors")
    (tmp_path / "model").mkdir()
    reader.save_adapter(tmp_path / "model" / ADAPTER)
    refuses(f"{ADAPTER}: expected a scorer of a published model; got one of ''", load_reader, str(tmp_path / "model"))
