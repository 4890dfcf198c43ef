"""What a server may be told to keep of its use, and what it may not."""

from typing import Any

import pytest

from arr_coc.serving.examples import load_hook
from arr_coc.serving.settings import UseSettings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample": 2.0}, "sample: expected a share from 0 to 1; got 2.0"),
        ({"feedback_bytes": 0}, "feedback_bytes: expected a positive number; got 0"),
        ({"redact": "a:b"}, "redact: expected a log of examples or of feedback; got none"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UseSettings(**settings)


@pytest.mark.parametrize("name", ["nothing:x", "json:nothing", "json", "json:__name__"])
def test_hooks_that_are_none(name: str) -> None:
    with pytest.raises(ValueError, match="redact: expected MODULE:FUNCTION; got"):
        load_hook(name)
