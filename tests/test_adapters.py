"""Adapters: exactly the layers of a part, nothing of the base changes, and every way to load one gives the same."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from attached_models import picture, published
from helpers import Cli, refuses, tiny_model, tiny_processor
from peft import AutoPeftModelForCausalLM, PeftModel, get_peft_model
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from trainers import same
from transformers.utils import logging as transformers_logging

import arr_coc
from arr_coc import scorer_lora_config
from arr_coc.adapters import PARTS, adapt, linear_layers, part_of_parameter, save_adapter
from arr_coc.attached import AttachedReader
from arr_coc.attached.families import FAMILIES
from arr_coc.attached.reader import load_reader
from arr_coc.cli import main
from arr_coc.files import ADAPTER
from arr_coc.modeling.configuration_arr_coc import ArrCocFetcherConfig
from arr_coc.modeling.modeling_arr_coc import warn_of_training_in_eval_mode
from arr_coc.training.attached import AttachedScorerStage
from arr_coc.training.checkpoints import load_state
from arr_coc.training.recipe import load_recipe, train_adapter

QUESTION = "What is the total?"


def inputs(side: int = 128) -> dict[str, Any]:
    processor = tiny_processor()
    torch.manual_seed(1)
    image = torch.rand(3, side, side)
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True)
    return dict(processor(images=[image], text=[text], return_tensors="pt"))


def relevance(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs()).fetch.scores


def trained(model: Any, steps: int = 3) -> Any:
    """Moves the adapter away from zero by its relevance loss."""
    batch = inputs()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=5.0)
    labels = torch.zeros(1, 256)
    labels[:, 40:60] = 1
    for _ in range(steps):
        loss = model(**batch, relevance_targets=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("part", [*PARTS, "scorer.realizer", "scorer.clip_query"])
def test_a_part_means_exactly_its_linear_layers(part: str) -> None:
    model = tiny_model(fetcher={"tier_choice": "classifier"})
    names = linear_layers(model, part)
    name, _, member = part.partition(".")
    own = [n for n, m in model.named_modules() if type(m) is nn.Linear and part_of_parameter(f"{n}.weight") == name]
    assert names == [n for n in own if n != "lm_head" and (not member or f".scorers.{member}." in n)]
    adapted = get_peft_model(model, scorer_lora_config(model, r=2, part=part))
    hit = {
        n.split(".lora_A")[0].removeprefix("base_model.model.") for n, _ in adapted.named_modules() if ".lora_A." in n
    }
    assert hit == set(names)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_an_adapter_is_added_without_warnings() -> None:
    """PEFT asked for `is_gradient_checkpointing`, which transformers renamed; README's block printed it."""
    model = tiny_model(3)
    get_peft_model(model, scorer_lora_config(model, r=2))
    assert not model.is_gradient_checkpointing
    model.model.vision_tower.gradient_checkpointing = True
    assert model.is_gradient_checkpointing


@pytest.mark.parametrize("settings", [{"lora_alpha": 3}, {"target_modules": ["head"]}])
def test_settings_that_have_a_name_of_their_own_are_refused(settings: dict[str, Any]) -> None:
    (name,) = settings
    refuses(f"{name}: expected (alpha|part) in its place", adapt, tiny_model(), **settings)


