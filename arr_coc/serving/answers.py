"""From the tokens of an answer to the client's text, or to JSON by a schema.

For JSON, each field of the schema is one question; all are answered in one batch with one encoding.
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
"""The tokenizer's text for a character whose last bytes are still missing."""


class AnswerText:
    """The text of one answer as `generate` returns it, cut before the first stop string.

    Args:
        tokenizer: decodes the tokens.
        stop: strings that end the answer.

    Attributes:
        stopped: whether a stop string was found.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.stopped = False
        self._shown = ""

    def text(self, tokens: Sequence[int], finished: bool = True) -> str:
        """The text of an answer's tokens; an unfinished answer omits a possible start of thinking."""
        written = self._written(tokens)
        if not finished and THINKS.startswith(written.lstrip()):
            return self.cut("")
        return self.cut(split_thinking(written)[1])

    def thought(self, tokens: Sequence[int]) -> int:
        """The number of thinking tokens before the answer."""
        if not self._written(tokens).lstrip().startswith(THINKS):
            return 0
        counts = range(1, len(tokens) + 1)
        ended = bisect_left(counts, True, key=lambda count: THOUGHT in self._written(tokens[:count]))
        return min(ended + 1, len(tokens))

    def _written(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def cut(self, text: str) -> str:
        """The text of a finished answer, for the client."""
        ends = [place for string in self.stop if (place := text.find(string)) >= 0]
        self.stopped = bool(ends)
        return (text[: min(ends)] if ends else text).strip()

    def more(self, tokens: Sequence[int], finished: bool) -> str:
        """The text to send next. Later tokens and stop strings cannot change it. Thinking is not sent.

        Args:
            tokens: all tokens so far.
            finished: whether these are all tokens.
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
    """The number of characters at the end of `text` that can be the start of `string`."""
    return next((n for n in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:n])), 0)


MAX_FIELDS = 64
"""The most fields of a schema; each field is a question."""

KINDS = ("string", "number", "integer", "boolean", "null")
_TRUE, _FALSE = ("yes", "true"), ("no", "false")


@dataclass(frozen=True)
class Field:
    """A field of a schema.

    Attributes:
        path: the names from the outermost object to the field.
        question: its description if that is a question, else a question made of its description or name.
        kinds: its JSON types, names of `KINDS`.
        values: the allowed values; empty: any.
        required: whether it must be present; an optional field without a value is omitted.
    """

    path: tuple[str, ...]
    question: str
    kinds: tuple[str, ...]
    values: tuple[Any, ...] = ()
    required: bool = True

    @property
    def needed(self) -> bool:
        """Whether the field can be neither null nor omitted."""
        return self.required and "null" not in self.kinds

    def value(self, text: str, cut: bool = False) -> Any:
        """The field's value in an answer; None if the page has none, and the field can be null or omitted.

        Args:
            text: the answer.
            cut: whether it was ended by `max_tokens`.

        Raises:
            ValueError: the answer is no value of the field, or may not be the whole one.
        """
        name = ".".join(self.path)
        if cut:
            raise ValueError(f"{name}: expected a whole answer; got {text!r}, which max_tokens cut")
        if text == NOT_ON_THE_PAGE and not self.needed:
            return None
        found = self._parsed(text.strip())
        if found is None:
            wanted = " or ".join(map(str, self.values or self.kinds))
            raise ValueError(f"{name}: expected an answer that is {wanted}; got {text!r}")
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
    """The fields of an object's JSON schema in order, those of nested objects included.

    Raises:
        ValueError: another kind of schema, one with lists, or one with more than `MAX_FIELDS` fields.
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
    """A schema without references and without "or null", and whether it had "or null"."""
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
    """A JSON object of the fields' values."""
    whole: dict[str, Any] = {}
    for field, value in zip(fields, values, strict=True):
        if value is None and "null" not in field.kinds:
            continue
        inner = whole
        for name in field.path[:-1]:
            inner = inner.setdefault(name, {})
        inner[field.path[-1]] = value
    return json.dumps(whole, ensure_ascii=False)
