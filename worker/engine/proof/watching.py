"""The engine's side of the proof: a look at its rows around each step."""

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from operator import attrgetter
from random import Random
from time import perf_counter
from typing import Protocol

from worker.engine.proof.comparing import Comparer, Comparison, Step
from worker.engine.proof.schedule import BlockSchedule

BLOCK = 200  # steps


class Watched(Protocol):
    """A row: whose it is, and what it has said, after its prompt or with it."""

    @property
    def group(self) -> Hashable: ...

    @property
    def tokens(self) -> Sequence[int]: ...


# No Python for each row: this is paid at every step.
_group = attrgetter("group")
_tokens = attrgetter("tokens")


class Proof:
    """Decides which steps run plain and measures them. It never changes what is generated."""

    def __init__(
        self,
        share: float,
        block: int = BLOCK,
        random: Random | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`share` of the steps are plain, at most half; 0: none, and nothing is measured."""
        # By default blocks fall elsewhere in each process: some of many short batches have one, too.
        self._schedule = BlockSchedule(share, block, random or Random()) if share else None
        self._comparer = Comparer(block)
        self._made: list[Comparison] = []
        self._clock = clock

    @property
    def is_plain(self) -> bool:
        """The step that comes must not draft."""
        return self._schedule is not None and self._schedule.is_plain

    @contextmanager
    def watch(self, rows: Sequence[Watched], speculation: bool = True) -> Generator[None]:
        """Around a step of these rows. While speculation is off altogether there is nothing to compare."""
        if self._schedule is None or not rows or not speculation:
            yield
            return
        groups = frozenset(map(_group, rows))
        said = sum(map(len, map(_tokens, rows)))
        began = self._clock()
        yield  # of a step that raises nothing is known
        seconds = self._clock() - began
        tokens = sum(map(len, map(_tokens, rows))) - said
        step = Step(groups, len(rows), tokens, seconds)
        self._made += self._comparer.note(step, plain=self._schedule.is_plain)
        self._schedule.advance()

    def rest(self) -> None:
        """No row is left: what was measured of them is all there will be."""
        self._made += self._comparer.conclude()

    def take(self) -> list[Comparison]:
        """The comparisons made since the last call."""
        made, self._made = self._made, []
        return made
