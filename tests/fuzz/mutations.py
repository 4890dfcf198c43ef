"""Damage to a file, drawn at random: bytes of any file, values and names of JSON and YAML, tensors' headers."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, 1e308, float("nan"), float("inf"), 0.5, "", "x", "../../etc/passwd"),
    *("/dev/zero", "\ud800", [], [[]], [None], [0, 1], {}, {"a": {}}, {"": None}),
)
"""Values that a setting seldom has."""


def mutate(path: Path, drawn: random.Random) -> str:
    """Damages a file in place; returns what was done, in words."""
    kinds = {".json": _mutate_structure, ".yaml": _mutate_structure, ".jsonl": _mutate_lines}
    structured = {**kinds, ".safetensors": _mutate_header}.get(path.suffix)
    change = structured if structured is not None and drawn.random() < 0.7 else _mutate_bytes
    return f"{path.name}: {change(path, drawn)}"


def _mutate_bytes(path: Path, drawn: random.Random) -> str:
    content = bytearray(path.read_bytes())
    kind = drawn.choice(("flip", "cut", "insert", "empty", "noise", "pickle", "double", "gone", "folder"))
    at = drawn.randrange(len(content) + 1)
    match kind:
        case "flip" if content:
            for _ in range(drawn.choice((1, 1, 8))):
                content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        case "cut":
            del content[at:]
        case "insert":
            content[at:at] = drawn.randbytes(drawn.choice((1, 16, 300)))
        case "empty":
            content.clear()
        case "noise":
            content[:] = drawn.randbytes(200)
        case "pickle":
            content[:] = b"\x80\x04cos\nsystem\nX\x04\x00\x00\x00true\x85R."
        case "double":
            content *= 2
        case "gone" | "folder":
            path.unlink()
            if kind == "folder":
                path.mkdir()
            return kind
    path.write_bytes(content)
    return f"{kind} at {at}"


def _mutate_structure(path: Path, drawn: random.Random) -> str:
    load, dump = (yaml.safe_load, yaml.safe_dump) if path.suffix == ".yaml" else (json.loads, json.dumps)
    held, said = _mutate_value(load(path.read_text()), drawn)
    path.write_text(dump(held))
    return said


def _mutate_lines(path: Path, drawn: random.Random) -> str:
    lines = path.read_text().splitlines()
    if not lines:
        return "nothing to change"
    at = drawn.randrange(len(lines))
    held, said = _mutate_value(json.loads(lines[at]), drawn)
    lines[at] = json.dumps(held)
    path.write_text("\n".join(lines) + "\n")
    return f"line {at + 1}: {said}"


def _mutate_header(path: Path, drawn: random.Random) -> str:
    """Changes what safetensors says of its tensors; their bytes stay."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    held, said = _mutate_value(json.loads(content[8 : 8 + length]), drawn)
    header = json.dumps(held).encode()
    size = len(header) if drawn.random() < 0.9 else drawn.choice((0, 2**40, len(content)))
    path.write_bytes(struct.pack("<Q", size) + header + content[8 + length :])
    return said


def _mutate_value(held: Any, drawn: random.Random) -> tuple[Any, str]:
    """The value with one place in it changed, and what was changed."""
    places: list[tuple[str, Callable[[Any], Any]]] = [("all", lambda _: drawn.choice(ODD))]
    _list_places(held, "", places)
    name, put = drawn.choice(places)
    value = drawn.choice(ODD)
    changed = put(value)
    return (changed if name == "all" else held), f"{name} = {value!r}"


def _list_places(held: Any, where: str, places: list[tuple[str, Callable[[Any], Any]]]) -> None:
    """Everywhere in a value where another can be put, be left out, or get another name."""
    items = list(held.items() if isinstance(held, dict) else enumerate(held) if isinstance(held, list) else ())
    for key, value in items:
        name = f"{where}.{key}"
        places.append((name, lambda odd, key=key: held.__setitem__(key, odd)))
        if isinstance(held, dict):
            places.append((f"{name} gone, and", lambda _, key=key: held.pop(key)))
        _list_places(value, name, places)
