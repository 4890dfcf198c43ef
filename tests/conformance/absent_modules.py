"""Stand-ins for modules that transformers' test mixins import and its source distribution leaves out.

They let the imports succeed and test nothing: tests of generation and of exporters are not part of the distribution.
"""

import sys
from pathlib import Path
from types import ModuleType

PICTURE = Path(__file__).parents[2] / "examples" / "images" / "receipt.png"
"""In the place of every file that the tests would fetch."""

COMMON_FIELDS = {
    "output_hidden_states": True,
    "output_attentions": True,
    "return_dict": False,
    "dtype": "float16",
    "chunk_size_feed_forward": 5,
    "architectures": ["ArrCocForConditionalGeneration"],
    "problem_type": "regression",
    "id2label": {0: "label"},
    "label2id": {"label": 0},
}
"""Fields that every config takes, each with a value that is not its default: `ConfigTester` checks that they arrive."""


class GenerationTesterMixin:
    """In the place of transformers' tests of `generate`."""


class ExportTesterMixin:
    """In the place of transformers' tests of exporters."""


def install(package: str) -> None:
    """Puts the stand-ins where the test files, a package of this name, import them from."""
    _module(f"{package}.generation.test_utils", GenerationTesterMixin=GenerationTesterMixin)
    _module(f"{package}.exporters.test_export", ExportTesterMixin=ExportTesterMixin)
    _module(f"{package}.utils.test_configuration_utils", config_common_kwargs=COMMON_FIELDS)
    _module("fetch_hub_objects_for_ci", url_to_local_path=lambda url: str(PICTURE))


def _module(name: str, **members: object) -> None:
    """A module of these members, and the folder it would lie in; the package itself is there."""
    parent = name.rpartition(".")[0]
    if parent.count("."):
        sys.modules.setdefault(parent, ModuleType(parent))
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
