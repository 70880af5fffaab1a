"""Running rates come to what they estimate: by position, by match length, by row."""

import random

import pytest

from worker.engine.drafters import Draft
from worker.engine.planner.survival import RunningRates


class Row:
    """Its n-th token is n."""

    def __init__(self) -> None:
        self.tokens: list[int] = [0]

    def grow(self, count: int) -> None:
        self.tokens.extend(range(len(self.tokens), len(self.tokens) + count))

    def draft(self, true: int, length: int = 3, match: int = 0, source: str = "") -> Draft:
        """A proposal of which so many tokens will come."""
        start = len(self.tokens)
        return Draft([start + i if i < true else -1 for i in range(length)], match, source)


def live(
    rates: RunningRates, row: Row, chances: list[float], steps: int, match: int = 0, seed: int = 0
) -> None:
    """Proposals whose j-th token is right with the j-th chance, given that those before it are."""
    noise = random.Random(seed)
    for _ in range(steps):
        true = 0
        while true < len(chances) and noise.random() < chances[true]:
            true += 1
        rates.watch(row, row.draft(true, len(chances), match))
        row.grow(len(chances))
        rates.settle([row])


def test_rates_by_position_come_to_the_true_ones():
    rates = RunningRates(3)
    live(rates, Row(), [0.9, 0.5, 0.2], 2000)
    fresh = Row()
    [survival] = rates.estimate([fresh], [fresh.draft(3)])
    assert survival == pytest.approx([0.9, 0.45, 0.09], abs=0.08)
    assert rates.expected(fresh, fresh.draft(3)) == pytest.approx(survival.sum())
    assert rates.typical() == pytest.approx(survival, abs=0.05)


def test_longer_matches_have_rates_of_their_own():
    rates = RunningRates(2)
    row = Row()
    for seed in range(20):
        live(rates, row, [0.2, 0.2], 20, match=2, seed=seed)
        live(rates, row, [0.95, 0.95], 20, match=9, seed=seed)
    fresh = Row()
    short, long = rates.estimate([fresh, fresh], [fresh.draft(2, 2, 2), fresh.draft(2, 2, 9)])
    assert short[0] == pytest.approx(0.2, abs=0.1)
    assert long[0] == pytest.approx(0.95, abs=0.05)


def test_a_row_unlike_the_others_is_known_after_a_few_trials():
    rates = RunningRates(3)
    live(rates, Row(), [0.3, 0.3, 0.3], 500)
    copying, fresh = Row(), Row()
    live(rates, copying, [1.0, 1.0, 1.0], 5)
    one, other = rates.estimate([copying, fresh], [copying.draft(3), fresh.draft(3)])
    assert one[0] > 0.7
    assert other[0] == pytest.approx(0.3, abs=0.15)


def test_a_proposal_that_was_not_verified_teaches_too():
    """One token a step comes out of plain decoding; in time they show what the proposal was worth."""
    rates = RunningRates(3)
    for _ in range(60):
        row = Row()
        rates.watch(row, row.draft(2))
        for _ in range(4):
            row.grow(1)
            rates.settle([row])
        rates.forget(row)
    fresh = Row()
    [survival] = rates.estimate([fresh], [fresh.draft(3)])
    assert survival[1] > 0.85
    assert survival[2] < 0.15


def test_what_is_not_proposed_does_not_survive_and_survival_falls():
    rates = RunningRates(4)
    row = Row()
    first, second = rates.estimate([row, row], [row.draft(2, 2), Draft(())])
    assert (first[:2] > 0).all()
    assert first[1] <= first[0]
    assert first[2:].tolist() == [0, 0]
    assert second.tolist() == [0, 0, 0, 0]


def test_rows_that_ended_leave_nothing_behind():
    rates = RunningRates(3)
    row = Row()
    live(rates, row, [0.5, 0.5, 0.5], 10)
    rates.watch(row, row.draft(3))
    rates.forget(row)
    assert not any(row in held for held in (rates._watched, rates._row_trials, rates._row_surplus))
