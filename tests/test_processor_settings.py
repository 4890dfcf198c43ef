"""What a processor_config.json holds is checked when the processor is made."""

from typing import Any

import pytest
from helpers import tiny_tokenizer

from arr_coc import ArrCocImageProcessor, ArrCocProcessor

NAN = float("nan")

REFUSED: dict[str, list[Any]] = {
    "size": ["x", True, {"height": "64", "width": "64"}, {"height": 10**9, "width": 10**9}, {}, [64, 64], 0],
    "patch_size": [None, True, 0, 8.0, 10**6],
    "max_image_pixels": [None, 0, -1, 1e9, "1"],
    "readable_px": [0, -1, NAN, "11", True],
    "sources": [None, "all", 3],
    "resample": [9, "bicubic", None],
    "rescale_factor": [NAN, float("inf"), "1/255"],
    "image_mean": [[0.5], [NAN] * 3, 2.0, "0.5", None],
    "image_std": [0, [0.5, 0.5, 0.0], NAN, [True] * 3],
    "do_resize": ["no", 1],
    "do_normalize": ["yes", 0],
}

REFUSED_OF_THE_PROCESSOR: dict[str, list[Any]] = {
    "budget": [1.5, True, "huge", -1, []],
    "image_token": [3, "", "\ud800", None],
    "excludes_base": [1, "no", None],
    "layout": ["circle", 3, None],
    "chat_template": [3, ["x"]],
}


@pytest.mark.parametrize("name", REFUSED)
def test_odd_settings_of_images_are_refused_in_one_line(name: str) -> None:
    for value in REFUSED[name]:
        with pytest.raises(ValueError, match=rf"\A{name}: expected [^\n]*; got [^\n]*\Z"):
            ArrCocImageProcessor(**{name: value})


@pytest.mark.parametrize("name", REFUSED_OF_THE_PROCESSOR)
def test_odd_settings_of_the_processor_are_refused_in_one_line(name: str) -> None:
    images, tokenizer = ArrCocImageProcessor(size={"height": 128, "width": 128}, patch_size=8), tiny_tokenizer()
    for value in REFUSED_OF_THE_PROCESSOR[name]:
        with pytest.raises(ValueError, match=rf"\A{name}: expected [^\n]*; got [^\n]*\Z"):
            ArrCocProcessor(images, tokenizer, **{name: value})


def test_settings_that_are_saved_are_taken_again() -> None:
    images = ArrCocImageProcessor(
        size=256, image_mean=0.5, image_std=[0.5, 0.4, 0.3], readable_px=None, sources="inline"
    )
    assert ArrCocImageProcessor(**images.to_dict()).to_dict() == images.to_dict()
