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
from typing import Any

from ..data.records import listed
from .reporting import points
from .scores import Items, Scored, compare_all, compared_halves
from .statistics import FEWEST_IMAGES

NO_VERDICT = "NO VERDICT"  # the decision if there are too few images

Comparison = Mapping[str, Any]
"""A comparison of two arms: {"difference": {"value", "low", "high"} in shares, "significant": bool, ...}."""

Compare = Callable[[str, str], Comparison]  # names of two arms -> their comparison

SMALLEST_DIFFERENCE = 2.0  # the smallest useful difference, points; the default of `by` for `not_above`
_FORMS = ({"arm", "above", "by"}, {"arm", "not_above", "by"}, {"arm", "not_above"})  # the keys of a condition

RIVALS = ("larger", "smaller", "random", "saliency", "uniform", "patches_only")
"""The arms that running back must exceed at equal tokens, see `arms`."""


@dataclass(frozen=True)
class Condition:
    """A statement about the differences between `arm` and each of `others`, in points."""

    arm: str
    others: tuple[str, ...]  # the arms to compare it with
    # If True, the difference is significant and its whole interval above `by`; else the whole interval is at most `by`.
    above: bool
    by: float = SMALLEST_DIFFERENCE  # points

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of arms that are compared."""
        return [(self.arm, other) for other in self.others]

    def failing(self, compare: Compare) -> list[tuple[str, str]]:
        """The pairs for which the condition does not hold."""

        def shown(row: Comparison) -> bool:
            low, high = (100 * row["difference"][end] for end in ("low", "high"))
            return row["significant"] and low > self.by if self.above else high <= self.by

        return [pair for pair in self.pairs if not shown(compare(*pair))]

    def finding(self, compare: Compare) -> str:
        """A sentence with the measurements, for a condition that holds."""
        if self.above:
            return f"{self.arm} is above {listed(self.others)}, by more than {self.by:g} points."
        places = []
        for other in self.others:
            row = compare(self.arm, other)
            is_below = row["significant"] and row["difference"]["high"] < 0
            place = f"below {other}" if is_below else f"not above {other} by more than {self.by:g} points"
            places.append(f"{place}: {points(row['difference'])}" + " points" * is_below)
        return f"{self.arm} is {listed(places)}."


@dataclass(frozen=True)
class Rules:
    """Rules for a decision; without any (`Rules()`) there is none."""

    rules: tuple[tuple[str, Condition], ...] = ()  # decisions and their conditions; the first one that holds counts
    otherwise: str = ""  # the decision if none holds
    # Shown with the decision if they hold; those about arms that are not asked are left out.
    notes: tuple[Condition, ...] = ()

    @property
    def compared(self) -> list[tuple[str, str]]:
        """The distinct pairs of arms that rules and notes compare."""
        conditions = [*(condition for _, condition in self.rules), *self.notes]
        return list(dict.fromkeys(pair for condition in conditions for pair in condition.pairs))

    def missing(self, arms: Sequence[str]) -> list[str]:
        """Arms that the rules need and that are not among `arms`."""
        return sorted({name for _, each in self.rules for name in (each.arm, *each.others)} - set(arms))


def default_rules(strategy: str) -> Rules:
    """The rules where none are stated: does `strategy`, the model's own, pay?"""
    go = Condition(strategy, ("none", *RIVALS), above=True)
    none, *rivals = (Condition(strategy, (other,), above=False) for other in go.others)
    rules = (("GO", go), ("STOP", none), *(("NO-GO", rival) for rival in rivals))
    return Rules(rules, "INCONCLUSIVE", (Condition("saliency", ("random",), above=False),))


def read_rules(content: Any) -> Rules:
    """The rules in the content of a YAML file. Raises ValueError: a rule, a note or `otherwise` is malformed; the
    message names it and the expected form."""
    if not isinstance(content, dict) or not isinstance(content.get("rules"), list) or not content["rules"]:
        raise ValueError(f"rules: expected a list of rules under the name rules; got {content!r}")
    notes = content.get("notes") or []
    if not isinstance(notes, list):
        raise ValueError(f"notes: expected a list; got {notes!r}")
    rules = []
    for number, rule in enumerate(content["rules"]):
        condition = _condition(rule, f"rules[{number}]")
        rules.append((_decision(rule, f"rules[{number}]"), condition))
    noted = tuple(_condition(note, f"notes[{number}]") for number, note in enumerate(notes))
    return Rules(tuple(rules), _decision(content.get("otherwise"), "otherwise"), noted)


