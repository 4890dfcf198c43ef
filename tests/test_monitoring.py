"""What is watched: statistics against a reference, and a dashboard and alerts that ask for what the server tells."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from helpers import Cli, refuses
from serving_client import noise

from arr_coc.data.records import Record
from arr_coc.evaluation import fetch_reference
from arr_coc.evaluation.fetch_reference import (
    REFERENCE,
    Distribution,
    FetchReference,
    fetch_statistics,
    find_reference,
    measure_reference,
)
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.serving.app import Server
from arr_coc.serving.metrics import ENOUGH, WINDOW, FetchWatch, Metrics
from arr_coc.serving.settings import ServerSettings

SERVING = Path(fetch_reference.__file__).parents[1] / "serving"
OWN = re.compile(r"arr_coc_\w+")
PROMETHEUS_OWN = {"job", "instance", "le"}
"""Labels that every series has, or that histograms have."""


@pytest.fixture(scope="module")
def reference(model: ArrCocForConditionalGeneration) -> FetchReference:
    questions = ("What is the total?", "Who?", "When was it?")
    return measure_reference(model, [Record(noise(seed), text, ("x",)) for seed in range(4) for text in questions])


# ---- statistics
def fetched(relevance: list[float], mask: list[bool], tokens: list[list[float]]) -> Any:
    """An embedded prompt of one image, with what statistics look at."""
    return SimpleNamespace(
        fetch=SimpleNamespace(relevance=torch.tensor([relevance]), strategy="realizer"),
        context=SimpleNamespace(patch_mask=torch.tensor([mask])),
        image_tokens=torch.tensor([tokens]),
    )


def test_statistics_of_one_image() -> None:
    """Padding, and tokens that were not fetched, say nothing."""
    prompt = fetched([0.2, 0.6, 0.9], [True, True, False], [[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    own = {name: round(value.item(), 4) for name, value in fetch_statistics(prompt).items()}
    entropy = -(0.25 * torch.tensor(0.25).log() + 0.75 * torch.tensor(0.75).log()) / torch.tensor(2.0).log()
    expected = {"relevance_mean": 0.4, "relevance_peak": 0.6, "relevance_entropy": round(entropy.item(), 4)}
    assert own == {**expected, "token_norm": 3.0}
    even = fetch_statistics(fetched([0.5] * 4, [True] * 4, [[1.0, 0.0]]))
    assert even["relevance_entropy"].item() == pytest.approx(1.0)


def test_drift_is_small_for_the_same_and_large_for_others() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1500, generator=generator)
    own = Distribution.of(drawn[:500].tolist())
    assert len(own.counts) == 10 and set(own.counts) == {50}

    def drift(values: torch.Tensor) -> float:
        counts = [0] * len(own.counts)
        for value in values.tolist():
            counts[own.bin(value)] += 1
        return own.drift(counts)

    assert own.drift(own.counts) == 0 and drift(drawn[500:]) < 0.05
    assert 0.1 < drift(drawn[500:] + 0.5) < drift(drawn[500:] + 1)


def test_the_reference_is_that_of_the_questions_as_asked(
    model: ArrCocForConditionalGeneration, reference: FetchReference, tmp_path: Path
) -> None:
    answer = model.generate(noise(0), "Who?", return_fetch=True)
    assert (reference.strategy, reference.questions) == ("realizer", 12)
    peaks = reference.statistics["relevance_peak"]
    assert sum(peaks.counts) == 12 and 0 < answer.fetch.relevance.max().item() <= 1
    reference.save(tmp_path / REFERENCE)
    assert FetchReference.load(tmp_path / REFERENCE) == reference
    refuses("data: expected at least one question; got none", measure_reference, model, [])
    reference = FetchReference.load(SERVING.parents[1] / "hub_configs" / "arr-coc-tiny-2" / REFERENCE)
    assert reference.strategy == "realizer" and reference.questions >= 200


@pytest.mark.parametrize(
    "change", [{"statistics": []}, {"strategy": None, "questions": "x"}, {"statistics": {"a": {}}}]
)
def test_other_files_are_no_reference(change: dict[str, Any], reference: FetchReference, tmp_path: Path) -> None:
    reference.save(tmp_path / "r.json")
    content = {**json.loads((tmp_path / "r.json").read_text()), **change}
    (tmp_path / "r.json").write_text(json.dumps(content))
    refuses("r.json: expected what arr-coc reference writes", FetchReference.load, tmp_path / "r.json")
    content["statistics"] = {"a": {"mean": 0, "edges": [1], "counts": [1]}}
    (tmp_path / "r.json").write_text(json.dumps({**content, "questions": 1}))
    refuses("r.json: expected a count for each bin", FetchReference.load, tmp_path / "r.json")


# ---- the server's side
def samples(metrics: Metrics, name: str) -> dict[str, float]:
    """Values of a metric by its last label but `le`."""
    return {
        sample.labels["statistic"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_drift_is_told_of_the_latest_questions(reference: FetchReference) -> None:
    metrics = Metrics()
    watch = FetchWatch(reference, metrics)
    bright, dark = (fetched([level] * 4, [True] * 4, [[1.0, 0.0]]) for level in (0.9, 0.1))
    for _ in range(ENOUGH - 1):
        watch.observe(dark)
    assert all(value != value for value in samples(metrics, "arr_coc_drift").values())  # not enough to tell
    watch.observe(dark)
    before = samples(metrics, "arr_coc_drift")["relevance_mean"]
    assert before > 0.25
    for _ in range(WINDOW):
        watch.observe(bright)
    distribution, latest = watch._latest["relevance_mean"]
    assert [*latest] == WINDOW * [distribution.bin(0.9)]
    assert samples(metrics, "arr_coc_fetch_statistic_count")["relevance_mean"] == ENOUGH + WINDOW


def test_command_saves_what_the_server_finds(cli: Cli, tmp_path: Path, model: ArrCocForConditionalGeneration) -> None:
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    model.processor.save_pretrained(folder)
    noise(0).save(tmp_path / "0.png")
    (tmp_path / "data.jsonl").write_text('{"image": "0.png", "question": "Who?", "answers": ["x"]}\n')
    assert find_reference(model) is None
    code, out, err = cli("reference", folder, tmp_path / "data.jsonl", "--device", "cpu")
    assert code == 0 and "relevance_mean" in out and "strategy realizer" in out, err
    loaded = ArrCocForConditionalGeneration.from_pretrained(folder)
    assert find_reference(loaded) == FetchReference.load(folder / REFERENCE)
    server = Server(loaded, ServerSettings(cache_tokens=1024))
    assert server.engine.on_embedded == server.watch.observe and server.watch.strategy == "realizer"
    assert set(samples(server.metrics, "arr_coc_drift")) == set(samples(server.metrics, "arr_coc_fetch_reference"))
    code, _, err = cli("reference", "org/model", tmp_path / "data.jsonl")
    assert code == 2 and "model: expected a folder" in err


# ---- what is shipped
@pytest.fixture(scope="module")
def told(model: ArrCocForConditionalGeneration) -> dict[str, set[str]]:
    """The labels of every series that the server tells, by name, used or not."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
    server = Server(model, ServerSettings(cache_tokens=1024))
    collectors = server.metrics.registry._names_to_collectors
    series = {}
    for name, collector in collectors.items():
        if collector._name == name.removesuffix("_total"):
            for suffix in suffixes.get(collector._type, ("",)):
                series[collector._name + suffix] = set(collector._labelnames)
    return series


