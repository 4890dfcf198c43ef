"""Published weights to one checkpoint: nothing unaccounted for, the same numbers, bounded memory, all or nothing."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from helpers import tiny_tokenizer
from huggingface_hub.errors import GatedRepoError
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.assembling import FAMILIES, Plan, Request, Source, make_plan, open_source, write
from arr_coc.assembling import sources as sources_module
from arr_coc.assembling import writing as writing_module
from arr_coc.assembling.clip_text import CLIP_RECIPE, QUESTION, WORDS, words_in_common
from arr_coc.assembling.sources import HubSource, TensorInfo
from arr_coc.cli import main
from arr_coc.profiling import upstream
from arr_coc.profiling.assembling import LIMIT, footprint
from arr_coc.profiling.upstream import Upstream, write_upstream

FIXTURES = Path(__file__).resolve().parents[2] / "shared" / "fixtures"
needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason="fixtures are not part of the repository")
TOLERANCE = 5e-5  # max abs, float32: what independent implementations agree on

FAMILY_CASES = ["clip", "clip_text_model", "deepseek_vl_v2", "ovis2_5", "qwen3"]
LLM_CASES = {"qwen3": "linear", "ovis": "vet", "deepseek": "linear"}  # and a bridge
BRIDGE_CASES = ["linear", "quality", "transformer"]
VISION: dict[str, Any] = {
    "image": 128, "patch": 8, "width": 24, "layers": 2, "heads": 2, "whole": (1,), "window": 7, "channels": 16,
    "compressed": (24, 32), "semantic_layers": 2, "semantic_heads": 2, "grid": 4, "projected": 24,
}  # fmt: skip
QWEN3 = {"width": 24, "vocabulary": 300, "layers": 2, "heads": 2, "groups": 1, "head": 12, "inner": 48}
DEEPSEEK = {
    "width": 24, "vocabulary": 300, "layers": 3, "heads": 2, "inner": 40, "expert": 8, "experts": 4, "active": 2,
}  # fmt: skip
PARTS = ("vision", "llm")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


def fits_deepseek(tokenizer: Path) -> dict[str, Any]:
    return {"tokenizer": tokenizer, "special_tokens": {"bos_token": "<|endoftext|>"}, "std": 0.2}


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    """Small checkpoints of every family, in float32. Read only: tests share them."""
    root = tmp_path_factory.mktemp("published")
    vision, language = upstream.deepseek_vision(**VISION), upstream.qwen3(**QWEN3)
    own = upstream.qwen3(**QWEN3, prefix="llm.", stored_head=False)
    sizes: dict[str, Any] = {"dtype": torch.float32, "std": 0.2}
    write_upstream(root / "vision", vision, **sizes)
    write_upstream(root / "qwen3", language, tokenizer=tokenizer, max_shard_size=20_000, **sizes)
    write_upstream(
        root / "ovis", upstream.ovis(own, width=16, layers=1, inner=20, side=4, rows=40), tokenizer=tokenizer, **sizes
    )
    both = vision | upstream.deepseek_language(**DEEPSEEK)
    write_upstream(root / "deepseek", both, **{**sizes, **fits_deepseek(tokenizer)}, max_shard_size=50_000)
    return root


def opened(published: Path, llm: str = "qwen3") -> dict[str, Source]:
    if llm == "deepseek":
        return dict.fromkeys(PARTS, Source(published / "deepseek"))
    return {"vision": Source(published / "vision"), "llm": Source(published / llm)}


def assembled(published: Path, out: Path, llm: str = "qwen3", **choices: Any) -> tuple[Plan, dict[str, Tensor]]:
    """The plan, and every tensor of the checkpoint written by it."""
    plan = make_plan(Request(sources=opened(published, llm), **choices))
    write(plan, out)
    return plan, stored(out)


def stored(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def load(folder: Path) -> ArrCocForConditionalGeneration:
    """From disk as users do; fails where a weight is missing, unknown or of another shape."""
    loaded: Any = ArrCocForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    model, report = loaded
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def test_every_family_is_tested() -> None:
    assert set(FAMILIES) == set(FAMILY_CASES)


# ---- the whole way ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("llm", "bridge"), LLM_CASES.items())
def test_an_assembled_checkpoint_loads_and_answers(published: Path, tmp_path: Path, llm: str, bridge: str) -> None:
    """Fetching leaves the floor as it is, bit for bit; config, processor and generation settings are in place."""
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
            out = model(input_ids=ids, image_encoding=encoding, strategy=strategy)
        assert torch.equal(out.image_tokens[:, :base], encoding.tokens)
        assert out.logits.isfinite().all()
    assert isinstance(model.generate(torch.zeros(3, 20, 30), "What is it?", max_new_tokens=2), str)


@pytest.mark.parametrize("bridge", BRIDGE_CASES)
def test_every_projecting_bridge_holds_the_published_projector(published: Path, tmp_path: Path, bridge: str) -> None:
    _, tensors = assembled(published, tmp_path / "out", bridge=bridge)
    theirs = load_file(published / "vision" / "model.safetensors")
    assert torch.equal(tensors["model.bridge.projection.weight"], theirs["model.projector.layers.weight"])
    words = stored(published / "qwen3")["model.embed_tokens.weight"].double()
    config = json.loads((tmp_path / "out" / "config.json").read_text())["bridge_config"]
    assert config["text_embedding_mean"] == pytest.approx(float(words.mean()), abs=1e-9)
    assert config["text_embedding_std"] == pytest.approx(float(words.std(correction=0)), rel=1e-6)
    load(tmp_path / "out")


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


def test_experts_are_stacked_gate_above_up(published: Path, tmp_path: Path) -> None:
    _, tensors = assembled(published, tmp_path / "out", "deepseek")
    theirs, ours = stored(published / "deepseek"), "model.language_model.layers.2.mlp.experts."
    for expert in range(DEEPSEEK["experts"]):
        part = f"model.layers.2.mlp.experts.{expert}."
        fused = torch.cat((theirs[part + "gate_proj.weight"], theirs[part + "up_proj.weight"]))
        assert torch.equal(tensors[ours + "gate_up_proj"][expert], fused)
        assert torch.equal(tensors[ours + "down_proj"][expert], theirs[part + "down_proj.weight"])
    assert torch.equal(tensors["model.layout.image_newline"], theirs["model.image_newline"])
    assert torch.equal(tensors["lm_head.weight"], theirs["lm_head.weight"])


def test_new_parts_start_by_their_recipes(published: Path, tmp_path: Path) -> None:
    """A fetched patch speaks the base tokens' language; what lifts tokens off the floor is zero."""
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


