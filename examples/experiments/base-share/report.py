"""Makes the table, the figure and the verdict of stored predictions; `--simulate` says how far the rule can be trusted.

python examples/experiments/base-share/report.py    # writes report.md and curve.svg from predictions.csv
python examples/experiments/base-share/report.py --simulate
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from arms import Arm, read_arms, splits
from predictions import SEVERAL, Row, columns, is_right, read
from rule import ALONE, FETCHED, KINDS, Scores, Verdict, best_split, decide, mean, simulate

from arr_coc.evaluation.peers import PEERS
from arr_coc.evaluation.reporting import COLOURS, MARKS, as_svg
from arr_coc.evaluation.statistics import Interval, paired_difference, score_interval

HERE = Path(__file__).parent
FALL, STAY = 0.20, 0.05
"""With another page's base tokens, spread and gist must fall by at least this, and detail by at most that."""
KEEP_ALL = "keep_all"
SHIPPED = 100 * 256 / 529
"""Share of arr-coc-135m's tokens that are base tokens, %."""
DECIDING = ("0", "1")
"""Seeds of the trainings that choose the split and decide; third trainings are only in the table."""


def scores_of(rows: Sequence[Row], what: str = "", seeds: Collection[str] | None = None) -> dict[str, Scores]:
    """What each arm answered, in the trainings of `seeds` (None: all); kinds are in the order of `KINDS`, or of the
    file."""
    found = dict.fromkeys(row["kind"] for row in rows)
    by_kind = {
        kind: [row for row in rows if row["kind"] == kind] for kind in (KINDS if set(found) <= set(KINDS) else found)
    }
    trainings: dict[str, list[str]] = {}
    for column in columns(rows):
        if column.what == what and (seeds is None or column.seed in seeds):
            trainings.setdefault(column.arm, []).append(str(column))
    pages = {kind: np.array([int(row["page"]) for row in own]) for kind, own in by_kind.items()}
    return {
        arm: Scores(
            pages,
            {
                kind: np.array(
                    [[float(is_right(row[column], row["answers"].split(SEVERAL))) for row in own] for column in names]
                )
                for kind, own in by_kind.items()
            },
        )
        for arm, names in trainings.items()
    }


def guesses(rows: Sequence[Row]) -> Scores:
    """The best answers without a page: for each wording the answer to most of the other questions, or the first or the
    second of the names in the question."""
    by_wording = defaultdict[str, list[Row]](list)
    for row in rows:
        wording = re.sub(r'"[^"]*"', '""', row["question"])
        by_wording[re.sub(r"\d+", "0", wording).strip("?.").casefold()].append(row)
    answered = dict[int, str]()
    for own in by_wording.values():
        named = [re.findall(r'"([^"]*)"', row["question"]) for row in own]
        count = Counter(answer for row in own for answer in row["answers"].split(SEVERAL))
        others = [count - Counter(row["answers"].split(SEVERAL)) for row in own]  # no question is its own guess
        tries = [[max(each, key=lambda answer: each[answer], default="") for each in others]]
        tries += [[each[at] if len(each) > at else "" for each in named] for at in (0, 1)]
        best = max(tries, key=lambda told: sum(map(_right, told, own)))
        answered.update((id(row), told) for row, told in zip(own, best, strict=True))
    return scores_of([{**row, "guess-0": answered[id(row)]} for row in rows])["guess"]


def _right(told: str, row: Row) -> bool:
    return is_right(told, row["answers"].split(SEVERAL))


def shown(interval: Interval) -> str:
    """In percent."""
    return f"{100 * interval.value:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def exact(scores: Scores, kind: str) -> Interval:
    """Exact match of a kind, with an interval by page."""
    return score_interval(scores.right[kind].mean(0), scores.pages[kind])


