"""What a plan will do, for people."""

from collections import Counter

from .plan import Plan, Target

ROWS = {
    "grid encoder": "model.vision_tower.grid_encoder.",
    "compressor": "model.vision_tower.compressor.",
    "semantic encoder": "model.vision_tower.semantic_encoder.",
    "saccade projection": "model.vision_tower.saccade_projection.",
    "fetcher": "model.fetcher.",
    "bridge": "model.bridge.",
    "layout": "model.layout.",
    "language model": "model.language_model.",
    "vocabulary head": "lm_head.",
}
"""Row of the report -> what the names of its tensors begin with."""


def report(plan: Plan) -> str:
    """Sources; tensors, parameters and bytes of each part; what is new; what is left out; the files."""
    lines = ["sources"]
    lines += [f"  {role:<20}{source}" for role, source in plan.request.sources.items()]
    lines += ["", f"{'parts':<22}{'loaded':>8}{'new':>6}{'parameters':>17}{'bytes':>17}"]
    for part, prefix in ROWS.items():
        targets = [target for name, target in plan.targets.items() if name.startswith(prefix)]
        if targets:
            lines.append(_row(part, targets))
    lines += [_row("total", list(plan.targets.values())), "", "new"]
    recipes = Counter(_origin(target) for target in plan.targets.values())
    recipes.pop(None, None)
    lines += [f"  {count:>5} tensors: {recipe}" for recipe, count in recipes.items()] or ["  nothing"]
    lines += ["", "left out"]
    reasons = Counter((str(source), reason) for source, _, reason in plan.left_out)
    lines += [f"  {count:>5} tensors of {source}: {reason}" for (source, reason), count in reasons.items()] or [
        "  nothing"
    ]
    largest = max(sum(plan.targets[name].nbytes for name in names) for names in plan.shards.values())
    dtype = str(plan.dtype).removeprefix("torch.")
    lines += ["", f"{len(plan.shards)} file(s) of at most {largest:,} bytes, {dtype}"]
    return "\n".join(lines)


def _row(part: str, targets: list[Target]) -> str:
    new = sum(not target.rows for target in targets)
    parameters, size = sum(target.numel for target in targets), sum(target.nbytes for target in targets)
    return f"  {part:<20}{len(targets) - new:>8}{new:>6}{parameters:>17,}{size:>17,}"


def _origin(target: Target) -> str | None:
    if target.extra_rows:
        return f"{target.extra_rows} rows for added tokens, the mean of the others, in {target.name}"
    return target.recipe
