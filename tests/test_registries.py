"""Every family's registry: names taken or unknown are refused, and what is registered can be built."""

import pytest
from helpers import refuses

from arr_coc.modeling.allocators import ALLOCATORS
from arr_coc.modeling.bridges import BRIDGES
from arr_coc.modeling.checks import Registry
from arr_coc.modeling.grid_encoder import STEMS
from arr_coc.modeling.prompt_format import LAYOUTS
from arr_coc.modeling.scorers import SCORERS
from arr_coc.modeling.vision_tower import COMPRESSORS

REGISTRIES = {
    "strategy": SCORERS,
    "allocator": ALLOCATORS,
    "compressor": COMPRESSORS,
    "bridge": BRIDGES,
    "layout": LAYOUTS,
    "stem": STEMS,
}
"""Which members each has is fixed where they are tested, e.g. in test_scorers.py."""


@pytest.mark.parametrize("noun", REGISTRIES)
def test_a_taken_name_is_refused(noun: str) -> None:
    """Silently replacing a member would change what every saved config with that name means."""
    registry = REGISTRIES[noun]
    assert registry.noun == noun
    name, first = sorted(registry.items())[0]
    refuses(f"^{noun}: expected a new name; got '{name}', which is taken by", registry.register(name), object)
    assert registry[name] is first


@pytest.mark.parametrize("noun", REGISTRIES)
@pytest.mark.parametrize("name", ["nope", "", None, 3])
def test_an_unknown_name_is_answered_with_the_known_ones(noun: str, name: object) -> None:
    registry = REGISTRIES[noun]
    with pytest.raises(ValueError) as error:
        registry[name]
    assert str(error.value) == f"{noun}: expected one of {', '.join(sorted(registry))}; got {name!r}"


def test_register_returns_the_member_so_that_it_decorates() -> None:
    registry: Registry[type] = Registry("thing")

    @registry.register("one")
    class One:
        pass

    assert registry["one"] is One and list(registry) == ["one"]
