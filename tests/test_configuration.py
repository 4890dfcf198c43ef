"""Configuration: what is counted before the model runs, and what is refused before it is built."""

import json
import re
from typing import Any

import pytest
from helpers import tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.modeling.configuration_arr_coc import (
    NAMED_BUDGETS,
    ArrCocConfig,
    ArrCocVisionConfig,
    count_vision_tokens,
    grid_size,
    resolve_budget,
)
from arr_coc.modeling.modeling_arr_coc import ArrCocModel

cells = st.integers(1, 24)
patch_sizes = st.sampled_from([2, 8, 14, 16])


@settings(deadline=None)
@given(cells, patch_sizes, st.sampled_from([None, "all", "auto", "tier:64", *NAMED_BUDGETS]))
def test_named_budgets_fit_every_grid(cells: int, patch: int, budget: str | None) -> None:
    """A 4 x 4 grid has 16 patches: "fast" scaled to it is a fraction of one, and still fetches something."""
    base, num_fetched = count_vision_tokens(4 * cells * patch, patch, budget)
    assert base == cells**2
    assert 1 <= num_fetched <= 16 * cells**2


@settings(deadline=None)
@given(cells, patch_sizes, st.data())
def test_a_number_is_taken_as_it_is(cells: int, patch: int, data: st.DataObject) -> None:
    budget = data.draw(st.integers(0, 16 * cells**2))
    assert count_vision_tokens(4 * cells * patch, patch, budget) == (cells**2, budget)
    assert count_vision_tokens(4 * cells * patch, patch, str(budget)) == (cells**2, budget)


@settings(deadline=None)
@given(cells, st.sampled_from([None, 3, "all", "accurate"]))
def test_strategy_none_counts_no_fetched_tokens(cells: int, budget: int | str | None) -> None:
    assert count_vision_tokens(32 * cells, 8, budget, strategy="none") == (cells**2, 0)


def test_the_published_geometry() -> None:
    """1024 px in patches of 16: 256 base tokens and 273 fetched tokens, 529 together (DESIGN, the data flow)."""
    assert count_vision_tokens(1024, 16) == (256, 273)
    assert [resolve_budget(name, 4096) for name in ("fast", "balanced", "accurate")] == [64, 180, 400]
    assert ArrCocVisionConfig().num_patches == 4096


def test_budgets_scale_with_the_patches_not_with_the_side() -> None:
    assert resolve_budget("standard", 1024) == round(1024 * 273 / 4096) == 68


@pytest.mark.parametrize(
    "budget, received",
    [("huge", "'huge'"), (-1, "-1"), (257, "257"), (True, "True"), (2.5, "2.5"), ("-1", "'-1'"), ("", "''")],
)
def test_bad_budgets_name_what_came(budget: Any, received: str) -> None:
    with pytest.raises(ValueError, match="budget: expected") as error:
        resolve_budget(budget, 256)
    assert f"got {received}" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, -64, 100, 48])
def test_a_side_that_is_no_multiple_of_four_patches_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"multiple of 64 px .*; got {size}$"):
        grid_size(size, 16)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "image_size": ({"vision": {"image_size": 100}}, "100"),
    "patch_size": ({"vision": {"patch_size": 0}}, "0"),
    "hidden_size": ({"vision": {"num_attention_heads": 5}}, "32"),
    "num_attention_heads": ({"vision": {"num_attention_heads": 0}}, "0"),
    "window_size": ({"vision": {"window_size": 0}}, "0"),
    "global_attn_indexes": ({"vision": {"global_attn_indexes": [2]}}, "2"),
    "stem": ({"vision": {"stem": "fancy"}}, "fancy"),
    "stem_channels": ({"vision": {"stem": "conv", "stem_channels": [8]}}, "8"),
    "compressed_channels": ({"vision": {"compressed_channels": [8, 16, 32]}}, "32"),
    "compressor": ({"vision": {"compressor": "magic"}}, "magic"),
    "position_grid": ({"semantic": {"position_grid": 0}}, "0"),
    "semantic_config.hidden_size": ({"semantic": {"hidden_size": 48}}, "48"),
    "strategy": ({"fetcher": {"strategy": "telepathy"}}, "telepathy"),
    "strategy ": ({"fetcher": {"scorers": ["realizer"], "strategy": "clip_query"}}, "clip_query"),
    "scorers": ({"fetcher": {"scorers": ["telepathy"]}}, "telepathy"),
    "scorers ": ({"fetcher": {"scorers": ["saliency"]}}, "saliency"),
    "allocator": ({"fetcher": {"allocator": "greedy"}}, "greedy"),
    "overlap": ({"fetcher": {"overlap": "maybe"}}, "maybe"),
    "position_size": ({"fetcher": {"position_size": 6}}, "6"),
    "key_pool": ({"fetcher": {"key_pool": 0}}, "0"),
    "window_size ": ({"fetcher": {"window_size": 2}}, "2"),
    "window_size  ": ({"fetcher": {"window_size": -1}}, "-1"),
    "tier_choice": ({"fetcher": {"tier_choice": "dice"}}, "dice"),
    "tier_lengths": ({"fetcher": {"tier_lengths": [1, 2, 3]}}, "[1, 2, 3]"),
    "tier_lengths ": ({"fetcher": {"tier_lengths": [1, 2, 2, 3]}}, "[1, 2, 2, 3]"),
    "tier_lengths  ": ({"fetcher": {"tier_lengths": []}}, "[]"),
    "adaptive_share": ({"fetcher": {"adaptive_share": 0.0}}, "0.0"),
    "adaptive_share ": ({"fetcher": {"adaptive_share": 1.5}}, "1.5"),
    "gradient": ({"fetcher": {"gradient": "steep"}}, "steep"),
    "temperature": ({"fetcher": {"temperature": 0.0}}, "0.0"),
    "budget": ({"fetcher": {"budget": "huge"}}, "huge"),
    "budget ": ({"fetcher": {"budget": -1}}, "-1"),
    "budget  ": ({"fetcher": {"budget": 257}}, "257"),
    "kind": ({"bridge": {"kind": "ferry"}}, "ferry"),
    "layout": ({"bridge": {"layout": "circle"}}, "circle"),
    "layout ": ({"bridge": {"layout": "indicators"}}, "indicators"),
    "bypass": ({"bridge": {"kind": "vet", "bypass": True}}, "True"),
    "num_layers": ({"bridge": {"num_layers": 0}}, "0"),
    "num_heads": ({"bridge": {"num_heads": 0}}, "0"),
    "table_size": ({"bridge": {"table_size": 4}}, "4"),
    "lookup": ({"bridge": {"kind": "vet", "lookup": "random"}}, "random"),
    "text_embedding_mean": ({"bridge": {"text_embedding_std": 0.1}}, "None"),
    "text_embedding_std": ({"bridge": {"text_embedding_mean": 0.0, "text_embedding_std": 0.0}}, "0.0"),
    "bridge_config.layout": ({"bridge": {"layout": "rows"}, "vision": {"compressor": "mask"}}, "rows"),
    "bridge_config.num_heads": ({"bridge": {"kind": "transformer", "num_heads": 7}}, "7"),
}


