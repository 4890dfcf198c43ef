"""lmms-eval with the real package: a local task, asked of tiny models. Skipped where it is not installed."""

import json
from pathlib import Path
from typing import Any

import pytest
from attached_models import published
from helpers import refuses

import arr_coc

pytest.importorskip("lmms_eval.models.registry_v2", reason="lmms-eval is not installed", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("default")  # theirs are not ours to mend

TASK = """
task: local_letters
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_visual: !function local_letters.visuals
doc_to_text: !function local_letters.text
doc_to_target: answer
generation_kwargs: {max_new_tokens: 4, until: ["?"]}
process_results: !function local_letters.results
metric_list:
  - {metric: same, aggregation: mean, higher_is_better: true}
"""

FUNCTIONS = """
from PIL import Image

def visuals(doc):
    return [Image.open(doc["image"])]

def text(doc, lmms_eval_specific_kwargs=None):
    return "<image>\\n" + doc["question"]

def results(doc, answers):
    return {"same": float(answers[0] == doc["answer"])}
"""


@pytest.fixture
def task(tmp_path: Path, picture: Path) -> Path:
    """A folder with one task of three questions, of which the expected answer is written by the test."""
    (tmp_path / "local_letters.py").write_text(FUNCTIONS)
    (tmp_path / "local_letters.yaml").write_text(TASK % (tmp_path / "data.jsonl"))
    return tmp_path


QUESTIONS = ["What is it?", "Why?", "How many are there in all?"]


def share_alike(task: Path, picture: Path, said: list[str], arguments: str, monkeypatch: pytest.MonkeyPatch) -> float:
    """The share of the questions that lmms-eval's own runner hears answered with `said`, the last but for a change."""
    from lmms_eval.evaluator import simple_evaluate
    from lmms_eval.models import MODEL_REGISTRY_V2
    from lmms_eval.tasks import TaskManager

    from arr_coc.evaluation.lmms import manifest

    expected = [one.split("?")[0].strip() for one in said[:2]] + ["nothing of the kind"]
    lines = [
        {"image": str(picture), "question": question, "answer": answer}
        for question, answer in zip(QUESTIONS, expected, strict=True)
    ]
    (task / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(task / "cache"))
    MODEL_REGISTRY_V2.register_manifest(manifest(), overwrite=True)
    result: Any = simple_evaluate(
        model="arr_coc",
        model_args=arguments,
        tasks=["local_letters"],
        batch_size=2,
        task_manager=TaskManager(include_path=str(task), include_defaults=False),
        bootstrap_iters=0,
    )
    return result["results"]["local_letters"]["same,none"]


def test_a_task_asks_as_generate(task: Path, picture: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from arr_coc.loading import load_model

    model = load_model(str(checkpoint), "cpu")
    said = model.generate([str(picture)] * 3, QUESTIONS, budget=9, max_new_tokens=4)
    arguments = f"pretrained={checkpoint},device=cpu,budget=9"
    assert share_alike(task, picture, said, arguments, monkeypatch) == pytest.approx(2 / 3)


def test_a_published_model_is_asked_too(task: Path, picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a family whose processor needs no torchvision."""
    for part in published("idefics3"):
        part.save_pretrained(task / "model")
    options: dict[str, Any] = {"budget": 0.5, "strategy": "saliency", "pool": 2}
    reader = arr_coc.attach(*published("idefics3"))
    said = reader.generate([[str(picture)]] * 3, QUESTIONS, max_new_tokens=4, do_sample=False, **options)
    arguments = f"pretrained={task / 'model'},device=cpu,budget=0.5,strategy=saliency,pool=2"
    assert len(set(said[:2])) == 2
    assert share_alike(task, picture, said, arguments, monkeypatch) == pytest.approx(2 / 3)


def test_what_cannot_be_asked_is_refused(checkpoint: Path) -> None:
    from lmms_eval.api.instance import Instance

    from arr_coc.evaluation.lmms import ArrCoc

    refuses("model_args: expected pretrained, .*; got speed", ArrCoc, str(checkpoint), speed="fast")
    model = ArrCoc(str(checkpoint), device="cpu")
    model.task_dict = {"t": {"test": [{}]}}
    request = Instance(
        "generate_until", ("Why?", {}, lambda doc: [], 0, "t", "test"), 0, {"task": "t", "doc_id": 0, "repeats": 1}
    )  # noqa: E501
    refuses("task t: expected an image for every question; got none for 'Why\\?'", model.generate_until, [request])
    refuses("expected tasks of output_type generate_until; got loglikelihood", model.loglikelihood, [request])


def test_lmms_eval_finds_the_adapter_by_its_entry_point() -> None:
    from importlib.metadata import entry_points

    (found,) = [point for point in entry_points(group="lmms_eval.models") if point.name == "arr_coc"]
    assert found.load()().simple_class_path == "arr_coc.evaluation.lmms.ArrCoc"
