"""Odd arguments to all that a user calls: an answer, or a ValueError that says what was expected and what came."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

from tests.fuzz.tally import Tally
from tests.helpers import TINY_SIDE, noise, png, tiny_model

WORDING = r"expected.*got"
"""Of a refusal."""

THEIRS = (
    r"model_kwargs.*not used|Greedy methods|num_return_sequences|`max_new_tokens`|must be|Unused|not support|should"
)
"""Wordings of transformers' own refusals, of arguments that are its own."""

QUESTION = "What is the total?"

Draw = random.Random
Arguments = dict[str, Any]

CHOICES = tuple("strategy allocator budget seed overlap bypass patches relevance num_passes exploration".split())

DECODING = tuple(
    "do_sample temperature top_k top_p num_beams num_return_sequences repetition_penalty min_new_tokens eos_token_id "
    "pad_token_id use_cache return_dict_in_generate streamer logits_processor stopping_criteria generation_config "
    "length_penalty output_scores max_length".split()
)

SETTINGS: dict[str, tuple[Any, ...]] = {
    "strategy": ("realizer", "none", "random", "saliency", "clip_query", "oracle", "Realizer", ""),
    "allocator": ("topk", "window", "tiers", "adaptive", "quadtree", "foveated", "knapsack", "greedy", ""),
    "num_passes": (1, 2, 4, "auto", 0, -1, 10**9, "2", 1.5, True),
    "exploration": ("tempered", "none", "all", ""),
    "budget": (0, 1, 17, 256, 257, "fast", "all", "auto", "tier:128", "tier:7", "12", "-1", "²"),
    "seed": (0, -1, 2**31, 2**62, 2**63, 2**64),
    "overlap": ("exclude", "allow", "some"),
    "history": ((), [("a", "b")], [("a",)], [("a", 1)], [("\ud800", "b")], [[("a", "b")]], [["", ""]], ["ab"], 3),
    "max_new_tokens": (1, 2, 0, -1, 10**9, 1.5, "2", True),
    "num_beams": (1, 2, 0, -1, 10**9, 1.5),
    "num_return_sequences": (1, 2, 0, -1, 10**9),
    "temperature": (0.5, 0.0, -1.0),
    "top_k": (1, 0, -1, 10**9, 10**30),
    "top_p": (0.5, 0.0, -1.0, 2.0),
    "eos_token_id": (0, [0, 1], -1, 10**9, [[0]], []),
    "pad_token_id": (0, -1, 10**9),
    "question": (
        ("a", "é\n\t", "\0", "<|im_end|>", "<|image_pad|>x", "w " * 600, ["a", "b"], [["a"]], ["\udfff"]) + ("a\ud800",)
    ),
    "text": ("a", "<|image_pad|>", ["<|image_pad|>a", "<|image_pad|>b"], "\ud800<|image_pad|>", "", [[]]),
    "boxes": (
        ([(0, 0, 9, 9)], [[(0, 0, 9, 9)]], [(9, 9, 0, 0)], [(0, 0, float("inf"), 9)], [(float("nan"), 0, 9, 9)])
        + ([], [(0, 0, 9)], [(0, 0, 9, 9, 9)], [("a", "b", "c", "d")], [(1e308, 0, 1.7e308, 9)], torch.zeros(1, 4))
        + (np.zeros((2, 4)), [None], [[None]], [(None,) * 4], "abcd", ["abcd"], {"a": 1}, [(-5, -5, -1, -1)])
        + ([torch.tensor([0, 0, 9, 9])], [(10**400, 0, 10**400, 1)], 7, [(True, 0, 1, 1)])
    ),
}
"""Per argument values that are nearly right, beside `odd_value`."""


def odd_value(draw: Draw) -> Any:
    """Anything at all."""
    plain: tuple[Any, ...] = (
        (None, True, False, 0, 1, -1, 2**31, 2**63, 10**30, -(10**30), 0.5, float("nan"), float("inf"), 1j, "")
        + (" ", "x", "\ud800", "\0", "x" * 5000, b"", b"bytes", [], [[]], (), {}, {"a": 1}, {1: 2}, {1}, object())
        + (int, len, ..., range(3), [None], [1, 2], ["a"], [[["a"]]], Path("nowhere"), Path("."), slice(3))
        + (Exception("x"),)
    )
    return draw.choice((lambda: draw.choice(plain), lambda: odd_array(draw), lambda: odd_tensor(draw)))()


