"""The published variants: what their configs build has the sizes of the published weights, and their cards say how."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import tiny_tokenizer
from lone import run_alone
from tokenizers import AddedToken
from transformers import AutoImageProcessor, AutoProcessor, GenerationConfig

from arr_coc import ArrCocConfig, ArrCocImageProcessor, ArrCocProcessor
from arr_coc.cli.evaluate import table
from arr_coc.data.records import read_records
from arr_coc.model_summary import count_parameters, on_meta
from arr_coc.modeling.prompt import query_markers
from arr_coc.modeling.prompt_format import IMAGE_TOKEN
from arr_coc.training.reader.language_model import Prompting

ROOT = Path(__file__).parents[1]
DEEPSEEK = "deepseek-ai/DeepSeek-OCR"
VISION = 398_144_768
"""DeepSeek-OCR's 476 tensors without projector, `image_newline`, `view_seperator` and CLIP's unused patch embedding."""
FETCHED = 1024 + 1024 * 256
"""What is new in the vision tower: the fetched tokens' embedding and projection."""
# Language model with its vocabulary head (once where tied); bridge with layout and planes; positions of base tokens.
VARIANTS: dict[str, tuple[str, str, int, int, int]] = {
    "arr-coc-qwen3-0.6b": ("Qwen/Qwen3-0.6B", "linear", 596_049_920, 2_098_176, 256),
    "arr-coc-qwen3-1.7b": ("Qwen/Qwen3-1.7B", "linear", 1_720_574_976, 4_196_352, 256),
    "arr-coc-qwen3-vl-2b": ("Qwen/Qwen3-VL-2B-Instruct", "linear", 1_720_574_976, 4_196_352 + 4_926_720, 256),
    "arr-coc-ovis2.5-2b": ("AIDC-AI/Ovis2.5-2B", "vet", 1_720_574_976, 268_558_328, 258),
    "arr-coc-ovis2.5-9b": ("AIDC-AI/Ovis2.5-9B", "vet", 8_190_735_360, 402_776_056, 258),
    "arr-coc-deepseek-ocr-3b": (DEEPSEEK, "linear", 2_934_734_080, 2_622_720 + 2 * 1280, 273),
}


def config_of(name: str) -> ArrCocConfig:
    return ArrCocConfig.from_pretrained(ROOT / "hub_configs" / name)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: on_meta(config_of(name)) for name in VARIANTS}


READER = "arr-coc-135m"
"""Trained beside a published language model, which is no part of the folder."""


def test_every_folder_without_weights_is_a_variant() -> None:
    folders = {path.parent for path in (ROOT / "hub_configs").glob("*/config.json")}
    weightless = {path.name for path in folders if not any(path.glob("model*.safetensors"))}
    assert weightless - {READER} == set(VARIANTS)


def test_the_reader_has_its_published_geometry_and_the_vocabulary_of_smollm2() -> None:
    config, processor = config_of(READER), ArrCocProcessor.from_pretrained(ROOT / "hub_configs" / READER)
    assert config.vision_config.num_patches == 4096 and config.vision_tokens() == (0, 273)
    sizes = count_parameters(on_meta(config))
    assert 1e6 < sizes["grid encoder"] < 12e6 and sizes["language model"] == 134_515_008
    tokenizer = processor.tokenizer
    assert len(tokenizer) == config.text_config.vocab_size == 49_152
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>", IMAGE_TOKEN]
    assert tokenizer.tokenize(" Total 24.50") == ["ĠTotal", "Ġ", "2", "4", ".", "5", "0"]
    assert config.query_markers == query_markers(tokenizer) and config.image_token_id == 3


@pytest.mark.parametrize("question", ["What is the tax?", "12.50 or 1,250?", "Who signed, and when? Ünïcode"])
def test_the_reader_is_asked_what_it_was_trained_on(question: str) -> None:
    """A prompt of another wording than the trained one costs answers, and nothing says so."""
    processor = ArrCocProcessor.from_pretrained(ROOT / "hub_configs" / READER)
    trained = Prompting(processor.tokenizer)
    asked = [*trained.before, *[processor.image_token_id] * 5, *trained.question(question)]
    prompts = processor.prompts([question], images=[1], placeholders=5)
    assert prompts["input_ids"].tolist() == [asked] and prompts["attention_mask"].all()
    assert processor.tokenizer.decode(prompts["input_ids"][0][prompts["query_mask"][0]]) == question

    for answer in ("John Smith", "12.50", "£ 3", "not on the page"):
        blocks = [{"type": "image"}, {"type": "text", "text": question}]
        chat = [{"role": "user", "content": blocks}, {"role": "assistant", "content": answer}]
        text = processor.apply_chat_template(chat).replace(IMAGE_TOKEN, IMAGE_TOKEN * 5)
        newline = trained.ids("\n")
        assert trained.ids(text) == [*asked, *trained.answer(answer), *newline]


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_are_those_of_the_published_weights(name: str, models: dict[str, Any]) -> None:
    model, (_, _, language, bridge, _) = models[name], VARIANTS[name]

    def count(*parts: Any) -> int:
        return sum(p.numel() for p in {id(p): p for part in parts for p in part.parameters()}.values())

    body = model.model
    assert count(body.vision_tower) == VISION + FETCHED
    assert count(body.language_model, model.lm_head) == language
    assert count(body.bridge, body.layout, *([body.deepstack] if body.deepstack else [])) == bridge
    assert count(model) == VISION + FETCHED + language + bridge + count(body.fetcher)


