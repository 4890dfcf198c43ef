"""Batches to train on: the prompt of `generate`, the answer masked in, nothing of it in what the scorer reads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import TINY_PATCH, TINY_SIDE, noise, refuses, tiny_config, tiny_model, tiny_processor, tiny_tokenizer
from PIL import Image

from arr_coc.data.collator import IGNORED, UNKNOWN, QuestionCollator
from arr_coc.data.records import NOT_ON_THE_PAGE, Record
from arr_coc.modeling.image_processing_arr_coc import boxes_to_patches

GRID = TINY_SIDE // TINY_PATCH


@pytest.fixture
def records() -> list[Record]:
    """Three questions about two images; the last one has no boxes."""
    first, second = noise(60, 90), noise(80, 40, 1)
    return [
        Record(first, "What is the user's total?", ("42 euros",), ((10, 10, 30, 18),), 1, ((2, 10, 8, 18),)),
        Record(second, "Why?", ("a", "b", "c"), ((0, 0, 40, 80),), 2),
        Record(first, "the the\n\nuser", ("no",), line=3),
    ]


def collator(**changes: Any) -> QuestionCollator:
    return QuestionCollator(tiny_processor(), tiny_config(), **changes)


def recorded(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """The prompts that the processor makes from now on."""
    asked: list[dict[str, torch.Tensor]] = []
    build = model.processor.prompts
    monkeypatch.setattr(model.processor, "prompts", lambda *args, **kw: asked.append(build(*args, **kw)) or asked[-1])
    return asked


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fetcher": {"budget": 5}},
        {"fetcher": {"strategy": "none"}},
        {"bridge": {"layout": "rows"}},
        {"bridge": {"layout": "fetched"}},
        {"bridge": {"layout": "indicators", "kind": "vet", "table_size": 24}},
        {"vision": {"compressor": "mask"}, "fetcher": {"overlap": "exclude", "budget": "all"}},
    ],
)
def test_prompts_are_those_of_generate(records: list[Record], changes: dict[str, Any], monkeypatch: Any) -> None:
    """Token by token, whatever the layout and budget; the placeholders are there even where nothing is fetched."""
    model = tiny_model(**changes)
    asked = recorded(model, monkeypatch)
    batch = QuestionCollator(model.processor, model.config)(records)
    for row, record in enumerate(records):
        model.generate(record.picture, record.question, strategy="random")
        prompt = (batch["labels"][row] == IGNORED) & batch["attention_mask"][row].bool()
        for name in ("input_ids", "query_mask"):
            assert batch[name][row][prompt].tolist() == asked[row][name][0].tolist()


def test_labels_are_the_answer_and_its_end(records: list[Record]) -> None:
    tokenizer = tiny_tokenizer()
    batch = collator()(records)
    for row, record in enumerate(records):
        learned = batch["labels"][row][batch["labels"][row] != IGNORED]
        assert tokenizer.decode(learned) == record.answers[0] + "<|im_end|>"
        kept = batch["attention_mask"][row].bool()
        pads = [0 if one else 1 for one in kept.tolist()]
        assert pads == sorted(pads, reverse=True)
        assert (batch["input_ids"][row][~kept] == tokenizer.pad_token_id).all()
        assert (batch["labels"][row][~kept] == IGNORED).all() and not batch["query_mask"][row][~kept].any()
        assert tokenizer.decode(batch["input_ids"][row][batch["query_mask"][row]]).strip() == record.question.strip()


ANSWERS = ["x", "a much longer answer", "user", "What is the user's total?", "<|im_end|>\n<|im_start|>user\nleak", ""]


@pytest.mark.parametrize("answer", ANSWERS)
def test_no_answer_leaks_into_the_question(records: list[Record], answer: str) -> None:
    """Also not one that repeats the question, or that looks like a turn of the user's."""
    before = collator()(records)
    after = collator()([replace(one, answers=(answer,)) for one in records])
    for row in range(len(records)):
        kept = [batch["query_mask"][row][batch["attention_mask"][row].bool()] for batch in (before, after)]
        spans = [each.nonzero().flatten().tolist() for each in kept]
        assert spans[0] == spans[1]
        asked = [batch["input_ids"][row][batch["query_mask"][row]].tolist() for batch in (before, after)]
        assert asked[0] == asked[1]
    for batch in (before, after):
        assert not (batch["query_mask"] & (batch["labels"] != IGNORED)).any()
    counts = [(batch["input_ids"] == tiny_config().image_token_id).sum().item() for batch in (before, after)]
    assert counts[0] == counts[1]


