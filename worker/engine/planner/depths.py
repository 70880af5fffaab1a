"""How far a block is worth drafting: its first tokens cost less than all, and few rows' last are verified."""

import numpy as np

from worker.engine.planner.costs import BUCKETS, bucket
from worker.engine.planner.search import Integers

_RATE = 0.05
_MISSED = 0.05  # of the tokens that would be verified may lie beyond
_WHOLE_EVERY = 16  # askings: else what lies beyond would not be known


class Depths:
    """By rows in flight, how often each position of a block is verified; a running mean."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self._verified = np.ones((len(BUCKETS), gamma))
        self._asked = [0] * len(BUCKETS)

    def best(self, in_flight: int) -> int:
        at = bucket(in_flight)
        if self._asked[at] % _WHOLE_EVERY == 0:
            return self._gamma
        beyond = self._verified[at][::-1].cumsum()[::-1]  # from each position on
        return max(1, int((beyond > _MISSED * beyond[0]).sum()))

    def learn(self, in_flight: int, depth: int, lengths: Integers) -> None:
        """So many tokens of each row's block are verified; it was asked for `depth` of them."""
        at = bucket(in_flight)
        self._asked[at] += 1
        shares = (lengths[:, None] > np.arange(depth)).mean(axis=0)
        self._verified[at, :depth] += max(_RATE, 1 / self._asked[at]) * (shares - self._verified[at, :depth])
