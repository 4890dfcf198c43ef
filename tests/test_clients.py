"""The server asked by other clients than the official one: an image, a PDF, a stream, JSON by a schema.

`make clients` puts LangChain and LlamaIndex into an environment of their own: LlamaIndex asks for an older release of
the official client than the one that is tested here.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ask_by_clients import TOKENS
from helpers import loud_model, png
from serving_client import QUESTION, noise, serving
from tiny_pdf import text_at, write_pdf

from arr_coc.serving.settings import ServerSettings

PYTHON = Path(os.environ.get("ARR_COC_CLIENTS", Path(__file__).parents[1] / "build" / "clients" / "bin" / "python"))
FIELDS = {"total": "What is the total?", "date": "What is the date?"}
PAGES = ("Tax 1", "Tax 2")


@pytest.fixture(scope="module")
def model() -> Any:
    model = loud_model()
    ends: Any = [model.generation_config.eos_token_id, *model.processor.tokenizer.encode("&", add_special_tokens=False)]
    model.generation_config.eos_token_id = ends  # so that its answers end before their tokens run out
    return model


@pytest.fixture(scope="module")
def url(model: Any) -> Iterator[str]:
    with serving(model, ServerSettings(cache_tokens=4096, max_pixels=100_000, image_workers=1)) as (_, url, _):
        yield url


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """An image and a PDF of two pages."""
    (tmp_path / "image.png").write_bytes(png(noise(0)))
    pages = [text_at(5, 30, text, size=12) for text in PAGES]
    return tmp_path / "image.png", write_pdf(tmp_path / "pages.pdf", *pages, size=(60, 72))


@pytest.fixture
def expected(model: Any, files: tuple[Path, Path]) -> dict[str, Any]:
    image, pdf = files
    fields = model.generate(image, list(FIELDS.values()), max_new_tokens=TOKENS)
    return {
        "image": model.generate(image, QUESTION, max_new_tokens=TOKENS),
        "pdf": model.generate(pdf, QUESTION, max_new_tokens=TOKENS),
        "schema": dict(zip(FIELDS, fields, strict=True)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["langchain", "llama_index"])
def test_frameworks(name: str, url: str, files: tuple[Path, Path], expected: dict[str, Any]) -> None:
    if not PYTHON.exists():
        pytest.skip("LangChain and LlamaIndex are not installed: make clients")
    script = Path(__file__).with_name("ask_by_clients.py")
    asked = subprocess.run(
        [PYTHON, script, name, url, *files, QUESTION], capture_output=True, text=True, timeout=300, check=False
    )
    assert asked.returncode == 0, asked.stderr[-3000:]
    said = json.loads(asked.stdout)
    pieces = said.pop("stream")
    assert said == expected
    assert "".join(pieces) == expected["image"] and len(pieces) > 1
