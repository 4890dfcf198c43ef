"""When, where and with which versions numbers were made."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers

from ..version import __version__


def shown(source: str) -> str:
    """A folder's path from here where it lies below, else its name: results are published, home folders are not."""
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
