"""A bench: real pages with questions, used only to measure. All readers get the same questions and the same scoring.

Its folder has one folder per source, with `data.jsonl` (see `arr_coc.data.records`) and images or PDFs. A record's
`match` names the comparison of its answers: "alnum" compares letters and digits in lower case, "relaxed" is ChartQA's
rule, and the default ignores case and white space. ANLS compares the unchanged text.
"""

import json
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers.generation.streamers import BaseStreamer

from ..attached import AttachedReader
from ..data.records import Record, Row, gather, lines, parse, says_absent, shorten
from ..metrics import METRICS
from ..modeling.answers import wordpieces_read
from ..modeling.image_encoding import ImageEncoding
from ..modeling.modeling_arr_coc import ArrCocForConditionalGeneration
from .calibration import calibration, calibration_text
from .prediction_loop import new_tokens
from .reporting import percent, require_extra, to_text
from .statistics import Interval, mean_of_intervals, score_interval

MATCHES = {"": "caseless_match", "alnum": "alnum_match", "relaxed": "relaxed_accuracy"}
"""Maps the `match` of a record to the metric that decides whether an answer is right."""

Bench = Mapping[str, Sequence[Record]]  # the questions of each source, by the name of its folder


@dataclass(frozen=True)
class BenchAnswer:
    """A reader's answer to one question of a bench."""

    reader: str
    # The place of the question in the bench.
    source: str
    line: int
    question: str
    answer: str
    probability: float  # probability of the whole answer, 0..1
    first: bool  # whether the page was read for this question; the seconds then include the reading
    first_token: float  # seconds until the first token of the answer
    seconds: float  # seconds until its last token
    legibility: float | None = None  # the page's `ImageEncoding.legibility`, from readers that estimate it
    # Whether a right answer is among the words read of the page, and among those fetched for the question; from readers
    # that tell.
    read: bool | None = None
    fetched: bool | None = None


class ModelReader:
    """A model as users call it: `encode_image`, then `generate` for each question.

    Args:
        model: a checkpoint with a processor, or a reader of a published model.
        views: other arguments of `encode_image`, such as `tiles` and `readings`.
        choices: other arguments of `generate`, such as `strategy` and `budget`.
    """

    def __init__(
        self,
        model: ArrCocForConditionalGeneration | AttachedReader,
        views: Mapping[str, Any] | None = None,
        **choices: Any,
    ) -> None:
        self.model: Any = model
        self.options = dict(views or {})
        self.choices = choices
        self.limit = new_tokens(model.model if isinstance(model, AttachedReader) else model)

    def read(self, image: Path) -> Any:
        """Encodes a page once for all questions."""
        return self.model.encode_image(image, **self.options)

    def ask(self, page: Any, question: str, streamer: BaseStreamer) -> tuple[str, float]:
        """The answer and its probability; `page` is from `read`, and `streamer` is for transformers' `generate`."""
        settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": self.limit}
        if self.options.get("readings", 1) == 1:  # of several, the answer is known at the end
            settings["streamer"] = streamer
        answer = self.model.generate(page, question, return_fetch=True, **settings, **self.choices)
        self.fetch = answer.fetch
        return answer.text, answer.probability

    def known(self, page: Any, answers: Sequence[str]) -> tuple[bool | None, bool | None]:
        """`BenchAnswer.read` and `fetched` of the question that was asked last."""
        words = wordpieces_read(self.fetch, page) if isinstance(page, ImageEncoding) else ([], [])
        if not words[0]:
            return None, None
        read, fetched = map(self.model.processor.tokenizer.decode, words)
        return any(_says(read, answer) for answer in answers), any(_says(fetched, answer) for answer in answers)


def _says(text: str, answer: str) -> bool:
    """Whether a text holds an answer, by letters and digits: its words anywhere, or all of it without spaces."""
    words, wanted = (_WORD.findall(each.lower()) for each in (text, answer))
    joined = "".join(wanted)
    return set(wanted) <= set(words) or (len(joined) > FEW and joined in "".join(words))


