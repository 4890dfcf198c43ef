"""Probes: what they see is what passes, and without them nothing is left behind."""

from typing import Any

import pytest

from arr_coc import probes as probes_module
from arr_coc.model_summary import generated_image
from arr_coc.probes import EXPECTED, Range, Statistics, set_probes
from benchmarks.path import trace

PAGE, QUESTION = generated_image(128), "What is the total?"


def ask(model: Any) -> Any:
    return model.generate(PAGE, QUESTION, return_fetch=True, max_new_tokens=1)


def test_every_boundary_is_seen_and_what_is_out_of_range_is_said(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ask(model)
    probes = set_probes(model, True)
    answer = ask(model)
    assert answer.probability == plain.probability
    assert set(probes) == set(EXPECTED)
    relevance = Statistics.of(answer.fetch.relevance)
    assert probes["relevance"] == relevance and relevance.shape == (1, 256) and relevance.dtype == "float32"
    assert probes["grid encoder"].shape == (1, 16, 16, 16) and probes["bridge"].shape == (1, 17, 24)
    assert all(of.min <= of.mean <= of.max and of.within(EXPECTED[name]) for name, of in probes.items())
    set_probes(model, False)
    said: list[str] = []
    monkeypatch.setattr(probes_module.logger, "warning", said.append)
    monkeypatch.setitem(EXPECTED, "relevance", Range(2.0, 3.0))
    set_probes(model, True)
    ask(model)
    set_probes(model, False)
    assert [text.split(":")[0] for text in said] == ["relevance"]
    assert said[0].startswith("relevance: expected values in 2..3 with a standard deviation in 1e-05..1000; got ")


def test_without_probes_nothing_runs_that_did_not_before(model: Any) -> None:
    """The cost is none: the same functions are called as before there were probes, and no hook is left."""
    ask(model)
    before = trace(lambda: ask(model)).calls
    set_probes(model, True)
    set_probes(model, True)  # twice is once
    assert len(trace(lambda: ask(model)).calls) > len(before)
    assert set_probes(model, False) is None and model.probes is None
    assert trace(lambda: ask(model)).calls == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
