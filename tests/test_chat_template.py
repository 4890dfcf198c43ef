"""The chat template: prompts as text, images and answers in a chat."""

import base64
import socket
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chats import PLACE, WRITTEN, chat, encode, make_processor, picture, questions, shown, turn
from helpers import CARD, PAGE, QUESTION, drawn, png
from PIL import Image
from tiny_pdf import text_at, write_pdf
from transformers import pipeline

from arr_coc.modeling.answers import split_thinking
from arr_coc.modeling.processing_arr_coc import ArrCocProcessor


def test_thinking_is_switched_off_as_qwen3_does() -> None:
    processor, messages = make_processor(), [{"role": "user", "content": "Why?"}]
    usual = processor.apply_chat_template(messages, add_generation_prompt=True)
    quick = processor.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=False)
    assert quick == usual + "<think>\n\n</think>\n\n"
    assert processor.apply_chat_template(messages, add_generation_prompt=True, enable_thinking=True) == usual


@pytest.mark.parametrize(
    ("written", "split"),
    [
        ("<think>a\nb</think>\n\nyes", ("a\nb", "yes")),
        ("\n<think>a</thi", ("a</thi", "")),
        ("<think>", ("", "")),
        ("<thi", ("", "")),  # no tokens were left
        ("<thi \n", ("", "")),
        ("<", ("", "<")),
        ("<thing>", ("", "<thing>")),
        ("", ("", "")),
    ],
)
def test_what_was_thought_is_split_from_the_answer(written: str, split: tuple[str, str]) -> None:
    assert split_thinking(written) == split


def test_a_decoded_answer_has_no_space_at_its_ends() -> None:
    """A model that answers with words of the page begins with a space; users had to strip it."""
    processor = make_processor()
    prompt = processor.apply_chat_template([{"role": "user", "content": " Why? "}], add_generation_prompt=True)
    rows = [
        processor.tokenizer.encode(text, add_special_tokens=False) for text in (" 12.50 \n", prompt, f"{prompt} 12 5")
    ]
    texts = ["12.50", "user\n Why? \nassistant\n", "user\n Why? \nassistant\n12 5"]
    assert processor.batch_decode(rows, skip_special_tokens=True) == texts
    assert processor.post_process_image_text_to_text(rows) == texts  # as `pipeline` decodes: it cuts the prompt's text
    assert processor.decode(torch.tensor(rows[:1]), skip_special_tokens=True) == texts[:1]
    assert processor.decode(torch.tensor(rows[0]), skip_special_tokens=True) == texts[0]
    assert processor.batch_decode(rows) == [" 12.50 \n", prompt, f"{prompt} 12 5"]


def test_rendered_prompt() -> None:
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Compare "},
                {"type": "image"},
                {"type": "text", "text": " with "},
                {"type": "image_url", "image_url": {"url": "b.png"}},
            ],
        },
        {"role": "assistant", "content": "Same."},
        {"role": "user", "content": "Sure?"},
    ]
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        f"<|im_start|>user\n{PLACE}{PLACE}Compare \n with <|im_end|>\n"
        "<|im_start|>assistant\nSame.<|im_end|>\n"
        "<|im_start|>user\nSure?<|im_end|>\n"
    )
    processor = make_processor()
    assert processor.apply_chat_template(messages) == expected
    assert processor.apply_chat_template(messages, add_generation_prompt=True) == expected + "<|im_start|>assistant\n"
    plain: Any = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "question"}]}]
    assert processor.apply_chat_template(plain, add_generation_prompt=True) == (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>question<|im_end|>\n<|im_start|>assistant\n"
    )
    with pytest.raises(Exception, match="expected text, image or image_url; got video"):
        make_processor().apply_chat_template([{"role": "user", "content": [{"type": "video", "video": "x.mp4"}]}])


def test_image_sources_in_a_chat(processor: ArrCocProcessor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's image_url with a data: URL, paths, PIL, arrays: same tensors, and no socket is opened."""
    monkeypatch.setattr(socket, "socket", lambda *args, **kwargs: pytest.fail("opened a socket"))
    image = picture()
    path = tmp_path / "page.png"
    path.write_bytes(png(image))
    text = base64.b64encode(path.read_bytes()).decode()
    url = f"data:image/png;base64,{text}"
    reference = encode(processor, chat("Total?"))
    blocks: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": url, "detail": "high"}},
        {"type": "image_url", "image_url": url},
        {"type": "image_url", "image_url": {"url": path.as_uri()}},
        {"type": "image", "image": str(path)},
        {"type": "image", "image": path},
        {"type": "image", "path": str(path)},
        {"type": "image", "url": url},
        {"type": "image", "base64": text},
        {"type": "image", "image": np.asarray(image)},
        {"type": "image", "image": path.read_bytes()},
        {"type": "image", "image": BytesIO(path.read_bytes())},
        {"type": "image", "image": {"bytes": path.read_bytes(), "path": None}},
    ]
    for block in blocks:
        messages = [{"role": "user", "content": [block, {"type": "text", "text": "Total?"}]}]
        out = encode(processor, messages)
        pixels = {"pixel_values", "patch_mask", "image_sources", "source_sizes"}
        assert set(out) == {"input_ids", "attention_mask", "query_mask"} | pixels
        for name, tensor in reference.items():
            assert torch.equal(out[name], tensor), (block["type"], name)


