"""How many vision tokens an image takes: budgets by number and name, and the one function that counts them.

Notation: G side of the fine grid, N = G*G patches, M = (G/4)^2 base tokens, K saccades.
"""

from .language_model import layout_positions

COMPRESSION = 4
"""Fine patches per base token along each axis: the compressor's two stride-2 convolutions."""

REFERENCE_PATCHES = 4096
"""Number of patches (64 x 64: 1024 px, patches of 16 px) that the named budgets are stated for."""

NAMED_BUDGETS = {"fast": 64, "balanced": 180, "standard": 273, "accurate": 400}
"""Saccades at `REFERENCE_PATCHES` patches; scaled with N on other grids."""

TIERS = (64, 128, 256, 384, 400)
"""The steps in which the allocator "tiers" gives saccades, at `REFERENCE_PATCHES` patches; "adaptive" keeps within."""

AUTO = "auto"
"""The budget that leaves it to the model how many saccades each item gets, up to the last of `TIERS`."""

_SCALED = {**NAMED_BUDGETS, AUTO: TIERS[-1], **{f"tier:{tier}": tier for tier in TIERS}}


def scaled_budget(saccades: int, num_patches: int) -> int:
    """What `saccades` at `REFERENCE_PATCHES` patches are on a grid of `num_patches`: at least 1."""
    return max(1, round(num_patches * saccades / REFERENCE_PATCHES))


def resolve_budget(
    budget: int | str | None, num_patches: int, default: int | str = "standard", *, taken: int = 0
) -> int:
    """Number of saccades K on a grid of `num_patches`.

    Args:
        budget: a number of patches, a name in `NAMED_BUDGETS` or "tier:" and one of `TIERS` (both scaled by N / 4096),
            "auto" (the largest tier: the most that an item can get), "all" (N - taken), None (default).
        num_patches: N.
        default: what None stands for.
        taken: patches that are base tokens already and never fetched again (`ArrCocConfig.excludes_base`).

    Raises:
        ValueError: unknown name, a negative number, or more patches than there are to fetch.
    """
    candidates = num_patches - taken
    budget = default if budget is None else budget
    if isinstance(budget, str) and budget.isdecimal():
        budget = int(budget)
    if isinstance(budget, str):
        if budget == "all":
            return candidates
        if budget not in _SCALED:
            known = ", ".join([*_SCALED, "all"])
            raise ValueError(f"budget: expected a number of patches or one of {known}; got {budget!r}")
        return min(candidates, scaled_budget(_SCALED[budget], num_patches))
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise ValueError(f"budget: expected an integer or a name; got {budget!r} ({type(budget).__name__})")
    if not 0 <= budget <= candidates:
        raise ValueError(f"budget: expected 0 to {candidates} patches (all that can be fetched); got {budget}")
    return budget


def grid_size(image_size: int, patch_size: int) -> int:
    """Side G of the fine grid of an image of `image_size` px.

    Raises:
        ValueError: the side is not a positive multiple of 4 patches.
    """
    unit = COMPRESSION * patch_size
    if image_size <= 0 or image_size % unit:
        raise ValueError(f"image side: expected a positive multiple of {unit} px (4 patches); got {image_size}")
    return image_size // patch_size


def count_saccades(num_patches: int, budget: int | str | None, *, strategy: str | None, taken: int = 0) -> int:
    """K: what `resolve_budget` says, or 0 where the strategy is "none"."""
    return 0 if strategy == "none" else resolve_budget(budget, num_patches, taken=taken)


def count_vision_tokens(
    image_size: int,
    patch_size: int,
    budget: int | str | None = None,
    *,
    strategy: str | None = None,
    excludes_base: bool = False,
    layout: str = "plain",
) -> tuple[int, int]:
    """Positions that one image takes in the language model: (base, K saccades), known before the model runs.

    Base are the M base tokens and what the layout puts between and around them.

    Args:
        image_size: side of the padded square image, px.
        patch_size: side of a fine patch, px.
        budget: see `resolve_budget`.
        strategy: "none" fetches nothing (K = 0); every other strategy keeps to the budget.
        excludes_base: whether base tokens are patches that are never fetched again: `ArrCocConfig.excludes_base`.
        layout: `ArrCocBridgeConfig.layout`.
    """
    side = grid_size(image_size, patch_size)
    rows = side // COMPRESSION
    base = rows**2 + sum(layout_positions(layout, rows))
    return base, count_saccades(side * side, budget, strategy=strategy, taken=rows**2 if excludes_base else 0)
