"""What the tier classifier learns from: the answer's loss that each tier of saccades would have led to.

Notation: B prompts, S their length, I image slots (one per prompt here), T tiers.
"""

from torch import Tensor


def expected_answer_loss(tier_logits: Tensor, losses: Tensor) -> Tensor:
    """[I] the answer's loss, on average over tiers drawn from the classifier: the sum of p(tier) * loss(tier).

    Its gradient is exact. That of tokens weighted by the probability that they are fetched is not: a language model
    that normalises its input hardly sees a token's scale, and so not that it might be missing.

    Args:
        tier_logits: [I, T], see `FetchResult.tier_logits`.
        losses: [I, T] summed cross-entropy of each answer's tokens, with as many saccades as each tier has.
    """
    return (tier_logits.softmax(-1) * losses.to(tier_logits)).sum(-1)
