"""The report of an experiment: report.html, a self-contained page, and report.md with its figures."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from PIL import Image

from ..data.records import Record
from ..evaluation.predictions import Prediction
from ..evaluation.reporting import (
    Block,
    Bullets,
    Code,
    Figure,
    Heading,
    Paragraph,
    Table,
    milliseconds,
    p_value,
    percent,
    points,
    share,
    to_html,
    to_markdown,
    to_text,
)
from ..evaluation.scores import Scored, read_scored
from ..evaluation.statistics import FEWEST_IMAGES, POWER, SIGNIFICANCE
from ..files import write_text
from ..metrics import METRICS
from ..modeling.allocators import FetchResult
from ..viewing import draw_fetch
from .costs import FEWEST_TIMINGS
from .experiment import plan_arms, read_plan
from .plots import Point, scatter
from .scoring import worst

WORST = 6
"""Questions shown with pictures."""

PICTURE_WIDTH = 640  # px


def write_report(out: Path, result: dict[str, Any], records: Sequence[Record]) -> Path:
    """Writes report.html and report.md (with figures) into the experiment's folder; returns the page's path."""
    plan = read_plan(out)
    title = f"Does running back help? {plan['model']} on {plan['data']}"
    blocks = [*_decision(plan, result), *_arms(result), *_comparisons(result), *_plots(result)]
    blocks += [*_halves(result), *_latency(result), *_spending(result)]
    blocks += [*_buckets(result), *_worst(out, plan, result, records), *the_run(plan, result)]
    blocks += _rules(plan)
    write_text(out / "report.md", to_markdown(title, blocks, out))
    page = out / "report.html"
    write_text(page, to_html(title, blocks))
    return page


# ---- texts --------------------------------------------------------------------------------------------------------


def _equal(number: str) -> str:
    """Adds an equals sign, unless the number begins with another sign."""
    return number if number.startswith("<") else f"= {number}"


def table_text(result: dict[str, Any]) -> str:
    """The decision and the arms as aligned text, for the terminal."""
    verdict = f"{_verdict(result)}: {result['decision']['text']}"
    return "\n".join([to_text(*_arm_rows(result)), "In brackets: 95 % intervals.", verdict])


def _verdict(result: dict[str, Any]) -> str:
    """The decision's name, marked as exploratory if the metric was chosen after the run."""
    decision = result["decision"]["decision"]
    planned = result["metric"] == result["planned_metric"]
    return decision if planned else f"{decision} (exploratory: not the plan's metric)"


# ---- parts --------------------------------------------------------------------------------------------------------


def _decision(plan: dict[str, Any], result: dict[str, Any]) -> list[Block]:
    decision = result["decision"]
    metric = METRICS[result["metric"]].title
    own = any(arm.get("weights") for arm in result["arms"].values())
    weights = "each arm with weights that were trained for it" if own else "same weights"
    about = f"{metric} on {result['n']} questions about {result['images']} images; {weights}, same questions."
    if result["copies"]:
        about += f" {result['copies']} more were copies of these and do not count."
    if result["metric"] != result["planned_metric"]:
        about += f" The plan's metric was {METRICS[result['planned_metric']].title}: this was rescored afterwards."
    known = {(comparison["first"], comparison["second"]): comparison for comparison in result["comparisons"]}
    because = [_sentence(known[tuple(pair)]) for pair in decision["because"] if tuple(pair) in known]
    notes = " ".join([*decision["notes"], *_untrained(result)])
    blocks: list[Block] = [Paragraph(decision["text"], f"{_verdict(result)}.")]
    blocks += [Paragraph(" ".join(because)), *([Paragraph(notes, "But:")] if notes else []), Paragraph(about)]
    return blocks


def _untrained(result: dict[str, Any]) -> list[str]:
    """A warning about arms that the decision uses and that these weights were not trained on."""
    rests_on = {name for pair in result["decision"]["because"] for name in pair}
    names = [name for name, arm in result["arms"].items() if name in rests_on and not arm.get("trained", True)]
    says = f"These weights were not trained to read {', '.join(names)}: to be above them says little."
    return [says] if names else []


