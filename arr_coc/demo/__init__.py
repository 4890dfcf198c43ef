"""A page in the browser: drop an image, ask about it, see which patches each question fetched."""
