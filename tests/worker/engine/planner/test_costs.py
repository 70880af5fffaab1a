"""Step costs are a staircase that never falls, and that follows what steps take."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.planner.costs import DraftCosts, StepCosts
from worker.engine.planner.profiling import profile, profiled_shapes

observed = st.tuples(st.integers(1, 64), st.integers(0, 5), st.floats(1e-4, 10.0))


def stairs(rows: int, verified: int) -> float:
    """A jump with every 16th token; context and host work by row."""
    return 0.01 * (1 + (verified - 1) // 16) + 0.0001 * rows


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(observed, max_size=40), rows=st.integers(1, 64))
def test_the_staircase_never_falls_and_is_positive(steps: list[tuple[int, int, float]], rows: int):
    costs = StepCosts()
    for some, proposed, seconds in steps:
        costs.observe(some, some + some * proposed, seconds)
    times = costs.times(rows, 5 * rows)
    assert len(times) == 5 * rows + 1
    assert (times > 0).all()
    assert np.isfinite(times).all()
    assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_a_profile_is_believed_at_once(rows: int):
    costs = StepCosts()
    shapes = profiled_shapes(16, 5)
    costs.profile([(r, verified, stairs(r, verified)) for r, verified in shapes])
    times = costs.times(rows, 5 * rows)
    for verified in (v for r, v in shapes if r == rows):
        assert times[verified - rows] == pytest.approx(stairs(rows, verified), rel=0.25)


def test_observed_steps_correct_it():
    costs = StepCosts()
    costs.profile([(r, v, 0.03) for r, v in profiled_shapes(16, 5)])  # taken while the machine was busy
    noise = random.Random(3)
    for _ in range(400):
        proposed = noise.choice([0, 8, 40])
        costs.observe(8, 8 + proposed, stairs(8, 8 + proposed) * noise.uniform(0.9, 1.1))
    times = costs.times(8, 40)
    for proposed in (0, 8, 40):
        assert times[proposed] == pytest.approx(stairs(8, 8 + proposed), rel=0.1)


def test_a_machine_that_slows_down_slows_all_shapes():
    """Only plain steps are seen since; what proposals cost beside them stays known."""
    costs = StepCosts()
    costs.profile([(r, v, stairs(r, v)) for r, v in profiled_shapes(16, 5)])
    before = costs.times(4, 20)
    for _ in range(60):
        costs.observe(4, 4, 2 * stairs(4, 4))
    after = costs.times(4, 20)
    assert after[0] == pytest.approx(2 * before[0], rel=0.1)
    assert after[20] / after[0] == pytest.approx(before[20] / before[0], rel=0.3)


def test_a_step_that_hung_is_soon_forgotten():
    costs = StepCosts()
    costs.profile([(r, v, stairs(r, v)) for r, v in profiled_shapes(16, 5)])
    costs.observe(4, 4, 3.0)
    for _ in range(20):
        costs.observe(4, 4, stairs(4, 4))
    assert costs.times(4, 0)[0] == pytest.approx(stairs(4, 4), rel=0.1)


def test_profiling_stops_when_its_time_is_up():
    calls: list[tuple[int, int]] = []

    def record(rows: int, verified: int) -> None:
        calls.append((rows, verified))

    assert profile(record, profiled_shapes(16, 5), budget_seconds=-1) == []
    assert len(calls) == 1
    timings = profile(record, profiled_shapes(3, 5))
    assert {rows for rows, _, _ in timings} == {1, 3}
    assert all(rows <= verified <= 6 * rows for rows, verified, _ in timings)


def test_drafting_costs_follow_rows_and_depth():
    costs = DraftCosts()
    assert costs.seconds(4, 5) == 0.0  # never seen: worth a try
    for _ in range(20):
        costs.observe(4, 5, 0.005)
        costs.observe(16, 5, 0.015)
    assert costs.seconds(4, 5) == pytest.approx(0.005)
    assert costs.seconds(4, 1) == pytest.approx(0.001)
    assert costs.seconds(10, 5) == pytest.approx(0.010)
    assert costs.seconds(32, 5) == pytest.approx(0.030)
