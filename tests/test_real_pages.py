"""Real pages as text: their fields are mined, asked about, held out by document, and learnt from."""

import gzip
import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers import READS_WORDS, SCORES_WORDS, refuses, tiny_model
from PIL import Image, ImageDraw
from tiny_pdf import text_at, write_pdf

from arr_coc.data.field_mining import mine, type_of
from arr_coc.data.field_wordings import FieldAsker, concept_of, concepts
from arr_coc.data.formats.own import Jsonl
from arr_coc.data.pdf_corpus import store_page
from arr_coc.data.real_corpus import Repository, filings, kept_out, manuals, receipts, write, write_scans
from arr_coc.data.real_pages import RealPages, line, moved, split_of_group
from arr_coc.data.real_scans import Scan, read_scan
from arr_coc.modeling.printed_lines import line_in_box
from arr_coc.modeling.word_sources import WORD_SOURCES, PageWords
from arr_coc.pages.page import Question, TextPage, told_apart
from arr_coc.pages.splits import SPLITS
from arr_coc.training.reader.asking import QuestionAnsweringStage, RelevanceStage
from arr_coc.training.reader.pages import AskedPages, Sources
from arr_coc.training.recipe import load_recipe
from arr_coc.training.stages import Run

CITIES = ("Arbon", "Basel", "Chur", "Davos", "Engelberg", "Fribourg", "Geneva", "Herisau")


def order(number: int) -> list[tuple[str, float, float, float, float]]:
    """A page of an order: labels left of values, one over its value, an address, and print that never changes."""
    rows = [
        ("Advertiser:", f"{CITIES[number]} Party"),
        ("Estimate #", f"48{number}"),
        ("Flight Dates", f"0{number + 1}/02/20 - 0{number + 1}/20/20"),
        ("Billing", CITIES[-number - 1]),
        ("7. Occupation", ""),
    ]
    lines = [("Terms apply to all orders", 10.0, 10.0, 200.0, 20.0)]
    for row, (label, value) in enumerate(rows):
        y = 40.0 + 30 * row
        lines.append((label, 10.0, y, 10.0 + 5 * len(label), y + 10))
        if value:
            lines.append((value, 100.0, y, 100.0 + 5 * len(value), y + 10))
    lines[-1] = (f"7. Occupation {CITIES[number]} baker", 10.0, 160.0, 110.0, 170.0)
    lines += [("Product", 300.0, 40.0, 340.0, 50.0), (f"Bread {number}", 300.0, 54.0, 340.0, 64.0)]
    return [
        *lines,
        ("Remit to", 300.0, 200.0, 340.0, 210.0),
        (f"Box {number}", 300.0, 214.0, 330.0, 224.0),
        (f"900{number} Town", 300.0, 228.0, 345.0, 238.0),
    ]


def test_fields_are_what_varies_beside_what_is_printed_on_every_page() -> None:
    pages = [(f"document {number}", order(number)) for number in range(len(CITIES))]
    mined = mine(pages)
    for number, fields in enumerate(mined):
        found = {field.label: field.value for field in fields}
        assert found == {
            "Advertiser": f"{CITIES[number]} Party",
            "Estimate #": f"48{number}",
            "Product": f"Bread {number}",
            "Flight Dates": f"0{number + 1}/02/20 - 0{number + 1}/20/20",
            "Billing": CITIES[-number - 1],
            "Occupation": f"{CITIES[number]} baker",
        }
    occupation = next(field for field in mined[0] if field.label == "Occupation")
    assert occupation.label_box[0] > 10 and occupation.box[0] > occupation.label_box[2]  # parts of one line
    assert not any(mine(pages[:5]))  # printed in too few documents
    assert not any(field.label == "Product" for field in mine(pages, under=False)[0])


