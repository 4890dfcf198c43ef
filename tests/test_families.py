"""Members of `arr_coc/families`: their files travel with the checkpoints that need them, and with no others."""

from pathlib import Path
from typing import Any

import pytest
from helpers import refuses, tiny_checkpoint, tiny_config, tiny_model
from lone import QUESTION, run_alone

from arr_coc.modeling.checks import BROUGHT, FAMILIES
from arr_coc.publishing.building import build

SCORERS = {"map_scorers.py", "relevance_maps.py", "tier_classifier.py"}
BROUGHT_FILES = {*SCORERS, "quality_bridges.py", "tempering.py", "mask_compressor.py"}
NEEDED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "strategy": ({"fetcher": {"scorers": [*BROUGHT["strategy"]], "strategy": "contextual"}}, SCORERS),
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
