"""One source of every format, two records each, in the form in which its publishers give it.

All files are written to the working folder.
"""

import json
from pathlib import Path
from typing import Any

import datasets
from helpers import noise
from PIL import Image

from arr_coc.data.feedback import Feedback
from arr_coc.journal import Journal

WIDTH, HEIGHT = 90, 60


def draw(path: str, seed: int = 0) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    noise(HEIGHT, WIDTH, seed).save(path)


def write(path: str, content: Any) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content), encoding="utf-8")


def make_vqav2() -> dict[str, Any]:
    asked = [
        {"image_id": 42, "question": "What sport is it?", "question_id": 42000},
        {"image_id": 42, "question": "Is it day?", "question_id": 42001},
    ]
    said = [
        {
            "question_id": number,
            "image_id": 42,
            "question_type": kind,
            "answer_type": of,
            "multiple_choice_answer": text,
        }
        | {"answers": [{"answer": text, "answer_confidence": "yes", "answer_id": n + 1} for n in range(10)]}
        for number, kind, of, text in ((42001, "is it", "yes/no", "yes"), (42000, "what sport is", "other", "surfing"))
    ]
    about = {"info": {}, "data_type": "mscoco", "data_subtype": "val2014", "license": {}}
    write("questions.json", {**about, "task_type": "Open-Ended", "questions": asked})
    write("annotations.json", {**about, "annotations": said})
    draw("coco/val2014/COCO_val2014_000000000042.jpg")
    return {"format": "vqav2", "path": "questions.json", "annotations": "annotations.json", "images": "coco"}


def make_textvqa() -> dict[str, Any]:
    asked = [
        (
            {"question": "what brand?", "image_id": "0a", "image_width": WIDTH, "image_height": HEIGHT}
            | {"question_id": 0, "answers": ["Coca Cola", "coca-cola", "coca cola", *["pepsi"] * 7]}
            | {"set_name": "val", "image_classes": []}
        ),
        {"question": "is it red?", "image_id": "0a", "question_id": 1, "answers": ["yes"] * 10, "set_name": "val"},
    ]
    words = [("COCA", 0.1, 0.5), ("Cola", 0.4, 0.51), ("yes", 0.1, 0.1)]
    info = [
        {"word": word, "bounding_box": {"top_left_x": x, "top_left_y": y, "width": 0.2, "height": 0.1, "yaw": 0.0}}
        for word, x, y in words
    ]
    about = {"dataset_type": "val", "dataset_name": "textvqa", "dataset_version": "0.5.1"}
    write("val.json", {**about, "data": asked})
    tokens = [word for word, *_ in words]
    write("ocr.json", {**about, "data": [{"image_id": "0a", "ocr_tokens": tokens, "ocr_info": info}]})
    draw("photos/0a.jpg")
    return {"format": "textvqa", "path": "val.json", "images": "photos", "ocr": "ocr.json"}


def make_docvqa() -> dict[str, Any]:
    asked = [
        (
            {"questionId": 1, "question": "What is the date?", "question_types": ["form", "layout"], "docId": 7}
            | {"image": "documents/page_1.png", "ucsf_document_id": "x", "ucsf_document_page_no": "1"}
            | {"answers": ["March 3, 1999", "3 March"], "data_split": "val"}
        ),
        (
            {"questionId": 2, "question": "Who signed?", "question_types": ["handwritten"]}
            | {"image": "documents/page_1.png", "answers": ["Nobody"], "data_split": "val"}
        ),
    ]
    texts = [("Date:", 2), ("March", 12), ("3,", 24), ("1999", 30)]
    words = [{"text": text, "boundingBox": [x, 5, x + 9, 6, x + 9, 11, x, 10]} for text, x in texts]
    line = {"text": "Date: March 3, 1999", "boundingBox": [2, 5, 39, 6, 39, 11, 2, 10], "words": words}
    page = {"page": 1, "clockwiseOrientation": 0.1, "width": WIDTH, "height": HEIGHT, "unit": "pixel", "lines": [line]}
    about = {"dataset_name": "docvqa", "dataset_split": "val", "dataset_version": "1.0"}
    write("val.json", {**about, "data": asked})
    write("ocr/page_1.json", {"status": "Succeeded", "recognitionResults": [page]})
    draw("images/page_1.png")
    return {"format": "docvqa", "path": "val.json", "images": "images", "ocr": "ocr"}


