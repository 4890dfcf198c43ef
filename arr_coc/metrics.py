"""Metrics of answers, by the rules of each benchmark: one registry, scores in 0..1.

Also metrics of fetched patches: recall of boxed patches, and the distance of two fetches.

Answers are normalised as by the VQA scorers, errors included, so that scores are comparable. Source: the rules of the
VQA evaluation code (Antol et al. 2015, visualqa.org/evaluation) and of the TextVQA scorer (Singh et al. 2019), which
adds a step before them. Errors that are kept: a full stop is removed unless a digit follows, also behind a digit; at
most 32 full stops are removed; "none" is 0; one comma between digits anywhere decides how every sign of the answer is
treated.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .modeling.checks import Registry

_CONTRACTIONS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's
how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't mightn't've must've mustn't needn't not've o'clock
oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd
someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're there's
they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's
where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've
y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""


def _misspellings() -> dict[str, str]:
    """Every contraction with one apostrophe left out -> the contraction. One entry of the scorer's is the other way."""
    table = {"somebody'd": "somebodyd"}
    for word in _CONTRACTIONS.split():
        for at, character in enumerate(word):
            if character == "'":
                table[word[:at] + word[at + 1 :]] = word
    return table


CONTRACTIONS = _misspellings()
_COUNTED = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {"none": "0", **{word: str(n) for n, word in enumerate(_COUNTED)}}
ARTICLES = frozenset(("a", "an", "the"))
SIGNS = ';/[]"{}()=+\\_-><@`,?!'
_THOUSANDS = re.compile(r"\d,\d")
_STOP = re.compile(r"\.(?!\d)")
_STOPS = 32  # the scorer passes `re.UNICODE` (32) where `sub` takes the number of replacements


def strip_spaces(text: str) -> str:
    """Line breaks and tabs as spaces, without spaces at the ends."""
    return text.replace("\n", " ").replace("\t", " ").strip()


def _strip_signs(text: str) -> str:
    """Removes a sign that is next to a space somewhere, and replaces others by a space; then removes full stops."""
    glued = _THOUSANDS.search(text) is not None
    out = text
    for sign in SIGNS:
        out = out.replace(sign, "" if glued or f"{sign} " in text or f" {sign}" in text else " ")
    return _STOP.sub("", out, count=_STOPS)


def _map_words(text: str) -> str:
    """Lower case, number words as digits, no articles, contractions with their apostrophes."""
    words = [NUMBERS.get(word, word) for word in text.lower().split()]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def normalise_vqa(text: str) -> str:
    """The VQA scorer's form of an answer whose spaces are stripped (`strip_spaces`)."""
    return _map_words(_strip_signs(text))


def normalise_textvqa(text: str) -> str:
    """The TextVQA scorer's form of an answer: commas and question marks go first, "'s" stands apart."""
    text = text.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    return _map_words(_strip_signs(strip_spaces(text)))


ANLS_THRESHOLD = 0.5
"""Less similar answers score 0; this value itself counts (Biten et al. 2019, as in the reference code)."""

RELAXED_TOLERANCE = 0.05
"""Tolerance of a number, as a share of the target (Masry et al. 2022, after Methani et al. 2020)."""

FEWEST_HUMANS = 4
"""VQA accuracy needs three other people with the same answer: with fewer answers no prediction could score 1."""


@dataclass(frozen=True)
class Metric:
    """A function that scores an answer against the right ones."""

    score: Callable[[str, Sequence[str]], float]  # (the model's answer, the right answers) -> 0..1
    title: str  # for tables


METRICS: Registry[Metric] = Registry("metric")


def _metric(name: str, title: str) -> Callable[[Callable[..., float]], Callable[..., float]]:
    def add(score: Callable[..., float]) -> Callable[..., float]:
        METRICS.register(name)(Metric(score, title))
        return score

    return add


def normalise(text: str) -> str:
    """The text that exact match compares: stripped, runs of white space as one space, accents joined with their letter
    (NFC); case matters."""
    return unicodedata.normalize("NFC", " ".join(text.split()))


def _alnum(text: str) -> str:
    """Letters and digits in lower case; a text without any is compared whole."""
    plain = normalise(text).lower()
    return "".join(filter(str.isalnum, plain)) or plain


def _gqa(text: str) -> str:
    """Lower case, without a full stop at its end: the scorer (Hudson and Manning 2019) compares strings; its answers
    have this form, into which published results bring a model's answer."""
    return normalise(text).rstrip(".").rstrip().lower()


def _match(form: Callable[[str], str]) -> Callable[[str, Iterable[str]], bool]:
    """Whether a text is one of the answers, all in this form."""
    return lambda text, answers: form(text) in {form(answer) for answer in answers}


