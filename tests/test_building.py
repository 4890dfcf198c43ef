"""Building a model repository, and running it as remote code where arr_coc is not installed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from graphs import spatial_model
from helpers import refuses, tiny_checkpoint, tiny_model, tiny_processor
from huggingface_hub import ModelCard
from lone import QUESTION, run_alone
from PIL import Image

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.cli import main
from arr_coc.publishing.building import (
    AUTO_MAP,
    CODE,
    build,
    complete_card,
    evaluation_results,
    missing_metadata,
    read_card,
)
from arr_coc.publishing.building import tested_transformers as transformers_range

SHIPPED = Path(__file__).parents[1] / "hub_configs" / "arr-coc-tiny-2"
EVALUATION = {
    "strategies": {
        "none": {"exact_match": {"value": 0.0, "low": 0.0, "high": 0.1}, "recall": None, "tokens": 64.0, "n": 30},
        "realizer": {
            "exact_match": {"value": 0.0433, "low": 0.03, "high": 0.05},
            "recall": {"value": 0.96477, "low": 0.95, "high": 0.98},
            "tokens": 132.0,
            "n": 30,
        },
    },
    "data": "/home/me/examples/held_out/data.jsonl",
    "budget": 68,
    "allocator": "topk",
}


@pytest.fixture(scope="module")
def built(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(checkpoint, tmp_path_factory.mktemp("built") / "repository")


@pytest.fixture(scope="module")
def expected(picture: Path) -> str:
    answer: str = tiny_model().generate(picture, QUESTION)
    assert answer
    return answer


def test_everything_a_repository_needs_is_written(built: Path, checkpoint: Path, tmp_path: Path) -> None:
    code = {path.name for path in CODE.glob("*.py")} - {"__init__.py"}
    assert {path.name for path in built.iterdir()} == {path.name for path in checkpoint.iterdir()} | code
    assert json.loads((built / "config.json").read_text())["auto_map"] == AUTO_MAP
    settings = json.loads((built / "processor_config.json").read_text())
    assert set(settings["auto_map"]) == {"AutoProcessor", "AutoImageProcessor"}
    assert set(settings["image_processor"]["auto_map"]) == {"AutoImageProcessor"}
    assert list(built.parent.iterdir()) == [built]  # nothing is left beside it
    again = build(built, tmp_path / "again")
    assert {p.name: p.read_bytes() for p in again.iterdir()} == {p.name: p.read_bytes() for p in built.iterdir()}


@pytest.mark.versions
def test_a_fresh_interpreter_answers_from_the_folder_and_from_what_it_saves(
    built: Path, picture: Path, expected: str, tmp_path: Path
) -> None:
    """By every Auto class and the pipeline, and from the Hub's cache, offline. Without a processor it says so."""
    repository, commit = tmp_path / "hub" / "models--org--arr-coc", "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(built, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    bare, spatial = tmp_path / "bare", tmp_path / "spatial"
    shutil.copytree(built, bare, ignore=shutil.ignore_patterns("*processor_config.json", "token*"))
    places = spatial_model()
    places.save_pretrained(spatial)
    places.processor.save_pretrained(spatial)
    code = """
*saved, spatial, bare = rest
for name, folder in zip((source, "org/arr-coc"), saved, strict=True):
    model = AutoModel.from_pretrained(name, trust_remote_code=True)
    print(model.generate(picture, question))
    processor = AutoProcessor.from_pretrained(name, trust_remote_code=True)
    print(type(processor).__name__, type(processor.image_processor).__name__)
    print(processor.chat_template == model.processor.chat_template)
    model.save_pretrained(folder)
    model.processor.save_pretrained(folder)
for auto in (AutoConfig, AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoImageProcessor):
    print(type(auto.from_pretrained(source, trust_remote_code=True)).__name__)
ask = pipeline("image-text-to-text", model=source, trust_remote_code=True)
chat = [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": question}]}]
print(ask(text=chat, return_full_text=False)[0]["generated_text"].strip())
for folder in (*saved, spatial):
    print(AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).generate(picture, question))
    print(type(AutoProcessor.from_pretrained(folder, trust_remote_code=True)).__name__)
try:
    AutoModel.from_pretrained(bare, trust_remote_code=True).generate(picture, question)
except ValueError as error:
    print(error)
"""
    saved = tmp_path / "saved", tmp_path / "saved_from_hub"
    said = run_alone(code, built, picture, *saved, spatial, bare, home=tmp_path).splitlines()
    model = "ArrCocForConditionalGeneration"
    assert said[:6] == [expected, "ArrCocProcessor ArrCocImageProcessor", "True"] * 2
    assert said[6:11] == ["ArrCocConfig", model, model, "ArrCocImageProcessor", expected]
    assert said[11:15] == [expected, "ArrCocProcessor"] * 2
    assert said[15:17] == [places.generate(picture, QUESTION), "ArrCocProcessor"]
    (refusal,) = said[17:]
    assert refusal.startswith(f"processor: expected '{bare}' to hold one")
    for folder in saved:
        assert json.loads((folder / "config.json").read_text())["auto_map"] == AUTO_MAP


