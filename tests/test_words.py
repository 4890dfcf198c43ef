"""Where the words of a page come from: every source by every door, what is refused, and layers that lie."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from helpers import READS_WORDS, SCORES_WORDS, Cli, noise, png, reads, refuses, tiny_checkpoint, tiny_model
from PIL import Image
from serving_client import SETTINGS, ask, data_url, serving, text_of
from tiny_pdf import text_at, write_form, write_pdf
from transformers import TextStreamer

from arr_coc.data.collator import QuestionCollator
from arr_coc.data.records import Record
from arr_coc.evaluation.bench import ModelReader
from arr_coc.modeling import word_sources
from arr_coc.modeling.budgets import ViewOptions
from arr_coc.modeling.documents import open_document
from arr_coc.modeling.image_encoding import ImageEncoding
from arr_coc.modeling.image_loading import Source, load_source
from arr_coc.modeling.printed_lines import TextLayer, line_in_box, readable
from arr_coc.modeling.word_sources import (
    WORD_SOURCES,
    PageToRead,
    PageWords,
    doubts,
    from_tensor,
    words_of_each,
    words_of_page,
)
from arr_coc.modeling.wordpieces import TextReader

PAGE = Image.new("RGB", (64, 48), "white")
WORDS = [("ab", (4, 4, 20, 10)), ("cd", (30, 4, 50, 10)), ("ef", (4, 24, 20, 30))]
SOURCE = Source(48, 64, PAGE.copy, page=1)
HOCR = """<div class='ocr_page' title='bbox 0 0 128 96'><span class='ocrx_word' title='bbox 8 8 40 20; x_wconf 90'>
<strong>ab</strong></span> <span class='ocrx_word' title='bbox 60 8 100 20'>cd</span></div>"""
ALTO = """<alto xmlns="http://www.loc.gov/standards/alto/ns-v4#"><Layout><Page WIDTH="64" HEIGHT="48"><String
 CONTENT="ab" HPOS="4" VPOS="4" WIDTH="16" HEIGHT="6"/></Page></Layout></alto>"""
PAGE_XML = """<PcGts xmlns="http://schema.primaresearch.org/PAGE/gts/pagecontent/2019-07-15"><Page imageWidth="64"
 imageHeight="48"><TextLine><Word><Coords points="4,4 20,4 20,10 4,10"/><TextEquiv><Unicode>ab</Unicode></TextEquiv>