exact_match = _metric("exact_match", "exact match")(_match(normalise))
_metric("caseless_match", "exact match but for case")(_match(lambda text: normalise(text).lower()))
_metric("alnum_match", "match of letters and digits")(_match(_alnum))
gqa_accuracy = _metric("gqa_accuracy", "GQA accuracy")(_match(_gqa))


@_metric("vqa_accuracy", "VQA accuracy")
def vqa_accuracy(text: str, answers: Sequence[str]) -> float:
    """Mean over the annotators of min(1, number of the others with the answer `text` / 3) (Antol et al. 2015).

    As in the scorer, answers are normalised only if they are not all the same.

    Raises:
        ValueError: fewer than `FEWEST_HUMANS` answers.
    """
    said, humans = strip_spaces(text), [strip_spaces(answer) for answer in answers]
    if len(set(humans)) > 1:
        said, humans = normalise_vqa(said), [normalise_vqa(human) for human in humans]
    return _agreement(said, humans, "vqa_accuracy")


@_metric("textvqa_accuracy", "TextVQA accuracy")
def textvqa_accuracy(text: str, answers: Sequence[str]) -> float:
    """As `vqa_accuracy`, by the TextVQA scorer's normalisation, always applied (Singh et al. 2019)."""
    humans = [normalise_textvqa(answer) for answer in answers]
    return _agreement(normalise_textvqa(text), humans, "textvqa_accuracy")


def _agreement(said: str, humans: Sequence[str], metric: str) -> float:
    if len(humans) < FEWEST_HUMANS:
        expected = f"at least {FEWEST_HUMANS} answers, by as many people"
        raise ValueError(f"answers: {metric} expected {expected}; got {len(humans)}: {humans[0]!r}")
    matches = [human == said for human in humans]
    shares = [min(1, (sum(matches) - match) / 3) for match in matches]
    return sum(shares) / len(shares)


@_metric("anls", "ANLS")
def anls(text: str, answers: Iterable[str]) -> float:
    """Similarity to the nearest answer: 1 - edit distance / length, 0 below `ANLS_THRESHOLD` (Biten et al. 2019).

    The distance ignores case and runs of white space; the length is that of the longer original string, in upper case,
    as in the reference code.
    """
    shares = []
    for answer in answers:
        length = max(len(text.upper()), len(answer.upper()))
        distance = edit_distance(normalise(text).lower(), normalise(answer).lower())
        shares.append(distance / length if length else 0.0)
    similarity = 1 - min(shares)
    return similarity if similarity >= ANLS_THRESHOLD else 0.0


def edit_distance(first: str, second: str) -> int:
    """The least number of insertions, deletions and substitutions between two texts (Levenshtein 1966)."""
    if len(first) < len(second):
        first, second = second, first
    row = list(range(len(second) + 1))
    for i, ours in enumerate(first, 1):
        before, row = row, [i]
        for j, theirs in enumerate(second, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (ours != theirs)))
    return row[-1]


@_metric("relaxed_accuracy", "relaxed accuracy")
def relaxed_accuracy(text: str, answers: Iterable[str]) -> bool:
    """Whether a number is within `RELAXED_TOLERANCE` of an answer, or a text equals one except for case (ChartQA). A
    target of 0 is compared as text, as in the reference code; "12%" is 0.12."""
    return any(_nearly(text, answer) for answer in answers)


def _nearly(text: str, answer: str) -> bool:
    number, target = _number(text), _number(answer)
    if number is not None and target:
        return abs(number - target) / abs(target) <= RELAXED_TOLERANCE
    return text.lower() == answer.lower()


def _number(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


@_metric("token_f1", "token F1")
def token_f1(text: str, answers: Iterable[str]) -> float:
    """Harmonic mean of precision and recall of words, for the best answer (SQuAD 2.0, Rajpurkar et al. 2018). It
    ignores case, ASCII punctuation and articles; if nothing is left of either, both must be empty."""
    return max(_f1(_words(text), _words(answer)) for answer in answers)


def _words(text: str) -> Counter[str]:
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    return Counter(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _f1(said: Counter[str], wanted: Counter[str]) -> float:
    if not said or not wanted:
        return float(said == wanted)
    return 2 * (said & wanted).total() / (said.total() + wanted.total())


def patch_recall(fetched: Iterable[int], boxed: np.ndarray) -> float:
    """Share of the patches True in `boxed` [G, G] or [N] (at least one) that are among the `fetched` indices."""
    wanted = set(np.flatnonzero(boxed).tolist())
    if not wanted:
        raise ValueError("boxed: expected at least one patch; got none")
    return len(wanted.intersection(fetched)) / len(wanted)