@pytest.mark.parametrize("name", VARIANTS)
def test_model_and_processor_count_alike(name: str) -> None:
    """Two files say how many positions an image takes; where they differ no prompt fits the model."""
    config, base = config_of(name), VARIANTS[name][-1]
    settings = json.loads((ROOT / "hub_configs" / name / "processor_config.json").read_text(encoding="utf-8"))
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(settings["image_token"], special=True)], special_tokens=True)
    images = ArrCocImageProcessor(**settings.pop("image_processor"))
    assert settings.pop("processor_class") == "ArrCocProcessor" and settings.pop("auto_map")
    processor = ArrCocProcessor(images, tokenizer, **settings)
    assert processor.layout == config.bridge_config.layout and processor.excludes_base == config.excludes_base
    (count,) = processor._get_num_multimodal_tokens([[20, 30]]).num_image_tokens
    fetched = 0 if config.fetcher_config.strategy == "none" else 273
    assert config.vision_tokens() == (base, fetched) and count == base + fetched
    assert images.size["height"] == config.vision_config.image_size and images.patch_size == 16


def test_without_this_package_a_processor_is_refused(tmp_path: Path) -> None:
    """AutoProcessor passed the folder's tokenizer off as the processor."""
    code = """
import json, os
sys.stdin = open(os.devnull)  # nobody answers when transformers asks whether to run the folder's code
outcomes = []
for folder in sys.argv[1:]:
    for trust in (None, True):
        try:
            outcomes.append(type(AutoProcessor.from_pretrained(folder, trust_remote_code=trust)).__name__)
        except (OSError, ValueError) as error:
            outcomes.append(str(error))
print()
print(json.dumps(outcomes))
"""
    folders = sorted(path.parent for path in (ROOT / "hub_configs").glob("*/processor_config.json"))
    assert {folder.name for folder in folders} >= {"arr-coc-tiny-2", *VARIANTS}
    outcomes = iter(json.loads(run_alone(code, *folders, home=tmp_path).splitlines()[-1]))
    for folder in folders:
        untrusted, trusted = next(outcomes), next(outcomes)
        assert f"{folder} contains custom code" in untrusted and "`trust_remote_code=True`" in untrusted
        assert f"{folder} does not appear to have a file named processing_arr_coc.py" in trusted


@pytest.mark.parametrize("name", ["arr-coc-tiny-2", READER, *VARIANTS])
def test_with_this_package_a_processor_needs_no_trust(name: str) -> None:
    folder = ROOT / "hub_configs" / name
    if name not in VARIANTS:  # theirs have no tokenizer before they are assembled
        processor = AutoProcessor.from_pretrained(folder)
        assert type(processor) is ArrCocProcessor and type(processor.image_processor) is ArrCocImageProcessor
    assert type(AutoImageProcessor.from_pretrained(folder)) is ArrCocImageProcessor


@pytest.mark.parametrize("name", [READER, *VARIANTS])
def test_config_says_all_there_is_to_say(name: str) -> None:
    """What a later default would change silently has to be written down."""
    held = json.loads((ROOT / "hub_configs" / name / "config.json").read_text(encoding="utf-8"))
    config = config_of(name)
    for part in ("vision_config", "semantic_config", "fetcher_config", "bridge_config"):
        kind = type(getattr(config, part))
        assert set(held[part]) - set(kind.retired) == set(kind.__annotations__) | {"model_type"}, part
    assert held["dtype"] == "bfloat16" and held["architectures"] == ["ArrCocForConditionalGeneration"]
    generation = GenerationConfig.from_pretrained(ROOT / "hub_configs" / name)
    ends = generation.eos_token_id if isinstance(generation.eos_token_id, list) else [generation.eos_token_id]
    assert config.text_config.eos_token_id in ends and not generation.do_sample


@pytest.mark.parametrize("name", VARIANTS)
def test_card_says_what_it_is_made_of_and_how(name: str) -> None:
    language, bridge, *_ = VARIANTS[name]
    text = (ROOT / "hub_configs" / name / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    front = yaml.safe_load(front)
    assert (front["library_name"], front["pipeline_tag"]) == ("transformers", "image-text-to-text")
    assert front["base_model"] == list(dict.fromkeys((DEEPSEEK, language)))
    assert front["license"] == ("mit" if language == DEEPSEEK else "apache-2.0")
    (block,) = re.findall(r"```bash\n(.*?)```", body, re.DOTALL)
    assemble, build, push = block.strip().splitlines()
    assert assemble.startswith(f"arr-coc assemble --vision {DEEPSEEK} --llm {language} --bridge {bridge} ")
    assert assemble.endswith(f" --out assembled/{name}")
    assert build == f"arr-coc build assembled/{name} built/{name} --card hub_configs/{name}/README.md"
    assert push == f"arr-coc push built/{name} org/{name}"


# ---- The card of arr-coc-tiny-2 says what its evaluation measured, and the checkpoint keeps to its limits
FOLDER = ROOT / "hub_configs" / "arr-coc-tiny-2"
HELD_OUT = ROOT / "examples" / "held_out" / "data.jsonl"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return json.loads((FOLDER / "evaluation.json").read_text(encoding="utf-8"))["strategies"]


def test_the_table_is_the_evaluation_of_all_pages_and_the_limits_are_kept(results: dict[str, Any]) -> None:
    """`arr-coc evaluate examples/held_out/data.jsonl --model FOLDER --json FOLDER/evaluation.json` prints it."""
    assert table(results) in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert {row["n"] for row in results.values()} == {len(read_records(HELD_OUT))}
    config = ArrCocConfig.from_pretrained(FOLDER)
    assert all(path.stat().st_size <= 16 * 2**20 for path in FOLDER.rglob("*") if path.is_file())
    assert config.vision_config.image_size >= 256 and config.vision_config.grid_size >= 32
    patches = config.vision_config.num_patches
    assert config.vision_tokens() == (patches // 16, round(patches * 273 / 4096))
