"""From the scores of arms to a decision under rules that are written down before the run (pre-registered).

rules:                       # the first one that holds decides
  - decision: GO
    if: {arm: realizer, above: [random, saliency], by: 2}      # the interval of the difference is above 2 points
  - decision: STOP
    if: {arm: realizer, not_above: none, by: 2}                # the interval ends at 2 points or below
otherwise: {decision: INCONCLUSIVE}
notes:                       # shown with the decision if they hold
  - if: {arm: realizer, not_above: larger}                     # by: 2 by default

The 95 % interval of the difference decides, never its sign. Fewer than `FEWEST_IMAGES` images give no decision. The
sentences that justify a decision are generated from the measurements.

Notation: n questions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..data.records import listed
from ..files import read_yaml
from .predictions import compared_halves
from .reporting import points
from .scores import Items, Scored, compare_all
from .statistics import FEWEST_IMAGES

NO_VERDICT = "NO VERDICT"
"""The decision if there are too few images."""

Comparison = Mapping[str, Any]
"""A comparison of two arms: {"difference": {"value", "low", "high"} in shares, "significant": bool, ...}."""

SMALLEST_DIFFERENCE = 2.0
"""The smallest useful difference, points; the default of `by` for `not_above`."""

RIVALS = ("larger", "smaller", "random", "saliency", "uniform", "patches_only")
"""The arms that running back must exceed at equal tokens, see `arms`."""


def default_rules(strategy: str) -> dict[str, Any]:
    """The rules where none are stated: does `strategy`, the model's own, pay?"""
    return {
        "rules": [
            {"decision": "GO", "if": {"arm": strategy, "above": ["none", *RIVALS], "by": SMALLEST_DIFFERENCE}},
            {"decision": "STOP", "if": {"arm": strategy, "not_above": ["none"], "by": SMALLEST_DIFFERENCE}},
            *(
                {"decision": "NO-GO", "if": {"arm": strategy, "not_above": [rival], "by": SMALLEST_DIFFERENCE}}
                for rival in RIVALS
            ),
        ],
        "otherwise": {"decision": "INCONCLUSIVE"},
        "notes": [{"if": {"arm": "saliency", "not_above": ["random"], "by": SMALLEST_DIFFERENCE}}],
    }


_FORMS = ({"arm", "above", "by"}, {"arm", "not_above", "by"}, {"arm", "not_above"})
"""The keys of a condition."""


@dataclass(frozen=True)
class Condition:
    """A statement about the differences between `arm` and each of `others`, in points.

    Attributes:
        arm, others: names of the arm and of the arms to compare it with.
        above: if True, the difference is significant and its whole interval above `by`; else the whole interval is at
            most `by`.
        by: points.
    """

    arm: str
    others: tuple[str, ...]
    above: bool
    by: float

    def holds(self, compare: Callable[[str, str], Comparison]) -> bool:
        """Whether the condition holds for all others, by `compare(first, second)`."""
        return not self.failing(compare)

    def failing(self, compare: Callable[[str, str], Comparison]) -> list[str]:
        """The others for which the condition does not hold."""

        def shown(row: Comparison) -> bool:
            low, high = (100 * row["difference"][end] for end in ("low", "high"))
            return row["significant"] and low > self.by if self.above else high <= self.by

        return [other for other in self.others if not shown(compare(self.arm, other))]

    def finding(self, compare: Callable[[str, str], Comparison]) -> str:
        """A sentence with the measurements, for a condition that holds."""
        if self.above:
            return f"{self.arm} is above {listed(self.others)}, by more than {self.by:g} points."
        return f"{self.arm} is {listed([self._place(other, compare(self.arm, other)) for other in self.others])}."

    def _place(self, other: str, row: Comparison) -> str:
        if row["significant"] and row["difference"]["high"] < 0:
            return f"below {other}: {points(row['difference'])} points"
        return f"not above {other} by more than {self.by:g} points: {points(row['difference'])}"


def read_rules(path: Path) -> dict[str, Any]:
    """Reads the rules in a YAML file.

    Raises:
        ValueError: the file is not YAML, or has no rules.
        OSError: the file cannot be read.
    """
    content = read_yaml(path)
    check_rules(content)
    return content


def check_rules(rules: Any) -> None:
    """Refuses rules that `decide` cannot follow.

    Raises:
        ValueError: a rule, a note or `otherwise` is malformed; the message names it and the expected form.
    """
    if not isinstance(rules, dict) or not isinstance(rules.get("rules"), list) or not rules["rules"]:
        raise ValueError(f"rules: expected a list of rules under the name rules; got {rules!r}")
    notes = rules.get("notes") or []
    if not isinstance(notes, list):
        raise ValueError(f"notes: expected a list; got {notes!r}")
    for kind, stated in (("rules", rules["rules"]), ("notes", notes)):
        for i, rule in enumerate(stated):
            condition(rule, f"{kind}[{i}]")
            _check_decision(rule, f"{kind}[{i}]", decides=kind == "rules")
    _check_decision(rules.get("otherwise"), "otherwise")