def test_shards_are_taken_and_stale_weights_are_not(checkpoint: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    model = tiny_model()
    model.save_pretrained(source, max_shard_size="100KB")
    model.processor.save_pretrained(source)
    shutil.copyfile(checkpoint / "model.safetensors", source / "model-00001-of-00009.safetensors")
    out = build(source, tmp_path / "out")
    shards = set(json.loads((source / "model.safetensors.index.json").read_text())["weight_map"].values())
    assert len(shards) > 1
    assert {path.name for path in out.glob("*.safetensors")} == shards
    (source / sorted(shards)[0]).unlink()
    refuses(r"expected the \d+ shards of .*; got no model-00001-of-", build, source, tmp_path / "again")


def test_incomplete_sources_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    def source(*without: str) -> Path:
        folder = tmp_path / "source"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns(*without))
        return folder

    out = tmp_path / "out"
    refuses("expected a folder with a model; got nothing", build, tmp_path / "missing", out)
    refuses(r"expected weights \(model.safetensors, or shards with .*\); got none", build, source("*.safetensors"), out)
    refuses("got no processor_config.json", build, source("processor_config.json"), out)
    other = source()
    (other / "config.json").write_text('{"model_type": "bert"}')
    refuses("expected an ARR-COC model; got a model of type 'bert'", build, other, out)
    refuses("expected a folder apart from the source", build, checkpoint, checkpoint / "out")
    assert not out.exists()
    with_files = r"expected a new or empty folder \(or --force.*\); got one with files"
    refuses(with_files, build, checkpoint, tmp_path)  # with force: tests/fuzz/disks.py and kills.py
    (tmp_path / "empty").mkdir()
    assert build(checkpoint, tmp_path / "empty") == tmp_path / "empty"


# ---- the card
def test_the_shipped_models_card_says_all_that_the_hub_shows(tmp_path: Path) -> None:
    folder = build(SHIPPED, tmp_path / "out")
    card, evaluation = ModelCard.load(folder / "README.md"), json.loads((SHIPPED / "evaluation.json").read_text())
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "image-text-to-text")
    assert card.data.license == "apache-2.0"
    assert card.data["transformers_version"] == transformers_range()
    assert missing_metadata(card) == []
    row = evaluation["strategies"]["realizer"]
    assert {result.metric_type: result.metric_value for result in card.data.eval_results} == {
        "exact_match": round(100 * row["exact_match"]["value"], 1),
        "recall": round(100 * row["recall"]["value"], 1),
    }
    assert {result.dataset_name for result in card.data.eval_results} == {"held_out"}
    assert card.data.model_name == "arr-coc-tiny-2"
    own = re.sub(r"\[([^]]*)\]\(\.\./[^)]*\)", r"\1", ModelCard.load(SHIPPED / "README.md").text.strip())
    assert "](../" not in card.text, "links to what is not on the Hub"
    assert card.text.strip() == f"{own}\n\nTested with transformers `{transformers_range()}`."


def test_what_the_card_says_itself_stays_and_completing_it_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_bytes(
        b"---\r\nlicense: mit\r\npipeline_tag: visual-question-answering\r\ntags: [mine]\r\nbase_model: org/one\r\n"
        b"model-index:\r\n- name: Mine\r\n  results:\r\n  - task: {type: t}\r\n"
        b"    dataset: {name: Other, type: other}\r\n    metrics: [{type: f1, value: 3}]\r\n"
        b"---\r\n# Title\r\n\r\nTested with transformers `>=1`.\r\n"
    )
    options = {"strategy": "realizer", "evaluation": EVALUATION, "base_model": ("org/two",)}
    card = complete_card(path, "name", **options)  # type: ignore[arg-type]
    first = path.read_bytes()
    assert (card.data.license, card.data.pipeline_tag, card.data.base_model) == (
        "mit",
        "visual-question-answering",
        "org/one",
    )
    assert card.data.tags == ["mine", "arr_coc", "custom_code"]
    assert [(r.dataset_name, r.metric_value) for r in card.data.eval_results] == [
        ("Other", 3),
        ("held_out", 4.3),
        ("held_out", 96.5),
    ]
    assert card.data.model_name == "Mine"
    assert f"# Title\r\n\r\nTested with transformers `{transformers_range()}`.\r\n".encode() in first
    assert b"/home" not in first
    complete_card(path, "name", **options)  # type: ignore[arg-type]
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    "data", ["org/docs", "org/docs, split test", "a/data.jsonl and b/data.jsonl", "set/data.jsonl"]
)
def test_results_are_on_the_data_by_its_name(data: str) -> None:
    """Two data sets of one organisation replaced each other's results."""
    name = "set" if data == "set/data.jsonl" else data
    assert {each.dataset_type for each in evaluation_results({**EVALUATION, "data": data}, "realizer")} == {name}


