"""Asks a reader of a published model the questions of a data set: answers and fetched tokens of each strategy."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from ..attached import AttachedReader
from ..attached.encoding import AttachedEncoding
from ..attached.placing import count_fetched, share_or_number
from ..attached.reader import BUDGET
from ..attached.scoring import STRATEGIES
from ..data.records import Record, opened
from ..modeling.answers import Answer
from .answers import all_boxes, check_record, digest_of
from .arms import Arm
from .prediction_loop import Item, by_image, new_tokens, parts
from .predictions import Prediction, prediction_in_views

FIXED: Mapping[str, tuple[str, int | str]] = {"none": ("saliency", 0), "keep_all": ("saliency", "all")}
"""Names besides those of strategies: base tokens only, and all tokens, as in the plain model."""


@dataclass(frozen=True)
class AttachedArm(Arm):
    """A strategy and `spent`, the budget of `AttachedReader.generate`; `budget` is 0 if nothing is fetched."""

    spent: float | int | str = BUDGET

    @classmethod
    def of(cls, name: str, strategy: str, spent: float | int | str) -> "AttachedArm":
        """The arm; the size of the prompt depends on the question."""
        return cls(name, "ladder", strategy, int(spent != 0), "topk", side=0, tokens=0, spent=spent)


def attached_arms(
    reader: AttachedReader, names: Sequence[str], budget: float | int | str | None, records: Sequence[Record]
) -> list[AttachedArm]:
    """The arms called NAME or NAME@BUDGET; NAME is a strategy or one of `FIXED`.

    Raises:
        ValueError: an unknown name or budget, "realizer" without a trained scorer, or "oracle" with records without
            boxes.
    """
    arms = []
    for name in dict.fromkeys(names):
        rule, at, own = name.partition("@")
        if rule in FIXED:
            if at:
                raise ValueError(f"strategies: expected {rule} without a budget; got {name}")
            arms.append(AttachedArm.of(name, *FIXED[rule]))
            continue
        if rule not in STRATEGIES:
            raise ValueError(f"strategies: expected names among {', '.join([*STRATEGIES, *FIXED])}; got {rule!r}")
        reader.check_strategy(rule, () if rule == "oracle" else None)
        spent = share_or_number(own) if at else BUDGET if budget is None else budget
        count_fetched(spent, 2**30, 2**30, 1)
        arms.append(AttachedArm.of(name, rule, spent))
    if any(arm.strategy == "oracle" for arm in arms):
        check_located(records)
    return arms


def check_located(records: Sequence[Record]) -> None:
    """Raises a ValueError if strategy "oracle" does not know what to fetch for some records."""
    if bare := [record.line for record in records if not record.located]:
        expected = 'strategy "oracle": expected boxes in every record'
        raise ValueError(f"{expected}; got {len(bare)} without, e.g. line {bare[0]}")


def usable_strategies(reader: AttachedReader, *, oracle: bool) -> list[str]:
    """The names of all arms that a reader can run; "words", which not every page has, is left out."""
    usable = {"realizer": reader.scorer is not None, "oracle": oracle, "words": False}
    return [name for name in (*STRATEGIES, *FIXED) if usable.get(name, True)]


def predict_attached(
    reader: AttachedReader,
    arms: Sequence[AttachedArm],
    records: Sequence[Record],
    *,
    batch_size: int,
    seed: int | None = None,
    progress: bool = True,
) -> Iterator[tuple[str, dict[int, Prediction]]]:
    """Yields parts of each arm's predictions by the record's number; the images of a question are encoded once.

    Arguments are as in `prediction_loop.predict_all`; "random" draws for each question alone.

    Raises:
        ValueError: an image that cannot be read, or boxes outside it; the message names the record's line.
    """
    with tqdm(total=len(arms) * len(records), unit="answer", disable=None if progress else True) as bar:
        for group in by_image(records):
            encoding = _encoded(reader, group)
            digest = digest_of(group[0].record.images)
            for arm, run, _, part in parts(arms, group, lambda arm: 1 if arm.strategy == "random" else batch_size):
                drawn = part[0].place if seed is None else seed * len(records) + part[0].place
                asked = zip(part, _ask(reader, arm, encoding, part, drawn), strict=True)
                yield run, {at: _prediction(own.line, said, encoding, digest) for (at, own), said in asked}
                bar.update(len(part))


def _encoded(reader: AttachedReader, group: Sequence[Item]) -> AttachedEncoding:
    """Encodes the images of a group of questions."""
    record = group[0].record
    try:
        encoding = reader.encode_image([[opened(image) for image in record.images]])
    except (ValueError, OSError) as error:
        raise ValueError(f"line {record.line}: {error}") from error
    sizes = [(source.height, source.width) for source in encoding.prompts[0].sources]
    for item in group:
        check_record(item.record, sizes)
    return encoding


def _ask(
    reader: AttachedReader, arm: AttachedArm, encoding: AttachedEncoding, part: Sequence[Item], seed: int
) -> list[Answer]:
    records, sources = [item.record for item in part], range(len(encoding.prompts[0].sources))
    fetching: dict[str, Any] = {"strategy": arm.strategy, "budget": arm.spent, "seed": seed}
    if arm.strategy == "oracle":
        fetching["boxes"] = [all_boxes(record, source) for record in records for source in sources]
    decoding: dict[str, Any] = {"do_sample": False, "max_new_tokens": new_tokens(reader.model), "return_fetch": True}
    questions, history = [record.question for record in records], [list(record.history) for record in records]
    return reader.generate(encoding, questions, history=history, **fetching, **decoding)


def _prediction(line: int, answer: Answer, encoding: AttachedEncoding, digest: str) -> Prediction:
    """The prediction for an answer, as over views."""
    (prompt,) = encoding.prompts
    indices = answer.fetch.indices[0].cpu()
    indices, tokens = indices[prompt.is_place[indices]], len(indices) + answer.fetch.base
    best = -1
    if len(indices):
        first = indices[int(answer.fetch.relevance[0].cpu()[indices].argmax())]
        best = prompt.views[int(prompt.places[first, 0])].image
    sizes = [(source.height, source.width) for source in prompt.sources]
    return prediction_in_views(line, answer, tokens, sizes, digest, best=best)
