"""Compares fonts letter by letter, to find held-out families that have another name in the training split.

python -m benchmarks.font_likeness    # the most similar pairs of installed families of two splits
"""

from __future__ import annotations

import argparse
import string
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from arr_coc.files import run_module
from arr_coc.pages.fonts import FontFace, find_fonts
from arr_coc.pages.splits import SPLITS

LIMIT = 0.94
"""Families of two splits with this similarity must not both be in the table.

Clones under other names have 0.945 and more (Arimo and Liberation Sans 0.96, Carlito and Lato 0.95, Heebo and
Roboto 0.96), different designs of one kind 0.93 at most (Spline Sans and Roboto).
"""

_LETTERS = string.digits + string.ascii_letters
_PIXELS, _SIDE = 72, 20  # per em when drawn, and per letter when compared
_ORIGIN = (60, 130)  # start of a letter's baseline on the canvas, px


def letter_shapes(face: FontFace) -> np.ndarray:
    """A face's digits and letters, each stretched to the same square, so that only shapes are compared.

    Returns:
        float32 [62 * 20 * 20] of norm 1: the product of two faces' shapes is the mean correlation of their letters.
    """
    font = ImageFont.truetype(face.path, _PIXELS, layout_engine=ImageFont.Layout.BASIC)
    shapes = np.zeros((len(_LETTERS), _SIDE * _SIDE), np.float32)
    for shape, letter in zip(shapes, _LETTERS, strict=True):
        canvas = Image.new("L", (220, 200))
        ImageDraw.Draw(canvas).text(_ORIGIN, letter, fill=255, font=font, anchor="ls")
        pixels = np.asarray(canvas.crop(canvas.getbbox()).resize((_SIDE, _SIDE), Image.Resampling.BOX), np.float32)
        centred = pixels.ravel() - pixels.mean()
        shape[:] = centred / max(float(np.linalg.norm(centred)), 1.0)
    return shapes.ravel() / np.float32(np.sqrt(len(_LETTERS)))


def plainest_faces(faces: Sequence[FontFace]) -> list[FontFace]:
    """One face of each family, upright and of regular weight if possible."""
    plainest: dict[str, FontFace] = {}
    for face in sorted(faces, key=lambda face: (face.bold, face.italic, face.style.lower() == "medium")):
        plainest.setdefault(face.family, face)
    return list(plainest.values())


def likenesses(first: Sequence[FontFace], second: Sequence[FontFace]) -> np.ndarray:
    """The similarity of each face of one list to each of another: float32 [len(first), len(second)], 1 if equal."""
    left, right = (np.stack([letter_shapes(face) for face in faces]) for faces in (first, second))
    alike: np.ndarray = left @ right.T
    return alike


def main() -> None:
    """Prints the most similar pairs across splits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10, help="pairs to print for each two splits (default: 10)")
    count = parser.parse_args().pairs
    faces = {split: plainest_faces(find_fonts(split)) for split in SPLITS}
    for number, left in enumerate(SPLITS):
        for right in SPLITS[number + 1 :]:
            alike = likenesses(faces[left], faces[right])
            for index in np.argsort(-alike, axis=None)[:count]:
                row, column = np.unravel_index(index, alike.shape)
                names = f"{faces[left][row].family} ({left}), {faces[right][column].family} ({right})"
                print(f"{alike[row, column]:.3f} {'ALIKE' if alike[row, column] >= LIMIT else '     '} {names}")


if __name__ == "__main__":
    run_module(main)