def _check_decision(content: Any, place: str, *, decides: bool = True) -> None:
    if decides and (not isinstance(content, dict) or not isinstance(content.get("decision"), str)):
        raise ValueError(f"{place}: expected decision, a string; got {content!r}")
    if "text" in content:
        raise ValueError(f"{place}: expected no text, which is made from what is measured; got {content['text']!r}")


def condition(rule: Any, place: str = "rule") -> Condition:
    """The condition of a rule or note.

    Raises:
        ValueError: there is no `if` with an arm and either `above` and `by`, or `not_above` and optionally `by`.
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
    """The distinct pairs of arms that the rules and notes compare."""
    conditions = [condition(rule) for rule in (*rules["rules"], *(rules.get("notes") or []))]
    return list(dict.fromkeys((stated.arm, other) for stated in conditions for other in stated.others))


def margins(rules: dict[str, Any]) -> dict[tuple[str, str], float]:
    """By pair of arms, the share by which rules require the first to exceed the second."""
    conditions = [condition(rule) for rule in rules["rules"]]
    return {(each.arm, other): each.by / 100 for each in conditions if each.above for other in each.others}


def missing_arms(rules: dict[str, Any], arms: Sequence[str]) -> list[str]:
    """Arms that rules need and that are not asked; notes about absent arms are silently omitted."""
    needed = [condition(rule) for rule in rules["rules"]]
    names = {name for stated in needed for name in (stated.arm, *stated.others)}
    return sorted(names - set(arms))


def decide(
    rules: dict[str, Any], arms: Sequence[str], compare: Callable[[str, str], Comparison], *, images: int
) -> dict[str, Any]:
    """The decision, its text, the comparisons behind it, and the notes that hold.

    Args:
        rules: checked by `check_rules`; none of their arms is missing (`missing_arms`).
        arms: names of the arms that are asked.
        compare: returns the comparison of two arms.
        images: the number of different images; fewer than `FEWEST_IMAGES` give no decision.
    """
    if images < FEWEST_IMAGES:
        text = f"A verdict needs at least {FEWEST_IMAGES} different images; these questions are about {images}."
        return {"decision": NO_VERDICT, "text": text, "because": [], "notes": []}
    rests_on: list[tuple[str, str]] = []
    outcome = {"decision": rules["otherwise"]["decision"], "text": ""}
    for rule in rules["rules"]:
        stated = condition(rule)
        rests_on += [(stated.arm, other) for other in stated.others]
        if stated.holds(compare):
            outcome = {"decision": rule["decision"], "text": stated.finding(compare)}
            break
    noted = [condition(note) for note in rules.get("notes") or []]
    notes = [note.finding(compare) for note in noted if {note.arm, *note.others} <= set(arms) and note.holds(compare)]
    outcome["text"] = outcome["text"] or _undecided([condition(rule) for rule in rules["rules"]], compare)
    return {**outcome, "because": list(dict.fromkeys(rests_on)), "notes": notes}


def _undecided(conditions: Sequence[Condition], compare: Callable[[str, str], Comparison]) -> str:
    """A text with the differences for which no rule holds."""
    pairs = dict.fromkeys((each.arm, other) for each in conditions for other in each.failing(compare))
    open_pairs = [
        f"{arm} against {other}, {points(compare(arm, other)['difference'])} points"
        for arm, other in pairs
        if all(other in each.failing(compare) for each in conditions if each.arm == arm and other in each.others)
    ]
    return f"No rule holds. Open: {'; '.join(open_pairs)}." if open_pairs else "No rule holds."


def judge(scored: Sequence[Scored], items: Items, rules: dict[str, Any]) -> dict[str, Any]:
    """{"comparisons", "decision", "notes"} of the answers of all arms; without rules ({}) there is no decision.

    Comparisons: each strategy of the ladder with the one before, the pairs of the rules, the pairs that show the
    contribution of base and patches, and the last strategy with every other arm except ablations. All are one family
    for Holm's correction. "notes" are by arm.
    """
    by_name = {of_arm.arm.name: of_arm for of_arm in scored}
    rungs = [name for name, of_arm in by_name.items() if of_arm.arm.role == "ladder"]
    fixed = [name for name, of_arm in by_name.items() if of_arm.arm.role not in ("ablation", "half")]
    pairs = [(upper, lower) for lower, upper in pairwise(rungs)]
    pairs += [pair for pair in compared(rules) if set(pair) <= set(by_name)] if rules else []
    pairs += compared_halves([of_arm.arm for of_arm in scored])
    pairs += [(rungs[-1], name) for name in fixed if name != rungs[-1]] if rungs else []
    named = [(by_name[first], by_name[second]) for first, second in dict.fromkeys(pairs)]
    comparisons = compare_all(named, margins(rules) if rules else None)
    known = {(comparison["first"], comparison["second"]): comparison for comparison in comparisons}
    images = items.number_of_images
    decided = {}
    if rules:
        decided = {"decision": decide(rules, list(by_name), lambda first, second: known[first, second], images=images)}
    return {"comparisons": comparisons, **decided, "notes": {name: of_arm.arm.note for name, of_arm in by_name.items()}}
