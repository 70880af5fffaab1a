"""Rows that would not be asked for are, now and then, for two steps: what the second takes is the price."""

from collections.abc import Iterator, Sequence

import pytest

from tests.worker.engine.planner.simulation import GAMMA, Kind, SimulatedRow
from worker.engine.planner import AdaptivePlanner

ROWS, PLAIN, USUAL = 32, 0.020, 0.010
CATCHING_UP = 0.015


class World:
    """A drafter that knows nothing; a row that was not asked in the last step makes it take longer."""

    def __init__(self) -> None:
        self.planner = AdaptivePlanner(GAMMA, in_blocks=True, clock=lambda: 0.0)
        self.rows = [SimulatedRow(i, Kind(1.0, (0.0,)), 10_000) for i in range(ROWS)]
        self._before: set[SimulatedRow] = set()

    def step(self, hangs: float = 0.0) -> set[SimulatedRow]:
        """The rows that were asked."""
        limits = self.planner.draft_limits(self.rows, True) or [0] * len(self.rows)
        asked = {row for row, limit in zip(self.rows, limits, strict=True) if limit}
        seconds = (USUAL + CATCHING_UP * bool(asked - self._before) + hangs) if asked else 0.0
        self._before = asked
        drafts = [row.draft(limit) for row, limit in zip(self.rows, limits, strict=True)]
        lengths = self.planner.verify_lengths(self.rows, drafts, seconds)
        for row in self.rows:
            row.tokens.append(len(row.tokens))
        self.planner.observe(len(self.rows), PLAIN + 0.0001 * sum(lengths))
        return asked

    def until_a_probe(self, most: int = 3000) -> set[SimulatedRow]:
        """The rows of the first of two steps."""
        return next(asked for asked in self._steps(most) if asked)

    def _steps(self, most: int) -> Iterator[set[SimulatedRow]]:
        for _ in range(most):
            yield self.step()


@pytest.fixture
def world() -> World:
    """Whose drafter is given up."""
    world = World()
    quiet = 0
    while quiet < 20:
        quiet = 0 if world.step() else quiet + 1
    return world


def _asked_of(rows: Sequence[SimulatedRow], asked: set[SimulatedRow]) -> set[SimulatedRow]:
    return {row for row in rows if row in asked}


def test_a_probe_asks_the_same_rows_twice_wherever_they_have_moved(world: World) -> None:
    for _ in range(3):
        first = world.until_a_probe()
        assert 0 < len(first) <= 8
        world.rows = [*world.rows[1:], SimulatedRow(100, Kind(1.0, (0.0,)), 10_000)]
        assert world.step() == _asked_of(world.rows, first)
        assert not world.step()


def test_a_block_that_hung_does_not_end_probing(world: World) -> None:
    def pause() -> int:
        steps = 0
        while not world.step():
            steps += 1
            assert steps < 5000
        world.step()
        return steps

    pauses = [pause() for _ in range(6)]
    while not world.step(hangs=3.0):
        pass
    world.step()
    assert max(pause() for _ in range(4)) < 8 * max(pauses[1:])


def test_while_the_first_rows_come_in_nobody_is_asked() -> None:
    """A block for some of them would have to be tried again with all."""
    world = World()
    rows, asked = world.rows, list[int]()
    for coming in (8, 20, ROWS, ROWS, ROWS):
        world.rows = rows[:coming]
        asked.append(len(world.step()))
    assert asked == [0, 0, 0, ROWS, ROWS]


def test_where_rows_always_come_in_they_are_asked_all_the_same() -> None:
    world = World()
    asked = list[int]()
    for step in range(24):
        world.rows = [SimulatedRow(100 * step + i, Kind(1.0, (0.0,)), 10) for i in range(ROWS)]
        asked.append(len(world.step()))
    assert not any(asked[:16])
    assert any(asked[16:])
