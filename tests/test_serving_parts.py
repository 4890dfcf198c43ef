"""Parts of the server by themselves: what guards it, ids of image tokens, text and JSON that may be shown, affinity."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from helpers import Cli, png, refuses, tiny_tokenizer
from serving_client import chat, data_url, noise
from starlette.responses import JSONResponse
from starlette.types import Message
from torch import nn

from arr_coc.cli.serve import KEYS_VARIABLE, _keys
from arr_coc.serving.answers import AnswerText, SchemaField, as_object, fields_of, misfit
from arr_coc.serving.batched_model import LARGEST_ID, TokenRows
from arr_coc.serving.encodings import HANDLE, affinity_key, by_affinity, handle_of
from arr_coc.serving.examples import load_hook
from arr_coc.serving.guard import Guard
from arr_coc.serving.metrics import Metrics, length_label
from arr_coc.serving.protocol import error_body, invalid_field
from arr_coc.serving.settings import ServerSettings, UseSettings


# ---- the guard
async def echo(scope: Message, receive: Any, send: Any) -> None:
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def guarded(
    settings: ServerSettings,
    chunks: list[bytes | float],
    *,
    headers: dict[str, str] | None = None,
    path: str = "/v1/x",
    prepare: Callable[[Guard], None] = lambda guard: None,
) -> tuple[int, bytes, dict[bytes, bytes]]:
    """Sends a body in pieces (a number: seconds of silence); gives status, body and headers of the answer."""
    sent: list[Message] = []
    pieces = iter(chunks)

    async def receive() -> Message:
        for piece in pieces:
            if not isinstance(piece, float):
                return {"type": "http.request", "body": piece, "more_body": piece != chunks[-1]}
            await asyncio.sleep(piece)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    guard = Guard(echo, settings, Metrics())
    prepare(guard)
    listed = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    asyncio.run(guard({"type": "http", "path": path, "headers": listed}, receive, send))
    if not sent:
        return 0, b"", {}
    return sent[0]["status"], sent[1]["body"], dict(sent[0]["headers"])


def test_bodies_arrive_whole_in_time_and_with_a_key() -> None:
    assert guarded(ServerSettings(), [b"ab", b"cd", b"e"])[:2] == (200, b"abcde")
    settings = ServerSettings(body_seconds=0.05)
    assert guarded(settings, [b"a", 1.0, b"b"])[0] == 408
    assert guarded(ServerSettings(), [b"a", 0.0])[0] == 0
    settings = ServerSettings(api_keys=("first", "second"))
    assert guarded(settings, [b"x"], headers={"Authorization": "Bearer second"})[0] == 200
    for header in ("Bearer third", "Basic second", "second", "Bearer ", "Bearer seco\u00f6d"):
        assert guarded(settings, [b"x"], headers={"Authorization": header})[0] == 401
    assert guarded(settings, [b"x"])[0] == 401
    assert guarded(settings, [b"x"], path="/healthz")[0] == 200


@pytest.mark.parametrize(
    ("headers", "chunks"),
    [({"Content-Length": "11"}, [b"x"]), ({}, [b"12345", b"678901"]), ({"Content-Length": "-1"}, [])],
)
def test_large_bodies_are_not_read_to_their_end(headers: dict[str, str], chunks: list[bytes | float]) -> None:
    status, body, answered = guarded(ServerSettings(max_body=10), chunks, headers=headers)
    assert status == 413 and b"expected at most 10 bytes" in body and answered[b"connection"] == b"close"


def test_a_server_that_is_full_takes_nothing() -> None:
    def fill(guard: Guard) -> None:
        guard.open = 1

    status, body, headers = guarded(ServerSettings(max_open=1), [b"x"], prepare=fill)
    assert (status, headers[b"retry-after"]) == (429, b"1") and json.loads(body)["error"]["type"] == "server_error"
    assert guarded(ServerSettings(max_open=1), [b"x"], path="/readyz", prepare=fill)[0] == 200


# ---- ids
def test_ids_stand_for_rows_never_come_again_and_stay_within_32_bits() -> None:
    rows = TokenRows(nn.Embedding(10, 4), 10, 6)
    first, second = torch.randn(3, 4), torch.randn(2, 4)
    ids, others = rows.take(first), rows.take(second)
    text = torch.tensor([[3, *ids, *others, 9]], dtype=torch.int32)
    expected = torch.cat((rows.embedding(torch.tensor([3])), first, second, rows.embedding(torch.tensor([9]))))
    assert torch.equal(rows(text)[0], expected) and rows.free == 1
    seen = {*ids, *others}
    for _ in range(20):
        rows.release(ids)
        ids = rows.take(first)
        assert not seen & {*ids} and torch.equal(rows(torch.tensor(ids)), first)
        seen |= {*ids}
    refuses("rows: expected at most 1 tokens, which are free; got 2", rows.take, second)
    rows = TokenRows(nn.Embedding(10, 4), 10, 2)
    rows._uses = [rows._rounds - 1, rows._rounds]
    ids = rows.take(torch.randn(2, 4))
    assert max(ids) <= LARGEST_ID and ids[1] == 11


# ---- text
@pytest.mark.parametrize("stop", [(), ("wo",), ("world", "lo w"), ("x",), ("\u00fcs",)])
def test_pieces_make_up_the_text_and_are_never_taken_back(stop: tuple[str, ...]) -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer("  Hello world, gr\u00fcs dich \U0001f600 ! ").input_ids
    shown, pieces = AnswerText(tokenizer, stop), []
    for count in range(1, len(tokens) + 1):
        pieces.append(shown.more(tokens[:count], count == len(tokens)))
        if shown.stopped:
            break
    whole = "Hello world, gr\u00fcs dich \U0001f600 !"
    ends = [whole.find(string) for string in stop if string in whole]
    assert "".join(pieces) == (whole[: min(ends)].strip() if ends else whole)
    assert shown.stopped is bool(ends) and sum(map(bool, pieces)) > 2
    assert shown.ended(tokens) == count and shown.stopped is bool(ends)


@pytest.mark.parametrize(
    ("written", "stop", "said"),
    [
        ("<think>is it 8 or 9?</think>\n\n it is 9", (), "it is 9"),
        ("<think>is it 8 or 9?</think>it is 9", ("8", "9"), "it is"),
        ("<think>is it 8 or", (), ""),
        ("<they> said 9", (), "<they> said 9"),
        ("<think>8</think>7 < 9", ("<",), "7"),
    ],
)
def test_thinking_is_not_shown_as_it_comes(written: str, stop: tuple[str, ...], said: str) -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer(written).input_ids
    shown = AnswerText(tokenizer, stop)
    pieces = []
    for count in range(1, len(tokens) + 1):
        shown.text(tokens[:count], count == len(tokens))  # as the server looks for stops
        if shown.stopped:
            pieces.append(shown.more(tokens[:count], True))
            break
        pieces.append(shown.more(tokens[:count], count == len(tokens)))
    assert "".join(pieces) == said == AnswerText(tokenizer, stop).text(tokens)
    assert shown.stopped is bool(stop)


# ---- settings
def test_settings_are_positive_and_lengths_have_names(cli: Cli, tmp_path: Any) -> None:
    refuses("max_body: expected a positive number; got 0", ServerSettings, max_body=0)
    refuses("answer_seconds: expected a positive number; got nan", ServerSettings, answer_seconds=float("nan"))
    assert [length_label(tokens) for tokens in (1, 128, 129, 9000)] == ["128", "128", "256", "more"]
    assert cli("serve", tmp_path / "typo")[0] == 2
    code, _, err = cli("serve", "--max-body", "0")
    assert (code, err) == (2, "arr-coc: error: max_body: expected a positive number; got 0\n")


def test_keys_come_from_a_file_or_the_environment(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, "a, b,")
    assert _keys(None) == ("a", "b")
    (tmp_path / "keys").write_text("c\n\n d \n")
    assert _keys(str(tmp_path / "keys")) == ("c", "d")
    (tmp_path / "none").write_text("\n")
    refuses("^--api-keys: expected a file with a key per line; got none", _keys, str(tmp_path / "none"))


SECRET = b"secret of all servers"
CONTENT = png(noise(0))


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_an_image_has_one_key_however_it_is_sent() -> None:
    handle = handle_of(hashlib.sha256(CONTENT).digest(), SECRET)
    asked = body(model="tiny", messages=chat("Who?", data_url(CONTENT), data_url(png(noise(1)))))
    assert affinity_key(asked, SECRET) == affinity_key(body(image=data_url(CONTENT)), SECRET) == handle
    assert affinity_key(body(model="tiny", messages=chat("Who?", HANDLE + handle)), SECRET) == handle
    assert affinity_key(asked, b"another secret") != handle
    url = "https://a.example/b.png"
    assert affinity_key(body(model="tiny", messages=chat("Who?", url)), SECRET) == url
    servers, keys = [f"server {number}" for number in range(4)], [str(number) for number in range(2000)]
    first = {key: by_affinity(key, servers)[0] for key in keys}
    assert all(400 < count < 600 for count in Counter(first.values()).values())
    fewer = [name for name in servers if name != "server 2"]
    for key in keys:
        assert by_affinity(key, fewer)[0] == (first[key] if first[key] != "server 2" else by_affinity(key, servers)[1])
    assert by_affinity("a", reversed(servers)) == by_affinity("a", servers)


@pytest.mark.parametrize(
    "request_body",
    (
        [b"", b"no JSON", b"[" * 100_000, b"null", b"{}", body(messages="x"), body(messages=[{"content": "text"}])]
        + [body(messages=[{"content": [{"type": "image_url"}]}]), body(image="data:image/png;base64,@")]
    ),
)
def test_what_cannot_be_read_has_no_key(request_body: bytes) -> None:
    """A server says why; the gateway must not end over it."""
    assert affinity_key(request_body, SECRET) == ""


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "total": {"type": "number", "description": "the total with tax"},
        "issueDate": {"type": "string"},
        "paid": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "description": "Was it paid?"},
        "seller": {"$ref": "#/$defs/Seller"},
        "note": {"type": "string"},
        "code": {"type": "string", "description": "Copy the code below the name."},
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


def test_an_error_about_half_a_surrogate_can_be_sent() -> None:
    """The body that it came in was answered with status 500."""
    name, value = "\ud800", "\udfff"
    error = {"type": "extra_forbidden", "loc": ("body", name), "msg": "", "input": value}
    field, message = invalid_field([error], {name: value})
    sent = json.loads(JSONResponse(error_body(message, "invalid_request_error", param=field)).body)["error"]
    assert sent["param"] == r"\ud800" and sent["message"] == r'\ud800: expected no such field; got "\udfff"'


def test_each_field_is_a_question() -> None:
    assert fields_of(SCHEMA) == [
        SchemaField(("total",), "What is the total with tax?", ("number",)),
        SchemaField(("issueDate",), "What is the issue date?", ("string",)),
        SchemaField(("paid",), "Was it paid?", ("boolean", "null")),
        SchemaField(("seller", "city_name"), "What is the city name?", ("string", "null")),
        SchemaField(("seller", "kind"), "What is the kind?", ("string",), ("Shop", "Bar")),
        SchemaField(("note",), "What is the note?", ("string",), required=False),
        SchemaField(("code",), "Copy the code below the name.", ("string",), required=False),
    ]
    # Seller and buyer got the same value.
    party = {"properties": {"name": {}, "vatId": {"description": "What is its VAT number?"}}}
    schema = {"properties": {"seller": {"$ref": "#/$defs/P"}, "buyer": {"$ref": "#/$defs/P"}, "total": {}}}
    assert [field.question for field in fields_of({**schema, "$defs": {"P": party}})] == [
        "What is the seller name?",
        "What is the seller vat id?",
        "What is the buyer name?",
        "What is the buyer vat id?",
        "What is the total?",
    ]


@pytest.mark.parametrize(
    ("kinds", "text", "value"),
    (
        [("number", "$1,234.50", 1234.5), ("number", "1.234,50 EUR", 1234.5), ("number", "12", 12)]
        + [("number", "1,50,000", 150000), ("number", "12 m", 12), ("integer", "-3 items", -3)]
        + [("boolean", "Yes.", True), ("boolean", "no", False), ("string", " 12.50 ", "12.50")]
        + [("string null", "Not on the page", None), ("number", "-$12.50", -12.5), ("number", "\u221212.50", -12.5)]
        + [("number", "($12.50)", -12.5), ("number", "$(12.50)", -12.5), ("number", "EUR (12,50)", -12.5)]
        + [("number", "\u201312.50", -12.5), ("number", "12.50-", -12.5), ("number", "- EUR 3", -3)]
        + [("number", "$-3", -3), ("number", "Tax -3", -3), ("number", "Tax - 3", 3), ("number", "$3 - paid", 3)]
        + [("number", "$.50", 0.5), ("number", "No.5", 5), ("number", "EUR12.50", 12.5)]
        + [("number", "1 234 567,5 kr", 1234567.5), ("number", "2 pages", 2)]
        + [("integer", "9007199254740993", 9007199254740993), ("number", "1" * 400, int("1" * 400))]
        + [("string integer", "17", 17), ("integer string", "0117 496 0123", "0117 496 0123")]
        + [("string integer", "MB-77120", "MB-77120"), ("string integer", "007", "007")]
    ),
)
def test_values(kinds: str, text: str, value: Any) -> None:
    found = SchemaField(("x",), "?", tuple(kinds.split())).value(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("kinds", "text"),
    (
        [(("number",), "soon"), (("integer", "null"), "2.5"), (("number", "null"), "12 of 30")]
        + [(("integer",), "INV-20417"), (("integer",), "A12"), (("integer",), "3 12"), (("number",), "3 12.50")]
        + [(("number",), "1.5 million"), (("number",), "12k"), (("number",), "1.2M"), (("number",), "3B")]
        + [(("number",), "5\u00bd"), (("number",), "1,2,3"), (("integer",), "0117 496 0123"), (("number",), "12/04")]
    ),
)
def test_answers_that_are_no_values(kinds: tuple[str, ...], text: str, required: bool) -> None:
    field = SchemaField(("x",), "?", kinds, required=required)
    refuses(f"x: expected an answer that is {' or '.join(kinds)}; got '{text}'", field.value, text)
    assert field.needed == (required and "null" not in kinds)


@pytest.mark.parametrize(
    ("part", "text", "message"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 3}, "77", "77 is greater than the maximum of 3"),
        ({"type": "string", "format": "date"}, "03/04/2025", "'03/04/2025' is not a 'date'"),
        ({"type": "string", "maxLength": 2}, "abc", "'abc' is too long"),
    ],
)
def test_values_obey_the_schema(part: dict[str, Any], text: str, message: str) -> None:
    """They were returned as if the schema held."""
    for name in ("anyOf", "oneOf"):
        (field,) = fields_of({"properties": {"x": {name: [part, {"type": "null"}]}}, "required": ["x"]})
        assert field.kinds == (part["type"], "null") and field.value("not on the page") is None
        refuses(f"x: expected an answer that its schema allows; got '{text}': {message}", field.value, text)
    (money,) = fields_of({"properties": {"x": {"type": "number", "multipleOf": 0.01}}})
    assert money.value("$19.99") == 19.99  # which it is not among floats
    refuses("19.995 is not a multiple of 0.01", money.value, "19.995")
    (date,) = fields_of({"properties": {"x": {"type": "string", "format": "date"}}})
    for text in ("2025-04-13", "13 April 2025", "13/04/2025 10:15"):  # only the first had a value
        assert date.value(text) == "2025-04-13"


def test_an_object_obeys_the_whole_schema() -> None:
    """An optional object without a field that it needs is refused; a needed one may be empty."""
    seller = {"type": "object", "properties": {"name": {"type": "string"}, "vat": {"type": "string"}}}
    optional = {"properties": {"seller": {**seller, "required": ["name", "vat"]}}}
    assert misfit(as_object(fields_of(optional), ["Bob", None]), optional) == (
        "seller: expected an object that the schema allows; got one of which 'vat' is a required property"
    )
    assert as_object(fields_of(optional), [None, None]) == {}
    needed = {"properties": {"seller": seller}, "required": ["seller"]}
    assert as_object(fields_of(needed), [None, None]) == {"seller": {}}
    (kind,) = fields_of({"properties": {"a": {"type": ["string", "null"], "enum": ["x", 5]}}})
    assert (kind.kinds, kind.values) == (("string",), ("x",))


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "string"}, "schema: expected an object with properties; got string"),
        ({"type": "object", "properties": {}}, "expected a schema of 1 to 64 fields; got 0"),
        ({"properties": {"rows": {"type": "array"}}}, "rows: expected type string, .*; got array"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "number"}]}}}, "a: expected anyOf one schema"),
        ({"properties": {"a": {"$ref": "#"}}}, r"a: expected a \$ref to a part of this schema, .* got '#'"),
        ({"properties": {"a": {"$ref": "#/$defs/No"}}}, r"a: expected a \$ref to a part .* got '#/\$defs/No'"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}, "a: expected a JSON sch"),
        ({"properties": {"a": {"type": "string", "pattern": "(a+)+$"}}}, "a: expected keywords .*; got pattern"),
        ({"properties": {"a": {}}, "if": {}}, "schema: expected keywords among .*; got if"),
        ({"properties": {"a": {"type": "string", "format": "date-time"}}}, "a: expected a format among .*; got date-t"),
        ({"properties": {"a": {"enum": []}}}, "a: expected values of its type; got none"),
        ({"properties": {"a": {"type": "integer", "enum": ["b"]}}}, "a: expected values of its type; got none"),
        ({"properties": {"a": {}}, "required": ["a", "z"]}, "schema: expected required names .*; got z"),
        ({"properties": {"a": {"allOf": [{"minimum": 10}], "minimum": 0}}}, "a: expected no other minimum beside"),
        ({"properties": {"a": {"type": 5}}}, "properties.a.type: expected a JSON schema; got 5 is not valid"),
        ({"properties": {"a": {}}, "required": 5}, "required: expected a JSON schema; got 5 is not of type 'array'"),
        ({"properties": {"a": {"anyOf": 5}}}, "properties.a.anyOf: expected a JSON schema; got 5 is not of type"),
        ({"properties": {f"f{n}": {} for n in range(65)}}, "1 to 64 fields; got 65"),
    ],
)
def test_schemas_that_are_refused(schema: dict[str, Any], message: str) -> None:
    refuses(f"^response_format: .*{message}", fields_of, schema)


NO_HOOKS = ("nothing:x", "json:nothing", "json", "json:__name__")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(UseSettings, sample=2.0), "sample: expected a share from 0 to 1; got 2.0"),
        (partial(UseSettings, feedback_bytes=0), "feedback_bytes: expected a positive number; got 0"),
        (partial(UseSettings, redact="a:b"), "redact: expected a log of examples or of feedback; got none"),
        *((partial(load_hook, name), "redact: expected MODULE:FUNCTION; got") for name in NO_HOOKS),
        (partial(SchemaField(("x",), "?", ("string",)).value, "Not on the page"), "on the page; got 'Not on the page'"),
    ],
)
def test_settings_hooks_and_needed_values_that_cannot_be(make: Callable[[], Any], message: str) -> None:
    refuses(message, make)