def test_images_keep_their_order() -> None:
    processor = make_processor()
    first, second = picture(20), picture(40)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "image": first}]},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "image", "image": second}, {"type": "text", "text": "c"}]},
    ]
    out = encode(processor, messages, processor_kwargs={"budget": "fast"})
    expected = processor.image_processor([first, second], return_tensors="pt")["pixel_values"]
    assert torch.equal(out["pixel_values"], expected)
    assert (out["input_ids"] == processor.image_token_id).sum() == 2 * (16 + 4)
    assert questions(processor, out) == ["c"]
    processor = make_processor()
    messages = [*chat("Total?"), {"role": "assistant", "content": "42 EUR"}]
    out = encode(processor, messages, add_generation_prompt=False, return_assistant_tokens_mask=True)
    answer = out["input_ids"][0][torch.as_tensor(out["assistant_masks"])[0].bool()]
    assert processor.tokenizer.decode(answer) == "42 EUR<|im_end|>"
    assert questions(processor, out) == ["Total?"]


# ---- Images come before the question, as models are trained, whatever order a chat has them in: by every door
ASK = {"type": "text", "text": QUESTION}

ANSWER = turn({"type": "text", "text": "42"}, role="assistant")
SYSTEM = {"role": "system", "content": "Be brief."}

ORDERS: dict[str, tuple[list[Any], list[Any]]] = {
    "text first": ([turn(ASK, shown(PAGE))], [turn(shown(PAGE), ASK)]),
    "between texts": (
        [turn({"type": "text", "text": "Look:"}, shown(PAGE), ASK)],
        [turn(shown(PAGE), {"type": "text", "text": f"Look:\n{QUESTION}"})],
    ),
    "two images": ([turn(shown(CARD), ASK, shown(PAGE))], [turn(shown(CARD), shown(PAGE), ASK)]),
    "a later turn": (
        [SYSTEM, turn({"type": "text", "text": "Hello"}), ANSWER, turn(ASK, shown(PAGE))],
        [SYSTEM, turn(shown(PAGE), {"type": "text", "text": "Hello"}), ANSWER, turn(ASK)],
    ),
    "plain text before": (
        [{"role": "user", "content": "Hello"}, ANSWER, turn(ASK, shown(PAGE))],
        [turn(shown(PAGE), {"type": "text", "text": "Hello"}), ANSWER, turn(ASK)],
    ),
}


def said(model: Any, inputs: Any, **settings: Any) -> list[str]:
    """What the model writes after prompts that the processor wrote."""
    tokens = model.generate(**inputs, **settings)[:, inputs["input_ids"].shape[1] :]
    return list(model.processor.batch_decode(tokens, skip_special_tokens=True))


@pytest.mark.parametrize("case", ORDERS)
def test_the_chat_template_brings_images_first(model: Any, case: str) -> None:
    given, trained = ORDERS[case]
    one, other = (model.processor.apply_chat_template(chat, **WRITTEN) for chat in (given, trained))
    assert all(torch.equal(one[name], other[name]) for name in other)
    both = model.processor.apply_chat_template([given, trained], **WRITTEN, processor_kwargs={"padding": True})
    assert torch.equal(both["input_ids"][0], both["input_ids"][1])


def test_a_pipeline_answers_images_of_any_size_in_one_batch(model: Any) -> None:
    """Images larger than the square, of different sizes or several in a chat, could not be joined."""
    prompts = [[LARGE], [CARD], [drawn(200, 500), CARD]]
    ask = pipeline("image-text-to-text", model=model, processor=model.processor)
    chats = [[turn(*map(shown, images), ASK)] for images in prompts]
    answers = [row[0]["generated_text"] for row in ask(text=chats, return_full_text=False, batch_size=3)]
    assert answers == [ask(text=chat, return_full_text=False)[0]["generated_text"] for chat in chats]
    assert answers == [model.generate([images], [QUESTION])[0] for images in prompts]


