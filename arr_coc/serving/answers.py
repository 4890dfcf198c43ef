"""From the tokens of an answer to the client's text, or to JSON by a schema.

For JSON, each field of the schema is one question; all are answered in one batch with one encoding.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.validators import extend

from ..data.records import says_absent
from ..modeling.answers import THINKS, THOUGHT, split_thinking
from ..modeling.extraction import PLAIN, date_in, number_in, question_about, truth_of

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # the tokenizer's text for a character whose last bytes are still missing


class AnswerText:
    """The text of one answer as `generate` returns it, cut before the first of the stop strings. `stopped`: whether a
    stop string was found."""

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

    def ended(self, tokens: Sequence[int]) -> int:
        """The number of tokens up to the end of a stop string; all of them if there is none."""

        def stops(count: int) -> bool:
            self.text(tokens[:count])
            return self.stopped

        if stops(len(tokens)):
            tokens = tokens[: bisect_left(range(1, len(tokens)), True, key=stops) + 1]
            self.stopped = True
        return len(tokens)

    def _written(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)

    def cut(self, text: str) -> str:
        """The text of a finished answer, for the client."""
        ends = [place for string in self.stop if (place := text.find(string)) >= 0]
        self.stopped = bool(ends)
        return (text[: min(ends)] if ends else text).strip()

    def more(self, tokens: Sequence[int], finished: bool) -> str:
        """The text to send next, from all tokens so far; later tokens and stop strings cannot change it. Thinking is
        not sent."""
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


MAX_FIELDS = 64  # the most fields of a schema; each field is a question
KINDS = ("string", "number", "integer", "boolean", "null")

NOTES = {"$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "title"}
"""Keywords that change nothing."""
OF_OBJECTS = {*NOTES, "$defs", "additionalProperties", "definitions", "properties", "required", "type"}
OF_FIELDS = {*NOTES} | set(
    "const enum exclusiveMaximum exclusiveMinimum format maxLength maximum minLength minimum multipleOf type".split()
)
"""Keywords that are obeyed. `pattern` is not: a client's expression may take for ever."""
FORMATS = Draft202012Validator.FORMAT_CHECKER


def _multiple_of(validator: Any, divisor: float, number: Any, schema: Any) -> Iterator[ValidationError]:
    """As money is printed: 0.29 is a multiple of 0.01, which it is not among floats."""
    if validator.is_type(number, "number") and Fraction(str(number)) % Fraction(str(divisor)):
        yield ValidationError(f"{number} is not a multiple of {divisor}")


VALIDATOR = extend(Draft202012Validator, {"multipleOf": _multiple_of})


@dataclass(frozen=True)
class SchemaField:
    """A field of a schema."""

    path: tuple[str, ...]  # the names from the outermost object to the field
    # its description if that is a question or an instruction, else a question made of its description or name, or of
    # all names of its path where several fields would have one question
    question: str
    kinds: tuple[str, ...]  # its JSON types, names of `KINDS`
    values: tuple[Any, ...] = ()  # the allowed values; empty: any
    required: bool = True  # whether it must be present; an optional field without a value is omitted
    limits: Mapping[str, Any] = field(default_factory=dict, compare=False)  # the field's schema, which its values obey
    # how many of the outermost objects of its path must be present, even without a field
    held: int = field(default=0, compare=False)

    @property
    def needed(self) -> bool:
        """Whether the field can be neither null nor omitted."""
        return self.required and "null" not in self.kinds

    def value(self, text: str, cut: bool = False) -> Any:
        """The field's value in an answer; None if the page has none, and the field can be null or omitted. `cut`:
        whether the answer was ended by `max_tokens`.

        Raises:
            ValueError: the answer is no value of the field, or may not be the whole one.
        """
        name = ".".join(self.path)
        if cut:
            raise ValueError(f"{name}: expected a whole answer; got {text!r}, which max_tokens cut")
        if says_absent(text):
            if self.needed:
                raise ValueError(f"{name}: expected an answer that is on the page; got {text!r}")
            return None
        found = self._parsed(text.strip())
        if found is None:
            wanted = " or ".join(map(str, self.values or self.kinds))
            raise ValueError(f"{name}: expected an answer that is {wanted}; got {text!r}")
        for error in VALIDATOR(self.limits, format_checker=FORMATS).iter_errors(found):
            raise ValueError(f"{name}: expected an answer that its schema allows; got {text!r}: {error.message}")
        return found

    def _parsed(self, text: str) -> Any:
        if self.values:
            return next((value for value in self.values if _says(text, value)), None)
        if {"number", "integer"} & {*self.kinds} and not ("string" in self.kinds and not PLAIN.fullmatch(text)):
            number = number_in(text)
            if isinstance(number, int) or (number is not None and "number" in self.kinds):
                return number
        if "boolean" in self.kinds and (told := truth_of(text)) is not None:
            return told
        if self.limits.get("format") == "date" and (day := date_in(text)) is not None:
            return day.isoformat()
        return text if "string" in self.kinds else None


def _says(text: str, value: Any) -> bool:
    """Whether a text stands for a value of an enumeration."""
    if isinstance(value, bool):
        return truth_of(text) is value
    if isinstance(value, int | float):
        return number_in(text) == value
    return str(value).casefold() == text.casefold()


