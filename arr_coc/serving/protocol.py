"""Requests and answers of OpenAI's API, extended by the fetch choices of `generate`; errors for invalid requests.

Unsupported fields that would change the answer are refused, not ignored.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, model_validator
from starlette.responses import JSONResponse

from ..modeling.image_loading import shorten
from ..modeling.processing_arr_coc import Turn

ASKED = {
    "n": "1, one answer a request; send the request again for another",
    "tools": "none: this model answers questions about images, and calls no tools",
    "tool_choice": "none: this model answers questions about images, and calls no tools",
    "store": "false: nothing is stored for clients",
    "role": "user or assistant: put instructions before the question",
}
"""What is expected of fields of which the server supports one value only."""

EXPECTED = {
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dict_type": "an object",
    "list_type": "a list",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "missing": "this field",
    "extra_forbidden": "no such field",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "a length of at least {min_length}",
    "too_long": "a length of at most {max_length}",
    "string_too_long": "at most {max_length} characters",
    "union_tag_invalid": "type {expected_tags}",
    "union_tag_not_found": "an object with a type",
}
"""What was expected, by pydantic's type of an error; in braces: values of its context."""


Place = tuple[str | int, ...]


def invalid_field(errors: Sequence[Mapping[str, Any]], body: Any) -> tuple[str | None, str]:
    """The field that pydantic refused first, None for the whole body; and the error in one line. `errors`: pydantic's,
    in order; their places start with "body"."""
    placed = [(_place(error, body), error) for error in errors]
    first = placed[0][0]
    # Where a field has several forms, pydantic tries them all: the one that came furthest was meant.
    place = max((place for place, _ in placed if place[: len(first)] == first), key=len)
    own = [error for other, error in placed if other == place]
    kind, received = own[0]["type"], _described(own[0])
    if not place:
        expected = "JSON" if kind == "json_invalid" else "a JSON object (Content-Type: application/json)"
        return None, f"body: expected {expected}; got {received}"
    name = ".".join(map(str, place))
    expected = ASKED.get(name) or ASKED.get(str(place[-1])) or " or ".join(dict.fromkeys(map(_expected, own)))
    if kind == "value_error" and name not in ASKED:
        return name, f"{name}: {_expected(own[0])}"
    return name, f"{name}: expected {expected}; got {received}"


def _place(error: Mapping[str, Any], body: Any) -> Place:
    """The names and numbers that lead to the value in the body, without the forms that pydantic tried on the way."""
    if error["type"] == "json_invalid":
        return ()
    parts = [*error["loc"][1:]]
    for number in reversed(range(len(parts))):
        if str(parts[number]).startswith("list[tagged-union"):
            del parts[number + 2 : number + 3], parts[number]  # the part's type is behind its number
    place, value = list[str | int](), body
    for number, part in enumerate(parts):
        last_of_missing = error["type"] == "missing" and number == len(parts) - 1
        try:
            value = None if last_of_missing else value[part]
        except (TypeError, LookupError):
            continue
        place.append(part)
    return tuple(place)


def _expected(error: Mapping[str, Any]) -> str:
    form = EXPECTED.get(error["type"])
    return str(error["msg"]).removeprefix("Value error, ") if form is None else form.format(**error.get("ctx") or {})


def _described(error: Mapping[str, Any]) -> str:
    """What came, in JSON's words; long values are shortened."""
    value = error.get("input")
    if error["type"] == "missing":
        return "none"
    if error["type"] == "union_tag_invalid":
        return shorten(error["ctx"]["tag"], 40)
    if error["type"] == "json_invalid" or isinstance(value, bytes):
        return "other content"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return shorten(json.dumps(value, ensure_ascii=False, default=str), 40)


