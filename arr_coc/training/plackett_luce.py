"""Sets of patches drawn without replacement: the Plackett-Luce model over a scorer's logits.

Patches are drawn one after the other, each with probability softmax(logits) among those that are left. Adding Gumbel
noise to the logits and taking the K largest draws exactly so (Yellott 1977; Kool et al. 2019, "Stochastic Beams").

Notation: N patches, K of them drawn; `...` leading dimensions (items, draws), the same everywhere in one call.
"""

import math

import torch
from torch import Tensor

_STEP, _FAR = 0.25, 24.0
"""Quadrature: nodes every quarter of the integrand's width, up to so many widths below its mode and a quarter above."""
_CERTAIN = 30.0
"""log(1 - exp(-exp(30))) is 0 in every precision."""
_EXCLUDED = -1e30
"""Logit of what cannot be drawn: finite, because the gradient of logsumexp over nothing but -inf is not a number."""


def draw_orders(logits: Tensor, count: int, *, mask: Tensor | None = None, generator: torch.Generator) -> Tensor:
    """Draws `count` distinct patches: logits [..., N] -> indices [..., K], int64, in the order drawn.

    Args:
        logits: any scale; no gradient flows.
        count: K.
        mask: bool [..., N], True on what may be drawn; where that is fewer than K, others fill up, lower index first.
        generator: decides; on the generator's own device, so that a seed gives the same sets on every machine.

    Raises:
        ValueError: K above N, or below 1.
    """
    patches = logits.shape[-1]
    if not 1 <= count <= patches:
        raise ValueError(f"count: expected 1 to {patches} patches; got {count}")
    waits = torch.empty(logits.shape, device=generator.device).exponential_(generator=generator)
    keys = logits.detach().float() - waits.clamp(min=torch.finfo(torch.float32).tiny).log().to(logits.device)
    if mask is not None:
        filling = _EXCLUDED * (1 + torch.arange(patches, device=keys.device) / patches)
        keys = torch.where(mask, keys, filling)
    return keys.topk(count, dim=-1).indices


def set_log_probability(logits: Tensor, drawn: Tensor, mask: Tensor | None = None) -> Tensor:
    """Log-probability of drawing these patches in whatever order: logits [..., N], drawn [..., K] -> [...].

    What is answered depends on the set alone, so the order is noise: the gradient of this log-probability is the mean
    of the drawn sequence's over the orders of the set, and as an estimator varies less. The sum over K! orders is
    one integral, P(S) = integral over t > 0 of exp(-t) prod_{i in S} (1 - exp(-t w_i)) with w_i = exp(logit_i) / the
    sum of exp(logit) outside S: every member's exponential clock rings before the first clock outside (Kool et al.
    2020, "Estimating gradients for discrete random variables by sampling without replacement", appendix B). In
    x = log t the integrand is log-concave and smooth, so the trapezoidal rule around its mode is exact to float32.

    Drawn patches outside `mask` [..., N] only fill up (see `draw_orders`) and count as certain.
    """
    logits = logits.float()
    if mask is None:
        mask = torch.ones_like(logits, dtype=torch.bool)
    others = mask & ~torch.zeros_like(mask).scatter(-1, drawn, True)
    rest = torch.where(others, logits, _EXCLUDED).logsumexp(-1)  # log of the sum of exp(logit) outside S [...]
    weights = torch.where(
        mask.gather(-1, drawn), logits.gather(-1, drawn) - rest[..., None], _CERTAIN
    )  # log w [..., K]
    with torch.no_grad():
        mode, width = _mode(weights)
        offsets = torch.arange(-_FAR, _FAR / 4 + _STEP, _STEP, device=weights.device)
        nodes = mode[..., None] + width[..., None] * offsets  # x [..., Q]
    heights = nodes - nodes.exp() + _log1mexp(weights[..., None, :] + nodes[..., None]).sum(-1)
    return heights.logsumexp(-1) + (width * _STEP).log()


def _log1mexp(y: Tensor) -> Tensor:
    """log(1 - exp(-exp(y))), accurate on both ends: for small exp(y) = z it is y - z / 2 + O(z^2)."""
    small = y < -6.0
    z = torch.where(small, 0.0, y).clamp(max=_CERTAIN).exp()
    low = torch.where(small, y, 0.0)
    return torch.where(small, low - low.exp() / 2, (-torch.expm1(-z)).log())


def _mode(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mode and width [...] of the integrand in x for log-weights [..., K]; the mode is in 0..log(1 + K)."""

    def pull(x: Tensor) -> tuple[Tensor, Tensor]:
        """Sum over members of g(z) = z / (exp(z) - 1) and of -dg/dx, at z = w exp(x)."""
        z = (weights + x[..., None]).clamp(-_CERTAIN, 4.0).exp()  # beyond exp(4), g is below 1e-21
        g = z / torch.expm1(z)
        return g.sum(-1), (g * (g + z - 1)).sum(-1)

    low, high = torch.zeros_like(weights[..., 0]), torch.full_like(weights[..., 0], math.log1p(weights.shape[-1]))
    for _ in range(24):
        middle = (low + high) / 2
        rising = 1 + pull(middle)[0] > middle.exp()
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return low, (low.exp() + pull(low)[1]).rsqrt()
