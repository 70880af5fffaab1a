"""Once nobody waits, a token is worth what it brings the end nearer by."""

import pytest

from tests.worker.engine.planner.simulation import GAMMA, Costs, Kind, SimulatedRow, run
from worker.engine.planner import AdaptivePlanner, VerifyAll
from worker.engine.planner.profiling import profiled_shapes
from worker.engine.planner.urgency import Urgency

FIXED = 0.4
OWN_SHARE = pytest.approx(1 - FIXED, abs=0.01)
CHAT, COPY = Kind(0.35, (0.2, 0.5)), Kind(0.95, (0.9, 0.97))
COSTS = Costs(lambda _, verified: 0.02 + 0.0006 * verified)


def streams(number: int) -> list[SimulatedRow]:
    return [SimulatedRow(seed, CHAT, 100) for seed in range(number)]


def test_while_others_wait_all_count_the_same() -> None:
    rows, urgency = streams(3), Urgency()
    urgency.learn(rows, [4.0, 0.0, 1.0])
    assert urgency.weights(rows, None, FIXED).tolist() == [1, 1, 1]


def test_a_row_that_ends_long_before_the_last_counts_its_own_share() -> None:
    rows = streams(3)
    assert Urgency().weights(rows, [10, 99, 100], FIXED).tolist() == [OWN_SHARE, pytest.approx(1, abs=0.2), 1]


def test_the_last_may_copy_and_end_sooner_than_it_seems() -> None:
    rows, urgency = streams(2), Urgency()
    urgency.learn(rows, [0.0, 3.0])
    assert urgency.weights(rows, [40, 100], FIXED).tolist() == [1, 1]
    assert urgency.weights(rows, [10, 100], FIXED).tolist() == [OWN_SHARE, 1]


def test_what_it_gained_once_is_forgotten() -> None:
    rows, urgency = streams(2), Urgency()
    urgency.learn(rows, [0.0, 3.0])
    for _ in range(40):
        urgency.learn(rows, [0.0, 0.0])
    assert urgency.weights(rows, [40, 100], FIXED).tolist() == [OWN_SHARE, 1]


def test_a_row_that_is_forgotten_begins_anew() -> None:
    rows, urgency = streams(2), Urgency()
    urgency.learn(rows, [0.0, 3.0])
    urgency.forget(rows[1])
    assert urgency.weights(rows, [40, 100], FIXED).tolist() == [OWN_SHARE, 1]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param((CHAT, CHAT, COPY), id="some copy, and do not bring the end nearer"),
        pytest.param((CHAT,), id="none copies"),
        pytest.param((COPY,), id="all copy"),
    ],
)
def test_a_last_group_takes_hardly_longer_than_by_the_best_fixed_choice(kinds: tuple[Kind, ...]) -> None:
    def rows() -> list[SimulatedRow]:
        return [SimulatedRow(index, kinds[index % len(kinds)], 96) for index in range(48)]

    planner = AdaptivePlanner(GAMMA, clock=lambda: 0.0)
    planner.costs.profile([(r, v, COSTS.step(r, v)) for r, v in profiled_shapes(48, GAMMA)])
    fixed = min(run(VerifyAll(gamma), rows(), 48, COSTS) for gamma in range(GAMMA + 1))
    assert run(planner, rows(), 48, COSTS) <= 1.03 * fixed
