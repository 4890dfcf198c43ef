"""The learning rate over the steps of a stage."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LinearLR, LRScheduler, SequentialLR
from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup

FLOOR = 0.02
"""Share of the learning rate that is left at the end."""


def warmup_cosine(optimizer: Optimizer, *, steps: int, warmup: int) -> LRScheduler:
    """Linear from 1 / `warmup` of the rate to all of it over `warmup` steps, then half a cosine down to `FLOOR`.

    The rise is torch's, because the first step of transformers' own rise has a rate of 0 and so teaches nothing.
    """
    fall = get_cosine_with_min_lr_schedule_with_warmup(optimizer, 0, steps - warmup, min_lr_rate=FLOOR)
    if not warmup:
        return fall
    rise = LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
    return SequentialLR(optimizer, [rise, fall], [warmup])
