"""Refused or right, never silent: what a caller may well try, and what comes of it."""

import runpy
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_calls import BAD, boxed
from chats import WRITTEN, shown, turn
from helpers import CARD, PAGE, QUESTION, loud_model, prompt, refuses, tiny_model
from peft import get_peft_model
from PIL import Image
from tiny_pdf import write_pdf
from torch import Tensor
from trainers import standard_trainer

from arr_coc import ArrCocForConditionalGeneration, scorer_lora_config


def taught(model: Any) -> dict[str, Tensor]:
    inputs = prompt(model, (PAGE, QUESTION))
    return {**inputs, "labels": inputs.input_ids.masked_fill(inputs.query_mask.bool(), -100)}


# ---- right
@pytest.mark.parametrize("part", ["encoder", "semantic", "scorer", "language"])
def test_adapters_behind_frozen_parts_learn_under_reentrant_checkpointing(part: str) -> None:
    """No input of the encoder required gradients, so reentrant checkpoints gave its adapters none."""
    gradients = []
    for reentrant in (None, False, True):
        model = tiny_model()
        torch.manual_seed(0)
        adapted = get_peft_model(model, scorer_lora_config(model, part=part, r=2))
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "lora_B" in name:
                    weight.fill_(0.01)
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        relevant = torch.rand(1, model.config.vision_config.num_patches, generator=torch.Generator().manual_seed(0))
        adapted.train()(**taught(model), relevance_targets=relevant.round()).loss.backward()
        gradients.append({name: weight.grad for name, weight in adapted.named_parameters() if weight.requires_grad})
    plain, *others = gradients
    assert plain and all(gradient is not None and gradient.any() for gradient in plain.values())
    for other in others:
        for name, gradient in plain.items():
            assert torch.allclose(gradient, other[name], atol=1e-5), name


def test_label_smoothing_predicts_the_next_token(tmp_path: Path) -> None:
    """Trainer shifts labels of classes it knows, which remote code's were not: each token learnt to repeat itself."""
    model = tiny_model()
    trainer = standard_trainer(model, tmp_path, label_smoothing_factor=0.1)
    batch = trainer.data_collator([trainer.train_dataset[0]])  # type: ignore[index]
    batch.pop("relevance_targets", None)
    labels = batch["labels"][:, 1:]
    with torch.no_grad():
        logits = model(**batch).logits[:, :-1].log_softmax(-1)
        loss = trainer.compute_loss(model, dict(batch))
    inside = labels != -100
    nll = -logits[inside].gather(1, labels[inside][:, None]).mean()
    smooth = -logits[inside].mean()
    assert loss.item() == pytest.approx((0.9 * nll + 0.1 * smooth).item(), rel=1e-5)


# ---- refused
def processed(model: Any, *images: Any, count: int = 1, answer: str = "", **options: Any) -> Any:
    """What the processor makes of images and of a question about so many of them, answered or not."""
    text = model.processor.prompt(QUESTION, images=count) + answer
    return model.processor(images=[*images], text=text, return_tensors="pt", **options)


def two_pages(folder: Path) -> Path:
    return write_pdf(folder / "two.pdf", "", "")


