"""Damaged and forged weights: the undamaged model's answer, or one line that says what is wrong."""

import json
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from arr_coc import ArrCocForConditionalGeneration
from arr_coc.assembling import Request, WeightsSource, make_plan, write
from arr_coc.cli.common import quiet
from arr_coc.loading import load_model
from arr_coc.modeling.pretrained import WEIGHTS, WEIGHTS_INDEX
from arr_coc.publishing import build
from tests.fuzz.configs import ONE_LINE
from tests.fuzz.mutations import mutate
from tests.fuzz.tally import Tally
from tests.helpers import tiny_checkpoint, tiny_tokenizer
from tests.published import write_published

Draw = random.Random
Damage = Callable[[Draw, Path], bool | None]
"""Changes a folder; True where what it did must be refused, else the answer must be the undamaged one. None: weights
are others than they were, and the answer may be too."""

IMAGE = Image.effect_noise((90, 60), 80).convert("RGB")
QUESTION = "What is the total?"


# ---- damage to a file of weights
def one_file(draw: Draw, folder: Path) -> Path:
    return draw.choice(sorted(folder.glob("*.safetensors")))


def damage_file(draw: Draw, folder: Path) -> bool | None:
    """Changes bytes or the header of a file; flipped bits of weights make others, which nobody could tell."""
    path = one_file(draw, folder)
    before = load_file(path)
    mutate(path, draw)
    try:
        after = load_file(path)
    except (SafetensorError, OSError):
        return True
    if [(name, tensor.shape) for name, tensor in after.items()] != [(n, t.shape) for n, t in before.items()]:
        return True
    return None if any(tensor.tolist() != before[name].tolist() for name, tensor in after.items()) else False


def pickle(draw: Draw, folder: Path) -> bool:
    """Pickles beside, or under the name of, what has to be safetensors."""
    state = {}
    for path in sorted(folder.glob("*.safetensors")):
        state |= load_file(path)
        path.unlink()
    (folder / WEIGHTS_INDEX).unlink(missing_ok=True)
    torch.save(state, folder / draw.choice(("pytorch_model.bin", "model.bin", "model.pt", WEIGHTS)))
    return True


# ---- damage to tensors
def change_tensors(draw: Draw, folder: Path, kind: str = "") -> bool | None:
    """Leaves a tensor out, adds one, or gives one another name, shape, type, or a value that is none."""
    path = one_file(draw, folder)
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}  # not those in the file itself
    name = draw.choice(sorted(tensors))
    tensor, kind = tensors[name], kind or draw.choice(("dropped", "added", "renamed", "reshaped", "retyped"))
    if kind in ("dropped", "renamed"):
        del tensors[name]
    if kind == "added":
        tensors[draw.choice(("extra", f"{name}.extra", f"model.{name}", name.replace("0", "9") + "s"))] = torch.ones(3)
    elif kind == "renamed":
        tensors[draw.choice((name[:-1], name.upper(), "x", f"module.{name}"))] = tensor
    elif kind == "reshaped":
        others = (tensor[None], torch.cat((tensor, tensor)), tensor.new_zeros(0), tensor.new_zeros(70_000))
        tensors[name] = draw.choice(others).contiguous()
    elif kind == "retyped":
        dtypes = (torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool)
        tensors[name] = tensor.to(draw.choice(dtypes))
    elif kind == "spoilt":
        tensor.reshape(-1)[draw.randrange(tensor.numel())] = draw.choice((float("nan"), float("inf"), -float("inf")))
    save_file(tensors, path, metadata={"format": "pt"})
    return None if kind == "retyped" else True


def spoil(draw: Draw, folder: Path) -> bool | None:
    return change_tensors(draw, folder, "spoilt")


# ---- damage to the index of shards, and to the config
def forge_index(draw: Draw, folder: Path) -> bool:
    """An index of another form, or one that names shards elsewhere or a missing one; in a folder of shards."""
    index = folder / WEIGHTS_INDEX
    if not index.is_file():
        return damage_file(draw, folder)
    if draw.random() < 0.25:
        one_file(draw, folder).unlink()
        return True
    content = json.loads(index.read_text())
    shards = content["weight_map"]
    name, shard = draw.choice(sorted(shards.items()))
    outside = folder.parent / "outside.safetensors"
    (folder / "sub").mkdir()
    for place in (outside, folder / "sub" / shard):
        shutil.copy(folder / shard, place)
    names = (
        (f"../{outside.name}", str(outside), f"sub/{shard}", f"./{shard}", "..", "", ".", "\0")
        + (f"..\\{outside.name}", "x.safetensors", "config.json", 7, None, [shard], "file://" + str(outside))
        + ("~/x.safetensors",)
    )
    other = draw.choice(names)
    forged: tuple[Any, ...] = (
        ({"weight_map": {**shards, name: other}}, {"weight_map": {key: other for key in shards}})
        + ({"weight_map": {**shards, "x": other}}, {"weight_map": {}}, {"weight_map": [shard]}, {"weight_map": None})
        + ({}, [], 3, None, "x")
    )
    text = json.dumps(draw.choice(forged[:3] * 3 + forged[3:]))
    index.write_text(draw.choice((text, text, text, text, text[:-3], "[" * 100_000, "")))
    return True


