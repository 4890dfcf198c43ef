"""save_pretrained where arr_coc is imported: the folder holds the code, and loads where arr_coc is not installed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_checkpoint, tiny_model, tiny_processor
from lone import QUESTION, run_alone
from PIL import Image

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.modeling.configuration_arr_coc import AUTO_MAP
from arr_coc.publishing.building import CODE, build

CODE_FILES = {path.name: path.read_bytes() for path in CODE.glob("*.py") if path.name != "__init__.py"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_checkpoint(tmp_path_factory.mktemp("saved"))
    (folder / "README.md").unlink()
    return folder


def test_a_saved_folder_holds_the_code_and_the_map_that_build_writes(saved: Path, tmp_path: Path) -> None:
    """Once it held neither: nobody without arr_coc could load it."""
    assert {path.name: path.read_bytes() for path in saved.glob("*.py")} == CODE_FILES
    built = build(saved, tmp_path / "built")
    assert {path.name for path in built.iterdir()} == {path.name for path in saved.iterdir()} | {"README.md"}
    for name in ("config.json", "processor_config.json"):
        ours, theirs = (json.loads((folder / name).read_text()) for folder in (saved, built))
        assert ours["auto_map"] == theirs["auto_map"]
    # A model from the Hub names its classes with their repository: what is saved has its own code.
    model = ArrCocForConditionalGeneration.from_pretrained(saved)
    model.config.auto_map = {name: f"org/model--{place}" for name, place in AUTO_MAP.items()}
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP


def test_a_fresh_interpreter_reads_what_was_saved(saved: Path, tmp_path: Path) -> None:
    """A processor, or an image processor, saved alone; and a document beside a model that is loaded by its own code.

    Remote code may load a class twice: what one of them opened was no document to the other.
    """
    pages = [Image.new("RGB", (40, 40), "white")] * 2
    pages[0].save(tmp_path / "pages.pdf", save_all=True, append_images=pages[1:])
    tiny_processor().save_pretrained(tmp_path / "both")
    tiny_processor().image_processor.save_pretrained(tmp_path / "images")
    code = """
both, images = rest
model = AutoModel.from_pretrained(source, trust_remote_code=True)
model.processor = AutoProcessor.from_pretrained(source, trust_remote_code=True)
print(len(model.generate(picture, question, tiles="never", return_fetch=True).fetch.counts))
for auto, folder in ((AutoProcessor, both), (AutoImageProcessor, both), (AutoImageProcessor, images)):
    print(type(auto.from_pretrained(folder, trust_remote_code=True)).__name__)
"""
    others = (tmp_path / name for name in ("both", "images"))
    said = run_alone(code, saved, tmp_path / "pages.pdf", *others, home=tmp_path).splitlines()
    assert said == ["2", "ArrCocProcessor", "ArrCocImageProcessor", "ArrCocImageProcessor"]


def test_pushing_sends_the_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both ways: `push_to_hub()` and `save_pretrained(push_to_hub=True)`, of the model and of the processor."""
    sent: dict[str, set[str]] = {}

    class Api:
        def create_repo(self, name: str, **kwargs: Any) -> Any:
            return type("Repository", (), {"repo_id": name})

    def upload(
        self: Any, folder: str | Path, name: str, files_timestamps: dict[str, float], *args: Any, **kwargs: Any
    ) -> None:
        sent[name] = {path.name for path in Path(folder).iterdir() if path.name not in files_timestamps}

    for module in ("utils.hub", "modeling_utils", "processing_utils"):
        monkeypatch.setattr(f"transformers.{module}.hf_api", Api)
    monkeypatch.setattr("transformers.utils.hub.create_and_tag_model_card", lambda *args, **kwargs: Card())
    for owner, kind in ((tiny_model(), "model"), (tiny_processor(), "processor")):
        monkeypatch.setattr(type(owner), "_upload_modified_files", upload)
        owner.push_to_hub(f"me/{kind}")
        owner.save_pretrained(str(tmp_path / kind), push_to_hub=True, repo_id=f"me/{kind}-saved")
    for kind, place in (("model", "modeling_arr_coc.py"), ("processor", "processing_arr_coc.py")):
        for name in (f"me/{kind}", f"me/{kind}-saved"):
            assert {place, "configuration_arr_coc.py", "checks.py"} <= sent[name], name


class Card:
    """A model card that is not wanted here."""

    def save(self, path: str) -> None:
        pass


def test_the_processor_comes_from_where_the_weights_came_from(saved: Path, picture: Path, tmp_path: Path) -> None:
    """It came from the repository's root, and from its main branch: another one, or none."""
    shutil.copytree(saved, tmp_path / "repository" / "inner")
    settings = tmp_path / "repository" / "inner" / "processor_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "budget": 7}))
    model = ArrCocForConditionalGeneration.from_pretrained(tmp_path / "repository", subfolder="inner")
    assert model.processor.budget == 7
    assert model.generate(picture, QUESTION) == tiny_model().generate(picture, QUESTION)


# ---- When transformers' Auto classes learn ours: `import arr_coc` loads neither library, and is all that it takes
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


# The second one in the middle of modeling's imports.
@pytest.mark.parametrize("first", ["import arr_coc", "from arr_coc.modeling.fetcher import FetchChoices"])
def test_the_auto_classes_know_ours_whatever_is_imported_first(first: str) -> None:
    run(first + REGISTERED + "import sys\nassert not [f for f in sys.meta_path if 'arr_coc' in type(f).__module__]")
