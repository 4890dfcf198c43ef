"""Members of `arr_coc/families`: their files travel with the checkpoints that need them, and with no others."""

from pathlib import Path
from typing import Any

import pytest
from helpers import refuses, tiny_checkpoint, tiny_config, tiny_model
from lone import QUESTION, run_alone

from arr_coc.modeling.checks import BROUGHT, FAMILIES
from arr_coc.publishing.building import build

OF_SCORERS = {"map_scorers.py", "relevance_maps.py", "tier_classifier.py"}
BROUGHT_FILES = {*OF_SCORERS, "quality_bridges.py", "tempering.py", "mask_compressor.py"}
NEEDED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "strategy": ({"fetcher": {"scorers": [*BROUGHT["strategy"]], "strategy": "contextual"}}, OF_SCORERS),
    "bridge": ({"bridge": {"kind": "transformer"}}, {"quality_bridges.py"}),
    "textures": ({"fetcher": {"textures": "full"}}, {"relevance_maps.py"}),
    "exploration": ({"fetcher": {"learned_exploration": True}}, {"tempering.py"}),
    "compressor": ({"vision": {"compressor": "mask"}}, {"mask_compressor.py"}),
    "tier_choice": ({"fetcher": {"tier_choice": "classifier", "allocator": "tiers"}}, {"tier_classifier.py"}),
}
"""By family: changes of the tiny config, and the files that its checkpoint holds beside those of modeling/."""

AGAIN = """
for folder in rest:
    for name in (folder, folder + "-again"):
        model = AutoModel.from_pretrained(name, trust_remote_code=True)
        print(model.generate(picture, question, num_passes=1 + model.config.fetcher_config.learned_exploration))
        if name == folder:
            AutoProcessor.from_pretrained(name, trust_remote_code=True).save_pretrained(folder + "-again")
            model.save_pretrained(folder + "-again")
"""


def test_every_member_is_built_loaded_and_saved_without_arr_coc(picture: Path, tmp_path: Path) -> None:
    folders, said = [], []
    for name, (changes, files) in NEEDED.items():
        built = build(tiny_checkpoint(tmp_path / f"{name}-saved", **changes), tmp_path / name)
        saved = {path.name for path in (tmp_path / f"{name}-saved").glob("*.py")}
        assert {path.name for path in built.glob("*.py")} == saved and saved & BROUGHT_FILES == files
        folders.append(built)
        passes = 1 + (name == "exploration")
        said += [tiny_model(**changes).generate(picture, QUESTION, num_passes=passes)] * 2
    assert run_alone(AGAIN, folders[0], picture, *folders, home=tmp_path).split("\n") == said


def test_checkpoints_that_need_no_member_hold_none(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path)
    assert not (tmp_path / "map_scorers.py").exists()
    assert "map_scorers" not in (tmp_path / "modeling_arr_coc.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("noun", BROUGHT)
def test_a_member_that_is_missing_is_said_to_be_brought_by_arr_coc(noun: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BROUGHT[noun]:
        monkeypatch.delitem(FAMILIES[noun], name)
    with pytest.raises(ValueError, match=f"{BROUGHT[noun][0]}.*which package arr-coc brings"):
        FAMILIES[noun][BROUGHT[noun][0]]
    if noun in ("strategy", "bridge"):
        refuses("which package arr-coc brings", tiny_config, **NEEDED[noun][0])


# ---- Every family's registry: names taken or unknown are refused, and what is registered can be built
NOUNS = sorted({*BROUGHT, "allocator", "layout", "stem", "words"})
"""Which members each has is fixed where they are tested, e.g. in test_scorers.py."""


@pytest.mark.parametrize("noun", NOUNS)
def test_a_taken_name_is_refused(noun: str) -> None:
    """Silently replacing a member would change what every saved config with that name means."""
    registry = FAMILIES[noun]
    name, first = sorted(registry.items())[0]
    refuses(f"^{noun}: expected a new name; got '{name}', which is taken by", registry.register(name), object)
    assert registry[name] is first


@pytest.mark.parametrize("noun", NOUNS)
@pytest.mark.parametrize("name", ["nope", "", None, 3])
def test_an_unknown_name_is_answered_with_the_known_ones(noun: str, name: object) -> None:
    registry = FAMILIES[noun]
    with pytest.raises(ValueError) as error:
        registry[name]
    assert str(error.value) == f"{noun}: expected one of {', '.join(sorted(registry))}; got {name!r}"
