"""Arms: their sizes in tokens, their names, and the lattice of the uniform one."""

import numpy as np
import pytest
from helpers import READS_WORDS, SCORES_WORDS, tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc import ArrCocConfig
from arr_coc.evaluation.answers import lattice
from arr_coc.evaluation.arms import BASELINES, BOUNDS, GROUPS, LADDER, make_arms
from arr_coc.evaluation.deciding import default_rules, missing_arms


def test_arms_of_the_published_geometry() -> None:
    """256 + 273 tokens are 23 x 23: the larger image is a fair match to the token."""
    arms = {arm.name: arm for arm in make_arms(ArrCocConfig())}
    assert {arms[name].tokens for name in ("random", "saliency", "realizer", "uniform", "larger", "oracle")} == {529}
    assert (arms["larger"].side, arms["larger"].strategy) == (23 * 64, "none")
    assert (arms["smaller"].side, arms["smaller"].tokens) == (6 * 64, 36 + 576)
    assert (arms["none"].tokens, arms["keep_all"].tokens) == (256, 256 + 4096)
    assert list(arms["random"].runs) == ["random.0", "random.1", "random.2"] and list(arms["none"].runs) == ["none"]


def test_the_strategy_of_a_model_that_reads_text_is_on_the_ladder() -> None:
    """Rules that say nothing else are about it."""
    config = tiny_config(**READS_WORDS, fetcher=SCORES_WORDS)
    names = [arm.name for arm in make_arms(config)]
    assert [arm.name for arm in make_arms(config, ["ladder"])] == ["none", "random", "saliency", "words"]
    assert not missing_arms(default_rules("words"), names) and missing_arms(default_rules("realizer"), names)


@pytest.mark.parametrize("budget", [1, 5, 17, 60])
def test_baselines_never_get_fewer_tokens(budget: int) -> None:
    arms = make_arms(tiny_config(), budget=budget)
    wanted = 16 + budget
    assert [arm.name for arm in arms] == [*LADDER, *BASELINES, *GROUPS["halves"], *BOUNDS]
    assert all(arm.tokens >= wanted for arm in arms if arm.role == "baseline")
    assert all(arm.tokens == wanted for arm in arms if arm.role == "ladder" and arm.name != "none")


def test_larger_and_smaller_images_of_any_number_of_tokens() -> None:
    config = tiny_config()
    small, smaller, large = make_arms(config, ["smaller", "smaller@100", "larger@50"])
    assert small.tokens < 100 <= smaller.tokens and small.side < smaller.side < config.vision_config.image_size
    assert (smaller.rule, smaller.strategy, smaller.role) == ("smaller", "saliency", "baseline")
    assert large.tokens >= 50 and large.side > config.vision_config.image_size and large.budget == 0
    with pytest.raises(ValueError, match=r"got \['smaller@all', 'larger\+window@50'\]"):
        make_arms(config, ["smaller@all", "larger+window@50"])


def test_arms_keep_to_what_there_is() -> None:
    config = tiny_config(fetcher={"scorers": ["realizer"]})
    assert "clip_query" not in [arm.name for arm in make_arms(config)]
    assert "oracle" not in [arm.name for arm in make_arms(config, boxed=False)]
    (cut,) = make_arms(config, ["keep_all"], room=100)
    assert (cut.budget, cut.tokens) == (84, 100) and "the context holds 84 of 256" in cut.note
    with pytest.raises(ValueError, match=r"arms: expected names among .*; got \['luck', 'uniform@4'\]"):
        make_arms(config, ["none", "luck", "uniform@4"])
    with pytest.raises(ValueError, match='arms: expected boxes in every record for "oracle"'):
        make_arms(config, ["oracle"], boxed=False)
    with pytest.raises(ValueError, match='seeds: expected at least one for "random"; got none'):
        make_arms(config, ["random"], seeds=())
    assert "other_base" not in [arm.name for arm in make_arms(config, several=False)]
    with pytest.raises(ValueError, match='arms: expected more than one page for "other_base"; got one'):
        make_arms(config, ["other_base"], several=False)
    with pytest.raises(ValueError, match=r"got \['other_base\+bypass'\]"):
        make_arms(config, ["other_base+bypass"])
    with pytest.raises(ValueError, match="expected a budget of at least 1 for patches_only; got patches_only@0"):
        make_arms(config, ["patches_only@0"])


def test_arms_say_what_the_weights_were_trained_to_read() -> None:
    names = ["realizer", "larger", "smaller", "patches_only", "keep_all", "fastv", "cdpruner"]
    arms = {arm.name: arm for arm in make_arms(tiny_config(), names)}
    assert arms["keep_all"].note == "all patches; fair only if the weights were trained on such prompts"
    assert arms["fastv"].note.endswith(
        "fair only if the weights were trained on all patches at once, as the rule needs"
    )
    assert "trained" not in arms["realizer"].note + arms["cdpruner"].note


def test_a_strategy_can_have_a_budget_of_its_own() -> None:
    names = ["realizer@0", "realizer@fast", "random@9", "realizer@all", "none@5"]
    arms = make_arms(tiny_config(), names, seeds=(4,), room=200)
    assert [(arm.name, arm.budget, arm.tokens) for arm in arms] == [
        ("realizer@0", 0, 16),
        ("realizer@fast", 4, 20),
        ("random@9", 9, 25),
        ("realizer@all", 184, 200),
        ("none@5", 0, 16),
    ]
    assert {arm.role for arm in arms} == {"ablation"} and list(arms[2].runs) == ["random@9.4"]
    assert [arm.note for arm in arms] == ["", "", "", "the context holds 184 of 256 patches", ""]
    with pytest.raises(ValueError, match="budget: expected 0 to .* patches .*, or fast"):
        make_arms(tiny_config(), ["realizer@lots"])


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 400))
@settings(max_examples=200, deadline=None)
def test_a_lattice_is_of_distinct_cells(rows: int, columns: int, count: int) -> None:
    cells = lattice(rows, columns, count)
    assert len(set(cells)) == len(cells) == min(count, rows * columns)
    assert all(0 <= y < rows and 0 <= x < columns for y, x in cells)


def test_a_lattice_is_even() -> None:
    cells = np.array(lattice(64, 64, 273))
    quarters = np.bincount(cells[:, 0] // 32 * 2 + cells[:, 1] // 32)
    assert quarters.min() >= 273 / 4 - 10 and quarters.max() <= 273 / 4 + 10
    assert lattice(2, 4, 2) == [(1, 1), (1, 3)] and lattice(64, 1, 1) == [(32, 0)]


def test_passes_share_the_budget_of_their_arm() -> None:
    one, two, odd = make_arms(tiny_config(), ["realizer@16", "realizer+passes2@16", "realizer+passes3@17"])
    assert (one.passes, one.budget, one.tokens) == (1, 16, 32)
    assert (two.passes, two.budget, two.tokens) == (2, 8, 32)
    assert (odd.passes, odd.budget, odd.tokens) == (3, 5, 31), "never more than the budget"
    with pytest.raises(ValueError, match="arms: expected names among"):
        make_arms(tiny_config(), ["fastv+passes2@16"])
