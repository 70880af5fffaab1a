"""How far a median of measurements can be trusted."""

import random
import statistics
from collections.abc import Sequence

_RESAMPLES = 2000


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95% of the medians of samples drawn anew from `values` lie between; always the same for the same."""
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    tail = _RESAMPLES // 40
    return medians[tail], medians[-tail - 1]
