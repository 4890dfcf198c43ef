"""The chat template: prompts as text, images and answers in a chat."""

import base64
import socket
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chats import PLACE, chat, encode, make_processor, picture, questions
from helpers import png

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
