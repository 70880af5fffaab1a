"""In a simulated world the planner is never far behind the best fixed choice, nor behind plain decoding."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.worker.engine.planner.simulation import GAMMA, Costs, Kind, SimulatedRow, run
from worker.engine.planner import AdaptivePlanner, VerifyAll
from worker.engine.planner.costs import StepCosts
from worker.engine.planner.profiling import profiled_shapes

CPU = Costs(lambda _, verified: 0.0094 + 0.00055 * (verified - 1))
GPU = Costs(lambda _, verified: 0.010 + 0.00002 * verified)
STEEP = Costs(lambda _, verified: 0.002 + 0.002 * verified)  # each token costs as much as a step: never pays
DRAFT_MODEL = Costs(GPU.step, lambda rows, depth: depth * (0.0015 + 0.00001 * rows))
FLAT_BLOCKS = Costs(GPU.step, lambda rows, _: 0.004 + 0.00001 * rows)
BLOCKS = Costs(CPU.step, lambda rows, depth: 0.0005 + 0.0001 * rows * depth)

CHAT = [Kind(0.35, (0.2, 0.5))]
COPY = [Kind(0.95, (0.8, 0.97))]
JUNK = [Kind(1.0, (0.05,))]
MIXED = [Kind(0.3, (0.3,)), Kind(0.95, (0.95,))]
NOISE = 0.1


def _stopped() -> float:
    """A clock by which planning takes no time: a busy machine decides nothing here."""
    return 0.0


def rows(kinds: list[Kind], count: int, later: list[Kind] | None = None) -> Iterator[SimulatedRow]:
    """Half-way the kinds may change."""
    for index in range(count):
        of = kinds if later is None or index < count // 2 else later
        yield SimulatedRow(index, of[index % len(of)], 96)


@pytest.mark.parametrize(
    ("kinds", "later", "costs", "in_flight"),
    [
        pytest.param(CHAT, None, CPU, 1, id="chat, one row"),
        pytest.param(COPY, None, CPU, 1, id="copying, one row"),
        pytest.param(COPY, None, CPU, 16, id="copying, few rows"),
        pytest.param(CHAT, None, CPU, 32, id="chat, where it pays at few rows only"),
        pytest.param(MIXED, None, CPU, 4, id="some rows copy, some do not"),
        pytest.param(JUNK, None, GPU, 16, id="a drafter that knows nothing"),
        pytest.param(CHAT, None, STEEP, 4, id="verifying never pays"),
        pytest.param(JUNK, None, DRAFT_MODEL, 8, id="drafting never pays"),
        pytest.param(COPY, None, DRAFT_MODEL, 8, id="drafting costs and pays"),
        pytest.param(JUNK, COPY, CPU, 4, id="it begins to pay midway"),
        pytest.param(COPY, JUNK, DRAFT_MODEL, 4, id="it ceases to pay midway"),
    ],
)
def test_regret_against_the_best_fixed_choice_is_a_few_percent(
    kinds: list[Kind], later: list[Kind] | None, costs: Costs, in_flight: int
):
    count = max(10, 2 * in_flight)
    fixed = [
        run(VerifyAll(gamma), rows(kinds, count, later), in_flight, costs, NOISE)
        for gamma in range(GAMMA + 1)
    ]
    planner = AdaptivePlanner(GAMMA, clock=_stopped)
    planner.costs.profile([(r, v, costs.step(r, v)) for r, v in profiled_shapes(in_flight, GAMMA)])

    seconds = run(planner, rows(kinds, count, later), in_flight, costs, NOISE)

    assert seconds <= 1.04 * min(fixed)
    assert seconds <= 1.03 * fixed[0]


@pytest.mark.parametrize("in_flight", [1, 4, 8, 16])
@pytest.mark.parametrize("acceptance", [0.05, 0.4, 0.6, 0.9])
def test_regret_in_blocks_is_a_few_percent_too(acceptance: float, in_flight: int):
    kinds, count = [Kind(1.0, (acceptance,))], max(10, 3 * in_flight)
    fixed = [
        run(VerifyAll(gamma), rows(kinds, count), in_flight, BLOCKS, NOISE) for gamma in range(GAMMA + 1)
    ]
    planner = AdaptivePlanner(GAMMA, in_blocks=True, clock=_stopped)
    planner.costs.profile([(r, v, BLOCKS.step(r, v)) for r, v in profiled_shapes(in_flight, GAMMA)])

    seconds = run(planner, rows(kinds, count), in_flight, BLOCKS, NOISE)

    assert seconds <= 1.05 * min(fixed)
    assert seconds <= 1.03 * fixed[0]


@pytest.mark.parametrize("in_flight", [32, 64])
@pytest.mark.parametrize("acceptance", [0.05, 0.6, 0.9])
def test_what_few_rows_take_says_nothing_of_many(acceptance: float, in_flight: int):
    """A block for all rows takes hardly longer than one for eight: by proportion nobody would be asked."""
    kinds, count = [Kind(1.0, (acceptance,))], 3 * in_flight
    fixed = [
        run(VerifyAll(gamma), rows(kinds, count), in_flight, FLAT_BLOCKS, NOISE) for gamma in (0, 2, GAMMA)
    ]
    planner = AdaptivePlanner(GAMMA, in_blocks=True, clock=_stopped)
    planner.costs.profile([(r, v, GPU.step(r, v)) for r, v in profiled_shapes(in_flight, GAMMA)])

    seconds = run(planner, rows(kinds, count), in_flight, FLAT_BLOCKS, NOISE)

    assert seconds <= 1.05 * min(fixed)


@pytest.mark.parametrize("in_flight", [1, 4, 8])
def test_a_first_block_that_takes_long_is_not_taken_for_what_blocks_cost(in_flight: int):
    """Nothing is warm yet, and there may be much to catch up on."""
    first = iter([0.09])
    cold = replace(BLOCKS, draft=lambda rows, depth: BLOCKS.draft(rows, depth) + next(first, 0.0))
    kinds, count = [Kind(1.0, (0.8,))], 6 * in_flight
    fixed = [
        run(VerifyAll(gamma), rows(kinds, count), in_flight, BLOCKS, NOISE) for gamma in range(GAMMA + 1)
    ]
    planner = AdaptivePlanner(GAMMA, in_blocks=True, clock=_stopped)
    planner.costs.profile([(r, v, BLOCKS.step(r, v)) for r, v in profiled_shapes(in_flight, GAMMA)])

    seconds = run(planner, rows(kinds, count), in_flight, cold, NOISE)

    assert seconds - 0.09 <= 1.12 * min(fixed)


def test_costs_are_learnt_without_a_profile():
    fixed = run(VerifyAll(GAMMA), rows(COPY, 16), 4, GPU, NOISE)
    assert run(AdaptivePlanner(GAMMA, clock=_stopped), rows(COPY, 16), 4, GPU, NOISE) <= 1.1 * fixed


class RecordedCosts(StepCosts):
    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[bool] = []  # of the steps it was told of: whether it was a plain one

    def observe(self, rows: int, verified: int, seconds: float) -> None:
        super().observe(rows, verified, seconds)
        self.kinds.append(rows == verified)


def test_a_plain_step_after_many_others_is_timed_though_most_of_those_are_not():
    ran: list[bool] = []

    def step(rows: int, verified: int) -> float:
        ran.append(rows == verified)
        return CPU.step(rows, verified)

    costs = RecordedCosts()
    run(AdaptivePlanner(GAMMA, costs=costs, clock=_stopped), rows([Kind(1.0, (0.97,))], 60), 1, Costs(step))

    probes = sum(now and not before for before, now in pairwise(ran))
    assert probes >= 5
    assert sum(now and not before for before, now in pairwise(costs.kinds)) == probes
    assert len(costs.kinds) < 0.6 * len(ran)


def test_without_speculation_nobody_is_asked():
    planner = AdaptivePlanner(GAMMA, clock=_stopped)
    row = SimulatedRow(0, COPY[0], 10)
    assert planner.draft_limits([row], True) == [GAMMA]
    assert planner.draft_limits([row], False) is None
