"""From the tokens of an answer to what a client gets: its text as far as it may be seen, or JSON by a schema.

For JSON each field of the schema is a question of its own, all in one batch about one encoding.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.records import NOT_ON_THE_PAGE
from ..modeling.answers import THINKS, THOUGHT, split_thinking

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer writes for a character of which some bytes are still to come."""


class AnswerText:
    """The text of one answer, as `generate` gives it, cut before the first stop string.

    Args:
        tokenizer: that reads the tokens.
        stop: strings that end the answer.

    Attributes:
        stopped: whether one of them came.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.stopped = False
        self._shown = ""

    def text(self, tokens: Sequence[int], finished: bool = True) -> str:
        """The text of an answer's tokens; of one that is not finished, without what may begin a thought."""
        written = self._written(tokens)
        if not finished and THINKS.startswith(written.lstrip()):
            return self.cut("")
        return self.cut(split_thinking(written)[1])

    def thought(self, tokens: Sequence[int]) -> int:
        """How many of the tokens were thought before the answer."""
        if not self._written(tokens).lstrip().startswith(THINKS):
            return 0
        counts = range(1, len(tokens) + 1)
        ended = bisect_left(counts, True, key=lambda count: THOUGHT in self._written(tokens[:count]))
        return min(ended + 1, len(tokens))

    def _written(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def cut(self, text: str) -> str:
        """A finished answer's text as it is shown."""
        ends = [place for string in self.stop if (place := text.find(string)) >= 0]
        self.stopped = bool(ends)
        return (text[: min(ends)] if ends else text).strip()

    def more(self, tokens: Sequence[int], finished: bool) -> str:
        """What may be shown beyond what was: nothing that later tokens could change or a stop string could take back.

        What is thought before an answer is not shown.

        Args:
            tokens: all so far.
            finished: whether no more will come.
        """
        text = self.text(tokens, finished)
        if not finished and not self.stopped:
            text = text.rstrip(UNFINISHED)
            held = max((_overlap(text, string) for string in self.stop), default=0)
            text = text[: len(text) - held].rstrip()
        more = text[len(self._shown) :]
        self._shown = text if more else self._shown
        return more


def _overlap(text: str, string: str) -> int:
    """Characters at the end of `text` with which `string` could begin."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)


MAX_FIELDS = 64
"""Of one schema: each is a question."""

KINDS = ("string", "number", "integer", "boolean", "null")
_TRUE, _FALSE = ("yes", "true"), ("no", "false")


@dataclass(frozen=True)
class Field:
    """A value that is asked for.

    Attributes:
        path: its names from the outermost object on.
        question: what is asked: its description where that is a question, else made of its description or name.
        kinds: its JSON types, of `KINDS`.
        values: those that it may have, or none: any.
        required: whether it has to be there; else it is left out where there is no value.
    """

    path: tuple[str, ...]
    question: str
    kinds: tuple[str, ...]
    values: tuple[Any, ...] = ()
    required: bool = True

    def value(self, text: str) -> Any:
        """The value that an answer says; None where it says none of the field's kind, and none need be there.

        Raises:
            ValueError: it says none, and the field may not be null.
        """
        found = None if text == NOT_ON_THE_PAGE else self._parsed(text.strip())
        if found is None and self.required and "null" not in self.kinds:
            if text == NOT_ON_THE_PAGE and "string" in self.kinds and not self.values:
                return text
            wanted = " or ".join(map(str, self.values or self.kinds))
            expected = f"an answer that is {wanted} (let the field be null too, where it may be missing)"
            raise ValueError(f"response_format: {'.'.join(self.path)}: expected {expected}; got {text!r}")
        return found

    def _parsed(self, text: str) -> Any:
        if self.values:
            return next((value for value in self.values if str(value).casefold() == text.casefold()), None)
        number = _number(text) if {"number", "integer"} & {*self.kinds} else None
        if number is not None and (number.is_integer() or "number" in self.kinds):
            return int(number) if number.is_integer() else number
        if "boolean" in self.kinds and text.casefold().rstrip(".") in (*_TRUE, *_FALSE):
            return text.casefold().rstrip(".") in _TRUE
        return text if "string" in self.kinds else None


def _number(text: str) -> float | None:
    """The only number in a text: "$1,234.50" is 1234.5; a comma before one or two last digits is a decimal point."""
    found = re.findall(r"-?\d[\d.,]*", text.replace(" ", ""))
    if len(found) != 1:
        return None
    digits = found[0].rstrip(".,")
    if re.fullmatch(r"-?[\d.]*,\d{1,2}", digits):
        digits = digits.replace(".", "").replace(",", ".")
    digits = digits.replace(",", "")
    return float(digits) if digits.count(".") <= 1 else None


def fields_of(schema: Mapping[str, Any]) -> list[Field]:
    """The fields of an object's JSON schema, those of objects in it too, in order.

    Raises:
        ValueError: a schema of something else, or with lists, or of more than `MAX_FIELDS` fields.
    """
    found = list(_fields(schema, schema, ()))
    if not 1 <= len(found) <= MAX_FIELDS:
        raise ValueError(f"response_format: expected a schema of 1 to {MAX_FIELDS} fields; got {len(found)}")
    return found


def _fields(schema: Any, root: Mapping[str, Any], path: tuple[str, ...], required: bool = True) -> Iterator[Field]:
    place = f"response_format: {'.'.join(path) or 'schema'}"
    if len(path) > 8:
        raise ValueError(f"{place[:80]}: expected objects in at most 8 objects; got more")
    schema, nullable = _plain(schema, root, place)
    if "properties" in schema:
        if nullable or not isinstance(schema["properties"], Mapping):
            raise ValueError(f"{place}: expected an object that is always there; got another")
        for name, part in schema["properties"].items():
            yield from _fields(part, root, (*path, str(name)), required and name in schema.get("required", ()))
        return
    values = tuple(schema["enum"]) if "enum" in schema else (schema["const"],) if "const" in schema else ()
    kinds = schema.get("type", "string")
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if not path or unknown:
        expected = "an object with properties" if not path else f"type {', '.join(KINDS)}, or an object with properties"
        raise ValueError(f"{place}: expected {expected}; got {', '.join(map(str, unknown or kinds))}")
    kinds += ("null",) if nullable else ()
    yield Field(path, _question(path, str(schema.get("description") or "")), kinds, values, required)


def _plain(schema: Any, root: Mapping[str, Any], place: str) -> tuple[Mapping[str, Any], bool]:
    """A schema without references and without "or null", and whether that was there."""
    nullable = False
    for _ in range(8):
        if not isinstance(schema, Mapping):
            break
        if "$ref" in schema:
            name = str(schema["$ref"]).removeprefix("#/$defs/")
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            schema = {**root.get("$defs", {}).get(name, {}), **beside}
        elif "anyOf" in schema:
            others = [own for own in schema["anyOf"] if own != {"type": "null"}]
            if len(others) != 1:
                raise ValueError(f"{place}: expected anyOf one schema and null; got {len(others)} schemas")
            nullable |= len(others) < len(schema["anyOf"])
            schema = {**others[0], **{key: value for key, value in schema.items() if key != "anyOf"}}
        else:
            return schema, nullable
    raise ValueError(f"{place}: expected a JSON schema; got another")


def _question(path: Sequence[str], description: str) -> str:
    if description.rstrip().endswith("?"):
        return description.strip()
    name = description.strip().rstrip(".") or re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", path[-1]).lower()
    return f"What is {name}?" if name.lower().startswith("the ") else f"What is the {name}?"


def as_json(fields: Sequence[Field], values: Sequence[Any]) -> str:
    """One JSON object of the fields' values."""
    whole: dict[str, Any] = {}
    for field, value in zip(fields, values, strict=True):
        if value is None and "null" not in field.kinds:
            continue
        inner = whole
        for name in field.path[:-1]:
            inner = inner.setdefault(name, {})
        inner[field.path[-1]] = value
    return json.dumps(whole, ensure_ascii=False)
