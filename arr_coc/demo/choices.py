"""What a visitor may choose: the strategies and budgets that a model has."""

from ..modeling.configuration_arr_coc import NAMED_BUDGETS, ArrCocConfig
from ..modeling.prompt import AUTO
from ..modeling.scorers import SCORERS


def strategies(config: ArrCocConfig) -> list[str]:
    """Those that a page can offer: "oracle" needs boxes, and trained scorers their weights."""
    held = config.fetcher_config.scorers
    return [name for name, scorer in SCORERS.items() if name != "oracle" and (not scorer.trained or name in held)]


def budgets(config: ArrCocConfig) -> list[tuple[str, str]]:
    """Labels, which say how many patches that is, and names; the configured one is among them."""
    names = dict.fromkeys((*NAMED_BUDGETS, "all", str(config.fetcher_config.budget)))
    counts = {name: config.vision_tokens(budget=name)[1] for name in names if name != AUTO}
    labels = [(name if name == str(count) else f"{name}: {count} patches", name) for name, count in counts.items()]
    return [*labels, (f"{AUTO}: the model chooses", AUTO)]
