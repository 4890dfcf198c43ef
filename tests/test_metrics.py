"""Metrics: vectors worked by hand from each benchmark's rules, the faults of their scorers included, and properties."""

from typing import Any

import numpy as np
import pytest
from helpers import refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.evaluation.statistics import (
    SIGNIFICANCE,
    bootstrap_mean,
    clustered_error,
    holm,
    is_significant,
    paired_difference,
    score_interval,
    sign_flip,
    wilson,
)
from arr_coc.metrics import (
    CONTRACTIONS,
    METRICS,
    Metric,
    anls,
    edit_distance,
    exact_match,
    gqa_accuracy,
    normalise_textvqa,
    normalise_vqa,
    relaxed_accuracy,
    token_f1,
    vqa_accuracy,
)
from arr_coc.metrics import textvqa_accuracy as textvqa

ANSWERS = st.lists(st.text("aAb ,.'?-19\n", max_size=8), min_size=10, max_size=10)
TEXT = st.text("aAb ,.'?-19\n", max_size=8)


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The Cat", "cat"),
        ("two dogs and an ox", "2 dogs and ox"),
        ("None", "0"),
        ("eleven", "eleven"),
        ("dont", "don't"),
        ("couldnt've couldn'tve", "couldn't've couldn't've"),
        ("yall'd've y'alld've y'all'dve", "y'all'd've y'all'd've y'all'd've"),
        ("somebody'd", "somebodyd"),
        ("Im", "im"),  # the scorer's "Im" can never be met: words are in lower case by then
        ("shed", "shed"),  # not in the scorer's table
        ("black/white", "black white"),  # a sign between words becomes a space
        ("black / white", "black white"),  # beside a space it goes, and the spaces stay
        ("t-shirt - red", "tshirt red"),  # one dash beside a space, and every dash goes
        ("1,000", "1000"),
        ("1,000 x-ray", "1000 xray"),  # a comma between digits: every sign goes
        ("1, 2", "1 2"),
        ("a,b", "b"),  # "a b", and "a" is an article
        ("3.5", "3.5"),
        (".5", ".5"),
        ("5.", "5"),  # the scorer means to keep it and does not
        ("u.s.a.", "usa"),
        ("." * 33, "."),  # the scorer removes 32 at most
        ("what?!", "what"),
        ("é—ß", "é—ß"),  # signs beyond ASCII stay
        ("١,٢ a-b", "١٢ ab"),  # any digits count as digits
        ("", ""),
        ("the", ""),
    ],
)
def test_vqa_normalisation(text: str, normalised: str) -> None:
    assert normalise_vqa(text) == normalised


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("McDonald's", "mcdonald 's"),
        ("it's", "it 's"),
        ("1,000 x-ray", "1000 x ray"),  # commas went first: the dash is between words
        ("yes?no", "yesno"),
        (" The\tend\n", "end"),
        ("a-", ""),
        ("Ten", "10"),
    ],
)
def test_textvqa_normalisation(text: str, normalised: str) -> None:
    assert normalise_textvqa(text) == normalised


def test_every_contraction_is_as_the_scorer_spells_it() -> None:
    assert len(CONTRACTIONS) == 114
    assert CONTRACTIONS["'ows'at"] == CONTRACTIONS["ow's'at"] == CONTRACTIONS["'ow'sat"] == "'ow's'at"
    assert CONTRACTIONS["twas"] == "'twas" and CONTRACTIONS["oclock"] == "o'clock"


@pytest.mark.parametrize(("same", "score"), [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)])
def test_vqa_accuracy_leaves_each_person_out(same: int, score: float) -> None:
    """With 2 of 10: two people see one other (1/3), eight see two (2/3): (2/3 + 16/3) / 10 = 0.6."""
    answers = ["red"] * same + [f"other {i}" for i in range(10 - same)]
    assert vqa_accuracy("Red.", answers) == pytest.approx(score if same < 10 else 0.0)
    assert textvqa("Red.", answers) == pytest.approx(score)


def test_vqa_accuracy_takes_unanimous_answers_as_they_are() -> None:
    """The scorer normalises only where answers differ: then the letter's case counts."""
    assert vqa_accuracy("yes", ["yes"] * 10) == 1.0
    assert vqa_accuracy("Yes", ["yes"] * 10) == 0.0
    assert vqa_accuracy("Yes", ["yes"] * 9 + ["no"]) == 1.0
    assert textvqa("Yes", ["yes"] * 10) == 1.0