def test_values_have_types() -> None:
    told = {
        "02/05/20 - 03/17/20": "dates",
        "25/12/2018": "date",
        "22 JUN 2018": "date",
        "RM 50.00": "amount",
        "($3.75)": "amount",
        "8:13:39 PM": "time",
        "03-9201 6281": "phone",
        "TD01167104": "number",
        "Baker Street": "text",
    }
    assert {value: type_of(value) for value in told} == told


def test_wordings_are_divided_between_the_splits() -> None:
    by_split = {
        split: {FieldAsker(Random(n), split).question("", name) for name in concepts() for n in range(80)}
        for split in SPLITS
    }
    assert len(by_split["train"]) > 1000 and "{" not in "".join(by_split["train"])
    assert len(by_split["train"] & by_split["test"]) < 0.02 * len(by_split["test"])
    own = {split: {FieldAsker(Random(n), split).question("", "advertiser") for n in range(200)} for split in SPLITS}
    assert len(own["train"]) > 40 and not own["train"] & own["test"]
    concept = concept_of("Flight  dates:", "orders")
    assert concept is concepts()["flight"] and concept_of("Flight dates", "receipts") is None
    starts = {FieldAsker(Random(seed), "train").question("Flight Dates", "flight", "start") for seed in range(60)}
    ends = {FieldAsker(Random(seed), "train").question("Flight Dates", "flight", "end") for seed in range(60)}
    assert not starts & ends
    assert FieldAsker(Random(0), "train").question("INV NO")


