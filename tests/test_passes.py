"""Several passes: nothing is fetched or read twice, and one pass is what it was."""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import READS_WORDS, Cli, refuses, tiny_model

from arr_coc.model_summary import generated_image
from arr_coc.modeling import passes as passes_module
from arr_coc.modeling.answers import Answer
from arr_coc.modeling.passes import CachedPrompt
from arr_coc.training.recipe import load_recipe
from arr_coc.training.reinforce import Tempering
from arr_coc.training.stages import Run

ROOT = Path(__file__).parents[1]
PAGE, OTHER = generated_image(128), generated_image(128).rotate(90)
QUESTION, LONGER = "What is the total?", "What is written in the second line of the page?"


def asked(model: Any, image: Any = PAGE, question: Any = QUESTION, **settings: Any) -> Any:
    return model.generate(image, question, return_fetch=True, **{"num_passes": 3, "budget": 8, **settings})


def patches(answer: Answer) -> list[list[int]]:
    return [each.fetch.indices[0].tolist() for each in answer.passes]


@pytest.mark.parametrize("allocator", ["topk", "window", "tiers", "adaptive"])
@pytest.mark.parametrize("strategy", ["realizer", "saliency", "attention"])
def test_no_patch_is_fetched_twice(model: Any, strategy: str, allocator: str) -> None:
    answer = asked(model, strategy=strategy, allocator=allocator)
    fetched = [patch for own in patches(answer) for patch in own]
    assert len(answer.passes) == 3 and len(fetched) == len(set(fetched))
    assert sorted(fetched) == answer.fetch.indices[0].tolist() and answer.fetch.budget == len(fetched)
    assert len(answer.sources) == len(fetched) and answer.text == answer.passes[-1].text
    if allocator in ("topk", "window"):
        assert [each.fetch.budget for each in answer.passes] == [8, 8, 8]


def test_one_pass_is_the_answer_as_ever_and_questions_beside_it_change_nothing(model: Any) -> None:
    plain = model.generate(PAGE, QUESTION, return_fetch=True)
    single = model.generate(PAGE, QUESTION, return_fetch=True, num_passes=1)
    assert single.probability == plain.probability and torch.equal(single.fetch.indices, plain.fetch.indices)
    unexplored = model.generate(PAGE, QUESTION, return_fetch=True, num_passes="auto", exploration="none")
    assert patches(unexplored)[0] == plain.fetch.indices[0].tolist()
    assert unexplored.passes[0].text == plain.text
    alone = [asked(model, image, question) for image, question in ((PAGE, QUESTION), (OTHER, LONGER))]
    together = asked(model, [PAGE, OTHER], [QUESTION, LONGER])
    for one, other in zip(alone, together, strict=True):
        assert patches(one) == patches(other) and one.text == other.text


@pytest.mark.parametrize(
    "changes", [{}, {"bridge": {"layout": "rows"}}, {"vision": {"compressor": "mask"}}, READS_WORDS]
)
@pytest.mark.versions
def test_what_is_remembered_changes_no_answer(changes: dict[str, Any]) -> None:
    """With a cache a pass reads its patches and the question; without one, everything: the numbers are the same."""
    model = tiny_model(**changes)
    seen = model.encode_image(PAGE)
    cached, anew = (asked(model, seen, use_cache=use_cache) for use_cache in (True, False))
    assert patches(cached) == patches(anew)
    for one, other in zip(cached.passes, anew.passes, strict=True):
        assert one.text == other.text and one.uncertainty == pytest.approx(other.uncertainty, abs=1e-4)


@pytest.mark.versions
def test_a_further_pass_encodes_nothing_and_reads_only_what_is_new(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    hook = model.model.language_model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["inputs_embeds"].shape[1]), with_kwargs=True
    )
    encoded: list[int] = []
    grid = model.model.vision_tower.grid_encoder.register_forward_hook(lambda *_: encoded.append(1))
    tail: list[int] = []
    extend = CachedPrompt.extend
    monkeypatch.setattr(
        CachedPrompt,
        "extend",
        lambda self, *args: (extend(self, *args), tail.append(self.inputs["input_ids"].shape[1] - self.end)),
    )
    scored: list[int] = []
    scorer = model.model.fetcher.scorers["realizer"].register_forward_hook(lambda *_: scored.append(1))
    asked(model, num_passes=2, max_new_tokens=1)
    hook.remove(), grid.remove(), scorer.remove()
    assert encoded == [1] and scored == [1]
    prefix, rest, further = lengths
    assert further == 8 + tail[0] < prefix + rest


