"""Who is served first, and how much one worker may take."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import Engine, update

from db import queue
from db.clock import now
from db.connect import connect, reading, writing
from db.tables import Batch
from tests.db.given import PAIR, claimed, submitted, worker


def names(count: int, prefix: str) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def test_within_a_batch_prompts_go_in_order(database: Engine) -> None:
    submitted(database, *names(5, "p"))
    assert [prompt.custom_id for prompt in claimed(database, limit=3)] == ["p0", "p1", "p2"]
    assert [prompt.custom_id for prompt in claimed(database, limit=3)] == ["p3", "p4"]


def test_a_higher_priority_goes_first(database: Engine) -> None:
    submitted(database, "low", priority=0)
    submitted(database, "normal", priority=1)
    submitted(database, "high", priority=2)
    assert [prompt.custom_id for prompt in claimed(database)] == ["high", "normal", "low"]


def test_a_small_batch_behind_a_huge_one_is_served_at_the_next_claim(database: Engine) -> None:
    submitted(database, *names(100, "huge"))
    claimed(database, limit=10)
    submitted(database, "small")

    assert claimed(database, limit=10)[0].custom_id == "small"


def test_batches_of_one_priority_take_turns_by_what_they_have_running(database: Engine) -> None:
    first = submitted(database, *names(40, "a"))
    second = submitted(database, *names(40, "b"))
    order = [claimed(database, limit=10)[0].batch_id for _ in range(4)]
    assert order == [first, second, first, second]


def test_only_the_pair_asked_for(database: Engine) -> None:
    submitted(database, "other", pair="another pair")
    assert claimed(database) == []


@pytest.mark.parametrize("change", ["paused", "cancelling", "past its deadline"])
def test_a_batch_that_is_held_up_is_not_served(database: Engine, change: str) -> None:
    batch_id = submitted(database, "a")
    with writing(database) as conn:
        time = now(conn)
        values = {
            "paused": {"paused_at": time},
            "cancelling": {"status": "cancelling"},
            "past its deadline": {"deadline": time - timedelta(seconds=1)},
        }[change]
        conn.execute(update(Batch).where(Batch.id == batch_id).values(values))

    assert claimed(database) == []
    with reading(database) as conn:
        assert queue.pending_count(conn, PAIR) == 0
        assert queue.unrung(conn, PAIR, older_than=0) == []


def test_nobody_hoards_the_tail(database: Engine) -> None:
    """A claim takes at most pending / (2 x live workers), but always at least one."""
    submitted(database, *names(40, "p"))
    with reading(database) as conn:
        assert queue.claim_limit(conn, PAIR, room=32) == 20  # nobody registered counts as one
    worker(database, "worker-1")
    worker(database, "worker-2")
    worker(database, "elsewhere", pair="another pair")
    with reading(database) as conn:
        assert queue.pending_count(conn, PAIR) == 40
        assert queue.pending_count(conn, PAIR, at_most=7) == 7
        assert queue.claim_limit(conn, PAIR, room=32) == 10
        assert queue.claim_limit(conn, PAIR, room=4) == 4
    claimed(database, limit=39)
    with reading(database) as conn:
        assert queue.claim_limit(conn, PAIR, room=32) == 1


def test_claimers_at_the_same_time_never_share_a_prompt(database_url: str, database: Engine) -> None:
    claimers, total = 4, 200
    submitted(database, *names(total, "p"))
    together = Barrier(claimers)

    def claim_all(owner: str) -> list[int]:
        engine = connect(database_url)
        together.wait()
        mine: list[int] = []
        while prompts := claimed(engine, limit=7, owner=owner):
            mine += [prompt.prompt_id for prompt in prompts]
        engine.dispose()
        return mine

    with ThreadPoolExecutor(claimers) as pool:
        shares = list(pool.map(claim_all, [f"worker-{number}" for number in range(claimers)]))

    every = [prompt_id for share in shares for prompt_id in share]
    assert len(every) == len(set(every)) == total
