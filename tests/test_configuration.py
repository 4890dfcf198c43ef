"""Configuration: what is counted before the model runs, and what is refused before it is built."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import refuses, tiny_checkpoint, tiny_config, tiny_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from lone import run_alone
from tokenizers import AddedToken
from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer, GenerationConfig

from arr_coc import ArrCocImageProcessor, ArrCocProcessor
from arr_coc.cli.evaluate import table
from arr_coc.data.records import read_records
from arr_coc.loading import load_config
from arr_coc.model_summary import count_parameters, on_meta
from arr_coc.modeling.base_model import ArrCocModel
from arr_coc.modeling.budgets import NAMED_BUDGETS, resolve_budget
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig, ArrCocFetcherConfig, ArrCocVisionConfig
from arr_coc.modeling.prompt import query_markers
from arr_coc.modeling.prompt_format import IMAGE_TOKEN, count_vision_tokens
from arr_coc.modeling.scorers import SCORERS, Scorer
from arr_coc.training.reader.language_model import Prompting

cells = st.integers(1, 24)
patch_sizes = st.sampled_from([2, 8, 14, 16])


@settings(deadline=None)
@given(cells, patch_sizes, st.sampled_from([None, "all", "auto", "tier:64", *NAMED_BUDGETS]))
def test_named_budgets_fit_every_grid(cells: int, patch: int, budget: str | None) -> None:
    """A 4 x 4 grid has 16 patches: "fast" scaled to it is a fraction of one, and still fetches something."""
    base, num_fetched = count_vision_tokens(4 * cells * patch, patch, budget)
    assert base == cells**2
    assert 1 <= num_fetched <= 16 * cells**2


def test_the_published_geometry() -> None:
    """1024 px in patches of 16: 256 base tokens and 273 fetched tokens, 529 together (DESIGN, the data flow)."""
    assert count_vision_tokens(1024, 16) == (256, 273)
    assert [resolve_budget(name, 4096) for name in ("fast", "balanced", "accurate")] == [64, 180, 400]
    assert ArrCocVisionConfig().num_patches == 4096
    # Newlines are no patches: with them among the base, "all" left out as many patches that nothing had taken.
    assert count_vision_tokens(128, 8, "all", layout="rows", excludes_base=True) == (21, 240)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "hidden_size": ({"vision": {"num_attention_heads": 5}}, "32"),
    "stem_channels": ({"vision": {"stem": "conv", "stem_channels": [8]}}, "8"),
    "strategy": ({"fetcher": {"scorers": ["realizer"], "strategy": "clip_query"}}, "clip_query"),
    "budget": ({"fetcher": {"budget": 257}}, "257"),
    "bypass": ({"bridge": {"kind": "vet", "bypass": True}}, "True"),
    "text_embedding_mean": ({"bridge": {"text_embedding_std": 0.1}}, "None"),
    "text_embedding_std": ({"bridge": {"text_embedding_mean": 0.0, "text_embedding_std": 0.0}}, "0.0"),
    "bridge_config.layout": ({"bridge": {"layout": "rows"}, "vision": {"compressor": "mask"}}, "rows"),
    "bridge_config.num_heads": ({"bridge": {"kind": "transformer", "num_heads": 7}}, "7"),
}


@pytest.mark.parametrize("field", BAD)
def test_bad_combinations_name_the_field_the_expected_and_the_received(field: str) -> None:
    changes, received = BAD[field]
    with pytest.raises(ValueError) as error:
        ArrCocModel(tiny_config(**changes))
    (part,) = changes if len(changes) == 1 else ("bridge",)
    found = re.match(rf"({part}_config\.)?{field}: expected .*; got ([^\n]+)\Z", str(error.value))
    assert found and received in found[2], str(error.value)


IDLE = {"id2label", "label2id", "_name_or_path", "chunk_size_feed_forward", "problem_type"}
"""What transformers keeps for every config, and no part of this model asks for."""


def test_a_config_survives_json_or_is_refused_in_one_line(tmp_path: Any) -> None:
    config = tiny_config(fetcher={"budget": "fast", "allocator": "window"}, relevance_loss_weight=0.5)
    config.save_pretrained(tmp_path)
    again = ArrCocConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    assert again.text_config.model_type == "qwen3" and again.fetcher_config.budget == "fast"
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "arr_coc" and saved["fetcher_config"]["model_type"] == "arr_coc_fetcher"
    assert not IDLE & {*saved, *(key for part in ArrCocConfig.sub_configs for key in saved[part])}
    # transformers' own errors have several lines, and are no ValueErrors.
    settings = tiny_config().to_dict()
    settings["text_config"]["hidden_size"] = "wide"
    (tmp_path / "config.json").write_text(json.dumps(settings))
    refuses(r"\A[^\n]*text_config.*hidden_size[^\n]*expected int; got str[^\n]*\Z", load_config, str(tmp_path))


def test_the_saved_dtype_is_that_of_auto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pipeline` from a folder passes it on, and warned of a model of type `arr_coc` for a model of type ``."""
    warned: list[str] = []
    monkeypatch.setattr("transformers.configuration_utils.logger.warning", warned.append)
    folder = tiny_checkpoint(tmp_path / "model")
    AutoTokenizer.from_pretrained(folder, dtype="auto", _from_pipeline="image-text-to-text")
    saved, rest = ArrCocConfig.from_pretrained(folder, dtype="auto", return_unused_kwargs=True)
    assert not warned and saved.dtype == load_config(str(folder)).dtype and rest == {"dtype": "auto"}