def odd_array(draw: Draw) -> np.ndarray:
    shape = draw.choice(
        ((), (0,), (3,), (5, 4), (0, 4), (5, 4, 3), (3, 5, 4), (2, 5, 4, 3), (1, 1, 1), (70_000, 1), (5, 4, 9))
    )
    dtype = draw.choice((np.uint8, np.float64, np.int64, np.uint16, bool, object, np.complex64, "datetime64[s]", "U3"))
    array = np.ones(shape, dtype=dtype)
    if array.dtype == np.float64 and array.size:
        array.flat[0] = draw.choice((1.0, -1.0, float("nan"), float("inf"), 1e300))
    return array


def odd_tensor(draw: Draw) -> torch.Tensor:
    shapes = [(), (0,), (1,), (3,), (1, 7), (1, 256), (5, 4), (3, 16, 16), (0, 3, 128, 128), (1, 3, 128, 128)]
    shapes += [(1, 3, 64, 64), (1, 1, 128, 128), (2, 3, 128, 128), (1, 3, 0, 0), (1, 3, 128, 64), (1, 2, 3, 4, 5)]
    shape = draw.choice(shapes)
    tensor = torch.rand(shape)
    kind = draw.choice(
        ("plain", "long", "int", "bool", "half", "bfloat16", "double", "complex", "sparse", "csr", "meta")
        + ("quantized", "nan", "inf", "huge", "grad", "negative", "float8")
    )
    if kind == "quantized":
        return torch.quantize_per_tensor(tensor, 0.1, 0, torch.quint8)
    if kind == "csr":
        return tensor.to_sparse_csr() if tensor.ndim == 2 else tensor.to_sparse()
    filled = {"nan": float("nan"), "inf": float("inf"), "huge": 1e38}
    if kind in filled:
        return tensor.flatten().index_fill(0, torch.arange(min(1, tensor.numel())), filled[kind]).view(shape)
    dtypes = {"half": torch.float16, "complex": torch.complex64, "float8": torch.float8_e4m3fn}
    changed: dict[str, Callable[[], torch.Tensor]] = (
        {"long": tensor.long, "int": tensor.int, "bool": tensor.bool, "bfloat16": tensor.bfloat16}
        | {"double": tensor.double, "sparse": tensor.to_sparse, "meta": lambda: tensor.to("meta")}
        | {"grad": tensor.requires_grad_, "negative": lambda: -tensor.long() - 1}
    )
    return tensor.to(dtypes[kind]) if kind in dtypes else changed.get(kind, lambda: tensor)()