def make_gqa() -> dict[str, Any]:
    types = {"structural": "query", "semantic": "attr", "detailed": "chooseAttr"}
    asked = {
        "201": (
            {"imageId": "n1", "question": "What is on the sofa?", "answer": "cat", "types": types}
            | {"fullAnswer": "The cat is on the sofa.", "annotations": {"answer": {"0": "11"}, "question": {}}}
        ),
        "202": (
            {"imageId": "n1", "question": "Is it dark?", "answer": "no", "types": {**types, "structural": "verify"}}
            | {"annotations": {"answer": {}, "question": {}}}
        ),
    }
    objects = {"11": {"name": "cat", "x": 5, "y": 6, "w": 20, "h": 10, "relations": [], "attributes": []}}
    write("val_questions.json", asked)
    write("scenes.json", {"n1": {"width": WIDTH, "height": HEIGHT, "objects": objects}})
    draw("images/n1.jpg")
    return {"format": "gqa", "path": "val_questions.json", "images": "images", "scene_graphs": "scenes.json"}


def make_chartqa() -> dict[str, Any]:
    write("test/test_augmented.json", [{"imgname": "c.png", "query": "How many?", "label": "14"}])
    write("test/test_human.json", [{"imgname": "c.png", "query": "What share is blue?", "label": 0.5}])
    draw("test/png/c.png")
    return {"format": "chartqa", "path": "test"}


def make_jsonl() -> dict[str, Any]:
    draw("a.png")
    lines = [{"image": "a.png", "question": f"{n}?", "answers": ["a"], "boxes": [[1, 2, 3, 4]]} for n in range(2)]
    Path("data.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return {"format": "jsonl", "path": "data.jsonl"}


def make_columns() -> dict[str, Any]:
    rows = {
        "picture": [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "blue")],
        "query": ["What colour?", "Which one?"],
        "answer": ["red", "blue"],
        "type": ["colour", "which"],
        "where": [[[0.0, 0.0, 9.0, 9.0]], []],
    }
    data = datasets.Dataset.from_dict(rows).cast_column("picture", datasets.Image())
    datasets.DatasetDict({"validation": data, "test": data.select([0])}).save_to_disk("saved")
    names = {"image": "picture", "question": "query", "answers": "answer", "boxes": "where", "tags": ["type"]}
    return {"format": "columns", "path": "saved", "split": "validation", "columns": names}


def make_rendered() -> dict[str, Any]:
    return {"format": "rendered", "pages": 2, "questions": 1, "size": 128, "split": "test"}


def make_feedback() -> dict[str, Any]:
    draw("a.png")
    image = Path("a.png").read_bytes()
    log = Journal(Path("used"), "feedback", limit=10**6, forgets=False, durable=False)
    for said in (
        Feedback(image, "Who?", True, said="me"),
        Feedback(image, "What?", False, said="that", answer="the other", boxes=((1, 2, 30, 40),)),
    ):
        log.append(said.content())
    return {"format": "feedback", "path": "used"}


def make_mixed() -> dict[str, Any]:
    jsonl = make_jsonl()
    lines = Path("data.jsonl").read_text().splitlines()
    Path("one.jsonl").write_text(lines[1])
    return {"format": "mixed", "sources": [{**jsonl, "path": name} for name in ("one.jsonl", "one.jsonl")]}


MAKERS = (
    {"vqav2": make_vqav2, "textvqa": make_textvqa, "docvqa": make_docvqa, "gqa": make_gqa, "chartqa": make_chartqa}
    | {"jsonl": make_jsonl, "columns": make_columns, "rendered": make_rendered, "feedback": make_feedback}
    | {"mixed": make_mixed}
)


def bad_lines() -> str:
    """The path of a JSONL file whose lines 2, 4 and 6 are no records, and 1, 3 and 7 are."""
    draw("a.png")
    first, second, third = (
        json.dumps({"image": "a.png", "question": question, "answers": ["a"]}) for question in ("Why?", "Who?", "How?")
    )
    unseen = '{"image": "none.png", "question": "?", "answers": ["a"]}'
    lines = [first, "{", second, unseen, "", '{"image": 3}', third]
    Path("data.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return "data.jsonl"