def test_auto_stops_when_the_answer_is_sure(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    unsure = [0.9, 0.5, 0.1]
    drawn: list[Any] = []
    monkeypatch.setattr(passes_module, "answer_uncertainties", lambda *_: [unsure[len(drawn) - 1]])
    answer = asked(model, num_passes="auto", on_fetch=drawn.append)
    assert [each.uncertainty for each in answer.passes] == unsure
    assert [each.share for each in answer.passes] == [0.1, 0.5, 0.3]
    assert len(drawn) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_passes": 0}, 'num_passes: expected an integer from 1, or "auto"; got 0'),
        ({"num_passes": "many"}, "num_passes: expected an integer from 1, or \"auto\"; got 'many'"),
        ({"num_passes": 200}, "num_passes: expected at most .* tokens of context; got 200"),
        ({"exploration": "none", "num_passes": 1}, 'exploration: expected num_passes above 1 or "auto" beside it'),
        ({"exploration": "strange"}, "exploration: expected one of learned, none, tempered"),
        ({"exploration": "learned"}, "exploration: expected one of none, tempered .*; got 'learned'"),
        ({"num_beams": 2}, "num_beams: expected 1 beside num_passes; got 2"),
        ({"patches": torch.arange(8)[None]}, "patches: expected num_passes 1 beside them"),
        ({"image": [[PAGE, OTHER]]}, "num_passes: expected prompts of one image"),
    ],
)
def test_what_cannot_be_asked_in_passes_is_refused(model: Any, settings: dict[str, Any], message: str) -> None:
    refuses(message, asked, model, **settings)


def test_passes_are_for_questions(model: Any) -> None:
    inputs = model.processor(images=[PAGE], text=[model.processor.prompt(QUESTION)], return_tensors="pt")
    refuses("num_passes: expected several only in generate", model, **inputs, choices={"num_passes": 2})


def test_ask_prints_every_pass(checkpoint: Path, cli: Cli) -> None:
    image = str(ROOT / "examples" / "images" / "receipt.png")
    settings = ("--model", str(checkpoint), "--tiles", "never", "--passes", "2", "--budget", "8")
    code, out, error = cli("ask", image, QUESTION, *settings, "--json")
    assert code == 0, error
    said = json.loads(out)
    assert [each["budget"] for each in said["passes"]] == [8, 8] and said["budget"] == 16
    assert said["answer"] == said["passes"][-1]["answer"] and said["fallbacks"] == {"scorer": 0, "bridge": 0}


# ---- The learned tempering policy: it learns what pays, goes on where it was killed, and stays with its checkpoint
LEARNING = {"learned_exploration": True}


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    generated_image(128).save(tmp_path / "page.png")
    lines = [{"image": "page.png", "question": question, "answers": ["x"]} for question in ("What?", "Which one?")]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return {"path": "data.jsonl"}


def trained(data: dict[str, Any], root: Path, folder: Path, steps: int) -> Any:
    model = tiny_model(fetcher=LEARNING)
    stage = Tempering(data=data, steps=steps, batch_size=1, draws=2, budget=4, evaluate_every=1)
    stage.run(Run(model, model.processor, root=root), folder)
    return model


def test_the_policy_learns_what_pays(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second episode of every question is the right one: a model of random weights answers them all alike."""
    correct = cycle((0.0, 1.0))
    monkeypatch.setattr("arr_coc.training.reinforce.answer_correctness", lambda text, answers: next(correct))
    begun = tiny_model(fetcher=LEARNING).model.fetcher.tempering.state_dict()
    learnt = trained(data, tmp_path, tmp_path / "out", 1).model.fetcher.tempering.state_dict()
    assert any(not torch.equal(learnt[name], weight) for name, weight in begun.items())


def test_a_checkpoint_with_the_policy_follows_it_unless_told_otherwise(tmp_path: Path) -> None:
    model = tiny_model(fetcher=LEARNING)
    with torch.no_grad():
        model.model.fetcher.tempering.head.bias.copy_(torch.tensor([0.0, 0, 0, 0, 9]))
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    again.processor = model.processor
    asked = {"num_passes": 2, "budget": 8, "return_fetch": True, "max_new_tokens": 2}
    shares = [
        [each.share for each in again.generate(generated_image(128), "What?", **asked, **chosen).passes]
        for chosen in ({}, {"exploration": "none"})
    ]
    assert shares == [[0.5, 0.5], [0.0, 0.0]]


def test_the_recipe_asks_for_the_policy_and_a_model_without_it_is_refused(data: dict[str, Any], tmp_path: Path) -> None:
    recipe = load_recipe(ROOT / "examples" / "tempering.yaml")
    assert recipe.config().fetcher_config.learned_exploration and isinstance(recipe.stages[0], Tempering)
    model = tiny_model()
    with pytest.raises(ValueError, match="expected fetcher_config.learned_exploration: true; got false"):
        Tempering(data=data).run(Run(model, model.processor, root=tmp_path), tmp_path / "out")
    refuses("draws: expected at least 2; got 1", Tempering, data=data, draws=1)
    refuses(r"rewards: expected settings among .*; got \['speed'\]", Tempering, data=data, rewards={"speed": 1.0})
