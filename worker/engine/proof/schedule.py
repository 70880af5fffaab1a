"""Which steps run plain."""

from random import Random


class BlockSchedule:
    """A block of plain steps at a random place in each stretch of steps, never without neighbours.

    Blocks are a `share` of all steps, at most half. Their places are random, so that nothing that comes and
    goes with the job's own rhythm always falls into them.
    """

    def __init__(self, share: float, block: int, random: Random) -> None:
        self._block = block
        self._stretch = round(block / min(share, 0.5))
        self._random = random
        self._step = 0  # in its stretch
        self._start = self._place()

    @property
    def is_plain(self) -> bool:
        """Of the step that comes."""
        return self._start <= self._step < self._start + self._block

    def advance(self) -> None:
        """The step is done."""
        self._step += 1
        if self._step == self._stretch:
            self._step = 0
            self._start = self._place()

    def _place(self) -> int:
        return self._random.randint(self._block, self._stretch - self._block)
