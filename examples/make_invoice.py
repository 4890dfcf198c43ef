"""Draws examples/images/invoice.jpg, an A4 page of 1240x1754 px, and invoices.pdf, in fonts of the validation split.

    python examples/make_invoice.py [FOLDER]

The page is the first of its seed, not the best: the shipped weights read the total on five of the first six. It needs
the fonts of the validation split; with other fonts the pages look different.
"""

import sys
from pathlib import Path

from arr_coc.data.domains import draw_page
from arr_coc.data.writing import DPI, JPEG_QUALITY

SEED, WIDTH, PAGES = 13, 1240, 2

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "examples/images")
first, *rest = (draw_page("invoice", SEED, number, WIDTH, "validation").image for number in range(PAGES))
first.save(folder / "invoice.jpg", quality=JPEG_QUALITY)
first.save(folder / "invoices.pdf", save_all=True, append_images=rest, resolution=DPI, quality=JPEG_QUALITY)
