"""Calls with bad input, and what is said. What is no image by itself is refused in test_image_loading.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from helpers import CARD, PAGE, QUESTION, loud_model, prompt
from PIL import Image

from arr_coc import scorer_lora_config

ZEROS = torch.zeros(1, 3, 128, 128)
"""Pixels of a square."""


def boxed(m: Any, boxes: Any) -> Any:
    return m.generate(PAGE, QUESTION, strategy="oracle", boxes=boxes)


def asks(**options: Any) -> Callable[[Any, Path], Any]:
    return lambda m, f: m.generate(**{"image": PAGE, "question": QUESTION, **options})


def continues(**options: Any) -> Callable[[Any, Path], Any]:
    """The same beside the tensors of a prompt."""
    return lambda m, f: m.generate(**prompt(m, (PAGE, QUESTION)), **options)


def calls(**inputs: Any) -> Callable[[Any, Path], Any]:
    """The model's own call with a prompt of which some tensors are others."""
    return lambda m, f: m(**{**prompt(m, (PAGE, QUESTION)), **inputs})


def processes(image: Any = PAGE, **options: Any) -> Callable[[Any, Path], Any]:
    return lambda m, f: m.processor(images=image, **options)


def encodes(*image: Any, **options: Any) -> Callable[[Any, Path], Any]:
    return lambda m, f: m.encode_image(*image, **options)


