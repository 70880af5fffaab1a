"""What a drafter gains at a number of rows never tried is guessed from the nearest that was."""

import numpy as np
import pytest

from tests.worker.engine.planner.simulation import Kind, SimulatedRow
from worker.engine.planner.worth import Worth


def rows(number: int) -> list[SimulatedRow]:
    return [SimulatedRow(seed, Kind(), 100) for seed in range(number)]


def learnt(gains: dict[int, float]) -> Worth:
    """By rows in flight, what each gained."""
    worth = Worth()
    for in_flight, gain in gains.items():
        worth.learn(in_flight, rows(in_flight), np.full(in_flight, gain))
    return worth


def test_what_was_never_tried_at_all_is_hoped_for() -> None:
    assert Worth().of_pair(1) == Worth().of_pair(64) == 1.0


def test_the_farther_the_nearest_number_tried_the_more_is_hoped_for() -> None:
    worth = learnt({64: 0.1})
    hopes = [worth.of_pair(number) for number in (64, 48, 32, 20, 16, 1)]
    assert hopes[0] == pytest.approx(0.1)
    assert hopes == sorted(hopes)
    assert hopes[2] == pytest.approx(0.1 + 0.9 / 2)
    assert hopes[-2:] == [1.0, 1.0]


def test_of_two_the_nearer_one_tells() -> None:
    worth = learnt({1: 0.9, 64: 0.1})
    assert worth.of_pair(48) < 0.4
    assert worth.of_pair(2) == pytest.approx(0.95)


def test_it_is_not_hoped_to_be_less_than_what_was_seen() -> None:
    assert learnt({8: 2.5}).of_pair(32) == pytest.approx(2.5)


def test_a_row_differs_from_the_pair_by_what_it_gained_itself() -> None:
    worth, (one, other) = Worth(), rows(2)
    for _ in range(20):
        worth.learn(2, [one, other], np.array([2.0, 0.0]))
    gains = worth.estimate(2, [one, other])
    assert gains[0] > 1.5
    assert gains[1] < 0.5
    worth.forget(one)
    assert worth.estimate(2, [one])[0] == pytest.approx(worth.of_pair(2))