def change_config(draw: Draw, folder: Path) -> bool:
    """A config of another model than the weights'."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    fields: dict[str, dict[str, tuple[Any, ...]]] = {
        "vision_config": {"num_hidden_layers": (1, 3, 500), "mlp_dim": (32, 8192), "layer_norm_eps": (float("nan"),)},
        "semantic_config": {"num_hidden_layers": (1, 3), "intermediate_size": (128, 99_999), "position_grid": (5, 500)},
        "fetcher_config": {"hidden_size": (32, 16_000), "scorers": (["realizer"], []), "num_layers": (2, 0)},
        "bridge_config": {"kind": ("quality", "vet"), "layout": ("rows",)},
        "text_config": {"num_hidden_layers": (1, 3, 400), "hidden_size": (48, 32_000), "vocab_size": (2**20,)},
    }
    part = draw.choice(sorted(fields))
    field = draw.choice(sorted(fields[part]))
    config[part][field] = draw.choice(fields[part][field])
    path.write_text(json.dumps(config))
    return True


DAMAGES: tuple[Damage, ...] = (
    *([damage_file] * 6 + [change_tensors] * 5 + [forge_index] * 4),
    *(pickle, spoil, spoil, change_config, change_config),
)


# ---- what weights go through
class Doors:
    """What takes weights, each with an undamaged folder to copy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        whole, self.sharded = tiny_checkpoint(root / "whole"), root / "sharded"
        shutil.copytree(whole, self.sharded, ignore=shutil.ignore_patterns(WEIGHTS))
        model = ArrCocForConditionalGeneration.from_pretrained(whole)
        model.save_pretrained(self.sharded, max_shard_size="100KB")
        self.whole = whole
        tokenizer = root / "tokenizer"
        tiny_tokenizer().save_pretrained(tokenizer)
        self.published = write_published(root / "published", tokenizer)
        self.answer = self.ask(whole)

    def ask(self, folder: Path) -> str:
        return load_model(str(folder), "cpu").generate(IMAGE, QUESTION)

    def load(self, folder: Path) -> str:
        return ArrCocForConditionalGeneration.from_pretrained(folder).generate(IMAGE, QUESTION)

    def publish(self, folder: Path) -> str:
        return self.ask(build(folder, folder.parent / "built"))

    def assemble(self, folder: Path) -> str:
        sources = {"vision": WeightsSource(self.published / "vision"), "llm": WeightsSource(folder)}
        write(make_plan(Request(sources=sources)), folder.parent / "assembled")
        self.ask(folder.parent / "assembled")
        return self.answer

    def through(self, name: str, folder: Path) -> str:
        return {"ask": self.ask, "load": self.load, "publish": self.publish, "assemble": self.assemble}[name](folder)


def check(answer: str, *, must: bool | None, expected: str) -> str | None:
    if must:
        return f"answered {answer!r} from damaged weights"
    return None if must is None or answer == expected else f"answered {answer!r} in place of {expected!r}"


def fuzz(count: int, seed: int) -> Tally:
    """`count` damaged folders, the first one by `seed`, each through one of the doors."""
    with tempfile.TemporaryDirectory() as root, quiet():
        doors = Doors(Path(root))
        tally = Tally()
        for number in range(seed, seed + count):
            draw = Draw(number)
            door = draw.choice(("ask", "ask", "load", "load", "publish", "publish", "assemble"))
            source = doors.published / "qwen3" if door == "assemble" else draw.choice((doors.whole, doors.sharded))
            damage = draw.choice([damage for damage in DAMAGES if door != "assemble" or damage is not change_config])
            with tempfile.TemporaryDirectory(dir=root) as folder:
                copy = Path(folder, "model")
                shutil.copytree(source, copy)
                must = damage(draw, copy)
                if damage is spoil and door == "assemble":
                    must = None  # of a tensor that an assembled model leaves out it does not matter
                tally.attempt(
                    number,
                    partial(doors.through, door, copy),
                    name=f"{damage.__name__}, {door} {source.name}",
                    promised=(ValueError, OSError) if door == "load" else ValueError,
                    wording="" if door == "load" else ONE_LINE,
                    check=partial(check, must=must, expected=doors.answer),
                )
    return tally