def test_large_images_are_seen_in_tiles(model: Any) -> None:
    """The processor looked at one square, and an A4 page was answered otherwise than by generate(image, question)."""
    for images in ([LARGE], [LARGE, CARD]):
        assert model.generate([images], [QUESTION], return_fetch=True)[0].fetch.seen.views.tile_rows.numel()
    one = model.processor.apply_chat_template([turn(ASK, shown(LARGE))], **WRITTEN)
    other = model.processor.apply_chat_template([turn(ASK, shown(PAGE))], **WRITTEN)
    assert said(model, one, tiles="never") == [model.generate(LARGE, QUESTION, tiles="never")]
    assert torch.equal(model(**one).logits, model(**{**one, "image_sources": None, "source_sizes": None}).logits)
    inputs = {name: other[name] for name in other if name not in ("image_sources", "source_sizes")}
    assert torch.equal(model.generate(**other), model.generate(**inputs)), "a small image is one square"
    both = model.processor.apply_chat_template(
        [[turn(ASK, shown(LARGE))], [turn(ASK, shown(PAGE))]], **WRITTEN, processor_kwargs={"padding": True}
    )
    assert said(model, both) == [model.generate(image, QUESTION) for image in (LARGE, PAGE)]
    inputs = model.processor.apply_chat_template([turn(ASK, shown(LARGE)), ANSWER], tokenize=True, return_dict=True)
    assert "image_sources" not in inputs


LARGE = drawn(400, 300)


def documents(folder: Path) -> dict[str, list[Any]]:
    """What one prompt shows, by name."""
    pdf = write_pdf(folder / "pages.pdf", *(text_at(5, 30, f"Tax {page}", size=12) for page in range(5)), size=(60, 72))
    single = write_pdf(folder / "page.pdf", text_at(5, 30, "Tax", size=12), size=(60, 72))
    large = write_pdf(folder / "large.pdf", *(text_at(5, 30, text, size=12) for text in "ab"), size=(120, 200))
    PAGE.save(folder / "two.tiff", save_all=True, append_images=[CARD])
    tiff = str(folder / "two.tiff")
    return {
        "an image": [PAGE],
        "two images": [CARD, PAGE],
        "a large image": [LARGE],
        "a large and a small image": [LARGE, CARD],
        "a PDF of a page": [single],
        "a PDF of five pages": [pdf],
        "a PDF with tiles": [large],
        "a TIFF": [tiff],
        "a PDF beside an image": [PAGE, single, tiff],
        "five images": [PAGE, CARD, PAGE, CARD, PAGE],
        "ten images": [PAGE, CARD] * 5,
        "five large images": [PAGE.resize((300, 200)), *[CARD] * 4],
    }


@pytest.mark.parametrize("case", documents(Path(tempfile.mkdtemp())))
def test_every_door_answers_alike(model: Any, tmp_path: Path, case: str) -> None:
    """The processor refused documents, and gave each of more than four images base tokens that nobody pooled."""
    images = documents(tmp_path)[case]
    chat = [turn(ASK, *map(shown, images))]
    expected = model.generate([images], [QUESTION], return_fetch=True)[0]
    if case == "two images":  # each had its own budget where the processor wrote the prompt
        assert int(expected.fetch.counts.sum()) == model.config.vision_tokens()[1]
    inputs = model.processor.apply_chat_template(chat, **WRITTEN)
    assert said(model, inputs) == [expected.text]
    by_hand = model.processor(
        images=images, text=model.processor.prompt(QUESTION, images=len(images)), return_tensors="pt"
    )
    assert all(torch.equal(inputs[name], by_hand[name]) for name in inputs)
    ask = pipeline("image-text-to-text", model=model, processor=model.processor)
    assert ask(text=chat, return_full_text=False)[0]["generated_text"] == expected.text
    both = model.processor.apply_chat_template([chat, chat], **WRITTEN, processor_kwargs={"padding": True})
    assert said(model, both) == [expected.text] * 2


def test_letters_that_tiles_show_warn_of_nothing_own_prompts_do(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr("arr_coc.modeling.image_processing_arr_coc.logger.warning", warned.append)
    monkeypatch.setattr(model.processor.image_processor, "_warned_of_letters", False)
    large = Image.effect_noise((900, 900), 80).convert("RGB")
    model.processor.apply_chat_template([turn(ASK, shown(large))], **WRITTEN)
    assert warned == []
    model.processor.apply_chat_template([turn(ASK, shown(large)), ANSWER], tokenize=True, return_dict=True)
    assert len(warned) == 1 and "which also encodes it as tiles" in warned[0]
    warned: list[str] = []
    monkeypatch.setattr("arr_coc.modeling.processing_arr_coc.logger.warning_once", warned.append)
    text = model.processor.prompt(QUESTION)
    place = text[text.index("<|vision_start|>") : text.index(QUESTION)]
    model.processor(images=PAGE, text=text)
    assert warned == []
    model.processor(images=PAGE, text=text.replace(place, "").replace(QUESTION, QUESTION + place))
    assert len(warned) == 1 and "images before the question" in warned[0]
    model.processor(images=PAGE, text=place + QUESTION)
    assert len(warned) == 2 and "expected a chat" in warned[1]
