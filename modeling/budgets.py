"""What a call spends: how many patches are fetched, how many base tokens a page has, which views are encoded.

No torch is imported here, so that commands refuse a budget at once. A source is an image, a page or a frame. Its
overview is the whole source in one square; a tile is a window of it at a finer scale. See docs/views.md.

Notation: N = G*G patches, M = (G/4)^2 base tokens, K fetched tokens.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

COMPRESSION = 4  # fine patches per base token along each axis: the compressor's two stride-2 convolutions

REFERENCE_PATCHES = 4096
"""The number of patches (64 x 64: 1024 px, patches of 16 px) for which named budgets are defined."""

NAMED_BUDGETS = {"fast": 64, "balanced": 180, "standard": 273, "accurate": 400}
"""Fetched tokens at `REFERENCE_PATCHES` patches; scaled with N on other grids."""

TIERS = (64, 128, 256, 384, 400)
"""The numbers of fetched tokens from allocator "tiers" at `REFERENCE_PATCHES` patches; "adaptive" stays within their
range."""

AUTO = "auto"
"""The budget with which the model chooses the number of fetched tokens of each item, up to the last of `TIERS`."""

_SCALED = {**NAMED_BUDGETS, AUTO: TIERS[-1], **{f"tier:{tier}": tier for tier in TIERS}}


def scaled_budget(num_fetched: int, num_patches: int) -> int:
    """`num_fetched` at `REFERENCE_PATCHES` patches, scaled to a grid of `num_patches`: at least 1."""
    return max(1, round(num_patches * num_fetched / REFERENCE_PATCHES))


def resolve_budget(
    budget: int | str | None, num_patches: int, default: int | str = "standard", *, taken: int = 0
) -> int:
    """The number of fetched tokens K on a grid of `num_patches`.

    Args:
        budget: a number of patches, a name in `NAMED_BUDGETS` or "tier:" and one of `TIERS` (both scaled by N / 4096),
            "auto" (the largest tier, the most for one item), "all" (N - taken), None (default).
        num_patches: N.
        default: the budget for None.
        taken: patches that are base tokens already and never fetched again (`ArrCocConfig.excludes_base`).

    Raises:
        ValueError: an unknown name, a negative number, or more patches than can be fetched.
    """
    candidates = num_patches - taken
    budget = default if budget is None else budget
    if isinstance(budget, str) and budget.isdecimal():
        budget = int(budget)
    if isinstance(budget, str):
        if budget == "all":
            return candidates
        if budget not in _SCALED:
            raise ValueError(f"budget: expected {_usable(num_patches, candidates)}; got {budget!r}")
        return min(candidates, scaled_budget(_SCALED[budget], num_patches))
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise ValueError(f"budget: expected an integer or a name; got {budget!r} ({type(budget).__name__})")
    if not 0 <= budget <= candidates:
        raise ValueError(f"budget: expected {_usable(num_patches, candidates)}; got {budget}")
    return budget


def _usable(num_patches: int, candidates: int) -> str:
    """The budgets of a grid, for errors."""
    numbers = {name: min(candidates, scaled_budget(size, num_patches)) for name, size in _SCALED.items()}
    names = ", ".join(f"{name} ({numbers[name]})" for name in NAMED_BUDGETS)
    tiers = ", ".join(f"tier:{tier}" for tier in TIERS)
    chosen = f"{AUTO} (the model chooses, up to {numbers[AUTO]})"
    return f"0 to {candidates} patches (all that can be fetched), or {names}, {tiers}, {chosen} or all"


def grid_size(image_size: int, patch_size: int) -> int:
    """Side G of the fine grid of an image of `image_size` px. Raises ValueError: the side is not a positive multiple of
    4 patches."""
    unit = COMPRESSION * patch_size
    if image_size <= 0 or image_size % unit:
        raise ValueError(f"image side: expected a positive multiple of {unit} px (4 patches); got {image_size}")
    return image_size // patch_size


def count_fetched(num_patches: int, budget: int | str | None, *, strategy: str | None, taken: int = 0) -> int:
    """K: `resolve_budget`, or 0 with strategy "none"."""
    return 0 if strategy == "none" else resolve_budget(budget, num_patches, taken=taken)


UNPOOLED = 4  # the most sources of a prompt whose base tokens are not pooled by default


def pooling(rows: int, sources: int, most: int | None) -> int:
    """Base cells along each axis in one base token, so that the base tokens of `sources` are at most `most`.

    Args:
        rows: rows of base tokens of one image.
        sources: of one prompt.
        most: base tokens of the prompt; None: those of `UNPOOLED` images.

    Raises:
        ValueError: fewer base tokens than sources.
    """
    most = UNPOOLED * rows**2 if most is None else most
    if sources > most:
        raise ValueError(f"max_base_tokens: expected at least 1 for each of {sources} sources; got {most}")
    factor = 1
    while sources * math.ceil(rows / factor) ** 2 > most:
        factor += 1
    return factor


# ---- views -----------------------------------------------------------------------------------------------------------

Window = tuple[int, int, int, int]  # x0, y0, x1, y1 in px of the source, ends exclusive

TILING = ("auto", "asked", "all", "never")
SPREADS = ("auto", "joint", "each", "ranked")

VIEWS_AT_ONCE = 4
"""Squares that are encoded or scored at a time, which bounds the memory beside the features of all views."""


@dataclass(frozen=True)
class ViewOptions:
    """The views of a call's sources."""

    # "auto": tiles for sources that shrink below `tile_scale` and whose text cannot be read in the overview; "all": the
    # same, refused above `max_tiles`; "asked": of these, the tiles that a question asks for; a number: at most so many
    # tiles per source, whatever its size; "never": overviews only.
    tiles: str | int = "auto"
    max_tiles: int = 64  # encoded tiles of one prompt; above it, "auto" becomes "asked" for all prompts of the call
    asked_tiles: int = 4  # the most tiles that one question may ask for
    # The least share of the overviews' relevance in each tile that a question asks for after its first.
    asked_share: float = 0.0
    # How the sources of a prompt share its budget. "joint": one over all views; "each": each source gets its share;
    # "ranked": the most relevant sources are asked one by one until one has an answer, together if none has; "auto":
    # "ranked" for scorers that read text, else "joint".
    spread: str = "auto"
    # Of all sources of a prompt; above it base tokens are pooled; None: those of four images.
    max_base_tokens: int | None = None
    # px of the square per px of the source, below which a source gets tiles, and the finest scale of tiles; tiles are
    # coarser if the text is large (`print_scale`).
    tile_scale: float = 0.5
    # Where the words of a page come from: a name in `word_sources.WORD_SOURCES`, the path of a file, a list of (text,
    # (x0, y0, x1, y1)) in px of the source, or a list of these, one for each source.
    words: Any = "auto"
    reread: bool = True  # read words again from the original pixels where the network is not confident: see `rereading`
    dpi: float = 150.0  # px per inch at which pages of a PDF are rendered
    max_pages: int = 200  # of a document; more are refused
    fps: float = 1.0  # frames of a video, per second
    max_frames: int = 32  # and in all

    @cached_property
    def least_scale(self) -> float:
        """px of the square per px of a source, below which the source gets tiles; 0: never."""
        return {"never": 0.0}.get(str(self.tiles), 1.0 if isinstance(self.tiles, int) else self.tile_scale)


VIEW_OPTIONS = frozenset(ViewOptions.__dataclass_fields__)
AS_SEEN = ViewOptions()
