"""What the processors' settings may be, as they are written or saved: knobs, checked when a processor is made."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from transformers.image_utils import PILImageResampling, SizeDict

from .image_sources import POLICIES, SourcePolicy
from .knobs import knob, number, validated, whole
from .model_knobs import MAX_SIDE, budget, member

Channels = int | float | list[Any] | tuple[Any, ...]


def _of_each_channel(expected: str, holds: Callable[[float], bool]) -> Any:
    """A field for a number, or for one of each channel."""

    def all_hold(value: Any) -> bool:
        numbers = value if isinstance(value, (list, tuple)) else [value] * 3
        return len(numbers) == 3 and all(type(number) in (int, float) and holds(number) for number in numbers)

    return knob(f"{expected}, or 3 for red, green and blue", all_hold, default=0.5)


def _is_size(size: int | dict[str, Any] | SizeDict) -> bool:
    sides = [size] if isinstance(size, int) else [side for side in dict(size).values() if side is not None]
    return bool(sides) and all(type(side) is int and 1 <= side <= MAX_SIDE for side in sides)


def _is_text(token: str) -> bool:
    return bool(token) and token.isprintable()  # half a surrogate pair is not


@validated
@dataclass(kw_only=True)
class ImageSettings:
    """Of `ArrCocImageProcessor`; the defaults here only fill what was not set, and pass."""

    size: int | dict[str, Any] | SizeDict = knob(
        f"a side, or {{'height': S, 'width': S}}, up to {MAX_SIDE} px", _is_size, default=1024
    )
    patch_size: int = whole(1, 256, default=16)
    max_image_pixels: int = whole(1, 2**31 - 1, default=1)
    readable_px: int | float | None = number(0.0, MAX_SIDE, above=True, default=None)
    sources: str | SourcePolicy = knob(
        f"one of {', '.join(POLICIES)}, or a SourcePolicy",
        lambda value: isinstance(value, SourcePolicy) or value in POLICIES,
        default="any",
    )
    resample: int = knob("a filter of Pillow", lambda value: value in [*PILImageResampling], default=3)
    rescale_factor: int | float = number(-1e3, 1e3, default=1.0)
    image_mean: Channels = _of_each_channel("a number from 0 to 1", lambda value: 0 <= value <= 1)
    image_std: Channels = _of_each_channel("a number above 0, at most 1000", lambda value: 0 < value <= 1e3)
    do_resize: bool | None = None
    do_rescale: bool | None = None
    do_normalize: bool | None = None
    do_convert_rgb: bool | None = None


@validated
@dataclass(kw_only=True)
class ProcessorSettings:
    """Of `ArrCocProcessor`."""

    budget: int | str = budget("standard")
    image_token: str = knob("a token", _is_text, default="<image>")
    excludes_base: bool = False
    layout: str = member("layout", default="plain")
    chat_template: str | dict[str, str] | None = None


def check_image_settings(settings: dict[str, Any]) -> None:
    """Refuses what an image processor cannot take; settings of other names pass.

    Raises:
        ValueError: the message names the setting, what it takes and what came.
    """
    names = {field.name for field in fields(ImageSettings)}
    ImageSettings(**{name: value for name, value in settings.items() if name in names})
