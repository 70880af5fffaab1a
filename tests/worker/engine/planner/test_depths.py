"""A block is drafted as far as its tokens gain more than they take, and now and then to its end."""

import numpy as np
import pytest

from worker.engine.planner.depths import Depths, Line

GAMMA = 5
PLAIN = 0.010  # seconds of a step without a block


def learn(
    depths: Depths, rows: int, gains: list[float], steps: int, fixed: float = 0.0, each: float = 0.0005
) -> list[int]:
    """The depths that were asked for; a block takes `fixed` seconds and `each` for a token of its depth."""
    asked: list[int] = []
    for _ in range(steps):
        depth = depths.best(rows, PLAIN)
        depths.learn(rows, np.array(gains[:depth]), fixed + each * depth)
        asked.append(depth)
    return asked


def test_what_gains_less_than_it_takes_is_not_asked_for() -> None:
    asked = learn(Depths(GAMMA), 8, [2.0, 1.0, 0.3, 0.1, 0.0], 33)  # a token takes what 0.4 of them are worth
    assert set(asked) == {2, GAMMA}
    assert [step for step, depth in enumerate(asked) if depth == GAMMA] == [0, 16, 32]


def test_where_a_block_takes_as_long_however_short_it_is_all_is_asked_for() -> None:
    asked = learn(Depths(GAMMA), 8, [2.0, 1.0, 0.6, 0.5, 0.4], 40, fixed=0.0025, each=0.0)
    assert asked.count(GAMMA) > 30, "a shorter one is tried, and saves nothing"


def test_what_begins_to_gain_is_found() -> None:
    depths = Depths(GAMMA)
    learn(depths, 8, [1.0, 0, 0, 0, 0], 40)
    assert learn(depths, 8, [4.0] * 5, 100)[-1] == GAMMA


def test_each_number_of_rows_has_its_own_depth() -> None:
    depths = Depths(GAMMA)
    learn(depths, 16, [1.0, 0, 0, 0, 0], 40)
    assert depths.best(1, PLAIN) == GAMMA


def test_where_nothing_gains_one_token_is_asked_for() -> None:
    assert set(learn(Depths(GAMMA), 8, [0.0] * 5, 20)) == {1, GAMMA}


@pytest.mark.parametrize(
    "hung", [0, 1, 16], ids=["the first block", "the first short one", "a later whole one"]
)
def test_a_block_that_hung_does_not_decide(hung: int) -> None:
    depths, asked = Depths(GAMMA), list[int]()
    for step in range(400):
        depth = depths.best(8, PLAIN)
        seconds = 0.001 + 0.0006 * depth
        depths.learn(8, np.array([2.0, 1.5, 0.3, 0.1, 0.0][:depth]), seconds * (100 if step == hung else 1))
        asked.append(depth)
    assert set(asked[330:]) == {2, GAMMA}
    assert asked[330:].count(GAMMA) <= 5


def test_times_fall_neither_below_zero_nor_with_depth() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        line = Line()
        for depth in generator.integers(1, GAMMA + 1, size=30):
            line.add(int(depth), float(generator.exponential(0.004)))  # whatever noise makes of them
            times = line.at(np.arange(1, GAMMA + 1, dtype=np.float64))
            assert (times >= 0).all()
            assert (np.diff(times) >= 0).all()
