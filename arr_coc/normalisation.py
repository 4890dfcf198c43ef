"""How the VQA scorers normalise answers before they compare them, faults included: scores are to be comparable.

Source: the rules of the VQA evaluation code (Antol et al. 2015, visualqa.org/evaluation) and of the TextVQA scorer
(Singh et al. 2019), which puts a step of its own in front. Faults that are kept: a full stop goes wherever no digit
follows it, also behind a digit; at most 32 full stops go; "none" is 0; one comma between digits anywhere decides how
every sign of the answer is treated.
"""

import re

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
_STOPS = 32
"""The scorer passes `re.UNICODE` (32) where `sub` takes the number of replacements."""


def strip_spaces(text: str) -> str:
    """Line breaks and tabs as spaces, none at the ends."""
    return text.replace("\n", " ").replace("\t", " ").strip()


def _strip_signs(text: str) -> str:
    """A sign that stands beside a space somewhere goes; any other becomes a space. Then full stops go."""
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
