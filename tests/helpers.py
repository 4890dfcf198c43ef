"""Small stand-ins that several test files share."""

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast

from arr_coc import ArrCocConfig, ArrCocForConditionalGeneration, ArrCocImageProcessor, ArrCocProcessor
from arr_coc.assembling.trained import is_complete
from arr_coc.files import SHIPPED, cache_folder
from arr_coc.modeling.prompt import query_markers
from arr_coc.modeling.wordpieces import CELL_COLUMNS, CLASSES, PIECE_SLOTS, TextReader
from arr_coc.training.reader.targets import spelled

Cli = Callable[..., tuple[int, str, str]]
"""What the fixture `cli` gives: arguments -> exit code, standard output, standard error."""


def leave(code: int = 0) -> NoReturn:
    """Ends one of several processes at once: split tensors keep threads of gloo, which may abort Python as it ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def refuses(message: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
    """Checks that a call ends in a ValueError of one line, in which a message (a regular expression) is found."""
    with pytest.raises(ValueError, match=message) as error:
        call(*args, **kwargs)
    assert "\n" not in str(error.value), error.value


SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]


def tiny_tokenizer(
    *, merged: bool = True, without: tuple[str, ...] = (), model_max_length: int = 4096
) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the 256 bytes, built in-process: encodes any text, decodes it back exactly.

    Args:
        merged: with merges that make "user", " the" and a double newline one token each, as in Qwen's vocabulary.
        without: special tokens to leave out.
        model_max_length: tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("u", "s"), ("e", "r"), ("us", "er"), ("h", "e"), ("t", "he"), ("Ġ", "the"), ("Ċ", "Ċ")] if merged else []
    vocabulary = {piece: index for index, piece in enumerate([*alphabet, *(a + b for a, b in merges)])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    kept = [token for token in SPECIAL_TOKENS if token not in without]
    backend.add_special_tokens(kept)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>" if "<|im_end|>" in kept else None,
        pad_token="<|endoftext|>",
        additional_special_tokens=kept,
        model_max_length=model_max_length,
    )


TINY_SIDE, TINY_PATCH = 128, 8
"""Side of the tiny model's square image and of its patches, px: G = 16, N = 256, M = 16, K = 17."""

_TINY: dict[str, dict[str, Any]] = {
    "vision": (
        {"image_size": TINY_SIDE, "patch_size": TINY_PATCH, "hidden_size": 32, "num_hidden_layers": 2}
        | {"num_attention_heads": 2, "mlp_dim": 64, "window_size": 7, "global_attn_indexes": [1], "out_channels": 16}
        | {"compressed_channels": [24, 32]}
    ),
    "semantic": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "position_grid": 4,
    },
    "fetcher": {"hidden_size": 16, "num_heads": 2, "num_layers": 1, "position_size": 8, "shared_size": 16},
    "bridge": {},
    "text": (
        {"model_type": "qwen3", "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2}
        | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 12, "max_position_embeddings": 1024}
        | {"tie_word_embeddings": True}
    ),
}

READS_WORDS: dict[str, Any] = {
    "bridge": {"kind": "wordpieces", "places": 16},
    "vision": {"stem": "conv", "stem_channels": [8, 16]},
}
"""Changes of `tiny_config` that make a model read wordpieces."""

SCORES_WORDS: dict[str, Any] = {"scorers": ["words"], "strategy": "words", "match_size": 8}
"""Its fetcher, where its scorer reads them too."""


