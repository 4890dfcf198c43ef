"""Answers as JSON: which questions a schema asks, and which values answers are."""

import json
from typing import Any

import pytest

from arr_coc.serving.answers import Field, as_json, fields_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "total": {"type": "number", "description": "the total with tax"},
        "issueDate": {"type": "string"},
        "paid": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "description": "Was it paid?"},
        "seller": {"$ref": "#/$defs/Seller"},
        "note": {"type": "string"},
    },
    "required": ["total", "issueDate", "paid", "seller"],
    "$defs": {
        "Seller": {
            "type": "object",
            "properties": {"city_name": {"type": ["string", "null"]}, "kind": {"enum": ["Shop", "Bar"]}},
            "required": ["city_name", "kind"],
        }
    },
}


def test_each_field_is_a_question() -> None:
    assert fields_of(SCHEMA) == [
        Field(("total",), "What is the total with tax?", ("number",)),
        Field(("issueDate",), "What is the issue date?", ("string",)),
        Field(("paid",), "Was it paid?", ("boolean", "null")),
        Field(("seller", "city_name"), "What is the city name?", ("string", "null")),
        Field(("seller", "kind"), "What is the kind?", ("string",), ("Shop", "Bar")),
        Field(("note",), "What is the note?", ("string",), required=False),
    ]


@pytest.mark.parametrize(
    ("kinds", "text", "value"),
    [
        (("number",), "$1,234.50", 1234.5),
        (("number",), "1.234,50 EUR", 1234.5),
        (("number",), "12", 12),
        (("integer",), "-3 items", -3),
        (("integer", "null"), "2.5", None),
        (("number", "null"), "12 of 30", None),
        (("boolean",), "Yes.", True),
        (("boolean",), "no", False),
        (("string",), " 12.50 ", "12.50"),
        (("string", "null"), "not on the page", None),
        (("string",), "not on the page", "not on the page"),
    ],
)
def test_values(kinds: tuple[str, ...], text: str, value: Any) -> None:
    found = Field(("x",), "?", kinds).value(text)
    assert found == value and type(found) is type(value)


def test_one_of_some_values_and_what_is_left_out() -> None:
    kind = Field(("seller", "kind"), "?", ("string",), ("Shop", "Bar"))
    assert kind.value("bar") == "Bar"
    with pytest.raises(ValueError, match="seller.kind: expected an answer that is Shop or Bar .*; got 'pub'"):
        kind.value("pub")
    with pytest.raises(ValueError, match="total: expected an answer that is number .let the field be null too"):
        Field(("total",), "?", ("number",)).value("soon")
    fields = fields_of(SCHEMA)
    said = as_json(fields, [12.5, "May", None, None, "Bar", None])
    assert json.loads(said) == {
        "total": 12.5, "issueDate": "May", "paid": None, "seller": {"city_name": None, "kind": "Bar"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string"}, "schema: expected an object with properties; got string"),
        ({"type": "object", "properties": {}}, "expected a schema of 1 to 64 fields; got 0"),
        ({"properties": {"rows": {"type": "array"}}}, "rows: expected type string, .*; got array"),
        (
            {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "number"}]}}},
            "a: expected anyOf one schema",
        ),
        ({"properties": {"a": {"$ref": "#"}}, "$defs": {"#": {"$ref": "#"}}}, "a: expected a JSON schema"),
        ({"properties": {f"f{n}": {} for n in range(65)}}, "1 to 64 fields; got 65"),
    ],
)
def test_schemas_that_are_refused(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^response_format: .*{message}"):
        fields_of(schema)
