"""What transformers' tests run under here: no network, our models in their lists, the named exclusions."""

import gc
import os
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported, which reads it once

import absent_modules
import pytest
import torch
from distribution import PACKAGE, tests_folder
from exclusions import EXCLUSIONS
from transformers.models.auto import modeling_auto

from arr_coc import ArrCocConfig, ArrCocForConditionalGeneration, ArrCocModel

gc.disable()  # until all tests are imported, see `pytest_collection_finish`
sys.path.insert(0, str(tests_folder()))
absent_modules.install(PACKAGE)
torch.set_num_threads(1)  # one core for each of pytest's processes
torch.set_printoptions(threshold=0, edgeitems=1)  # tests word a message, whole tensors in it, for each weight they pass

# As for a model inside transformers: some tests choose classes, and the labels that they take, by these lists.
modeling_auto.MODEL_MAPPING_NAMES[ArrCocConfig.model_type] = ArrCocModel.__name__
modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[ArrCocConfig.model_type] = (
    ArrCocForConditionalGeneration.__name__
)


def exclusion(item: pytest.Item) -> str | None:
    """The pattern of the exclusion that holds for a test, or None."""
    assert isinstance(item, pytest.Function) and item.cls is not None
    name = f"{item.cls.__name__}::{item.name}"
    return next((pattern for pattern in EXCLUSIONS if fnmatchcase(name, pattern)), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Excluded tests run and must fail: one that passes is an error, and so is an exclusion of nothing."""
    matched = set()
    for item in items:
        if (pattern := exclusion(item)) is not None:
            item.add_marker(pytest.mark.xfail(reason=EXCLUSIONS[pattern], strict=True))
            matched.add(pattern)
    idle = sorted(set(EXCLUSIONS) - matched)
    if idle and any(Path(argument).is_dir() for argument in config.args):  # all tests, not some
        raise pytest.UsageError(f"EXCLUSIONS: expected patterns of tests that there are; got {idle}")


def pytest_collection_finish() -> None:
    """What the imports made is never garbage, as in tests/conftest.py."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that is skipped needs no exclusion."""
    report: pytest.TestReport = yield  # type: ignore[misc, assignment]
    if report.skipped and not hasattr(report, "wasxfail") and exclusion(item) is not None:
        report.outcome, report.longrepr = "failed", f"excluded, but skipped: {report.longrepr}"
    return report  # type: ignore[return-value]