_WORD = re.compile(r"[^\W_]+")
FEW = 3  # letters and digits of an answer that may stand in longer words by chance


def read_bench(folder: Path, sources: Sequence[str] | None = None, *, limit: int | None = None) -> Bench:
    """Reads the questions of a bench. `folder`: holds the sources' folders. `sources`: names of the sources to read;
    None: all. Raises ValueError: a missing folder, no questions in it, an unknown source, or a bad record."""
    if not folder.is_dir():
        raise ValueError(f"bench: expected a folder with a folder for each source; got {str(folder)!r}")
    files = {path.parent.name: path.absolute() for path in sorted(folder.glob("*/data.jsonl"))}
    if not files:
        raise ValueError(f"bench: expected folders that hold data.jsonl in {folder}; got none")
    wanted = list(files) if sources is None else list(dict.fromkeys(sources))
    if unknown := sorted(set(wanted) - set(files)):
        raise ValueError(f"sources: expected names among {', '.join(files)}; got {', '.join(unknown)}")
    bench: dict[str, list[Record]] = {}
    for name in wanted:
        bench[name] = gather(lines(files[name]), partial(_record, folder=files[name].parent), limit=limit)
        if not bench[name]:
            raise ValueError(f"{files[name]}: expected questions, one JSON object per line; got none")
    return bench


def _record(row: Row, folder: Path) -> Record:
    record = parse(row, folder)
    if record.others:
        raise ValueError(f"images: expected one image for a question; got {len(record.images)}")
    if record.history:
        raise ValueError(f"history: expected none on a bench; got {len(record.history)} turns")
    match = json.loads(row.content).get("match") or ""
    if not isinstance(match, str) or match not in MATCHES:
        raise ValueError(f"match: expected {', '.join(name for name in MATCHES if name)} or none; got {shorten(match)}")
    return record


# ---- ask ----------------------------------------------------------------------------------------------------------


class _Clock(BaseStreamer):
    """Records the times of the prompt and of each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Does nothing, as nothing is buffered."""


def ask_bench(
    reader: Any, name: str, bench: Bench, *, predictions: Path | None = None, progress: bool = True
) -> list[BenchAnswer]:
    """Asks all questions, one at a time, grouped by page; each page is read once.

    Args:
        reader: a `ModelReader`, or another system with its methods `read` and `ask`.
        name: the reader's name, kept with the answers.
        bench: from `read_bench`.
        predictions: JSONL of `BenchAnswer`, written answer by answer; questions that it already answers are not asked
            again.

    Raises:
        ValueError: `predictions` holds answers of another reader or to other questions, or an image cannot be read.
    """
    said = _read_answers(predictions, name, bench)
    total = sum(map(len, bench.values()))
    with tqdm(total=total, initial=len(said), unit="question", disable=None if progress else True) as bar:
        for source, records in bench.items():
            for image in dict.fromkeys(record.image for record in records):
                asked = [record for record in records if record.image == image]
                left = [record for record in asked if (source, record.line) not in said]
                for answer in _ask_page(reader, name, source, left):
                    said[source, answer.line] = answer
                    if predictions is not None:
                        with predictions.open("a", encoding="utf-8") as stream:
                            stream.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")
                    bar.update()
    return [said[source, record.line] for source, records in bench.items() for record in records]


def _ask_page(reader: Any, name: str, source: str, records: Sequence[Record]) -> Any:
    page: Any = None
    for number, record in enumerate(records):
        began, clock = time.perf_counter(), _Clock()
        if number == 0:
            page = reader.read(Path(str(record.image)))
        answer, probability = reader.ask(page, record.question, clock)
        ended = time.perf_counter()
        read, fetched = reader.known(page, record.answers) if isinstance(reader, ModelReader) else (None, None)
        first_token = clock.times[1] if len(clock.times) > 1 else ended  # times[0] is the prompt
        told = (round(probability, 6), number == 0, round(first_token - began, 4), round(ended - began, 4))
        legibility = page.legibility() if isinstance(page, ImageEncoding) else None
        yield BenchAnswer(name, source, record.line, record.question, answer, *told, legibility, read, fetched)


