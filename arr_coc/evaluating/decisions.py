"""Decision rules, written down before the run: which outcome means what.

rules:                       # the first one that holds decides
  - decision: GO
    if: {arm: realizer, above: [random, saliency], by: 2}      # by more than so many points, also at the interval's end
    text: Looking where the question says pays.
  - decision: STOP
    if: {arm: realizer, not_above: none, by: 2}                # the interval ends at so many points, or below
    text: Patches help no more than none.
otherwise: {decision: CANNOT SAY, text: Neither is shown.}
notes:                       # said beside the decision, each that holds
  - if: {arm: realizer, not_above: larger}                     # by: 2 where nothing is said
    text: A larger image does as well.

The 95 % interval of the difference decides, never its sign. Fewer than `FEWEST_IMAGES` images decide nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import read_yaml
from .statistics import FEWEST_IMAGES

NO_VERDICT = "NO VERDICT"
"""The decision where there are too few images for any."""

Comparison = Mapping[str, Any]
"""Of two arms: {"difference": {"value", "low", "high"} in shares, "significant": bool, ...}."""

SMALLEST_DIFFERENCE = 2.0
"""Points: less is not worth having. What `not_above` leaves open where a rule does not say."""

RIVALS = {
    "larger": "base tokens alone, of a larger image and no fewer",
    "smaller": "all patches of a smaller image, at no fewer tokens",
    "random": "chance",
    "saliency": "strong edges",
    "uniform": "a regular lattice of as many patches",
    "patches_only": "the same number of patches without the base",
}
"""What running back has to beat at equal tokens, in words."""

DEFAULT_RULES: dict[str, Any] = {
    "rules": [
        {
            "decision": "GO",
            "if": {"arm": "realizer", "above": ["none", *RIVALS], "by": SMALLEST_DIFFERENCE},
            "text": "Running back to where the question points pays, by more than two points over the base alone, over "
            "a floor and a smaller image of as many tokens, over blind patches, and over patches without a base.",
        },
        {
            "decision": "STOP",
            "if": {"arm": "realizer", "not_above": ["none"], "by": SMALLEST_DIFFERENCE},
            "text": "Patches from where the question points answer no more questions than none, to within two points.",
        },
        *(
            {
                "decision": "NO-GO",
                "if": {"arm": "realizer", "not_above": [rival], "by": SMALLEST_DIFFERENCE},
                "text": f"Patches from where the question points are no better than {words}, to within two points.",
            }
            for rival, words in RIVALS.items()
        ),
    ],
    "otherwise": {
        "decision": "CANNOT SAY",
        "text": "Running back is neither shown to pay by two points nor shown not to: more images would tell.",
    },
    "notes": [
        {
            "if": {"arm": "saliency", "not_above": ["random"], "by": 2},
            "text": "Strong edges are no better a guide than chance.",
        },
    ],
}


_FORMS = ({"arm", "above", "by"}, {"arm", "not_above", "by"}, {"arm", "not_above"})
"""The names that a condition may consist of."""


@dataclass(frozen=True)
class Condition:
    """A statement about the differences between `arm` and each of `others`, in points.

    Attributes:
        arm, others: names of the arm and of those that it is compared with.
        above: the difference is significant and its whole interval above `by`; else the whole interval is at most `by`.
        by: points.
    """

    arm: str
    others: tuple[str, ...]
    above: bool
    by: float

    def holds(self, compare: Callable[[str, str], Comparison]) -> bool:
        """Whether it is shown of all others, by `compare(first, second)`."""
        comparisons = [compare(self.arm, other) for other in self.others]
        if self.above:
            return all(row["significant"] and 100 * row["difference"]["low"] > self.by for row in comparisons)
        return all(100 * row["difference"]["high"] <= self.by for row in comparisons)


def read_rules(path: Path) -> dict[str, Any]:
    """The rules in a YAML file.

    Raises:
        ValueError: no YAML, or no rules.
        OSError: the file cannot be read.
    """
    content = read_yaml(path)
    check_rules(content)
    return content


def check_rules(rules: Any) -> None:
    """Refuses anything that `decide` could not follow.

    Raises:
        ValueError: a rule, a note or `otherwise` is malformed; the message says which and what was expected.
    """
    if not isinstance(rules, dict) or not isinstance(rules.get("rules"), list) or not rules["rules"]:
        raise ValueError(f"rules: expected a list of rules under the name rules; got {rules!r}")
    for place, rule in (*((f"rules[{i}]", rule) for i, rule in enumerate(rules["rules"])), *_notes(rules)):
        condition(rule, place)
        _require_texts(rule, place, ("decision", "text") if place.startswith("rules") else ("text",))
    _require_texts(rules.get("otherwise"), "otherwise", ("decision", "text"))


def _notes(rules: dict[str, Any]) -> list[tuple[str, Any]]:
    notes = rules.get("notes") or []
    if not isinstance(notes, list):
        raise ValueError(f"notes: expected a list; got {notes!r}")
    return [(f"notes[{i}]", note) for i, note in enumerate(notes)]


def _require_texts(content: Any, place: str, names: Sequence[str]) -> None:
    for name in names:
        if not isinstance(content, dict) or not isinstance(content.get(name), str):
            raise ValueError(f"{place}: expected {name}, a string; got {content!r}")


def condition(rule: Any, place: str = "rule") -> Condition:
    """The condition of a rule or note.

    Raises:
        ValueError: no `if` with an arm and either `above` and `by`, or `not_above` and perhaps `by`.
    """
    content = rule.get("if") if isinstance(rule, dict) else None
    if isinstance(content, dict) and set(content) in _FORMS:
        above = "above" in content
        others, by = content["above" if above else "not_above"], content.get("by", SMALLEST_DIFFERENCE)
        others = [others] if isinstance(others, str) else others
        named = isinstance(others, list) and others and all(isinstance(other, str) for other in others)
        if isinstance(content["arm"], str) and named and isinstance(by, int | float):
            return Condition(content["arm"], tuple(others), above, float(by))
    expected = "if with arm, above and by (points), or arm and not_above, perhaps by"
    raise ValueError(f"{place}: expected {expected}; got {content!r}")


def compared(rules: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs of arms that the rules and notes speak of, each once."""
    conditions = [condition(rule) for rule in (*rules["rules"], *(rules.get("notes") or []))]
    return list(dict.fromkeys((stated.arm, other) for stated in conditions for other in stated.others))


