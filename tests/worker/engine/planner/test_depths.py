"""A block is drafted as far as its tokens are verified, and now and then to its end."""

import numpy as np

from worker.engine.planner.depths import Depths

GAMMA = 5


def learn(depths: Depths, rows: int, lengths: list[int], steps: int) -> list[int]:
    """The depths that were asked for."""
    asked: list[int] = []
    for _ in range(steps):
        asked.append(depths.best(rows))
        depths.learn(rows, asked[-1], np.array(lengths).clip(max=asked[-1]))
    return asked


def test_what_is_hardly_ever_verified_is_not_asked_for() -> None:
    asked = learn(Depths(GAMMA), 8, [2, 1, 0, 2, 1, 0, 0, 1], 33)
    assert set(asked) == {2, GAMMA}
    assert [step for step, depth in enumerate(asked) if depth == GAMMA] == [0, 16, 32]


def test_what_begins_to_be_verified_is_found() -> None:
    depths = Depths(GAMMA)
    learn(depths, 8, [1, 0], 40)
    assert learn(depths, 8, [5, 5], 100)[-1] == GAMMA


def test_where_all_is_verified_all_is_asked_for() -> None:
    assert set(learn(Depths(GAMMA), 1, [5], 40)) == {GAMMA}


def test_each_number_of_rows_has_its_own_depth() -> None:
    depths = Depths(GAMMA)
    learn(depths, 16, [1] * 16, 40)
    assert depths.best(1) == GAMMA


def test_where_nothing_is_verified_one_token_is() -> None:
    assert set(learn(Depths(GAMMA), 8, [0] * 8, 20)) == {1, GAMMA}
