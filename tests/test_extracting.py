"""Fields become cells: one value each, from the surest page, no two of one place; tables survive what they hold."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import Cli, refuses, tiny_model
from PIL import Image
from tiny_pdf import PASSWORD, locked, text_at, write_pdf
from web_page import WebPage

from arr_coc.extracting.rows import ExtractionJob, extract_rows, find_documents, read_calibration, threshold_for
from arr_coc.extracting.tables import cells_of, check_page, harmless, write_table
from arr_coc.modeling import extraction
from arr_coc.modeling.answers import Answer, Origin
from arr_coc.modeling.extraction import date_in, day_comes_first, extract, fields_to_extract, number_in, value_of
from arr_coc.pages.domains.chromium import find_browser

FIELDS = fields_to_extract("total: money, due date: date, note")
PAGE = Origin(0, None, None, (0.0, 0.0, 0.0, 0.0))


def answer(text: str, probability: float, left: float | None = None) -> Answer:
    """An answer, and its place, 30 px wide."""
    places = () if left is None else (replace(PAGE, box=(left, 0.0, left + 30, 10.0)),)
    return Answer(text, probability, fetch=None, places=places)  # type: ignore[arg-type]


class Told:
    """An `AnswerGenerator` that gives the same answers to each question, the first ones without beams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pages: dict[str, list[Answer]], text: str = "") -> None:
        monkeypatch.setattr(extraction, "wordpieces_read", lambda *_: ([], []))
        monkeypatch.setattr(extraction, "encode_pages", lambda told, image: told.encode_pages(image))
        self.pages, self.asked = pages, list[tuple[int, int]]()
        self.processor = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda _: text))

    def encode_pages(self, image: Any, **_: Any) -> Any:
        for number in range(len(self.pages)):
            yield SimpleNamespace(number=number, sources=[SimpleNamespace(page=number + 1)])

    def ask(self, page: Any, questions: list[str], num_beams: int = 1, **_: Any) -> list[Answer]:
        self.asked.append((len(questions), num_beams))
        return [each for question in questions for each in (self.pages[page.number][question] * num_beams)[:num_beams]]


def test_fields_have_names_types_and_questions() -> None:
    made = fields_to_extract("invoice number, total: money, due: date: When must it be paid?, seller: the firm's name")
    assert [(each.name, each.kind, each.question) for each in made] == [
        ("invoice number", "text", "What is the invoice number?"), ("total", "money", "What is the total?"),
        ("due", "date", "When must it be paid?"), ("seller", "text", "What is the firm's name?"),
    ]  # fmt: skip
    assert fields_to_extract({"total": "money"}) == fields_to_extract(["total: money"])
    assert fields_to_extract("total: Money") == fields_to_extract("total: money")
    for wrong in ("", "a, a", ": text", 3, "due: dates", "paid: yes/no?, total: mony"):
        refuses("fields: expected", fields_to_extract, wrong)


def test_a_missing_field_is_empty_and_an_unsure_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, {
        "What is the total?": [answer("RM 9.00", 0.9, 10)], "What is the due date?": [answer("03/04/2018", 0.8, 50)],
        "What is the note?": [answer("Not on the page", 0.7)],
    })  # fmt: skip
    found = extract(told, "x.png", FIELDS)  # type: ignore[arg-type]
    assert [each.value for each in found.values()] == [9, None, None]
    assert found["total"].boxes == ((10.0, 0.0, 40.0, 10.0),) and found["total"].page == 1
    assert "day or month" in found["due date"].warning and found["note"].printed == ""
    assert extract(told, "x.png", FIELDS, min_probability=0.95)["total"].value is None  # type: ignore[arg-type]
    told = Told(monkeypatch, *told.pages, text="Issued 25/03/2018")
    assert extract(told, "x.png", FIELDS)["due date"].value == "2018-04-03"  # type: ignore[arg-type]


def test_a_value_comes_from_the_surest_page_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = "What is the note?"
    told = Told(
        monkeypatch,
        {asked: [answer("not on the page", 0.99)]}, {asked: [answer("paid", 0.5)]}, {asked: [answer("late", 0.6)]},
    )  # fmt: skip
    found = extract(told, "x.pdf", "note")["note"]  # type: ignore[arg-type]
    assert (found.value, found.page, found.alternatives) == ("late", 3, (("paid", 0.5),))


