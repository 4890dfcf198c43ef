"""Published weights to one checkpoint: nothing unaccounted for, the same numbers, bounded memory, all or nothing."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import refuses, tiny_tokenizer
from published import PARTS, QWEN3, VISION, assembled, command, load, opened, stored
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLMoeForConditionalGeneration
from worked_cases import (
    DEEP_ENCODER,
    OVIS_TABLE,
    assert_deep_encoder_agrees,
    deep_encoder,
    ovis_table,
    published_config,
    published_shapes,
)

from arr_coc import ArrCocConfig
from arr_coc.assembling import FAMILIES, Plan, Request, WeightsSource, make_plan, write
from arr_coc.assembling.published import CLIP_RECIPE, QUESTION, WORDS, words_in_common
from arr_coc.assembling.sources import TensorInfo
from arr_coc.cli import main
from arr_coc.model_summary import question_inputs
from benchmarks import upstream
from benchmarks.upstream import Upstream, write_upstream

HUB = Path(__file__).parents[1] / "hub_configs"
FAMILY_CASES = "clip clip_text_model deepseek_vl_v2 llama ovis2_5 qwen2 qwen3 qwen3_vl qwen3_vl_moe".split()
BRIDGE_CASES = ["linear", "quality", "transformer"]
WHOLE_CASES = [
    *product(["qwen3"], BRIDGE_CASES),
    *product(["qwen3_vl", "qwen3_vl_moe", "ovis", "deepseek"], ["linear"]),
    ("ovis", "vet"),
]


def test_every_family_is_tested() -> None:
    assert set(FAMILIES) == set(FAMILY_CASES)


# ---- the whole way
@pytest.mark.parametrize(("llm", "bridge"), WHOLE_CASES)
def test_an_assembled_checkpoint_loads_and_answers(published: Path, tmp_path: Path, llm: str, bridge: str) -> None:
    """Fetching does not change base tokens, bit for bit; config, processor and generation settings are in place."""
    plan, tensors = assembled(published, tmp_path / "out", llm, bridge=bridge, max_shard_size=40_000)
    assert set(tensors) == set(plan.targets) and all(tensor.isfinite().all() for tensor in tensors.values())
    model = load(tmp_path / "out")
    side = model.config.vision_config.image_size
    pixels = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        encoding = model.model.encode_image(pixels)
    base = encoding.tokens.shape[1]
    for strategy, budget in (("none", 0), ("saliency", 5)):
        ids = torch.full((1, sum(model.config.vision_tokens(budget=budget, strategy=strategy)) + 3), 65)
        ids[:, 1:-2] = model.config.image_token_id
        with torch.no_grad():
            out = model(input_ids=ids, image_encoding=encoding, choices={"strategy": strategy})
        assert torch.equal(out.image_tokens[:, :base], encoding.tokens)
        assert out.logits.isfinite().all()
    assert isinstance(model.generate(torch.zeros(3, 20, 30), "What is it?", max_new_tokens=2), str)


def test_tensors_arrive_as_they_were_published(published: Path, tmp_path: Path) -> None:
    _, tensors = assembled(published, tmp_path / "out", max_shard_size=10_000)
    theirs = load_file(published / "vision" / "model.safetensors")
    query, key, value = theirs["model.vision_model.transformer.layers.1.self_attn.qkv_proj.bias"].chunk(3)
    ours = "model.vision_tower.semantic_encoder.layers.1.self_attn."
    for name, expected in (("q", query), ("k", key), ("v", value)):
        assert torch.equal(tensors[f"{ours}{name}_proj.bias"], expected)
    neck = "model.vision_tower.grid_encoder.neck."
    assert torch.equal(tensors[neck + "layer_norm2.bias"], theirs["model.sam_model.neck.3.bias"])
    assert torch.equal(tensors["model.vision_tower.compressor.conv2.weight"], theirs["model.sam_model.net_3.weight"])
    words = stored(published / "qwen3")
    assert torch.equal(
        tensors["model.language_model.layers.1.mlp.up_proj.weight"], words["model.layers.1.mlp.up_proj.weight"]
    )
    assert "lm_head.weight" in words and "lm_head.weight" not in tensors
    for path in (tmp_path / "out").glob("*.json"):  # no path of this machine is written
        assert str(published) not in (text := path.read_text()) and str(tmp_path) not in text, path.name


def test_qwen3_vls_text_model_arrives_with_its_places_and_planes(published: Path, tmp_path: Path) -> None:
    """Its own encoder is left out; our planes start at zero, so they add nothing before they are trained."""
    plan, tensors = assembled(published, tmp_path / "out", "qwen3_vl")
    theirs = stored(published / "qwen3_vl")
    for name in ("layers.2.mlp.up_proj.weight", "layers.0.self_attn.q_norm.weight", "embed_tokens.weight"):
        assert torch.equal(tensors["model.language_model." + name], theirs["model.language_model." + name])
    stack = "model.deepstack.levels.mid."
    assert not tensors[stack + "fc2.weight"].any() and tensors[stack + "fc1.weight"].std() > 0
    assert plan.targets[stack + "fc2.weight"].recipe.startswith("zero")  # type: ignore[union-attr]
    reasons = {reason for _, name, reason in plan.left_out if name.startswith("model.visual.")}
    assert reasons == {"its own vision encoder: images are read by another"}
    config = load(tmp_path / "out").config
    assert config.bridge_config.layout == "qwen3_vl" and config.bridge_config.deepstack and config.tie_word_embeddings
    rotary = config.text_config.rope_parameters
    assert rotary["mrope_section"] == [4, 1, 1] and rotary["rope_theta"] == 5_000_000
    assert json.loads((tmp_path / "out" / "processor_config.json").read_text())["layout"] == "qwen3_vl"


def test_experts_of_qwen3_vl_are_turned_as_transformers_turns_them(published: Path, tmp_path: Path) -> None:
    """The assembled language model says of text what the published model says."""
    plan, tensors = assembled(published, tmp_path / "out", "qwen3_vl_moe")
    theirs: Any = Qwen3VLMoeForConditionalGeneration.from_pretrained(published / "qwen3_vl_moe").eval()
    ours, ids = load(tmp_path / "out").model, torch.arange(3, 23)[None]
    held, kept = theirs.model.language_model.state_dict(), stored(published / "qwen3_vl_moe")
    for name in ("gate_up_proj", "down_proj"):
        part = f"layers.1.mlp.experts.{name}"
        assert torch.equal(tensors["model.language_model." + part], held[part])
        assert torch.equal(held[part], kept["model.language_model." + part].mT)
    with torch.no_grad():
        said, expected = (part(ids).last_hidden_state for part in (ours.language_model, theirs.model.language_model))
    assert torch.allclose(said, expected, atol=1e-5) and said.std() > 0.5
    assert plan.config.text_config.model_type == "qwen3_vl_moe_text" and plan.config.bridge_config.deepstack


def test_new_parts_start_by_their_recipes_and_the_seed_alone(published: Path, tmp_path: Path) -> None:
    """A fetched patch starts as a token like base tokens; the parts that correct tokens start at zero."""
    plan, tensors = assembled(published, tmp_path / "out", bridge="transformer", max_shard_size=30_000)
    theirs = load_file(published / "vision" / "model.safetensors")
    first, second = (theirs[f"model.sam_model.{name}.weight"].sum((2, 3)) for name in ("net_2", "net_3"))
    tower = "model.vision_tower."
    assert torch.allclose(tensors[tower + "saccade_projection.weight"], second @ first, atol=1e-6)
    for name in (tower + "semantic_encoder.saccade_embedding", "model.bridge.level.weight"):
        assert not tensors[name].any() and plan.targets[name].recipe == "zero"
    assert not tensors["model.bridge.adapter.correction.weight"].any()
    norm = tensors["model.bridge.layers.0.layer_norm1.weight"]
    assert torch.equal(norm, torch.ones_like(norm))
    assert tensors["model.fetcher.scorers.realizer.cross_query.weight"].std() > 0

    def new(name: str, **choices: Any) -> Tensor:
        _, tensors = assembled(published, tmp_path / name, **choices)
        return torch.cat([tensors[key].flatten() for key in sorted(tensors) if key.startswith("model.fetcher.")])

    torch.manual_seed(1)
    once = new("a", seed=7)
    assert torch.equal(once, new("b", seed=7, max_shard_size=8_000))
    assert not torch.equal(once, new("c", seed=8))


def test_an_untied_head_is_loaded(published: Path, tmp_path: Path, tokenizer: Path) -> None:
    untied = upstream.qwen3(**QWEN3, prefix="llm.", tied=False)
    table = upstream.ovis(untied, width=16, layers=1, inner=20, side=4, rows=40)
    write_upstream(tmp_path / "llm", table, tokenizer=tokenizer, dtype=torch.float32)
    sources = {"vision": WeightsSource(published / "vision"), "llm": WeightsSource(tmp_path / "llm")}
    write(make_plan(Request(sources=sources, dtype="float32")), tmp_path / "out")
    model = load(tmp_path / "out")
    assert torch.equal(model.lm_head.weight, stored(tmp_path / "llm")["llm.lm_head.weight"])
    assert not torch.equal(model.lm_head.weight, model.get_input_embeddings().weight)


def test_tokens_that_the_tokenizer_lacks_get_rows(published: Path, tmp_path: Path) -> None:
    """The table grows by no more than needed, and by the mean: a new token is no louder than the others."""
    lacking = tiny_tokenizer(without=("<|vision_start|>", "<|image_pad|>"))
    lacking.save_pretrained(tmp_path / "tokenizer")
    known = upstream.qwen3(**{**QWEN3, "vocabulary": len(lacking)})
    write_upstream(tmp_path / "llm", known, tokenizer=tmp_path / "tokenizer", dtype=torch.float32)
    sources = {"vision": WeightsSource(published / "vision"), "llm": WeightsSource(tmp_path / "llm")}
    write(make_plan(Request(sources=sources)), tmp_path / "out")
    words = stored(tmp_path / "out")["model.language_model.embed_tokens.weight"]
    assert words.shape[0] == len(lacking) + 2
    assert torch.allclose(words[-2:], words[:-2].mean(0).expand(2, -1), atol=1e-6)
    model = load(tmp_path / "out")
    assert model.config.image_token_id == len(lacking) + 1
    assert model.processor.image_token_id == model.config.image_token_id


def test_clip_words_start_the_questions_projection(published: Path, tmp_path: Path) -> None:
    """An embedding of the language model leads near CLIP's embedding of the same word, and to no other word's."""
    words = ["the", "user"]  # "Ġthe" is a token of the tiny tokenizer, "Ġuser" is none
    clip = tmp_path / "clip"
    clip.mkdir()
    (clip / "config.json").write_text(json.dumps({"model_type": "clip"}))
    (clip / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {f"{w}</w>": i for i, w in enumerate(words)}}}))
    tensors = {WORDS: torch.randn(2, 10), "text_model.embeddings.position_ids": torch.arange(3)[None]}
    save_file({**tensors, "visual_projection.weight": torch.ones(2, 2)}, clip / "model.safetensors")
    sources = {**opened(published), "clip-text": WeightsSource(clip)}
    refuses('--clip-text: expected scorer "clip_query" beside it; got realizer', make_plan, Request(sources=sources))
    plan = make_plan(Request(sources=sources, scorers=("clip_query",)))
    assert plan.targets[QUESTION].recipe == CLIP_RECIPE and plan.targets[QUESTION].shape == (10, QWEN3["width"])
    assert words_in_common(sources["clip-text"], plan.processor.tokenizer) == [(tiny_tokenizer().vocab["Ġthe"], 0)]
    write(plan, tmp_path / "out")
    assert load(tmp_path / "out").config.fetcher_config.shared_size == 10


# ---- published names
class Listed(WeightsSource):
    """A source of names and shapes alone: nothing of it can be read."""

    def __init__(self, of: Upstream, tokenizer: Path, name: str) -> None:
        super().__init__(tokenizer)
        self.name = name
        self.__dict__["config"] = of.config
        self.__dict__["tensors"] = {n: TensorInfo(tuple(s), "BF16", "listed") for n, s in of.shapes.items()}


def listed_keys(name: str) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in published_shapes(name).items()}


def account(plan: Plan, source: WeightsSource) -> tuple[set[str], set[str]]:
    """Names of `source` that are loaded, and that are left out: together all of them, with nothing in both."""
    used = {rows.name for target in plan.targets.values() for rows in target.rows if rows.source is source}
    left = {name for of, name, _ in plan.left_out if of is source}
    assert used | left == set(source.tensors) and not used & left
    return used, left


def test_stand_ins_have_the_published_names_and_shapes() -> None:
    vision, language = listed_keys("deepseek_ocr_vision"), listed_keys("deepseek_ocr_language")
    assert upstream.deepseek_vision().shapes == vision and len(vision) == 476
    assert upstream.deepseek_language().shapes == language and len(language) == 2234
    config = (upstream.deepseek_vision() | upstream.deepseek_language()).config
    published = published_config("deepseek_ocr")
    published.pop("torch_dtype")
    assert config == published
    qwen3 = listed_keys("qwen3_0_6b")
    assert upstream.qwen3().shapes == qwen3 and len(qwen3) == 311
    own = upstream.qwen3(width=2048, inner=6144, prefix="llm.", stored_head=False)
    visual = {n: s for n, s in upstream.ovis(own).shapes.items() if not n.startswith("llm.")}
    assert visual == listed_keys("ovis2_5_2b_visual") and len(visual) == 441


def qwen3_2b(prefix: str = "") -> Upstream:
    return upstream.qwen3(width=2048, inner=6144, prefix=prefix, stored_head=False)


def deepseek_ocr() -> Upstream:
    return upstream.deepseek_vision() | upstream.deepseek_language()


LANGUAGE_MODELS: dict[str, Callable[[], Upstream]] = {
    "arr-coc-qwen3-0.6b": upstream.qwen3,
    "arr-coc-qwen3-1.7b": qwen3_2b,
    "arr-coc-qwen3-vl-2b": lambda: upstream.qwen3_vl(qwen3_2b()),
    "arr-coc-ovis2.5-2b": lambda: upstream.ovis(qwen3_2b("llm.")),
    "arr-coc-deepseek-ocr-3b": deepseek_ocr,
}
"""By the variant that is assembled of it."""


def test_the_stand_in_of_qwen3_vl_has_the_names_and_shapes_of_transformers_own_class() -> None:
    published = LANGUAGE_MODELS["arr-coc-qwen3-vl-2b"]()
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**published.config))
    held = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert held == published.shapes and len(held) == 625 and model.config.tie_word_embeddings


@pytest.mark.parametrize(
    ("variant", "bridge", "used", "left"),
    [
        ("arr-coc-qwen3-0.6b", "linear", 310, {"lm_head.weight"}),
        ("arr-coc-qwen3-1.7b", "linear", 310, set()),
        ("arr-coc-qwen3-vl-2b", "linear", 310, {"model.visual"}),
        ("arr-coc-ovis2.5-2b", "linear", 310, {"visual_tokenizer", "vte.weight"}),
        ("arr-coc-ovis2.5-2b", "vet", 313, {"visual_tokenizer"}),  # table and norm; the head reads other features
        # Without CLIP's patch embedding.
        ("arr-coc-deepseek-ocr-3b", "linear", 476 + 2234 - 1, {"model.vision_model.embeddings"}),
    ],
)
def test_all_published_names_are_accounted_for_and_the_plan_is_the_variants_config(
    variant: str, bridge: str, used: int, left: set[str], tmp_path: Path
) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"  # which DeepSeek's prompts begin with
    tokenizer.save_pretrained(tmp_path)
    vision = llm = Listed(deepseek_ocr(), tmp_path, "DeepSeek-OCR")
    if LANGUAGE_MODELS[variant] is not deepseek_ocr:
        llm = Listed(LANGUAGE_MODELS[variant](), tmp_path, variant)
    held = ArrCocConfig.from_pretrained(HUB / variant).to_dict()
    scorers = tuple(dict.fromkeys((held["fetcher_config"]["strategy"], "realizer")))
    plan = make_plan(Request(sources={"vision": vision, "llm": llm}, bridge=bridge, scorers=scorers))
    loaded, left_out = account(plan, llm)
    assert len(loaded) == used and {prefix for prefix in left if any(n.startswith(prefix) for n in left_out)} == left
    assert all(name.startswith(tuple(left)) for name in left_out), left_out
    if llm is not vision:  # also without two separators, and the projector to 1280
        assert len(account(plan, vision)[0]) == 476 - 1 - 2 - 2
    new = {name for name, target in plan.targets.items() if name.startswith("model.bridge.") and not target.rows}
    assert ("model.bridge.head.0.weight" in new) == (bridge == "vet")
    made = plan.config.to_dict()
    for config in (held, made):  # ids are those of the tokenizer
        config["text_config"] = {name: v for name, v in config["text_config"].items() if not name.endswith("token_id")}
    for part in ("vision_config", "semantic_config", "fetcher_config", "dtype", "text_config"):
        assert made[part] == held[part], part
    assert (made["bridge_config"] == held["bridge_config"]) == (bridge == held["bridge_config"]["kind"])


# ---- published numbers
def test_the_published_encoder_gives_its_numbers_through_assembling(tmp_path: Path, tokenizer: Path) -> None:
    case, config = DEEP_ENCODER, published_config("deepseek_ocr")
    weights, pixels = deep_encoder()
    sizes = config["vision_config"]["width"]
    config["vision_config"]["image_size"] = case["image"]
    config["projector_config"]["n_embed"] = case["projected"]
    sizes["sam_vit_b"] |= {"global_attn_indexes": case["whole"], "heads": case["heads"]}
    sizes["sam_vit_b"] |= {"layers": case["layers"], "width": case["width"]}
    sizes["clip-l-14-224"] |= {"layers": case["semantic_layers"], "heads": case["semantic_heads"]}
    folder = tmp_path / "vision"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    write_upstream(tmp_path / "llm", upstream.qwen3(**{**QWEN3, "width": case["projected"]}), tokenizer=tokenizer)
    sources = {"vision": WeightsSource(folder), "llm": WeightsSource(tmp_path / "llm")}
    write(make_plan(Request(sources=sources, max_shard_size="20MB")), tmp_path / "out")
    model = load(tmp_path / "out")
    with torch.no_grad():
        encoding = model.model.encode_image(pixels)
    assert_deep_encoder_agrees(
        {
            "sam_neck": encoding.features,
            "sam_conv": encoding.compressed,
            "clip_out": encoding.semantic,
            "projector_out": encoding.tokens,
        }
    )


def test_the_published_table_gives_its_numbers_through_assembling(tmp_path: Path, tokenizer: Path) -> None:
    """The case's merged features stand for the vision encoder's: a head that fits is loaded, not started anew."""
    weights, computed = ovis_table()
    merged, width = computed["merged_features"], OVIS_TABLE["text_width"]
    half = merged.shape[1] // 2
    own = upstream.qwen3(**{**QWEN3, "width": width}, prefix="llm.", stored_head=False)
    sizes = {"width": OVIS_TABLE["vision_width"], "layers": 1, "inner": 20, "side": 4, "rows": OVIS_TABLE["rows"]}
    write_upstream(tmp_path / "llm", upstream.ovis(own, **sizes), tokenizer=tokenizer, dtype=torch.float32)
    held = load_file(tmp_path / "llm" / "model.safetensors")
    assert weights.keys() <= held.keys() and len(weights) == 4
    save_file({**held, **weights}, tmp_path / "llm" / "model.safetensors")
    vision = upstream.deepseek_vision(**{**VISION, "compressed": (24, half), "projected": width})
    write_upstream(tmp_path / "vision", vision, dtype=torch.float32)
    sources = {part: WeightsSource(tmp_path / part) for part in PARTS}
    write(make_plan(Request(sources=sources, bridge="vet")), tmp_path / "out")
    bridge = load(tmp_path / "out").model.bridge
    with torch.no_grad():
        found = bridge(merged[None, :, :half], merged[None, :, half:]).tokens[0]
        indicators = bridge.indicators(torch.device("cpu"))
    assert (found - computed["visual_embeds"]).abs().max() < 1e-5
    assert torch.equal(indicators, computed["indicator_embeds"])


def test_a_dry_run_only_prints_the_plan(published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["assemble", *map(str, command(published, tmp_path / "out", "ovis")), "--dry-run", "--bridge", "vet"]) == 0
    )
    said = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    for text in ("grid encoder", "the compressor's two convolutions", "its own vision encoder", "float32", "total"):
        assert text in said


def test_a_model_without_a_scorer_gets_a_processor_without_fetched_tokens(published: Path, tmp_path: Path) -> None:
    """It wrote placeholders for the standard budget, which a model with strategy "none" refuses to fill."""
    assembled(published, tmp_path / "out", scorers=("none", "realizer"))
    model = load(tmp_path / "out")
    inputs = question_inputs(model)
    base, _ = model.config.vision_tokens(budget=0)
    assert int((inputs["input_ids"] == model.config.image_token_id).sum()) == base
    assert model(**inputs).logits.isfinite().all()
