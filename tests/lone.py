"""A fresh interpreter in which arr_coc cannot be imported, for the tests of what travels with the weights."""

import os
import subprocess
import sys
from pathlib import Path

QUESTION = "What is the total?"
LONE = f"""
import sys, warnings
warnings.simplefilter("error", UserWarning)
sys.modules["arr_coc"] = None  # its import fails
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor
from transformers import AutoImageProcessor, AutoModelForMultimodalLM, pipeline

source, picture, *rest = sys.argv[1:]
question = {QUESTION!r}
"""
"""The start of a fresh interpreter in which arr_coc cannot be imported."""


def run_alone(code: str, *arguments: str | Path, home: Path) -> str:
    """What `code` prints in a fresh, isolated, offline interpreter without arr_coc, whose Hub cache is `home`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HOME": str(home), "HF_MODULES_CACHE": str(home / "modules"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", "-c", LONE + code, *map(str, arguments)]
    result = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()