class Doors:
    """What a user calls, with arguments that it answers to."""

    def __init__(self) -> None:
        self.model = tiny_model(text={"max_position_embeddings": 300})  # answers end there, whatever is asked for
        self.image = noise(60, 90)
        self.encoding = self.model.encode_image(self.image)
        self.bare = self.model.encode_image(pixel_values=torch.zeros(1, 3, TINY_SIDE, TINY_SIDE))
        self.foreign = tiny_model(text={"hidden_size": 36}).encode_image(self.image)
        images = [self.image] * 2
        self.images = (self.image, self.encoding, self.bare, self.foreign, png(self.image), images, [images])
        others = (self.encode, self.process, self.process_images, self.forward, self.continue_prompt)
        self.all = (*[self.ask] * 3, *others)

    def value(self, name: str, draw: Draw) -> Any:
        if name in ("image", "images") and draw.random() < 0.3:
            return draw.choice(self.images)
        return draw.choice(SETTINGS[name]) if name in SETTINGS and draw.random() < 0.6 else odd_value(draw)

    def spoil(self, draw: Draw, arguments: Arguments, names: tuple[str, ...]) -> Arguments:
        """The arguments with one or two of `names` replaced."""
        return {**arguments, **{name: self.value(name, draw) for name in draw.sample(names, draw.choice((1, 1, 2)))}}

    def inputs(self, **options: Any) -> Arguments:
        text = self.model.processor.prompt(QUESTION)
        return dict(self.model.processor(images=self.image, text=text, return_tensors="pt", **options))

    def ask(self, draw: Draw) -> tuple[str, Callable[[], Any]]:
        names = ("image", "question", "boxes", "return_fetch", "history", "choices", "max_new_tokens", "nonsense")
        good = {"image": self.encoding, "question": QUESTION, "max_new_tokens": 2, "return_fetch": True}
        arguments = self.spoil(draw, good, (*names, *CHOICES, *DECODING))
        if "boxes" in arguments and draw.random() < 0.8:
            arguments["strategy"], arguments["image"] = "oracle", draw.choice((self.encoding, self.image))
        if arguments["question"] is None:
            arguments["question"] = ""  # without one it is `continue_prompt`
        return self.named("generate", self.model.generate, arguments)

    def encode(self, draw: Draw) -> tuple[str, Callable[[], Any]]:
        if draw.random() < 0.5:
            return self.named("encode_image", self.model.encode_image, {"image": self.value("image", draw)})
        good = {"pixel_values": torch.zeros(1, 3, TINY_SIDE, TINY_SIDE), "patch_mask": torch.ones(1, 256).bool()}
        return self.named("encode_image", self.model.encode_image, self.spoil(draw, good, tuple(good)))

    def process(self, draw: Draw) -> tuple[str, Callable[[], Any]]:
        good = {"images": self.image, "text": self.model.processor.prompt(QUESTION), "return_tensors": "pt"}
        arguments = self.spoil(draw, good, ("images", "text", "budget", "strategy", "padding"))
        return self.named("processor", self.model.processor, arguments)

    def process_images(self, draw: Draw) -> tuple[str, Callable[[], Any]]:
        arguments = self.spoil(draw, {"images": self.image, "return_tensors": "pt"}, ("images", "size", "patch_size"))
        return self.named("image_processor", self.model.processor.image_processor, arguments)

    def forward(self, draw: Draw) -> tuple[str, Callable[[], Any]]:
        good = self.inputs()
        good["labels"] = good["input_ids"].clone()
        others = "image_index image_encoding relevance_targets choices position_ids logits_to_keep"
        names = (*good, *others.split())
        return self.named("forward", self.model, self.spoil(draw, good, names))

    def continue_prompt(self, draw: Draw) -> tuple[str, Callable[[], Any]]:
        good = self.inputs()
        names = (*good, "image_index", "image_encoding", *(name for name in CHOICES if name != "budget"), *DECODING)
        return self.named(
            "generate(**inputs)", self.model.generate, self.spoil(draw, {**good, "max_new_tokens": 2}, names)
        )

    @staticmethod
    def named(door: str, call: Callable[..., Any], arguments: Arguments) -> tuple[str, Callable[[], Any]]:
        shown = ", ".join(f"{name}={_shown(value)}" for name, value in arguments.items())
        return f"{door}({shown})", lambda: call(**arguments)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)} {value.layout} {value.device}"
    return " ".join(repr(value).split())[:60]


def wrong(answer: Any) -> str | None:
    """What is wrong with an answer."""
    for single in answer if isinstance(answer, list) else [answer]:
        probability = getattr(single, "probability", 1.0)
        if not 0 <= probability <= 1.001:  # also of NaN
            return f"probability {probability}"
        logits, loss = getattr(single, "logits", None), getattr(single, "loss", None)
        for tensor in (logits, loss):
            if isinstance(tensor, torch.Tensor) and not tensor.isfinite().all():
                return "logits or a loss that are not finite"
    return None


def fuzz(count: int, seed: int) -> Tally:
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    doors = Doors()
    tally = Tally()
    for number in range(seed, seed + count):
        draw = random.Random(number)
        torch.manual_seed(number)
        name, call = draw.choice(doors.all)(draw)
        wording, promised = f"{WORDING}|{THEIRS}", (ValueError, FileNotFoundError)
        tally.attempt(number, call, name=name, promised=promised, wording=wording, check=wrong)
    logging.set_verbosity(verbosity)
    return tally
