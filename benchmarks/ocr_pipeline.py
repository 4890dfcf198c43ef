"""The alternative on a CPU: OCR, and a small language model that reads the OCR's text.

    python -m benchmarks.ocr_pipeline BENCH [--sources sroie funsd] [--limit 10] [--predictions FILE] [--json FILE]

rapidocr reads the lines of a page; SmolLM2-135M-Instruct gets them in reading order with the question. Questions, the
form of answers and scores are those of `arr-coc evaluate --bench`. The OCR's text and the language model's cache of it
are kept for the next question about the page. `--adapter` adds a LoRA of the language model (PEFT).
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation.streamers import BaseStreamer

from arr_coc.evaluation.bench import ask_bench, bench_text, read_bench, score_bench
from arr_coc.evaluation.reporting import environment
from arr_coc.files import write_json
from arr_coc.modeling.pretrained import CACHE
from arr_coc.modeling.word_sources import ocr_engine

from .smollm2 import smollm2_folder

_SYSTEM = "Reply with the exact words of the document that answer the question, and nothing else."

PROMPT = (
    f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\nDocument:\n",
    '\nQuestion: {question}<|im_end|>\n<|im_start|>assistant\nThe answer is "',
)
"""The prompt before and after the text of a page; the answer ends with a quotation mark.

It is the best of eight prompts on 15 to 20 questions about receipts, forms and screens. Without the opening quotation
mark the model writes sentences, or repeats the examples if there are any.
"""

TRAINED = ("<|im_start|>user\n", "\n{question}<|im_end|>\n<|im_start|>assistant\n")
"""The prompt for a language model with an adapter, which has learned the form of answers (`train_ocr_peer`)."""

MAX_PAGE_TOKENS = 6000
"""The most tokens of a page's text; the rest of the context of 8,192 is for the question and its answer."""

MAX_NEW_TOKENS = 64
"""The most tokens of an answer; an address on three lines needs 50."""


def in_reading_order(boxes: Any, texts: Any) -> str:
    """The text of a page: rows from top to bottom, and pieces from left to right, joined by two spaces.

    Args:
        boxes: [n, 4, 2], (x, y) of the corners of each piece of text, px.
        texts: n strings.
    """
    rows: list[list[tuple[float, float, float, str]]] = []
    pieces = [
        (min(x), min(y), max(y), text)
        for (x, y), text in zip((np.asarray(box).T.tolist() for box in boxes), texts, strict=True)
    ]
    for piece in sorted(pieces, key=lambda each: each[1] + each[2]):
        middle = (piece[1] + piece[2]) / 2
        if rows and rows[-1][0][1] <= middle <= rows[-1][0][2]:
            rows[-1].append(piece)
        else:
            rows.append([piece])
    return "\n".join("  ".join(text for *_, text in sorted(row)) for row in rows)


def without_label(answer: str, question: str) -> str:
    """The value of "LABEL: value" if the question names the label; other answers unchanged."""
    label, _, value = answer.partition(":")
    return value.strip() if value.strip() and label.strip().lower() in question.lower() else answer


class Ocr:
    """rapidocr with the weights in its wheel, on as many threads as PyTorch."""

    def __init__(self) -> None:
        self.engine = ocr_engine()

    def text(self, image: Image.Image | Path) -> str:
        """All text of a page in reading order; "" if there is none."""
        opened = image if isinstance(image, Image.Image) else Image.open(image)
        upright = ImageOps.exif_transpose(opened).convert("RGB")
        found: Any = self.engine(np.asarray(upright)[..., ::-1])  # BGR
        return "" if found.boxes is None else in_reading_order(found.boxes, found.txts)


@dataclass(frozen=True)
class ReadPage:
    """A page's text, its tokens with the prompt before them [1, n], and the language model's cache of these tokens."""

    text: str
    ids: torch.Tensor
    cache: Cache