def test_a_missing_card_is_written_and_an_assembled_models_base_models_are_named(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "my-model"
    shutil.copytree(checkpoint, source, ignore=shutil.ignore_patterns("README.md"))
    roles = {"vision": "deepseek-ai/DeepSeek-OCR", "llm": "folder", "clip-text": "deepseek-ai/DeepSeek-OCR"}
    record = {"sources": {role: {"name": name, "revision": None} for role, name in roles.items()}}
    (source / "assembly.json").write_text(json.dumps(record))
    assert main(["build", str(source), str(tmp_path / "out")]) == 0
    assert "arr-coc push will ask for license" in capsys.readouterr().err
    card = read_card(tmp_path / "out" / "README.md")
    assert card.data.base_model == ["deepseek-ai/DeepSeek-OCR"]
    assert "# my-model" in card.text
    assert missing_metadata(card) == ["license"]
    given = tmp_path / "given.md"
    given.write_text("---\nlicense: mit\n---\n# Given\n")
    assert main(["build", str(source), str(tmp_path / "out"), "--card", str(given), "--force"]) == 0
    assert capsys.readouterr().err == ""
    card = read_card(tmp_path / "out" / "README.md")
    assert (card.data.license, card.data.base_model) == ("mit", ["deepseek-ai/DeepSeek-OCR"])
    (source / "assembly.json").write_text('{"sources": 3}')
    refuses("assembly.json: expected what arr-coc assemble writes", build, source, tmp_path / "third")
    with pytest.raises(ValueError, match=r"card: expected a README.md; got '.*missing.md', which is no file"):
        build(source, tmp_path / "third", card=tmp_path / "missing.md")
    assert not (tmp_path / "third").exists()


def test_a_card_or_an_evaluation_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("---\nlicense: [\n---\n")
    refuses("README.md: expected a card with YAML metadata; got ", read_card, path)
    assert evaluation_results(EVALUATION, "oracle") == []
    row = {
        **EVALUATION["strategies"]["realizer"],
        "not_on_the_page": {"recall": {"value": 0.5, "low": 0.1, "high": 0.9}},
    }
    grouped = {**EVALUATION, "strategies": {"realizer": row}}  # as of records that are absent
    assert evaluation_results(grouped, "realizer") == evaluation_results(EVALUATION, "realizer")
    with pytest.raises(ValueError, match="evaluation.json: expected what arr-coc evaluate --json writes; got KeyError"):
        evaluation_results({"strategies": EVALUATION["strategies"]}, "realizer")


# ---- save_pretrained where arr_coc is imported: the folder holds the code, and loads where arr_coc is not installed
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
    api = SimpleNamespace(create_repo=lambda name, **kwargs: SimpleNamespace(repo_id=name))
    card = SimpleNamespace(save=lambda path: None)

    def upload(
        self: Any, folder: str | Path, name: str, files_timestamps: dict[str, float], *args: Any, **kwargs: Any
    ) -> None:
        sent[name] = {path.name for path in Path(folder).iterdir() if path.name not in files_timestamps}

    for module in ("utils.hub", "modeling_utils", "processing_utils"):
        monkeypatch.setattr(f"transformers.{module}.hf_api", lambda: api)
    monkeypatch.setattr("transformers.utils.hub.create_and_tag_model_card", lambda *args, **kwargs: card)
    for owner, kind in ((tiny_model(), "model"), (tiny_processor(), "processor")):
        monkeypatch.setattr(type(owner), "_upload_modified_files", upload)
        owner.push_to_hub(f"me/{kind}")
        owner.save_pretrained(str(tmp_path / kind), push_to_hub=True, repo_id=f"me/{kind}-saved")
    for kind, place in (("model", "modeling_arr_coc.py"), ("processor", "processing_arr_coc.py")):
        for name in (f"me/{kind}", f"me/{kind}-saved"):
            assert {place, "configuration_arr_coc.py", "checks.py"} <= sent[name], name


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