@pytest.mark.versions
def test_every_way_to_load_an_adapter_gives_the_same(tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "adapter"
    tiny_model().save_pretrained(base)
    model = tiny_model()
    adapted = trained(get_peft_model(model, scorer_lora_config(model, r=2)))
    expected = relevance(adapted)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(folder)
    assert relevance(PeftModel.from_pretrained(tiny_model(), folder)).equal(expected)
    inplace = tiny_model()
    inplace.load_adapter(str(folder))
    assert relevance(inplace).equal(expected)
    assert relevance(AutoPeftModelForCausalLM.from_pretrained(str(folder))).equal(expected)


@pytest.mark.versions
def test_adapters_are_swapped_per_request_and_merge_to_a_plain_checkpoint(tmp_path: Path) -> None:
    model = tiny_model()
    plain = relevance(model)
    adapted = trained(get_peft_model(model, scorer_lora_config(model, r=2), adapter_name="receipts"))
    adapted.add_adapter("forms", scorer_lora_config(model, r=4))
    receipts = relevance(adapted)
    adapted.set_adapter("forms")  # untrained: as without an adapter
    assert relevance(adapted).equal(plain)
    adapted.set_adapter("receipts")
    assert relevance(adapted).equal(receipts)
    merged = adapted.merge_and_unload()
    merged.save_pretrained(tmp_path)
    again = type(merged).from_pretrained(tmp_path)
    assert not any("lora" in name for name in again.state_dict())
    torch.testing.assert_close(relevance(again), receipts, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("part", ["scorers", "scorer.none", "bridge.linear", "vision"])
def test_an_unknown_part_is_refused(part: str) -> None:
    refuses("part: expected", scorer_lora_config, tiny_model(), part=part)


def test_what_an_adapter_would_lose_is_not_saved_silently(tmp_path: Path) -> None:
    adapted = adapt(tiny_model(), r=2)
    adapted.get_base_model().model.bridge.requires_grad_(True)
    refuses("expected to hold all that is trained", save_adapter, adapted, tmp_path)
    assert not list(tmp_path.iterdir())


def answer_loss(adapted: Any) -> torch.Tensor:
    batch = inputs()
    loss: torch.Tensor = adapted(**batch, labels=batch["input_ids"]).loss
    warn_of_training_in_eval_mode(loss, adapted.get_base_model().model.fetcher)
    return loss


def test_training_an_adapter_in_evaluation_mode_is_said_once(said: pytest.LogCaptureFixture) -> None:
    """The scorer's adapter had no gradient from the answer, and nothing said so."""
    adapted = adapt(tiny_model(), ("scorer", "language"), r=2)
    for _ in range(2):
        answer_loss(adapted).backward()
    assert [message.split(":")[0] for message in said.messages] == [
        "The scorers are trainable, but the model is in evaluation mode"
    ]
    scorer = [weight for name, weight in adapted.named_parameters() if "scorers" in name and "lora_B" in name]
    assert scorer and all(weight.grad is None or not weight.grad.any() for weight in scorer)
    said.clear()
    transformers_logging.warning_once.cache_clear()
    answer_loss(adapted.train()).backward()
    assert any(weight.grad is not None and weight.grad.any() for weight in scorer) and said.messages == []


RECIPE = """
model: {checkpoint}
start: {checkpoint}
stages:
  - stage: {stage}
    trained: [scorer]
    data: {{format: rendered, pages: 2, questions: 1, size: 128, split: train}}
    steps: 2
    batch_size: 2
    evaluate_every: 1
"""


def test_a_command_trains_an_adapter(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(checkpoint=checkpoint, stage="allocator"), encoding="utf-8")
    before = load_file(checkpoint / "model.safetensors")
    command = ["train", str(recipe), "learning_rate=0.1", "--adapter", "2", "--out", str(tmp_path / "run")]
    assert main(command) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder == tmp_path / "run" / "adapter"
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    again = AutoPeftModelForCausalLM.from_pretrained(str(folder))
    assert any(weight.any() for name, weight in again.named_parameters() if "lora_B" in name), "it was trained"
    assert not relevance(again).equal(relevance(again.get_base_model().from_pretrained(checkpoint)))
    assert all(torch.equal(w, before[n]) for n, w in load_file(checkpoint / "model.safetensors").items())
    shutil.rmtree(tmp_path / "run" / "stage0" / "model")  # killed before the end: goes on from its last checkpoint
    assert main(command) == 0
    assert relevance(AutoPeftModelForCausalLM.from_pretrained(str(folder))).equal(relevance(again))


def test_an_adapter_of_several_phases_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(checkpoint=checkpoint, stage="joint"), encoding="utf-8")
    recipe = load_recipe(tmp_path / "recipe.yaml")
    for changes in ({"start": None}, {"stages": recipe.stages * 2}):
        with pytest.raises(ValueError, match="adapter: expected a recipe with a start and one phase"):
            train_adapter(replace(recipe, **changes), tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="adapter: expected a recipe of the start's model as it is; got config"):
        train_adapter(replace(recipe, changes={"fetcher_config": {"budget": 4}}), tmp_path / "run")


def test_what_no_phase_learns_from_is_told(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phases ran to their end without a gradient, or ended in transformers' KeyError at the first evaluation."""
    said: list[str] = []
    monkeypatch.setattr("arr_coc.training.trainer.logger.warning", said.append)
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(checkpoint=checkpoint, stage="allocator"), encoding="utf-8")
    recipe = load_recipe(tmp_path / "recipe.yaml", ["strategies={none: 1}", "losses={relevance: 0}", "log_every=1"])
    train_adapter(recipe, tmp_path / "none", rank=2)
    assert "step 1: no trained part has a gradient, so nothing was learned" in said[0]
    Image.new("RGB", (90, 60), "white").save(tmp_path / "a.png")
    (tmp_path / "a.jsonl").write_text(json.dumps({"image": "a.png", "question": "What?", "answers": ["1"]}) + "\n")
    (tmp_path / "long.jsonl").write_text(
        json.dumps({"image": "a.png", "question": "?", "answers": ["1" * 9999]}) + "\n"
    )
    long = load_recipe(tmp_path / "recipe.yaml", ["0.data={format: jsonl, path: long.jsonl}"])
    refuses("line 1: expected at most .* tokens with the answer", train_adapter, long, tmp_path / "long")
    recipe = load_recipe(tmp_path / "recipe.yaml", ["best=recall", "held_out={format: jsonl, path: a.jsonl}"])
    refuses("best: expected held_out with boxes", train_adapter, recipe, tmp_path / "recall")


# ---- The trained scorer of a reader of a published model: the stage that trains it, its file, and commands that use it
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


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_scorer_learns_boxes_and_comes_back_from_its_file(family: str, workspace: Path) -> None:
    model, processor = published(family)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    reader, data = AttachedReader(model, processor), questions(workspace, {"boxes": [QUARTER]})
    stage = AttachedScorerStage(data=data, held_out=data, steps=30, **QUICK)
    stage.train(reader, workspace, config=SMALL)
    losses, found = (curve(workspace, f"held out, {name}") for name in ("loss", "boxes found"))
    assert len(losses) == 2 and losses[-1] < 0.6 * losses[0] and found[-1] > found[0]
    options = {"budget": 0.5, "return_fetch": True}
    page = reader.encode_image(IMAGE)
    answer = reader.generate(page, "What?", **options)
    assert answer.fetch.strategy == "realizer" and answer.fetch.fallbacks["scorer"] == 0
    known = reader.generate(page, "What?", strategy="oracle", boxes=[QUARTER], **options)
    relevant = known.fetch.scores[0] > 0.5
    inside = relevant[answer.fetch.indices[0]].sum() / min(int(relevant.sum()), len(answer.fetch.indices[0]))
    assert inside > 0.9
    reader.save_adapter(workspace / "scorer.safetensors")
    other = arr_coc.attach(model, processor)
    other.load_adapter(workspace / "scorer.safetensors")
    again = other.generate(other.encode_image(IMAGE), "What?", **options)
    assert torch.equal(again.fetch.scores, answer.fetch.scores) and again.text == answer.text
    assert same(model.state_dict(), before)


@pytest.mark.parametrize("boxes", [[], [QUARTER]])
def test_the_models_own_attention_teaches(boxes: list[Any], workspace: Path) -> None:
    """Where there are no boxes, and where it shall."""
    reader, data = arr_coc.attach(*published("qwen3_vl")), questions(workspace, {"boxes": boxes} if boxes else {})
    teacher = "attention" if boxes else "boxes"
    stage = AttachedScorerStage(data=data, held_out=data, teacher=teacher, steps=60, **{**QUICK, "evaluate_every": 60})
    stage.train(reader, workspace, config=SMALL)
    losses = curve(workspace, "held out, loss")
    assert losses[-1] < 0.2 * losses[0] and bool(curve(workspace, "held out, boxes found")) is bool(boxes)
    page = reader.encode_image(IMAGE)
    (prompt,) = page.prompts
    paid = reader.runner.attention(page, prompt, "What?", to_all=True)
    assert len(paid) == len(prompt)
    best = paid.argsort(descending=True)[:3].tolist()
    fetched = reader.generate(page, "What?", budget=10, return_fetch=True).fetch.indices[0].tolist()
    assert set(best) <= set(fetched)


@pytest.fixture
def workspace(tmp_path: Path, attached_folder: Path) -> Path:
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


def test_a_recipe_trains_and_makes_what_commands_take(cli: Cli, workspace: Path) -> None:
    path, image = recipe(workspace), workspace / "page.png"
    code, out, err = cli("train", path, "--out", workspace / "run")
    assert (code, out) == (0, f"{workspace / 'run/model'}\n"), err
    state = load_state(workspace / "run/stage0/attached_scorer")
    assert state is not None and state["step"] == 4
    whole = load_file(workspace / "run/model" / ADAPTER)
    code, out, err = cli("train", path, "--out", workspace / "run")  # done already
    assert code == 0 and same(load_file(workspace / "run/model" / ADAPTER), whole)
    code, out, err = cli("ask", image, "What?", "--model", workspace / "run/model", "--json")
    found = json.loads(out)
    assert (code, found["strategy"]) == (0, "realizer")
    reader = load_reader(str(workspace / "published"), "cpu")
    assert reader is not None and reader.scorer is None
    reader.load_adapter(workspace / "run/model" / ADAPTER)
    assert found["answer"] == reader.generate(image, "What?")
    assert "other settings" not in err
    code, _, err = cli("train", path, "seed=3", "--out", workspace / "run")
    assert code == 0 and "the training was begun with other settings (seed 0 -> 3)" in err
    on = recipe(workspace, start="run/model")
    assert cli("train", on, "steps=1", "learning_rate=0.0", "weight_decay=0.0", "--out", workspace / "on")[0] == 0
    assert same(load_file(workspace / "on/model" / ADAPTER), whole)


def test_the_example_runs(cli: Cli, workspace: Path) -> None:
    """With the tiny model in the place of the Hub's."""
    recipe(workspace)
    small = ["steps=1", "batch_size=1", "data.pages=1", "data.size=128", "held_out.pages=1", "held_out.size=128"]
    example = Path(__file__).parents[1] / "examples/attached.yaml"
    code, _, err = cli("train", example, f"model={workspace / 'published'}", *small, "--out", workspace / "run")
    assert code == 0, err
    assert 0 <= curve(workspace / "run/stage0", "held out, boxes found")[-1] <= 1


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
    cli: Cli, checkpoint: Path, settings: dict[str, Any], message: str, workspace: Path
) -> None:
    (workspace / "own").symlink_to(checkpoint)
    code, _, err = cli("train", recipe(workspace, **settings), "--out", workspace / "run")
    assert code == 2 and message in err