def test_two_distinct_fields_do_not_take_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, {
        "What is the total?": [answer("9.00", 0.9, 10), answer("8.00", 0.05, 100)],
        "What is the tax?": [answer("9.00", 0.6, 10), answer("1.00", 0.3, 200)],
        "What is the note?": [answer("9.00", 0.6, 10)],
    })  # fmt: skip
    fields = "total: money, tax: money, note"
    found = extract(told, "x.png", fields, distinct=[("total", "tax")])  # type: ignore[arg-type]
    assert [each.value for each in found.values()] == [9, 1, "9.00"]
    assert told.asked == [(3, 1), (2, 4)]  # only what is contested is asked again
    with pytest.raises(ValueError, match="distinct: expected names among total, tax, note; got fee"):
        extract(told, "x.png", fields, distinct=[("total", "fee")])  # type: ignore[arg-type]


# ---- tables
def row(document: str, **cells: tuple[Any, float]) -> dict[str, Any]:
    found = {
        name.replace("_", " "): {"value": value, "probability": sure, "printed": "" if value is None else str(value),
                                 "page": 1, "boxes": [[10, 10, 40, 20]], "alternatives": [], "warning": ""}
        for name, (value, sure) in cells.items()
    }  # fmt: skip
    return {"document": document, "page": None, "fields": found, "error": "", "seconds": 1.0}


ROWS = [
    row("safe.png", total=(9.5, 0.9), due_date=("2018-12-25", 0.8), note=(None, 0.7)),
    row("=evil.png", total=(-3, 0.95), due_date=(None, 0.9), note=('=HYPERLINK("x")</script><b>', 0.2)),
    {**row("bad.pdf"), "error": "bad.pdf: expected a PDF; got text"},
]


def test_csv_runs_no_formula_and_keeps_numbers(tmp_path: Path) -> None:
    write_table(ROWS, FIELDS, tmp_path / "t.csv", "csv")
    with (tmp_path / "t.csv").open(encoding="utf-8-sig", newline="") as stream:
        head, *cells = csv.reader(stream)
    names = [name for field in FIELDS for name in (field.name, f"{field.name} probability")]
    assert head == ["document", *names, "error", "warning"]
    assert cells[0] == ["safe.png", "9.50", "0.9", "2018-12-25", "0.8", "", "0.7", "", ""]
    assert cells[1][:2] == ["'=evil.png", "-3.00"] and cells[1][5] == '\'=HYPERLINK("x")</script><b>'
    assert cells[2] == ["bad.pdf", *[""] * 6, "bad.pdf: expected a PDF; got text", ""]
    warned = row("w.png", total=(1, 0.9), due_date=("2018-12-25", 0.8), note=(None, 0.7))
    for name, warning in (("total", "letters are small"), ("due date", "cut"), ("note", "letters are small")):
        warned["fields"][name]["warning"] = warning
    assert cells_of([warned], FIELDS, ".")[1][-1] == "total, note: letters are small; due date: cut"
    warned["fields"]["due date"]["warning"] = "letters are small"
    assert cells_of([warned], FIELDS, ".")[1][-1] == "letters are small"  # as it is the page's
    write_table(ROWS, FIELDS, tmp_path / "t.csv", "csv", decimal_comma=True)
    assert ";9,50;0,9;" in (tmp_path / "t.csv").read_text(encoding="utf-8-sig")
    assert [harmless(text) for text in ("+1", " -1", "@x", "\tx", "a=b")] == ["'+1", "' -1", "'@x", "'\tx", "a=b"]


def test_other_formats(tmp_path: Path) -> None:
    write_table(ROWS, FIELDS, tmp_path / "t.jsonl", "jsonl")
    assert [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()] == ROWS
    openpyxl = pytest.importorskip("openpyxl")
    write_table(ROWS, FIELDS, tmp_path / "t.xlsx", "xlsx")
    cells = [[cell.value for cell in line] for line in openpyxl.load_workbook(tmp_path / "t.xlsx").active.iter_rows()]
    assert cells[1][1] == 9.5 and cells[2][0] == "'=evil.png"


def test_the_page_to_check_by_escapes_and_begins_with_doubt(tmp_path: Path) -> None:
    Image.new("RGB", (200, 100), "white").save(tmp_path / "safe.png")
    rows = [{**each, "document": str(tmp_path / each["document"])} for each in ROWS]
    page = check_page(rows, FIELDS)
    assert "<b>" not in page and page.count("</script>") == 1 and "&lt;/script&gt;" in page
    order = [page.index(name) for name in ("bad.pdf", "=evil.png", "safe.png")]
    assert (
        order == sorted(order) and page.count("data:image/jpeg;base64,") == 1 and "http" not in page.split("<main>")[1]
    )