</Word></TextLine></Page></PcGts>"""


@pytest.fixture(scope="module")
def model() -> Any:
    return reads(tiny_model(**READS_WORDS, fetcher=SCORES_WORDS), 0, 1)


@pytest.fixture
def silent_model() -> Any:
    """A model whose text reader must not be asked."""
    model = tiny_model(**READS_WORDS, fetcher=SCORES_WORDS)
    model.model.vision_tower.text_reader.read = None
    model.model.vision_tower.text_reader.scales = None
    return model


def spelled_out(model: Any, encoding: Any) -> set[str]:
    """The wordpieces of an encoding as text; that of a space alone is left out."""
    ids = encoding.pieces[encoding.pieces >= 0].tolist()
    return {text for token in ids if (text := model.processor.tokenizer.decode([token]).strip())}


def page_of(path: Path, number: int = 0) -> PageToRead:
    source = open_document(load_source(str(path)), ViewOptions(), 10**8)[number]  # type: ignore[arg-type]
    return PageToRead(source, source.load())


def layer_of(path: Path) -> TextLayer:
    layer = page_of(path).layer
    assert layer is not None
    return layer


# ---- sources
def test_the_callers_words_are_read_in_their_places(silent_model: Any) -> None:
    encoding = silent_model.encode_image(PAGE, words=WORDS)
    assert spelled_out(silent_model, encoding) == set("abcdef")  # the tiny tokenizer merges nothing
    assert encoding.word_sources() == [("caller", "", "")] and encoding.unseen
    rows = (encoding.pieces[0] >= 0).flatten(1).any(1).view(encoding.side, -1)
    assert rows[: encoding.side // 2].any() and rows[encoding.side // 2 :].any()
    answer = silent_model.generate(PAGE, "What is ab?", words=WORDS, return_fetch=True)
    assert answer.words == ("caller",) and answer.legibility == 1.0
    other = [(text[::-1], box) for text, box in WORDS]
    assert not torch.equal(silent_model.encode_image(PAGE, words=other).tokens, encoding.tokens)


@pytest.mark.parametrize("content", [HOCR, ALTO, PAGE_XML])
def test_words_in_files_are_those_in_a_list(tmp_path: Path, silent_model: Any, content: str) -> None:
    path = tmp_path / "words.xml"
    path.write_text(content)
    given = WORDS[:2] if content == HOCR else WORDS[:1]
    named = silent_model.encode_image(PAGE, words=str(path))
    assert named.word_sources() == [("file", "", "")]
    pieces = silent_model.encode_image(PAGE, words=given).pieces
    assert (named.pieces >= 0).sum() == (pieces >= 0).sum()


@pytest.mark.parametrize(
    ("character", "shown"), [("a", "a"), ("ﬁ", "fi"), ("ő", "o"), ("ß", "ß"), ("ł", "l"), ("−", "-"), ("中", "")]
)
def test_characters_become_those_that_the_reader_knows(character: str, shown: str) -> None:
    assert readable(character) == shown


def test_text_layers_have_forms_rotated_pages_and_no_hidden_text(tmp_path: Path) -> None:
    form = layer_of(write_form(tmp_path / "form.pdf", "4711"))
    assert "4711" in {text for line in form.lines for text, _ in line.words()} and form.hidden == 0
    white = text_at(72, 700, "seen") + "1 1 1 rg " + text_at(72, 500, "unseen")
    layer = layer_of(write_pdf(tmp_path / "white.pdf", white))
    assert [line.text for line in layer.lines] == ["seen"] and layer.hidden == len("unseen")
    upright = write_pdf(tmp_path / "turned.pdf", f"q 0 1 -1 0 612 0 cm {text_at(72, 300, 'level')} Q")
    upright.write_bytes(upright.read_bytes().replace(b"/MediaBox", b"/Rotate 90 /MediaBox"))
    page = page_of(upright)
    (line,) = layer_of(upright).lines
    assert line.text == "level" and page.image.width > page.image.height
    x0, y0, x1, y1 = (round(edge) for edge in line.box)
    assert np.asarray(page.image.convert("L"))[y0:y1, x0:x1].min() < 100


def test_a_page_without_a_layer_is_read_by_the_network_with_a_warning(model: Any, tmp_path: Path) -> None:
    blank = write_pdf(tmp_path / "blank.pdf", "0 0 1 rg 10 10 20 20 re f", size=(60, 72))
    answer = model.generate(str(blank), "What?", words="text_layer", return_fetch=True)
    assert answer.words == ("network",) and "page 1 has no text layer, so the network read it" in answer.warning


# ---- layers that lie
def stated(*texts: str, hidden: int = 0, unknown: int = 0) -> TextLayer:
    lines = tuple(line_in_box(text, (10, 20 * n + 4, 200, 20 * n + 14)) for n, text in enumerate(texts))
    return TextLayer(lines, hidden, unknown, 0.0)


def doubt(layer: TextLayer, *read: str) -> str:
    return doubts(layer, PageToRead(SOURCE, PAGE, lambda strips: list(read)[: len(strips)]))


def test_honest_layers_are_trusted_and_liars_are_not() -> None:
    honest = ("Invoice 2210", "Total 350.00", "due in July", "thank you all")
    assert doubt(stated(*honest), *honest) == ""
    assert doubt(stated(*honest), *(text.upper() for text in honest)) == ""
    assert "other words" in doubt(stated(*honest), "quite else", "nothing of it", "more of that", "and so on")
    assert "other numbers" in doubt(stated(*honest), "Invoice 9871", "Total 124.99", *honest[2:])
    assert "cannot be seen" in doubt(stated(*honest, hidden=40), *honest)
    assert "have no known meaning" in doubt(stated(*honest, unknown=40), *honest)


# ---- OCR
def characters_at(*starts: int) -> list[Any]:
    """The characters of "abcd" as an engine gives them, each 3 px wide."""
    boxes = [[[x, 4], [x + 3, 4], [x + 3, 10], [x, 10]] for x in starts]
    return [(name, 0.9, box) for name, box in zip("abcd", boxes, strict=True)]


class Found:
    boxes = [[[4, 4], [20, 4], [20, 10], [4, 10]]]
    txts, scores = ("ab cd",), (0.9,)
    word_results = [characters_at(4, 7, 13, 16)]


def test_ocr_gives_lines_and_its_failures_are_told(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing(Found):
        boxes = None  # type: ignore[assignment]

    def fails(_: Any, **options: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(word_sources, "_version", lambda package: f"{package} 1")
    for engine, source, warning in (
        (lambda _, **options: Found, "ocr", ""),
        (lambda _, **options: Nothing, "network", "the image: OCR found no text, so the network read it"),
        (fails, "network", "the image: OCR failed (RuntimeError), so the network read it"),
    ):
        monkeypatch.setattr(word_sources, "ocr_engine", lambda engine=engine: engine)
        answer = model.generate(PAGE, "What?", words="ocr", return_fetch=True)
        assert answer.words == (source,) and warning in answer.warning


@pytest.mark.parametrize(("starts", "shown"), [((4, 7, 10, 13), "abcd"), ((4, 7, 14, 17), "ab cd")])
def test_gaps_that_an_engine_overlooked_are_spaces(starts: tuple[int, ...], shown: str) -> None:
    characters = characters_at(*starts)
    line = word_sources._line_of_ocr(Found.boxes[0], "abcd", 0.9, characters)
    assert line is not None and line.text == shown and line.boxes[0].tolist() == [4, 4, 7, 10]
    even = word_sources._line_of_ocr(Found.boxes[0], "abcd", 0.9, characters[1:])
    assert even is not None and even.text == "abcd" and even.boxes[-1, 2] == 20


def test_without_an_engine_one_line_says_how_to_install_it(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    word_sources.ocr_engine.cache_clear()
    monkeypatch.setattr(word_sources, "import_module", missing)
    with pytest.raises(ValueError, match=r'words="ocr": expected rapidocr \(pip install "arr-coc\[ocr\]"\); got none'):
        model.generate(PAGE, "What?", words="ocr")


# ---- doors
def test_the_processor_and_model_inputs_carry_words(model: Any) -> None:
    chat = [{"role": "user", "content": [{"type": "image", "image": PAGE}, {"type": "text", "text": "What is ab?"}]}]
    text = model.processor.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = model.processor(images=[PAGE], text=[text], words=WORDS, return_tensors="pt")
    assert from_tensor(inputs["image_words"])[0].source == "caller"  # type: ignore[union-attr]
    expected = model.generate(PAGE, "What is ab?", words=WORDS)
    tokens = model.generate(**inputs)[:, inputs["input_ids"].shape[1] :]
    assert model.processor.batch_decode(tokens, skip_special_tokens=True) == [expected]
    plain = model.processor(images=[PAGE], text=[text], return_tensors="pt")
    assert "image_words" not in plain
    tokens = model.generate(**plain, words="network")[:, plain["input_ids"].shape[1] :]
    assert model.processor.batch_decode(tokens, skip_special_tokens=True) == [model.generate(PAGE, "What is ab?")]
    large = model.processor(images=[PAGE.resize((200, 200))], text=[text], return_tensors="pt")
    assert torch.equal(model.generate(**large, words="network"), model.generate(**large))


def test_training_gets_the_words_of_a_source(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PAGE.save(tmp_path / "page.png")
    monkeypatch.setattr(word_sources, "ocr_engine", lambda: lambda _, **options: Found)
    monkeypatch.setattr(word_sources, "_version", lambda package: f"{package} 1")
    record = Record(tmp_path / "page.png", "What is ab?", ("cd",), line=1)
    batch = QuestionCollator(model.processor, model.config, words="ocr")([record])
    (page,) = from_tensor(batch["image_words"])
    assert isinstance(page, PageWords) and page.lines is not None and page.lines[0].text == "ab cd"
    inputs = {name: value for name, value in batch.items() if name not in ("relevance_targets",)}
    assert torch.isfinite(model(**inputs).loss)
    other = model(**{name: value for name, value in inputs.items() if name not in ("image_words", "source_sizes")})
    assert model(**inputs).loss != other.loss


def test_the_server_takes_words_and_says_where_they_came_from(model: Any, tmp_path: Path) -> None:
    pdf = write_pdf(tmp_path / "page.pdf", text_at(5, 30, "ab cd"), size=(60, 72))
    told = f"data:application/pdf;base64,{b64encode(pdf.read_bytes()).decode()}"
    url, question = data_url(png(PAGE)), "What is ab?"
    asked: list[tuple[str, Any, Any, str]] = [
        (url, PAGE, WORDS, "caller"),
        (url, PAGE, "network", "network"),
        (url, PAGE, "auto", "network"),
        (told, str(pdf), "text_layer", "text_layer"),
    ]
    with serving(model, SETTINGS) as (_, _, client):
        for shown, image, words, source in asked:
            answer = ask(client, question, shown, extra_body={"words": words})
            assert answer.arr_coc["images"][0]["words"] == source
            assert text_of(answer) == model.generate(image, question, words=words)
        for words in ("/etc/passwd", [["a", [9, 9, 3, 12]]]):
            with pytest.raises(openai.BadRequestError, match="words"):
                ask(client, question, url, extra_body={"words": words})


def test_encodings_keep_where_words_came_from(model: Any, tmp_path: Path) -> None:
    encoding = model.encode_image(PAGE, words=WORDS)
    encoding.save(tmp_path / "page.safetensors", model)
    again = ImageEncoding.load(tmp_path / "page.safetensors", model)
    assert again.word_sources() == encoding.word_sources() and again.unseen == encoding.unseen
    both = encoding.join(model.encode_image(PAGE))
    assert [source for source, _, _ in both.word_sources()] == ["caller", "network"]


def test_scorers_of_features_look_at_pages_with_words_and_refuse_saved_ones(silent_model: Any, tmp_path: Path) -> None:
    silent_model.encode_image(PAGE, words=WORDS).save(tmp_path / "page.safetensors", silent_model)
    saved = ImageEncoding.load(tmp_path / "page.safetensors", silent_model)
    assert silent_model.generate(saved, "What is ab?") == silent_model.generate(PAGE, "What is ab?", words=WORDS)
    with pytest.raises(ValueError, match="strategy: expected one that reads words, as the page was not looked at"):
        silent_model.generate(saved, "What is ab?", strategy="variance")
    page = noise(48, 64)
    encoding = silent_model.encode_image(page, words=WORDS)
    assert encoding.unseen and not encoding.features.any()
    named = silent_model.generate(encoding, "What?", strategy="variance", return_fetch=True).fetch
    silent_model.model.vision_tower.text_reader.read = TextReader.read.__get__(
        silent_model.model.vision_tower.text_reader
    )
    silent_model.model.vision_tower.text_reader.scales = lambda stem, coarse: [[] for _ in stem]
    seen = silent_model.generate(page, "What?", strategy="variance", return_fetch=True).fetch
    assert torch.equal(named.indices, seen.indices) and torch.equal(named.scores, seen.scores)


@pytest.mark.parametrize(("budget", "fetched"), [(1, False), ("all", True)])
def test_a_bench_tells_what_was_fetched(budget: int | str, fetched: bool, silent_model: Any, tmp_path: Path) -> None:
    PAGE.save(tmp_path / "page.png")
    reader = ModelReader(silent_model, {"words": WORDS}, budget=budget)
    page = reader.read(tmp_path / "page.png")
    reader.ask(page, "What is ab?", TextStreamer(silent_model.processor.tokenizer))
    assert [reader.known(page, ["x", said]) for said in ("AB", "cd", "ef ab")] == [(True, fetched)] * 3
    assert reader.known(page, ["xy", "a"]) == (False, False)


# ---- bad input
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nowhere", "words: expected auto, network, ocr, text_layer, a list of"),
        (3, "words: expected auto, network, ocr, text_layer, a list of"),
        ([("a", (1, 2, 3, 4)), "b"], "words: expected auto, network"),
        ([("a", None)], r"words\[0\]: expected \(text, \(x0, y0, x1, y1\)\)"),
        ([("a", (1, 2, 3, float("nan")))], r"words\[0\]: expected \(text"),
        ([("a", (9, 9, 3, 12))], r"words\[0\]: expected a box with x0 < x1 and y0 < y1"),
        ([("a", (900, 9, 930, 12))], r"words\[0\]: expected a box .* reaches into the image of 64 x 48 px"),
        ([("a", (1, 1, 9, 9))] * 10_000, "words: expected at most 500 words in one box"),
        ([WORDS, WORDS], "words: expected a list of words for each of 1 sources; got 2 lists"),
    ],
)
def test_words_that_cannot_be_read_are_refused(model: Any, words: Any, said: str) -> None:
    refuses(said, model.encode_image, PAGE, words=words)


def test_unknown_sources_and_words_that_a_model_cannot_read_are_refused() -> None:
    refuses("expected a list of words for each of 2 sources; got words of one", words_of_each, WORDS, 2)
    with pytest.raises(ValueError, match="words: expected auto or network, as the model has no text reader; got"):
        tiny_model().encode_image(PAGE, words=WORDS)
    assert set(WORD_SOURCES) == {"network", "text_layer", "ocr", "auto"}
    with pytest.raises(ValueError, match="words: expected one of auto, network, ocr, text_layer; got 'none'"):
        WORD_SOURCES["none"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("<alto", "expected hOCR, ALTO or PAGE XML; got a broken file"),
        ("<svg/>", "got a file with root <svg>"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><alto>&b;</alto>', "expected words without entities of their own"),
        ('<alto><Layout><Page><String CONTENT="a" HPOS="4"/></Page></Layout></alto>', "expected words with places"),
        (ALTO.replace('HPOS="4"', 'HPOS="400"'), "expected boxes .* that reach into the page"),
        ("<alto/>", "expected words of page 1; got a file of 0 pages"),
    ],
)
def test_files_of_words_that_cannot_be_read_are_refused(tmp_path: Path, content: str, said: str) -> None:
    for encoding in ("utf-8", "utf-16"):
        path = tmp_path / f"{encoding}.xml"
        path.write_text(content, encoding=encoding)
        refuses(said, words_of_page, str(path), PageToRead(SOURCE, PAGE))


def test_the_command_line_takes_a_source_and_says_it(cli: Cli, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "model", **READS_WORDS)
    PAGE.save(image := tmp_path / "page.png")
    (tmp_path / "words.xml").write_text(ALTO)
    asked = ("ask", image, "What?", "--model", folder, "--words")
    assert json.loads(cli(*asked, tmp_path / "words.xml", "--json")[1])["words"] == ["file"]
    assert "; words from file" in cli(*asked, tmp_path / "words.xml")[2]
    code, _, err = cli(*asked, "nowhere")
    assert code == 2 and "--words: expected auto, network, ocr, text_layer or a file; got 'nowhere'" in err