def fields_of(schema: Mapping[str, Any]) -> list[SchemaField]:
    """The fields of an object's JSON schema in order, those of nested objects included. Raises ValueError: no schema,
    one with lists or with keywords that would not be obeyed, or one with more than `MAX_FIELDS` fields."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = ".".join(map(str, error.absolute_path)) or "schema"
        raise ValueError(f"response_format: {place[:80]}: expected a JSON schema; got {error.message[:200]}") from None
    found = list(_fields(schema, schema, ()))
    if not 1 <= len(found) <= MAX_FIELDS:
        raise ValueError(f"response_format: expected a schema of 1 to {MAX_FIELDS} fields; got {len(found)}")
    asked = Counter(own.question for own in found)
    return [own if asked[own.question] == 1 else replace(own, question=_question(own.path, "")) for own in found]


def _fields(
    schema: Any, root: Mapping[str, Any], path: tuple[str, ...], required: bool = True, held: int = 0
) -> Iterator[SchemaField]:
    place = f"response_format: {'.'.join(path) or 'schema'}"
    if len(path) > 8:
        raise ValueError(f"{place[:80]}: expected objects in at most 8 objects; got more")
    schema, nullable = _plain(schema, root, place)
    known = OF_OBJECTS if "properties" in schema else OF_FIELDS | ({"$defs", "definitions"} if not path else set())
    if others := sorted(set(schema) & {*Draft202012Validator.VALIDATORS} - known):
        expected = ", ".join(sorted(known - NOTES))
        raise ValueError(f"{place}: expected keywords among {expected}; got {', '.join(others)}")
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if "properties" in schema:
        if nullable or kinds != ("object",):
            raise ValueError(f"{place}: expected an object that is always there; got another")
        needed = schema.get("required", ())
        if others := sorted({*needed} - {*schema["properties"]}):
            raise ValueError(f"{place}: expected required names among its properties; got {', '.join(others)}")
        held = len(path) if required else held
        for name, part in schema["properties"].items():
            yield from _fields(part, root, (*path, str(name)), required and name in needed, held)
        return
    values = tuple(schema["enum"]) if "enum" in schema else (schema["const"],) if "const" in schema else ()
    unknown = [kind for kind in kinds if kind not in KINDS]
    if not path or unknown:
        expected = "an object with properties" if not path else f"type {', '.join(KINDS)}, or an object with properties"
        raise ValueError(f"{place}: expected {expected}; got {', '.join(map(str, unknown or kinds))}")
    if values:
        kinds = tuple(kind for kind in kinds if kind != "null" or None in values)
        typed = Draft202012Validator({"type": schema["type"]} if "type" in schema else {})
        values = tuple(value for value in values if value is not None and typed.is_valid(value))
    if ("enum" in schema or "const" in schema) and not values:
        raise ValueError(f"{place}: expected values of its type; got none")
    if (form := schema.get("format")) is not None and form not in FORMATS.checkers:
        raise ValueError(f"{place}: expected a format among {', '.join(sorted(FORMATS.checkers))}; got {form}")
    kinds += ("null",) if nullable else ()
    limits = {key: value for key, value in schema.items() if key in OF_FIELDS - NOTES - {"type"}}
    question = _question(path[-1:], str(schema.get("description") or ""))
    yield SchemaField(path, question, kinds, values, required, limits, held)


def _plain(schema: Any, root: Mapping[str, Any], place: str) -> tuple[Mapping[str, Any], bool]:
    """A schema without references and without "or null", and whether it had "or null"."""
    nullable = False
    for _ in range(8):
        if not isinstance(schema, Mapping):
            break
        word = next((word for word in ("$ref", "anyOf", "oneOf", "allOf") if word in schema), None)
        if word is None:
            return schema, nullable
        beside = {key: value for key, value in schema.items() if key != word}
        if word == "$ref":
            others = [_referred(schema[word], root, place)]
        else:
            others = [own for own in schema[word] if word == "allOf" or own != {"type": "null"}]
            if len(others) != 1 or not isinstance(others[0], Mapping):
                expected = "one schema" if word == "allOf" else "one schema and null"
                raise ValueError(f"{place}: expected {word} {expected}; got {len(others)} schemas")
            nullable |= len(others) < len(schema[word])
        twice = [key for key in beside if key not in NOTES and others[0].get(key, beside[key]) != beside[key]]
        if twice:
            raise ValueError(f"{place}: expected no other {', '.join(sorted(twice))} beside {word}; got two")
        schema = {**others[0], **beside}
    raise ValueError(f"{place}: expected a JSON schema; got another")


def _referred(name: str, root: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The part of the schema that a reference such as "#/$defs/Seller" names."""
    found: Any = root
    for part in name.split("/")[1:]:
        found = found.get(part) if isinstance(found, Mapping) else None
    if not name.startswith("#/") or not isinstance(found, Mapping):
        raise ValueError(f"{place}: expected a $ref to a part of this schema, as #/$defs/NAME; got {name!r}")
    return found


def _question(path: Sequence[str], description: str) -> str:
    return question_about(description or re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", " ".join(path)).lower())


def as_object(fields: Sequence[SchemaField], values: Sequence[Any]) -> dict[str, Any]:
    """The JSON object of the fields' values."""
    whole: dict[str, Any] = {}
    for own, value in zip(fields, values, strict=True):
        left_out = value is None and "null" not in own.kinds
        inner = whole
        for name in own.path[: own.held if left_out else -1]:
            inner = inner.setdefault(name, {})
        if not left_out:
            inner[own.path[-1]] = value
    return whole


def misfit(whole: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """What an object lacks that a schema asks for, as an optional object without a field that it needs."""
    error = best_match(VALIDATOR(schema).iter_errors(whole))
    if error is None:
        return None
    place = ".".join(map(str, error.absolute_path)) or "schema"
    return f"{place}: expected an object that the schema allows; got one of which {error.message[:200]}"