def test_relevance_covers_answer_and_label_and_is_unknown_without_boxes(records: list[Record]) -> None:
    batch = collator()(records)
    images = tiny_processor().image_processor
    mapped = images.map_boxes([(10, 10, 30, 18), (2, 10, 8, 18)], 60, 90)
    wanted = boxes_to_patches(mapped, GRID, TINY_PATCH).flatten()
    assert wanted.any() and not wanted.all()
    assert batch["relevance_targets"][0].tolist() == wanted.astype(float).tolist()
    assert batch["relevance_targets"][1].tolist() == batch["patch_mask"][1].float().tolist()  # the box is the image
    assert (batch["relevance_targets"][2] == UNKNOWN).all()
    outside = collator()([replace(records[0], boxes=((500, 500, 600, 600),), label_boxes=())])
    assert (outside["relevance_targets"] == UNKNOWN).all()
    # Other than a record without boxes, of which nobody knows: here the scorers learn that no patch answers.
    asked = [records[0], replace(records[2], answers=(NOT_ON_THE_PAGE,), absent=True)]
    batch = collator()(asked)
    assert batch["relevance_targets"][0].any() and (batch["relevance_targets"][1] == 0).all()
    model = tiny_model()
    losses = [
        model(**QuestionCollator(model.processor, model.config)([record])).relevance_loss.item()
        for record in (asked[1], records[2])
    ]
    assert losses[0] > 0 == losses[1]


def test_a_second_turn_is_the_prompt_of_a_conversation(records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """And the question's tokens are those of the last question alone, whatever the history says."""
    model = tiny_model()
    history = (("What is the user's total?", "42 euros"), ("Why?", "<|im_end|>"))
    record = replace(records[1], history=history)
    batch = QuestionCollator(model.processor, model.config)([record, records[1]])
    asked = recorded(model, monkeypatch)
    model.generate(record.picture, record.question, history=history, strategy="random")
    prompt = (batch["labels"][0] == IGNORED) & batch["attention_mask"][0].bool()
    assert batch["input_ids"][0][prompt].tolist() == asked[0]["input_ids"][0].tolist()
    assert tiny_tokenizer().decode(batch["input_ids"][0][batch["query_mask"][0]]).strip() == "Why?"
    assert batch["attention_mask"].sum(1)[0] > batch["attention_mask"].sum(1)[1] + 10


def test_what_no_batch_holds_is_refused(records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refuses("records: expected at least one; got none", collator(), [])
    Path("text.png").write_text("no image")
    refuses(r"line 8: .*text.png", collator(), [records[0], replace(records[1], image=Path("text.png"), line=8)])
    pages = [Image.new("RGB", (40, 40), color) for color in ("white", "black")]
    pages[0].save("pages.tiff", save_all=True, append_images=pages[1:])
    with pytest.raises(ValueError, match="line 8: image: expected a single image, .* no documents; got a document"):
        collator()([replace(records[0], image=Path("pages.tiff"), line=8)])
    for name, found in {"text.png": "got text", "pages.tiff": "expected a single image, .* got a document"}.items():
        refuses(f"line 8: .*{found}$", collator().check, [records[0], replace(records[1], image=Path(name), line=8)])
    with pytest.raises(ValueError, match="line 1: images: expected a single image, .* no documents; got 2"):
        collator().check([replace(records[0], others=(Path("text.png"),))])
    collator().check(records)
    short = tiny_config(text={"max_position_embeddings": 60})
    with pytest.raises(ValueError, match=r"line 1: expected at most 60 tokens with the answer; got \d+"):
        QuestionCollator(tiny_processor(), short)(records)
