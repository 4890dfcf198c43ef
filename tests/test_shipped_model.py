"""arr-coc-135m itself: the same answer by every door, in any order of parts and at any size, and the same refusals."""

import base64
from pathlib import Path
from typing import Any

import pytest
import torch
from bad_calls import BAD
from chats import WRITTEN, shown, turn
from PIL import Image
from serving_client import serving
from transformers import pipeline

from arr_coc.serving.settings import ServerSettings
from benchmarks.page_sizes import TIMES, page_sizes, verdict

pytestmark = pytest.mark.slow

IMAGES = Path(__file__).parents[1] / "examples" / "images"
PAGE, PDF = IMAGES / "manual_page.jpg", IMAGES / "invoices.pdf"
VERSION, TAX = "What is the version?", "What is the tax?"

OF_THE_TINY_MODEL = ("too large a budget", "long question")
"""Cases of `BAD` whose message holds a size of the tiny model."""


@pytest.fixture(scope="module")
def model(shipped: Any) -> Any:
    return shipped


@pytest.mark.parametrize("text_first", [False, True])
def test_every_door_answers_alike(model: Any, text_first: bool) -> None:
    image, question = Image.open(PAGE).convert("RGB"), {"type": "text", "text": VERSION}
    chat = [turn(question, shown(image)) if text_first else turn(shown(image), question)]
    inputs = model.processor.apply_chat_template(chat, **WRITTEN)
    tokens = model.generate(**inputs)[:, inputs["input_ids"].shape[1] :]
    ask = pipeline("image-text-to-text", model=model, processor=model.processor)
    answers = [
        model.generate(PAGE, VERSION),
        model.generate(model.encode_image(PAGE), VERSION),
        *model.processor.batch_decode(tokens, skip_special_tokens=True),
        ask(text=chat, return_full_text=False)[0]["generated_text"],
    ]
    assert answers == ["3.6.12"] * 4  # the processor's began with a space, as a word of the page does


@pytest.mark.parametrize(("file", "kind", "question"), [(PAGE, "image/jpeg", VERSION), (PDF, "application/pdf", TAX)])
def test_the_server_answers_as_generate_does(model: Any, file: Path, kind: str, question: str) -> None:
    url = f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    if kind == "application/pdf":
        part = {"type": "file", "file": {"filename": file.name, "file_data": url}}
    expected = model.generate(file, question, return_fetch=True)
    text = {"type": "text", "text": question}
    with serving(model, ServerSettings(image_workers=1)) as (_, _, client):
        for content in ([part, text], [text, part]):
            messages: Any = [{"role": "user", "content": content}]
            answer = client.chat.completions.create(model="tiny", messages=messages)
            assert answer.choices[0].message.content == expected.text != ""


def test_it_answers_alike_at_any_size(model: Any) -> None:
    """Scaling changes pixels a little: between two sizes the number of right answers may differ by one."""
    sizes, kinds = [384, 1024, 4096], ["document", "photo"]
    lines = page_sizes(model, pages=2, questions=6, sizes=sizes, resolutions=[150], kinds=kinds)
    assert [line.views for line in lines] == [1.0] * 4  # large print takes no tiles
    found = verdict(lines)
    assert found.best.exact["value"] >= 0.5 and found.below <= 100 / len(found.worst.scores) + 1e-6
    assert found.times <= TIMES


@pytest.mark.parametrize("case", sorted(set(BAD) - set(OF_THE_TINY_MODEL)))
def test_bad_input_is_refused(model: Any, tmp_path: Path, case: str) -> None:
    call, message = BAD[case]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message) as error, torch.no_grad():
        call(model, tmp_path)
    assert "\n" not in str(error.value)