def dashboard() -> dict[str, Any]:
    return json.loads((SERVING / "monitoring/dashboard.json").read_text())


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for group in yaml.safe_load((SERVING / "monitoring/alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]


def expressions() -> Iterator[str]:
    """All that dashboard and alerts ask for."""
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (rule["expr"] for rule in rules())


def test_dashboard_and_alerts_ask_for_what_the_server_tells_and_all_of_it(told: dict[str, set[str]]) -> None:
    source = "".join(path.read_text() for path in SERVING.glob("*.py"))
    for expression in expressions():
        names = set(OWN.findall(expression))
        assert names and names <= set(told), (expression, names - set(told))
        known = PROMETHEUS_OWN.union(*(told[name] for name in names))
        grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")}
        selected = re.findall(r'(\w+)="(\w+)"', expression)
        assert grouped | {label for label, _ in selected} <= known, expression
        assert all(f'"{value}"' in source for _, value in selected), expression
        assert expression.count("(") == expression.count(")") and expression.count("{") == expression.count("}")
    shown = {name for panel in dashboard()["panels"] for each in panel["targets"] for name in OWN.findall(each["expr"])}
    histograms = {name.removesuffix("_bucket") for name in told if name.endswith("_bucket")}
    for name in told:
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in shown or (family in histograms and any(own.startswith(family) for own in shown)), name
