"""The server asked by the clients that people have: an image, a PDF, a stream, JSON by a schema.

`make clients` puts LangChain and LlamaIndex into an environment of their own: LlamaIndex asks for an older release of
the official client than the one that is tested here.
"""

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ask_by_clients import TOKENS, Receipt
from helpers import loud_model
from pydantic import BaseModel
from serving_client import chat, data_url, noise, png, serving
from tiny_pdf import text_at, write_pdf

from arr_coc.serving.settings import ServerSettings

openai = pytest.importorskip("openai")

PYTHON = Path(os.environ.get("ARR_COC_CLIENTS", Path(__file__).parents[1] / "build" / "clients" / "bin" / "python"))
QUESTION = "What is the total?"
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
    with serving(model, ServerSettings(cache_tokens=4096, max_pixels=100_000, image_workers=1)) as (_, url):
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


def test_the_official_client(url: str, files: tuple[Path, Path], expected: dict[str, Any]) -> None:
    image, pdf = files
    content = base64.b64encode(pdf.read_bytes()).decode()
    file = {"filename": pdf.name, "file_data": f"data:application/pdf;base64,{content}"}
    shown = chat(QUESTION, data_url(image.read_bytes()))
    of_pdf: Any = [{"role": "user", "content": [{"type": "file", "file": file}, {"type": "text", "text": QUESTION}]}]
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=60) as client:
        ask, about = client.chat.completions, {"model": "tiny", "messages": shown, "max_tokens": TOKENS}
        assert ask.create(**about).choices[0].message.content == expected["image"]
        assert ask.create(**{**about, "messages": of_pdf}).choices[0].message.content == expected["pdf"]
        pieces = [event.choices[0].delta.content for event in ask.create(**about, stream=True)]
        assert "".join(piece or "" for piece in pieces) == expected["image"] and sum(map(bool, pieces)) > 1
        parsed = ask.parse(**about, response_format=Receipt).choices[0].message.parsed
        assert parsed.model_dump() == expected["schema"]


class Sums(BaseModel):
    """What no answer of this model is."""

    total: int
    tax: int


def test_the_official_client_is_refused_what_does_not_fit(
    url: str, files: tuple[Path, Path], expected: dict[str, Any]
) -> None:
    shown: Any = chat(QUESTION, data_url(files[0].read_bytes()))
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=60) as client:
        parse, about = client.chat.completions.parse, {"model": "tiny", "messages": shown}
        answer = parse(**about, response_format=Sums, max_tokens=TOKENS)
        message = answer.choices[0].message
        assert message.parsed is None and "total: expected an answer that is integer" in message.refusal
        assert answer.arr_coc["fields"]["total"]["text"] == expected["schema"]["total"]
        with pytest.raises(openai.LengthFinishReasonError) as cut:
            parse(**about, response_format=Receipt, max_tokens=2)
        assert expected["schema"]["total"].startswith(cut.value.completion.arr_coc["fields"]["total"]["text"])
