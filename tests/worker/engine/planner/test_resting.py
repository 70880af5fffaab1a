"""What planning itself takes is held against what it saves."""

from collections.abc import Iterator, Sequence
from itertools import count

import pytest

from tests.worker.engine.planner.simulation import GAMMA, Costs, Kind, SimulatedRow, run
from worker.engine.planner import AdaptivePlanner
from worker.engine.planner.resting import Resting
from worker.engine.planner.survival import Stream

_ROWS = 64
_STEP = 0.04
_PLANNING = 0.0016  # seconds of each planned step
COSTS = Costs(lambda _, verified: _STEP + 0.0004 * (verified - _ROWS), lambda rows, _: 1e-6 * rows)


class Recorded(AdaptivePlanner):
    """Notes which steps were planned; each takes the same time by its own clock."""

    def __init__(self) -> None:
        ticks = count()
        super().__init__(GAMMA, clock=lambda: next(ticks) * _PLANNING / 2)
        self.planned: list[bool] = []

    def draft_limits(
        self, rows: Sequence[Stream], speculation: bool, remaining: Sequence[int] | None = None
    ) -> list[int] | None:
        limits = super().draft_limits(rows, speculation, remaining)
        self.planned.append(limits is not None)
        return limits


def rows(kind: Kind, later: Kind | None = None) -> Iterator[SimulatedRow]:
    for index in range(3 * _ROWS):
        yield SimulatedRow(index, later if later and index >= _ROWS else kind, 96)


def test_where_it_saves_nothing_it_takes_less_than_one_percent() -> None:
    planner = Recorded()
    seconds = run(planner, rows(Kind(0.3, (0.1,))), _ROWS, COSTS)
    assert sum(planner.planned) * _PLANNING <= 0.01 * seconds


def test_where_it_saves_more_than_it_takes_all_are() -> None:
    planner = Recorded()
    run(planner, rows(Kind(0.9, (0.95,))), _ROWS, COSTS)
    assert sum(planner.planned) >= 0.95 * len(planner.planned)


def test_rows_that_begin_to_copy_are_found() -> None:
    planner = Recorded()
    run(planner, rows(Kind(0.3, (0.1,)), later=Kind(0.9, (0.95,))), _ROWS, COSTS)
    assert sum(planner.planned[100:]) >= 0.6 * len(planner.planned[100:])


@pytest.mark.parametrize(
    ("in_flight", "rests"), [(64, True), (45, True), (40, False), (92, True), (100, False)]
)
def test_a_rest_is_of_about_as_many_rows(in_flight: int, rests: bool) -> None:
    resting = Resting()
    for _ in range(16):
        assert not resting.takes_this_step(64)
        resting.learn(64, saved=0.0, spent=0.001, plain=0.03)
    assert resting.takes_this_step(in_flight) is rests


@pytest.mark.parametrize(("share", "rests"), [(0.055, True), (0.065, False)])
def test_what_is_left_of_all_rows_needs_no_judging_of_its_own(share: float, rests: bool) -> None:
    """Steps of fewer rows take less time: what counts is the share of one."""
    resting = Resting()
    for in_flight in (64, 55, 40, 33) * 4:
        assert not resting.takes_this_step(in_flight)
        plain = 0.0005 * in_flight
        resting.learn(in_flight, saved=share * plain, spent=0.0, plain=plain)
    assert resting.takes_this_step(33) is rests


@pytest.mark.parametrize(("saved", "rests"), [(0.0041, True), (0.0043, False)])
def test_it_must_save_more_than_it_takes_by_a_margin(saved: float, rests: bool) -> None:
    resting = Resting()
    for _ in range(16):
        resting.learn(8, saved, spent=0.003, plain=0.02)
    assert resting.takes_this_step(8) is rests


def test_a_step_that_hung_does_not_decide() -> None:
    resting = Resting()
    for step in range(40):
        assert not resting.takes_this_step(8)
        resting.learn(8, saved=0.002, spent=5.0 if step == 20 else 0.001, plain=0.01)