def tiny_config(**changes: Any) -> ArrCocConfig:
    """A config of a few thousand weights for `tiny_tokenizer()`.

    Args:
        **changes: `vision`, `semantic`, `fetcher`, `bridge`, `text`: dicts laid over that part; others: top level.
    """
    tokenizer = tiny_tokenizer()
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _TINY_IDS.items()}
    parts = {name: {**part, **changes.pop(name, {})} for name, part in _TINY.items()}
    parts["text"] = {"vocab_size": len(tokenizer), **ids, **parts["text"]}
    named = {f"{name}_config": part for name, part in parts.items()}
    return ArrCocConfig(**named, image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"), **changes)


_TINY_IDS = {"eos_token_id": "<|im_end|>", "pad_token_id": "<|endoftext|>", "bos_token_id": "<|im_start|>"}


def tiny_processor(**kwargs: Any) -> ArrCocProcessor:
    """The processor that goes with `tiny_config()`."""
    images = ArrCocImageProcessor(size={"height": TINY_SIDE, "width": TINY_SIDE}, patch_size=TINY_PATCH)
    return ArrCocProcessor(images, tiny_tokenizer(), **kwargs)


def tiny_model(seed: int = 0, **changes: Any) -> ArrCocForConditionalGeneration:
    """A model with random weights (the same for the same seed) and its processor, in eval mode.

    Weights are larger than at the start of a training, none is zero, and unprintable bytes are unlikely: so answers are
    printable and depend on the image, the question and what is fetched.
    """
    config, tokenizer = tiny_config(**changes), tiny_tokenizer()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = ArrCocForConditionalGeneration(config)
        for name, parameter in model.named_parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
            if parameter.ndim > 1 and not name.endswith(("query_position", "key_position", "temperature.weight")):
                parameter.mul_(10)
        texts = tokenizer.batch_decode([[index] for index in range(len(tokenizer))])
        shown = torch.tensor([text.isascii() and text.isprintable() for text in texts])
        if (reader := model.model.vision_tower.text_reader) is not None:
            reader.spellings.copy_(spelled(tokenizer, len(tokenizer)))
            reader.character_head.weight.mul_(5)  # else all that it reads were guesses
        model.get_input_embeddings().weight[~shown] = 0.0
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in _TINY_IDS.items()}
    model.generation_config = GenerationConfig(**ids, max_new_tokens=6)
    model.processor = tiny_processor(layout=config.bridge_config.layout)
    return model.eval()


def tiny_checkpoint(folder: Path, **changes: Any) -> Path:
    """Writes `tiny_model(**changes)` and its processor to `folder`, as `hub_configs/` holds them; returns `folder`."""
    model = tiny_model(**changes)
    model.save_pretrained(folder)
    model.processor.save_pretrained(folder)
    (folder / "README.md").write_text("# Tiny\n", encoding="utf-8")
    return folder