@pytest.mark.parametrize("field", BAD)
def test_bad_combinations_name_the_field_the_expected_and_the_received(field: str) -> None:
    """A zero patch size ended in a ZeroDivisionError, and -1 passed for an odd number of patches."""
    changes, received = BAD[field]
    with pytest.raises(ValueError) as error:
        ArrCocModel(tiny_config(**changes))
    text = str(error.value)
    (part,) = changes if len(changes) == 1 else ("bridge",)
    assert (
        re.match(rf"({part}_config\.)?{field.strip()}: ", text)
        and "expected" in text
        and received in text.split("got ")[1]
    )
    assert "\n" not in text


@pytest.mark.parametrize("token", [-1, 10**6])
def test_an_image_token_outside_the_vocabulary_is_refused(token: int) -> None:
    config = tiny_config()
    with pytest.raises(ValueError, match=f"image_token_id: expected .*0 to .*; got {token}"):
        ArrCocConfig(**{**config.to_dict(), "image_token_id": token})


IDLE = {"id2label", "label2id", "_name_or_path", "chunk_size_feed_forward", "problem_type"}
"""What transformers keeps for every config, and no part of this model asks for."""


def test_a_config_survives_json(tmp_path: Any) -> None:
    config = tiny_config(fetcher={"budget": "fast", "allocator": "window"}, relevance_loss_weight=0.5)
    config.save_pretrained(tmp_path)
    again = ArrCocConfig.from_pretrained(tmp_path)
    assert again.to_dict() == config.to_dict()
    assert again.text_config.model_type == "qwen3" and again.fetcher_config.budget == "fast"
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "arr_coc" and saved["fetcher_config"]["model_type"] == "arr_coc_fetcher"
    assert not IDLE & {*saved, *(key for part in ArrCocConfig.sub_configs for key in saved[part])}


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


@pytest.mark.parametrize(("layout", "added"), [("plain", 0), ("rows", 5), ("indicators", 2)])
def test_vision_tokens_counts_what_the_layout_adds(layout: str, added: int) -> None:
    config = tiny_config(bridge={"kind": "vet" if layout == "indicators" else "linear", "layout": layout})
    assert config.vision_tokens() == (16 + added, 17)
    assert count_vision_tokens(128, 8, 3, layout=layout) == (16 + added, 3)


def test_all_that_can_be_fetched_does_not_depend_on_the_layout() -> None:
    """Newlines are no patches: with them among the base, "all" left out as many patches that nothing had taken."""
    assert count_vision_tokens(128, 8, "all", layout="rows", excludes_base=True) == (21, 240)


def test_vision_tokens_uses_the_configured_defaults() -> None:
    config = tiny_config(fetcher={"budget": 9, "strategy": "saliency"})
    assert config.vision_tokens() == (config.vision_config.num_patches // 16, 9)
    assert config.vision_tokens(2 * config.vision_config.image_size)[0] == config.vision_config.num_patches // 4
    assert config.vision_tokens(budget=3) == (config.vision_config.num_patches // 16, 3)
    assert config.vision_tokens(strategy="none")[1] == 0


@pytest.mark.parametrize(("own", "expected"), [(None, 0), (-1, 0), (7, 7), (60, 0)])
def test_padding_is_in_the_vocabulary(own: int | None, expected: int) -> None:
    """A vocabulary that was made smaller than the id of padding made `trim_placeholders` write ids without a row."""
    config = tiny_config()
    config.text_config.vocab_size, config.text_config.pad_token_id = 60, own
    assert config.padding_id == expected