def margins(rules: dict[str, Any]) -> dict[tuple[str, str], float]:
    """By which share rules want the first of two arms above the second."""
    conditions = [condition(rule) for rule in rules["rules"]]
    return {(each.arm, other): each.by / 100 for each in conditions if each.above for other in each.others}


def missing_arms(rules: dict[str, Any], arms: Sequence[str]) -> list[str]:
    """Arms that the deciding rules need and the experiment lacks; notes about absent arms are left out silently."""
    needed = [condition(rule) for rule in rules["rules"]]
    names = {name for stated in needed for name in (stated.arm, *stated.others)}
    return sorted(names - set(arms))


def decide(
    rules: dict[str, Any], arms: Sequence[str], compare: Callable[[str, str], Comparison], *, images: int
) -> dict[str, Any]:
    """The decision, the text that follows, the comparisons it rests on, and the notes that hold.

    Args:
        rules: checked by `check_rules`, with all arms that they need (`missing_arms`).
        arms: those of the experiment.
        compare: of two arms that the rules compare.
        images: how many different ones were asked about; fewer than `FEWEST_IMAGES` give no verdict.
    """
    if images < FEWEST_IMAGES:
        text = f"A verdict needs at least {FEWEST_IMAGES} different images; these questions are about {images}."
        return {"decision": NO_VERDICT, "text": text, "because": [], "notes": []}
    rests_on: list[tuple[str, str]] = []
    outcome: dict[str, Any] = dict(rules["otherwise"])
    for rule in rules["rules"]:
        stated = condition(rule)
        rests_on += [(stated.arm, other) for other in stated.others]
        if stated.holds(compare):
            outcome = {name: rule[name] for name in ("decision", "text")}
            break
    notes = [
        note["text"]
        for note in rules.get("notes") or []
        if {condition(note).arm, *condition(note).others} <= set(arms) and condition(note).holds(compare)
    ]
    return {**outcome, "because": list(dict.fromkeys(rests_on)), "notes": notes}