def reads(model: Any, least: int, most: int) -> Any:
    """The model, which finds between `least` and `most` wordpieces in every patch, where it is not given the words."""
    reader = model.model.vision_tower.text_reader
    reads_given = reader.read

    def read(stem: Tensor, coarse: Sequence[Tensor] = (), words: Any = None, *rest: Any) -> tuple[Tensor, Tensor]:
        if any(words or ()):
            return reads_given(stem, coarse, words, *rest)
        pieces = torch.full((len(stem), stem.shape[-1] ** 2 // 4, 2, PIECE_SLOTS), -1, dtype=torch.int32)
        for page, features in zip(pieces, stem, strict=True):
            generator = torch.Generator().manual_seed(int(features.double().abs().mean() * 1000))
            counts = torch.randint(least, most + 1, (len(page),), generator=generator)
            ids = torch.randint(60, 90, (len(page),), generator=generator)  # of characters
            for slot in range(most):
                page[:, slot % 2, slot // 2] = torch.where(slot < counts, ids + slot, -1)
            if not least:
                page[::3] = -1  # so there are fewer than patches are fetched
        counts = (pieces >= 0).flatten(2).sum(-1).float()
        return pieces, torch.stack((counts, counts / 2), -1)

    reader.read = read
    return model


def open_reader() -> TextReader:
    """A text reader whose features are its predictions: `stem_of` makes them."""
    lines, classes = 2 * CELL_COLUMNS, CELL_COLUMNS * CLASSES
    reader = TextReader(lines + classes, 3).requires_grad_(False)
    eye = torch.eye(lines + classes)
    reader.line_head.weight.copy_(eye[:lines, :, None, None])
    reader.character_head.weight.copy_(eye[lines:])
    reader.line_head.bias.zero_()
    reader.character_head.bias.zero_()
    return reader


def stem_of(classes: Tensor, present: Tensor, middles: Tensor) -> Tensor:
    """Features [B, C, R, R] of which `open_reader` predicts classes [B, R, W, n], present and middles [B, R, W]."""
    columns = torch.cat((present[..., None], middles[..., None], classes), -1).unflatten(2, (-1, CELL_COLUMNS))
    lines, letters = columns[..., :2].transpose(-1, -2).flatten(3), columns[..., 2:].flatten(3)
    return torch.cat((lines, letters), -1).permute(0, 3, 1, 2)


QUESTION = "What is it?"


def loud_model(seed: int = 0, **changes: Any) -> ArrCocForConditionalGeneration:
    """A tiny model with large random weights, so that its answers depend on the image and on every question."""
    text = {"tie_word_embeddings": False, **changes.pop("text", {})}
    model = tiny_model(seed, text=text, **changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(noise * (parameter.numel() / parameter.shape[0]) ** -0.5)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
        if (reader := model.model.vision_tower.text_reader) is not None:
            reader.character_head.weight.mul_(4)  # else all that it reads were guesses
    return model


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    stream = BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def prompt(model: Any, *pairs: tuple[Any, str], **processor_kwargs: Any) -> Any:
    """Model inputs of (image or list of images, question) pairs, as the processor makes them."""
    chats = []
    for images, question in pairs:
        images = images if isinstance(images, list) else [images]
        content = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": question}]
        chats.append([{"role": "user", "content": content}])
    return model.processor.apply_chat_template(
        chats,
        tokenize=True,
        return_dict=True,
        add_generation_prompt=True,
        return_tensors="pt",
        processor_kwargs={"padding": True, **processor_kwargs},
    )


def pixels_of(inputs: Any) -> dict[str, Tensor]:
    """Those of a prompt's images, and which patches show them."""
    return {name: inputs[name] for name in ("pixel_values", "patch_mask")}


PAGE, CARD = noise(60, 90), noise(128, 128, 1)


class Calls:
    """Counts the calls of a module, and the positions that pass through it where it takes `inputs_embeds`."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.count = self.positions = 0
        self.outputs: list[Any] = []
        self.handles = [
            module.register_forward_pre_hook(self._before, with_kwargs=True),
            module.register_forward_hook(lambda module, args, output: self.outputs.append(output)),
        ]

    def _before(self, module: Any, args: Any, kwargs: Any) -> None:
        self.count += 1
        if kwargs.get("inputs_embeds") is not None:
            self.positions += kwargs["inputs_embeds"].shape[1]

    def __enter__(self) -> "Calls":
        return self

    def __exit__(self, *_: Any) -> None:
        for handle in self.handles:
            handle.remove()


PAIRS = [(PAGE, "What is it?"), (CARD, "Who?"), (noise(128, 40, 2), "what is the total price of the second line?")]


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    """Noise in blocks, so that places differ at every scale."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 255, (height // 20 + 1, width // 20 + 1, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.NEAREST)


SCAN, SMALL, OTHER = drawn(500, 700), drawn(120, 90, seed=1), drawn(90, 110, seed=2)

LARGE_TEXT = {"max_position_embeddings": 4096}


def with_markers() -> Any:
    """A model whose configuration says how its chats are marked."""
    model = tiny_model()
    model.config.query_markers = query_markers(model.processor.tokenizer)
    return model


def change_json(path: Path, *keys: Any, to: Any) -> None:
    """Sets, or with `to=...` removes, what is at `keys` in a JSON file."""
    content = json.loads(path.read_text())
    *outer, last = keys
    target = content
    for key in outer:
        target = target[key]
    if to is ...:
        del target[last]
    else:
        target[last] = to
    path.write_text(json.dumps(content))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    """Changes the tensors of a checkpoint whose weights are in one file."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}  # not those in the file itself
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def truncate(folder: Path) -> None:
    """Cuts the end off a file of weights."""
    path = next(folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-10])


MIXTURE = (
    {"model_type": "deepseek_ocr2_text", "num_key_value_heads": 2, "moe_intermediate_size": 8}
    | {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    | {"mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1, "tie_word_embeddings": False}
)

ROOT = Path(__file__).parents[1]


def needs_the_shipped_model(code: str) -> None:
    """Skips code that loads it where it is not complete: `make test` completes it if it can be downloaded."""
    default = "load_model()" in code or "--model" not in code and re.match(r"(arr-coc )?(ask|demo) ", code)
    if default and not is_complete(ROOT / SHIPPED, cache_folder() / SHIPPED.name):
        pytest.skip("the language model of arr-coc-135m is not here")