class Strict(BaseModel):
    """A request body that refuses unknown fields, but for those that are null, as clients send them."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None or name in cls.model_fields}


class TextPart(Strict):
    """A text part of a message."""

    type: Literal["text"]
    text: str


class ImageURL(Strict):
    """The source of an image: a data: or http(s) URL, or "encoding:" and the handle of an earlier encoding. `detail`
    has no effect: the budget says how much of an image is read."""

    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class ImagePart(Strict):
    """An image part of a message."""

    type: Literal["image_url"]
    image_url: ImageURL


class FileData(Strict):
    """A PDF or image as a data: URL, or the handle of an earlier encoding."""

    file_data: str
    filename: str | None = None


class FilePart(Strict):
    """A file part of a message."""

    type: Literal["file"]
    file: FileData


class JsonSchema(BaseModel):
    """A schema and its name; other fields have no effect."""

    name: str = "answer"
    schema_: dict[str, Any] = Field(alias="schema")


class ResponseFormat(Strict):
    """The format of the answer: text, or JSON by a schema whose fields are questions (see `answers`)."""

    type: Literal["text", "json_schema"]
    json_schema: JsonSchema | None = None


class Message(Strict):
    """One turn of a chat."""

    role: Literal["user", "assistant"]
    content: str | list[Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]]
    # Without effect: of the server's own answers, which clients send back, and a name for the role.
    annotations: list[Any] | None = Field(None, max_length=0)
    tool_calls: list[Any] | None = Field(None, max_length=0)
    name: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined by line breaks."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> list[str]:
        """The sources of the images."""
        parts = [] if isinstance(self.content, str) else self.content
        shown = [part for part in parts if not isinstance(part, TextPart)]
        return [part.image_url.url if isinstance(part, ImagePart) else part.file.file_data for part in shown]


class StreamOptions(Strict):
    """Options of a streamed answer."""

    include_usage: bool = False
    include_obfuscation: bool = False


Words = Literal["auto", "network", "text_layer", "ocr"] | list[tuple[str, tuple[float, float, float, float]]]
"""Where the words of images come from, or those of the only image: `arr_coc.modeling.budgets.ViewOptions.words`."""


class ChatRequest(Strict):
    """The body of /v1/chat/completions."""

    model: str
    messages: list[Message] = Field(min_length=1)
    max_tokens: StrictInt | None = Field(None, ge=1)
    max_completion_tokens: StrictInt | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: StrictInt | None = None  # for greedy answers only, which are always the same
    stop: str | list[str] | None = None
    logprobs: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    strategy: str | None = None
    budget: StrictInt | StrictFloat | str | None = None
    allocator: str | None = None
    num_passes: StrictInt | Literal["auto"] | None = None
    words: Words | None = None
    # Only these values are supported; they have no effect.
    n: Literal[1] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = Field(None, max_length=0)
    tool_choice: Literal["none", "auto"] | None = None
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    top_logprobs: Literal[0] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: Literal[False] | None = None

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of the answer, by its new or its old name. Raises ValueError: both names with different
        numbers."""
        new, old = self.max_completion_tokens, self.max_tokens
        if new is not None and old is not None and new != old:
            raise ValueError(f"max_tokens: expected it alone, or max_completion_tokens; got {old} and {new}")
        return new or old

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the answer; None if it is text. Raises ValueError: none in a request for JSON, or logprobs
        with it."""
        if self.response_format is None or self.response_format.type == "text":
            return None
        if self.response_format.json_schema is None:
            raise ValueError("response_format: expected json_schema with a schema; got none")
        if self.logprobs:
            raise ValueError("logprobs: expected text; got JSON, whose arr_coc.fields have probabilities")
        return self.response_format.json_schema.schema_

    @property
    def stops(self) -> list[str]:
        """Strings that end the answer. Raises ValueError: more than 4, or an empty one."""
        strings = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(strings) > 4 or not all(strings):
            raise ValueError("stop: expected up to 4 strings that are not empty; got others")
        return strings

    def turns(self) -> tuple[list[str], list[Turn], str]:
        """The sources of the images, the earlier questions and answers, and the question. Raises ValueError: the turns
        do not alternate from user to user, or there is no image."""
        roles = [message.role for message in self.messages]
        if roles != ["user", "assistant"] * (len(roles) // 2) + ["user"]:
            raise ValueError(f"messages: expected user, assistant, ..., user in turn; got {', '.join(roles)[:80]}")
        texts = [message.text for message in self.messages]
        images = [url for message in self.messages for url in message.images]
        if not images:
            raise ValueError("messages: expected at least one image; got none")
        return images, list(zip(texts[:-1:2], texts[1::2], strict=True)), texts[-1]


class EncodingRequest(Strict):
    """The body of /v1/encodings: an image's source, as in `ImageURL`."""

    image: str
    words: Words | None = None


def error_body(message: str, kind: str, *, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's form; what came from a client may hold half a surrogate, which cannot be sent."""
    said, about = (text.encode(errors="backslashreplace").decode() for text in (message, param or ""))
    return {"error": {"message": said, "type": kind, "param": about or None, "code": code}}


def error_response(status: int, message: str, *, seconds: int | None = None, **more: str | None) -> JSONResponse:
    """An error as a response; `seconds`: when the client can try again; `more`: of `error_body`."""
    kind = "invalid_request_error" if status < 429 else "server_error"
    headers = None if seconds is None else {"Retry-After": str(seconds)}
    return JSONResponse(error_body(message, kind, **more), status, headers)
