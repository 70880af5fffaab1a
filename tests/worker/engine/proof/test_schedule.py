"""Where blocks of plain steps are."""

from itertools import groupby
from random import Random

import pytest

from worker.engine.proof.schedule import BlockSchedule


def kinds(share: float, steps: int, seed: int = 0, block: int = 200) -> list[bool]:
    """Of each step, whether it is plain."""
    schedule = BlockSchedule(share, block, Random(seed))
    found: list[bool] = []
    for _ in range(steps):
        found.append(schedule.is_plain)
        schedule.advance()
    return found


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_the_share_of_plain_steps_is_kept_to_the_step(share: float) -> None:
    steps = 10 * round(200 / share)
    assert sum(kinds(share, steps)) == share * steps


@pytest.mark.parametrize("seed", range(5))
def test_every_block_is_whole_and_has_neighbours_as_long_as_itself(seed: int) -> None:
    runs = [(plain, len(list(run))) for plain, run in groupby(kinds(0.1, 40_000, seed))][:-1]
    assert [length for plain, length in runs if plain] == [200] * 20
    assert min(length for plain, length in runs if not plain) >= 200


def test_blocks_are_at_random_places_which_the_seed_decides() -> None:
    assert kinds(0.02, 20_000, seed=1) == kinds(0.02, 20_000, seed=1)
    firsts = {kinds(0.02, 10_000, seed).index(True) for seed in range(20)}
    assert len(firsts) == 20
    assert max(firsts) - min(firsts) > 5_000