def test_new_parts_follow_from_the_seed_alone(published: Path, tmp_path: Path) -> None:
    def new(name: str, **choices: Any) -> Tensor:
        _, tensors = assembled(published, tmp_path / name, **choices)
        return torch.cat([tensors[key].flatten() for key in sorted(tensors) if key.startswith("model.fetcher.")])

    torch.manual_seed(1)
    once = new("a", seed=7)
    assert torch.equal(once, new("b", seed=7, max_shard_size=8_000))
    assert not torch.equal(once, new("c", seed=8))


def test_weights_are_written_in_the_type_asked_for(published: Path, tmp_path: Path) -> None:
    _, tensors = assembled(published, tmp_path / "out", dtype="bfloat16")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert load(tmp_path / "out").dtype == torch.bfloat16


def test_an_untied_head_is_loaded(published: Path, tmp_path: Path, tokenizer: Path) -> None:
    untied = upstream.qwen3(**QWEN3, prefix="llm.", tied=False)
    table = upstream.ovis(untied, width=16, layers=1, inner=20, side=4, rows=40)
    write_upstream(tmp_path / "llm", table, tokenizer=tokenizer, dtype=torch.float32)
    sources = {"vision": Source(published / "vision"), "llm": Source(tmp_path / "llm")}
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
    sources = {"vision": Source(published / "vision"), "llm": Source(tmp_path / "llm")}
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
    sources = {**opened(published), "clip-text": Source(clip)}
    with pytest.raises(ValueError, match='--clip-text: expected scorer "clip_query" beside it; got realizer'):
        make_plan(Request(sources=sources))
    plan = make_plan(Request(sources=sources, scorers=("clip_query",)))
    assert plan.targets[QUESTION].recipe == CLIP_RECIPE and plan.targets[QUESTION].shape == (10, QWEN3["width"])
    assert words_in_common(sources["clip-text"], plan.processor.tokenizer) == [(tiny_tokenizer().vocab["Ġthe"], 0)]
    write(plan, tmp_path / "out")
    assert load(tmp_path / "out").config.fetcher_config.shared_size == 10


