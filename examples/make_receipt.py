"""Draws examples/images/receipt.png: a page of the tiny checkpoint's domain in a font family it was not trained on.

    python examples/make_receipt.py [OUT]

Needs one of the test families (Debian: fonts-freefont-ttf, fonts-lato, ...); the shipped picture uses FreeSans.
"""

import sys

from PIL import Image, ImageDraw, ImageFont

from arr_coc.pages.fonts import find_fonts

LINES = [("date", "14/03/26"), ("time", "12:41"), ("table", "7"), ("subtotal", "18.40"), ("tax", "1.47")] + [
    ("tip", "2.00"),
    ("total", "$21.87"),
]

faces = find_fonts("test")
face = next((face for face in faces if face.name == "FreeSans Regular"), faces[0])
page = Image.new("RGB", (256, 256), (250, 248, 242))
draw = ImageDraw.Draw(page)
title, text = (ImageFont.truetype(face.path, size) for size in (20, 16))
draw.text((128, 24), "Corner Cafe", font=title, fill=(30, 30, 40), anchor="mm")
draw.line((28, 44, 228, 44), fill=(120, 120, 120))
for number, (field, value) in enumerate(LINES):
    y = 66 + 25 * number + (8 if field == "total" else 0)
    draw.text((32, y), field, font=text, fill=(30, 30, 40), anchor="lm")
    draw.text((224, y), value, font=text, fill=(30, 30, 40), anchor="rm")
draw.line((28, 208, 228, 208), fill=(120, 120, 120))
page.save(sys.argv[1] if len(sys.argv) > 1 else "examples/images/receipt.png")
