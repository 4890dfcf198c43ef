"""The training of the OCR pipeline's language model: batches of text, who sees what, and an adapter that learns."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from arr_coc.pages.page import Line, Question, TextPage
from arr_coc.training.reader.language_model import Prompting
from arr_coc.training.reader.question_answering import QuestionAnsweringStage
from benchmarks import train_ocr_peer
from benchmarks.ocr_pipeline import TRAINED


def line(text: str, x: float, y: float) -> Line:
    left = x + 6.0 * np.arange(len(text))
    return Line(
        text, np.stack((left, np.full_like(left, y), left + 6, np.full_like(left, y + 10)), 1).astype(np.float32)
    )


PAGE = TextPage(
    None,
    (300, 100),
    (line("14.16", 200, 50), line("ACME", 10, 0), line("Total", 10, 51)),
    (
        Question("What is the total?", ("14.16",), ((200, 50, 230, 60),), (), "price"),
        Question("What is the VAT?", ("not on the page",), (), (), "absent"),
        Question("Who is it from?", ("Somebody else",), ((0, 0, 1, 1),), (), "name"),  # its text is not among the lines
    ),
)
SOURCES: Any = SimpleNamespace(page=lambda rng: PAGE)


@pytest.fixture
def prompting() -> Prompting:
    return Prompting(tiny_tokenizer())


def language_model() -> LlamaForCausalLM:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tiny_tokenizer()), **sizes, initializer_range=0.2)).to(
        torch.bfloat16
    )


def test_a_page_is_its_lines_in_reading_order() -> None:
    assert train_ocr_peer.text_of(PAGE) == "ACME\nTotal  14.16"


def test_questions_see_the_page_and_themselves(prompting: Prompting) -> None:
    row = train_ocr_peer.row_of(prompting, "ACME", [("Who?", "ACME"), ("What is it?", "not on the page")])
    batch = train_ocr_peer.stacked([row, train_ocr_peer.row_of(prompting, "A", [("Who?", "A")])])
    before, behind = TRAINED
    text = prompting.tokenizer.decode(row.ids)
    asked = [
        behind.format(question=question) + f" {answer}<|im_end|>"
        for question, answer in (("Who?", "ACME"), ("What is it?", "not on the page"))
    ]
    assert text == f"{before}ACME\n" + "".join(asked)
    said = batch.ids.roll(-1, 1)[0][batch.answer[0]]
    assert prompting.tokenizer.decode(said) == " ACME<|im_end|> not on the page<|im_end|>"
    seen, question = batch.seen[0, 0], batch.question[0]
    last = int((question == 1).nonzero()[-1])
    assert seen[last].tolist() == [int(of) in (-1, 1) for of in question]
    starts = [int((question == number).nonzero()[0]) for number in (0, 1)]
    page = int((question == -1).sum())
    assert [int(batch.positions[0, start]) for start in starts] == [page, page]
    assert (batch.question[1] == -2).any() and not batch.answer[1][batch.question[1] == -2].any()


def test_a_question_is_answered_as_if_it_were_asked_alone(prompting: Prompting) -> None:
    model, asked = language_model().float(), [("Who?", "ACME"), ("What is it?", "A receipt")]
    together = train_ocr_peer.stacked([train_ocr_peer.row_of(prompting, "ACME", asked)])
    alone = train_ocr_peer.stacked([train_ocr_peer.row_of(prompting, "ACME", asked[1:])])
    with torch.no_grad():
        of_both, of_one = (
            model(input_ids=batch.ids, attention_mask=batch.seen, position_ids=batch.positions).logits[batch.answer]
            for batch in (together, alone)
        )
    torch.testing.assert_close(of_both[-len(of_one) :], of_one, rtol=1e-4, atol=1e-5)


def test_what_is_cut_off_is_not_asked(prompting: Prompting, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = QuestionAnsweringStage(pages_per_step=2, questions=8)
    batch = train_ocr_peer.drawn(SOURCES, prompting, stage, np.random.default_rng(0))
    assert batch.ids.shape[0] == 2 and batch.question.amax(1).tolist() == [1, 1]  # not who it is from
    monkeypatch.setattr(train_ocr_peer, "MOST_TOKENS", 8)  # "ACME", a line break and "Tot"
    batch = train_ocr_peer.drawn(SOURCES, prompting, stage, np.random.default_rng(0))
    assert batch.question.amax(1).tolist() == [0, 0] and "14.16" not in prompting.tokenizer.decode(batch.ids[0])


def test_the_adapter_learns(prompting: Prompting, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stage = QuestionAnsweringStage(pages_per_step=1, rank=8, learning_rate=2e-2, warmup=2)
    model = train_ocr_peer.train(language_model(), SOURCES, prompting, stage, 40)
    first, last = (float(text.split("loss ")[1].split(",")[0]) for text in capsys.readouterr().out.splitlines())
    assert last < 0.8 * first
    model.save_pretrained(tmp_path)
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pages", "forms"], "--pages: expected NAME=SHARE with a share above 0; got 'forms'"),
        (["--pages", "form=0"], "--pages: expected NAME=SHARE with a share above 0; got 'form=0'"),
        (["--pages", "nothing=1"], "page source: expected one of"),
        (["--steps", "0"], "--steps: expected at least 1; got 0"),
        (["--pages-per-step", "0"], "pages_per_step: expected at least 1; got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=message):
        train_ocr_peer.main([str(tmp_path / "out"), *arguments])
