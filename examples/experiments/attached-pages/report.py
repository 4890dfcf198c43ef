"""Makes the table and the figure of evaluate.py's stored predictions.

python examples/experiments/attached-pages/report.py    # writes table.md and curve.svg
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from arr_coc.evaluation.reporting import COLOURS, MARKS, as_svg
from arr_coc.evaluation.statistics import bootstrap_mean

HERE = Path(__file__).parent
PLAIN = "keep all"
DRAWN = (
    {"oracle": "oracle (ground-truth boxes)", "realizer": "realizer (trained scorer)", "attention": "attention"}
    | {"oracle, no base": "oracle, no base tokens", "realizer, no base": "realizer, no base tokens"}
    | {"attention, no base": "attention, no base tokens", "smaller image": "smaller image"}
)
"""The arms in the figure."""

Arm = tuple[str, float]


def read(path: Path) -> dict[Arm, list[dict[str, Any]]]:
    """The predictions of each arm and share, in the order of the questions."""
    arms = defaultdict[Arm, list[dict[str, Any]]](list)
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            row["right"] = float(row["said"].strip() == row["answer"])
            arms[row["arm"], float(row["share"])].append(row)
    return dict(arms)


def table(arms: Mapping[Arm, list[dict[str, Any]]]) -> str:
    """Exact match of each arm, its share of keep-all's, the paired difference, and what of the boxes was kept."""
    plain = next(rows for (name, _), rows in arms.items() if name == PLAIN)
    pages, whole = [row["page"] for row in plain], np.array([row["right"] for row in plain])
    numbers = [pages.index(page) for page in pages]
    lines = [
        f"{len(plain)} questions about {len(set(pages))} pages.\n",
        "| arm | tokens | exact match, % | of keep-all's, % | less than keep-all, points | boxes kept, % |",
        "|---|---|---|---|---|---|",
    ]
    for (name, _), rows in arms.items():
        assert [row["page"] for row in rows] == pages, "all arms answer the same questions in one order"
        right = np.array([row["right"] for row in rows])
        exact, less = (bootstrap_mean(100 * values, groups=numbers) for values in (right, whole - right))
        kept = np.mean([float(row["kept"]) for row in rows])
        cells = (
            name,
            f"{np.mean([int(row['tokens']) for row in rows]):.0f}",
            f"{exact.value:.1f} [{exact.low:.1f}, {exact.high:.1f}]",
            f"{100 * right.sum() / max(1.0, whole.sum()):.1f}",
            "" if name == PLAIN else f"{less.value:.1f} [{less.low:.1f}, {less.high:.1f}]",
            "" if name == "smaller image" else f"{100 * kept:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(arms: Mapping[Arm, list[dict[str, Any]]]) -> Any:
    """The figure: exact match against the share of image tokens that the language model reads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    axes = figure.subplots()
    exact = {arm: 100 * np.mean([row["right"] for row in rows]) for arm, rows in arms.items()}
    axes.axhline(exact[PLAIN, 1.0], color="#5f5f5f", linestyle=":", linewidth=1)
    for number, (name, label) in enumerate(DRAWN.items()):
        places = sorted((share, value) for (arm, share), value in exact.items() if arm in (name, PLAIN))
        style = {"color": COLOURS[number], "marker": MARKS[number], "markersize": 5}
        axes.plot(*zip(*places, strict=True), label=label, **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 0.5, 0.25, 0.125], ["all", "50 %", "25 %", "12.5 %"])
    axes.set_xlabel("share of the image tokens that the language model reads")
    axes.set_ylabel("exact match, %")
    axes.set_ylim(0, 100)
    axes.legend(fontsize=8)
    return figure


def main() -> None:
    """Writes both files from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--predictions", type=Path, default=HERE / "predictions.csv", help="of evaluate.py")
    parser.add_argument("--out", type=Path, default=HERE, help="folder")
    args = parser.parse_args()
    arms = read(args.predictions)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "table.md").write_text(table(arms))
    (args.out / "curve.svg").write_text(as_svg(lambda: draw(arms)))
    print(table(arms))


if __name__ == "__main__":
    main()
