"""Numbers as reports write them. Intervals are {"value", "low", "high"} in shares."""


def percent(interval: dict[str, float] | None) -> str:
    """ "43.1 [40.2, 46.0]"."""
    if interval is None:
        return "-"
    value, low, high = (100 * interval[name] for name in ("value", "low", "high"))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def points(interval: dict[str, float]) -> str:
    """ "+4.3 [+3.2, +5.5]"."""
    value, low, high = (100 * interval[name] for name in ("value", "low", "high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def p_value(p: float) -> str:
    """ "0.035", or "< 0.001"."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def milliseconds(time: float | None) -> str:
    """ "103", or "-" where there were too few timings."""
    return "-" if time is None else f"{time:.0f}"


def share(value: float | None) -> str:
    """ "43.1", or "-" where there is none."""
    return "-" if value is None else f"{100 * value:.1f}"
