"""Decision rules, written down before the run: which outcome means what.

rules:                       # the first one that holds decides
  - decision: STOP
    if: {arm: random, not_above: none}
    text: Patches help no more than none.
  - decision: GO
    if: {arm: realizer, above: [random, saliency], by: 2}      # points, and significantly
    text: Looking where the question says pays.
otherwise: {decision: INCONCLUSIVE, text: None of the above.}
notes:                       # said beside the decision, each that holds
  - if: {arm: realizer, not_above: larger}
    text: A larger image does as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Comparison = Mapping[str, Any]
"""Of two arms: {"difference": {"value": in shares, ...}, "significant": bool, ...}."""

DEFAULT_RULES: dict[str, Any] = {
    "rules": [
        {
            "decision": "STOP",
            "if": {"arm": "random", "not_above": ["none"]},
            "text": "Random patches answer no more questions than none: here, more tokens alone are no help.",
        },
        {
            "decision": "INVESTIGATE",
            "if": {"arm": "saliency", "not_above": ["random"]},
            "text": "Strong edges are no better a guide than chance: something in the fetching or its reading is off.",
        },
        {
            "decision": "GO",
            "if": {"arm": "realizer", "above": ["random", "saliency"], "by": 2},
            "text": "Running back to where the question points pays, by more than two points over both blind rules.",
        },
    ],
    "otherwise": {
        "decision": "NO-GO",
        "text": "Running back to where the question points is not shown to beat both blind rules by two points.",
    },
    "notes": [
        {
            "if": {"arm": "realizer", "not_above": ["uniform"]},
            "text": "A regular lattice of as many patches does as well.",
        },
        {
            "if": {"arm": "realizer", "not_above": ["larger"]},
            "text": "A larger image with base tokens only, at no fewer tokens, does as well.",
        },
        {
            "if": {"arm": "realizer", "not_above": ["smaller"]},
            "text": "A smaller image with all of its patches, at no fewer tokens, does as well.",
        },
    ],
}
"""`not_above` compares means; `above` wants more than `by` points and a significant difference."""


@dataclass(frozen=True)
class Condition:
    """`arm` is above all of `others` by more than `by` points, or (`by` None) its mean is not above any of them."""

    arm: str
    others: tuple[str, ...]
    by: float | None

    def holds(self, compare: Callable[[str, str], Comparison]) -> bool:
        """Whether it does, by `compare(first, second)`."""
        found = [compare(self.arm, other) for other in self.others]
        if self.by is None:
            return all(one["difference"]["value"] <= 0 for one in found)
        return all(100 * one["difference"]["value"] > self.by and one["significant"] for one in found)


def read_rules(path: Path) -> dict[str, Any]:
    """The rules in a YAML file.

    Raises:
        ValueError: no YAML, or no rules.
        OSError: the file cannot be read.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected YAML; got {error}") from error
    check_rules(content)
    return content


def check_rules(rules: Any) -> None:
    """Refuses anything that `decide` could not follow.

    Raises:
        ValueError: what was expected, and where.
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


def _require_texts(given: Any, place: str, names: Sequence[str]) -> None:
    for name in names:
        if not isinstance(given, dict) or not isinstance(given.get(name), str):
            raise ValueError(f"{place}: expected {name}, a string; got {given!r}")


def condition(rule: Any, place: str = "rule") -> Condition:
    """The condition of a rule or note.

    Raises:
        ValueError: no `if` with an arm and either `not_above`, or `above` and `by`.
    """
    given = rule.get("if") if isinstance(rule, dict) else None
    if isinstance(given, dict) and isinstance(given.get("arm"), str):
        for name in ({"not_above"}, {"above", "by"}):
            if set(given) == {"arm", *name}:
                others = given[min(name)]
                others = [others] if isinstance(others, str) else others
                by = given.get("by")
                named = isinstance(others, list) and others and all(isinstance(other, str) for other in others)
                if named and (by is None or isinstance(by, int | float)):
                    return Condition(given["arm"], tuple(others), None if by is None else float(by))
    expected = "if with arm and not_above, or arm, above and by (points)"
    raise ValueError(f"{place}: expected {expected}; got {given!r}")


def compared(rules: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs of arms that the rules and notes speak of, each once."""
    found = [condition(rule) for rule in (*rules["rules"], *(rules.get("notes") or []))]
    return list(dict.fromkeys((one.arm, other) for one in found for other in one.others))


def missing_arms(rules: dict[str, Any], arms: Sequence[str]) -> list[str]:
    """Arms that the deciding rules need and the experiment lacks; notes about absent arms are left out silently."""
    needed = [condition(rule) for rule in rules["rules"]]
    names = [name for one in needed for name in (one.arm, *one.others)]
    return sorted(set(names) - set(arms))


def decide(rules: dict[str, Any], arms: Sequence[str], compare: Callable[[str, str], Comparison]) -> dict[str, Any]:
    """The decision, the text that follows, the comparisons it rests on, and the notes that hold.

    Args:
        rules: checked by `check_rules`, with all arms that they need (`missing_arms`).
        arms: those of the experiment.
        compare: of two arms that the rules compare.
    """
    asked: list[tuple[str, str]] = []
    made: dict[str, Any] = dict(rules["otherwise"])
    for rule in rules["rules"]:
        one = condition(rule)
        asked += [(one.arm, other) for other in one.others]
        if one.holds(compare):
            made = {name: rule[name] for name in ("decision", "text")}
            break
    notes = [
        note["text"]
        for note in rules.get("notes") or []
        if {condition(note).arm, *condition(note).others} <= set(arms) and condition(note).holds(compare)
    ]
    return {**made, "because": list(dict.fromkeys(asked)), "notes": notes}
