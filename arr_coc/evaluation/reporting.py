"""Tables and numbers as text; plots as SVG; date, versions and machine.

Intervals are {"value", "low", "high"} in shares.
"""

import importlib
import io
import os
import platform
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from ..version import __version__

MARKS = "osD^vPX*"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#5f5f5f", "#b58900", "#56b4e9", "#000000")
"""Shape and colour of each kind in a plot (colours by Okabe and Ito, safe for colour-blind readers)."""


def as_svg(draw: Callable[[], Any]) -> str:
    """SVG text of the matplotlib figure that `draw` makes, the same for the same numbers. Raises ValueError: matplotlib
    is not installed."""
    require_extra("matplotlib", "plots")
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "arr-coc", "svg.fonttype": "none"}):
        figure = draw()
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]


def to_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain-text table with columns of fixed width; the first is aligned left."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in (head, *rows)
    )


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


def shown(source: str) -> str:
    """A path relative to the working directory if below it, else its name: published results omit home folders."""
    path = Path(source)
    if not path.is_absolute():
        return source
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name


def environment(device: torch.device) -> dict[str, Any]:
    """Date, versions and machine."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "arr_coc": __version__,
            "torch": str(torch.__version__),
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "machine": {"system": platform.system(), "device": f"{device.type}: {name}", "cpus": os.cpu_count()},
    }


def require_extra(module: str, purpose: str) -> None:
    """Refuses early if a module of the extra "eval" is missing, not after hours of answers. Raises ValueError: the
    module is not installed; the message names `purpose` and how to install it."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise ValueError(f"{purpose}: expected {library} (pip install 'arr-coc[eval]'); got none") from error
