"""The reaper's thread: prompts of the dead return, and bells that were lost are rung again."""

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine

from db import queue
from db.connect import writing
from tests.worker.queued import submit
from tests.worker.waiting import until
from worker.reaper import Reaper

LEASE_SECONDS = 0.8


@pytest.fixture
def reaping(database: Engine) -> Iterator[Callable[[Callable[[int], bool]], None]]:
    reapers: list[Reaper] = []

    def start(ring: Callable[[int], bool]) -> None:
        reapers.append(Reaper(database, "tiny", LEASE_SECONDS, ring))
        reapers[-1].start()

    yield start
    for reaper in reapers:
        reaper.stop()


def test_prompts_of_the_dead_return_and_are_rung_for(
    database: Engine, reaping: Callable[[Callable[[int], bool]], None]
) -> None:
    batch = submit(database, [{}] * 3)
    with writing(database) as conn:
        queue.claim(conn, "tiny", "worker_dead", 3, LEASE_SECONDS)
    rung: list[int] = []

    def ring(count: int) -> bool:
        rung.append(count)
        return True

    reaping(ring)
    until(lambda: rung, "it rings")
    until(lambda: all(prompt.rung_at for prompt in batch.prompts()), "it notes that it rang")
    assert batch.statuses() == ["pending"] * 3
    assert [prompt.crashes for prompt in batch.prompts()] == [1, 1, 1]


def test_a_broker_that_is_away_is_rung_at_again(
    database: Engine, reaping: Callable[[Callable[[int], bool]], None]
) -> None:
    batch = submit(database, [{}])
    answers = iter([False, False, True])
    reaping(lambda _count: next(answers, True))
    until(lambda: batch.prompts()[0].rung_at, "the third bell is taken")
    assert next(answers, None) is None


def test_a_prompt_is_rung_for_again_when_nobody_came(
    database: Engine, reaping: Callable[[Callable[[int], bool]], None]
) -> None:
    submit(database, [{}])
    rung: list[int] = []

    def ring(count: int) -> bool:
        rung.append(count)
        return True

    reaping(ring)
    until(lambda: len(rung) >= 3, "it is rung for over and over")


def test_nothing_is_rung_for_where_nothing_waits(
    database: Engine, reaping: Callable[[Callable[[int], bool]], None]
) -> None:
    batch = submit(database, [{}])
    with writing(database) as conn:
        (claimed,) = queue.claim(conn, "tiny", "worker_1", 1, 60)
    passes = []
    reaping(lambda count: passes.append(count) or True)
    with writing(database) as conn:
        queue.complete(conn, "worker_1", [], [queue.Failed(claimed.lease, "bad_token", "no")])
    until(lambda: batch.batch.status == "completed", "a pass ends the batch that nobody ended")
    assert passes == []
