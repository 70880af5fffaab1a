"""What a step costs: a staircase over rows and verified tokens, learnt from a profile and every step since.

Each bucket of rows and proposed tokens keeps what was seen of it. A plane through all buckets (seconds = base
+ per token + per row) carries over to shapes never seen. What slows all shapes alike (longer contexts, a busy
machine) goes into one common drift, so that shapes not tried for a while stay comparable.
"""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp, log

import numpy as np

from worker.engine.planner.search import Floats

# Where buckets of rows begin, and those of verified tokens, in which plain decoding has one of its own.
BUCKETS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512)
_STAIRS = (
    0,
    *range(2, 32),
    *range(32, 128, 4),
    *range(128, 256, 8),
    *range(256, 512, 16),
    *range(512, 2049, 64),
)
_CLIP = 0.4  # of one observation, in log: a step that hung must not decide
_DRIFT_RATE = 0.3
_SLOWEST_RATE = 0.05
_FORGET = 0.998  # per step: what is not renewed fades into what is beside it
_REFIT_STEPS = 16
_PROFILE_WEIGHT = 3.0


class StepCosts:
    def __init__(self) -> None:
        # Seconds as base + per token + per row. Until steps are seen only ratios count: a small model on CPU.
        self._plane = np.array([1.0, 1 / 27, 0.0])
        self._drift = 0.0  # in log
        self._steps = 0
        shape = len(BUCKETS), len(_STAIRS)
        self._known = 0, np.zeros(0)  # times of so many rows, until more is learnt
        self._seen = np.zeros((*shape, 3))  # means of rows, verified tokens, and seconds in log less drift
        self._weights = np.zeros(shape)

    def profile(self, timings: Sequence[tuple[int, int, float]]) -> None:
        """Begin with measured (rows, verified, seconds)."""
        for rows, verified, seconds in timings:
            self._merge(rows, verified, log(seconds), _PROFILE_WEIGHT)
        self._steps += len(timings)
        self._refit()
        self._known = 0, np.zeros(0)

    def observe(self, rows: int, verified: int, seconds: float) -> None:
        """A step of so many rows and tokens took so long."""
        if not self._steps:
            self._plane *= seconds / float(self._smooth(rows, verified))
            self._known = 0, np.zeros(0)
        expected = log(float(self.times(rows, verified - rows)[-1]))
        surprise = min(max(log(seconds) - expected, -_CLIP), _CLIP)
        # What one bucket has more than before is its own, or common to all: some of both, until others tell.
        self._weights *= _FORGET
        self._merge(rows, verified, expected + surprise - self._drift, 1.0)
        self._drift += _DRIFT_RATE * surprise
        self._steps += 1
        if self._steps < _REFIT_STEPS or self._steps % _REFIT_STEPS == 0:
            self._refit()
        self._known = 0, np.zeros(0)

    def times(self, rows: int, most: int) -> Floats:
        """Seconds of a step that verifies 0, 1, ... `most` proposed tokens; never falling."""
        if self._known[0] != rows or len(self._known[1]) <= most:
            proposed = np.arange(most + 1, dtype=np.float64)
            seconds = self._smooth(rows, rows + proposed) * np.exp(
                self._correct(bucket(rows), proposed) + self._drift
            )
            # Between the lowest staircase above and the highest below: noise pulls it neither up nor down.
            above = np.maximum.accumulate(seconds)
            below = np.minimum.accumulate(seconds[::-1])[::-1]
            self._known = rows, (above + below) / 2
        return self._known[1][: most + 1]

    def fixed_share(self, rows: int) -> float:
        """Of a plain step's time: what it takes for however few rows."""
        return float(self._plane[0] / self._smooth(rows, rows))

    def _smooth(self, rows: int | Floats, verified: int | Floats) -> Floats:
        base, per_token, per_row = self._plane
        return np.asarray(base + per_token * verified + per_row * rows)

    def _correct(self, row_bucket: int, proposed: Floats) -> Floats:
        """How far above the plane so many rows were, or the nearest number that was seen; in log."""
        rows_seen = np.flatnonzero(self._weights.max(axis=1) > 0.1)
        if not len(rows_seen):
            return np.zeros(len(proposed))
        nearest = int(rows_seen[np.abs(rows_seen - row_bucket).argmin()])
        known = np.flatnonzero(self._weights[nearest] > 0.1)
        weights, (rows, verified, seconds) = self._weights[nearest][known], self._seen[nearest][known].T
        above = seconds - np.log(self._smooth(rows, verified))
        mean = (above * weights).sum() / weights.sum()
        trusted = (above * weights + mean * 0.5) / (weights + 0.5)
        return np.interp(proposed, verified - rows, trusted)

    def _merge(self, rows: int, verified: int, seconds: float, weight: float) -> None:
        cell = bucket(rows), bisect_right(_STAIRS, verified) - 1 if verified > rows else 0
        known = float(self._weights[cell])
        share = max(weight / (known + weight), _SLOWEST_RATE)
        self._seen[cell] += share * (np.array([rows, verified, seconds]) - self._seen[cell])
        self._weights[cell] = min(known + weight, 1 / _SLOWEST_RATE)

    def _refit(self) -> None:
        """The plane that errs least in proportion; it leans on the last one where little was seen."""
        known = self._weights > 0.1
        rows, verified, seconds = self._seen[known].T
        weights = np.sqrt(self._weights[known])
        shapes = np.stack([np.ones(len(rows)), verified, rows], axis=1) / np.exp(seconds)[:, None]
        lean = np.diag(0.1 / self._plane.clip(self._plane.max() * 1e-4))
        left = np.concatenate([shapes * weights[:, None], lean])
        right = np.concatenate([weights, lean @ self._plane])
        plane = np.linalg.lstsq(left, right, rcond=None)[0]
        self._plane = plane.clip([plane.max() * 0.01, plane.max() * 1e-4, 0.0])


class DraftCosts:
    """Seconds that the drafter took for so many rows, at so many tokens each."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # by bucket of rows, per token of depth, in log
        self._rows: dict[int, float] = {}
        self._known = np.zeros(0)  # seconds of so many rows at one token each, until more is learnt

    @property
    def is_known(self) -> bool:
        """Whether anything was seen: until then a drafter seems to take no time."""
        return bool(self._seconds)

    def observe(self, rows: int, depth: int, seconds: float) -> None:
        seen = log(max(seconds, 1e-9) / depth)
        at = bucket(rows)
        known = self._seconds.setdefault(at, seen)
        self._seconds[at] = known + 0.2 * min(max(seen - known, -1.5), 1.5)
        self._rows[at] = self._rows.get(at, rows) * 0.8 + rows * 0.2
        self._known = np.zeros(0)

    def seconds(self, rows: int, depth: int) -> float:
        """Between what was seen of fewer and of more rows; 0 where nothing was: it is then tried."""
        return float(self.up_to(rows, depth)[-1])

    def up_to(self, most: int, depth: int) -> Floats:
        """The same for 0, 1, ... `most` rows."""
        if len(self._known) <= most:
            self._known = self._per_token(most)
        return depth * self._known[: most + 1]

    def _per_token(self, most: int) -> Floats:
        if not self._seconds:
            return np.zeros(most + 1)
        known = sorted(self._seconds)
        seen = [self._rows[at] for at in known]
        rows = np.arange(most + 1, dtype=np.float64)
        seconds = np.interp(rows, seen, [exp(self._seconds[at]) for at in known])
        seconds *= (rows / seen[-1]).clip(1.0)
        seconds[0] = 0.0
        return seconds


def bucket(number: int) -> int:
    return bisect_right(BUCKETS, number) - 1