def test_what_cannot_be_trained_or_read_is_refused(workspace: Path) -> None:
    reader = arr_coc.attach(*published("qwen3_vl"))
    refuses("save_adapter: expected a trained scorer", reader.save_adapter, workspace / "none.safetensors")
    with pytest.raises(FileNotFoundError):
        reader.load_adapter(workspace / "none.safetensors")
    (workspace / "text.safetensors").write_text("no tensors")
    refuses("expected a scorer in a safetensors file", reader.load_adapter, workspace / "text.safetensors")
    save_file({"weight": torch.zeros(2)}, workspace / "other.safetensors")
    with pytest.raises(ValueError, match="expected a scorer that save_adapter wrote; got 1 other tensors"):
        reader.load_adapter(workspace / "other.safetensors")
    AttachedScorerStage(data=questions(workspace), steps=1, batch_size=1).train(reader, workspace, config=SMALL)
    reader.save_adapter(workspace / "scorer.safetensors")
    other = arr_coc.attach(*published("gemma3"))
    with pytest.raises(ValueError, match="expected a scorer for gemma3 with tokens 32 wide; got one for qwen3_vl, 32"):
        other.load_adapter(workspace / "scorer.safetensors")
    (workspace / "model").mkdir()
    reader.save_adapter(workspace / "model" / ADAPTER)
    refuses(f"{ADAPTER}: expected a scorer of a published model; got one of ''", load_reader, str(workspace / "model"))