def test_the_page_to_check_by_works_in_a_browser_without_a_network(tmp_path: Path) -> None:
    """Boxes mark their field, fields their boxes; what is saved is what was edited, and runs nothing."""
    try:
        find_browser()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    Image.new("RGB", (200, 100), "white").save(tmp_path / "safe.png")
    rows = [{**each, "document": str(tmp_path / each["document"])} for each in ROWS]
    (tmp_path / "check.html").write_text(check_page(rows, FIELDS), encoding="utf-8")
    page = WebPage((tmp_path / "check.html").as_uri(), shows="section:nth-of-type(3) figure i")
    try:
        assert page.evaluate("[...document.querySelectorAll('section')].length") == 3
        page.click("section:nth-of-type(3) figure i[data-field=total]")
        assert page.evaluate("document.activeElement.dataset.field") == "total"
        assert page.evaluate("document.querySelectorAll('i.on').length") == 1
        page.write("section:nth-of-type(3) input[data-field=note]", "=1+1")
        page.evaluate("URL.createObjectURL = blob => { blob.text().then(text => window.saved = text); return '#' }")
        page.click("#save")
        saved = page.wait("window.saved")
        assert page.text("#note") == "1 fields were edited"
        cells = [*csv.reader(saved.lstrip("\ufeff").splitlines())]
        assert cells[0] == ["document", "page", "total", "due date", "note"]
        assert cells[3] == [rows[0]["document"], "", "9.50", "2018-12-25", "'=1+1"]
        assert cells[2][2:] == ["-3.00", "", '\'=HYPERLINK("x")</script><b>']
        assert {url.split(":")[0] for url in page.requests} == {"file"}
    finally:
        page.close()