def table(scores: Mapping[str, Scores], arms: Mapping[str, Arm], costs: Mapping[str, Any], guess: Scores | None) -> str:
    """Exact match of each arm by kind of question, and its costs; below it what can be guessed without a page."""
    kinds = list(next(iter(scores.values())).right)
    lines = [
        f"| arm | base tokens | trainings | {' | '.join(kinds)} | mean | tokens | GFLOP | ms | MB |",
        f"|{'---|' * (len(kinds) + 8)}",
    ]
    for name in [name for name in arms if name in scores]:
        own = scores[name]
        cost = costs.get(name, {})
        base = "chosen" if arms[name].fetched == "auto" else str(arms[name].base)
        cells = [
            f"`{name}`",
            base,
            str(len(own.right[kinds[0]])),
            *(shown(exact(own, kind)) for kind in kinds),
            f"{100 * mean(own):.1f}",
            *(
                f"{cost[key]:.{digits}f}" if key in cost else ""
                for key, digits in (("tokens", 0), ("gflop", 1), ("first_token_ms", 0), ("mb", 2))
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if guess is not None:
        shares = [f"{100 * guess.right[kind].mean():.1f}" for kind in kinds]
        lines.append(f"| best guess without a page | | | {' | '.join(shares)} | {100 * mean(guess):.1f} | | | | |")
    return "\n".join(lines)


def pruning_table(scores: Mapping[str, Scores], pruned: Mapping[str, Scores], arms: Mapping[str, Arm]) -> str:
    """Exact match of the rules on arm `keep_all`, below that of all its tokens; and what the rules are."""
    total = max(arm.base + arm.budget for arm in splits(arms))
    shown_rules = {"all wordpieces": scores[KEEP_ALL], **pruned} if KEEP_ALL in scores else pruned
    lines = [
        f"| {arms[KEEP_ALL].base} base tokens and {total - arms[KEEP_ALL].base} wordpieces, kept by | "
        f"trainings | {' | '.join(KINDS)} | mean |",
        f"|{'---|' * (len(KINDS) + 3)}",
    ]
    for name, own in shown_rules.items():
        cells = [name, str(len(own.right[KINDS[0]])), *(shown(exact(own, kind)) for kind in KINDS)]
        lines.append(f"| {' | '.join(cells)} | {100 * mean(own):.1f} |")
    lines += ["", *(f"- {name}: {PEERS[name].note}." for name in pruned if name in PEERS)]
    return "\n".join(lines)


def verdict_text(verdict: Verdict, scores: Mapping[str, Scores], others: Sequence[str]) -> str:
    """The verdict, each condition, and what becomes the default where no base is best, of it and `others`."""
    lines = [
        f"**{verdict.decision}.** On validation pages `{verdict.split}` is the best split with base and fetched tokens."
    ]
    for said, other in (("Over base tokens alone", ALONE), ("Over fetched tokens alone", FETCHED)):
        half = [each for each in verdict.conditions if each.other == other]
        failed = [each.kind for each in half if each.state != "shown"]
        lines.append(f"\n{said}: {'not met on ' + ', '.join(failed) if failed else 'met'}.\n")
        lines += [
            f"- {each.kind}: {100 * each.difference:+.1f} points (standard error {100 * each.error:.1f}), "
            f"expected above {100 * each.margin:+.0f}: {each.state}"
            for each in half
        ]
    fetched = {kind: scores[FETCHED].right[kind].mean() for kind in KINDS}
    if all(fetched[kind] >= max(scores[name].right[kind].mean() for name in others) for kind in KINDS):
        lines.append("\nNo base token at all is best for every kind: by the rule it becomes the default.")
    return "\n".join(lines)


def trainings_text(unseen: Mapping[str, Scores], scores: Mapping[str, Scores]) -> str:
    """The means on validation pages, and how far trainings of an arm that differ in their seed alone are apart."""
    means = ", ".join(f"`{name}` {100 * mean(own):.1f}" for name, own in unseen.items())
    apart = {kind: max(float(np.ptp(own.right[kind].mean(1))) for own in scores.values()) for kind in KINDS}
    return (
        f"Mean of the kinds on validation pages, in %: {means}.\n\nTrainings of one arm on test pages are apart by at "
        f"most, in points: {', '.join(f'{kind} {100 * points:.1f}' for kind, points in apart.items())}."
    )


def swap_text(plain: Scores, swapped: Scores, guess: Scores, changed: Mapping[str, float], name: str) -> str:
    """The swap test of an arm: what it loses with another page's base tokens, and how many answers change."""
    lines = [f"With the base tokens of another page, `{name}` loses, in points:\n"]
    lost = {}
    for kind in KINDS:
        lost[kind] = paired_difference(plain.right[kind].mean(0), swapped.right[kind].mean(0), groups=plain.pages[kind])
        lines.append(f"- {kind}: {shown(lost[kind])}; {100 * changed[kind]:.0f} % of the answers change")
    detail, _, *wide = KINDS
    failed = [
        *(f"{kind} falls by less than {100 * FALL:.0f} points" for kind in wide if lost[kind].value < FALL),
        *([f"{detail} falls by more than {100 * STAY:.0f} points"] if lost[detail].value > STAY else []),
    ]
    told = "The base is read." if not failed else f"The base is not read as it should be: {'; '.join(failed)}."
    over = {kind: plain.right[kind].mean() - guess.right[kind].mean() for kind in wide}
    if low := [f"{kind} {100 * over[kind]:+.1f}" for kind in wide if over[kind] < FALL]:
        told += f" (Above guessing it is only: {', '.join(low)} points. So it could hardly fall as far.)"
    return "\n".join([*lines, "", told])


def changed_answers(rows: Sequence[Row], name: str) -> dict[str, float]:
    """The share of an arm's answers that another page's base tokens change, by kind."""
    pairs = [
        (str(column._replace(what="")), str(column))
        for column in columns(rows)
        if column.arm == name and column.what == "swapped"
    ]
    return {
        kind: float(np.mean([row[one] != row[other] for row in rows if row["kind"] == kind for one, other in pairs]))
        for kind in KINDS
    }


def chosen_text(rows: Sequence[Row]) -> str:
    """How often each split was chosen where an arm chooses, by kind of question, in percent."""
    lines = list[str]()
    for column in columns(rows):
        if column.what == "split":
            lines.append(f"\n`{column.arm}-{column.seed}`, in % of the questions:\n")
            for kind in KINDS:
                count = Counter(row[str(column)] for row in rows if row["kind"] == kind)
                shares = (f"`{name}` {100 * n / count.total():.0f}" for name, n in count.most_common())
                lines.append(f"- {kind}: {', '.join(shares)}")
    return "\n".join(lines)


def draw(scores: Mapping[str, Scores], ordered: Sequence[Arm], best: str | None) -> Any:
    """The figure: exact match against the base share, a line for each kind; the share of arm `best` is marked."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axes = figure.subplots()
    shares = [100 * arm.base / (arm.base + arm.budget) for arm in ordered]
    for number, kind in enumerate(KINDS):
        found = [exact(scores[arm.name], kind) for arm in ordered]
        value, low, high = (
            np.array([100 * getattr(each, part) for each in found]) for part in ("value", "low", "high")
        )
        axes.errorbar(
            np.array(shares) + number - 1.5,
            value,
            (value - low, high - value),
            label=kind,
            color=COLOURS[number],
            marker=MARKS[number],
            markersize=5,
            capsize=2,
        )
    if best is not None:
        marked = shares[[arm.name for arm in ordered].index(best)]
        told = f"best on validation pages: {marked:.0f} %"
        axes.axvline(marked, color="#5f5f5f", linestyle=":", linewidth=3, label=told)
    axes.axvline(SHIPPED, color="#5f5f5f", linestyle="--", linewidth=1, label=f"arr-coc-135m: {SHIPPED:.0f} %")
    axes.set_xlabel("share of the tokens that are base tokens, %")
    axes.set_ylabel("exact match, %")
    axes.set_ylim(0, 100)
    axes.legend(fontsize=8)
    return figure


def report(predictions: Path, validation: Path, arms_file: Path) -> tuple[str, Any]:
    """The report's text, and a function that draws its figure.

    There is a verdict where base tokens alone, fetched tokens alone and a split have answered the experiment's kinds of
    question, on validation pages too, and a figure where at least two splits have; else None.
    """
    rows, arms = read(predictions), read_arms(arms_file)
    scores, deciding, swapped = scores_of(rows), scores_of(rows, seeds=DECIDING), scores_of(rows, "swapped")
    costs = predictions.with_name("costs.json")
    known = json.loads(costs.read_text()) if costs.exists() else {}
    ordered = [arm for arm in splits(arms) if arm.name in scores]
    between = [arm.name for arm in ordered if arm.name not in (ALONE, FETCHED)]
    first = next(iter(scores.values()))
    count = sum(len(pages) for pages in first.pages.values())
    pages = len(set(np.concatenate([*first.pages.values()]).tolist()))
    asked_kinds = set(first.right) == set(KINDS)
    guess = guesses(rows) if asked_kinds else None
    parts = [
        f"{count} questions about {pages} pages; exact match in %, 95 % intervals by page. GFLOP (with the scorer), ms "
        "to the answer and MB of keys and values are of the language model.\n",
        table(scores, arms, known, guess),
    ]
    best = None
    if asked_kinds and between and {ALONE, FETCHED} <= set(scores) and validation.exists():
        unseen = scores_of(read(validation), seeds=DECIDING)
        best = best_split(unseen, between)
        others = [arm.name for arm in ordered if arm.name != FETCHED]
        parts += ["\n## Verdict\n", verdict_text(decide(deciding, best), deciding, others)]
        parts += ["\n## Validation pages, and trainings\n", trainings_text(unseen, scores)]
        parts += ["\n## Swap test\n"]
        if best in swapped and guess is not None:
            seeds = {column.seed for column in columns(rows) if column.arm == best and column.what == "swapped"}
            plain, changed = scores_of(rows, seeds=seeds)[best], changed_answers(rows, best)
            parts.append(swap_text(plain, swapped[best], guess, changed, best))
        else:
            parts.append(f"`{best}` has not been asked with another page's base tokens.")
    if chosen := chosen_text(rows):
        parts += ["\n## Splits that an arm chose", chosen]
    pruned = predictions.with_name("pruning.csv")
    if pruned.exists():
        answers = read(pruned)
        seeds = {column.seed for column in columns(answers)}
        of_rules = pruning_table(scores_of(rows, seeds=seeds), scores_of(answers), arms)
        parts += ["\n## Pruning rules on `keep_all`\n", of_rules]
    figure = None
    if asked_kinds and len(ordered) > 1:
        figure = partial(draw, scores, ordered, best)
    return "\n".join(parts) + "\n", figure


def simulation_text(pages: int, runs: int) -> str:
    """False positives and power of the rule."""
    false, power = simulate(pages, runs)
    lines = [f"{pages} pages, two trainings of each arm, {runs} simulated experiments. Share of GO that is false:\n"]
    lines += [f"- {name}: {share:.3f}" for name, share in false.items()]
    lines.append("\nPower, where one split is beyond every margin by:\n")
    lines += [
        f"- {100 * beyond:.0f} points: GO {shares['GO']:.2f}, NO-GO {shares['NO-GO']:.3f}"
        for beyond, shares in power.items()
    ]
    seen = next((beyond for beyond, shares in power.items() if shares["GO"] >= 0.8), None)
    told = "none of these could" if seen is None else f"{100 * seen:.0f} points beyond its margins could"
    lines.append(f"\nWith a probability of 0.8, a split that is {told} be seen.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Reports from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--predictions", type=Path, default=HERE / "predictions.csv", help="of evaluate.py")
    parser.add_argument("--validation", type=Path, help="the same of validation pages (validation.csv beside them)")
    parser.add_argument("--arms-file", type=Path, default=HERE / "arms.yaml", help="(arms.yaml)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder")
    parser.add_argument("--simulate", action="store_true", help="simulate the rule instead")
    parser.add_argument("--pages", type=int, default=400, help="of the simulation (400)")
    parser.add_argument("--runs", type=int, default=500, help="simulated experiments (500)")
    args = parser.parse_args()
    if args.simulate:
        print(simulation_text(args.pages, args.runs))
        return
    validation = args.validation or args.predictions.with_name("validation.csv")
    text, figure = report(args.predictions, validation, args.arms_file)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "report.md").write_text(text)
    if figure is not None:
        (args.out / "curve.svg").write_text(as_svg(figure))
    print(text)


if __name__ == "__main__":
    main()