def film(model: Any, folder: Path) -> None:
    (folder / "film.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(100))
    processed(model, folder / "film.mp4")


def pages(model: Any, folder: Path) -> None:
    PAGE.save(folder / "two.tiff", save_all=True, append_images=[PAGE])
    chat = [turn({"type": "image", "path": str(folder / "two.tiff")}, {"type": "text", "text": QUESTION})]
    model.processor.apply_chat_template(chat, tokenize=True, return_dict=True)


def other_sources(model: Any, folder: Path) -> None:
    ask = {"type": "text", "text": QUESTION}
    inputs = model.processor.apply_chat_template([turn(shown(PAGE.resize((300, 300))), ask)], **WRITTEN)
    several = {name: inputs[name].repeat_interleave(5, 0) for name in ("image_sources", "source_sizes")}
    model.generate(**{**inputs, **several})


def by_another(**changes: Any) -> Callable[[Any, Path], object]:
    return lambda model, _: model.generate(tiny_model(seed=1, **changes).encode_image(CARD), QUESTION)


WHOLE = r"expected one image \(generate\(document, question\) and encode_image\(document\) take all of its pages\)"
REFUSED: dict[str, tuple[Callable[[Any, Path], object], str]] = {
    "label smoothing beside relevance": (
        lambda m, f: standard_trainer(deepcopy(m), f, label_smoothing_factor=0.1, max_steps=1).train(),
        "label_smoothing_factor",
    ),
    "a truncated prompt": (
        lambda m, f: processed(m, PAGE, truncation=True, max_length=40),
        r"at most 40 tokens \(max_length; truncation would cut the question\)",
    ),
    "truncated text": (
        lambda m, f: m.processor(text=QUESTION, text_kwargs={"truncation": True, "max_length": 3}),
        r"at most 3 tokens \(max_length",
    ),
    "an encoding of other weights": (by_another(), r"an encoding of this model \(\w{12}\); got one of \w{12}"),
    "an encoding of a shallower model": (by_another(text={"num_hidden_layers": 1}), "an encoding of this model"),
    "generate_batch": (lambda m, f: m.generate_batch([[1, 2, 3]]), "generate_batch: expected generate"),
    "a PDF with its answer": (
        lambda m, f: processed(m, two_pages(f), answer="42<|im_end|>"),
        f"two.pdf: {WHOLE}; got a PDF",
    ),
    "a video by the processor": (film, f"film.mp4: {WHOLE}; got a video"),
    "more documents than placeholders": (
        lambda m, f: processed(m, two_pages(f), two_pages(f)),
        "images: expected 1 images .* got 2 images",
    ),
    "prompts pooled differently": (
        lambda m, f: m.processor(
            [[CARD], [CARD] * 5], [m.processor.prompt(QUESTION, images=count) for count in (1, 5)], padding=True
        ),
        r"as many pages in one call, .*; got \[1, 5\]",
    ),
    "pooled inputs in training": (
        lambda m, f: m(**processed(m, *[CARD] * 5, count=5)),
        "pixel_values: expected squares of single",
    ),
    "another pool": (
        lambda m, f: m.generate(**processed(m, *[CARD] * 5, count=5), max_base_tokens=16),
        "max_base_tokens: expected",
    ),
    "a TIFF in a chat with its answer": (pages, f"two.tiff: {WHOLE}; got several pages"),
    "other images than placeholders": (other_sources, "image placeholders: expected 5 images of 4 base tokens"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(model: Any, tmp_path: Path, case: str) -> None:
    attempt, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as refused:
        attempt(model, tmp_path)
    assert refused.type is ValueError and len(str(refused.value).splitlines()) == 1


@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")  # where another test imported it
def test_modules_say_mistakes_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.qwen3_vl", "no/such/model"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("benchmarks.qwen3_vl", run_name="__main__")
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


# ---- What is refused when a model is asked: one line that says what was expected and what came
@pytest.fixture(scope="module")
def expected(model: Any) -> str:
    return model.generate(PAGE, QUESTION)


def test_an_answer_ends_where_the_context_does(model: Any) -> None:
    """It went on for as many tokens as were asked for, beyond the positions that the language model knows."""
    short = loud_model(text={"max_position_embeddings": 110})
    length = prompt(short, (PAGE, QUESTION))["input_ids"].shape[1]
    options = {"max_new_tokens": 10**9, "eos_token_id": -1, "return_dict_in_generate": True}
    assert short.generate(PAGE, QUESTION, **options).output.sequences.shape[1] == 110
    tokens = short.generate(**prompt(short, (PAGE, QUESTION)), max_new_tokens=10**9, eos_token_id=-1)
    assert tokens.shape[1] == 110 > length


def test_a_box_is_cut_at_the_edges_of_its_page(model: Any) -> None:
    """In the square it also covered padding, whose patches were then fetched."""
    page, options = Image.new("RGB", (100, 50), "grey"), {"strategy": "oracle", "budget": 64, "return_fetch": True}
    whole, beyond = (
        model.generate(page, QUESTION, boxes=[box], **options) for box in ((0, 0, 100, 50), (-50, -90, 300, 400))
    )
    assert torch.equal(whole.fetch.relevance, beyond.fetch.relevance) and whole.fetch.relevance.sum() < 256
    expected = boxed(model, [(0, 0, 20, 20)])
    for boxes in (torch.tensor([[0, 0, 20, 20]]), np.array([[0, 0, 20, 20]]), [torch.tensor([0.0, 0.0, 20.0, 20.0])]):
        assert boxed(model, boxes) == expected


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_of_expected_and_got(model: Any, tmp_path: Path, case: str) -> None:
    call, message = BAD[case]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message) as error:
        call(model, tmp_path)
    assert "\n" not in str(error.value) and "expected" in str(error.value)


def test_a_checkpoint_without_a_processor_says_so(model: Any, tmp_path: Path, expected: str) -> None:
    model.save_pretrained(tmp_path)
    alone = ArrCocForConditionalGeneration.from_pretrained(tmp_path)
    refuses("^processor: expected .* to hold one", alone.generate, PAGE, QUESTION)
    inputs = prompt(model, (PAGE, QUESTION))  # the standard call does not need it
    assert torch.equal(alone.generate(**inputs, max_new_tokens=3), model.generate(**inputs, max_new_tokens=3))
    assert alone.encode_image(pixel_values=inputs.pixel_values).prefix_cache is None
    model.save_pretrained(tmp_path)
    model.processor.save_pretrained(tmp_path)
    assert ArrCocForConditionalGeneration.from_pretrained(tmp_path).generate(PAGE, QUESTION) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": 257}, "budget: expected 0 to 256 .* got 257"),
        ({"question": "w " * 800}, "question: expected at most 512 tokens; got"),
        ({"num_passes": 0}, "num_passes: expected an integer from 1"),
        ({"strategy": "oracle"}, r'strategy "oracle": expected boxes \(or relevance\) of the answer; got none'),
        ({"num_return_sequences": 2}, r"num_return_sequences: expected do_sample=True beside it, or at most num_beams"),
        ({"seed": 3, "do_sample": True}, "seed: expected strategy random, .*set_seed seeds the tokens of do_sample; "),
        ({"history": "abc"}, r"history: expected turns \(question, answer\) .* for each of 1 questions; got 'abc'"),
        ({"image": [PAGE] * 3, "question": [QUESTION] * 2}, r"images: expected 1 or 2 \(one per question\); got 3"),
    ],
)
def test_what_no_image_changes_is_refused_before_any_is_encoded(
    model: Any, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], message: str
) -> None:
    """A document of six pages took 12 s first."""
    monkeypatch.setattr(model.model, "encode_image", None)
    refuses(message, model.generate, **{"image": "missing.png", "question": QUESTION, **arguments})
