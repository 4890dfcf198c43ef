"""When transformers' Auto classes learn ours: `import arr_coc` loads neither library, and is all that it takes."""

import subprocess
import sys

import pytest

import arr_coc

REGISTERED = """
from transformers import AutoConfig, AutoProcessor
from transformers.models.auto.modeling_auto import AutoModel
config = AutoConfig.for_model("arr_coc")
assert type(config).__name__ == "ArrCocConfig" and type(config) in AutoModel._model_mapping
"""


def run(code: str) -> None:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_importing_the_library_loads_neither_torch_nor_transformers() -> None:
    run("import sys, arr_coc; assert not {'torch', 'transformers', 'arr_coc.modeling'} & set(sys.modules)")


@pytest.mark.parametrize(
    "first",
    [
        "import arr_coc",
        "from arr_coc.modeling.fetcher import FetchChoices",  # in the middle of modeling's imports
    ],
)
def test_the_auto_classes_know_ours_whatever_is_imported_first(first: str) -> None:
    run(first + REGISTERED + "import sys\nassert not [f for f in sys.meta_path if 'arr_coc' in type(f).__module__]")


def test_names_load_when_they_are_used() -> None:
    assert arr_coc.ArrCocModel.__name__ == "ArrCocModel"
    assert {"ArrCocModel", "scorer_lora_config", "__version__"} <= set(dir(arr_coc))
    with pytest.raises(AttributeError, match="module 'arr_coc' has no attribute 'ArrCocMdel'"):
        _ = arr_coc.ArrCocMdel  # type: ignore[attr-defined]
