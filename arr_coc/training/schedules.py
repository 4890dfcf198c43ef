"""Learning-rate schedules."""

import math


def warmup_cosine(step: int, *, steps: int, warmup: int, floor: float = 0.02) -> float:
    """Factor on the learning rate: linear over `warmup` steps, then half a cosine down to `floor` at `steps`."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2