def test_fitting_recovers_a_linear_map_between_vocabularies(tmp_path: Path) -> None:
    from arr_coc.assembling.clip_text import fit
    from arr_coc.assembling.mapping import Rows

    count, width, shared = 400, 6, 5
    torch.manual_seed(0)
    ours = torch.randn(count, width) * 3 + 1
    normed = torch.nn.functional.layer_norm(ours, (width,))
    true = torch.randn(shared, width)
    order = torch.randperm(count)
    theirs = torch.empty(count, shared)
    theirs[order] = normed @ true.T + 2.0  # a common offset tells no words apart
    names = ["".join(chr(97 + i // 26**k % 26) for k in range(3)) for i in range(count)]
    for folder, table in (("llm", {"words": ours}), ("clip", {WORDS: theirs})):
        (tmp_path / folder).mkdir()
        save_file(table, tmp_path / folder / "model.safetensors")
    vocabulary = {f"{name}</w>": int(order[i]) for i, name in enumerate(names)}
    (tmp_path / "clip" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))

    class Tokenizer:
        def get_vocab(self) -> dict[str, int]:
            return {"Ġ" + name: i for i, name in enumerate(names)}

    found = fit(Source(tmp_path / "clip"), Rows(Source(tmp_path / "llm"), "words", 0, count), Tokenizer())
    asked = normed @ true.T
    error = (normed @ found.T - (asked - asked.mean(0))).square().mean() / asked.var()
    assert error < 0.02  # the penalty shrinks by a tenth


# ---- published names ----------------------------------------------------------------------------------------------


class Listed(Source):
    """A source of names and shapes alone: nothing of it can be read."""

    def __init__(self, of: Upstream, tokenizer: Path, name: str) -> None:
        super().__init__(tokenizer)
        self.name = name
        self.__dict__["config"] = of.config
        self.__dict__["tensors"] = {n: TensorInfo(tuple(s), "BF16", "listed") for n, s in of.shapes.items()}


def listed_keys(name: str) -> dict[str, tuple[int, ...]]:
    found = json.loads((FIXTURES / name).read_text())
    return {name: tuple(shape) for name, shape in found.items()}


def qwen3_keys() -> dict[str, tuple[int, ...]]:
    found = json.loads((FIXTURES / "qwen3_0_6b_keys.json").read_text())
    layers = {f"model.layers.{i}.{n}": s for i in range(found["num_layers"]) for n, s in found["per_layer"].items()}
    return {name: tuple(shape) for name, shape in {**found["top"], **layers}.items()}


def account(plan: Plan, source: Source) -> tuple[set[str], set[str]]:
    """Names of `source` that are loaded, and that are left out: together all of them, with nothing in both."""
    used = {rows.name for target in plan.targets.values() for rows in target.rows if rows.source is source}
    left = {name for of, name, _ in plan.left_out if of is source}
    assert used | left == set(source.tensors) and not used & left
    return used, left


@needs_fixtures
def test_stand_ins_have_the_published_names_and_shapes() -> None:
    vision, language = listed_keys("deepseek_ocr_vision_keys.json"), listed_keys("deepseek_ocr_language_keys.json")
    assert upstream.deepseek_vision().shapes == vision and len(vision) == 476
    assert upstream.deepseek_language().shapes == language and len(language) == 2234
    config = (upstream.deepseek_vision() | upstream.deepseek_language()).config
    published = json.loads((FIXTURES / "deepseek_ocr_config.json").read_text())
    published.pop("torch_dtype")
    assert config == published
    assert upstream.qwen3().shapes == qwen3_keys() and len(qwen3_keys()) == 311
    own = upstream.qwen3(width=2048, inner=6144, prefix="llm.", stored_head=False)
    visual = {n: s for n, s in upstream.ovis(own).shapes.items() if not n.startswith("llm.")}
    assert visual == listed_keys("ovis2_5_2b_visual_keys.json") and len(visual) == 441


def test_all_names_of_deepseek_ocr_and_qwen3_are_accounted_for(tokenizer: Path) -> None:
    vision = Listed(upstream.deepseek_vision() | upstream.deepseek_language(), tokenizer, "DeepSeek-OCR")
    llm = Listed(upstream.qwen3(), tokenizer, "Qwen3")
    plan = make_plan(Request(sources={"vision": vision, "llm": llm}))
    used, left = account(plan, vision)
    assert len(used | left) == 476 + 2234
    assert len(used) == 476 - 1 - 2 - 2  # without CLIP's patch embedding, two separators, the projector to 1280
    used, left = account(plan, llm)
    assert len(used) == 310 and left == {"lm_head.weight"}
    assert sum(t.numel for n, t in plan.targets.items() if "language_model" in n) == 596_049_920
    assert plan.config.vision_config.window_size == 14 and plan.config.vision_config.grid_size == 64
    assert plan.config.text_config.rope_parameters["rope_theta"] == 1_000_000


def test_all_names_of_deepseek_ocr_with_its_own_language_model(tokenizer: Path, tmp_path: Path) -> None:
    plain = tiny_tokenizer()
    plain.bos_token = "<|endoftext|>"
    plain.save_pretrained(tmp_path)
    both = Listed(upstream.deepseek_vision() | upstream.deepseek_language(), tmp_path, "DeepSeek-OCR")
    plan = make_plan(Request(sources=dict.fromkeys(PARTS, both)))
    used, left = account(plan, both)
    assert len(used) == 476 + 2234 - 1
    assert left == {"model.vision_model.embeddings.patch_embedding.weight"}
    new = {name for name, target in plan.targets.items() if not target.rows and "fetcher" not in name}
    tower = "model.vision_tower."
    assert new == {tower + "saccade_projection.weight", tower + "semantic_encoder.saccade_embedding"}
    assert plan.config.bridge_config.layout == "rows"


@pytest.mark.parametrize("bridge", ["linear", "vet"])
def test_all_names_of_ovis_are_accounted_for(tokenizer: Path, bridge: str) -> None:
    own = upstream.qwen3(width=2048, inner=6144, prefix="llm.", stored_head=False)
    llm = Listed(upstream.ovis(own), tokenizer, "Ovis")
    vision = Listed(upstream.deepseek_vision(), tokenizer, "DeepSeek-OCR")
    plan = make_plan(Request(sources={"vision": vision, "llm": llm}, bridge=bridge))
    used, left = account(plan, llm)
    assert len(used | left) == 441 + 310
    assert len(used) == 310 + (3 if bridge == "vet" else 0)  # table and norm; the head reads other features
    new = {name for name, target in plan.targets.items() if name.startswith("model.bridge.") and not target.rows}
    assert ("model.bridge.head.0.weight" in new) == (bridge == "vet")


# ---- published numbers --------------------------------------------------------------------------------------------


def filler() -> Callable[[dict[str, Any]], dict[str, Tensor]]:
    spec = importlib.util.spec_from_file_location("fill", FIXTURES / "fill.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fill_dict


@needs_fixtures
def test_the_published_encoder_gives_its_numbers_through_assembling(tmp_path: Path, tokenizer: Path) -> None:
    case = json.loads((FIXTURES / "deepencoder_small.json").read_text())
    config = json.loads((FIXTURES / "deepseek_ocr_config.json").read_text())
    sam, clip, width = case["sam"], case["clip"], case["projector"]["n_embed"]
    sizes = config["vision_config"]["width"]
    config["vision_config"]["image_size"] = sam["img_size"]
    config["projector_config"]["n_embed"] = width
    sizes["sam_vit_b"] |= {"global_attn_indexes": sam["global_attn_indexes"], "heads": sam["num_heads"]}
    sizes["sam_vit_b"] |= {"layers": sam["depth"], "width": sam["embed_dim"]}
    sizes["clip-l-14-224"] |= {"layers": clip["num_layers"], "heads": clip["num_attention_heads"]}
    folder = tmp_path / "vision"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(filler()(case["parameters"]), folder / "model.safetensors")
    write_upstream(tmp_path / "llm", upstream.qwen3(**{**QWEN3, "width": width}), tokenizer=tokenizer)
    sources = {"vision": Source(folder), "llm": Source(tmp_path / "llm")}
    write(make_plan(Request(sources=sources, max_shard_size="20MB")), tmp_path / "out")
    model = load(tmp_path / "out")
    expected = load_file(FIXTURES / "deepencoder_small.safetensors")
    with torch.no_grad():
        found = model.model.encode_image(expected["pixel_values"])
    assert (found.features - expected["sam_neck"]).abs().max() < TOLERANCE
    assert (found.compressed - expected["sam_conv"]).abs().max() < TOLERANCE
    assert (found.semantic - expected["clip_out"][:, -found.semantic.shape[1] :]).abs().max() < TOLERANCE
    assert (found.tokens - expected["projector_out"]).abs().max() < TOLERANCE


@needs_fixtures
def test_the_published_table_gives_its_numbers_through_assembling(tmp_path: Path, tokenizer: Path) -> None:
    """The fixture's merged features stand for the vision encoder's: a head that fits is loaded, not started anew."""
    about = json.loads((FIXTURES / "ovis_vet_small.json").read_text())
    tensors = load_file(FIXTURES / "ovis_vet_small.safetensors")
    merged, width = tensors["sharp.merged_features"], about["llm_hidden"]
    half = merged.shape[1] // 2
    own = upstream.qwen3(**{**QWEN3, "width": width}, prefix="llm.", stored_head=False)
    sizes = {"width": about["vit_hidden"], "layers": 1, "inner": 20, "side": 4, "rows": about["visual_vocab_size"]}
    write_upstream(tmp_path / "llm", upstream.ovis(own, **sizes), tokenizer=tokenizer, dtype=torch.float32)
    held = load_file(tmp_path / "llm" / "model.safetensors")
    weights = {n.removeprefix("sharp.weights."): t for n, t in tensors.items() if n.startswith("sharp.weights.")}
    assert weights.keys() <= held.keys() and len(weights) == 4
    save_file({**held, **weights}, tmp_path / "llm" / "model.safetensors")
    vision = upstream.deepseek_vision(**{**VISION, "compressed": (24, half), "projected": width})
    write_upstream(tmp_path / "vision", vision, dtype=torch.float32)
    sources = {part: Source(tmp_path / part) for part in PARTS}
    write(make_plan(Request(sources=sources, bridge="vet")), tmp_path / "out")
    bridge = load(tmp_path / "out").model.bridge
    with torch.no_grad():
        found = bridge(merged[None, :, :half], merged[None, :, half:])[0]
        indicators = bridge.indicators(torch.device("cpu"))
    assert (found - tensors["sharp.visual_embeds"]).abs().max() < 1e-5
    assert torch.equal(indicators, tensors["sharp.indicator_embeds"])


# ---- memory and interruptions -------------------------------------------------------------------------------------


def test_memory_holds_one_file_and_one_group(tmp_path: Path, tokenizer: Path) -> None:
    """67 MB in files of 4 MB: whoever held the model, or all pages of an input, would need many times the limit."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peak memory is read from Linux' /proc")
    wide = {"width": 512, "vocabulary": 2048, "layers": 8, "heads": 4, "groups": 2, "head": 64, "inner": 1024}
    write_upstream(tmp_path / "llm", upstream.qwen3(**wide), tokenizer=tokenizer, dtype=torch.float32)
    write_upstream(tmp_path / "vision", upstream.deepseek_vision(**VISION), dtype=torch.float32)
    sources = {part: Source(tmp_path / part) for part in PARTS}
    small = make_plan(Request(sources=sources, scorers=("saliency",), max_shard_size="4MB"))
    write(small, tmp_path / "first")  # what Python itself sets aside at the first run is not the plan's
    plan = make_plan(Request(sources=sources, scorers=("saliency",), max_shard_size="4MB"))
    try:
        found = footprint(plan, tmp_path / "out")
    except OSError:
        pytest.skip("this system does not let the peak be reset")
    assert found.total > 8 * (found.group + found.shard)
    assert found.peak <= LIMIT * (found.group + found.shard) + 2**20, found


def refused(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """The one line of a refused command."""
    capsys.readouterr()
    assert main(["assemble", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("arr-coc: error: ") and error.count("\n") == 1
    return error


def command(published: Path, out: Path, llm: str = "qwen3") -> list[Any]:
    return ["--vision", published / "vision", "--llm", published / llm, "--out", out, "--max-shard-size", "40KB"]


def test_a_failed_write_leaves_nothing_and_can_be_started_again(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def full(tensors: dict[str, Tensor], path: Path, **kwargs: Any) -> None:
        written.append(path)
        if len(written) > 2:
            raise OSError(28, "No space left on device")
        save_file(tensors, path, **kwargs)

    monkeypatch.setattr(writing_module, "save_file", full)
    assert "No space left on device" in refused(capsys, *command(published, tmp_path / "out"))
    assert list(tmp_path.iterdir()) == [] and len(written) == 3
    monkeypatch.undo()
    left = tmp_path / ".out.new.killed"  # what a killed run leaves
    left.mkdir()
    (left / "model-00001-of-00002.safetensors").write_bytes(b"half")
    assert main(["assemble", *map(str, command(published, tmp_path / "out"))]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    load(tmp_path / "out")


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["assemble", *map(str, command(published, tmp_path / "out", "ovis")), "--dry-run", "--bridge", "vet"]) == 0
    )
    said = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    for text in ("grid encoder", "the compressor's two convolutions", "its own vision encoder", "float32", "total"):
        assert text in said


def test_no_path_of_this_machine_is_written(published: Path, tmp_path: Path) -> None:
    assembled(published, tmp_path / "out")
    for path in (tmp_path / "out").glob("*.json"):
        text = path.read_text()
        assert str(published) not in text and str(tmp_path) not in text, path.name


# ---- bad input ----------------------------------------------------------------------------------------------------


def copied(published: Path, tmp_path: Path, name: str) -> Path:
    shutil.copytree(published / name, tmp_path / name)
    return tmp_path / name


def change_config(folder: Path, path: str, value: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    *steps, last = path.split(".")
    part = config
    for step in steps:
        part = part[step]
    part[last] = value
    (folder / "config.json").write_text(json.dumps(config))


def change_tensors(folder: Path, **changes: Tensor | None) -> None:
    held = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        held.pop(name, None)
        if tensor is not None:
            held[name] = tensor
    save_file(held, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    path = next(folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-10])


SAM = "vision_config.width.sam_vit_b."
BAD_VISION: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (truncate, "expected a whole safetensors file"),
    "no config": (lambda f: (f / "config.json").unlink(), "expected config.json; got none"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "expected weights"),
    "other family": (lambda f: change_config(f, "model_type", "llava"), "upstream model_type: expected one of"),
    "unknown tensor": (
        lambda f: change_tensors(f, **{"model.sam_model.extra": torch.ones(2)}),
        "expected only tensors with a place here; got 1 without, e.g. model.sam_model.extra",
    ),
    "unknown layer part": (
        lambda f: change_tensors(f, **{"model.sam_model.blocks.0.attn.scale": torch.ones(2)}),
        "got 1 without, e.g. model.sam_model.blocks.0.attn.scale",
    ),
    "missing tensor": (
        lambda f: change_tensors(f, **{"model.sam_model.neck.1.bias": None}),
        "got none for 1, e.g. model.vision_tower.grid_encoder.neck.layer_norm1.bias",
    ),
    "wrong shape": (
        lambda f: change_tensors(f, **{"model.sam_model.neck.1.bias": torch.ones(5)}),
        "expected model.sam_model.neck.1.bias of shape [16] (config.json); got [5]",
    ),
    "wrong type": (
        lambda f: change_tensors(f, **{"model.sam_model.neck.1.bias": torch.ones(16, dtype=torch.int32)}),
        "expected model.sam_model.neck.1.bias stored as one of BF16",
    ),
    "heads": (lambda f: change_config(f, SAM + "heads", 3), "agree on grid encoder heads; got 3 and 2.0"),
    "layers": (lambda f: change_config(f, SAM + "layers", 3), "agree on grid encoder layers; got 3 and 2"),
    "global layers": (
        lambda f: change_config(f, SAM + "global_attn_indexes", [0]),
        "agree on the side of the grid (relative position tables)",
    ),
    "image size": (lambda f: change_config(f, "vision_config.image_size", 64), "agree on image size; got 64 and 128"),
    "no field": (lambda f: change_config(f, "vision_config.width", {}), "expected vision_config.width.clip"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_VISION)
def test_a_damaged_vision_encoder_is_refused(
    case: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = BAD_VISION[case]
    folder = copied(published, tmp_path, "vision")
    damage(folder)
    arguments = ["--vision", folder, "--llm", published / "qwen3", "--out", tmp_path / "made" / "out"]
    assert message in refused(capsys, *arguments)
    assert not (tmp_path / "made").exists()


def drop_shard(folder: Path) -> None:
    sorted(folder.glob("*.safetensors"))[1].unlink()


def lie_in_index(folder: Path) -> None:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.extra"] = next(iter(index["weight_map"].values()))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_chat(folder: Path) -> None:
    tiny_tokenizer(without=("<|im_start|>",)).save_pretrained(folder)


BAD_LLM: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "missing shard": ("qwen3", drop_shard, "expected the"),
    "index of another model": ("qwen3", lie_in_index, "expected model.extra in model-0"),
    "width": ("qwen3", lambda f: change_config(f, "hidden_size", 32), "agree on vocabulary and width"),
    "no tokenizer": ("qwen3", lambda f: (f / "tokenizer.json").unlink(), "expected tokenizer.json; got none"),
    "broken tokenizer": ("qwen3", lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer that can be read"),
    "tokenizer without chat": ("qwen3", without_chat, "got no <|im_start|>"),
    "untied without a head": ("ovis", lambda f: change_config(f, "llm_config.tie_word_embeddings", False), "lm_head"),
    "rows of the table": ("ovis", lambda f: change_config(f, "visual_vocab_size", 50), "agree on rows of the visual"),
    "other language model": ("ovis", lambda f: change_config(f, "llm_config.model_type", "llama"), "type 'qwen3'"),
    "experts": (
        "deepseek",
        lambda f: change_config(f, "language_config.n_routed_experts", 5),
        "expected tensor model.layers.1.mlp.experts.4.gate_proj.weight; got none",
    ),
    "fewer experts": (
        "deepseek",
        lambda f: change_config(f, "language_config.n_routed_experts", 3),
        "expected only tensors with a place here",
    ),
    "latent attention": ("deepseek", lambda f: change_config(f, "language_config.use_mla", True), "use_mla true"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_LLM)
def test_a_damaged_language_model_is_refused(
    case: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, damage, message = BAD_LLM[case]
    folder = copied(published, tmp_path, name)
    damage(folder)
    vision = folder if name == "deepseek" else published / "vision"
    bridge = "vet" if name == "ovis" else "linear"
    arguments = ["--vision", vision, "--llm", folder, "--bridge", bridge, "--out", tmp_path / "made" / "out"]
    assert message in refused(capsys, *arguments)
    assert not (tmp_path / "made").exists()


def test_a_projector_that_does_not_fit_its_own_language_model_is_refused(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = upstream.deepseek_vision(**{**VISION, "projected": 20}) | upstream.deepseek_language(**DEEPSEEK)
    folder = write_upstream(tmp_path / "both", narrow, **fits_deepseek(tokenizer))
    message = refused(capsys, "--vision", folder, "--llm", folder, "--out", tmp_path / "out")
    assert "expected model.projector.layers.weight of shape [24, 64]" in message
    assert not (tmp_path / "out").exists()


def test_what_was_asked_for_is_checked_first(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = command(published, tmp_path / "out")
    assert "bridge: expected one of" in refused(capsys, *asked, "--bridge", "rope")
    assert "strategy: expected one of" in refused(capsys, *asked, "--scorer", "realizer,guess")
    assert "--out: expected a folder to write, or --dry-run" in refused(capsys, *asked[:4])
    assert "expected no revision of a folder" in refused(capsys, *asked, "--llm-revision", "main")
    assert "visual embedding table (Ovis2.5)" in refused(capsys, *asked, "--bridge", "vet")
    nothing = [*asked[:2], "--llm", tmp_path / "nothing", *asked[4:]]
    assert "expected a folder, or org/name on the Hub" in refused(capsys, *nothing)
    swapped = ["--vision", published / "qwen3", *asked[2:]]
    assert "--vision: expected a model that can be vision" in refused(capsys, *swapped)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert "of free disk space; got 1" in refused(capsys, *asked)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    assert "expected a new or empty folder" in refused(capsys, *asked)


# ---- the Hub ------------------------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hub cache that holds `org/vision` and `org/llm`; the Hub itself cannot be reached."""
    root = tmp_path / "cache"
    for name, folder in (("vision", "vision"), ("llm", "qwen3")):
        held = root / f"models--org--{name}"
        shutil.copytree(published / folder, held / "snapshots" / COMMIT)
        (held / "refs").mkdir()
        (held / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return root


def test_names_on_the_hub_are_found_in_its_cache(cache: Path, tmp_path: Path) -> None:
    """Every file is of the commit that the first one was of, and the record says which."""
    asked = ["--vision", "org/vision", "--llm", f"org/llm@{COMMIT}", "--out", str(tmp_path / "out")]
    assert main(["assemble", *asked]) == 0
    sources = json.loads((tmp_path / "out" / "assembly.json").read_text())["sources"]
    assert sources == {
        "vision": {"name": "org/vision", "revision": COMMIT},
        "llm": {"name": "org/llm", "revision": COMMIT},
    }


def test_repositories_that_cannot_be_had_are_refused(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["--vision", "org/vision", "--out", tmp_path / "out", "--llm"]
    assert "org/absent: expected config.json; got none in the cache" in refused(capsys, *asked, "org/absent")
    assert "expected one revision" in refused(capsys, *asked, "org/llm@main", "--llm-revision", "v2")

    def gated(*_: Any, **__: Any) -> str:
        raise GatedRepoError.__new__(GatedRepoError)

    monkeypatch.setattr(sources_module, "hf_hub_download", gated)
    assert "org/vision: expected a repository on the Hub; got a gated one" in refused(capsys, *asked, "org/llm")
    assert not (tmp_path / "out").exists()


def test_planning_downloads_no_weights(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers come by themselves: a dry run of a checkpoint of many gigabytes costs seconds."""
    kept = cache / "models--org--vision" / "snapshots" / COMMIT / "model.safetensors"
    with safe_open(kept, framework="pt") as opened:
        shapes = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    kept.unlink()

    class Metadata:
        tensors = {n: type("Info", (), {"shape": s, "dtype": "F32"})() for n, s in shapes.items()}

    class Api:
        def parse_safetensors_file_metadata(self, repo: str, file: str, revision: str | None) -> type[Metadata]:
            assert (repo, file, revision) == ("org/vision", "model.safetensors", COMMIT)
            return Metadata

    source = open_source("org/vision", option="--vision")
    monkeypatch.setattr(sources_module, "HfApi", Api)
    monkeypatch.setattr(HubSource, "optional", lambda self, name: None)
    monkeypatch.setattr(sources_module.constants, "HF_HUB_OFFLINE", False)
    assert {name: info.shape for name, info in source.tensors.items()} == {n: tuple(s) for n, s in shapes.items()}
    monkeypatch.undo()


# ---- stage statistics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("llm", ["qwen3", "deepseek"])
def test_info_prints_what_comes_out_of_every_stage(
    llm: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assembled(published, tmp_path / "out", llm)
    capsys.readouterr()
    assert main(["info", str(tmp_path / "out"), "--stats", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["statistics"]
    assert found["grid encoder"]["shape"] == [1, 16, 16, 16] and found["semantic encoder"]["shape"] == [1, 16, 32]
    assert all(of["std"] > 0 for of in found.values())
    assert main(["info", str(tmp_path / "out"), "--stats"]) == 0
    assert f"{found['grid encoder']['std']:.5f}" in capsys.readouterr().out
