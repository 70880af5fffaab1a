"""How many rows there is memory for: fewer for a while after it ran out."""

from collections.abc import Callable
from time import monotonic

RECOVERY_SECONDS = 300.0  # without running out again, until twice as many are tried


class Capacity:
    def __init__(self, max_rows: int, clock: Callable[[], float] = monotonic) -> None:
        self._max_rows = self._rows = max_rows
        self._clock = clock
        self._grows_at = 0.0

    @property
    def rows(self) -> int:
        if self._rows < self._max_rows and self._clock() >= self._grows_at:
            self._rows = min(self._max_rows, 2 * self._rows)
            self._grows_at = self._clock() + RECOVERY_SECONDS
        return self._rows

    def ran_out(self, in_flight: int) -> int:
        """How many of the rows in flight must go: half of them, so that few tries find what fits."""
        self._rows = max(1, in_flight // 2)
        self._grows_at = self._clock() + RECOVERY_SECONDS
        return in_flight - self._rows