def test_parts_may_be_configs_or_dicts_and_are_not_changed() -> None:
    """`text_config` lost its `model_type` in the caller's own dict, so that a second model from it became a Qwen3."""
    text = {"model_type": "llama", "vocab_size": 300, "hidden_size": 24, "num_attention_heads": 2}
    config = ArrCocConfig(text_config=text, image_token_id=1)
    assert text["model_type"] == "llama" and config.text_config.model_type == "llama"
    again = ArrCocConfig(
        text_config=config.text_config, vision_config=ArrCocVisionConfig(image_size=512), image_token_id=1
    )
    assert again.text_config.model_type == "llama" and again.vision_config.image_size == 512


@pytest.mark.parametrize("tied", [True, False])
def test_tying_obeys_the_language_models_own_value(tied: bool) -> None:
    """transformers ties by the top level's value only: a tied Qwen3 would have answered with an untrained head."""
    assert tiny_config(text={"tie_word_embeddings": tied}).tie_word_embeddings is tied


@pytest.mark.parametrize(("own", "expected"), [(None, 0), (-1, 0), (7, 7), (60, 0)])
def test_padding_is_in_the_vocabulary(own: int | None, expected: int) -> None:
    """A vocabulary that was made smaller than the id of padding made `trim_placeholders` write ids without a row."""
    config = tiny_config()
    config.text_config.vocab_size, config.text_config.pad_token_id = 60, own
    assert config.padding_id == expected


# ---- Config fields refuse types, ranges and names in one line, wherever a config comes from
NAN, INFINITY = float("nan"), float("inf")
REFUSED: dict[str, list[Any]] = {
    "vision.num_hidden_layers": ["12", 12.0, True, None, 0, -1, 2_000_000],
    "vision.num_attention_heads": [0, 10**400],
    "vision.hidden_size": [160_000, [32]],
    "vision.image_size": [2**20, 100],
    "vision.patch_size": [0],
    "vision.mlp_dim": [0, "64"],
    "vision.layer_norm_eps": [NAN, INFINITY, 0.0, -1e-6, "1e-6"],
    "vision.global_attn_indexes": [[True], ["1"], [-1], [2], 1, None],
    "vision.compressed_channels": [[24, 0], [24.0, 32.0], [8, 16, 32], "24"],
    "vision.stem": [["conv"], 3, "", "fancy"],
    "vision.compressor": [None, "magic"],
    "vision.window_size": [0, 10**6],
    "semantic.hidden_act": ["magic", 1],
    "semantic.hidden_size": [48],
    "semantic.latent_size": [-1],
    "semantic.position_grid": [0, 10**5, False],
    "semantic.initializer_range": [NAN, -1.0],
    "fetcher.strategy": ["telepathy", None, ["realizer"]],
    "fetcher.scorers": [["telepathy"], ["realizer", "realizer"], ["saliency"], "realizer", [[]]],
    "fetcher.allocator": ["greedy"],
    "fetcher.overlap": ["maybe"],
    "fetcher.budget": ["huge", -1, 2.5, True, None],
    "fetcher.gradient": ["steep"],
    "fetcher.temperature": [NAN, INFINITY, 0, 0.0],
    "fetcher.adaptive_share": [NAN, True, 0.0, 1.5],
    "fetcher.window_gain": [NAN, INFINITY, "1"],
    "fetcher.window_size": [2, -1],
    "fetcher.position_size": [6],
    "fetcher.seed": [-1, 2**64, 0.0],
    "fetcher.key_pool": [0, 10**9],
    "fetcher.tier_choice": ["dice"],
    "fetcher.tier_lengths": [[1, 2, 3], [1, 2, 2, 3], [], [8, 12, 16, NAN], ["8", "12", "16", "24"]],
    "fetcher.balancer_weights": ["relu"],
    "fetcher.balancer_aggregation": ["sum"],
    "fetcher.balancer_size": [0],
    "fetcher.sjv_weights": [[1, 0]],
    "fetcher.textures": ["all"],
    "fetcher.attention_layers": [[0.5, 0.5]],
    "fetcher.latent_size": [0, -1],
    "bridge.latent_size": [-1],
    "bridge.kind": ["ferry", {}],
    "bridge.layout": ["circle", "indicators"],
    "bridge.lookup": ["random"],
    "bridge.bypass": [1, "yes", None],
    "bridge.num_layers": [0],
    "bridge.num_heads": [0],
    "bridge.table_size": [4, 2**40],
    "bridge.text_embedding_std": [NAN],
    "text.hidden_size": ["24", True, 160_000, 0],
    "text.num_hidden_layers": [2_000_000, -1],
    "text.rms_norm_eps": [NAN, INFINITY, 0.0],
    "text.hidden_act": ["magic"],
    "text.num_key_value_heads": [3],
    "text.vocab_size": [2**40],
    "text.pad_token_id": [10**6],
    "text.dtype": ["nn", "magic"],
    "text.num_labels": [10**9],
    "text.model_type": ["magic", 3],
    "vision.dtype": ["nn", "int8", 7],
    "vision.id2label": [{"a": "b"}, [1]],
    "vision.num_labels": [10**9, "2"],
    "vision.attn_implementation": [NAN],
    "vision.model_type": ["llama"],
}