def _sentence(comparison: dict[str, Any]) -> str:
    p = _equal(p_value(comparison["p_holm"]))
    pair = f"{comparison['first']} against {comparison['second']}"
    smallest = f"{100 * comparison['detectable']:.1f} could be seen"
    seen = f" ({smallest})" if comparison["significant"] else f", not significant ({smallest})"
    return f"{pair}: {points(comparison['difference'])} points, p {p}{seen}."


def _arm_rows(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    metric = METRICS[result["metric"]].title
    head = [
        "arm",
        f"{metric}, %",
        "recall of boxes, %",
        "missed, %",
        "tokens",
        "GFLOP",
        "first token, ms",
        "MB",
    ]
    paged = any("pages" in arm for arm in result["arms"].values())
    head += ["right page, by the best patch, %", "by the most patches, %"] if paged else []
    costs = (result["costs"] or {}).get("arms", {})
    rows = []
    for name, arm in result["arms"].items():
        cost = costs.get(name)
        spent = ["-"] * 3
        if cost is not None:
            first = cost["first_token_ms"]
            spent = [f"{cost['flops'] / 1e9:.2f}", f"{first['p50']:.0f}", f"{cost['peak_bytes'] / 1e6:.1f}"]
        rows.append(
            [
                name,
                percent(arm["score"]),
                percent(arm["recall"]),
                share(arm["missed"]),
                f"{arm['mean_tokens']:.4g}",
                *spent,
                *([percent(arm.get("pages", {}).get(name)) for name in ("best", "most")] if paged else []),
            ]
        )
    return head, rows


def _arms(result: dict[str, Any]) -> list[Block]:
    head, rows = _arm_rows(result)
    notes = [f"{name}: {arm['note']}." for name, arm in result["arms"].items() if arm["note"]]
    seeds = [
        f"{name} over {len(arm['runs'])} {'trainings' if arm.get('weights') else 'seeds'}: {_listed(arm['runs'])} %."
        for name, arm in result["arms"].items()
        if len(arm["runs"]) > 1
    ]
    explained = (
        "In brackets: 95 % intervals from a bootstrap that draws whole images (Wilson's, of as many images, where "
        "nothing or everything is right). Missed: questions of which less than half of the boxed patches was fetched. "
        "GFLOP, time and memory: "
        "of one image and one question up to the first token, the encoder included, the arms taking turns; memory "
        "without the weights."
    )
    return [Heading("The arms"), Table(head, rows), Paragraph(explained), *bullets([*notes, *seeds])]


def _listed(scores: Sequence[float]) -> str:
    return ", ".join(f"{100 * score:.1f}" for score in scores)


def bullets(items: Sequence[str]) -> list[Block]:
    """A bullet list; empty without items."""
    return [Bullets(items)] if items else []


def _comparisons(result: dict[str, Any]) -> list[Block]:
    head = ["comparison", "difference, points", "could be seen", "gained", "lost", "p", "p (Holm)", "significant"]
    rows = [
        [
            f"{comparison['first']} - {comparison['second']}",
            points(comparison["difference"]),
            f"{100 * comparison['detectable']:.1f}",
            str(comparison["gained"]),
            str(comparison["lost"]),
            p_value(comparison["p"]),
            p_value(comparison["p_holm"]),
            "yes" if comparison["significant"] else "no",
        ]
        for comparison in result["comparisons"]
    ]
    if not rows:
        return []
    explained = (
        "Paired on the same questions, means over seeds. p: sign flips of whole images; Holm's correction over all "
        f"rows. Significant: at least {FEWEST_IMAGES} images, p (Holm) at most {SIGNIFICANCE:g} and an interval that "
        f"leaves out 0. Could be seen: the true difference, in points, that would have been found, or where a "
        f"rule asks for more than a difference, that would have met it, with a chance of {POWER:.0%}. Gained and lost: "
        "questions."
    )
    if trainings := result.get("trainings"):
        explained += (
            " Intervals and p take in what other trainings would give: "
            f"how far trainings of one arm differ is pooled over all arms ({trainings['freedom']} degrees of freedom)."
            if trainings["freedom"]
            else " No arm was trained twice: how far trainings differ is not known, and nothing is called significant."
        )
    return [Heading("Paired differences"), Table(head, rows), Paragraph(explained)]


def _halves(result: dict[str, Any]) -> list[Block]:
    """The contributions of base tokens and patches: own base and another page's, with and without patches."""
    halves = result.get("halves") or []
    if not halves:
        return []
    known = {(comparison["first"], comparison["second"]): comparison for comparison in result["comparisons"]}
    rows = []
    for half in halves:
        own, other = (result["arms"][half[name]]["score"] for name in ("own", "other"))
        base = known[half["own"], half["other"]]
        shown = [percent(own), percent(other), points(base["difference"]), p_value(base["p_holm"])]
        rows.append([str(half["patches"]), *shown, percent(half["changed"])])
    head = ["patches", "own base, %", "another page's, %", "the base adds, points", "p (Holm)", "answers changed, %"]
    sentences = [
        f"With {whose} the patches add {points(known[pair]['difference'])} points."
        for whose, key in (("the page's own base", "own"), ("another page's base", "other"))
        if len(halves) > 1 and (pair := (halves[0][key], halves[-1][key])) in known
    ]
    if "patches_only" in result["arms"]:
        sentences.append(f"Without any base: {percent(result['arms']['patches_only']['score'])} %.")
    about = (
        "The language model reads the base tokens of another page of the data; the patches are those of the page asked "
        "about, chosen and encoded as ever. Where no answer changes, the base is not read. Intervals draw whole images."
    )
    return [Heading("What base and patches contribute"), Table(head, rows), Paragraph(" ".join([*sentences, about]))]


def _plots(result: dict[str, Any]) -> list[Block]:
    title = f"{METRICS[result['metric']].title}, %"
    costs = (result["costs"] or {}).get("arms", {})
    axes = [("tokens", "image tokens", {name: arm["mean_tokens"] for name, arm in result["arms"].items()})]
    if set(costs) >= set(result["arms"]):
        axes.append(
            ("flops", "GFLOP to the first token", {name: costs[name]["flops"] / 1e9 for name in result["arms"]})
        )
        times = {name: costs[name]["first_token_ms"]["p50"] for name in result["arms"]}
        axes.append(("time", "time to the first token, ms", times))
    figures: list[Block] = [Heading("Accuracy against cost")]
    for name, x_title, at in axes:
        marks = []
        for arm_name, arm in result["arms"].items():
            value, low, high = (100 * arm["score"][key] for key in ("value", "low", "high"))
            kind = arm_name if arm["role"] == "contest" else arm["role"]
            marks.append(Point(arm_name, at[arm_name], value, low, high, kind))
        svg = scatter(marks, x_title=x_title, y_title=title)
        figures.append(Figure(f"plot-{name}", svg, "Bars: 95 % intervals; dashed: what no cheaper arm matches."))
    return figures


def _latency(result: dict[str, Any]) -> list[Block]:
    costs = (result["costs"] or {}).get("arms", {})
    timed = sorted((arm["mean_tokens"], name) for name, arm in result["arms"].items() if name in costs)
    if not timed:
        return []
    rows = []
    for tokens, name in timed:
        first = costs[name]["first_token_ms"]
        times = [milliseconds(first[share]) for share in ("p50", "p95", "p99")]
        rows.append([name, str(result["arms"][name]["budget"]), f"{tokens:.4g}", *times])
    about = (
        f"Milliseconds to the first token, {result['costs']['images']} questions {result['costs']['rounds']} times. "
        f"p95 and p99: from {FEWEST_TIMINGS} timings on."
    )
    head = ["arm", "patches at most", "tokens", "p50", "p95", "p99"]
    return [Heading("Latency by number of tokens"), Table(head, rows), Paragraph(about)]


def _spending(result: dict[str, Any]) -> list[Block]:
    rows = [
        [name, *(share(arm.get(key)) for key in ("query_dependence", "missed", "misallocated", "seed_sd"))]
        for name, arm in result["arms"].items()
    ]
    head = ["arm", "query dependence, %", "missed, %", "misallocated, %", "sd over seeds, points"]
    about = (
        "Query dependence: mean Jaccard distance between the patches fetched for two questions about one image (0: the "
        "same, 100: none shared). Misallocated: of the hard questions (those tagged so, else those that the base alone "
        "does not answer), the ones with fewer tokens than the arm's median (-: all get the same). Standard deviation: "
        "of the mean score between seeds."
    )
    return [Heading("What the tokens went to"), Table(head, rows), Paragraph(about)]


def _buckets(result: dict[str, Any]) -> list[Block]:
    blocks: list[Block] = [Heading("By kind of question")] if result["buckets"] else []
    for table in result["buckets"]:
        names = list(table["rows"][0]["scores"])
        spenders = list(table["rows"][0]["tokens"])
        rows = [
            [
                row["bucket"], str(row["n"]), *(f"{100 * row['scores'][name]['value']:.1f}" for name in names),
                *(f"{row['tokens'][name]:.4g}" for name in spenders),
            ]
            for row in table["rows"]
        ]  # fmt: skip
        blocks.append(Table([table["by"], "n", *names, *(f"tokens of {name}" for name in spenders)], rows))
    return blocks


def _worst(out: Path, plan: dict[str, Any], result: dict[str, Any], records: Sequence[Record]) -> list[Block]:
    arms = plan_arms(plan)
    rungs = [arm.name for arm in arms if arm.role == "ladder"]
    subject = plan.get("reference", rungs[-1] if rungs else None)
    if subject is None:
        return []
    read, items = read_scored(out / "predictions", arms, records, result["metric"], plan["patch_size"])
    places = worst(read, subject, WORST)
    if not places:
        return []
    scored = next(candidate for candidate in read if candidate.arm.name == subject)
    blocks: list[Block] = [
        Heading(f"Where {subject} did worst"),
        Paragraph(
            "First where it falls furthest behind another arm, then where it fetched least, then where it was surest."
        ),
    ]
    for number, place in enumerate(places, 1):
        record, said = items.records[place], scored.predictions[0][place]
        others = ", ".join(f"{other.arm.name} {other.mean_scores[place]:.2g}" for other in read)
        answers = " or ".join(record.answers[:3])
        caption = f"{record.question} Answer: {answers}. Said: {said.answer or '(nothing)'}. Scores: {others}."
        if said.over_views:
            blocks.append(Paragraph(caption))
        else:
            blocks.append(Figure(f"worst-{number}", _picture(record, said, scored), caption))
    return blocks


def _picture(record: Record, said: Prediction, scored: Scored) -> bytes:
    """JPEG of the image with the fetched patches outlined; predictions do not keep relevance."""
    indices = torch.tensor([said.indices], dtype=torch.long)
    unknown = torch.zeros(1, said.grid**2)
    fetch = FetchResult(
        indices=indices,
        positions=torch.stack((indices // said.grid, indices % said.grid), -1),
        scores=unknown,
        relevance=unknown,
        is_padding=torch.zeros_like(indices, dtype=torch.bool),
        budget=indices.shape[1],
        strategy=scored.arm.strategy,
        allocator=scored.arm.allocator,
    )
    drawn = draw_fetch(
        record.picture, fetch, question=record.question, text=said.answer, probability=said.probability,
        with_relevance=False,
    )  # fmt: skip
    height = round(drawn.height * PICTURE_WIDTH / drawn.width)
    stream = io.BytesIO()
    drawn.resize((PICTURE_WIDTH, height), Image.Resampling.LANCZOS).save(stream, "JPEG", quality=80)
    return stream.getvalue()


def the_run(plan: dict[str, Any], result: dict[str, Any]) -> list[Block]:
    """Command, hashes and environment of an experiment or an ablation."""
    facts = {name: value for name, value in plan.items() if name not in ("arms", "rules", "trials", "command")}
    timed = (result["costs"] or {}).get("environment")
    blocks: list[Block] = [
        Heading("The run"),
        Code(plan["command"]),
        Code(yaml.safe_dump(facts, sort_keys=False, allow_unicode=True).strip()),
    ]
    if timed is not None and timed["machine"] != plan["environment"]["machine"]:
        blocks.append(Paragraph(f"Costs were measured on {timed['machine']}."))
    return blocks


def _rules(plan: dict[str, Any]) -> list[Block]:
    rules = yaml.safe_dump(plan["rules"], sort_keys=False, allow_unicode=True, width=100)
    return [Heading("The rules, written before the run"), Code(rules.strip())]
