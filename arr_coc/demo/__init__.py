"""A page in the browser: upload an image, ask about it, see which patches each question fetches."""