def _read_answers(path: Path | None, name: str, bench: Bench) -> dict[tuple[str, int], BenchAnswer]:
    """The file's answers to the questions of a bench, by source and line; drops an incomplete last line."""
    if path is None or not path.is_file():
        return {}
    *whole, rest = path.read_text(encoding="utf-8").split("\n")
    if rest:
        path.write_text("".join(line + "\n" for line in whole), encoding="utf-8")
    questions = {(source, record.line): record.question for source, records in bench.items() for record in records}
    said = {}
    for number, line in enumerate(whole, 1):
        try:
            answer = BenchAnswer(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: expected an answer; got {shorten(line)}") from error
        key = answer.source, answer.line
        if answer.reader != name or questions.get(key, answer.question) != answer.question:
            got = f"{answer.reader}, {answer.question!r}"
            raise ValueError(f"{path}, line {number}: expected an answer of {name} to this bench; got {shorten(got)}")
        if key in questions:
            said[key] = answer
    return said


# ---- score --------------------------------------------------------------------------------------------------------


def score_bench(bench: Bench, answers: Sequence[BenchAnswer]) -> dict[str, Any]:
    """Scores the answers and summarizes their times.

    Args:
        answers: from `ask_bench`, in the same order.

    Returns:
        {"sources": {name: {"exact", "anls": intervals drawn by pages, "legibility": mean over pages, None from readers
        that do not estimate it, "lost": {step of `LOST`: share of the answers}, {} if not known, "questions", "pages",
        "seconds"}}, "mean": {the same: means of the sources' means, "questions", "pages", "seconds"}, "confidence":
        {"auroc", "right", "wrong"}, "calibration": see `calibration.calibration`}. `seconds`: {"first_token": median
        over the first questions about a page, "next": median over later questions, None without any, "mean": mean time
        to the last token over all questions}. `auroc`: the share of pairs of a right and a wrong answer in which the
        right one has the higher probability; ties count half; None without pairs.

    Raises:
        ValueError: scipy is not installed.
    """
    require_extra("scipy.stats", "intervals")
    from scipy.stats import mannwhitneyu

    sources, right, first = dict[str, dict[str, Any]](), list[bool](), 0
    for name, records in bench.items():
        own = answers[first : first + len(records)]
        first += len(records)
        exact = [is_right(answer.answer, record) for answer, record in zip(own, records, strict=True)]
        anls = [METRICS["anls"].score(said.answer, record.answers) for said, record in zip(own, records, strict=True)]
        pages = np.unique([str(record.image) for record in records], return_inverse=True)[1]
        right += exact
        sources[name] = {
            "exact": asdict(score_interval(np.array(exact, dtype=float), pages)),
            "anls": asdict(score_interval(anls, pages)),
            "legibility": _mean_of_known([answer.legibility for answer in own], pages),
            "lost": _lost(own, exact),
            "questions": len(records),
            "pages": int(pages.max()) + 1,
            "seconds": _seconds(own),
        }
    rows = [*sources.values()]
    mean = {name: asdict(mean_of_intervals([Interval(**row[name]) for row in rows])) for name in ("exact", "anls")}
    lost = {step: statistics.mean(row["lost"].get(step, 0) for row in rows) for step in LOST}
    counts = {name: sum(row[name] for row in rows) for name in ("questions", "pages")}
    probabilities, is_good = np.array([answer.probability for answer in answers]), np.array(right)
    sure, unsure = probabilities[is_good], probabilities[~is_good]
    pairs = len(sure) * len(unsure)
    auroc = float(mannwhitneyu(sure, unsure).statistic) / pairs if pairs else None
    refused = np.array([says_absent(answer.answer) for answer in answers])
    return {
        "sources": sources,
        "mean": {
            **mean,
            "legibility": _mean_of_known([row["legibility"] for row in rows], range(len(rows))),
            "lost": lost if any(row["lost"] for row in rows) else {},
            **counts,
            "seconds": _seconds(answers),
        },
        "confidence": {"auroc": auroc, "right": len(sure), "wrong": len(unsure)},
        "calibration": calibration(probabilities, is_good, refused),
    }


LOST = {
    "reading": "not among the words read of the page (or to be computed from them)",
    "finding": "among these, but not fetched",
    "answering": "fetched, but not answered",
}
"""The steps at which a right answer is lost."""


def _lost(answers: Sequence[BenchAnswer], right: Sequence[bool]) -> dict[str, float]:
    """The share of answers lost at each step; {} if that is not known."""
    if any(answer.read is None for answer in answers):
        return {}
    steps = [
        "" if is_good else "answering" if answer.fetched else "finding" if answer.read else "reading"
        for answer, is_good in zip(answers, right, strict=True)
    ]
    return {step: steps.count(step) / len(steps) for step in LOST}


def is_right(answer: str, record: Record) -> bool:
    """Whether an answer is right by the record's `match` rule."""
    match = dict(record.tags).get("match", "")
    return bool(METRICS[MATCHES[match]].score(answer, record.answers))


def _mean_of_known(values: Sequence[float | None], groups: Iterable[int]) -> float | None:
    """The mean over groups with a known value, which is equal within a group; None without any."""
    known = {group: value for group, value in zip(groups, values, strict=True) if value is not None}
    return statistics.mean(known.values()) if known else None


def _seconds(answers: Sequence[BenchAnswer]) -> dict[str, float | None]:
    first = [answer.first_token for answer in answers if answer.first]
    later = [answer.first_token for answer in answers if not answer.first]
    return {
        "first_token": statistics.median(first) if first else None,
        "next": statistics.median(later) if later else None,
        "mean": statistics.mean(answer.seconds for answer in answers),
    }


def bench_text(result: Mapping[str, Any]) -> str:
    """Formats the result of `score_bench` as tables of accuracy and confidence."""
    head = ["source", "exact match, %", "ANLS, %", "questions", "pages", "first token, s", "next, s", "a question, s"]
    rows = [_row(name, row) for name, row in result["sources"].items()]
    rows.append(_row(f"mean of {len(rows)} sources", result["mean"]))
    if result["mean"]["legibility"] is not None:
        head.insert(2, "legibility")
        for cells, row in zip(rows, (*result["sources"].values(), result["mean"]), strict=True):
            cells.insert(2, "-" if row["legibility"] is None else f"{row['legibility']:.2f}")
    found = result["confidence"]
    auroc = "not known" if found["auroc"] is None else f"{found['auroc']:.3f}"
    notes = [
        f"Confidence of right against wrong answers: AUROC {auroc} (n = {found['right'] + found['wrong']}: "
        f"{found['right']} right, {found['wrong']} wrong).",
        "In brackets: 95 % intervals, drawn by pages. Seconds: median to the first token of the first question about a "
        "page, of later ones; mean to the last token.",
    ]
    if result["mean"]["lost"]:
        known = [(name, row) for name, row in (*result["sources"].items(), ("mean", result["mean"])) if row["lost"]]
        lost = [[name, *(f"{100 * row['lost'][step]:.1f}" for step in LOST)] for name, row in known]
        legend = ". ".join(f"{step}: {meaning}" for step, meaning in LOST.items())
        notes += ["", to_text(["answers lost, %", *LOST], lost), f"The right answer is lost in {legend}."]
    confidence = calibration_text([(["all questions"], result["calibration"])], [""])
    return "\n".join([to_text(head, rows), *notes, "", confidence])


def _row(name: str, row: Mapping[str, Any]) -> list[str]:
    seconds = ["-" if value is None else f"{value:.2f}" for value in row["seconds"].values()]
    return [name, percent(row["exact"]), percent(row["anls"]), str(row["questions"]), str(row["pages"]), *seconds]