class OcrPipeline:
    """OCR and a language model, as a reader for `arr_coc.evaluation.bench`.

    Args:
        folder: folder of the language model; None: SmolLM2-135M-Instruct.
        adapter: folder of a LoRA for it (PEFT), which is merged.
        dtype: dtype of the language model.
    """

    def __init__(
        self, folder: Path | None = None, adapter: Path | None = None, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        source = folder or smollm2_folder()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(source)
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
        if adapter is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
        self.model: Any = model.eval()
        self.prompt = PROMPT if adapter is None else TRAINED
        ends = ("\u010a", '"') if adapter is None else ("\u010a",)  # a line break in byte-level BPE
        vocabulary = self.tokenizer.get_vocab()
        marks = [number for token, number in vocabulary.items() if any(end in token for end in ends)]
        self.ends = [self.tokenizer.eos_token_id, *marks]
        self.ocr = Ocr()

    @torch.no_grad()
    def read(self, image: Image.Image | Path) -> ReadPage:
        """Reads a page and prefills the language model with its text."""
        return self.read_text(self.ocr.text(image))

    @torch.no_grad()
    def read_text(self, text: str) -> ReadPage:
        """`read` for a page with known text."""
        before, _ = self.prompt
        page = self._ids(text)[:, :MAX_PAGE_TOKENS]
        ids = torch.cat((self._ids(before), page, self._ids("\n")), 1)
        cache = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)[CACHE]
        return ReadPage(text, ids, cache)

    @torch.no_grad()
    def ask(
        self, page: ReadPage, question: str, streamer: BaseStreamer | None = None, *, most: int = MAX_NEW_TOKENS
    ) -> tuple[str, float]:
        """The first line of the greedy answer, and the product of its tokens' probabilities, end token included."""
        _, behind = self.prompt
        ids = torch.cat((page.ids, self._ids(behind.format(question=question))), 1)
        output = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            streamer=streamer,
            max_new_tokens=most,
            do_sample=False,
            eos_token_id=self.ends,
            return_dict_in_generate=True,
            output_logits=True,
            **{CACHE: page.cache},
        )
        page.cache.crop(page.ids.shape[1] - page.cache.get_seq_length())  # for the next question
        scores = self.model.compute_transition_scores(output.sequences, output.logits, normalize_logits=True)
        answer = self.tokenizer.decode(output.sequences[0, ids.shape[1] :], skip_special_tokens=True).strip()
        if self.prompt is PROMPT:
            answer = without_label(answer.partition('"')[0], question)
        return answer.partition("\n")[0].strip(), float(scores.sum().exp())

    def _ids(self, text: str) -> torch.Tensor:
        return self.tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"].long()


def main(arguments: list[str] | None = None) -> None:
    """Runs the measurement from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ocr_pipeline", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "bench", metavar="BENCH", type=Path, help="a folder of sources, as for arr-coc evaluate --bench"
    )
    parser.add_argument("--sources", metavar="NAME", nargs="+", help="only these sources")
    parser.add_argument("--limit", metavar="N", type=int, help="only the first N questions of each source")
    answers = "JSONL of all answers, written one by one; what it holds already is not asked again"
    parser.add_argument("--predictions", metavar="FILE", type=Path, help=answers)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results to this file")
    model = "folder of a causal language model (default: SmolLM2-135M-Instruct, fetched by pip)"
    parser.add_argument("--language-model", metavar="M", type=Path, help=model)
    parser.add_argument(
        "--adapter", metavar="FOLDER", type=Path, help="folder of a LoRA, see train_ocr_peer.py (default: none)"
    )
    parser.add_argument("--threads", metavar="N", type=int, help="threads of PyTorch and OCR (default: PyTorch's)")
    args = parser.parse_args(arguments)
    try:
        run(args)
    except ValueError as error:
        sys.exit(f"{parser.prog}: {error}")


def run(args: argparse.Namespace) -> None:
    """Asks the pipeline the questions of a bench and prints the table.

    Raises:
        ValueError: no bench, or no such folder of a language model or adapter.
    """
    for name, folder in (("--language-model", args.language_model), ("--adapter", args.adapter)):
        if folder is not None and not folder.is_dir():
            raise ValueError(f"{name}: expected a folder; got {str(folder)!r}")
    bench = read_bench(args.bench, args.sources, limit=args.limit)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    name = "rapidocr + " + ("SmolLM2-135M-Instruct" if args.language_model is None else args.language_model.name)
    name += "" if args.adapter is None else f" + {args.adapter.name}"
    answers = ask_bench(OcrPipeline(args.language_model, args.adapter), name, bench, predictions=args.predictions)
    result = {**score_bench(bench, answers), "model": name, "threads": torch.get_num_threads()}
    result |= environment(torch.device("cpu"))
    print(f"{name}, {torch.get_num_threads()} threads, {result['date']}")
    print(bench_text(result))
    if args.json is not None:
        write_json(args.json, result)


if __name__ == "__main__":
    main()