@pytest.mark.parametrize("metric", [vqa_accuracy, textvqa])
def test_too_few_people_are_refused(metric: Any) -> None:
    refuses("answers: .*vqa_accuracy expected at least 4 answers.*; got 1: 'red'", metric, "red", ["red"])


@pytest.mark.parametrize(
    ("text", "answers", "score"),
    [
        ("New York", ["new  york"], 1.0),
        ("kitten", ["sitting"], 1 - 3 / 7),
        ("ab", ["ax"], 0.5),  # exactly the threshold counts
        ("ab", ["axy"], 0.0),
        ("ab", ["zz", "abc"], 1 - 1 / 3),
        ("", [""], 1.0),
        ("", ["a"], 0.0),
        ("ab  ", ["ax"], 0.75),  # spaces lengthen, though they do not count in the distance
        ("ß", ["s"], 0.5),  # in upper case two letters long
    ],
)
def test_anls(text: str, answers: list[str], score: float) -> None:
    assert anls(text, answers) == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ("105", "100", True),
        ("95", "100", True),
        ("105.1", "100", False),
        ("-100", "-104", True),
        ("12%", "0.12", True),
        ("12%", "12", False),
        ("1,000", "1000", False),  # no comma: as the reference code
        ("0", "0", True),
        ("0.0", "0", False),  # a target of 0 is text
        ("Blue", "blue", True),
        ("100", "blue", False),
        ("nan", "nan", False),  # numbers, and not near
        ("%", "%", True),
    ],
)
def test_relaxed_accuracy(text: str, answer: str, right: bool) -> None:
    assert relaxed_accuracy(text, [answer]) is right
    assert relaxed_accuracy(text, ["something else", answer]) is right


@pytest.mark.parametrize(
    ("text", "answers", "score"),
    [
        ("The cat sat.", ["a cat sat"], 1.0),
        ("cat cat", ["cat"], 2 / 3),
        ("red cat", ["blue cat", "dog"], 0.5),
        ("", ["the"], 1.0),
        ("x", ["the"], 0.0),
    ],
)
def test_token_f1(text: str, answers: list[str], score: float) -> None:
    assert token_f1(text, answers) == pytest.approx(score)


# ---- properties
@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@given(text=TEXT, answers=ANSWERS)
@settings(max_examples=60, deadline=None)
def test_scores_are_shares(metric: Metric, text: str, answers: list[str]) -> None:
    score = float(metric.score(text, answers))
    graded = metric in (METRICS["anls"], METRICS["token_f1"], METRICS["vqa_accuracy"], METRICS["textvqa_accuracy"])
    assert 0 <= score <= 1 and (graded or score in (0, 1))
    assert float(metric.score(text, answers[::-1])) == pytest.approx(score)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@given(answer=TEXT, others=ANSWERS)
@settings(max_examples=60, deadline=None)
def test_what_most_people_said_is_right(metric: Metric, answer: str, others: list[str]) -> None:
    if metric.score is not METRICS["relaxed_accuracy"].score or answer.strip() not in ("nan", "inf"):
        assert float(metric.score(answer, [answer] * 6 + others[:4])) == 1.0


@given(TEXT, TEXT, TEXT)
@settings(max_examples=60, deadline=None)
def test_edit_distance_is_a_metric(a: str, b: str, c: str) -> None:
    assert edit_distance(a, b) == edit_distance(b, a) and (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    (
        [("Yes", "yes", True), ("yes.", "yes", True), (" Left \n", "left", True), ("a  bus", "a bus", True)]
        + [("no", "yes", False), ("a cat", "cat", False), ("yes!", "yes", False), ("", "yes", False)]
    ),
)
def test_gqa_accuracy_forgives_case_and_a_full_stop(text: str, answer: str, right: bool) -> None:
    """An answer of GQA's is in lower case: models that begin with a capital once scored 0."""
    assert gqa_accuracy(text, [answer]) is right


@pytest.mark.parametrize("metric", ["exact_match", "caseless_match", "alnum_match", "gqa_accuracy", "anls"])
def test_an_accent_is_the_same_joined_or_apart(metric: str) -> None:
    """PDFs and file names of some systems hold letters and accents apart (NFD)."""
    score = METRICS[metric].score
    assert score("Cafe\u0301 Zu\u0308rich", ["Caf\u00e9 Z\u00fcrich"]) == 1 > score("Cafe", ["Caf\u00e9"])