# ---- the command
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an image, a PDF of two pages, a broken PDF, and a file that is no document."""
    documents = tmp_path / "in"
    documents.mkdir()
    Image.new("RGB", (64, 64), "white").save(documents / "a.png")
    write_pdf(documents / "b.pdf", text_at(20, 30, "Total 3.50"), text_at(20, 30, "Page 2"), size=(100, 100))
    (documents / "c.pdf").write_bytes(b"%PDF-1.4 broken")
    (documents / "notes.txt").write_text("x")
    return documents


def test_a_folder_becomes_a_table_and_a_bad_file_a_row(cli: Cli, checkpoint: Path, folder: Path) -> None:
    out = folder.parent / "table.jsonl"
    asked = ("extract", folder, "--fields", "total: money, date", "--model", checkpoint, "--out", out)
    code, _, said = cli(*asked)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [Path(each["document"]).name for each in rows] == ["a.png", "b.pdf", "c.pdf"]
    assert code == 2 and "1 of 3 documents have an error" in said and "3 documents, " in said
    assert rows[2]["fields"] == {} and "a PDF that can be opened" in rows[2]["error"]
    assert set(rows[0]["fields"]) == {"total", "date"}
    code, _, said = cli(*asked)  # again: only the bad one is read
    assert "2 documents were read before" in said
    code, _, said = cli(*asked[:3], "total: money", *asked[4:])  # other fields: all are
    assert "read before" not in said
    code, _, said = cli("extract", folder / "b.pdf", *asked[2:], "--per", "page")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert code == 0 and [each["page"] for each in rows] == [1, 2]


@pytest.mark.parametrize("kind", ["jsonl", "html"])
def test_a_password_opens_pdfs_and_is_written_nowhere(cli: Cli, checkpoint: Path, tmp_path: Path, kind: str) -> None:
    path, given = locked(tmp_path / "locked.pdf"), tmp_path / "password.txt"
    asked = ("extract", path, "--fields", "total", "--model", checkpoint, "--out", tmp_path / f"out/table.{kind}")
    (tmp_path / "out").mkdir()
    named = "locked.pdf: expected the password of an encrypted PDF (password=, or --password-file of ask and extract)"
    for content, received in ((None, "got none"), ("open", "got another"), (f"{PASSWORD}\n", "")):
        options = () if content is None else ("--password-file", given)
        given.write_text(content or "", encoding="utf-8")
        code, _, said = cli(*asked, *options)
        told, answered = (cli(*("ask", path, "What?", "--model", checkpoint), *options)[number] for number in (2, 0))
        if received:
            assert code == answered == 2 and f"{named}; {received}" in said and f"{named}; {received}" in told
    assert code == answered == 0 and PASSWORD not in said + told
    written = b"".join(each.read_bytes() for each in (tmp_path / "out").rglob("*") if each.is_file())
    assert PASSWORD.encode() not in written and b"cannot be read any more" not in written
    code, _, said = cli(*asked, "--password-file", tmp_path / "none.txt")
    assert code == 2 and "--password-file: expected a file; got" in said


def test_rows_before_a_kill_are_kept(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    job = ExtractionJob(tuple(fields_to_extract("total")), str(checkpoint))
    documents = find_documents([str(folder / "*.p[nd][gf]")])[:2]
    for path, _, known in extract_rows(documents, job, tmp_path / "rows", "weights"):
        assert path == documents[0] and not known
        break  # killed after the first document
    told = [(path, known) for path, _, known in extract_rows(documents, job, tmp_path / "rows", "weights")]
    assert told == [(documents[0], True), (documents[1], False)]
    assert not any(known for *_, known in extract_rows(documents, job, tmp_path / "rows", "other weights"))


@pytest.mark.slow
def test_several_processes_make_the_same_rows(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    job = ExtractionJob(tuple(fields_to_extract("total")), str(checkpoint))
    documents, threads = find_documents([str(folder)]), torch.get_num_threads()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # as each of two processes: sums round alike
    try:
        made = [
            {
                path: [{**each, "seconds": 0} for each in rows]
                for path, rows, _ in extract_rows(documents, job, to, "", jobs)
            }
            for to, jobs in ((tmp_path / "one", 1), (tmp_path / "two", 2))
        ]
    finally:
        torch.set_num_threads(threads)
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "--fields: expected it or --schema"),
        (("--fields", "a", "--out", "t.txt"), "--out: expected a name ending in csv, jsonl, xlsx, html"),
        (("--fields", "a", "--precision", "0.95"), "--precision: expected --calibration"),
        (("--fields", "a", "--min-probability", "2"), "--min-probability: expected 0 to 1; got 2"),
    ],
)
def test_mistakes_are_refused_before_the_model_is_loaded(
    cli: Cli, folder: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    out = () if "--out" in options else ("--out", tmp_path / "t.csv")
    code, _, said = cli("extract", folder, *options, *out)
    assert code == 2 and message in said


def test_paths_without_documents_are_refused(tmp_path: Path) -> None:
    for path, fault in (("nothing/*.png", "has none"), (str(tmp_path), "has none"), ("nothing.png", "does not exist")):
        refuses(rf"PATHS: expected documents .* got '{re.escape(path)}', which {fault}", find_documents, [path])


def test_a_schema_gives_fields_with_types(cli: Cli, checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps({"properties": {
        "total": {"type": "number"}, "paid": {"type": "boolean"},
        "issued": {"type": "string", "format": "date", "description": "When was it issued?"},
    }}))  # fmt: skip
    out = tmp_path / "t.csv"
    code, _, _ = cli("extract", folder / "a.png", "--schema", tmp_path / "s.json", "--model", checkpoint, "--out", out)
    assert code == 0 and out.read_text("utf-8-sig").startswith(
        "document,total,total probability,paid,paid probability,issued,"
    )


def test_the_threshold_keeps_a_precision(tmp_path: Path) -> None:
    cells = [(0.9, True)] * 30 + [(0.8, True)] * 10 + [(0.7, False)] * 4 + [(0.6, True)] * 3
    assert threshold_for(0.95, cells) == 0.8 and threshold_for(0.99, cells) > 1
    assert threshold_for(0.95, [(0.9, True)] * 5) > 1  # too few to tell
    path = tmp_path / "cells.json"
    path.write_text(json.dumps({"cells": [[0.9, True]]}))
    assert read_calibration(path) == [(0.9, True)]
    path.write_text("{}")
    refuses("--calibration: expected", read_calibration, path)


def test_no_grad_is_needed() -> None:
    """The encodings of pages held the graph of their prefill."""
    model, graphs = tiny_model(), list[bool]()
    model.model.language_model.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    with torch.enable_grad():
        found = model.extract(Image.new("RGB", (64, 64), "white"), "total")
    assert set(found) == {"total"} and graphs and not any(graphs)


@pytest.mark.slow
def test_two_workers_extract_a_folder_and_go_on_where_a_run_ended(tmp_path: Path, checkpoint: Path) -> None:
    """A bad file is a row; what the table has is not read again, even if it is no document any more."""
    pytest.importorskip("ray.data")
    dataset = pytest.importorskip("pyarrow.dataset")
    documents, table = tmp_path / "in", tmp_path / "table"
    documents.mkdir()
    for name in ("0.png", "1.png", "new.png"):
        Image.new("RGB", (64, 64), (9 * len(name),) * 3).save(documents / name)
    new = (documents / "new.png").rename(tmp_path / "new.png")
    (documents / "broken.pdf").write_bytes(b"%PDF-1.4 broken")
    script = Path(__file__).parents[1] / "examples" / "extract_ray.py"
    options = ["--fields", "total: money, note", "--model", str(checkpoint), "--workers", "2", "--cpus", "0.5"]
    command = [sys.executable, str(script), str(documents), str(table), *options]
    assert "3 documents, 0 of them" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (documents / "0.png").write_bytes(b"not a picture any more")
    new.rename(documents / "new.png")
    assert "4 documents, 3 of them" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = dataset.dataset(table).to_table().to_pylist()
    assert [Path(row["document"]).name for row in rows if row["error"]] == ["broken.pdf"]
    assert sorted(Path(row["document"]).name for row in rows) == sorted(path.name for path in documents.iterdir())
    assert {"total", "total probability", "note"} <= rows[0].keys()


# ---- Printed values: numbers of any currency, dates printed in any usual way, and what may mean two things
CHRISTMAS = date(2018, 12, 25)


@pytest.mark.parametrize(
    "text",
    [
        "2018-12-25", "25/12/2018 8:13:39 PM", "12/25/2018", "25.12.18", "25-12-18", "25 / 12 / 2018",
        "Date: 25 Dec 2018", "25-DEC-2018", "25Dec'18",
        "December 25, 2018", "Dec. 25th, 2018", "Tuesday, 25th of December 2018", "25 décembre 2018", 
        "25. Dezember 2018", "25 de diciembre 2018", "20181225", "2018/12/25",
    ],
)  # fmt: skip
def test_dates_in_any_usual_print(text: str) -> None:
    assert date_in(text.replace(" de ", " ")) == CHRISTMAS


@pytest.mark.parametrize("text", ["", "soon", "12", "12/2018", "31/02/2018", "99/99/2018", "Invoice 4711", "8:13 PM"])
def test_what_is_no_date(text: str) -> None:
    assert date_in(text, True) is None and date_in(text, False) is None


def test_day_or_month_first_is_not_guessed_but_told_by_the_rest_of_the_page() -> None:
    assert date_in("03/04/2018") is None
    assert date_in("03/04/2018", day_first=True) == date(2018, 4, 3)
    assert date_in("03/04/2018", day_first=False) == date(2018, 3, 4)
    assert date_in("03.04.2018") == date(2018, 4, 3)  # with points the day comes first
    assert date_in("04/04/2018") == date(2018, 4, 4)
    assert value_of("03/04/2018", "date") == (None, "'03/04/2018': day or month may come first")
    assert day_comes_first("Issued 25/12/2018, due 03/01/2019") is True
    assert day_comes_first("Issued 12/25/2018, due 01/03/2019") is False
    assert day_comes_first("Issued 05/06/2018") is None
    assert day_comes_first("Issued 25/12/2018, due 12/26/2018") is None


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("RM9.00", "money", 9), ("MYR 1,234.50", "money", 1234.5), ("(12.50)", "number", -12.5),
        ("6, 675.25", "money", 6675.25), ("CHF 1, 002, 676.40", "money", 1002676.4),
        ("yes", "yes/no", True), ("No.", "yes/no", False),
        (" as printed", "text", " as printed"), ("25.12.18", "date", "2018-12-25"),
    ],
)  # fmt: skip
def test_values_by_type(text: str, kind: str, value: object) -> None:
    assert value_of(text, kind) == (value, "")


def test_other_texts_have_no_value_and_say_why() -> None:
    assert value_of("soon", "money") == (None, "'soon' is no money")
    assert number_in("INV-20417") is None
    assert number_in("6, 675") is None, "may be two numbers"
