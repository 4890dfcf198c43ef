"""A small model of Qwen3-VL's architecture, its processor, and the pages that it reads."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from transformers import AutoTokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

import arr_coc
from arr_coc.attached import AttachedReader
from arr_coc.modeling.image_processing_arr_coc import Box
from arr_coc.pages.fonts import FontFace, find_fonts, load_font, pick_face
from arr_coc.pages.splits import Split

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "hub_configs" / "arr-coc-tiny-2"
"""The language model and the tokenizer are this model's."""

PATCH, MERGE, GRID = 12, 2, 12
"""Pixels of a patch, patches along an image token, image tokens along a page."""
UNIT = PATCH * MERGE
SIDE = UNIT * GRID
"""Pixels along an image token, and along a page."""
POOL = 4
"""Image tokens along the square that a base token averages."""
NAMES = tuple("tax tip bus lot pin zip date time name city code seat gate room lane dock temp unit".split())
"""The words on pages; each is one token of the tokenizer."""
WORDS = (" ", *"0123456789", *(f" {name}" for name in NAMES))
"""What an image token can show: nothing, a digit, a name."""
QUESTION = "What is the {field}?"
SLOTS, SLOT = 2, 6
"""Places for an item on a line of the page, and their image tokens."""
FIELDS, WITHOUT_NAME, WITHOUT_NUMBER = 10, 6, 4
"""Items of a page: fields, that is a name and a number; numbers without a name, and names without a number."""
ASKED = 6
"""Fields of a page that questions ask for."""
DIGITS = (2, 4)
"""The least and most digits of a number."""
DIGIT_SIZE, NAME_SIZE = 18.0, 14.0
"""Pixels of print per em; names are smaller where the widest would not fit an image token."""


def asked(count: int) -> int:
    """How many questions about a page can be answered from so many image tokens."""
    return min(ASKED, count // (1 + DIGITS[1]))


class NoVideos:
    """Replaces a video processor, which needs torchvision."""

    model_input_names = ()


class PageProcessor(Qwen3VLProcessor):
    """Qwen3-VL's processor without videos, which need torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        return type(argument)


def new_processor() -> PageProcessor:
    """Qwen3-VL's processor with the tokenizer and chat template of arr-coc-tiny-2."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    images = Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=MERGE, min_pixels=UNIT**2, max_pixels=SIDE**2)
    return PageProcessor(images, tokenizer, NoVideos(), chat_template=(TINY / "chat_template.jinja").read_text())


def new_model(processor: PageProcessor, layers: int = 2, width: int = 128) -> Any:
    """A new vision tower before arr-coc-tiny-2's language model, which gets positions in time, y and x."""
    ids, text = processor.tokenizer.convert_tokens_to_ids, json.loads((TINY / "config.json").read_text())["text_config"]
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}
    names = {"image": "<|image_pad|>", "vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    tower = (
        {"depth": layers, "hidden_size": width, "intermediate_size": 4 * width, "num_heads": width // 32}
        | {"patch_size": PATCH, "spatial_merge_size": MERGE, "out_hidden_size": text["hidden_size"]}
        | {"num_position_embeddings": (SIDE // PATCH) ** 2, "deepstack_visual_indexes": [0, 1]}
    )
    config = Qwen3VLConfig(
        text_config={key: value for key, value in text.items() if key != "model_type"},
        vision_config=tower,
        tie_word_embeddings=True,
        video_token_id=len(processor.tokenizer),
        **{f"{name}_token_id": ids(token) for name, token in names.items()},
    )
    model = Qwen3VLForConditionalGeneration(config)
    prefix, files = "model.language_model.", [load_file(path) for path in sorted(TINY.glob("*.safetensors"))]
    weights = {name: value for file in files for name, value in file.items() if name.startswith(prefix)}
    model.model.language_model.load_state_dict({name.removeprefix(prefix): value for name, value in weights.items()})
    for merger in model.model.visual.deepstack_merger_list:  # DeepStack starts silent
        torch.nn.init.zeros_(merger.linear_fc2.weight)
    model.generation_config.update(pad_token_id=ids("<|endoftext|>"), eos_token_id=ids("<|im_end|>"), do_sample=False)
    return model


def load_reader(folder: Path) -> AttachedReader:
    """A reader attached to the model that train.py wrote."""
    return arr_coc.attach(Qwen3VLForConditionalGeneration.from_pretrained(folder / "model").eval(), new_processor())


# ---- pages -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """A field of a page: its name, its number, and where they are, px."""

    name: str
    value: str
    label_box: Box
    value_box: Box


@dataclass(frozen=True)
class Page:
    """What a page shows: [GRID, GRID] the number in `WORDS` of each image token; and its fields."""

    words: np.ndarray
    fields: list[Field]


def new_page(rng: np.random.Generator) -> Page:
    """A page with its items at random places, no two fields of one name and no two numbers equal."""
    names = [NAMES[at] for at in rng.permutation(len(NAMES))[: FIELDS + WITHOUT_NUMBER]]
    numbers: list[str] = []
    while len(numbers) < FIELDS + WITHOUT_NAME:
        size = int(rng.integers(*DIGITS, endpoint=True))
        number = "".join(map(str, rng.integers(10, size=size)))
        numbers += [number] * (number not in numbers)
    fields = list(zip(names, numbers, strict=False))[:FIELDS]
    items = [*fields, *(("", number) for number in numbers[FIELDS:]), *((name, "") for name in names[FIELDS:])]
    words, found = np.zeros((GRID, GRID), int), []
    for (name, number), slot in zip(items, rng.permutation(GRID * SLOTS), strict=False):
        shown = [WORDS.index(f" {name}")] * bool(name) + [1 + int(digit) for digit in number]
        y, first = int(slot) // SLOTS, int(slot) % SLOTS * SLOT
        x = first + int(rng.integers(SLOT - len(shown)))  # so a place ends with nothing
        words[y, x : x + len(shown)] = shown
        if name and number:
            boxes = [
                (UNIT * left, UNIT * y, UNIT * right, UNIT * (y + 1))
                for left, right in ((x, x + 1), (x + 1, x + len(shown)))
            ]
            found.append(Field(name, number, *boxes))
    return Page(words, found)


@lru_cache
def _upright(split: Split) -> tuple[FontFace, ...]:
    return tuple(face for face in find_fonts(split) if not face.italic)


def draw_page(rng: np.random.Generator, page: Page, split: Split) -> Image.Image:
    """The page in an upright font of a split, dark on light; each word is within 1 px of its image token's middle."""
    ink, paper = int(rng.integers(80)), int(rng.integers(225, 256))
    image = Image.new("L", (SIDE, SIDE), paper)
    draw, face = ImageDraw.Draw(image), pick_face(rng, _upright(split))
    widest = max(map(load_font(face, NAME_SIZE).getlength, NAMES))
    digits, names = load_font(face, DIGIT_SIZE), load_font(face, NAME_SIZE * min(1.0, (UNIT - 2) / widest))
    for y, x in zip(*page.words.nonzero(), strict=True):
        word = WORDS[page.words[y, x]].strip()
        middle = UNIT * np.array([x + 0.5, y + 0.5]) + rng.integers(-1, 1, 2, endpoint=True)
        draw.text(tuple(middle), word, ink, digits if word.isdigit() else names, anchor="mm")
    noise = rng.normal(0, 3, (SIDE, SIDE))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)).convert("RGB")