@pytest.mark.parametrize("field", REFUSED)
def test_an_odd_value_is_refused_with_its_field_in_one_line(field: str) -> None:
    """377 of 767 odd values were taken, among them NaN and layers by the million; 158 raised what came first."""
    part, name = field.split(".")
    for value in REFUSED[field]:
        with pytest.raises(ValueError) as error:
            tiny_config(**{part: {name: value}})
        found = re.match(rf"{part}_config(\.{name})?: expected .*; got ([^\n]+)\Z", str(error.value))
        assert found and str(value)[:60] in found[2], str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_token_id", True),
        ("image_token_id", 2**40),
        ("image_token_id", 10**6),
        ("image_token_id", -1),
        ("relevance_loss_weight", NAN),
        ("query_markers", {"start_id": 1}),
        ("query_markers", {"start_id": 1, "end_id": 2, "role_ids": ["3"], "newline_ids": [], "ignored_ids": []}),
        ("vision_config", [1]),
        ("vision_config", ArrCocFetcherConfig()),
        ("text_config", "qwen3"),
        ("return_dict", None),
        ("architectures", "ArrCoc"),
    ],
)
def test_the_whole_configs_own_fields_are_checked_too(field: str, value: Any) -> None:
    refuses(rf"\A{field}: expected [^\n]*; got [^\n]*\Z", ArrCocConfig, **{**tiny_config().to_dict(), field: value})


def test_what_is_assigned_later_or_registered_from_outside_is_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config()
    with pytest.raises(ValueError, match="seed: expected a whole number from 0 to 4294967295; got -1"):
        config.fetcher_config.seed = -1
    assert config.fetcher_config.seed == 0
    # JSON writes 1 for 1.0, and knows no tuples.
    config = ArrCocFetcherConfig(temperature=1, tier_lengths=[1, 2, 3, 4])
    assert config.temperature == 1 and list(config.tier_lengths) == [1, 2, 3, 4]
    monkeypatch.setitem(SCORERS, "darkness", type("Darkness", (Scorer,), {}))
    assert tiny_config(fetcher={"strategy": "darkness"}).fetcher_config.strategy == "darkness"


def test_fields_that_have_one_value_now_load_and_do_not_come_back() -> None:
    """A model without encoder layers keeps what it never used: its encodings from before know it by that."""
    stated = {"relative_positions": "resize", "global_pool": 1}
    assert not stated.keys() & ArrCocVisionConfig(**stated).to_dict().keys()
    unused = {"num_hidden_layers": 0, "out_channels": 768, "global_attn_indexes": []}
    assert ArrCocVisionConfig(**stated | unused | {"global_pool": 4}).to_dict()["global_pool"] == 4
    with pytest.raises(ValueError, match=r"^global_pool: expected 1 \(this release has no other\); got 4$"):
        ArrCocVisionConfig(**{"global_pool": 4})


def test_a_published_config_with_the_field_glance_layers_is_read() -> None:
    """The field's name until November 2026; the strategy of that name is refused with the names that there are."""
    config = ArrCocFetcherConfig(**{"glance_layers": [0.25, 0.75]})
    assert "glance_layers" not in config.to_dict()
    with pytest.raises(ValueError, match=r"glance_layers: expected \[0.25, 0.75\] \(this release has no other\)"):
        ArrCocFetcherConfig(**{"glance_layers": [0.6, 0.1]})
    with pytest.raises(ValueError, match="strategy: expected one of attention, .*; got 'glance'"):
        ArrCocFetcherConfig(strategy="glance")


def test_outputs_do_not_depend_on_the_configured_form_of_return(picture: Path) -> None:
    """`return_dict: false` in a config.json ended in an AttributeError of a tuple."""
    from helpers import tiny_model

    model = tiny_model()
    expected = model.generate(picture, "Who?")
    for config in (model.config, model.config.text_config):
        config.return_dict = False
    assert model.generate(picture, "Who?") == expected


@pytest.mark.parametrize(
    "rope", [{"rope_theta": {"a": 1}}, {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}]
)
def test_rotary_positions_take_numbers(rope: dict[str, Any]) -> None:
    fields = tiny_config().to_dict()
    fields["text_config"].pop("rope_parameters", None)
    fields["text_config"] |= rope
    refuses(r"^text_config.*expected", ArrCocConfig.from_dict, fields)


# ---- The published variants: what their configs build has the sizes of the published weights, and their cards say how
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
