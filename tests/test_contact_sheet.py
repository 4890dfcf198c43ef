"""The contact sheet shows every page: those that were fetched from, large and outlined, and thumbnails of the rest."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Cli, tiny_model
from PIL import Image
from test_documents import paged

from arr_coc.viewing import OUTLINE_COLOUR, draw_sheet


def outlined(sheet: Image.Image) -> int:
    return int((np.asarray(sheet) == np.array(OUTLINE_COLOUR[:3])).all(-1).sum())


def test_pages_that_were_fetched_from_are_outlined() -> None:
    model = tiny_model(text={"max_position_embeddings": 4096})
    encoding = model.encode_image(paged("TIFF"))
    answer = model.generate(encoding, "What is the total?", budget=12, return_fetch=True)
    sheet = draw_sheet(encoding.sources, answer, question="What is the total?")
    floor = model.generate(encoding, "What is the total?", strategy="none", return_fetch=True)
    assert outlined(sheet) > 100 and outlined(draw_sheet(encoding.sources, floor, question="?")) == 0
    with pytest.raises(ValueError, match="answer: expected one about 1 sources; got source"):
        draw_sheet(encoding.sources[:1], answer, question="?")


def test_the_command_line_asks_documents(checkpoint: Path, tmp_path: Path, cli: Cli) -> None:
    file, picture = tmp_path / "pages.tiff", tmp_path / "sheet.png"
    file.write_bytes(paged("TIFF"))
    options = ["--model", str(checkpoint), "--json", "--picture", str(picture), "--budget", "9"]
    code, out, _ = cli("ask", str(file), "What?", *options)
    assert code == 0
    said: dict[str, Any] = json.loads(out)
    assert said["tokens"]["fetched"] == len(said["positions"]) == 9
    assert {origin["page"] for origin in said["sources"]} <= {1, 2, 3} and said["sources"][0]["box"]
    with Image.open(picture) as sheet:
        assert sheet.width > 300