BAD: dict[str, tuple[Callable[[Any, Path], Any], str]] = {
    "model inputs beside a question": (asks(pixel_values=ZEROS), r"without a question; got it beside one"),
    "an adapter without rank": (lambda m, f: scorer_lora_config(m, r=0), "r: expected a rank, a whole number .* got 0"),
    "missing file": (lambda m, f: m.generate(f / "no.png", QUESTION), "no.png: expected an image file"),
    "a page of 7 px": (asks(image=PAGE.resize((90, 7))), "sides of at least 8 px.*; got 7x90"),
    "one of several pages": (encodes([[PAGE, PAGE.resize((1, 1))]]), "image: expected sides of at least 8 px.*got 1x1"),
    "encodings in a list": (lambda m, f: m.generate([m.encode_image(PAGE)] * 2, ["a", "b"]), "asks .* got a list of 2"),
    "encodings to encode": (lambda m, f: m.encode_image([m.encode_image(PAGE)]), "image: expected images, .* of 1"),
    "an unknown argument": (asks(image="not loaded", foo=1, strategi="none"), "GenerationConfig; got foo, strategi"),
    "a box outside": (lambda m, f: boxed(m, [(900, 900, 950, 950)]), r"reach into the image of .* got \(900, 900"),
    "a box in the margin of the square": (
        asks(image=Image.new("RGB", (100, 50), "grey"), strategy="oracle", boxes=[(10, 60, 20, 70)]),
        "reach into the image of 100 x 50 px",
    ),
    "no box for the second question": (
        asks(question=["a", "b"], strategy="oracle", boxes=[[(0, 0, 9, 9)], []]),
        "boxes: expected at least one for each question; got none for question 2",
    ),
    "boxes that nothing reads": (asks(boxes=[(0, 0, 9, 9)]), "boxes: expected strategy oracle beside .* got strategy"),
    "a scorer that it lacks": (asks(strategy="experts"), r"one of (?!.*experts.*held).* \(held here\); got 'experts'"),
    "no image": (asks(image=None), "image"),
    "no images": (asks(image=[]), "images: expected at least one"),
    "an empty prompt of images": (asks(image=[[]]), "images: expected at least one"),
    "no question": (lambda m, f: m.generate(PAGE), "question: expected one beside the image; got none"),
    "empty question": (asks(question=""), "question: expected a non-empty string; got ''"),
    "blank question": (asks(question=[QUESTION, " \n"]), "question: expected a non-empty string"),
    "no questions": (asks(question=[]), "question: expected"),
    "not a question": (asks(question=3), "question: expected a non-empty string; got 3"),
    "only control tokens": (asks(question="<|im_end|> <|image_pad|>\n"), "question: expected a non-empty string; got"),
    "long question": (asks(question="w " * 800), "question: expected at most 512 tokens; got"),
    "unknown strategy": (asks(strategy="x"), r"strategy: expected one of (?!.*experts).* \(held here\); got 'x'"),
    "unknown allocator": (asks(allocator="x"), "allocator: expected one .* got 'x'"),
    "unknown budget": (asks(budget="x"), r"0 to \d+ patches .*, or fast \(\d+\), balanced .* auto .* all; got 'x'"),
    "too large a budget": (asks(budget=257), "budget: expected 0 to 256 .* got 257"),
    "negative budget": (asks(budget=-1), "budget: expected 0 to .* got -1"),
    "two images, three questions": (asks(image=[PAGE, CARD], question=["a", "b", "c"]), "expected 1 or 3 .*; got 2"),
    "oracle without boxes": (asks(strategy="oracle"), "expected boxes"),
    "boxes that do not match": (
        asks(image=[PAGE, CARD], strategy="oracle", boxes=[[(0, 0, 1, 1)]]),
        "boxes: expected one list per question and image .2.; got 1",
    ),
    "a box that ends before it starts": (lambda m, f: boxed(m, [(9, 9, 0, 0)]), "x0 <= x1 and .*; got .9, 9, 0, 0"),
    "boxes of bare pixels": (
        lambda m, f: asks(image=m.encode_image(pixel_values=ZEROS), strategy="oracle", boxes=[(0, 0, 9, 9)])(m, f),
        "boxes: expected an image whose size is known",
    ),
    "nothing to encode": (encodes(), "expected exactly one of image and pixel_values"),
    "both to encode": (encodes(PAGE, pixel_values=ZEROS), "expected exactly one of image and pixel_values"),
    "pixels of a wrong side": (encodes(pixel_values=torch.zeros(1, 3, 100, 100)), "a multiple of .*; got 100 x 100"),
    "a budget beside the inputs": (continues(budget=5), "budget"),
    "boxes beside the inputs": (continues(boxes=[(0, 0, 9, 9)]), "boxes"),
    "return_fetch beside the inputs": (continues(return_fetch=True), "return_fetch"),
    "a strategy that is no name": (asks(strategy=3), "strategy: expected a name; got 3"),
    "an allocator that is no name": (asks(allocator=["topk"]), "allocator: expected a n"),
    "a budget that is a tensor": (asks(budget=torch.ones(2)), "budget: expected an int"),
    "half a seed": (asks(seed=0.5), "seed: expected an integer in .*; got 0.5"),
    "a seed of 100 bits": (asks(seed=2**100), "seed: expected an integer in .*; got"),
    "patches that are no integers": (asks(patches=torch.rand(1, 3)), "patches: expect"),
    "choices that are a number": (asks(choices=7), "choices: expected FetchChoices"),
    "no new tokens": (asks(max_new_tokens="2"), "max_new_tokens: expected an int.*'2'"),
    "a billion beams": (asks(num_beams=10**9), "num_beams: expected an integer in 1"),
    "an end that is a path": (asks(eos_token_id=Path("end")), "eos_token_id: expected a token"),
    "a streamer that streams nothing": (asks(streamer=3), "streamer: expected an obj"),
    "a lone surrogate": (asks(question="a\ud800"), "question: expected text, which UTF-8 can hold; got 'a"),
    "a lone surrogate before": (asks(history=[("a", "\udfff")]), "history: expected t"),
    "history of numbers": (asks(history=[1, 2]), "history: expected turns"),
    "an infinite box": (lambda m, f: boxed(m, [(0, 0, float("inf"), 9)]), "boxes: expected boxes .* of finite numbers"),
    "a box of three": (lambda m, f: boxed(m, [(0, 0, 9)]), "boxes: expected boxes .x0, y0, x1, y1."),
    "boxes of letters": (lambda m, f: boxed(m, ["abcd"]), "boxes: expected boxes"),
    "a sparse image": (asks(image=torch.rand(9, 9).to_sparse()), "image: expected a dense tensor"),
    "an image without values": (encodes(torch.rand(9, 9, device="meta")), "image: expected a dense"),
    "nested images": (encodes([[[PAGE]]]), "image: expected one image, or a list of them"),
    "encodings in lists of lists": (lambda m, f: m.generate([[m.encode_image(PAGE)]], "?"), "image: expected images"),
    "readings beside inputs": (continues(readings=2), "readings: expected only with a question"),
    "an unknown option": (encodes(PAGE, foo=1), "encode_image: expected options among .*tiles"),
    "an empty prompt": (encodes([[PAGE], []]), "images: expected at least one; got an empty list"),
    "no pixels": (encodes(pixel_values=ZEROS[:0]), "expected at least one image"),
    "pixels in a list": (encodes(pixel_values=[1.0]), "pixel_values: expected a dense tensor"),
    "sparse pixels": (encodes(pixel_values=ZEROS.to_sparse()), "pixel_values: expected a dense tensor of numbers"),
    "pixels that are no numbers": (encodes(pixel_values=ZEROS + torch.nan), "pixel_values: expected normalised"),
    "an infinite pixel": (
        lambda m, f: m.generate(**{**prompt(m, (PAGE, QUESTION)), "pixel_values": ZEROS + torch.inf}),
        "pixel_values: expected normalised numbers",
    ),
    "another model's encoding": (
        lambda m, f: m.generate(loud_model(text={"hidden_size": 36}).encode_image(PAGE), QUESTION),
        "image: expected an encoding by a model of widths",
    ),
    "tokens beyond the vocabulary": (
        lambda m, f: calls(labels=torch.full_like(prompt(m, (PAGE, QUESTION)).input_ids, 10**6))(m, f),
        "labels: expected numbers of tokens",
    ),
    "a mask that is a list": (calls(query_mask=[1]), "query_mask: expected a dense tensor; got .1."),
    "the processor's text": (processes(text=3), "text: expected a string"),
    "the processor's padding": (processes(text="<|image_pad|>a", padding="left"), "padding: expected True, False, lon"),
    "a square of 10,000 km": (lambda m, f: m.processor.image_processor(PAGE, size=2**35), "size: expected a square"),
    "pixels without a prompt": (lambda m, f: m.generate(pixel_values=ZEROS), "input_ids"),
}
