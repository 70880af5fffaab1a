"""What asking the drafter has been worth: tokens gained a row and step, after what verifying them cost."""

from collections.abc import Sequence
from math import log

import numpy as np

from worker.engine.planner.costs import BUCKETS, bucket
from worker.engine.planner.search import Floats
from worker.engine.planner.survival import Stream

_FIRST = 1.0  # of a number of rows when none like it was tried: it is tried
_UNLIKE = 4.0  # so many times as many rows, or as few: what they gain says nothing any more
_PAIR_RATE = 0.05
_ROW_WEIGHT = 4.0  # askings that the pair's worth counts for in a row's
_ROW_FORGETS = 0.9


class Worth:
    """Running means for the pair, by rows in flight, and for each row, blended with the pair's."""

    def __init__(self) -> None:
        self._pair = [0.0] * len(BUCKETS)
        self._asked = [0] * len(BUCKETS)
        self._rows: dict[Stream, tuple[float, float]] = {}  # weight, and sum of gains

    def learn(self, in_flight: int, rows: Sequence[Stream], gains: Floats) -> None:
        """These rows were asked for, and brought so much."""
        at = bucket(in_flight)
        self._asked[at] += 1
        self._pair[at] += max(_PAIR_RATE, 1 / self._asked[at]) * (float(gains.mean()) - self._pair[at])
        for row, gain in zip(rows, gains.tolist(), strict=True):
            weight, total = self._rows.get(row, (0.0, 0.0))
            self._rows[row] = weight * _ROW_FORGETS + 1, total * _ROW_FORGETS + gain

    def of_pair(self, in_flight: int) -> float:
        """A row's gain in a step, at so many rows.

        Where they were never tried it is that of the nearest number that was, and the farther that is the
        more is hoped for.
        """
        at = bucket(in_flight)
        tried = [other for other, times in enumerate(self._asked) if times]
        if not tried:
            return _FIRST
        apart, nearest = min((abs(log(BUCKETS[other] / BUCKETS[at])), other) for other in tried)
        hope = min(apart / log(_UNLIKE), 1.0)
        return self._pair[nearest] + hope * max(_FIRST - self._pair[nearest], 0.0)

    def estimate(self, in_flight: int, rows: Sequence[Stream]) -> Floats:
        prior = self.of_pair(in_flight)
        known = [self._rows.get(row, (0.0, 0.0)) for row in rows]
        return np.array([(total + prior * _ROW_WEIGHT) / (weight + _ROW_WEIGHT) for weight, total in known])

    def forget(self, row: Stream) -> None:
        self._rows.pop(row, None)
