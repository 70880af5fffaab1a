"""How far a block is worth drafting: each further token takes time, and brings less than the one before."""

from math import exp, log

import numpy as np

from worker.engine.planner.costs import BUCKETS, bucket
from worker.engine.planner.search import Floats

_RATE = 0.05
_WHOLE_EVERY = 16  # askings: else what lies beyond would not be known
_FORGET = 0.98  # an asking: what blocks took is known by the last fifty
_CLIP = 0.7  # of one block's time, in log: one that hung must not decide
_ALIKE = 0.1  # of depths, in their variance: they do not tell what one more takes


class Depths:
    """By rows in flight, what each position of a block gains in a step, and what blocks take."""

    def __init__(self, gamma: int) -> None:
        self._gains = np.zeros((len(BUCKETS), gamma))
        self._seen = np.zeros((len(BUCKETS), gamma), dtype=np.int64)
        self._blocks = [Line() for _ in BUCKETS]
        self._asked = [0] * len(BUCKETS)

    def best(self, in_flight: int, plain: float) -> int:
        """The depth that yields the most tokens a second; `plain` are the seconds of a plain step."""
        at = bucket(in_flight)
        gamma = self._gains.shape[1]
        if self._asked[at] % _WHOLE_EVERY == 0:
            return gamma
        seconds = plain + self._blocks[at].at(np.arange(1, gamma + 1, dtype=np.float64))
        return int(((in_flight + self._gains[at].cumsum()) / seconds).argmax()) + 1

    def learn(self, in_flight: int, gains: Floats, seconds: float) -> None:
        """A block took so long, and was as deep as there are gains.

        By position, the tokens gained in this step by all asked rows, after what verifying them cost.
        """
        at, depth = bucket(in_flight), len(gains)
        self._asked[at] += 1
        self._seen[at, :depth] += 1
        rates = np.maximum(_RATE, 1 / self._seen[at, :depth])
        self._gains[at, :depth] += rates * (gains - self._gains[at, :depth])
        self._blocks[at].add(depth, seconds)


class Line:
    """Seconds by depth: least squares, the older the less; until depths differ, in proportion to depth."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._depth = self._seconds = self._square = self._product = 0.0  # means

    def add(self, depth: int, seconds: float) -> None:
        if self._weight:
            expected = max(float(self.at(np.array([float(depth)]))[0]), 1e-9)
            seconds = expected * exp(min(max(log(max(seconds, 1e-9) / expected), -_CLIP), _CLIP))
        self._weight = self._weight * _FORGET + 1
        share = 1 / self._weight
        self._depth += share * (depth - self._depth)
        self._seconds += share * (seconds - self._seconds)
        self._square += share * (depth**2 - self._square)
        self._product += share * (depth * seconds - self._product)

    def at(self, depths: Floats) -> Floats:
        """None falls below zero, and none takes less than a shorter one."""
        variance = self._square - self._depth**2
        proportional = self._seconds / self._depth
        slope = (
            (self._product - self._depth * self._seconds) / variance if variance > _ALIKE else proportional
        )
        return self._seconds + min(max(slope, 0.0), proportional) * (depths - self._depth)