def _decision(content: Any, place: str) -> str:
    if not isinstance(content, dict) or not isinstance(content.get("decision"), str):
        raise ValueError(f"{place}: expected decision, a string; got {content!r}")
    if "text" in content:
        raise ValueError(f"{place}: expected no text, which is made from what is measured; got {content['text']!r}")
    return content["decision"]


def _condition(rule: Any, place: str) -> Condition:
    """The condition of a rule or note: an `if` with arm, above and by, or arm, not_above and perhaps by."""
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


def decide(rules: Rules, arms: Sequence[str], compare: Compare, *, images: int) -> dict[str, Any]:
    """The decision, its text, and the notes that hold.

    Args:
        rules: none of their arms is missing.
        arms: names of the arms that are asked.
        compare: returns the comparison of two arms.
        images: the number of different images; fewer than `FEWEST_IMAGES` give no decision.
    """
    if images < FEWEST_IMAGES:
        text = f"A verdict needs at least {FEWEST_IMAGES} different images; these questions are about {images}."
        return {"decision": NO_VERDICT, "text": text, "notes": []}
    for decision, condition in rules.rules:
        if not condition.failing(compare):
            outcome = {"decision": decision, "text": condition.finding(compare)}
            break
    else:
        outcome = {"decision": rules.otherwise, "text": _undecided([own for _, own in rules.rules], compare)}
    noted = [note for note in rules.notes if {note.arm, *note.others} <= set(arms)]
    return {**outcome, "notes": [note.finding(compare) for note in noted if not note.failing(compare)]}


def _undecided(conditions: Sequence[Condition], compare: Compare) -> str:
    """A text with the differences for which no rule holds."""
    failing = [(each, each.failing(compare)) for each in conditions]
    open_pairs = [
        f"{arm} against {other}, {points(compare(arm, other)['difference'])} points"
        for arm, other in dict.fromkeys(pair for _, pairs in failing for pair in pairs)
        if all((arm, other) in pairs for each, pairs in failing if (arm, other) in each.pairs)
    ]
    return f"No rule holds. Open: {'; '.join(open_pairs)}." if open_pairs else "No rule holds."


def judge(scored: Sequence[Scored], items: Items, rules: Rules) -> dict[str, Any]:
    """{"comparisons", "decision", "notes"} of the answers of all arms; without rules there is no decision.

    Comparisons: each strategy of the ladder with the one before, the pairs of the rules, the pairs that show the
    contribution of base and patches, and the last strategy with every other arm except ablations. All are one family
    for Holm's correction. "notes" are by arm.
    """
    by_name = {of_arm.arm.name: of_arm for of_arm in scored}
    rungs = [name for name, of_arm in by_name.items() if of_arm.arm.role == "ladder"]
    fixed = [name for name, of_arm in by_name.items() if of_arm.arm.role not in ("ablation", "half")]
    pairs = [(upper, lower) for lower, upper in pairwise(rungs)]
    pairs += [pair for pair in rules.compared if set(pair) <= set(by_name)]
    pairs += compared_halves([of_arm.arm for of_arm in scored])
    pairs += [(rungs[-1], name) for name in fixed if name != rungs[-1]] if rungs else []
    named = [(by_name[first], by_name[second]) for first, second in dict.fromkeys(pairs)]
    comparisons = compare_all(named)
    known = {(comparison["first"], comparison["second"]): comparison for comparison in comparisons}
    decided = {}
    if rules.rules:
        images = items.number_of_images
        decided = {"decision": decide(rules, list(by_name), lambda first, second: known[first, second], images=images)}
    return {"comparisons": comparisons, **decided, "notes": {name: of_arm.arm.note for name, of_arm in by_name.items()}}