def repository(folder: Path, files: dict[str, str | Path]) -> Repository:
    """A git repository with one commit."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.read_bytes() if isinstance(content, Path) else content.encode())
    git = ["git", "-C", str(folder), "-c", "user.name=test", "-c", "user.email=test@example.com"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "files"]):
        subprocess.run([*git, *command], check=True)
    return Repository(folder)


def receipt(number: int) -> dict[str, str]:
    """The lines and the key of a receipt as SROIE has them."""
    shop, date, total = f"{CITIES[number].upper()} STORE", f"0{number + 1}/03/2018", f"1{number}.00"
    rows = [shop, "MAIN ROAD, 3", f"DATE: {date}", f"TEL: 07-350740{number}", "RYE BREAD", f"{number}.50"]
    rows += ["TOTAL", total, "CASH", f"2{number}.00"]
    places = [(10, y) for y in range(10, 160, 30)] + [(200, 130), (10, 160), (200, 160), (10, 190), (200, 190)]
    lines = [
        ",".join(map(str, (x, y, x + 8 * len(row), y, x + 8 * len(row), y + 20, x, y + 20, row)))
        for row, (x, y) in zip(rows, places, strict=True)
    ]
    key = {"company": shop, "date": date, "total": total, "address": "MAIN ROAD, 3"}
    return {f"data/box/X{number}.csv": "\n".join(lines), f"data/key/X{number}.json": json.dumps(key)}


RECEIPTS = {name: text for number in range(len(CITIES)) for name, text in receipt(number).items()}


@pytest.fixture
def real_folder(tmp_path: Path) -> Path:
    """Files of pages of receipts."""
    write(receipts(repository(tmp_path / "git", RECEIPTS), set()), tmp_path / "pages" / "receipts.jsonl.gz")
    return tmp_path / "pages"


def test_scans_of_receipts_are_a_data_set(tmp_path: Path, real_folder: Path) -> None:
    files = RECEIPTS | {f"data/img/X{number}.jpg": f"picture {number}" for number in range(len(CITIES))}
    pages = RealPages(real_folder / "receipts.jsonl.gz", "train")
    write_scans(repository(tmp_path / "scanned", files), pages, tmp_path / "out")
    records = Jsonl(tmp_path / "out" / "data.jsonl").read()
    assert len(records) == sum(len(page.questions) for page in map(pages.__getitem__, range(len(pages))))
    shops = {(Path(str(record.image)), record.answers[0]) for record in records if "STORE" in record.answers[0]}
    assert len(shops) == len(pages)
    for path, shop in shops:
        assert path.read_text() == f"picture {CITIES.index(shop.split()[0].title())}"


def test_receipts_have_their_keys_and_mined_fields_and_prices(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("sroie/X3\ndeepform/doc_2\nsource 2001_Firm_Form.pdf\n")
    out = kept_out(tmp_path / "list")
    assert {"X3", "doc", "2001_Firm_Form"} <= out
    pages = receipts(repository(tmp_path / "git", RECEIPTS), out)
    assert [page.group for page in pages] == [f"{city.lower()}store" for city in CITIES if city != CITIES[3]]
    told = {each["concept"]: each for each in pages[0].questions}
    assert {name: each["answers"] for name, each in told.items()} == {
        "shop": ["ARBON STORE"],
        "receipt date": ["01/03/2018"],
        "address": ["MAIN ROAD, 3"],
        "total": ["10.00"],
        "phone": ["07-3507400"],
        "cash": ["20.00"],
        "price": ["0.50"],
    }
    assert told["receipt date"]["boxes"][0][0] > 40 and told["price"]["label"] == "RYE BREAD"
    refuses(r"expected a git repository; got none", Repository, tmp_path / "nothing")


def test_fields_of_filings_come_from_the_text_layer(tmp_path: Path) -> None:
    files = {}
    for number in range(len(CITIES)):
        content = "\n".join(
            text_at(x0, 780 - y1, text, size=9)
            for text, x0, _, _, y1 in [
                *order(number),
                *[(f"note {n}", 30.0, 0.0, 0.0, 400.0 + 20 * n) for n in range(4)],
            ]
        )
        files[f"ad-buy-form/main/pdfs/{CITIES[number]}.pdf"] = write_pdf(tmp_path / f"{number}.pdf", content)
    pages = filings(repository(tmp_path / "git", files), "ad-buy-form", "orders", {"Chur"})
    assert {page.group for page in pages} == {*CITIES} - {"Chur"}
    told = {(each["concept"], each["part"]): each["answers"][0] for each in pages[0].questions}
    whole = {"advertiser": "Arbon Party", "estimate": "480", "product": "Bread 0", "flight": "01/02/20 - 01/20/20"}
    parts = {("flight", "start"): "01/02/20", ("flight", "end"): "01/20/20"}
    assert told == {(concept, ""): answer for concept, answer in whole.items()} | parts


def test_pages_without_fields_are_asked_for_words_behind_others(tmp_path: Path) -> None:
    """arr-coc-135m had seen fields alone: 22 % of such questions about manuals were answered."""
    words = [f"{start}{vowel}{middle}o" for start in "bdfglm" for vowel in "aeiu" for middle in "nrst"]
    rows = [" ".join(words[number : number + 8]) for number in range(0, len(words), 8)]
    content = "\n".join(text_at(40, 700 - 20 * number, row, size=9) for number, row in enumerate(rows))
    for package in ("4ti2-doc", "abinit-doc", "asymptote-doc", "ddd-doc", "doxygen-doc", "gfan", "graphviz-doc"):
        write_pdf(tmp_path / "pdfs" / package / "manual.pdf", content)
    write(manuals(tmp_path / "pdfs"), tmp_path / "manuals.jsonl.gz", bare=True)
    page = RealPages(tmp_path / "manuals.jsonl.gz", "train")[0]
    assert [line.text for line in page.lines] == rows
    lines = " / ".join(rows)
    assert page.questions and not any(question.absent for question in page.questions)
    for question in page.questions:
        before = question.text.split('"')[1]
        assert f"{before} {question.answers[0]}" in lines


def test_pages_of_a_company_are_in_one_split_and_ask_for_absent_fields(real_folder: Path) -> None:
    path, texts, groups = real_folder / "receipts.jsonl.gz", set(), []
    for split in ("train", "validation", "test"):
        there = [city for city in CITIES if split_of_group(f"{city.lower()}store") == split]
        if not there:
            refuses("expected pages of the split", RealPages, path, split)
            continue
        pages = RealPages(path, split)
        assert len(pages) == len(there)
        groups += [page.source for page in pages]
        page = pages[0]
        assert page.kind == "receipts" and page.lines[0].text.endswith("STORE")
        assert all(question.boxes or question.absent for question in page.questions)
        texts |= {
            question.text for seed in range(9) for question in pages.page(0, np.random.default_rng(seed)).questions
        }
    assert sorted(groups) == sorted(f"{city.lower()}store" for city in CITIES) and len(texts) > 30


def test_absent_fields_have_no_label_on_the_page(real_folder: Path) -> None:
    path = real_folder / "receipts.jsonl.gz"
    with gzip.open(path, "rt") as stream:
        rows = [json.loads(line) for line in stream]
    rows[0]["group"] = rows[1]["group"] = "a"
    rows[0]["lines"] = [line for line in rows[0]["lines"] if not line[0].startswith(("CASH", "20"))]
    rows[0]["questions"] = [each for each in rows[0]["questions"] if each["concept"] != "cash"]
    plain = real_folder / "few.jsonl"
    plain.write_text("\n".join(map(json.dumps, rows[:2])))
    pages = RealPages(plain, split_of_group("a"))
    asked = [question for seed in range(30) for question in pages.page(0, np.random.default_rng(seed)).questions]
    absent = [question for question in asked if question.absent]
    assert absent and {question.answers for question in absent} == {("not on the page",)}
    whole = [question for seed in range(30) for question in pages.page(1, np.random.default_rng(seed)).questions]
    assert not [question.text for question in whole if question.absent]


def test_moved_pages_keep_what_their_boxes_show(real_folder: Path) -> None:
    page = RealPages(real_folder / "receipts.jsonl.gz", "train")[0]
    other = moved(np.random.default_rng(0), page)
    assert other.size != page.size and [line.text for line in other.lines] == [line.text for line in page.lines]
    question, again = (next(q for q in one.questions if q.answers == ("MAIN ROAD, 3",)) for one in (page, other))
    line = next(line for line in other.lines if line.text == "MAIN ROAD, 3")
    assert np.allclose(again.boxes[0], [*line.boxes[0, :2], *line.boxes[-1, 2:]], atol=0.1)
    assert question.boxes != again.boxes


def test_sources_mix_drawn_and_real_pages(real_folder: Path) -> None:
    sources = Sources({"receipts": 1.0}, "train", real_folder=real_folder)
    assert sources.page(np.random.default_rng(0)).kind == "receipts"
    with pytest.raises(FileNotFoundError, match=r"orders\.jsonl\.gz"):
        Sources({"orders": 1.0}, "train", real_folder=real_folder)
    refuses("page source: expected one of", Sources, {"receipts": 1.0}, "train")
    (real_folder / "damaged.jsonl.gz").write_bytes((real_folder / "receipts.jsonl.gz").read_bytes()[:40])
    plain = real_folder / "plain.jsonl"
    plain.write_text('{"group": "x"}\n')
    refuses(r"expected a page a line.*; got KeyError", RealPages, plain, "train")


def asked_pages(sources: Sources, wanted: Any, **settings: Any) -> AskedPages:
    model = tiny_model(**READS_WORDS, fetcher=SCORES_WORDS)
    return AskedPages(sources, (1,), Run(model, model.processor), RelevanceStage(**settings), wanted)


def test_questions_of_one_page_are_about_values_of_one_type(real_folder: Path) -> None:
    """Total, cash and price are told apart by the wording alone."""
    sources, shares = Sources({"receipts": 1.0}, "train", real_folder=real_folder), []
    for contrast in (0.0, 1.0):
        pages = asked_pages(
            sources, lambda question: not question.absent, pages_per_step=40, questions=3, contrast=contrast
        )
        types = [[type_of(question.answers[0]) for question in page.questions] for page in pages.batch(0)]
        shares.append(np.mean([each.count(each[0]) / len(each) for each in types]))
    assert shares[0] + 0.08 < shares[1]


def test_questions_about_another_page_of_the_kind_are_not_answered_by_a_page() -> None:
    sources = Sources({"laid_out": 1.0}, "train")
    asked = asked_pages(sources, lambda question: True, pages_per_step=24, questions=6, elsewhere=0.5).batch(0)
    foreign = [page for page in asked if page.questions[-1].absent and not page.questions[-1].boxes]
    assert len(foreign) > len(asked) / 4
    for page in foreign:
        absent = torch.tensor([question.absent for question in page.questions])
        assert len(page.questions) <= 6 and not page.answer[absent].any() and not page.relevance[absent].any()


def test_told_apart_are_questions_that_one_page_alone_answers() -> None:
    def page(*rows: tuple[str, str]) -> TextPage:
        lines = tuple(line(f"{label} {value}", 0, 20 * at, 99, 20 * at + 9) for at, (label, value) in enumerate(rows))
        asked = (
            Question(f"What is the {label}?", (value,), ((0, 0, 9, 9),), ((0, 0, 9, 9),), "x") for label, value in rows
        )
        return TextPage(None, (100, 100), lines, tuple(asked))

    pages = [page(("Lamp Price", "7.50"), ("Total", "9")), page(("Chair Price", "4.20"), ("Total", "8"))]
    assert [(number, each.answers[0]) for number, each in told_apart(pages)] == [(0, "7.50"), (1, "4.20")]
    pages[1] = page(("Chair Price", "7.50"))
    assert not any(each.answers == ("7.50",) for _, each in told_apart(pages)), "the answer is on both"


@pytest.mark.parametrize("name", ["real_pages", "without_base"])
def test_a_recipe_on_real_pages_is_one_command(name: str) -> None:
    recipe = load_recipe(Path(__file__).parents[1] / "hub_configs" / "arr-coc-135m" / f"{name}.yaml")
    finding, answering = recipe.stages
    assert isinstance(finding, RelevanceStage) and isinstance(answering, QuestionAnsweringStage)
    assert finding.pages == answering.pages and finding.real_folder == answering.real_folder


def test_scans_show_what_both_teachers_read(tmp_path: Path, real_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The annotation has no small letters, PP-OCR no spaces; what one of them alone reads is painted over."""
    image = Image.new("RGB", (300, 200), "white")
    boxes = [(10, 10, 130, 30), (10, 50, 130, 70), (10, 90, 130, 110)]
    for box in boxes:
        ImageDraw.Draw(image).rectangle(box, fill="black")
    read = [line_in_box(text, box) for text, box in zip(("TotalDue", "9.50", "smudge"), boxes, strict=True)]
    monkeypatch.setitem(WORD_SOURCES, "ocr", lambda page: PageWords(tuple(read)))
    lines = [("TOTAL DUE", 9, 9, 131, 31), ("9.60", 10, 50, 130, 70)]
    assert read_scan(Scan("shop", image, lines * 2)) is None, "too little is read alike"
    page = read_scan(Scan("shop", image, [lines[0], ("9.6", *lines[1][1:])]))
    assert page is not None and [each.text for each in page.lines] == ["Total Due"]
    inked = np.asarray(page.image).mean(2) < 128
    assert inked[20, 20:120].all() and not inked[40:].any()
    for split in ("train", "validation"):
        (real_folder / "scans" / split).mkdir(parents=True)
        store_page(page, real_folder / "scans" / split / "0.npz")
    drawn = Sources({"scans": 1.0}, "train", worn=0.0, real_folder=real_folder).page(np.random.default_rng(0))
    assert [each.text for each in drawn.lines] == ["Total Due"] and drawn.image is not None
    with pytest.raises(FileNotFoundError, match="real_scans"):
        Sources({"scans": 1.0}, "test", real_folder=real_folder)
    (real_folder / "receipts").mkdir()
    text = Sources({"receipts": 1.0}, "train", real_folder=real_folder).page(np.random.default_rng(0))
    assert text.image is None, "a file of pages as text comes before a folder of its name"
