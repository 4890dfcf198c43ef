"""Every knob of what is fetched: scorers, allocators, budget. The other parts' are in configuration_arr_coc.py."""

from typing import Any

from .knobs import KnobConfig, choice, knob, number, require, require_heads, validated, whole, wholes
from .model_knobs import MAX_HEADS, MAX_LAYERS, MAX_WIDTH, member, shares, span, spread, trained_scorers, width
from .model_knobs import budget as as_budget
from .prompt import TIERS
from .textures import TEXTURE_SETS

GRADIENTS = ("none", "straight_through", "soft")

FOVEA_MAPPINGS = ("linear", "exponential", "sigmoid")


@validated
class ArrCocFetcherConfig(KnobConfig):
    """What is fetched: scorers, allocator, budget.

    Args:
        strategy: the scorer used when a call names none.
        scorers: the scorers with weights that this checkpoint holds; those without weights are always there.
        allocator: turns relevance into indices: "topk" or "window" fetch exactly the budget; "tiers" and "adaptive"
            choose for each item how many of the most relevant patches it gets, up to the budget; "quadtree", "foveated"
            and "knapsack" fetch exactly the budget as regions of 1, 4 or 16 patches, each pooled into one token.
        budget: default number of saccades: see `resolve_budget`.
        tier_choice: how "tiers" chooses: "heuristic" (by the length of the question, no weights) or "classifier" (a
            trained one on question and gestalt, which the checkpoint then holds).
        tier_lengths: for "heuristic": question tokens from which on each tier after the first is taken.
        adaptive_share: for "adaptive": the share of the item's relevance mass that the fetched patches are to hold.
        gradient: how the answer's loss reaches scorers (and learned budgets) in training mode. "none": not at all;
            "straight_through": fetched tokens pass as they are, their gradient as if weighted by relevance; "soft":
            fetched tokens are weighted by a soft top-K. In evaluation mode nothing is weighted.
        temperature: of "soft", in units of the score, at the start; a trainer sets `RunningBackFetcher.temperature`.
        overlap: with the mask compressor: "exclude" never fetches a patch that is already a base token, "allow" may.
        hidden_size, num_heads, num_layers: the realizer's sizes.
        position_size: channels of the realizer's 2-D position term per head, a multiple of 4.
        key_pool: patches along a row over which the realizer averages the keys of its patch attention (1: none).
        match_size: width of the space in which the realizer compares words under a patch with each token of the
            question (0: it does not, as checkpoints before arr-coc-135m).
        shared_size: width of the space that patches and questions share in clip_query and in the participatory knowing.
        latent_size: width of the latent through which the realizer's and the experts' attention over patches and to the
            question makes its keys and values (`KeyValueProjection`); None: directly.
        textures: the texture channels made of every image, see `TEXTURE_SETS`; None: those that the scorers read.
        balancer_size: hidden width of the tension balancer.
        balancer_aggregation: what it knows of each score map: "statistics" (mean, maximum, standard deviation) or
            "learned" (as many means of a small network over patches).
        balancer_weights: how its outputs, and the context network's, become shares: "sigmoid" (divided by their sum) or
            "softmax".
        sjv_weights: of entropy, symbol density and coupling in "shannon_jung_vervaeke".
        glance_layers: of "glance": from which to which share of the language model's depth attention is read.
        window_size, window_gain: the "window" allocator's neighbourhood (odd, patches) and how much neighbours gain.
        quadtree_spread: for "quadtree": the standard deviation of relevance above which a region is divided.
        fovea_peaks, fovea_falloff, fovea_mapping: for "foveated": how many peaks of relevance there are at most, a in
            the resolution 1 / (1 + a r^2) at r patches from one, and how it becomes tokens per base cell: "linear",
            "exponential" or "sigmoid".
        pooled_shares: for "knapsack": the share of its patches' relevance that a token of 16 patches captures, and one
            of 4; a patch by itself captures all of its own.
        learned_exploration: whether the checkpoint holds a trained policy that says how much of each of several passes
            explores (`TemperingPolicy`), which they then follow unless a call names another.
        seed: for random relevance where no generator is given.
    """

    model_type = "arr_coc_fetcher"
    base_config_key = "fetcher_config"

    strategy: str = member("strategy", default="realizer")
    scorers: list[str] | tuple[str, ...] = trained_scorers(("realizer", "clip_query"))
    allocator: str = member("allocator", default="topk")
    budget: int | str = as_budget("standard")
    overlap: str = choice(("exclude", "allow"), default="exclude")
    hidden_size: int = width(256, least=2)
    num_heads: int = whole(1, MAX_HEADS, default=4)
    num_layers: int = whole(0, MAX_LAYERS, default=2)
    position_size: int = whole(4, 4096, default=32)
    key_pool: int = whole(1, 512, default=4)
    match_size: int = whole(0, MAX_WIDTH, default=0)
    shared_size: int = width(256)
    latent_size: int | None = whole(1, MAX_WIDTH, default=None)
    textures: str | None = choice(TEXTURE_SETS, default=None)
    balancer_size: int = width(160)
    balancer_aggregation: str = choice(("statistics", "learned"), default="statistics")
    balancer_weights: str = choice(("sigmoid", "softmax"), default="sigmoid")
    sjv_weights: list[int | float] | tuple[int | float, ...] = shares(3, default=(0.3, 0.2, 0.5))
    glance_layers: list[int | float] | tuple[int | float, ...] = span(default=(0.25, 0.75))
    window_size: int = knob("an odd number of patches up to 127", lambda size: size in range(1, 128, 2), default=3)
    window_gain: int | float = number(-100.0, 100.0, default=0.5)
    quadtree_spread: int | float = number(0.0, 1.0, default=0.1)
    fovea_peaks: int = whole(1, 256, default=4)
    fovea_falloff: int | float = number(0.0, 1e6, default=0.02)
    fovea_mapping: str = choice(FOVEA_MAPPINGS, default="exponential")
    pooled_shares: list[int | float] | tuple[int | float, ...] = span(default=(0.25, 0.5))
    tier_choice: str = choice(("heuristic", "classifier"), default="heuristic")
    tier_lengths: list[int] | tuple[int, ...] = wholes(1, 2**20, default=(8, 12, 16, 24))
    adaptive_share: int | float = number(0.0, 1.0, above=True, default=0.9)
    gradient: str = choice(GRADIENTS, default="straight_through")
    temperature: int | float = number(0.0, 1e6, above=True, default=1.0)
    learned_exploration: bool = False
    seed: int = whole(0, 2**32 - 1, default=0)
    initializer_range: int | float = spread(0.02)

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        require_heads(self, "num_heads")
        require(self.hidden_size % 2 == 0, "hidden_size", "an even width (sines and cosines)", self.hidden_size)
        require(self.position_size % 4 == 0, "position_size", "a multiple of 4", self.position_size)
        lengths = list(self.tier_lengths)
        steps = len(lengths) == len(TIERS) - 1 and lengths == sorted(set(lengths))
        require(steps, "tier_lengths", f"{len(TIERS) - 1} increasing numbers of question tokens", self.tier_lengths)