def test_the_registry_refuses_unknown_names() -> None:
    names = "exact_match caseless_match alnum_match gqa_accuracy vqa_accuracy textvqa_accuracy anls token_f1"
    assert set(METRICS) == {*names.split(), "relaxed_accuracy"}
    assert METRICS["exact_match"].score is exact_match
    with pytest.raises(ValueError, match="metric: expected one of alnum_match, anls, .*; got 'luck'"):
        METRICS["luck"]


# ---- Intervals and tests: values from the literature, clusters, and how often they err on simulated runs
def paired(gained: int, lost: int, same: int = 0) -> tuple[np.ndarray, np.ndarray]:
    first = np.array([1] * gained + [0] * lost + [1] * same)
    return first, np.array([0] * gained + [1] * lost + [1] * same)


def test_sign_flip_by_hand() -> None:
    """9 gained, 1 lost: 2 * (1 + 10) / 2^10, which sign flips approach."""
    assert sign_flip(*paired(9, 1, same=50)) == pytest.approx(22 / 1024, abs=0.004)
    assert sign_flip(*paired(5, 5)) == 1.0 == sign_flip([1, 0], [1, 0])
    refuses("scores: expected the same items for both; got 1 and 2", sign_flip, [1], [1, 0])
    # Ten questions that go together are one piece of evidence.
    first, second = paired(20, 0)
    assert sign_flip(first, second) < 0.001
    assert sign_flip(first, second, groups=np.repeat([0, 1], 10)) == pytest.approx(0.5, abs=0.02)


def test_holm_by_hand() -> None:
    """0.01 * 3, 0.03 * 2; 0.04 * 1 may not fall below 0.06."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    refuses("values: expected at least one; got none", bootstrap_mean, [])
    refuses(r"groups: expected one per value \(2\); got 1", bootstrap_mean, [1, 2], groups=[0])


def test_the_test_the_interval_and_the_number_of_images_must_agree() -> None:
    first, second = paired(20, 0)
    difference = paired_difference(first, second)
    assert is_significant(difference, 1e-6, 20)
    assert not is_significant(difference, 0.03, 20)
    assert not is_significant(difference, 1e-6, 19)
    assert not is_significant(paired_difference([1] * 19 + [0], [0] * 19 + [1], groups=[0] * 19 + [1]), 1e-6, 20)


def test_what_no_image_shows_is_not_ruled_out() -> None:
    """Resampling nothing but zeros says 0 [0, 0]; Wilson's interval of 30 images leaves 11 points open."""
    images = np.repeat(np.arange(30), 5)
    zeros = np.zeros(150)
    assert score_interval(zeros, images).high == wilson(0, 30).high == pytest.approx(0.1135, abs=1e-3)
    assert score_interval(zeros + 1, images).low == pytest.approx(wilson(30, 30).low)
    same = paired_difference(zeros, zeros, groups=images)
    assert (same.low, same.value, same.high) == (-wilson(0, 30).high, 0.0, wilson(0, 30).high)
    groups = [0, 0, 0, 1, 2, 2, 3]  # sums of 0.9 - 0.3 over these differ by rounding
    alike = paired_difference([0.9] * 7, [0.3] * 7, groups=groups)
    assert alike.low == pytest.approx(0.6 - wilson(0, 4).high) and alike.high == 1.0
    assert clustered_error([0.9] * 7, [0.3] * 7, groups=groups) > 0.1


# ---- simulated runs: how often is a comparison called significant?
def finds_something(answers: np.ndarray, images: np.ndarray) -> bool:
    """Whether any comparison of the first arm with the others is called significant, as the experiment calls it."""
    p_values = [sign_flip(answers[0], other, groups=images) for other in answers[1:]]
    return any(
        p <= SIGNIFICANCE
        and is_significant(paired_difference(answers[0], other, groups=images), p, len(np.unique(images)))
        for p, other in zip(holm(p_values), answers[1:], strict=True)
    )


def test_eighteen_comparisons_on_grouped_answers_hardly_ever_find_what_is_not_there() -> None:
    """20 images of 15 questions: each arm is good or bad at whole images, and all arms are alike on average.

    Taking 300 such questions for independent, as McNemar's test does, finds a difference more often than not.
    """
    rng = np.random.default_rng(0)
    images = np.repeat(np.arange(20), 15)
    experiments, wrong, wrong_by_question = 100, 0, 0
    for number in range(experiments):
        skills = rng.beta(0.5, 0.5, size=(19, 20))
        answers = (rng.random((19, 300)) < np.repeat(skills, 15, axis=1)).astype(float)
        wrong += finds_something(answers, images)
        wrong_by_question += number < 20 and finds_something(answers, np.arange(300))
    assert wrong / experiments <= 0.03
    assert wrong_by_question > 10
