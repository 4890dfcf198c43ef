"""Saves a checkpoint, a page's encoding and answers about it with the installed transformers: an older one, for tests.

`python tests/save_with_this_release.py FOLDER`
"""

import json
import sys
from pathlib import Path

from helpers import noise, tiny_model

QUESTIONS = ("What is it?", "Who?", "total total total price", "What is the user?")


def save(folder: Path) -> None:
    """Writes the checkpoint, `page.png`, `page.safetensors` and `answers.json`: by question what it answers."""
    model = tiny_model()
    model.save_pretrained(folder)
    model.processor.save_pretrained(folder)
    for code in folder.glob("*.py"):
        code.unlink()
    page = folder / "page.png"
    noise(60, 90).save(page)
    encoding = model.encode_image(page)
    encoding.save(folder / "page.safetensors", model)
    answers = {question: model.generate(encoding, question) for question in QUESTIONS}
    (folder / "answers.json").write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    save(Path(sys.argv[1]))
