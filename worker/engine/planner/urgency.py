"""What a row's tokens are worth: the same for all while others wait for its place, and once none does, less
where a row ends in time by itself.

Of a step's time a part is the same for however few rows. With nothing left to let in it is saved only by
fewer steps; a row that ends before the last one does, even without proposals, saves but its own share.
"""

from collections.abc import Sequence

import numpy as np

from worker.engine.planner.search import Floats
from worker.engine.planner.survival import Stream

_BLUR = 0.03  # of the steps still to come: rows may end before their limit
_RATE = 0.2  # at which a row's gain is followed


class Urgency:
    """Knows what rows gain, and so in how many steps the last of them will end."""

    def __init__(self) -> None:
        self._gains: dict[Stream, tuple[float, int]] = {}  # tokens a step beyond the first, and steps seen

    def learn(self, rows: Sequence[Stream], promised: Sequence[float]) -> None:
        """So many tokens of each are expected to be accepted if all that is proposed is verified."""
        for row, gain in zip(rows, promised, strict=True):
            known, seen = self._gains.get(row, (0.0, 0))
            self._gains[row] = known + max(_RATE, 1 / (seen + 1)) * (gain - known), seen + 1

    def weights(self, rows: Sequence[Stream], remaining: Sequence[int] | None, fixed: float) -> Floats:
        """[R]: how many tokens one of this row counts for, at most 1, and 1 each where others wait.

        `remaining` are tokens that each may still emit where none does, and `fixed` is the part of a plain
        step's time that does not depend on how many rows it has, a share.
        """
        if remaining is None:
            return np.ones(len(rows))
        gains = np.array([self._gains.get(row, (0.0, 0))[0] for row in rows])
        plain = np.array(remaining, dtype=np.float64)
        last = float((plain / (1 + gains)).max())
        return 1 - fixed * (1 - np.exp(((plain - last) / max(1.0, _BLUR * last)).clip(max=0.0)))

    def forget(self, row: Stream) -> None:
        self._gains.pop(row, None)
