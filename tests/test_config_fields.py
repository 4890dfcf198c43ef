"""Config fields refuse types, ranges and names in one line, wherever a config comes from."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny_config

from arr_coc.loading import load_config
from arr_coc.modeling.configuration_arr_coc import ArrCocConfig, ArrCocFetcherConfig, ArrCocVisionConfig
from arr_coc.modeling.scorers import SCORERS, Scorer

NAN, INFINITY = float("nan"), float("inf")

REFUSED: dict[str, list[Any]] = {
    "vision.num_hidden_layers": ["12", 12.0, True, None, 0, -1, 2_000_000, 10**400],
    "vision.hidden_size": [160_000, [32]],
    "vision.image_size": [2**20],
    "vision.mlp_dim": [0, "64"],
    "vision.layer_norm_eps": [NAN, INFINITY, 0.0, -1e-6, "1e-6"],
    "vision.global_attn_indexes": [[True], ["1"], [-1], 1, None],
    "vision.compressed_channels": [[24, 0], [24.0, 32.0], "24"],
    "vision.stem": [["conv"], 3, ""],
    "vision.compressor": [None, "magic"],
    "vision.window_size": [10**6],
    "semantic.hidden_act": ["magic", 1],
    "semantic.position_grid": [10**5, False],
    "semantic.initializer_range": [NAN, -1.0],
    "fetcher.strategy": ["telepathy", None, ["realizer"]],
    "fetcher.scorers": [["telepathy"], ["realizer", "realizer"], ["saliency"], "realizer", [[]]],
    "fetcher.budget": ["huge", -1, 2.5, True, None],
    "fetcher.temperature": [NAN, INFINITY, 0],
    "fetcher.adaptive_share": [NAN, True],
    "fetcher.window_gain": [NAN, INFINITY, "1"],
    "fetcher.seed": [-1, 2**64, 0.0],
    "fetcher.key_pool": [10**9],
    "fetcher.tier_lengths": [[8, 12, 16, NAN], ["8", "12", "16", "24"]],
    "bridge.kind": ["ferry", {}],
    "bridge.bypass": [1, "yes", None],
    "bridge.table_size": [2**40],
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
        assert re.match(rf"{part}_config(\.{name})?: expected .*; got [^\n]+\Z", str(error.value)), str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("image_token_id", True),
        ("image_token_id", 2**40),
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
    with pytest.raises(ValueError, match=rf"\A{field}: expected [^\n]*; got [^\n]*\Z"):
        ArrCocConfig(**{**tiny_config().to_dict(), field: value})


def test_what_is_assigned_later_is_checked_as_well() -> None:
    config = tiny_config()
    with pytest.raises(ValueError, match="seed: expected a whole number from 0 to 4294967295; got -1"):
        config.fetcher_config.seed = -1
    assert config.fetcher_config.seed == 0


def test_a_whole_number_stands_for_a_fraction_and_a_list_for_a_tuple() -> None:
    """JSON writes 1 for 1.0, and knows no tuples."""
    config = ArrCocFetcherConfig(temperature=1, tier_lengths=[1, 2, 3, 4])
    assert config.temperature == 1 and list(config.tier_lengths) == [1, 2, 3, 4]


def test_a_long_value_is_not_quoted_whole() -> None:
    with pytest.raises(ValueError) as error:
        ArrCocVisionConfig(stem="x" * 100_000)
    assert len(str(error.value)) < 500


def test_a_config_file_is_refused_in_one_line(tmp_path: Path) -> None:
    """transformers' own errors have several lines, and are no ValueErrors."""
    settings = tiny_config().to_dict()
    settings["text_config"]["hidden_size"] = "wide"
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"\A[^\n]*text_config.*hidden_size[^\n]*expected int; got str[^\n]*\Z"):
        load_config(str(tmp_path))


def test_a_published_config_with_the_field_glance_layers_is_read() -> None:
    """The field's name until November 2026; the strategy of that name is refused with the names that there are."""
    config = ArrCocFetcherConfig(**{"glance_layers": [0.1, 0.6]})
    assert list(config.attention_layers) == [0.1, 0.6] and "glance_layers" not in config.to_dict()
    with pytest.raises(ValueError, match="attention_layers: expected two increasing numbers"):
        ArrCocFetcherConfig(**{"glance_layers": [0.6, 0.1]})
    with pytest.raises(ValueError, match="strategy: expected one of attention, .*; got 'glance'"):
        ArrCocFetcherConfig(strategy="glance")


def test_a_part_that_was_registered_from_outside_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORERS, "darkness", type("Darkness", (Scorer,), {}))
    assert tiny_config(fetcher={"strategy": "darkness"}).fetcher_config.strategy == "darkness"


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
    with pytest.raises(ValueError, match=r"^text_config.*expected"):
        ArrCocConfig.from_dict(fields)
